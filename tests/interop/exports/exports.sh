#!/bin/bash
# An export by a run that changed nothing says what its base said: config.json key by key, the other files byte by byte,
# the logits beyond the run's shorter context, and where a text ends, in transformers and here. The base is gone by
# then. Takes a minute, most of it Python (PyTorch 2.15, transformers 5.24, PEFT 0.21).
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python exports_say_what_their_bases_said torch transformers tokenizers safetensors

exports=$HEDDLE_SOURCE_DIR/tests/interop/exports/exports.py
cp "$HEDDLE_SOURCE_DIR/LICENSE" "$work/corpus.txt"
names=$("$python" "$exports" make "$work" "$work/corpus.txt" 2>"$work/make.log" | tail -n 1)
[ -n "$names" ] || { not_ok make "$(tail -n 3 "$work/make.log")"; finish; }

verdicts() {
    cat "$work/verdicts"
    failures=$((failures + $(grep -c '^not ok' "$work/verdicts")))
}

# run NAME MODEL [TRAIN] [DATA]: one step that changes nothing
run() {
    cat >"$work/$1.yaml" <<END
name: $1
model: $2
data: {train: [corpus.txt]${4:-}}
train: {steps: 1, global_batch: 2, lr: {peak: 1e-12, warmup: 0}, precision: fp32${3:-}}
checkpoint: {keep: 0}
END
    heddle local "$work/$1.yaml" --dir "$work/$1-run" >"$work/$1.log" 2>&1 || not_ok "run_$1" "$(tail -n 3 "$work/$1.log")"
    checkpoint=$(find "$work/$1-run" -name step-00000001)
}

for name in $names; do
    run "$name" "{from: $name, context: 32}"
    mv "$work/$name" "$work/$name.gone"
    check "export_$name" heddle checkpoint export "$checkpoint" --out "$work/$name-out"
    check "verify_$name" heddle checkpoint verify "$work/$name-out"
    heddle generate "$work/$name-out" --prompt Copyright --greedy --max-tokens 12 >"$work/$name.text" 2>"$work/$name.log"
    echo "$name $work/$name.gone $work/$name-out $work/$name.text" >>"$work/list"
done
"$python" "$exports" untouched "$work/list" >"$work/verdicts" 2>"$work/compare.log"
verdicts
check_equal every_comparison_was_made "$((6 * $(wc -l <"$work/list")))" "$(wc -l <"$work/verdicts")"

run bytes '{family: llama, layers: 1, hidden: 32, heads: 4, context: 32}'
check export_bytes heddle checkpoint export "$checkpoint" --out "$work/bytes-out"
"$python" "$exports" bytes "$work/bytes-out" >"$work/verdicts" 2>"$work/compare.log" ||
    not_ok a_byte_model_loads "$(tail -n 1 "$work/compare.log")"
verdicts

# a tokenizer made here, of which no file names the token that ends a text: the export does
check a_tokenizer heddle data train-tokenizer "$work/corpus.txt" --out "$work/tok" --vocab 400 --special '<end>'
rm "$work/tok/tokenizer_config.json"
run own '{family: llama, layers: 1, hidden: 32, heads: 4, context: 32}' '' ', tokenizer: tok/tokenizer.json, end_of_text: 0'
check export_own heddle checkpoint export "$checkpoint" --out "$work/own-out"
"$python" "$exports" own "$work/tok/tokenizer.json" "$work/own-out" >"$work/verdicts" 2>"$work/compare.log" ||
    not_ok a_tokenizer_made_here_loads "$(tail -n 1 "$work/compare.log")"
verdicts

if "$python" -c 'import peft' >/dev/null 2>&1; then
    mv "$work/llama_tied.gone" "$work/llama_tied"
    run llama_adapter '{from: llama_tied, context: 32}' ', adapter: {type: lora, rank: 2}'
    check export_adapter heddle checkpoint export "$checkpoint" --out "$work/adapter-out" --adapter
    "$python" "$exports" adapter "$work/llama_tied" "$work/adapter-out" >"$work/verdicts" 2>"$work/compare.log" ||
        not_ok an_adapter_loads "$(tail -n 1 "$work/compare.log")"
    verdicts
fi
finish
