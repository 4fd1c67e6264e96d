#!/bin/bash
# What heddle local prints without a terminal: equal for two equal runs, and nothing but the training.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
file=$(job_file lines)
one=(--set resources.devices=1 --set train.global_batch=2 --set train.steps=203 --set validate.every=100 --set checkpoint.every=150)

heddle local "$file" "${one[@]}" >"$work/a.out" 2>"$work/a.err"
check_equal it_succeeds 0 $?
heddle local "$file" "${one[@]}" >"$work/b.out" 2>"$work/b.err"
check_equal so_does_the_same_job_again 0 $?
check_equal their_outputs_are_equal "" "$(diff "$work/a.out" "$work/b.out" | head -n 4)"
# 203 steps: at most 100 lines make every fifth step one, beside the first and the last
check_equal steps_come_by_their_number "1 $(seq 5 5 200 | tr '\n' ' ')203 " \
    "$(sed -nE 's|^step ([0-9]+)/203  loss .*|\1|p' "$work/a.out" | tr '\n' ' ')"
check_equal every_validation_is_there "0 100 200 203 " "$(sed -nE 's/^validation at step ([0-9]+): loss .*/\1/p' "$work/a.out" | tr '\n' ' ')"
check_equal checkpoints_are_told_from_the_runs_folder \
    "150: 1/attempt-1/checkpoints/step-00000150 203: 1/attempt-1/checkpoints/step-00000203 " \
    "$(sed -nE 's/^checkpoint at step //p' "$work/a.out" | tr '\n' ' ')"
run=$(find "$work/heddle-runs" -mindepth 1 -maxdepth 1 -type d | head -n 1)
check_equal and_are_there 1 "$([ -d "$run/1/attempt-1/checkpoints/step-00000203" ] && echo 1)"
# the last losses once more, in the line of the end
check_equal the_end_has_the_final_losses \
    "job succeeded at step 203, loss $(sed -nE 's|^step 203/203  loss ([0-9.]+) .*|\1|p' "$work/a.out"), validation loss $(sed -nE 's|^validation at step 203: loss (.*)|\1|p' "$work/a.out")" \
    "$(tail -n 1 "$work/a.out")"
check_equal stdout_has_nothing_else 0 "$(grep -vcE '^(step [0-9]+/203  loss [0-9.]+  grad_norm [0-9.e+-]+  lr [0-9.e+-]+$|validation at |checkpoint at |job succeeded )' "$work/a.out")"

check_equal stderr_says_what_runs_where 1 "$(grep -cE '^running on 1 cpu device, [0-9]+ threads? each: dp 1, micro-batch 2 x 1, fp32$' "$work/a.err")"
check_equal and_how_long_it_took 1 "$(grep -c '^heddle: took [0-9hms. ]*; to train on, or to see text from the model:$' "$work/a.err")"
check_equal and_nothing_of_the_machinery 0 "$(grep -cE 'no node|submitted|uid|rank_done|is done|ended|ranks are up|queued' "$work/a.err")"
run_it() { eval "$(sed -nE "s/^  (heddle generate .*)/\\1/p" "$work/a.err") --max-tokens 4"; }
check the_command_at_the_end_works run_it

seven=(--set resources.devices=1 --set train.steps=7)
heddle local "$file" "${seven[@]}" --set train.log_every=4 >"$work/d.out" 2>/dev/null
check_equal the_job_file_says_how_often "1 4 7 " "$(sed -nE 's|^step ([0-9]+)/7 .*|\1|p' "$work/d.out" | tr '\n' ' ')"
heddle local "$file" "${seven[@]}" --set resources.threads=3 --set train.log_every=4 --log-every 3 --times >"$work/c.out" 2>"$work/c.err"
check_equal the_job_file_says_how_many_threads 1 "$(grep -c '^running on 1 cpu device, 3 threads each: ' "$work/c.err")"
check_equal log_every_is_what_was_asked_for "1 3 6 7 " "$(sed -nE 's|^step ([0-9]+)/7 .*|\1|p' "$work/c.out" | tr '\n' ' ')"
check_equal times_stand_at_the_end_of_a_step 4 "$(grep -cE '^step .*  lr [0-9.e+-]+  [0-9.kM]+ tok/s  [0-9.]+ ms(  mfu [0-9.]+%)?$' "$work/c.out")"

# a mistake in the job file, and a job that waits: each says what to do
check_status a_bad_value_is_2 2 heddle local "$file" --log-every -1
HEDDLE_CUDA_PLUGIN=none check_status what_cannot_run_says_why 6 heddle local "$file" --set resources.device_type=cuda
check_equal with_the_reason 1 "$(grep -c '^heddle: heddled ended with status' "$work/check.err")"
finish
