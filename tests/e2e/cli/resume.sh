#!/bin/bash
# Jobs that go on: saved now, queued again, resumed after each kind of end. The weights in the end are
# those of a run that nobody disturbed.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:2
file=$(job_file onward)
slow=(--set validate.every=0 --set checkpoint.every=1000 --set checkpoint.keep=0 --set train.lr.decay=constant --set train.lr.warmup=10 --set train.global_batch=4)
tensors() { cat "$(heddle checkpoint ls "$1" | tail -n 1 | sed 's/.* //')"/rank-*.safetensors | cksum; }

straight=$(submit "$file" "${slow[@]}" --set train.steps=150)
job=$(submit "$file" "${slow[@]}" --set train.steps=120)
check_status save_needs_a_job_that_trains 6 heddle checkpoint save "$job"
check the_undisturbed_run_succeeds heddle wait "$straight"
trains() { steps_at_least "$job" 1; }
await 30 trains
check a_checkpoint_can_be_asked_for heddle checkpoint save "$job" --timeout 60
check_equal it_is_a_complete_one 1 "$(heddle checkpoint ls "$job" -o jsonl | grep -c '"step"')"
check a_job_can_be_queued_again heddle requeue "$job"
again() { heddle events "$job" | grep -q "attempt 2 on"; }
await 30 again
check_equal it_starts_from_where_it_stopped 1 "$(heddle events "$job" | grep -c 'attempt 2 on n1: .* from step [1-9][0-9]* of attempt 1')"
heddle cancel "$job" >/dev/null
check_status it_is_cancelled 1 heddle wait "$job"

check_status there_has_to_be_such_a_job 4 heddle resume 999
check a_cancelled_job_is_resumed heddle resume "$job"
check it_succeeds heddle wait "$job"
check_status all_steps_are_done 2 heddle resume "$job"
check_equal so_more_are_to_be_asked_for 1 "$(grep -c 'has done all its 120 steps; ask for more: --set train.steps=N' "$work/check.err")"
check_status what_decides_the_samples_cannot_change 2 heddle resume "$job" --set train.seed=2
check_equal by_its_key 1 "$(grep -c 'train.seed: cannot change when a job is resumed' "$work/check.err")"
check_status nor_can_the_objective 2 heddle resume "$job" --set train.objective=dpo
check_equal by_that_key_and_not_by_the_data 1 "$(grep -c 'train.objective: cannot change when a job is resumed' "$work/check.err")"
check_status nor_can_what_trains_beside_the_model 2 heddle resume "$job" --set train.adapter.type=lora --set train.steps=150
check_equal by_that_key 1 "$(grep -c 'train.adapter.type: cannot change when a job is resumed' "$work/check.err")"
cp "$work/corpus.txt" "$work/first"
tr a-z A-Z <"$work/first" >"$work/corpus.txt"
check_status nor_can_the_bytes_of_the_text 2 heddle resume "$job" --set train.steps=150
check_equal by_that_file 1 "$(grep -c 'data.train: .*/corpus.txt is another file than when the job was submitted' "$work/check.err")"
cp "$work/first" "$work/corpus.txt"
check a_job_that_succeeded_is_resumed heddle resume "$job" --set train.steps=150
check_status one_that_has_not_ended_is_not 6 heddle resume "$job"
check it_succeeds_again heddle wait "$job"
check_equal with_the_weights_of_the_undisturbed_run "$(tensors "$straight")" "$(tensors "$job")"

# after a restart of the controller, a failed job
hot=$(submit "$file" --set train.steps=60 --set train.lr=1000 --set train.clip=0 --set checkpoint.every=1 --set checkpoint.keep=1)
check_status a_run_diverges 1 heddle wait "$hot"
kill "$controller_pid"; wait "$controller_pid"
start_controller
check and_goes_on_with_less heddle resume "$hot" --set train.lr.peak=1e-3 --set train.lr.min=1e-4 --set train.clip=1
check to_its_end heddle wait "$hot"
check_equal from_a_checkpoint_before_that 1 "$(heddle events "$hot" | grep -cE 'resumed by .*, from (step [1-3] of attempt 1|scratch)')"
finish
