#!/bin/bash
# A step whose loss is far above those before it (train.guard): what each action does, on two ranks.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
# A step reads 4 x 32 bytes in order: 70 steps of text, one of bytes that no text has, then the same text.
{
    head -c $((70 * 128)) "$HEDDLE_SOURCE_DIR/LICENSE"
    for _ in {1..16}; do printf '\201\302\203\304\205\306\207\310'; done
    cat "$HEDDLE_SOURCE_DIR/LICENSE" # once more, which surprises less
} >"$work/corpus.txt"
cat >"$work/guard.yaml" <<END
name: guard
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 32}
data: {train: [corpus.txt], order: sequential}
train: {steps: 80, global_batch: 4, lr: {peak: 3e-3, warmup: 2}, precision: fp32, guard: {spike: 4, action: skip}}
checkpoint: {every: 20, keep: 0}
resources: {devices: 2}
hang: {step: 5m, action: tell}
END
steps() { sed -nE 's/^\{"type": *"step",.*"step": *([0-9]+),.*/\1/p' "$1" | tr '\n' ' '; }
guards() { grep -oE '"kind": *"guard",.*' "$1" | grep -oE '"message": *"[^"]*"'; }

check_status a_run_skips_its_spike 0 heddle local "$work/guard.yaml" --dir skip -o jsonl
check_equal and_says_which_and_why 1 "$(guards "$work/check.out" | grep -cE 'step 71 is a spike: its (loss|gradient norm) of [0-9.]+ is above [0-9.]+, which is 4 standard deviations above the mean of the last 200 steps that were none; no weight was changed by it"$')"
check_equal once 1 "$(guards "$work/check.out" | wc -l)"
check_equal each_step_comes_once "$(seq 1 80 | tr '\n' ' ')" "$(steps "$work/check.out")"
cmp -s "$(find "$work/heddle-runs/skip" -path '*step-00000060/rank-00000.safetensors')" "$(find "$work/heddle-runs/skip" -path '*step-00000080/rank-00000.safetensors')"
check_equal it_trains_on 1 $?

check_status a_run_stops_at_its_spike 1 heddle local "$work/guard.yaml" --dir stop --set train.guard.action=stop
check_equal as_diverged 1 "$(grep -cE '^job failed at step 71, .*: diverged: .*step 71 is a spike: its ' "$work/check.out")"
check_equal its_last_line_skips_it 1 "$(tail -n 1 "$work/check.err" | grep -c -- '--set train.guard.action=skip')"
check_equal it_is_tried_once 1 "$(find "$work/heddle-runs/stop/1" -maxdepth 1 -name 'attempt-*' | wc -l)"
check_equal its_weights_are_kept 1 "$(find "$work/heddle-runs/stop" -path '*step-00000071/manifest.json' | wc -l)"
check_status from_there_it_goes_on 0 heddle local --resume "$work/heddle-runs/stop" --set train.guard.action=skip
cmp -s "$(find "$work/heddle-runs/stop" -path '*step-00000080/rank-00000.safetensors')" "$(find "$work/heddle-runs/skip" -path '*step-00000080/rank-00000.safetensors')"
check_equal to_the_weights_of_the_run_that_skipped 0 $?

check_status a_run_goes_back_from_its_spike 0 heddle local "$work/guard.yaml" --dir back --set train.guard.action=rollback -o jsonl
check_equal to_its_last_checkpoint 1 "$(guards "$work/check.out" | grep -cE 'step 71 is a spike: .*; training went back to the checkpoint of step 60, and skips the 11 batches since then"$')"
check_equal and_does_those_steps_again "$({ seq 1 71; seq 61 80; } | tr '\n' ' ')" "$(steps "$work/check.out")"
check_equal in_one_attempt 1 "$(find "$work/heddle-runs/back/1" -maxdepth 1 -name 'attempt-*' | wc -l)"
check_equal what_is_left_out_is_kept 1 "$(grep -cE '"data_skipped": *11' "$(find "$work/heddle-runs/back" -path '*step-00000080/manifest.json')")"

check_status a_limit_that_is_no_duration_is_refused 2 heddle validate "$work/guard.yaml" --set hang.step=soon
check_equal with_what_to_write 1 "$(cat "$work/check.err" "$work/check.out" | grep -cF "hang.step: 'soon' is no duration; write 90s, 20m or 1h30m, at least 1s, or auto")"
check_equal silences_are_kept_for_the_next_attempt 1 "$(grep -c '^training [0-9]' "$work/heddle-runs/skip/1/silences")"
finish
