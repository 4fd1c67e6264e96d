#!/bin/bash
# damage.sh: nothing is ever trained from damaged weights. The attempt that should start from a damaged
# checkpoint fails and names the file; the next one goes back to the checkpoint before, and says so.
# Where there is none, the job fails when restart.max is reached, and says it again.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

fails_and_names() { # JOB FILE
    local status
    timeout $PATIENCE "$HEDDLE_BIN/heddle" wait "$1" >"$dir/wait.log" 2>&1
    status=$?
    [ $status = 1 ] || fail "heddle wait ended with $status, not 1"
    state_is "$1" failed || fail "the job's state is $(field "$1" state), not failed"
    "$HEDDLE_BIN/heddle" show "$1" >"$dir/show"
    grep -q "$2" "$dir/show" || fail "heddle show does not name $2: $(cat "$dir/show")"
    says "$1" "\"kind\": *\"attempt_failed\".*\"attempt\": *2,.*$2" || fail "no event of attempt 2 names $2: $(events "$1")"
    for ((k = 2; k <= $(attempts "$1"); k++)); do
        [ "$(step_of "$1" $k)" = 0 ] || fail "attempt $k trained"
    done
}
flip_byte() { # FILE OFFSET
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# The ranks stand still, and the controller knows the newest checkpoint, whose step is printed.
hold_still() { # JOB
    local newest
    while :; do
        kill -STOP "$(rank_pid 0)" || fail "rank 0 was not there"
        newest=$(newest_step "$1")
        ! await 5 knows "$1" "$newest" || break
        kill -CONT "$(rank_pid 0)" # it was stopped between a checkpoint and the report of it
        must_come $PATIENCE "the controller's word of step $newest" knows "$1" "$newest" || exit
    done
    printf '%s' "$newest"
}
knows() { "$HEDDLE_BIN/heddle" checkpoint ls "$1" -o jsonl | grep -qE "\"step\": *$2,"; }

went_back() { # JOB STEP KIND WHAT
    succeed "$1" 3
    says "$1" "\"kind\": *\"$3\".*$4" ||
        fail "no event says that the job went back: $(events "$1")"
    says "$1" "\"kind\": *\"starting\".*\"message\": *\"attempt 3 on .* from step $(($2 - EVERY)) of attempt 1\"" ||
        fail "attempt 3 did not start from step $(($2 - EVERY))"
    [ "$(step_of "$1" 2)" = 0 ] || fail "attempt 2 trained"
    same_weights "$1"
}

a_flipped_bit_of_a_shard_is_found_before_it_is_trained_from() {
    local job shard step
    start_cluster
    job=$(submit --set restart.max=1) || exit # which the killed rank uses up
    await_step "$job" 1 $((2 * EVERY + 3))
    step=$(hold_still "$job") || exit
    shard=$(checkpoint_dir "$job" 1 "$step")/rank-00001.safetensors
    flip_byte "$shard" $(($(stat -c %s "$shard") / 2))
    kill -KILL "$(rank_pid 0)" || fail "rank 0 was not there"
    went_back "$job" "$step" checkpoint_damaged \
        "step $step of attempt 1 is damaged; going back to that of step $((step - EVERY)) of attempt 1"
    says "$job" '"kind": *"attempt_failed".*"attempt": *2,.*rank-00001.safetensors is damaged in its bytes .*: tensor ' ||
        fail "no event of attempt 2 names the tensor: $(events "$job")"
}

a_checkpoint_that_is_gone_is_gone_back_from() {
    local job step
    start_cluster
    job=$(submit --set restart.max=1) || exit
    await_step "$job" 1 $((2 * EVERY + 3))
    step=$(hold_still "$job") || exit
    rm -r "$(checkpoint_dir "$job" 1 "$step")"
    kill -KILL "$(rank_pid 0)" || fail "rank 0 was not there"
    went_back "$job" "$step" checkpoint_missing \
        "not on the disk: step $step of attempt 1 .*goes on from step $((step - EVERY)) of attempt 1"
}

# The share is put back to a state from before the job began, and then to the newest one.
a_job_without_its_checkpoints_waits_for_them() {
    local job
    start_cluster
    job=$(submit --set restart.max=0) || exit
    await_step "$job" 1 $((EVERY + 3))
    hold_still "$job" >/dev/null || exit
    "$HEDDLE_BIN/heddle" hold "$job" || fail "the job cannot be held"
    "$HEDDLE_BIN/heddle" requeue "$job" || fail "the job cannot be queued again"
    kill -CONT "$(rank_pid 0)" || fail "rank 0 was not there"
    must_come $PATIENCE "attempt 1 to end" says "$job" '"kind": *"ended".*attempt 1 ended' || exit
    mv "$(job_dir "$job")/attempt-1" "$dir/aside" || fail "attempt 1 has no folder"
    "$HEDDLE_BIN/heddle" release "$job" || fail "the job cannot be released"
    must_come $PATIENCE "the job to wait" says "$job" '"kind": *"checkpoint_missing".*none is left, and the job waits' || exit
    "$HEDDLE_BIN/heddle" checkpoint ls "$job" | grep -q 'missing' || fail "checkpoint ls does not say that they are missing"
    "$HEDDLE_BIN/heddle" hold "$job" || fail "the job cannot be held"
    mv "$dir/aside" "$(job_dir "$job")/attempt-1" || fail "attempt 1 has a folder again"
    "$HEDDLE_BIN/heddle" release "$job" || fail "the job cannot be released"
    succeed "$job" 3
    says "$job" '"kind": *"checkpoint_back"' || fail "no event says that a checkpoint is back: $(events "$job")"
    same_weights "$job"
}

shards_that_are_cut_short_everywhere_end_the_job() {
    local job
    start_cluster
    job=$(submit --set restart.max=1) || exit
    await_step "$job" 1 $((EVERY + 3))
    hold_still "$job" >/dev/null || exit
    truncate -s -4096 "$(job_dir "$job")"/attempt-1/checkpoints/step-*/rank-00000.safetensors
    kill -KILL "$(rank_pid 1)" || fail "rank 1 was not there"
    fails_and_names "$job" rank-00000.safetensors
}

scenario an_undisturbed_run_succeeds
scenario a_flipped_bit_of_a_shard_is_found_before_it_is_trained_from
scenario a_checkpoint_that_is_gone_is_gone_back_from
scenario a_job_without_its_checkpoints_waits_for_them
scenario shards_that_are_cut_short_everywhere_end_the_job
finish
