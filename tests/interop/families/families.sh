#!/bin/bash
# Each family of families.def, with random values in every tensor: its logits, and, beyond the first six, the gradient of
# each tensor, ten steps of AdamW, and the names of the tensors that an export has, against transformers. Each switch of a
# row is flipped once, and must then be refused or give other logits.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python families_are_those_of_transformers torch transformers safetensors numpy

families=$HEDDLE_SOURCE_DIR/tests/interop/families/families.py
made=$("$python" "$families" make "$work" 2>"$work/make.log" | tail -n 2)
{ read -r alone; read -r names; } <<<"$made"
[ -n "$names" ] || { not_ok make "$(tail -n 3 "$work/make.log")"; finish; }
tokens=$("$python" "$families" tokens 2>/dev/null | tail -n 1)
head -c 4000 "$HEDDLE_SOURCE_DIR/LICENSE" >"$work/corpus.txt"

# train NAME STEPS LR EPS: submits a job on the first sequences, without clipping, decay and the router's loss; sets $job
train() {
    local router=
    case $1 in *moe* | minimax* | gpt_oss*) router=', router: {balance: 0}' ;; esac
    cat >"$work/$1-$2.yaml" <<END
name: $1
model: {from: $1, context: 48$router}
data: {train: [corpus.txt], tokenizer: bytes, order: sequential}
train:
  {steps: $2, global_batch: 4, lr: {peak: $3, warmup: 0, decay: constant}, precision: fp32, eps: $4, clip: 0, weight_decay: 0}
resources: {devices: 1}
END
    job=$(submit "$work/$1-$2.yaml")
}

start_controller
start_node n1 cpu:1
declare -A one=() ten=()
for name in $alone $names; do
    "$HEDDLE_BIN/heddle-worker" logits --checkpoint "$work/$name" --tokens "$tokens" --out "$work/$name.npy" \
        >/dev/null 2>"$work/err" || not_ok "$name" "$(cat "$work/err")"
    [[ " $alone " == *" $name "* ]] && continue
    train "$name" 1 1 1
    one[$name]=$job
    train "$name" 10 1e-3 1e-8
    ten[$name]=$job
done
for name in $alone; do
    printf '%s %s %s - -\n' "$name" "$work/$name" "$work/$name.npy" >>"$work/list"
done
for name in $names; do
    for job in "${one[$name]}" "${ten[$name]}"; do
        heddle wait "$job" >"$work/wait.out" 2>&1 || not_ok "$name"_trains "$(tail -n 2 "$work/wait.out")"
    done
    check "$name"_is_exported heddle checkpoint export "${one[$name]}" --out "$work/$name-out"
    heddle watch "${ten[$name]}" -o jsonl | sed -nE 's|.*"type":"step".*"loss":([0-9.]+).*|\1|p' >"$work/$name.losses"
    printf '%s %s %s %s %s\n' "$name" "$work/$name" "$work/$name.npy" "$work/$name-out" "$work/$name.losses" >>"$work/list"
done >"$work/verdicts"
# One Python compares all: to load its packages takes longer.
"$python" "$families" compare "$work/list" "$work/corpus.txt" >>"$work/verdicts" 2>"$work/python.log"
"$HEDDLE_BUILD_DIR/tests/family_flips" "$work/list" "$tokens" >>"$work/verdicts" 2>>"$work/python.log"
# what a test prints is NAME; the figure is for the log
sed -nE 's/^(ok [^:]*)(:.*)?/\1\n#\2/p; /^not ok/p' "$work/verdicts"
failures=$(grep -c '^not ok' "$work/verdicts")
rows=$(grep -c '^F(' "$HEDDLE_SOURCE_DIR/lib/job/families.def")
check_equal every_family_was_compared $((5 * $(wc -w <<<"$names") + $(wc -w <<<"$alone") + rows)) \
    "$(grep -cE '^(not )?ok' "$work/verdicts")"
finish
