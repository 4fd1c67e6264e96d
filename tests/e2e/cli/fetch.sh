#!/bin/bash
# heddle fetch and hf:// names in a job file, from an imitation of the hub: interrupted, killed, twice at a time, without
# a network. What a download does about a hub that misbehaves is tests/unit/hub.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

export HF_HOME=$work/hf HF_TOKEN=hf_NeverToBeSeen
unset HF_HUB_CACHE HF_ENDPOINT HF_HUB_OFFLINE SSL_CERT_FILE LD_PRELOAD
# A llama of one layer, whose weights are zeros.
model=$work/dir/models/org/model
mkdir -p "$model" "$work/dir/datasets/org/set/data"
cat >"$model/config.json" <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32, "hidden_act": "silu",
 "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
 "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": true}
END
tensors= at=0
tensor() { # NAME ROWS COLUMNS
    tensors+="${tensors:+,}\"$1\":{\"dtype\":\"F32\",\"shape\":[$2${3:+,$3}],\"data_offsets\":[$at,$((at += $2 * ${3:-1} * 4))]}"
}
tensor model.embed_tokens.weight 256 32
for name in q k v o; do tensor model.layers.0.self_attn.${name}_proj.weight 32 32; done
for name in gate up; do tensor model.layers.0.mlp.${name}_proj.weight 64 32; done
tensor model.layers.0.mlp.down_proj.weight 32 64
for name in layers.0.input_layernorm layers.0.post_attention_layernorm norm; do tensor model.$name.weight 32; done
head="{$tensors}"
{
    printf "\\x$(printf %02x $((${#head} & 255)))\\x$(printf %02x $((${#head} >> 8)))\0\0\0\0\0\0%s" "$head"
    head -c $at /dev/zero
} >"$model/model.safetensors"
for i in {1..200}; do echo "{\"text\": \"line $i of a small set, which says nothing at all\"}"; done \
    >"$work/dir/datasets/org/set/data/train-1.jsonl"
cp "$work/dir/datasets/org/set/data/train-1.jsonl" "$work/dir/datasets/org/set/data/train-2.jsonl"
mkdir -p "$work/dir/datasets/org/large"
head -c 3000000 /dev/urandom >"$work/dir/datasets/org/large/large.bin"

start_hub() { # [PACE_MS]
    rm -f "$work/port"
    "$HEDDLE_BUILD_DIR/tests/imitation-hub" "$work/port" "$work/dir" "$@" >"$work/sent" &
    hub_pid=$!
    await 10 test -s "$work/port"
    export HF_ENDPOINT=http://127.0.0.1:$(cat "$work/port")
}
stop_hub() { # sets $sent: bytes of files that it has sent
    kill $hub_pid && wait $hub_pid
    sent=$(cat "$work/sent")
}
partial() { find "$HF_HOME" -name '*.incomplete' -size +"${1}c" | grep -q .; }

# Three megabytes in 46 pieces of 64 KiB.
start_hub 20
"$HEDDLE_BIN/heddle" fetch --dataset org/large >"$work/out" 2>"$work/err" &
await 10 partial 100000
kill -INT $!
wait $!
check_equal an_interrupted_fetch_ends_with_130 130 $?
"$HEDDLE_BIN/heddle" fetch --dataset org/large >"$work/out" 2>"$work/err" &
await 10 partial 600000
kill -9 $!
wait $! 2>/dev/null
stop_hub
start_hub
check a_killed_fetch_goes_on heddle fetch --dataset org/large
check what_arrives_is_whole cmp "$(cat "$work/check.out")/large.bin" "$work/dir/datasets/org/large/large.bin"
stop_hub
if [ "$sent" -lt 2500000 ]; then ok it_asks_for_the_rest_alone; else not_ok it_asks_for_the_rest_alone "$sent bytes"; fi

rm -rf "$HF_HOME"
start_hub 3
"$HEDDLE_BIN/heddle" fetch --dataset org/large >"$work/out.1" 2>"$work/err.1" &
first=$!
"$HEDDLE_BIN/heddle" fetch --dataset org/large >"$work/out.2" 2>"$work/err.2" &
wait $!
check_equal one_of_two_fetches_succeeds 0 $?
wait $first
check_equal the_other_one_too 0 $?
check both_name_the_same_folder cmp "$work/out.1" "$work/out.2"
stop_hub
check_equal each_byte_is_sent_once 3000000 "$sent"

# In a job file.
cat >"$work/hub.yaml" <<'END'
name: hub
model: {from: hf://org/model}
data: {train: ['hf://datasets/org/set/data/train-*.jsonl']}
train: {steps: 1, global_batch: 2, lr: 1e-3, precision: fp32}
resources: {devices: 1, device_type: cpu}
END
# says NAME STATUS PATTERN COMMAND...: the command ends with this status, and has a line that matches
says() {
    local name=$1 status=$2 pattern=$3
    shift 3
    "$@" >"$work/said" 2>&1
    check_equal "$name" "$status yes" "$? $(grep -q "$pattern" "$work/said" && echo yes || cat "$work/said")"
}
says validate_downloads_nothing_and_says_what_does 2 "hub.yaml:2: model.from: org/model@main is not.* heddle fetch org/model" \
    heddle validate "$work/hub.yaml"
start_hub
check local_fetches_and_trains heddle local "$work/hub.yaml" --dir "$work/run"
stop_hub
commit=0123456789abcdef0123456789abcdef01234567
says validate_tells_the_commit_of_the_model 0 "^model.from: hf://org/model@$commit\$" heddle validate "$work/hub.yaml"
check and_of_the_data grep -qx "data.train: hf://datasets/org/set@$commit" "$work/said"
heddle validate "$work/hub.yaml" -o json >"$work/spec.json"
check the_job_has_the_real_folder grep -qF "\"from\":\"$HF_HOME/hub/models--org--model/named/$commit\"" "$work/spec.json"
check and_real_files grep -qF "\"$HF_HOME/hub/datasets--org--set/named/$commit/data/train-2.jsonl\"" "$work/spec.json"
check_equal no_file_of_a_job_is_a_link "" "$(find "$HF_HOME"/hub/*/named -type l)"
check_equal the_token_is_nowhere "" "$(grep -rl "$HF_TOKEN" "$work")"

says a_set_without_a_file_means_its_training_files 0 "^data.train: hf://datasets/org/set@$commit\$" \
    heddle validate "$work/hub.yaml" --set "data.train=[hf://datasets/org/set]"
says a_bare_name_is_no_path 2 'is written hf://org/model' heddle validate "$work/hub.yaml" --set model.from=org/model
says offline_what_is_not_there 4 'to fetch it: heddle fetch org/other' heddle fetch org/other --offline
check offline_what_is_there heddle fetch org/model --offline --out "$work/copy"
check its_copy_is_no_link test -f "$work/copy/config.json" -a ! -L "$work/copy/config.json"

# A libcurl that cannot be loaded is missed by what downloads alone.
mkdir "$work/broken"
: >"$work/broken/libcurl.so.4"
: >"$work/broken/libcurl-gnutls.so.4"
without_curl() { LD_LIBRARY_PATH=$work/broken heddle "$@"; }
says a_copy_in_the_cache_needs_no_library 0 "models--org--model" without_curl fetch org/model
says a_download_names_the_missing_library 2 'libcurl.*cannot be loaded.*install libcurl4' without_curl fetch org/other
check other_commands_do_without_it without_curl jobs --help
finish
