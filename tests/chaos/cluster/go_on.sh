#!/bin/bash
# go_on.sh: heddled and the controller may die and return: ranks go on meanwhile, nothing that they
# report is lost or counted twice, and the attempt stays the same.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

watch() { # JOB: in the background, to $dir/history
    "$HEDDLE_BIN/heddle" watch "$1" -o jsonl >"$dir/history" 2>"$dir/watch.log" &
    watcher=$!
}
watched() { # its end, and that it missed nothing
    wait "$watcher"
    local status=$?
    [ $status = 0 ] || fail "heddle watch ended with $status"
    every_step_once "$dir/history"
}

ranks_go_on_without_heddled() { # SIGNAL
    local job step ranks
    start_cluster
    job=$(submit) || exit
    watch "$job"
    await_step "$job" 1 $((EVERY + 3))
    ranks=$(processes 'heddle-worker rank')
    end_process "$1" "${daemon[a]}"
    step=$(step_of "$job" 1)
    await_step "$job" 1 $((step + EVERY))
    start_daemon a
    succeed "$job" 1
    gone $ranks || fail "a rank is still there after the job's end"
    watched
    same_weights "$job"
}
ranks_go_on_when_heddled_is_killed_and_the_next_takes_them_over() { ranks_go_on_without_heddled KILL; }
ranks_go_on_when_heddled_is_told_to_end() { ranks_go_on_without_heddled TERM; }

training_goes_on_while_the_controller_is_dead() {
    local job step
    start_cluster
    job=$(submit) || exit
    watch "$job"
    for at in $((EVERY / 2)) $((3 * EVERY + 5)); do
        await_step "$job" 1 "$at"
        kill_controller
        step=$(step_of "$job" 1)
        await_step "$job" 1 $((step + EVERY))
        start_controller
    done
    succeed "$job" 1
    watched
    same_weights "$job"
}

# Nobody is there to hear the end: it is told later.
a_job_may_end_while_controller_and_heddled_are_dead() {
    local job
    start_cluster
    job=$(submit) || exit
    await_step "$job" 1 3
    kill_controller
    kill_daemon a
    await_checkpoint "$job" $STEPS
    must_come 30 "the end of the ranks" none_of 'heddle-(worker|supervisor)'
    start_cluster
    succeed "$job" 1
    watch "$job"
    watched
    same_weights "$job"
}

scenario an_undisturbed_run_succeeds
scenario ranks_go_on_when_heddled_is_killed_and_the_next_takes_them_over
scenario ranks_go_on_when_heddled_is_told_to_end
scenario training_goes_on_while_the_controller_is_dead
scenario a_job_may_end_while_controller_and_heddled_are_dead
finish
