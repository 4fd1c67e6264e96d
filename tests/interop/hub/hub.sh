#!/bin/bash
# The cache that heddle fetch writes is read by huggingface_hub, and the reverse; both download from the imitation.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python caches_are_those_of_huggingface_hub huggingface_hub

unset HF_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN SSL_CERT_FILE LD_PRELOAD
export HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_PROGRESS_BARS=1
mkdir -p "$work/dir/models/org/model" "$work/dir/datasets/org/set/data"
echo '{"model_type": "llama"}' >"$work/dir/models/org/model/config.json"
head -c 300000 /dev/urandom >"$work/dir/models/org/model/model.safetensors"
echo '{"text": "a"}' >"$work/dir/datasets/org/set/data/train-1.jsonl"
seq 5000 >"$work/dir/datasets/org/set/data/numbers.txt"
"$HEDDLE_BUILD_DIR/tests/imitation-hub" "$work/port" "$work/dir" >"$work/sent" &
hub_pid=$!
await 10 test -s "$work/port"
export HF_ENDPOINT=http://127.0.0.1:$(cat "$work/port")
snapshot() { "$python" "$HEDDLE_SOURCE_DIR/tests/interop/hub/hub.py" "$@"; }
same() { # NAME MODEL-FOLDER SET-FOLDER
    check "$1" diff -r "$2" "$work/dir/models/org/model"
    check "$1_of_data" diff -r "$3" "$work/dir/datasets/org/set"
}

export HF_HOME=$work/ours
heddle fetch org/model >"$work/model" 2>/dev/null && heddle fetch --dataset org/set >"$work/set" 2>/dev/null
export HF_HUB_OFFLINE=1
check_equal huggingface_hub_finds_our_model "$(cat "$work/model")" "$(snapshot model org/model 2>&1 | tail -n 1)"
check_equal and_our_data "$(cat "$work/set")" "$(snapshot dataset org/set 2>&1 | tail -n 1)"
check_equal nothing_in_our_cache_is_corrupt 0 "$(snapshot warnings 2>&1 | tail -n 1)"
same what_we_fetched_is_whole "$(cat "$work/model")" "$(cat "$work/set")"

export HF_HOME=$work/theirs
unset HF_HUB_OFFLINE
model=$(snapshot model org/model 2>"$work/err" | tail -n 1)
set=$(snapshot dataset org/set 2>>"$work/err" | tail -n 1)
same what_huggingface_hub_fetched_is_whole "$model" "$set"
check_equal we_find_its_model "$model" "$(heddle fetch org/model --offline)"
check_equal and_its_data "$set" "$(heddle fetch --dataset org/set --offline)"
rm -r "$HF_HOME/hub/models--org--model/trees" # older versions keep no lists
check_equal we_find_a_model_without_a_list "$model" "$(heddle fetch org/model --offline)"
kill $hub_pid
finish
