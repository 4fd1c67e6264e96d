#!/bin/bash
# s3:// names in a job file and for heddle fetch, from an imitation of an object store: killed, changed, without a network.
# What a download does about a store that misbehaves is tests/unit/hub.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

export HOME=$work/home AWS_ACCESS_KEY_ID=AKIDOFTHETEST AWS_SECRET_ACCESS_KEY=NeverToBeSeen
unset AWS_PROFILE AWS_REGION AWS_DEFAULT_REGION AWS_ENDPOINT_URL_S3 HEDDLE_S3_CACHE XDG_CACHE_HOME LD_PRELOAD
export AWS_EC2_METADATA_DISABLED=true
mkdir -p "$HOME" "$work/store/bucket/data/deep"
for i in {1..200}; do echo "{\"text\": \"line $i of a small set, which says nothing at all\"}"; done \
    >"$work/store/bucket/data/train-1.jsonl"
cp "$work/store/bucket/data/train-1.jsonl" "$work/store/bucket/data/deep/train-2.jsonl"
head -c 3000000 /dev/urandom >"$work/store/bucket/large.txt"

start_store() { # [PACE_MS]
    rm -f "$work/port"
    "$HEDDLE_BUILD_DIR/tests/imitation-s3" "$work/port" "$work/store" "$@" >"$work/sent" &
    store_pid=$!
    await 10 test -s "$work/port"
    export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat "$work/port")
}
stop_store() { # sets $sent, $received, $left: bytes sent and received, uploads in parts that are left
    kill $store_pid && wait $store_pid
    read -r sent received left <"$work/sent"
}
partial() { find "$HOME" -name '*.incomplete' -size +"${1}c" | grep -q .; }

# Three megabytes in 46 pieces of 64 KiB. The name of an object has the address of the store, so it stays the same one.
start_store 10
"$HEDDLE_BIN/heddle" fetch --dataset s3://bucket/large.txt >"$work/out" 2>"$work/err" &
await 10 partial 600000
kill -9 $!
wait $! 2>/dev/null
check_equal what_was_killed_has_no_name "" "$(find "$HOME" -name large.txt)"
check a_killed_fetch_goes_on heddle fetch --dataset s3://bucket/large.txt
check what_arrives_is_whole cmp "$(cat "$work/check.out")" "$work/store/bucket/large.txt"
stop_store
if [ "$sent" -lt 3600000 ]; then ok it_asks_for_the_rest_alone; else not_ok it_asks_for_the_rest_alone "$sent bytes"; fi

# In a job file.
cat >"$work/s3.yaml" <<'END'
name: s3
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 64, vocab: 256}
data: {train: [s3://bucket/data/], tokenizer: bytes}
train: {steps: 2, global_batch: 2, lr: 1e-3, precision: fp32}
resources: {devices: 1, device_type: cpu}
END
# says NAME STATUS PATTERN COMMAND...: the command ends with this status, and has a line that matches
says() {
    local name=$1 status=$2 pattern=$3
    shift 3
    "$@" >"$work/said" 2>&1
    check_equal "$name" "$status yes" "$? $(grep -q "$pattern" "$work/said" && echo yes || cat "$work/said")"
}
start_store
says validate_downloads_nothing 2 "s3.yaml:3: data.train\[0\]: s3://bucket/data/ is not.* local and submit fetch it" \
    heddle validate "$work/s3.yaml"
check local_fetches_and_trains heddle local "$work/s3.yaml" --dir "$work/run"
says validate_tells_the_objects 0 "^data.train: s3://bucket/data/train-1.jsonl\$" heddle validate "$work/s3.yaml"
check also_of_folders_below grep -qx "data.train: s3://bucket/data/deep/train-2.jsonl" "$work/said"
stop_store
check_equal the_secret_key_is_nowhere "" "$(grep -rl "$AWS_SECRET_ACCESS_KEY" "$work")"
# Copies of checkpoints: two newest of four, whole, in the background of a run.
start_store
cat >"$work/copy.yaml" <<'END'
name: copy
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 64, vocab: 256}
data: {train: [s3://bucket/data/train-1.jsonl], tokenizer: bytes}
train: {steps: 4, global_batch: 2, lr: 1e-3, precision: fp32}
checkpoint: {every: 1, keep: 2, copy_to: s3://bucket/runs/a}
resources: {devices: 1, device_type: cpu}
END
check a_run_copies_its_checkpoints heddle local "$work/copy.yaml" --dir "$work/copied"
copies() { (cd "$work/store/bucket/runs/a" && echo attempt-*/step-*/manifest.json); }
last=$(basename "$(ls -d "$work"/copied/1/attempt-1/checkpoints/step-* | tail -n 1)")
check_equal its_last_checkpoint_is_there yes "$(copies | grep -qF "attempt-1/$last/manifest.json" && echo yes)"
check_equal the_copy_is_the_checkpoint "" "$(diff -r -x '.*' "$work/copied/1/attempt-1/checkpoints/$last" "$work/store/bucket/runs/a/attempt-1/$last" 2>&1)"
check_equal at_most_two_copies_are_kept yes "$([ "$(copies | wc -w)" -le 2 ] && echo yes)"
says checkpoint_ls_shows_the_copy 0 "$last  *s3://bucket/runs/a/attempt-1/$last\$" heddle checkpoint ls "$work/copied"
sed -i '/^checkpoint/d' "$work/s3.yaml"
check a_run_begins_from_a_copy heddle local "$work/s3.yaml" --set "train.init_from=s3://bucket/runs/a/attempt-1/$last" --dir "$work/begun"
says another_job_does_not_mix_with_its_copies 3 "has copies of another job" heddle local "$work/copy.yaml" --dir "$work/other"
stop_store
check_equal the_secret_key_is_still_nowhere "" "$(grep -rl "$AWS_SECRET_ACCESS_KEY" "$work")"
mkdir "$work/broken" # a libcurl that cannot be loaded
: >"$work/broken/libcurl.so.4"
: >"$work/broken/libcurl-gnutls.so.4"
says what_the_cache_has_needs_no_library 0 "what the cache has is used: s3://bucket/data/train-1.jsonl" \
    env LD_LIBRARY_PATH="$work/broken" "$HEDDLE_BIN/heddle" fetch --dataset s3://bucket/data/train-1.jsonl
says a_store_that_is_not_there_is_named 3 "127.0.0.1 cannot be reached" \
    heddle local "$work/s3.yaml" --set data.train=s3://bucket/other/ --dir "$work/none"
finish
