#!/bin/bash
# nodes.sh: daemons of different names on one machine are different nodes.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

started_on() { # JOB: the nodes of its attempts
    events "$1" | sed -nE 's/.*"kind": *"starting".*"node": *"([^"]*)".*/\1/p' | tr '\n' ' '
}
knows_both() { [ "$("$HEDDLE_BIN/heddle" nodes -o jsonl | grep -c '"state": *"ready"')" = 2 ]; }

two_jobs_run_on_two_nodes_and_a_killed_one_does_not_touch_the_other() {
    local one two
    start_cluster
    start_daemon b
    must_come $PATIENCE "node b" knows_both
    one=$(submit) || exit
    two=$(submit) || exit
    await_step "$one" 1 5
    await_step "$two" 1 5
    [ "$(started_on "$one") $(started_on "$two")" = "a  b " ] ||
        [ "$(started_on "$one") $(started_on "$two")" = "b  a " ] ||
        fail "job $one runs on $(started_on "$one"), job $two on $(started_on "$two")"
    kill -KILL $(processes "$(job_dir "$one")/") || fail "job $one has no processes"
    succeed "$one" 2
    succeed "$two" 1
    same_weights "$one"
    same_weights "$two"
}

scenario an_undisturbed_run_succeeds
scenario two_jobs_run_on_two_nodes_and_a_killed_one_does_not_touch_the_other
finish
