#!/bin/bash
# heddled --doctor, and what people read who want a GPU where there is none.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
doctor() { "$HEDDLE_BIN/heddled" --doctor "$@"; }
# a machine whose driver answers as $STANDIN_NVML says (tests/unit/gpu/standin_nvml.c)
with_driver() { LD_LIBRARY_PATH=$HEDDLE_BUILD_DIR/tests/nvml/whole STANDIN_NVML=$1 doctor "${@:2}"; }
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

look two_gpus_one_of_them_ill 1 with_driver "gpus=2 ecc=1 narrow=1"
check a_gpu_is_described says "Stand-in H100, GPU-00000000-0000-0000-0000-000000000000, 0000:10:00.0, 80.0 GiB"
check its_driver_too says "580.65.06, for CUDA up to 13.0"
check_equal what_ails_one_is_told_of_it "1 3" "$(problems_of 0) $(problems_of 1)" # a link is down in both
check an_error_has_a_hint says "-> drain the node and reset the GPU"

# wrong only where there is a GPU for it
on_the_bus=$(cat /sys/bus/pci/devices/*/vendor 2>/dev/null | grep -c 0x10de)
look a_driver_that_does_not_start $((on_the_bus > 0)) with_driver "init=9"
check its_reason_is_shown says "the kernel's module is not loaded"
look json_is_for_programs 1 with_driver "gpus=1" -o json
check it_has_the_kind says '"kind":"Doctor"'
check it_has_the_levels says '"area":"gpu 0","level":"ok"'
check_status a_door_that_is_shut_is_a_problem 1 doctor --controller "unix:$work/nobody" --state-dir "$work/state"
check nothing_is_made_by_looking test ! -e "$work/state"
check_status jobs_that_are_not_visible_are_a_problem 1 doctor --jobs-dir "$work/none"
check_status its_options_are_its_own 2 "$HEDDLE_BIN/heddled" --state-dir "$work/state" -o json

# a job that wants a GPU, on a machine that has none
file=$(job_file wants)
look device_cuda_without_a_gpu_fails 6 heddle local "$file" --set resources.device=cuda
check_equal one_line_says_why 1 "$(grep -c 'no GPU can be used: .*; heddled --doctor tells more' "$work/seen.err")"
check auto_takes_the_cpu_then heddle local "$file" --set train.steps=2 --state-dir "$work/auto"
check_equal one_line_says_that 1 "$(cat "$work"/auto/*/heddled.log | grep -c 'no GPU can be used: .*; the CPU serves')"

look a_plan_for_gpus_needs_one 2 heddle plan "$file" --set resources.device=cuda
check_equal that_is_said_too 1 "$(grep -c 'no GPU of this machine can be used' "$work/seen.err")"
check a_plan_for_whatever_there_is_does_not heddle plan "$file"

export HEDDLE_CONTROLLER=unix:$work/c.sock
start_controller && start_node n1 cpu:2
job=$(submit "$file" --set resources.device=cuda)
check_equal on_a_cluster_it_waits_and_says_for_what \
    "needs 2 cuda devices on one node; no node has a cuda device (heddled --doctor on a node with GPUs says why)" \
    "$(heddle show "$job" -o json | member reason)"
finish
