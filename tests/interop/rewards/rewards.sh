#!/bin/bash
# Reward models of transformers rate answers here as they do there, and ours, whole or as an adapter of PEFT, there
# as here.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python reward_models_go_in_and_out torch transformers numpy peft

tests=$HEDDLE_SOURCE_DIR/tests/interop
"$python" "$tests/models/models.py" make "$work" >"$work/make.log" 2>&1 || { not_ok make "$(tail -n 3 "$work/make.log")"; finish; }
names=$("$python" "$tests/rewards/rewards.py" make "$work" 2>"$work/make.log") || { not_ok make "$(tail -n 3 "$work/make.log")"; finish; }

# rate NAME DIR ADAPTER MODEL: later, what heddle eval says of MODEL against transformers' of DIR
rate() {
    local files='' k
    for k in 0 1 2; do
        heddle eval "$4" --data "$work/pair-$k.jsonl" --precision fp32 -o json >"$work/$1.$k" 2>"$work/rate.err" ||
            { not_ok "$1" "$(cat "$work/rate.err")"; return; }
        files+=" $work/$1.$k"
    done
    echo "$1 $2 $3$files" >>"$work/list"
}

# train NAME MODEL KEYS: three steps of a reward model, from a model of tokens. The losses of routers do not go with
# pairs.
train() {
    cat >"$work/$1.yaml" <<END
name: $1
model: {from: $2}
data: {train: [pairs.jsonl], val: [pair-0.jsonl], tokenizer: bytes, order: sequential}
train: {objective: reward, steps: 3, global_batch: 2, lr: {peak: 3e-3, warmup: 0}, precision: fp32$3}
resources: {device_type: cpu, threads: 1}
END
    if [ "$2" = mixtral ]; then set -- "$1" --set model.router.balance=0; else set -- "$1"; fi
    check "train_$1" heddle local "$work/$1.yaml" --dir "$work/runs/$1" "${@:2}"
}

for name in $names; do
    rate "in_$name" "$work/rater-$name" - "$work/rater-$name"
    train "whole_$name" "$name" ''
    check "export_$name" heddle checkpoint export "$work/runs/whole_$name" --out "$work/out-$name"
    rate "out_$name" "$work/out-$name" - "$work/runs/whole_$name"
done
train adapted llama-mqa-tied ', adapter: {type: lora, rank: 4, targets: all-linear}'
check export_an_adapter heddle checkpoint export "$work/runs/adapted" --out "$work/adapter" --adapter
check export_what_it_makes heddle checkpoint export "$work/runs/adapted" --out "$work/merged"
rate adapter_with_its_vector "$work/llama-mqa-tied" "$work/adapter" "$work/runs/adapted"
rate merged_with_its_vector "$work/merged" - "$work/runs/adapted"

"$python" "$tests/rewards/rewards.py" "$work/list" >"$work/verdicts" 2>"$work/compare.log" ||
    not_ok compare "$(tail -n 3 "$work/compare.log")"
sed -nE 's/^(ok [^:]*):(.*)/\1\n#\2/p; /^not ok/p' "$work/verdicts"
failures=$((failures + $(grep -c '^not ok' "$work/verdicts")))
check_equal every_comparison_was_made 12 "$(wc -l <"$work/verdicts")"
finish
