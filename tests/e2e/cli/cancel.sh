#!/bin/bash
# Stopping a job: with a checkpoint, at once, while it waits; and what Ctrl-C means.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:2
file=$(job_file long)
long=(--set train.steps=100000 --set checkpoint.every=0)
last_checkpoint() { heddle checkpoint ls "$1" -o jsonl | tail -n 1 | sed -nE 's/.*"step":([0-9]+),.*/\1/p'; }

job=$(submit "$file" "${long[@]}")
await 30 steps_at_least "$job" 5 || not_ok the_job_runs "no five steps in 30 s"
queued=$(submit "$file" "${long[@]}")
check_status cancelling_several_goes_on_after_a_wrong_one 4 heddle cancel 4711 "$queued"
check_equal it_is_cancelled_at_once cancelled "$(state_of "$queued")"

check cancel_is_accepted heddle cancel "$job"
check_status wait_is_1_when_it_is_cancelled 1 heddle wait "$job"
check_equal the_job_is_cancelled cancelled "$(state_of "$job")"
# nothing but the cancel makes this job write a checkpoint before its last step
check_equal a_checkpoint_was_written_first 1 "$([ "$(last_checkpoint "$job")" -ge 5 ] && echo 1)"

job=$(submit "$file" "${long[@]}")
await 30 steps_at_least "$job" 5 || not_ok the_second_job_runs "no five steps in 30 s"
check cancel_now_is_accepted heddle cancel --now "$job"
check_status wait_is_1_again 1 timeout 20 "$HEDDLE_BIN/heddle" wait "$job"
check_equal it_is_cancelled_too cancelled "$(state_of "$job")"
check_equal without_a_checkpoint '' "$(last_checkpoint "$job")"

job=$(submit "$file" "${long[@]}")
"$HEDDLE_BIN/heddle" watch "$job" >"$work/watch.out" 2>"$work/watch.err" &
watcher=$!
await 30 test -s "$work/watch.out"
kill -INT $watcher
wait $watcher
check_equal ctrl_c_on_watch_is_130 130 $?
check_equal it_says_that_the_job_goes_on 1 "$(grep -c "job $job goes on" "$work/watch.err")"
check_equal and_the_job_goes_on 0 "$(state_of "$job" | grep -Ec 'stopping|cancelled')"
heddle cancel --now "$job" >/dev/null
finish
