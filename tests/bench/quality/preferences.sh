#!/bin/bash
# preferences.sh CORPUS [FOLDER]: how often a base, and what KTO and SimPO make of it, prefer the better
# answer of held-out pairs.
#
# A llama of four blocks is trained on the bytes of CORPUS, then from its checkpoint on pairs (pairs.py) by
# train.objective kto and simpo. A line for each: the share of held-out pairs whose chosen answer has the
# larger log-likelihood, and the larger one per character. HEDDLE: the command; default
# build/dev/bin/heddle.
set -eu
export LC_ALL=C
corpus=$(realpath "$1")
folder=${2:-$(mktemp -d)}
heddle=${HEDDLE:-build/dev/bin/heddle}
python=${HEDDLE_PYTHON:-python3}

mkdir -p "$folder"
folder=$(realpath "$folder")
"$python" "$(dirname "$0")/pairs.py" "$corpus" "$folder"
head -c $(($(wc -c <"$corpus") * 4 / 5)) "$corpus" >"$folder/corpus.txt"
job() { # NAME LINES: the job file of a run
    cat <<EOT
name: $1
model: {family: llama, layers: 4, hidden: 128, heads: 4, ffn_hidden: 384, context: 256}
resources: {devices: 1}
checkpoint: {every: 0}
$2
EOT
}
job base "data: {train: [$folder/corpus.txt]}
train: {steps: 500, global_batch: 8, lr: {peak: 4e-3, warmup: 20}, seed: 1}" >"$folder/base.yaml"
for objective in kto simpo; do
    preference='{beta: 0.1}'
    [ $objective = kto ] || preference='{beta: 2, gamma: 1}'
    job $objective "data: {train: [$folder/train.jsonl], tokenizer: bytes}
train: {steps: 120, global_batch: 8, lr: {peak: 2e-4, warmup: 10}, objective: $objective, preference: $preference, init_from: BASE, seed: 1}" \
        >"$folder/$objective.yaml"
done

run() { # NAME: trains it, unless that is done, and prints its scores
    [ -f "$folder/$1.out" ] && grep -q completed "$folder/$1.out" ||
        "$heddle" local "$folder/$1.yaml" --dir "$folder/$1" >"$folder/$1.out" 2>&1 ||
        { tail -n 5 "$folder/$1.out" >&2; exit 1; }
    checkpoint=$(ls -d "$folder/$1"/1/attempt-*/checkpoints/step-* | tail -n 1)
    printf '%s %s\n' "$1" "$("$heddle" eval "$checkpoint" --choices "$folder/held-out.jsonl" | tr '\n' ' ')"
}
run base
sed -i "s|BASE|$checkpoint|" "$folder/kto.yaml" "$folder/simpo.yaml"
run kto
run simpo
