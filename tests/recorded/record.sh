#!/bin/bash
# record.sh BIN RECORDED FOLDER: records what the programs in BIN say to one another, for the tests of later
# builds: FOLDER/protocol.txt, one_node.txt.gz, and the files that the attempt left, run.tar.gz. RECORDED is this
# build's build/dev/tests/recorded_player, which must know the same protocol as BIN. README.md says when.
set -eu
[ $# = 3 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
bin=$1 recorded=$2 folder=$3
export LC_ALL=C.UTF-8 NO_COLOR=1 HEDDLE_CUDA_PLUGIN=none HEDDLE_CONFIG=none
pids=
work=$(mktemp -d "${TMPDIR:-/tmp}/recorded.XXXXXX")
trap 'kill $pids 2>/dev/null || :; wait; rm -rf --one-file-system "$work"' EXIT
out=$folder/one_node.txt
mkdir -p "$folder"
"$recorded" protocol >"$folder/protocol.txt"
printf 'root %s\n' "$work" >"$out"

until_it_is() { local n=0; until "$@" >/dev/null 2>&1; do n=$((n + 1)); [ $n -lt 400 ] || { echo "in vain: $*" >&2; exit 1; }; sleep 0.1; done; }
behind() { HEDDLE_CONTROLLER=unix:$work/c0.sock "$bin/heddle" "$@"; } # not recorded
say() { # a command, recorded
    printf '$ %s\n' "$*" >>"$out"
    (cd "$work" && HEDDLE_CONTROLLER=unix:$work/c.sock "$bin/heddle" "$@") >"$work/said"
    sed 's/^/| /' "$work/said" >>"$out"
}

head -c 6000 "$(dirname "$0")/../../LICENSE" >"$work/corpus.txt"
cat >"$work/job.yaml" <<'JOB'
name: recorded
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 32}
data: {train: [corpus.txt], split: 0.1}
train: {steps: 6, global_batch: 4, lr: 3e-3, precision: fp32}
validate: {every: 3, batches: 1}
resources: {devices: 2}
checkpoint: {every: 3, keep: 0}
JOB
"$bin/heddle-controller" --state-dir "$work/controller" --listen "unix:$work/c0.sock" --jobs-dir "$work/jobs" \
    --ephemeral >"$work/controller.log" 2>&1 &
pids="$pids $!"
until_it_is behind jobs
"$recorded" record "$folder/protocol.txt" "unix:$work/c.sock" "unix:$work/c0.sock" "$out" &
recorder=$!
pids="$pids $recorder"
until_it_is [ -S "$work/c.sock" ]
say queue set night --devices-max 2 --weight 3
say submit -q job.yaml --set queue=night
HEDDLE_CONTROLLER=unix:$work/c.sock "$bin/heddled" --state-dir "$work/n1" --node-name n1 --devices cpu:2:2 \
    --ephemeral >"$work/n1.log" 2>&1 &
node=$!
pids="$pids $node"
say watch 1 -o jsonl
until_it_is sh -c "HEDDLE_CONTROLLER=unix:$work/c0.sock '$bin/heddle' nodes -o jsonl | grep -q '\"job\":null'"
say show 1 -o json
say jobs -o jsonl
say checkpoint ls 1 -o jsonl
say logs 1 --rank 0
say events 1 -o jsonl
say nodes -o jsonl
say queue ls -o jsonl
say drain n1 --reason repair
say submit -q job.yaml --set name=waits --set restart.max=3
say explain 2 -o json
say cancel 2
say undrain n1
say show 2 -o json
say whoami -o json
tar -C "$work/jobs/1" -czf "$folder/run.tar.gz" --owner=0 --group=0 attempt-1/nodes
kill $node && wait $node || :
kill $recorder && wait $recorder || :
gzip -9nf "$out"
ls -l "$folder"
