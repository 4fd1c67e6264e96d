#!/bin/bash
# cancel.sh: a cancel that was acknowledged happens, whoever dies meanwhile.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

# The only checkpoint of these jobs is one that the cancel asks for.
start_job() {
    start_cluster
    job=$(submit --set train.steps=100000 --set checkpoint.every=100000) || exit
    await_step "$job" 1 5
}
cancel() { # [--now]
    "$HEDDLE_BIN/heddle" cancel "$job" "$@" >"$dir/cancel.log" 2>&1 || fail "the cancel was not acknowledged"
}
is_cancelled() {
    local status
    timeout $PATIENCE "$HEDDLE_BIN/heddle" wait "$job" >"$dir/wait.log" 2>&1
    status=$?
    [ $status = 1 ] || fail "heddle wait ended with $status, not 1"
    state_is "$job" cancelled || fail "the job's state is $(field "$job" state), not cancelled"
    [ "$(attempts "$job")" = 1 ] || fail "there was another attempt"
    must_come 10 "the end of all ranks" none_of 'heddle-(worker|supervisor)'
}
# The ranks saved the very step at which they stopped.
saved_its_last_step() {
    local step
    step=$(newest_step "$job")
    [ "$step" -gt 5 ] || fail "the newest checkpoint is of step $step"
    [ "$step" = "$(step_of "$job" 1)" ] || fail "the checkpoint is of step $step, the last step was $(step_of "$job" 1)"
    "$HEDDLE_BIN/heddle" checkpoint verify "$(checkpoint_dir "$job" 1 "$step")" >"$dir/verify.log" 2>&1 || fail "the checkpoint is damaged"
}

a_cancel_reaches_the_ranks_of_a_heddled_that_was_dead() {
    local step
    start_job
    kill_daemon a
    cancel
    step=$(step_of "$job" 1)
    await_step "$job" 1 $((step + 5))
    state_is "$job" stopping || fail "the job's state is $(field "$job" state), not stopping"
    start_daemon a
    is_cancelled
    saved_its_last_step
}

a_cancel_at_once_reaches_the_ranks_of_a_heddled_that_was_dead() {
    start_job
    kill_daemon a
    cancel --now
    start_daemon a
    is_cancelled
    [ "$(newest_step "$job")" = 0 ] || fail "there is a checkpoint, though it was to be killed at once"
}

an_acknowledged_cancel_outlives_the_controller() {
    start_job
    cancel
    kill_controller
    start_controller
    is_cancelled
    saved_its_last_step
}

scenario a_cancel_reaches_the_ranks_of_a_heddled_that_was_dead
scenario a_cancel_at_once_reaches_the_ranks_of_a_heddled_that_was_dead
scenario an_acknowledged_cancel_outlives_the_controller
finish
