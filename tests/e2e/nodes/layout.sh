#!/bin/bash
# Tensor and context parallelism, over several nodes: tp groups stay whole, people see how ranks stand, and neither
# changes what is learned. Each daemon on this machine stands for a node.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

curve() { # JOB: step and loss
    heddle watch "$1" -o jsonl | sed -nE 's/^\{"type":"step".*"step":([0-9]+),.*"loss":([^,}]*).*/\1 \2/p' | sort -n
}
fact_of() { heddle show "$1" | sed -nE "s/^$2 +//p"; } # JOB NAME
runs() { # NAME JOB: waits for its good end
    check "$1" timeout 200 "$HEDDLE_BIN/heddle" wait "$2"
}
# far OLD NEW: the steps whose losses differ by more than rounding can explain in so few steps
far() { join "$1" "$2" | awk '{ d = $2 - $3; if (d < 0) d = -d; if (d > 1e-4) print $1, d }'; }

file=$(job_file parted)
job() { submit "$file" --set train.steps=10 --set resources.devices=4 "$@"; }

start_controller
start_node c cpu:4:1
plain=$(job)
runs a_job_without_groups_trains "$plain"
pairs=$(job --set parallel.tp=2)
runs groups_of_two_train_on_one_node "$pairs"
check_equal ranks_stand_on_two_axes 1 "$(fact_of "$pairs" layout | grep -c '^tp 2 x cp 1 x dp 2 x pp 1, sequence parallel, ')"
curve "$plain" >"$work/plain"
curve "$pairs" >"$work/pairs"
check_equal every_step_is_there 10 "$(join "$work/plain" "$work/pairs" | wc -l)"
check_equal and_no_loss_is_another '' "$(far "$work/plain" "$work/pairs")"
rings=$(job --set parallel.tp=2 --set parallel.cp=2)
runs sequences_are_shared_out_too "$rings"
check_equal ranks_stand_on_three_axes 1 "$(fact_of "$rings" layout | grep -c '^tp 2 x cp 2 x dp 1 x pp 1, sequence parallel, ')"
curve "$rings" >"$work/rings"
check_equal every_step_of_it_is_there 10 "$(join "$work/plain" "$work/rings" | wc -l)"
check_equal and_its_losses_are_no_others '' "$(far "$work/plain" "$work/rings")"
check the_large_node_takes_nothing_new heddle drain c --reason "the others are to work"

start_node a cpu:3:1
spread=$(job --set parallel.tp=2)
check_equal a_third_device_is_of_no_use \
    "needs 4 cpu devices, on each node a multiple of parallel.tp = 2; a has 3 (2 in whole tp groups), c is drained: the others are to work" \
    "$(fact_of "$spread" reason)"
start_node b cpu:3:1
runs groups_of_two_train_on_two_nodes "$spread"
check_equal no_group_is_on_two_nodes '0-1 on a, 2-3 on b' "$(fact_of "$spread" ranks)"
check_equal every_loss_is_the_same "$(cat "$work/pairs")" "$(curve "$spread")"
finish
