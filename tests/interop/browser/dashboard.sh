#!/bin/bash
# dashboard: the page in a headless Chromium, beside a controller with a million steps behind it and a
# job that runs. Screenshots are kept in SHOTS, if that is set.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

chromium=
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && chromium=$name && break
done
if [ -z "$chromium" ]; then
    echo "skip dashboard: Chromium is not installed"
    exit 0
fi
here=$HEDDLE_SOURCE_DIR/tests/interop/browser
shots=${SHOTS:-$work/shots}
mkdir -p "$shots"

if ! "$HEDDLE_BUILD_DIR/tests/browser_fixture" "$work/controller" "${STEPS:-1000000}" 2>"$work/fixture.err"; then
    not_ok fixture "$(cat "$work/fixture.err")"
    finish
fi
mkdir -p "$work/jobs/1" # the folder of a job: the jobs directory is that of the fixture's database
start_controller --http 127.0.0.1:0
url=$(sed -n 's/.*dashboard and metrics on \(http:.*\)\/$/\1/p' "$work/controller.log" | tail -n 1)
start_node n1 cpu:1
long_job() { # FILE NAME DEVICES [BATCH]
    cat >"$work/$1.yaml" <<END
name: "$2"
model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 64}
data: {train: [corpus.txt], val_split: 0.1}
train: {steps: 200000, global_batch: ${4:-8}, lr: {peak: 3e-3, warmup: 20, decay: cosine, min: 3e-4}, precision: fp32}
validate: {every: 100, batches: 2}
resources: {devices: $3}
checkpoint: {every: 500, keep: 2}
END
    submit "$work/$1.yaml"
}
cp "$HEDDLE_SOURCE_DIR/LICENSE" "$work/corpus.txt"
live=$(long_job live live-job 1)
long_job big needs-many 64 64 >/dev/null
long_job next waits-for-its-turn 1 >/dev/null
await 60 steps_at_least "$live" 20 || not_ok live_job_trains "job $live makes no steps"

"$HEDDLE_BUILD_DIR/tests/browser" "$chromium" "$url" "$here/checks.js" "$shots" "$live" 1 2 ||
    failures=$((failures + 1))
heddle cancel --now "$live" >/dev/null
finish
