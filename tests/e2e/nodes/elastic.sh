#!/bin/bash
# A job on 2 to 4 devices whose memory holds no whole copy of its optimizer: with four it shares that (ZeRO 1), with two
# it is cut into pipeline stages. It goes from 4 devices to 2 when a node is lost, and back to 4, by itself, and learns
# what a run that nothing disturbs learns. Each daemon on this machine stands for a node.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

curve() { # JOB: step and loss; of steps that were made again the newest
    heddle watch "$1" -o jsonl | sed -nE 's/^\{"type":"step".*"step":([0-9]+),.*"loss":([^,}]*).*/\1 \2/p' |
        awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' | sort -n
}
fact_of() { heddle show "$1" | sed -nE "s/^$2 +//p"; } # JOB NAME
far() { join <(sort "$1") <(sort "$2") | awk '{ d = $2 - $3; if (d < 0) d = -d; if (d > 1e-4) print $1, d }'; }
has_said() { [ "$(says "$@")" -ge 1 ]; }
says() { heddle events "$1" -o jsonl | grep -c "$2"; }

cp "$HEDDLE_SOURCE_DIR/LICENSE" "$work/corpus.txt"
file=$work/elastic.yaml
cat >"$file" <<END
name: elastic
model: {family: llama, layers: 4, hidden: 128, heads: 4, ffn_hidden: 512, context: 16}
data: {train: [corpus.txt], val_split: 0.1}
train: {steps: 60, global_batch: 8, lr: 1e-3, precision: fp32}
validate: {every: 0, batches: 1}
parallel: {micro_batch: 2}
resources: {device_type: cpu, devices: {min: 2, max: 4}}
checkpoint: {every: 5}
restart: {max: 5}
END
# Bytes of a rank by `heddle plan`, which depend on the processor; on one: four devices 19.0 MiB whole, 13.4 with ZeRO 1;
# two 14.9 and more with ZeRO, 10.5 in two stages. The limit lies between four with ZeRO 1 and two with ZeRO.
needs() { # DEVICES SET...
    local devices=$1
    shift
    heddle plan "$file" --set resources.devices="$devices" --set resources.threads=1 "$@" -o json |
        grep -o '"total": *[0-9]*' | grep -o '[0-9]*' | sort -n | tail -1
}
share4=$(needs 4 --set parallel.dp=4 --set parallel.zero=1)
share2=$(needs 2 --set parallel.dp=2 --set parallel.zero=2)
memory=$(((share4 + share2) / 2))

start_controller --node-lost-after 30
start_node a cpu:2:1 --device-memory $memory
start_node b cpu:2:1 --device-memory $memory
check_status the_file_is_valid 0 heddle validate "$file" --controller "$HEDDLE_CONTROLLER"
check_equal with_the_layout_that_it_would_get 1 \
    "$(grep -c '^it would start now: pp 1 and zero 1 chosen to fit: pp 1 and zero 0 would take .* of a device.s [0-9.]* MiB' "$work/check.out")"
job=$(submit "$file")
await 60 steps_at_least "$job" 7 || not_ok it_starts "$(heddle show "$job")"
check_equal four_devices_share_the_optimizer 1 "$(says "$job" 'attempt 1 on a, b: 4 cpu devices, dp 4, zero 1')"
check_equal and_it_is_said_why 1 "$(says "$job" '"kind":"layout".*pp 1 and zero 1 chosen to fit')"

kill -KILL "${node_pids[b]}"
await 120 has_said "$job" "attempt 2 on a: " || not_ok it_goes_on "$(heddle show "$job")"
check_equal two_devices_are_two_stages 1 "$(says "$job" 'attempt [0-9]* on a: 2 cpu devices, tp 1 x cp 1 x dp 1 x pp 2 (1f1b)')"
before=$(heddle show "$job" -o jsonl | sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p')
await 60 steps_at_least "$job" $((before + 5)) || not_ok it_trains_on "$(heddle show "$job")"
start_node b cpu:2:1 --device-memory $memory
check it_is_asked_to_use_both_nodes heddle requeue "$job"
check it_ends_well timeout 200 "$HEDDLE_BIN/heddle" wait "$job"
check_equal four_devices_share_again 2 "$(says "$job" ' on a, b: 4 cpu devices, dp 4, zero 1')"

whole=$(submit "$file" --set resources.devices=4)
check a_run_that_nothing_disturbs timeout 200 "$HEDDLE_BIN/heddle" wait "$whole"
curve "$job" >"$work/disturbed"
curve "$whole" >"$work/whole"
check_equal every_step_is_there 60 "$(join <(sort "$work/disturbed") <(sort "$work/whole") | wc -l)"
check_equal and_no_loss_is_another '' "$(far "$work/disturbed" "$work/whole")"

# nothing fits: the job says so at once, with both numbers and what would help
none=$(submit "$file" --set model.layers=64 --set resources.devices=2)
check_status a_job_that_fits_nowhere_fails 1 timeout 60 "$HEDDLE_BIN/heddle" wait "$none"
check_equal and_says_what_would_help 1 \
    "$(fact_of "$none" reason | grep -cE 'no layout fits 2 devices: pp 2 with zero [0-3], which takes least, needs .* of a device.s [0-9.]* MiB; .*parallel.recompute: full')"
# fewer devices than fit: it waits for more
check node_b_takes_no_more heddle drain b
waits=$(submit "$file" --set parallel.pp=1)
says_how_many() { fact_of "$waits" reason | grep -q 'needs 4 cpu devices.*fewer are too few: no layout fits 2 devices'; }
check a_job_waits_for_devices_that_are_enough await 30 says_how_many
check until_they_are_there heddle undrain b
await 60 steps_at_least "$waits" 1 || not_ok it_then_starts "$(heddle show "$waits")"
check_equal and_then_starts_with_them 1 "$(says "$waits" ' on a, b: 4 cpu devices, dp 4, zero 1')"
finish
