#!/bin/bash
# node_lost.sh: a node that is silent for so long that it counts as lost (3 minutes) loses its job to
# another, which looks for checkpoints that the controller was not told of, in the folder that the nodes
# share, and goes on from the newest; what the lost node reports when it returns changes nothing.
STEPS=400 # time to bring up three nodes while the first trains
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

LOST=240 # seconds; the lease of a node is 180

is_lost() { "$HEDDLE_BIN/heddle" nodes -o jsonl | grep -q "\"name\": *\"$1\".*\"state\": *\"lost\""; }
runs_on() { says "$1" "\"kind\": *\"starting\".*\"attempt\": *$2,.*\"node\": *\"$3\""; }
knows() { [ "$(field "$1" checkpoint_step)" -ge "$2" ]; }

a_lost_node_loses_its_jobs_to_another_and_changes_nothing_when_it_returns() {
    local killed stopped late
    start_cluster
    killed=$(submit) || exit
    await_step "$killed" 1 1
    start_daemon c
    must_come $PATIENCE "node c" ready c
    stopped=$(submit) || exit
    await_step "$stopped" 1 1
    runs_on "$killed" 1 a && runs_on "$stopped" 1 c || fail "the jobs do not run on a and c"
    start_daemon b
    must_come $PATIENCE "node b" ready b

    must_come $PATIENCE "a checkpoint that the controller knows" knows "$killed" $EVERY
    kill_daemon a
    must_come $PATIENCE "a checkpoint that the controller knows" knows "$stopped" $EVERY
    kill -STOP "${daemon[c]}"
    await_checkpoint "$killed" $STEPS # attempt 1 trains to its end, and nobody hears of it
    state_is "$killed" running || fail "the job's state is $(field "$killed" state), not running"

    must_come $LOST "the loss of node a" is_lost a
    must_come 30 "the loss of node c" is_lost c
    succeed "$killed" 2
    succeed "$stopped" 2
    runs_on "$killed" 2 b && runs_on "$stopped" 2 b || fail "the second attempts do not run on b"
    says "$killed" "\"kind\": *\"starting\".*from step $STEPS of attempt 1" ||
        fail "attempt 2 did not start from step $STEPS, the newest on the disk: $(events "$killed")"
    same_weights "$killed"
    same_weights "$stopped"

    start_daemon a
    kill -CONT "${daemon[c]}"
    must_come $PATIENCE "the return of node a" ready a
    must_come $PATIENCE "the return of node c" ready c
    late=$(submit) || exit
    for job in "$killed" "$stopped"; do
        state_is "$job" succeeded && [ "$(attempts "$job")" = 2 ] || fail "the return changed job $job"
        same_weights "$job"
    done
    succeed "$late" 1
}

scenario an_undisturbed_run_succeeds
scenario a_lost_node_loses_its_jobs_to_another_and_changes_nothing_when_it_returns
finish
