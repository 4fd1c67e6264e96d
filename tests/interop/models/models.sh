#!/bin/bash
# Models of transformers come in, train, and go out again, with the same logits on both sides.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python models_go_in_and_out torch transformers numpy

models=$HEDDLE_SOURCE_DIR/tests/interop/models/models.py
worker=$HEDDLE_BIN/heddle-worker
names=$("$python" "$models" make "$work" 2>"$work/make.log" | tail -n 1)
[ -n "$names" ] || { not_ok make "$(tail -n 3 "$work/make.log")"; finish; }
tokens=$("$python" "$models" tokens 2>/dev/null | tail -n 1)
check an_index_was_among_them test -f "$work/llama-gqa/model.safetensors.index.json"

# compare NAME DIR CHECKPOINT: later, our logits of CHECKPOINT against transformers' of DIR
compare() {
    if "$worker" logits --checkpoint "$3" --tokens "$tokens" --out "$work/$1.npy" >/dev/null 2>"$work/logits.err"; then
        printf '%s %s %s\n' "$1" "$2" "$work/$1.npy" >>"$work/list"
    else
        not_ok "$1" "$(cat "$work/logits.err")"
    fi
}

start_controller
start_node n1 cpu:2
cat "$HEDDLE_SOURCE_DIR"/LICENSE >"$work/corpus.txt"
for name in $names; do
    compare "import_$name" "$work/$name" "$work/$name"
    cat >"$work/$name.yaml" <<END
name: $name
model: {from: $name}
data: {train: [corpus.txt]}
train: {steps: 3, global_batch: 4, lr: {peak: 3e-3, warmup: 0}, precision: fp32}
resources: {devices: 2}
checkpoint: {keep: 0}
END
    job=$(submit "$work/$name.yaml")
    check "train_$name" heddle wait "$job"
    check "export_$name" heddle checkpoint export "$job" --out "$work/$name-out" --max-shard-size 1
    checkpoint=$(heddle checkpoint ls "$job" -o jsonl | tail -n 1 | member path)
    compare "trained_and_exported_$name" "$work/$name-out" "$checkpoint"
    compare "and_back_$name" "$work/$name-out" "$work/$name-out"
done

# balancing losses: a step that changes nothing, on the first sequences of the text
for name in mixtral mixtral-fused; do
    sed -e 's/steps: 3/steps: 1/; s/peak: 3e-3/peak: 1e-12/; s/corpus.txt\]/&, order: sequential/; s/devices: 2/devices: 1/' \
        "$work/$name.yaml" >"$work/$name-balance.yaml"
    weight=$(heddle validate "$work/$name-balance.yaml" -o json | sed -nE 's/.*"balance": ?([0-9.e-]+).*/\1/p' | head -n 1)
    job=$(submit "$work/$name-balance.yaml")
    check "balance_of_$name" heddle wait "$job"
    metric=$(heddle watch "$job" -o jsonl | member router_balance)
    "$python" "$models" balance "balance_of_$name" "$work/$name" "$work/corpus.txt" "$metric" "$weight" \
        >"$work/balance" 2>"$work/compare.log" || not_ok "balance_of_$name" "$(tail -n 3 "$work/compare.log")"
    cat "$work/balance"
    failures=$((failures + $(grep -c '^not ok' "$work/balance")))
done

# the weights moved: what went out is not what came in, and the comparison sees it
compare three_steps_changed_the_model "$work/gpt2" "$work/gpt2-out"
"$python" "$models" compare "$work/list" >"$work/verdicts" 2>"$work/compare.log"
# what a test prints is NAME; the figure is for the log
sed -nE 's/^(ok [^:]*):(.*)/\1\n#\2/p; /^not ok [^t]/p' "$work/verdicts"
failures=$((failures + $(grep -c '^not ok [^t]' "$work/verdicts")))
check_equal every_comparison_was_made "$(wc -l <"$work/list")" "$(wc -l <"$work/verdicts")"
check_equal three_steps_changed_the_model 1 "$(grep -c '^not ok three_steps_changed_the_model' "$work/verdicts")"
check_status an_export_in_the_way_stays 6 heddle checkpoint export "$job" --out "$work/gpt2-out"
check an_export_in_the_way_goes_by_force heddle checkpoint export "$job" --out "$work/gpt2-out" --force --dtype bf16
check a_model_directory_writes heddle generate "$work/gpt2-out" --prompt 'The ' --max-tokens 8
finish
