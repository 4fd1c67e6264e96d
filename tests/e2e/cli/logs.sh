#!/bin/bash
# What ranks write, on disk and through the controller.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:2
file=$(job_file talks)
job=$(submit "$file" --set train.steps=60)
await 30 steps_at_least "$job" 1 || not_ok the_job_runs "no step in 30 s"
timeout 60 "$HEDDLE_BIN/heddle" logs -f "$job" --rank 1 >"$work/follow" 2>"$work/follow.err" &
follower=$!
check the_job_succeeds heddle wait "$job"
wait $follower
check_equal following_ends_with_the_job 0 $?
heddle logs "$job" --rank 1 >"$work/whole"
check_equal following_missed_nothing "$(cksum <"$work/whole")" "$(cksum <"$work/follow")"
check_status a_rank_that_there_is_not 4 heddle logs "$job" --rank 99
check_status an_attempt_that_there_is_not 4 heddle logs "$job" --attempt 99

kill -KILL "${node_pids[n1]}"
wait "${node_pids[n1]}" 2>/dev/null
check a_log_is_read_while_its_node_is_away heddle logs "$job" --rank 1
check_equal all_of_it "$(cksum <"$work/whole")" "$(cksum <"$work/check.out")"
check_equal and_it_is_said 1 "$(grep -c "^heddle: node n1 is away; .*$work/jobs/$job/attempt-1/logs/rank-1.log" "$work/check.err")"
finish
