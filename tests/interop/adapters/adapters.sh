#!/bin/bash
# Adapters that were trained here go out: PEFT loads them beside their base, and what export adds up is what PEFT
# adds up. Adapters of PEFT come in: they give the same logits here, and a run goes on from them. Takes one and a half
# minutes of a core, most of it Python (PyTorch 2.15, transformers 5.24, PEFT 0.21.2).
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python adapters_go_out torch transformers numpy peft

tests=$HEDDLE_SOURCE_DIR/tests/interop
"$python" "$tests/models/models.py" make "$work" >"$work/make.log" 2>&1 || { not_ok make "$(tail -n 3 "$work/make.log")"; finish; }
tokens=$("$python" "$tests/models/models.py" tokens 2>/dev/null | tail -n 1)
cat "$HEDDLE_SOURCE_DIR"/LICENSE >"$work/corpus.txt"

start_controller
start_node n1 cpu:2

# one NAME BASE ADAPTER-KEYS TP TYPE CONTEXT: trains with tensor parallelism where the heads allow it
one() {
    cat >"$work/$1.yaml" <<END
name: $1
model: {from: $2${6:+, context: $6}}
data: {train: [corpus.txt]}
train:
  {steps: 8, global_batch: 4, lr: {peak: 3e-2, warmup: 0}, precision: fp32, adapter: {type: ${5:-lora}, $3}}
parallel: {tp: ${4:-1}}
resources: {devices: 2}
checkpoint: {keep: 0}
END
    job=$(submit "$work/$1.yaml")
    check "train_$1" heddle wait "$job"
    check "export_$1" heddle checkpoint export "$job" --out "$work/$1-adapter" --adapter
    if [ "${5:-lora}" = lora ]; then
        check "merge_$1" heddle checkpoint export "$job" --out "$work/$1-merged"
    else
        check_status "merge_$1_is_refused" 2 heddle checkpoint export "$job" --out "$work/$1-merged"
    fi
    check "verify_$1" heddle checkpoint verify "$work/$1-adapter"
    checkpoint=$(heddle checkpoint ls "$job" -o jsonl | tail -n 1 | member path)
    "$HEDDLE_BIN/heddle-worker" logits --checkpoint "$checkpoint" --tokens "$tokens" --out "$work/$1.npy" \
        >/dev/null 2>"$work/logits.err" || not_ok "logits_$1" "$(cat "$work/logits.err")"
    echo "$1 $work/$2 $work/$1-adapter $work/$1-merged $work/$1.npy" >>"$work/list"
}

verdicts() { # of adapters.py, with what was measured as a remark
    sed -nE 's/^(ok [^:]*):(.*)/\1\n#\2/p; /^not ok/p' "$work/verdicts"
    failures=$((failures + $(grep -c '^not ok' "$work/verdicts")))
}

one gpt2_all gpt2 'rank: 4, alpha: 8, targets: all-linear'
one llama_all llama-gqa 'rank: 8, targets: all-linear' 2
one llama_some llama-mqa-tied 'rank: 3, alpha: 5, rslora: true, targets: [q_proj, v_proj, down_proj]'
one qwen2_tied qwen2-window-tied 'rank: 4, alpha: 4, targets: all-linear' 2
one qwen3_all qwen3 'rank: 2, alpha: 8, targets: all-linear' 2
one mistral_keys mistral-window 'rank: 4, loraplus_lr_ratio: 4, targets: [self_attn.k_proj, mlp.gate_proj]' 2
one gpt2_dora gpt2 'rank: 4, alpha: 8, dora: true, targets: all-linear'
one llama_dora llama-gqa 'rank: 4, alpha: 8, dora: true, targets: all-linear' 2
one gpt2_pissa gpt2 'rank: 4, alpha: 8, init: pissa, targets: all-linear'
one llama_pissa llama-gqa 'rank: 3, alpha: 5, rslora: true, init: pissa, targets: all-linear' 2
one gpt2_prefix gpt2 'tokens: 5' 1 prefix 43 # of 48
one llama_prefix llama-gqa 'tokens: 6' 2 prefix 42
# An expert is a module of its own with transformers 4. With 5 experts are one parameter, to which PEFT converts the
# factors of modules when it loads them, but it saves them as one: those are refused by name (target_parameters).
modules=0 experts=0 stacks=0
"$python" -c 'import sys, transformers; sys.exit(transformers.__version__ >= "5")' 2>/dev/null && modules=1
if [ $modules = 1 ] || "$python" -c 'import peft.utils.transformers_weight_conversion' 2>/dev/null; then
    experts=1
    one mixtral_experts mixtral 'rank: 3, alpha: 5, targets: [q_proj, w1, w2, w3]' 2
fi
# Experts that are one parameter in transformers' files, too; PEFT takes those of llama4 for transposed ones.
if [ $((experts - modules)) = 1 ]; then
    stacks=1
    HEDDLE_FAMILIES="gpt_oss llama4_moe" "$python" "$tests/families/families.py" make "$work" >>"$work/make.log" 2>&1 ||
        not_ok make_families "$(tail -n 3 "$work/make.log")"
    one gpt_oss_stacks gpt_oss 'rank: 3, alpha: 5, targets: [all-linear, experts.gate_up_proj, experts.down_proj]' 2
    one llama4_stack llama4_moe 'rank: 3, targets: [all-linear, experts.gate_up_proj]'
fi
sed 's/type: lora, .*}}/type: none}}/' "$work/gpt2_all.yaml" >"$work/plain.yaml"
job=$(submit "$work/plain.yaml")
check train_without_adapter heddle wait "$job"
check_status a_model_without_adapter_has_none 2 heddle checkpoint export "$job" --out "$work/none" --adapter

cat >"$work/ten.yaml" <<END
name: ten
model: {from: llama-gqa}
data: {train: [corpus.txt], order: sequential}
train:
  {steps: 10, global_batch: 8, lr: {peak: 2e-3, warmup: 0, decay: constant}, weight_decay: 0, precision: fp32, adapter: {type: lora, rank: 4, alpha: 8, init: pissa}}
END
check ten_steps_of_singular_directions heddle local "$work/ten.yaml" --state-dir "$work/ten" -o jsonl
cp "$work/check.out" "$work/ten.jsonl"
"$python" "$tests/adapters/pissa.py" "$work/llama-gqa" "$work/corpus.txt" 48 "$work/ten.jsonl" >"$work/verdicts" 2>"$work/compare.log" ||
    not_ok compare_ten_steps "$(tail -n 3 "$work/compare.log")"
verdicts

"$python" "$tests/adapters/adapters.py" "$work/list" >"$work/verdicts" 2>"$work/compare.log" ||
    not_ok compare "$(tail -n 3 "$work/compare.log")"
verdicts
check_equal every_comparison_was_made $((34 + 3 * experts + 6 * stacks)) "$(wc -l <"$work/verdicts")"

theirs=$("$python" "$tests/adapters/adapters.py" make "$work" 2>"$work/make.log") || not_ok make_theirs "$(tail -n 3 "$work/make.log")"
for name in $theirs; do
    base=${name#prefix-}
    check "logits_of_$name" "$HEDDLE_BIN/heddle-worker" logits --checkpoint "$work/${base#dora-}" --adapter "$work/peft-$name" \
        --tokens "$tokens" --out "$work/ours-$name.npy"
done
# shellcheck disable=SC2086 # a list of names
"$python" "$tests/adapters/adapters.py" theirs "$work" $theirs >"$work/verdicts" 2>"$work/compare.log" ||
    not_ok compare_theirs "$(tail -n 3 "$work/compare.log")"
verdicts
check_equal all_of_theirs_were_tried $((11 + modules + 2 * stacks)) "$(grep -c '_of_peft_computes_here' "$work/verdicts")"
sed 's/adapter: {.*}}/adapter: {from: peft-llama-gqa}}/; s/model: .*/model: {from: llama-gqa}/' "$work/llama_all.yaml" >"$work/onward.yaml"
check a_run_goes_on_from_theirs heddle local "$work/onward.yaml" --dir "$work/onward"
sed -i 's/peft-llama-gqa/peft-dora-gpt2/; s/model: .*/model: {from: gpt2}/; s/tp: 2/tp: 1/' "$work/onward.yaml"
check a_run_goes_on_from_their_magnitudes heddle local "$work/onward.yaml" --dir "$work/onward-dora"
finish
