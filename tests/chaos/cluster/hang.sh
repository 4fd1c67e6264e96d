#!/bin/bash
# hang.sh [long]: a rank that stands still (here: stopped, as a device that does not answer would stop
# it) is found out, named and ended with its peers, which only wait for it; the job goes on.
#
# The silence that counts as standing still is a minute at least, so only the long form goes the whole
# way; the short one asks the supervisor itself, which can be told a shorter one.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

run_supervisor() { # ATTEMPT [WORLD]: of the job in $dir/job
    local run=$dir/jobs/1/attempt-$1/nodes/a
    mkdir -p "$run"
    local world=${2:-2}
    sed -e "s|^attempt.number .*|attempt.number $1|" -e "s|^attempt.dir .*|attempt.dir $dir/jobs/1/attempt-$1|" "$dir/job" >"$run/job"
    "$HEDDLE_BIN/heddle-supervisor" --job "$run/job" --run-dir "$run" --ranks "$(seq -s , 0 $((world - 1)))" --world "$world" --node a \
        --silence-limit-ms 2000 >"$run/supervisor.log" 2>&1 &
    supervisor=$!
}
start_cluster_of_four() {
    start_controller
    start_daemon a --devices cpu:4:1
}
the_rank_that_stands_still_is_named_not_one_that_waits_for_it() {
    local job rank other k=1
    start_cluster # for a job as it really is
    job=$(submit --set train.steps=100000) || exit
    await_step "$job" 1 1
    cp "$(job_dir "$job")/attempt-1/nodes/a/job" "$dir/job"
    kill_all
    wait 2>/dev/null
    for rank in 0 1 0 1 0 1; do
        k=$((k + 1))
        run_supervisor $k
        await_step 1 $k $((3 + RANDOM % 5))
        other=$(rank_pid $((1 - rank)))
        kill -STOP "$(rank_pid $rank)" || fail "rank $rank was not there"
        must_come 20 "the end of the supervisor" gone $supervisor
        gone "$other" || fail "the peer is still there"
        grep -qE "^the last [0-9]+ of [0-9]+ collectives of rank $rank, oldest first" "$dir/jobs/1/attempt-$k/logs/rank-$rank.log" ||
            fail "the log of rank $rank does not tell its collectives"
        grep -qE "ended: hang .*rank $rank gave no sign of life.*; (it was in|its last collective was) [a-z_]+ #[0-9]+ of group" "$dir/jobs/1/attempt-$k/nodes/a/supervisor.log" ||
            fail "rank $rank stood still, said was: $(tail -n 1 "$dir/jobs/1/attempt-$k/nodes/a/supervisor.log")"
    done
}

# Ranks of a pipeline wait for one another in chains, in different numbers of operations.
the_rank_that_stands_still_is_named_in_a_pipeline_too() {
    local job rank k=10 layout
    start_cluster_of_four
    for layout in '{tp: 2, pp: 2}' '{pp: 2, dp: 2, zero: 3}'; do
        job=$(submit --set train.steps=100000 --set resources.devices=4 --set "parallel=$layout") || exit
        await_step "$job" 1 1
        cp "$(job_dir "$job")/attempt-1/nodes/a/job" "$dir/job-$job"
        "$HEDDLE_BIN/heddle" cancel "$job" --now >&2 || fail "job $job was not cancelled"
        await_state "$job" cancelled
    done
    kill_all
    wait 2>/dev/null
    for job in 1 2; do
        cp "$dir/job-$job" "$dir/job"
        for rank in $((2 * job - 2 + RANDOM % 2)); do # of one stage, then of the other
            k=$((k + 1))
            run_supervisor $k 4
            await_step 1 $k $((3 + RANDOM % 5))
            kill -STOP "$(rank_pid $rank)" || fail "rank $rank was not there"
            must_come 20 "the end of the supervisor" gone $supervisor
            none_of 'heddle-worker rank' || fail "a peer is still there"
            grep -qE "ended: hang .*rank $rank gave no sign of life" "$dir/jobs/1/attempt-$k/nodes/a/supervisor.log" ||
                fail "rank $rank of job $job stood still, said was: $(tail -n 1 "$dir/jobs/1/attempt-$k/nodes/a/supervisor.log")"
        done
    done
}

a_rank_that_stands_still_is_named_and_the_job_goes_on() {
    local job ranks
    start_cluster
    job=$(submit) || exit
    await_step "$job" 1 $((EVERY + 5)) # enough for the supervisor to know how long a step takes
    ranks=$(processes 'heddle-worker rank')
    kill -STOP "$(rank_pid 1)" || fail "rank 1 was not there"
    must_come 120 "the end of all ranks" gone $ranks
    succeed "$job" 2
    says "$job" '"kind": *"attempt_failed",.*"attempt": *1,.*"rank": *1,.*hang' ||
        fail "no event says that rank 1 of attempt 1 hangs: $(events "$job" | grep '"attempt_failed"')"
    same_weights "$job"
}

if [ "${1-}" = long ]; then
    scenario an_undisturbed_run_succeeds
    scenario a_rank_that_stands_still_is_named_and_the_job_goes_on
else
    scenario the_rank_that_stands_still_is_named_not_one_that_waits_for_it
    scenario the_rank_that_stands_still_is_named_in_a_pipeline_too
fi
finish
