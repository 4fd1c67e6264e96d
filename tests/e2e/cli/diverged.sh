#!/bin/bash
# Runs whose losses or gradients are no longer finite end as diverged, once, and keep what is sound.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
file=$(job_file hot)
hot=(--set resources.devices=2 --set train.lr=1000 --set train.clip=0 --set checkpoint.every=10 --set checkpoint.keep=1)

check_status a_diverged_run_fails 1 heddle local "$file" "${hot[@]}" --set train.steps=60
check_equal its_cause_is_said 1 "$(grep -cE '^job failed at step [0-9]+, .*: diverged: .*a gradient was not finite; lower train.lr' "$work/check.out")"
check_equal it_is_not_tried_again 1 "$(find "$work"/heddle-runs/latest/1 -maxdepth 1 -name 'attempt-*' | wc -l)"
check_equal no_checkpoint_holds_weights_that_stand_still 0 "$(find "$work"/heddle-runs -name 'step-000000[2-6]0' | wc -l)"
check_equal one_warning_says_why 1 "$(grep -c '^warning: no checkpoint at step 20: the gradients of the last [0-9]* steps were not finite' "$work/check.err")"
check_status so_does_one_that_ends_before_it_is_given_up 1 heddle local "$file" "${hot[@]}" --set train.steps=14
check_equal with_the_same_cause 1 "$(grep -cE '^job failed at step 1[34], .*: diverged: ' "$work/check.out")"

# finite, and of no use: the run ends as it would, and says so
check_status a_destroyed_run_succeeds 0 heddle local "$file" --set train.steps=30 --set train.lr=30 --set train.clip=0 --set resources.devices=1
check_equal with_a_warning 1 "$(cat "$work"/check.* | grep -cE '^warning: the loss ended at [0-9.]+, its lowest was [0-9.]+ at step [0-9]+')"
check_status a_sound_run_succeeds 0 heddle local "$file" --set resources.devices=1
check_equal without_one 0 "$(cat "$work"/check.* | grep -cE 'its lowest (loss )?was')"

# weights that hold a NaN: named before step 1
heddle local "$file" --set resources.devices=1 --set train.steps=2 >/dev/null 2>&1
dir=$(find "$work/heddle-runs" -name 'step-00000002' | head -n 1)
heddle checkpoint export "$dir" --out "$work/model" >/dev/null
printf '\0\0\300\177' | dd of="$work/model/model.safetensors" bs=1 seek=$(($(stat -c %s "$work/model/model.safetensors") - 4)) conv=notrunc 2>/dev/null
check_status a_nan_in_the_weights_is_a_mistake_of_the_input 1 heddle local "$file" --set resources.devices=1 --set train.steps=2 --set train.init_from="$work/model"
check_equal by_tensor_and_file 1 "$(grep -cE '^job failed: .*/model: model.safetensors: tensor [a-z_.0-9]+ holds values that are not finite' "$work/check.out")"
check_equal before_step_1 0 "$(grep -c '^step' "$work/check.out")"
finish
