#!/bin/bash
# damage.sh: nothing is ever trained from damaged weights. The attempt that should start from a damaged
# checkpoint fails and names the file; the job fails when restart.max is reached, and says it again.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

fails_and_names() { # JOB FILE
    local status
    timeout $PATIENCE "$HEDDLE_BIN/heddle" wait "$1" >"$dir/wait.log" 2>&1
    status=$?
    [ $status = 1 ] || fail "heddle wait ended with $status, not 1"
    has_state "$1" failed || fail "the job's state is $(field "$1" state), not failed"
    [ "$(attempts "$1")" = 3 ] || fail "there were $(attempts "$1") attempts; one failed, and restart.max = 1 allows two more"
    "$HEDDLE_BIN/heddle" show "$1" >"$dir/show"
    grep -q "$2" "$dir/show" || fail "heddle show does not name $2: $(cat "$dir/show")"
    says "$1" "\"kind\": *\"attempt_failed\".*\"attempt\": *2,.*$2" || fail "no event of attempt 2 names $2: $(events "$1")"
    for k in 2 3; do
        [ "$(step_of "$1" $k)" = 0 ] || fail "attempt $k trained"
    done
}
flip_byte() { # FILE OFFSET
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

a_flipped_bit_of_a_shard_is_found_before_it_is_trained_from() {
    local job shard
    start_cluster
    job=$(submit --set restart.max=1) || exit
    await_step "$job" 1 $((2 * EVERY + 3))
    shard=$(checkpoint_dir "$job" 1 "$(newest_step "$job")")/rank-00001.safetensors
    flip_byte "$shard" $(($(stat -c %s "$shard") / 2))
    kill -KILL "$(rank_pid 0)" || fail "rank 0 was not there"
    fails_and_names "$job" rank-00001.safetensors
}

a_shard_that_is_cut_short_is_named() {
    local job shard
    start_cluster
    job=$(submit --set restart.max=1) || exit
    await_step "$job" 1 $((EVERY + 3))
    shard=$(checkpoint_dir "$job" 1 "$(newest_step "$job")")/rank-00000.safetensors
    truncate -s -4096 "$shard"
    kill -KILL "$(rank_pid 1)" || fail "rank 1 was not there"
    fails_and_names "$job" rank-00000.safetensors
}

scenario a_flipped_bit_of_a_shard_is_found_before_it_is_trained_from
scenario a_shard_that_is_cut_short_is_named
finish
