#!/bin/bash
# What an adapter and a base in codes cost: a model that knows one language is tuned to another, whole, by
# LoRA, and by LoRA on nf4. On held-out text the adapter's loss is at most 3% above that of the whole model
# that was tuned, and the one on nf4 at most 3% above that on bf16.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

# language SEED: sentences of two nouns and a verb of 24 each, drawn evenly, so that no loss comes near 0; words
# of three letters follow from the seed
language() {
    awk -v seed="$1" 'BEGIN {
        srand(seed)
        for (w = 0; w < 48; w++)
            word[w] = sprintf("%c%c%c", 97 + int(26 * rand()), 97 + int(26 * rand()), 97 + int(26 * rand()))
        for (i = 0; i < 12000; i++)
            printf "the %s %s the %s. ", word[int(24 * rand())], word[24 + int(24 * rand())], word[int(24 * rand())]
    }'
}
language 1 >"$work/first.txt"
language 2 >"$work/second.txt"
cat >"$work/base.yaml" <<END
name: base
model: {family: llama, layers: 2, hidden: 128, heads: 4, context: 64}
data: {train: [first.txt], val_split: 0.1}
train: {steps: 300, global_batch: 16, lr: 3e-3, precision: bf16}
resources: {device_type: cpu, threads: 2}
END
cat >"$work/tune.yaml" <<END
name: tune
model: {from: model}
data: {train: [second.txt], val_split: 0.1}
train: {steps: 500, global_batch: 16, precision: bf16}
resources: {device_type: cpu, threads: 2}
END
tune() { # NAME OPTION...: tunes the base, and prints the loss on what was held out
    heddle local "$work/tune.yaml" --dir "$work/$1" --state-dir "$work/runs" "${@:2}" >>"$work/log" 2>&1 &&
        heddle eval "$work/$1" -o json 2>>"$work/log" | member loss
}
lora=(--set train.adapter.type=lora --set train.adapter.rank=32 --set train.adapter.alpha=64 --set "train.adapter.trainable=[norms]" --set train.lr=5e-3)
check a_base_is_trained heddle local "$work/base.yaml" --dir "$work/base" --state-dir "$work/runs"
check and_put_out heddle checkpoint export "$work/base" --out "$work/model"
whole=$(tune whole --set train.lr=2e-3) adapter=$(tune adapter "${lora[@]}") coded=$(tune coded "${lora[@]}" --set model.quantization=nf4)
untuned=$(heddle eval "$work/base" --data "$work/second.txt" -o json 2>>"$work/log" | member loss)
printf 'loss untuned %s, whole %s, lora %s, lora on nf4 %s\n' "$untuned" "$whole" "$adapter" "$coded"
within() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && a <= 1.03 * b) }'; }
check the_second_language_was_not_known awk -v a="$untuned" -v b="$whole" 'BEGIN { exit !(b > 0 && a > 2 * b) }'
check an_adapter_is_within_3_percent_of_tuning_all within "$adapter" "$whole"
check a_base_in_nf4_is_within_3_percent_of_bf16 within "$coded" "$adapter"
finish
