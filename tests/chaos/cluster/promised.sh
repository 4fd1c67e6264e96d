#!/bin/bash
# promised.sh: the controller is killed between the plan of a job, the promise of its start, and its start. The
# promise stands, the job starts once, and its weights are those of a run that nothing disturbed.
STEPS=40
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

expected_start() { "$HEDDLE_BIN/heddle" explain "$1" -o jsonl | sed -nE 's/.*"expected_start_at":"([^"]*)".*/\1/p'; }
has_expected_start() { [ -n "$(expected_start "$1")" ]; }
is_shown() { "$HEDDLE_BIN/heddle" nodes -o jsonl | grep -q '"state": *"ready"'; }
kill_and_start_controller() {
    kill_controller
    start_controller
    must_come $PATIENCE "node a" is_shown
}

a_controller_killed_between_plan_promise_and_start_starts_the_job_once() {
    local long job promise told
    start_cluster
    # its end is known from the limit alone, and lies so far ahead that no wait here moves the promise
    long=$(submit --set train.steps=100000000 --set time_limit=100h) || exit
    await_state "$long" running
    job=$(submit) || exit
    kill_and_start_controller # planned, perhaps promised
    must_come $PATIENCE "an expected start of job $job" has_expected_start "$job"
    promise=$(expected_start "$job")
    kill_and_start_controller # promised
    [ "$(expected_start "$job")" = "$promise" ] ||
        fail "the expected start was $promise, and is $(expected_start "$job") after a restart"
    state_is "$long" running || fail "job $long did not outlive the controller"
    told=$(events "$job" | grep -cE '"(start_expected|start_moved)"')
    [ "$told" = 1 ] || fail "the start of job $job was told $told times: $(events "$job")"
    "$HEDDLE_BIN/heddle" cancel "$long" --now >/dev/null || fail "job $long cannot be cancelled"
    must_come $PATIENCE "the start of job $job" says "$job" '"kind": *"starting"'
    kill_and_start_controller # started
    succeed "$job" 1
    [ "$(events "$job" | grep -c '"kind": *"starting"')" = 1 ] || fail "job $job was started twice: $(events "$job")"
    same_weights "$job"
}

# Nothing was measured here (--probe never), so there is nothing to plan by: it is said, with the remedy.
a_plan_of_nodes_that_were_not_measured_says_what_to_do() {
    local out status
    start_cluster
    must_come $PATIENCE "node a" is_shown
    out=$("$HEDDLE_BIN/heddle" plan "$work/job.yaml" --live 2>&1)
    status=$?
    [ $status != 0 ] || fail "a plan without rates was made: $out"
    echo "$out" | grep -q 'heddle probe NODE measures those' || fail "no remedy is named: $out"
}

# In at most a minute of one core the node measures itself; then the plan is made, and its layout is the one that runs.
a_plan_of_the_live_nodes_is_the_one_that_runs() {
    local job
    start_cluster
    must_come $PATIENCE "node a" is_shown
    "$HEDDLE_BIN/heddle" probe a >/dev/null || fail "node a cannot be probed"
    must_come 240 "a plan" "$HEDDLE_BIN/heddle" plan "$work/job.yaml" --live --out "$dir/plan.json"
    grep -q '"kind":"Plan"' "$dir/plan.json" || fail "no plan was written: $(cat "$dir/plan.json")"
    job=$(submit --plan "$dir/plan.json") || exit
    succeed "$job" 1
}

scenario an_undisturbed_run_succeeds
if [ "${1-}" = measured ]; then
    scenario a_plan_of_the_live_nodes_is_the_one_that_runs
else
    scenario a_controller_killed_between_plan_promise_and_start_starts_the_job_once
    scenario a_plan_of_nodes_that_were_not_measured_says_what_to_do
fi
finish
