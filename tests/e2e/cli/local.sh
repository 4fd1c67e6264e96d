#!/bin/bash
# heddle local: a cluster for one job, which leaves nothing behind however it ends.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
file=$(job_file here)
# what belongs to this scenario's runs: their folders are below $work
left() { pgrep -f "$work/heddle-runs" | wc -l; }
none_left() { [ "$(left)" = 0 ]; }
private() { find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'heddle-??????' | wc -l; }

privates=$(private)
heddle local "$file" -o jsonl >"$work/run.jsonl" 2>"$work/run.err"
check_equal it_ends_like_the_job 0 $?
check_equal its_output_is_steps 30 "$(grep -c '^{"type":"step"' "$work/run.jsonl")"
check_equal nothing_but_json_on_stdout 0 "$(grep -vc '^{"type":"' "$work/run.jsonl")"
check_equal nothing_runs_on 0 "$(left)"
check_equal no_private_folder_stays "$privates" "$(private)"
run=$(find "$work/heddle-runs" -mindepth 1 -maxdepth 1 -type d)
check_equal the_run_keeps_its_checkpoints 3 "$(heddle checkpoint ls "$run" -o jsonl | wc -l)"
check it_has_a_picture_of_its_loss grep -q '^<svg .*' "$run/loss.svg"
check which_a_terminal_shows_too heddle plot "$run"
check_equal with_its_steps 1 "$(grep -c ': 30 steps, loss ' "$work/check.out")"
check the_model_writes heddle generate "$run" --prompt 'The ' --max-tokens 8 --greedy

# a new job goes on from the run's newest checkpoint: steps 31 and 32, of half the batch
heddle local "$file" --set train.continue_from="$run" --set train.steps=32 --set train.global_batch=4 \
    --state-dir "$work/on" -o jsonl >"$work/on.jsonl" 2>"$work/on.err"
check_equal a_new_job_goes_on_from_it '0 31 32' "$? $(sed -n 's/^{"type":"step".*"step":\([0-9]*\),.*/\1/p' "$work/on.jsonl" | xargs)"

# distances in place of positions, and a share dropped: it trains and writes, and no transformers model is like it.
# That its output has no reader any more is no reason to stop
heddle local "$file" --set model.positions=alibi --set train.dropout=0.1 --state-dir "$work/alibi" -o jsonl \
    2>"$work/alibi.err" | head -n 1 >"$work/alibi.out"
check_equal alibi_and_dropout_train_without_a_reader 0 "${PIPESTATUS[0]}"
check_equal which_is_told 1 "$(grep -c 'the job goes on' "$work/alibi.err")"
run=$(find "$work/alibi" -mindepth 1 -maxdepth 1 -type d)
check that_model_writes heddle generate "$run" --prompt 'The ' --max-tokens 8 --greedy
check_status but_has_no_other_form 2 heddle checkpoint export "$run" --out "$work/exported"
check_equal as_is_said 1 "$(grep -c 'llama cannot express model.positions: alibi' "$work/check.err")"

heddle local "$file" -o jsonl --set 'train.profile.steps=[2,3]' --state-dir "$work/profiled" \
    >"$work/profiled.jsonl" 2>/dev/null
profile=$(dirname "$(find "$work/profiled" -path '*/attempt-1/profile/rank-1.json')")
check_equal each_rank_writes_the_profile_that_was_asked_for "rank-0.json rank-0.txt rank-1.json rank-1.txt " \
    "$(ls "$profile" | tr '\n' ' ')"
check_equal of_just_these_steps "step 2 step 3 " \
    "$(grep -o '"cat":"step","name":"step [0-9]*"' "$profile/rank-0.json" | grep -o 'step [0-9]*' | tr '\n' ' ')"
check_equal and_says_where 1 "$(grep -cF "$profile/rank-*.txt" "$work/profiled.jsonl")"

heddle local "$file" >"$work/a.out" 2>"$work/a.err" &
first=$!
heddle local "$file" >"$work/b.out" 2>"$work/b.err"
second_status=$?
wait $first
check_equal two_runs_in_one_folder_both_succeed "0 0" "$? $second_status"
check_equal each_has_a_folder_of_its_own 3 "$(find "$work/heddle-runs" -mindepth 1 -maxdepth 1 -type d | wc -l)"

# 43 bytes: with them the paths of sockets would be too long
long=$(mktemp -d "/tmp/heddle.$(printf 'x%.0s' {1..24}).XXXXXX")
TMPDIR=$long check_status a_long_name_of_the_temporary_folder_is_no_harm 0 heddle local "$file" \
    --set train.steps=1 --state-dir "$work/elsewhere"
rmdir "$long"

check_status a_bad_file_is_2 2 heddle local "$file" --set model.layers=0
check_status a_file_with_bad_data_is_2 2 heddle local "$file" --set 'data.train=[none.txt]'
check_equal and_starts_nothing 3 "$(find "$work/heddle-runs" -mindepth 1 -maxdepth 1 -type d | wc -l)"

# steps_in FILE COUNT
steps_in() { [ "$(grep -c '^{"type":"step"' "$1")" -ge "$2" ]; }
start_long() { # OUTPUT [KEY=VALUE]: starts a run without end and awaits its fifth step
    "$HEDDLE_BIN/heddle" local "$file" -o jsonl --set train.steps=100000 --set checkpoint.every=0 \
        ${2:+--set "$2"} >"$1" 2>"$1.err" &
    runner=$!
    await 60 steps_in "$1" 5 || not_ok a_long_run_begins "no five steps: $(tail -n 2 "$1.err")"
}
trap '' HUP # as nohup does
start_long "$work/c"
trap - HUP
kill -HUP $runner # if it were heard, the next signal would be the second one, which kills
kill -INT $runner
wait $runner
check_equal ctrl_c_is_130 130 $?
newest=$work/heddle-runs/latest
check_equal and_writes_a_checkpoint_first 1 "$(heddle checkpoint ls "$newest" -o jsonl | wc -l)"
check_equal after_ctrl_c_nothing_runs_on 0 "$(left)"
check_equal and_the_end_says_from_where_it_goes_on 1 "$(grep -c '^heddle: to go on from the checkpoint of step [0-9]*:$' "$work/c.err")"

# ranks that stand still cannot stop gracefully: only the second Ctrl-C ends this
start_long "$work/d"
kill -STOP $(ranks_below $runner)
kill -HUP $runner # as Ctrl-C, where it is not ignored
sleep 1
check_equal one_signal_waits_for_the_ranks 1 "$(kill -0 $runner 2>/dev/null && echo 1)"
kill -INT $runner
wait $runner
check_equal a_second_ctrl_c_is_130_too 130 $?
check_equal after_two_nothing_runs_on 0 "$(left)"

start_long "$work/f" restart.max=0
kill -KILL $(ranks_below $runner | head -n 1)
wait $runner
check_equal a_job_that_fails_is_1 1 $?
check_equal the_end_names_the_cause 1 "$(tail -n 1 "$work/f" | grep -c '"state":"failed".*"cause":"rank_exit".*"signal":9')"

start_long "$work/e"
kill -KILL $runner
wait $runner 2>/dev/null
check after_kill_9_nothing_runs_on await 10 none_left
check the_next_run_works heddle local "$file"
check_equal and_clears_away_what_the_killed_one_left "$privates" "$(private)"
finish
