#!/bin/bash
# The recipes (recipes/): copied, valid on their sample, planned as they say, and one of each kind of method trained
# small. No network: stand_in.pl makes the models. expect.pl compares plans; to take over what is planned now:
#
#   tests/e2e/recipes/recipes.sh --write      with HEDDLE_SOURCE_DIR, HEDDLE_BUILD_DIR and HEDDLE_BIN set
write=${1:-}
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

here=$HEDDLE_SOURCE_DIR/tests/e2e/recipes recipes=$HEDDLE_SOURCE_DIR/recipes
export HF_HOME=$work/hf HF_HUB_OFFLINE=1 XDG_CACHE_HOME=$work/cache HEDDLE_RECIPES=$recipes
export PATH=$HEDDLE_BIN:$PATH # commands of a README name the programs alone
unset HF_HUB_CACHE HF_ENDPOINT
model_of() { sed -nE 's|^  from: "hf://([^"]+)".*|\1|p' "$recipes/$1/job.yaml"; }

for model in $(sed -nE 's|^  from: "hf://([^"]+)".*|\1|p' "$recipes"/*/job.yaml | sort -u); do
    perl "$here/stand_in.pl" "$HF_HOME/hub" "$model" 0123456789012345678901234567890123456789 || exit 1
done

# ---- copied, valid, planned ----

# sample_line NAME: the command of its README that validates the sample
sample_line() { grep -h 'heddle validate job.yaml' "$recipes/$1/README.md" | grep -m 1 sample | sed 's/ *# .*//'; }
names=$(cd "$recipes" && ls -d */ | tr -d /)
for name in $names; do
    folder=$work/$name expected=$recipes/$name/expect.json
    heddle recipe copy "$name" "$folder" >/dev/null 2>"$work/err"
    line=$(sample_line "$name")
    if (cd "$folder" && bash -c "${line:?}") >"$work/out" 2>"$work/err" && grep -q "is valid: job $name," "$work/out"; then
        ok "the_sample_of_${name}_is_valid"
    else
        not_ok "the_sample_of_${name}_is_valid" "$(head -c 400 "$work/err")"
    fi
    machines=(--cluster "$folder/cluster.yaml")
    # two processors say nothing about bf16 and threads
    [ -f "$folder/cluster.yaml" ] || machines=(--devices cpu:2:1 --set train.precision=fp32)
    heddle plan "$recipes/$name/job.yaml" "${machines[@]}" -o json >"$work/plan.json" 2>"$work/err"
    [ -z "$write" ] || perl "$here/expect.pl" --write "$recipes/$name" "$work/plan.json"
    if perl "$here/expect.pl" "$recipes/$name" "$work/plan.json" >"$work/out" 2>&1; then
        ok "${name}_is_planned_as_it_says"
    else
        not_ok "${name}_is_planned_as_it_says" "$(tr '\n' ';' <"$work/out") $(head -c 300 "$work/err")"
    fi
done
[ -z "$write" ] || finish

# ---- the command ----

check_equal each_is_listed "$(xargs <<<"$names")" "$(heddle recipe ls -o jsonl | sed -E 's/.*"name":"([^"]*)".*/\1/' | xargs)"
check_equal with_what_hardware_and_model 0 "$(heddle recipe ls -o jsonl | grep -cE '"(what|hardware|model)":""')"
before=$(cksum "$work"/pretrain-tiny/*.*)
check_status a_copy_replaces_nothing 6 heddle recipe copy pretrain-tiny "$work/pretrain-tiny" --set train.steps=7
check_equal and_leaves_what_is_there "$before" "$(cksum "$work"/pretrain-tiny/*.*)"
check a_copy_takes_values heddle recipe copy pretrain-tiny "$work/changed" --set train.steps=7
check_equal which_are_in_its_file "  steps: 7 " "$(grep -o '^  steps: 7 ' "$work/changed/job.yaml")"
check_equal and_says_what_to_type_next 1 "$(grep -c '^  next: cd .*/changed && cp -r sample/corpus' "$work/check.err")"
check_status a_wrong_key_makes_no_copy 2 heddle recipe copy pretrain-tiny "$work/wrong" --set train.stepz=7
check_equal of_which_nothing_is_left "" "$(ls -d "$work/wrong" 2>/dev/null)"

# ---- trained, small ----

# small_sets NAME: --set for a model of two layers, three steps
small_sets() {
    local model key
    model=$(model_of "$1")
    echo "train.steps=3 train.global_batch=4 resources.devices=1 validate.batches=1"
    grep -q '^    warmup:' "$recipes/$1/job.yaml" && echo train.lr.warmup=1
    if [ "$model" ]; then
        [ -d "$work/small/$model" ] || perl "$here/stand_in.pl" --small "$work/small/$model" "$model" || exit 1
        echo "model.from=$work/small/$model model.context=1024"
    else
        echo "model.layers=2 model.hidden=64 model.heads=4 model.context=64"
        for key in kv_heads=2 ffn_hidden=128 head_width=16; do
            grep -q "^  ${key%=*}:" "$recipes/$1/job.yaml" && echo "model.$key"
        done
    fi
}
start_controller
start_node n1 cpu:2:1
declare -A jobs=()
# one of each kind: experts on token files, a mixture of text, a full tune, LoRA, quantized weights, pairs, rewards
for name in ${SMALL:-pretrain-qwen3-30b-a3b continue-mistral-7b full-qwen3-8b lora-gemma-3-4b tools-mixtral-8x7b dpo-llama-3.1-8b reward-qwen2.5-0.5b}; do
    line=$(sample_line "$name")
    eval "sets=(${line#*job.yaml})"
    for set in $(small_sets "$name"); do sets+=(--set "$set"); done
    jobs[$name]=$(submit "$work/$name/job.yaml" "${sets[@]}" 2>"$work/err") ||
        not_ok "${name}_trains" "$(head -c 400 "$work/err")"
done
for name in "${!jobs[@]}"; do
    [ -z "${jobs[$name]}" ] || check "${name}_trains" heddle wait "${jobs[$name]}"
done
finish
