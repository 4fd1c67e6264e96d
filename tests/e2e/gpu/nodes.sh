#!/bin/bash
# A cluster of a node with a GPU and one without: who gets what, and what people see. The node with
# the GPU has a stand-in for heddle-worker (tests/unit/daemon/fake_worker.c), which only says so.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

export FAKE_GPUS='{"problem":"","log_problem":"","libraries":"cuda, NCCL 2.28.9","gpus":[{"uuid":"GPU-a","name":"Stand-in H100","bus":"0000:01:00.0",
"problem":"","fault":"","memory_bytes":85899345920,"fault_at":0}]}'
file=$(job_file small)
# where_is JOB: "DEVICE NODE" of its first rank
where_is() {
    heddle show "$1" -o json >"$work/show"
    printf '%s %s' "$(grep -o '"plan":{.*' "$work/show" | grep -o '"device":"[a-z]*"' | head -n 1 | member device)" "$(grep -o '"ranks":.*' "$work/show" | member node)"
}

start_controller
start_node plain cpu:2:1
start_node gpu cuda+cpu:2:1 --worker "$HEDDLE_BUILD_DIR/tests/fake_worker"

heddle nodes -o wide >"$work/nodes"
check_equal a_node_shows_its_kinds_of_devices "1 cuda, 2 cpu" "$(sed -n 's/^gpu .*  \(1 cuda.* cpu\)  .*/\1/p' "$work/nodes")"
heddle nodes -o jsonl >"$work/nodes"
check_equal a_gpu_has_a_uuid 1 \
    "$(grep -c '"index":0,"kind":"cuda","name":"Stand-in H100","uuid":"GPU-a","memory_bytes":[0-9.e+]*,"threads":[1-9]' "$work/nodes")"
check_equal a_processor_has_none 4 "$(grep -o '"kind":"cpu","name":"[^"]*","uuid":null' "$work/nodes" | wc -l)"

wanted=$(submit "$file" --set resources.device_type=cuda --set resources.devices=1 --set train.steps=3)
check a_job_for_a_gpu_ends_well heddle wait "$wanted"
check_equal it_was_where_the_gpu_is "cuda gpu" "$(where_is "$wanted")"
check its_rank_saw_this_gpu_alone grep -q 'sees GPU-a,' "$work/jobs/$wanted/attempt-1/logs/rank-0.log"
any=$(submit "$file" --set resources.devices=1 --set train.steps=3)
check a_job_for_anything_ends_well heddle wait "$any"
check_equal it_got_the_gpu_too "cuda gpu" "$(where_is "$any")"
two=$(submit "$file" --set resources.device_type=cuda)
check_equal two_gpus_are_not_to_be_had 1 \
    "$(heddle show "$two" -o json | grep -c '"needs 2 cuda devices; gpu has 1[^,]*, plain has 0"')"
cpu=$(submit "$file" --set resources.device_type=cpu --set train.steps=3)
check a_job_for_cores_is_not_behind_it heddle wait "$cpu"
check_equal it_was_on_cores cpu "$(where_is "$cpu" | cut -d' ' -f1)"
finish
