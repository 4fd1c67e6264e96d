#!/bin/bash
# optimizers.sh CORPUS [FOLDER]: how many steps Muon needs for AdamW's loss, each at its best rate.
#
# A llama of four blocks on the bytes of CORPUS, two tenths of it held out. AdamW takes 400 steps at each
# of four peak rates, Muon 300, with the same schedule, seed and batches. A line for each run: optimizer,
# steps, rate, loss of the last validation. HEDDLE: the command; default build/dev/bin/heddle.
set -eu
export LC_ALL=C
corpus=$(realpath "$1")
folder=${2:-$(mktemp -d)}
heddle=${HEDDLE:-build/dev/bin/heddle}
rates_of() { [ "$1" = muon ] && echo 2e-3 4e-3 8e-3 1.6e-2 || echo 1e-3 2e-3 4e-3 8e-3; }
steps_of() { [ "$1" = muon ] && echo 300 || echo 400; }

mkdir -p "$folder"
cat >"$folder/job.yaml" <<EOT
name: optimizers
model: {family: llama, layers: 4, hidden: 128, heads: 4, ffn_hidden: 384, context: 128}
data: {train: [$corpus], val_split: 0.2}
train:
  steps: 400
  global_batch: 16
  lr: {peak: 1e-3, warmup: 20}
  weight_decay: 0.1
  seed: 1
validate: {every: 0, batches: 16}
resources: {devices: 1}
checkpoint: {every: 0}
EOT
for optimizer in adamw muon; do
    for rate in $(rates_of $optimizer); do
        run=$folder/$optimizer-$rate
        [ -f "$run.out" ] && grep -q completed "$run.out" ||
            "$heddle" local "$folder/job.yaml" --dir "$run" --set "train.optimizer=$optimizer" \
                --set "train.steps=$(steps_of $optimizer)" --set "train.lr.peak=$rate" >"$run.out" 2>&1 ||
            { tail -n 5 "$run.out" >&2; exit 1; }
        printf '%s %s %s %s\n' "$optimizer" "$(steps_of $optimizer)" "$rate" \
            "$(sed -n 's/.*validation loss \([0-9.]*\).*/\1/p' "$run.out" | tail -n 1)"
    done
done
