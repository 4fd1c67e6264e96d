#!/bin/bash
# heddled --doctor, and what people read who want a GPU where there is none.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
doctor() { "$HEDDLE_BIN/heddled" --doctor "$@"; }
# a machine whose heddle-worker answers so (tests/unit/daemon/fake_worker.c)
with_gpus() { FAKE_GPUS="{\"problem\":\"$1\",\"log_problem\":\"\",\"libraries\":\"\",\"cudnn\":\"9.28.0\",\"gpus\":[$2]}" doctor --worker "$HEDDLE_BUILD_DIR/tests/fake_worker" "${@:3}"; }
# gpu N PROBLEM: one GPU of such an answer
gpu() { printf '{"uuid":"GPU-%s","name":"Stand-in H100","bus":"0000:1%s:00.0","problem":"%s","fault":"","memory_bytes":85899345920,"fault_at":0}' "$1" "$1" "${2:-}"; }
# look NAME STATUS COMMAND...: as check_status; what it printed stays
look() {
    check_status "$@"
    cp "$work/check.out" "$work/seen.out"
    cp "$work/check.err" "$work/seen.err"
}
# says WORDS: the output of the last look has them
says() { grep -qF -- "$1" "$work/seen.out"; }
# problems_of N: how many GPU N has
problems_of() { grep -c "^gpu $1  *problem" "$work/seen.out"; }

look two_gpus_one_of_them_broken 1 with_gpus "" "$(gpu 0),$(gpu 1 "it fell off the bus")"
check the_version_of_cudnn_is_said says "attention can be by cuDNN 9.28.0 (HEDDLE_CUDA_ATTENTION=cudnn)"
check a_gpu_is_described says "Stand-in H100, GPU-0, 0000:10:00.0, 80.0 GiB"
check_equal what_is_wrong_is_said_of_the_broken_one "0 1" "$(problems_of 0) $(problems_of 1)"
check its_reason_is_shown says "it fell off the bus"
CUDA_VISIBLE_DEVICES=0 look what_hides_gpus_is_no_problem 0 with_gpus "" "$(gpu 0)"
check it_is_named says "CUDA_VISIBLE_DEVICES=0 is set here"

# wrong only where there is a GPU for it
on_the_bus=$(cat /sys/bus/pci/devices/*/vendor 2>/dev/null | grep -c 0x10de)
look a_driver_that_does_not_start $((on_the_bus > 0)) with_gpus "the kernel's module is not loaded" ""
check its_reason_is_shown_too says "the kernel's module is not loaded"
look json_is_for_programs 1 with_gpus "" "$(gpu 0),$(gpu 1 "it fell off the bus")" -o json
check it_has_the_kind says '"kind":"Doctor"'
check it_has_the_levels says '"area":"gpu 0","level":"ok"'
check_status a_door_that_is_shut_is_a_problem 1 doctor --controller "unix:$work/nobody" --state-dir "$work/state"
check nothing_is_made_by_looking test ! -e "$work/state"
check_status jobs_that_are_not_visible_are_a_problem 1 doctor --jobs-dir "$work/none"
check_status its_options_are_its_own 2 "$HEDDLE_BIN/heddled" --state-dir "$work/state" -o json

# a job that wants a GPU, on a machine that has none
file=$(job_file wants)
look device_cuda_without_a_gpu_fails 6 heddle local "$file" --set resources.device_type=cuda
check_equal one_line_says_why 1 "$(grep -c 'no GPU can be used: .*; heddled --doctor tells more' "$work/seen.err")"
check auto_takes_the_cpu_then heddle local "$file" --set train.steps=2 --state-dir "$work/auto"
check_equal one_line_says_that 1 "$(cat "$work"/auto/latest/heddled.log | grep -c 'no GPU can be used: .*; the CPU is used')"

look a_plan_for_gpus_needs_one 2 heddle plan "$file" --set resources.device_type=cuda
check_equal that_is_said_too 1 "$(grep -c 'no GPU of this machine can be used' "$work/seen.err")"
check a_plan_for_whatever_there_is_does_not heddle plan "$file"

export HEDDLE_CONTROLLER=unix:$work/c.sock
start_controller && start_node n1 cpu:2
job=$(submit "$file" --set resources.device_type=cuda)
check_equal on_a_cluster_it_waits_and_says_for_what \
    "needs 2 cuda devices; no node has a cuda device (heddled --doctor on a node with GPUs says why)" \
    "$(heddle show "$job" -o json | member reason)"
finish
