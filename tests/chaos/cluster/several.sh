#!/bin/bash
# several.sh [lost]: one job on two nodes of one device each, and what happens to one of them: the job
# goes on from its newest checkpoint, and what it has learned is what a run on one node learns, where
# nobody disturbs it. With `lost` a rank stands still, or a whole node goes, which takes the length of
# a limit or a lease.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

start_pair() {
    start_controller
    start_daemon a --devices cpu:1:1
    start_daemon b --devices cpu:1:1
    must_come $PATIENCE "node a" ready a
    must_come $PATIENCE "node b" ready b
}
start_job() { # [OPTION...]
    job=$(submit "$@") || exit
    await_step "$job" 1 1
    starts_on 1 "0 on a, 1 on b"
}
starts_on() { # ATTEMPT RANKS: where the newest attempt runs, which is that one
    [ "$(field "$job" attempt)" = "$1" ] || fail "attempt $(field "$job" attempt) runs, not $1"
    [ "$("$HEDDLE_BIN/heddle" show "$job" | sed -nE 's/^ranks +//p')" = "$2" ] ||
        fail "the ranks are not $2: $("$HEDDLE_BIN/heddle" show "$job")"
}
supervisor_on() { processes "heddle-supervisor .*--node $1 "; }
all_of() { processes "heddled .*--node-name $1 |heddle-supervisor .*--node $1 |heddle-worker .*--node $1 "; }
blames() { # CAUSE RANK NODE
    says "$job" "\"kind\": *\"attempt_failed\".*attempt 1: $1: rank $2 on $3" ||
        fail "$1 of rank $2 on $3 was not named: $(events "$job")"
}

two_nodes_learn_what_one_does() {
    start_pair
    start_job
    succeed "$job" 1
    same_weights "$job"
    must_come 30 "the end of all ranks" none_of 'heddle-(worker|supervisor)'
}

# A rank dies: all end within seconds, whoever says so first the right one is blamed.
a_rank_is_killed() { # RANK NODE
    local others
    start_pair
    start_job
    await_checkpoint "$job" $EVERY
    others=$(processes 'heddle-worker rank')
    kill -KILL "$(rank_pid "$1")" || fail "there is no rank $1"
    must_come 30 "the end of the attempt's ranks" gone $others
    succeed "$job" 2
    blames rank_exit "$1" "$2"
    same_weights "$job"
}
a_job_goes_on_when_the_first_rank_is_killed() { a_rank_is_killed 0 a; }
a_job_goes_on_when_the_last_rank_is_killed() { a_rank_is_killed 1 b; }

a_job_goes_on_when_a_supervisor_is_killed() {
    start_pair
    start_job
    await_checkpoint "$job" $EVERY
    kill -KILL "$(supervisor_on b)" || fail "there is no supervisor on b"
    succeed "$job" 2
    says "$job" '"kind": *"attempt_failed".*heddle-supervisor .*died' ||
        fail "the supervisor's death was not named: $(events "$job")"
    same_weights "$job"
}

ranks_go_on_when_a_daemon_and_the_controller_are_killed() {
    local step
    start_pair
    start_job
    kill_daemon b
    kill_controller
    step=$(step_of "$job" 1)
    await_step "$job" 1 $((step + EVERY))
    start_controller
    start_daemon b --devices cpu:1:1
    succeed "$job" 1
    same_weights "$job"
}

# The ranks of two nodes leave a checkpoint that those of one go on from, and the other way round.
a_job_moves_to_one_node_and_back() {
    start_pair
    start_job
    start_daemon c --devices cpu:2:1
    must_come $PATIENCE "node c" ready c
    await_checkpoint "$job" $EVERY
    "$HEDDLE_BIN/heddle" drain a --reason test >"$dir/drain.log" 2>&1 || fail "a is not drained"
    kill -KILL "$(rank_pid 0)" || fail "there is no rank 0"
    await_step "$job" 2 1
    starts_on 2 "0-1 on c"
    await_checkpoint "$job" $((3 * EVERY))
    "$HEDDLE_BIN/heddle" drain c --reason test >"$dir/drain.log" 2>&1 || fail "c is not drained"
    "$HEDDLE_BIN/heddle" undrain a >"$dir/drain.log" 2>&1 || fail "a is still drained"
    kill -KILL "$(rank_pid 1)" || fail "there is no rank 1"
    await_step "$job" 3 1
    starts_on 3 "0 on a, 1 on b"
    succeed "$job" 3
    same_weights "$job"
}

# A machine goes with all that ran on it. The lease of a node whose peers cannot reach it is 60 s.
a_job_goes_on_with_what_is_left_of_its_nodes() {
    start_pair
    start_job --set 'resources.devices={min: 1, max: 2}'
    await_checkpoint "$job" $EVERY
    kill -KILL $(all_of b) || fail "nothing ran on b"
    succeed "$job" 2
    starts_on 2 "0 on a"
    says "$job" '"kind": *"attempt_failed".*attempt 1: node_lost: node b' ||
        fail "the loss of b was not named: $(events "$job")"
}

# All ranks wait for one that stands still; to blame is that one, although a's are as silent.
a_rank_that_stands_still_on_the_other_node_is_named() {
    local ranks
    start_pair
    start_job
    await_step "$job" 1 $((EVERY + 5)) # enough for the supervisors to know how long a step takes
    ranks=$(processes 'heddle-worker rank')
    kill -STOP "$(rank_pid 1)" || fail "there is no rank 1"
    must_come 150 "the end of all ranks" gone $ranks
    succeed "$job" 2
    blames hang 1 b
    same_weights "$job"
}

if [ "${1:-}" = lost ]; then
    scenario an_undisturbed_run_succeeds
    scenario a_rank_that_stands_still_on_the_other_node_is_named
    scenario a_job_goes_on_with_what_is_left_of_its_nodes
else
    scenario an_undisturbed_run_succeeds
    scenario two_nodes_learn_what_one_does
    scenario a_job_goes_on_when_the_first_rank_is_killed
    scenario a_job_goes_on_when_the_last_rank_is_killed
    scenario a_job_goes_on_when_a_supervisor_is_killed
    scenario ranks_go_on_when_a_daemon_and_the_controller_are_killed
    scenario a_job_moves_to_one_node_and_back
fi
finish
