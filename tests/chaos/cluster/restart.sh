#!/bin/bash
# restart.sh: whatever dies under an attempt, the next one goes on from the newest checkpoint, and the
# trained weights are those of a run that nothing disturbed.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

# An attempt began where attempt 1 had left its newest checkpoint.
began_from() { # JOB ATTEMPT STEP
    says "$1" "\"kind\": *\"starting\".*\"message\": *\"attempt $2 on .* from step $3 of attempt 1\"" ||
        fail "attempt $2 did not start from step $3 of attempt 1: $(events "$1" | grep '"starting"')"
}

a_killed_rank_ends_its_attempt_and_the_next_goes_on_from_its_checkpoint() {
    local job base peers
    start_cluster
    job=$(submit) || exit
    await_step "$job" 1 $((2 * EVERY + 3))
    peers=$(processes 'heddle-worker rank')
    kill -KILL "$(rank_pid 1)" || fail "rank 1 was not there"
    must_come 5 "the end of the killed rank's peers" gone $peers
    base=$(newest_step "$job")
    succeed "$job" 2
    began_from "$job" 2 "$base"
    says "$job" '"kind": *"rank_exit".*"attempt": *1,.*"node": *"a",.*"rank": *1,.*signal 9' ||
        fail "no event names attempt 1, node a, rank 1 and signal 9: $(events "$job")"
    says "$job" '"attempt": *1,.*signal 9.*(it was in|its last collective was) [a-z_]* #[0-9]* of group' ||
        fail "no event tells the last collective of rank 1: $(events "$job")"
    grep -q "^the last [0-9]* of [0-9]* collectives of rank 1, oldest first" "$(job_dir "$job")/attempt-1/logs/rank-1.log" ||
        fail "the log of rank 1 does not tell its collectives"
    same_weights "$job"
}

# A rank that dies while it saves leaves a folder without a manifest. And once attempt 2 is decided on,
# attempt 1 may late finish a newer checkpoint. Neither may be where an attempt begins.
only_what_attempt_1_had_saved_before_attempt_2_is_gone_on_from() {
    local job base late
    start_cluster
    job=$(submit) || exit
    await_step "$job" 1 $((2 * EVERY + 3))
    late=$(checkpoint_dir "$job" 1 $((STEPS - 1)))
    mkdir "$late"
    head -c 100000 "$(checkpoint_dir "$job" 1 $EVERY)/rank-00000.safetensors" >"$late/rank-00000.safetensors"
    kill -KILL "$(rank_pid 0)" || fail "rank 0 was not there"
    await_step "$job" 2 $((2 * EVERY + 2))
    kill -KILL "$(rank_pid 1)" || fail "rank 1 was not there"
    [ ! -e "$late" ] || fail "attempt 2 has not removed what attempt 1 left unfinished"
    mkdir "$late"
    cp "$(checkpoint_dir "$job" 1 $EVERY)"/* "$late/"
    succeed "$job" 3
    base=$(checkpoints "$job" | sed -n 's/ 1$//p' | tail -n 2 | head -n 1) # the last is the late one
    began_from "$job" 2 "$base"
    says "$job" '"kind": *"starting".*"message": *"attempt 3 on .* of attempt 1"' ||
        note "attempt 2 had saved already" # then attempt 3 starts from that, and the rest still holds
    ! says "$job" "from step $((STEPS - 1)) of" || fail "an attempt started from what came too late"
    same_weights "$job"
}

a_killed_supervisor_takes_its_ranks_along_and_the_job_goes_on() {
    local job ranks
    start_cluster
    job=$(submit) || exit
    await_step "$job" 1 $((EVERY + 3))
    ranks=$(processes 'heddle-worker rank')
    [ "$(wc -w <<<"$ranks")" = 2 ] || fail "there are not two ranks: $ranks"
    kill -KILL "$(processes 'heddle-supervisor ')" || fail "the supervisor was not there"
    must_come 5 "the end of its ranks" gone $ranks
    succeed "$job" 2
    says "$job" '"kind": *"attempt_failed".*rank_exit.*heddle-supervisor .* died' ||
        fail "no event says that the supervisor died: $(events "$job")"
    same_weights "$job"
}

# As a power cut does it, but for what the disk had not taken yet.
all_killed_at_once_come_back_and_the_job_goes_on() {
    local job base all
    start_cluster
    job=$(submit) || exit
    await_step "$job" 1 $((3 * EVERY + 3))
    all=$(processes "$programs")
    [ "$(wc -w <<<"$all")" = 5 ] || fail "controller, heddled, supervisor and two ranks are not five: $all"
    kill -KILL $all
    wait 2>/dev/null
    must_come 5 "the end of them all" gone $all
    base=$(newest_step "$job")
    start_cluster
    succeed "$job" 2
    began_from "$job" 2 "$base"
    same_weights "$job"
}

scenario an_undisturbed_run_succeeds
scenario a_killed_rank_ends_its_attempt_and_the_next_goes_on_from_its_checkpoint
scenario only_what_attempt_1_had_saved_before_attempt_2_is_gone_on_from
scenario a_killed_supervisor_takes_its_ranks_along_and_the_job_goes_on
scenario all_killed_at_once_come_back_and_the_job_goes_on
finish
