#!/bin/bash
# The controller is killed and comes back: watching, waiting and following logs and events go on, nothing is
# shown twice and nothing is missing.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:2
file=$(job_file survivor)
job=$(submit "$file" --set train.steps=200 --set train.global_batch=4 --set validate.every=0)
"$HEDDLE_BIN/heddle" wait "$job" >"$work/wait.out" 2>&1 &
waiter=$!
"$HEDDLE_BIN/heddle" logs -f "$job" >"$work/follow" 2>"$work/follow.err" &
follower=$!
"$HEDDLE_BIN/heddle" watch "$job" -o jsonl >"$work/watch.jsonl" 2>"$work/watch.err" &
watcher=$!
"$HEDDLE_BIN/heddle" events -f "$job" >"$work/events" 2>"$work/events.err" &
teller=$!
await 30 test -s "$work/events"
await 30 test -s "$work/follow" # the others began before it and before the steps that are awaited below
for round in 1 2; do
    seen=$(grep -c '^{"type":"step"' "$work/watch.jsonl")
    more_steps() { [ "$(grep -c '^{"type":"step"' "$work/watch.jsonl")" -gt $((seen + 20)) ]; }
    await 30 more_steps || not_ok "steps_come_in_round_$round" "no 20 further steps in 30 s"
    kill -KILL "$controller_pid"
    wait "$controller_pid" 2>/dev/null
    check_status "meanwhile_there_is_no_controller_$round" 3 heddle jobs
    start_controller
done
wait $watcher
check_equal watch_ends_like_the_job 0 $?
wait $waiter
check_equal wait_ends_like_the_job 0 $?
wait $follower
check_equal logs_end_with_the_job 0 $?
wait $teller
check_equal events_end_with_the_job 0 $?
check_equal no_event_is_missing "$(heddle events "$job" -o jsonl | wc -l)" "$(wc -l <"$work/events")"
check_equal every_step_is_shown_once_and_in_order "$(seq 200 | cksum)" \
    "$(sed -nE 's/^\{"type":"step".*"step":([0-9]+),"loss".*/\1/p' "$work/watch.jsonl" | cksum)"
check_equal the_job_was_not_restarted 1 "$(heddle show "$job" -o jsonl | member attempt)"
heddle logs "$job" >"$work/whole"
check_equal the_log_is_whole "$(cksum <"$work/whole")" "$(cksum <"$work/follow")"

# a backup while the controller runs, and the way back to it as docs/operations.md describes it
"$HEDDLE_BIN/heddle-controller" backup "$work/backup" --state-dir "$work/controller" >"$work/backup.out" 2>"$work/backup.err"
check_equal a_backup_is_made_while_the_controller_runs 0 $?
check_equal and_says_what_it_holds 1 "$(grep -cE "^$work/backup: .*, 1 job, the last is $job, schema [0-9]+; checked and on disk" "$work/backup.out")"
check_status it_overwrites_nothing 2 "$HEDDLE_BIN/heddle-controller" backup "$work/backup" --state-dir "$work/controller"
later=$(submit "$file" --set train.steps=1)
heddle wait "$later" >/dev/null
kill -TERM "$controller_pid"
wait "$controller_pid"
rm -f "$work/controller"/state.db*
cp "$work/backup" "$work/controller/state.db"
start_controller
check_equal the_job_of_the_backup_is_there "$job" "$(heddle jobs -o jsonl | member job)"
check_status and_the_later_one_is_not 4 heddle show "$later"

kill -TERM "$controller_pid"
wait "$controller_pid"
mv "$work/jobs" "$work/away" # a share that is not mounted
start_controller
check_equal a_jobs_directory_that_is_not_the_clusters_is_told 1 "$(heddle nodes 2>&1 | grep -c "no job starts: $work/jobs is not the cluster's jobs directory: it has no .heddle-probe")"
advice='heddle-controller adopt'
check_equal what_to_do_is_said_once_and_not_for_each_node '1 0' \
    "$(heddle nodes 2>&1 >/dev/null | grep -c "$advice") $(heddle nodes 2>/dev/null | grep -c "$advice")"
waits=$(submit "$file" --set train.steps=1)
check a_job_waits_for_it await 20 eval 'heddle explain "$waits" -o jsonl | grep -q "\"jobs_dir\""'
rmdir "$work/jobs" && mv "$work/away" "$work/jobs"
check and_goes_on_when_it_is_mounted await 40 state_is "$waits" succeeded

kill -TERM "$controller_pid"
wait "$controller_pid"
mv "$work/controller" "$work/away" # now the disk of the state directory is not mounted
timeout 20 "$HEDDLE_BIN/heddle-controller" --state-dir "$work/controller" --listen "$HEDDLE_CONTROLLER" --jobs-dir "$work/jobs" >"$work/empty" 2>&1
check_equal an_empty_state_directory_beside_a_clusters_jobs_is_refused 6 $?
check_equal and_it_is_said_what_to_do 1 "$(grep -c "mount the state directory if it is a disk of its own, or restore a backup" "$work/empty")"
rm -r "$work/controller" && mv "$work/away" "$work/controller"
start_controller
finish
