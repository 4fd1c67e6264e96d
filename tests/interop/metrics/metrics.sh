#!/bin/bash
# TensorBoard reads a job that was killed and went on: one value per step, each the last one's.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python tensorboard_reads_a_restarted_job tensorboard

start_controller
start_node n1 cpu:2
job=$(submit "$(job_file seen)" --set train.steps=400 --set checkpoint.every=100)
await 60 steps_at_least "$job" 150 # 50 steps behind a checkpoint
kill -KILL $(ranks_below "${node_pids[n1]}" | head -n 1)
check it_ends heddle wait "$job"
heddle watch "$job" -o jsonl >"$work/watched" 2>&1
check_equal it_had_two_attempts 2 "$(ls "$work/jobs/$job/tensorboard" | wc -l)"
check tensorboard_reads_a_restarted_job "$python" "$HEDDLE_SOURCE_DIR/tests/interop/metrics/read_back.py" \
    "$work/jobs/$job/tensorboard" 400 "$work/jobs/$job"
cat "$work/check.out"
finish
