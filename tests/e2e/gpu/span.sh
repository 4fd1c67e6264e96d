#!/bin/bash
# span.sh [all]: jobs on the GPUs of several nodes, on the GPU's emulator. Two daemons of this machine
# stand for two nodes, a and b, of two GPUs each, and `four` for one of four GPUs. NCCL is emulated between the
# ranks' processes (tests/cudasim/nccl_wire.h): shared memory in a node, TCP between nodes. With `all`
# also pipelines, ZeRO 3, and the death of a daemon and of a supervisor.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

export HEDDLE_CUDA_PLUGIN=$HEDDLE_BUILD_DIR/lib/libheddle_cudasim.so
# The stand-in for NCCL has Unix streams, which ranks that are locked in may not open.
gpu_node() { # NAME GPUS [VARIABLE=VALUE...]: it and its ranks do not end with this script, but guard ends them
    local name=$1 gpus=$2
    shift 2
    env NCCL_HOSTID="$name" HD_CUDASIM_DEVICES="$gpus" "$@" "$HEDDLE_BIN/heddled" --state-dir "$work/$name" \
        --node-name "$name" --devices cuda --data-address 127.0.0.1 --isolation off >>"$work/$name.log" 2>&1 &
    node_pids[$name]=$!
    await 30 node_is "$name" ready || not_ok "start_node_$name" "$(tail -n 3 "$work/$name.log")"
}
cat >"$work/job.yaml" <<END
name: spread
model: {family: llama, layers: 2, hidden: 32, heads: 2, kv_heads: 2, ffn_hidden: 32, context: 16}
data: {train: [corpus.txt]}
train: {steps: 12, global_batch: 4, lr: 3e-3, precision: fp32}
parallel: {micro_batch: 1, tp: 2}
resources: {device_type: cuda, devices: 4}
checkpoint: {every: 0, keep: 0}
END
head -c 4000 "$HEDDLE_SOURCE_DIR/LICENSE" >"$work/corpus.txt"
job() { submit "$work/job.yaml" "$@"; }
ends_well() { check "$1" timeout 100 "$HEDDLE_BIN/heddle" wait "$2"; } # NAME JOB
# what was learned, in every bit: losses and norms as they were reported (a step that was made again
# counts once if it is the same), and the last checkpoint
curve() {
    heddle watch "$1" -o jsonl |
        sed -nE 's/^\{"type":"step".*"step":([0-9]+),.*"loss":([^,}]*),.*"grad_norm":([^,}]*).*/\1 \2 \3/p' | sort -u
}
weights() { (cd "$(find "$work/jobs/$1" -path '*checkpoints/step-*12' | tail -n 1)" && cksum rank-*.safetensors); }
ranks_of() { heddle show "$1" | sed -nE 's/^ranks +//p'; }
log_says() { cat "$work/jobs/$1"/attempt-1/logs/rank-*.log | grep -cE "$2"; } # JOB PATTERN
rank_pid() { # NODE RANK
    local pid
    for pid in $(ranks_below "${node_pids[$1]}"); do
        tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q -- "--rank $2 " && printf '%s\n' "$pid"
    done
}
all_ranks() { ranks_below "${node_pids[a]}" && ranks_below "${node_pids[b]}"; }
gone() { # PID...
    local pid
    for pid; do [ ! -d "/proc/$pid" ] || grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || return 1; done
}
# learns_as NAME JOB OTHER
learns_as() {
    check_equal "$1_every_loss_and_norm_is_the_same" "$(curve "$3")" "$(curve "$2")"
    check_equal "$1_there_are_twelve" 12 "$(curve "$2" | wc -l)"
    check_equal "$1_every_weight_is_the_same" "$(weights "$3")" "$(weights "$2")"
}

start_controller
gpu_node four 4
here=$(job)
ends_well four_gpus_of_one_node_train "$here"
check_equal no_byte_of_one_node_went_by_tcp "4 0" \
    "$(log_says "$here" 'rank . of 4: 3 peers by shared memory, 0 by TCP') $(log_says "$here" 'bytes by shared memory, [1-9]')"
if [ "${1:-}" = all ]; then
    piped=$(job --set parallel.pp=2)
    ends_well a_pipeline_on_one_node_trains "$piped"
    sharded=$(job --set parallel.zero=3)
    ends_well zero_3_on_one_node_trains "$sharded"
fi
check four_gets_nothing_new heddle drain four --reason "the others are to work"

gpu_node a 2
# not_mixed NAME WHAT VARIABLE=VALUE: with it b is not mixed with a, and people see what each of the two has
not_mixed() {
    gpu_node b 2 "$3"
    job=$(job)
    check_equal "$1" 2 \
        "$(heddle show "$job" | grep -oE '(a|b) has 2 \(jobs only with nodes that compute with [^)]*\)' | grep -oE "$2" | sort -u | wc -l)"
    kill -TERM "${node_pids[b]}" && wait "${node_pids[b]}"
}
if [ "${1:-}" = all ]; then
    not_mixed another_version_of_cublaslt_is_not_mixed_in ', cuBLASLt-13\.[12]\.0, ' HD_CUDASIM_CUBLASLT_VERSION=130200
    heddle cancel "$job" >/dev/null
    not_mixed another_kind_of_gpu_is_not_mixed_in 'with (Emulated device|Another GPU), ' HD_CUDASIM_NAME='Another GPU'
    heddle cancel "$job" >/dev/null
fi
not_mixed another_version_of_nccl_is_not_mixed_in 'Emulated device, .*, NCCL 2\.2(8\.9|7\.5)\)' HD_CUDASIM_NCCL_VERSION=22705
gpu_node b 2
ends_well two_gpus_of_two_nodes_each_train "$job"
check_equal tp_groups_are_within_a_node '0-1 on a, 2-3 on b' "$(ranks_of "$job")"
learns_as two_nodes "$job" "$here"
check_equal bytes_between_nodes_go_by_tcp_from_the_data_address "4 4" \
    "$(log_says "$job" 'rank . of 4: 1 peers by shared memory, 2 by TCP from 127.0.0.1') $(log_says "$job" 'bytes by shared memory, [1-9]')"
more=$(heddle plan "$work/job.yaml" --devices h100:4 | sed -nE "s/^on several nodes each takes (.*) more of its host's memory, .*/\1/p")
check_equal what_nodes_take_beside_the_total_was_planned "$more more per rank, for messages between nodes" \
    "$(heddle events "$job" -o jsonl | sed -nE 's/.*"message":"([^"]* more per rank, [^"]*)".*/\1/p')"

# A failure on one node ends the attempt on both within five seconds, by its name; then training goes on.
steps_of() { cat "$work/jobs/$1/attempt-$2/logs/rank-0.log" 2>/dev/null | grep -c ' step [0-9]*: loss '; }
goes_on() { # NAME JOB PID... : ends by itself in a new attempt; the first ended in time
    local name=$1 job=$2 begin=${EPOCHREALTIME/[.,]/}
    shift 2
    await 20 gone "$@"
    check "${name}_all_ranks_end_within_five_seconds" test $(((${EPOCHREALTIME/[.,]/} - begin) / 1000)) -le 5000
    ends_well "${name}_it_goes_on" "$job"
    check_equal "${name}_in_a_second_attempt" 2 "$(find "$work/jobs/$job" -maxdepth 1 -name 'attempt-*' | wc -l)"
}
job=$(job --set checkpoint.every=2)
check it_trains await 60 eval '[ "$(steps_of $job 1)" -ge 2 ]'
pids=$(all_ranks)
kill -KILL "$(rank_pid b 3)"
goes_on a_killed_rank "$job" $pids
check_equal the_rank_is_named 1 "$(heddle events "$job" -o jsonl | grep -c '"attempt 1: rank_exit: rank 3 on b')"
learns_as after_a_killed_rank "$job" "$here"

if [ "${1:-}" = all ]; then
    job=$(job --set parallel.pp=2)
    ends_well a_pipeline_over_two_nodes_trains "$job"
    check_equal its_stages_are_on_different_nodes '0-1 on a, 2-3 on b' "$(ranks_of "$job")"
    learns_as a_pipeline "$job" "$piped"
    job=$(job --set parallel.zero=3)
    ends_well zero_3_over_two_nodes_trains "$job"
    learns_as zero_3 "$job" "$sharded"

    # a supervisor's death is its share's; a daemon's is nobody's
    job=$(job --set checkpoint.every=2)
    check it_trains_again await 60 eval '[ "$(steps_of $job 1)" -ge 2 ]'
    pids=$(all_ranks)
    kill -KILL $(below "${node_pids[b]}" | while read -r pid; do
        [ "$(cat "/proc/$pid/comm")" = heddle-supervis ] && echo "$pid"
    done)
    goes_on a_killed_supervisor "$job" $pids
    learns_as after_a_killed_supervisor "$job" "$here"
    job=$(job)
    check it_trains_once_more await 60 eval '[ "$(steps_of $job 1)" -ge 1 ]'
    kill -KILL "${node_pids[b]}"
    gpu_node b 2
    ends_well a_killed_daemon_ends_nothing "$job"
    learns_as after_a_killed_daemon "$job" "$here"

    # a rank that dies on a node without a daemon is heard of all the same: by the ranks
    job=$(job --set checkpoint.every=2)
    check it_trains_for_another_death await 60 eval '[ "$(steps_of $job 1)" -ge 2 ]'
    pids=$(all_ranks) victim=$(rank_pid b 3)
    kill -KILL "${node_pids[b]}"
    kill -KILL "$victim"
    begin=${EPOCHREALTIME/[.,]/}
    await 20 gone $pids
    check without_a_daemon_all_ranks_end_within_five_seconds test $(((${EPOCHREALTIME/[.,]/} - begin) / 1000)) -le 5000
    check_equal and_name_the_dead_rank 2 \
        "$(grep -lE 'rank 3 (died first|was killed by signal 9)' "$work/jobs/$job"/attempt-1/logs/rank-[01].log | wc -l)"
    gpu_node b 2
    ends_well and_the_job_goes_on "$job"
    learns_as after_a_death_without_a_daemon "$job" "$here"
fi

long=$(job --set train.steps=10000)
check the_long_job_trains await 60 eval '[ "$(steps_of $long 1)" -ge 1 ]'
check cancel_is_accepted heddle cancel "$long"
check_status it_is_cancelled 1 timeout 60 "$HEDDLE_BIN/heddle" wait "$long"
check its_checkpoint_is_whole heddle checkpoint verify "$long"
finish
