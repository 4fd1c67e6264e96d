#!/bin/bash
# A job for a GPU goes the whole way, from the job file to a checkpoint, on the GPU's emulator
# (tests/cudasim): its plug-in is loaded in place of the real one. What it learns is what a CPU learns.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

plugin=$HEDDLE_BUILD_DIR/lib/libheddle_cudasim.so
emulated() { HEDDLE_CUDA_PLUGIN=$plugin "$@"; }
unset HEDDLE_CONTROLLER
cat >"$work/job.yaml" <<END
name: small
model: {family: llama, layers: 2, hidden: 32, heads: 2, kv_heads: 1, ffn_hidden: 64, context: 32}
data: {train: [corpus.txt], val_split: 0.1}
train: {steps: 6, global_batch: 4, lr: 3e-3, precision: fp32}
parallel: {micro_batch: 2}
validate: {every: 6, batches: 1}
resources: {device_type: cuda}
checkpoint: {every: 3, keep: 0}
END
cp "$HEDDLE_SOURCE_DIR/LICENSE" "$work/corpus.txt"
# losses FILE: "train 1 5.5" and "validation 0 5.6" lines of a run's jsonl
losses() {
    sed -nE 's/^\{"type":"step",.*"step":([0-9]+),.*"loss":([0-9.e+-]+).*/train \1 \2/p;
        s/^\{"type":"validation",.*"step":([0-9]+),.*"loss":([0-9.e+-]+).*/validation \1 \2/p' "$1" | sort
}
# compare NAME BOUND A B: as many losses, the same steps, relative differences up to the bound
compare() {
    paste -d' ' <(losses "$3") <(losses "$4") | awk -v bound="$2" '
        NF != 6 || $1 != $4 || $2 != $5 { bad = 1; next }
        { d = ($3 - $6) / $6; if (d < 0) d = -d; if (d > worst) worst = d; n++ }
        END { printf "%d losses, worst %.2g", n, worst; exit !(n == 8 && !bad && worst <= bound) }' >"$work/compared"
    if [ $? = 0 ]; then ok "$1"; else not_ok "$1" "$(cat "$work/compared"): $(losses "$3" | tr '\n' ' ')"; fi
}
run() { # NAME ARG...
    local name=$1
    shift
    heddle local "$work/job.yaml" --state-dir "$work/$name" -o jsonl "$@" >"$work/$name.jsonl" 2>"$work/$name.err"
}

export XDG_CACHE_HOME=$work/cache # of all runs of a user
emulated run gpu
check_equal a_job_for_a_gpu_ends_well 0 $?
run cpu --set resources.device_type=cpu
check_equal and_one_for_cores 0 $?
check the_user_keeps_which_algorithms_were_fastest grep -q '^heddle choices 1$' \
    "$(find "$work/cache/heddle/gpu-choices" -name 'GPU-*' -type f | head -n 1)"
compare they_learn_the_same 1e-5 "$work/gpu.jsonl" "$work/cpu.jsonl"
check people_see_where_it_was grep -q 'on local: 1 cuda device, ' "$work/gpu.jsonl"
check and_so_does_the_rank grep -q 'reserved per rank, on the GPU' "$work/gpu.jsonl"
check_equal once_they_see_what_is_in_use_of_it 1 \
    "$(grep -c 'the plan has reserved .*; 0 B more are in use' "$work/gpu.jsonl")"

# four GPUs share the model, whose ranks are threads of one process; each rank finds the others whichever came first
generated() { HD_CUDASIM_DEVICES=$1 emulated heddle generate "$(find "$work/gpu" -mindepth 1 -maxdepth 1 -type d)" --device cuda --prompt 'The' --greedy --max-tokens 4 "${@:2}"; }
check_equal four_gpus_write_what_one_does "$(generated 1)" "$(generated 4 --tp 2 --pp 2 2>/dev/null)"

# A link to a file elsewhere: a rank that is locked in has loaded it before. (What ran of a copy is not noted, as it goes.)
mkdir "$work/elsewhere" "$work/linked"
cp "$plugin" "$work/elsewhere/"
ln -s "$work/elsewhere/libheddle_cudasim.so" "$work/linked/libheddle_cudasim.so"
(unset HEDDLE_CUDASIM_RAN; HEDDLE_CUDA_PLUGIN=$work/linked/libheddle_cudasim.so run linked --set train.steps=1 --set validate.every=0)
check_equal a_plug_in_behind_a_link_is_loaded 0 $?

# the memory of the plan is the memory: what the command says beforehand is what the rank reserved
run_dir=$(find "$work/gpu" -mindepth 1 -maxdepth 1 -type d)
resolved=$(find "$run_dir" -path '*/nodes/*/job')
check_equal its_resolved_job_has_the_device "resources.device cuda" "$(grep "^resources.device " "$resolved")"
check_equal a_plan_beforehand_has_its_bytes \
    "$(emulated "$HEDDLE_BIN/heddle-worker" memory --job "$resolved" | sed -nE 's/ *([0-9]+)  total.*/\1/p')" \
    "$(emulated heddle plan "$work/job.yaml" -o jsonl | sed -nE 's/.*"total_bytes":([0-9]+).*/\1/p')"

# where there is a device its process is measured, and not assumed: on the emulator it takes nothing
check_equal a_process_is_measured_where_there_is_a_device '"process_bytes":0,"process_measured":true' \
    "$(emulated heddle plan "$work/job.yaml" -o jsonl | grep -o '"process_bytes":[0-9]*,"process_measured":[a-z]*')"
check_equal and_elsewhere_it_is_assumed '"process_bytes":1073741824,"process_measured":false' \
    "$(heddle plan "$work/job.yaml" --devices h100:1 -o jsonl | grep -o '"process_bytes":[0-9]*,"process_measured":[a-z]*')"

# a checkpoint is one: cores go on from it and write with it
check it_writes heddle generate "$run_dir" --prompt 'The ' --max-tokens 4 --greedy
step=$(find "$run_dir" -type d -name 'step-*3')
run onwards --set resources.device_type=cpu --set "train.init_from=$step" --set train.steps=1
check_equal cores_start_from_its_weights 0 $?

# auto: the device computes bf16, so that is what it gets; the same within its 8 bits
emulated run auto --set resources.device_type=auto --set train.precision=auto
check_equal auto_takes_the_gpu 0 $?
check in_bf16 grep -qx 'train.precision bf16' "$(find "$work/auto" -path '*/nodes/*/job')"
compare which_learns_nearly_the_same 1e-2 "$work/auto.jsonl" "$work/cpu.jsonl"

# (The stand-in for NCCL has Unix streams, which ranks that are locked in may not open.)
# of a GPU of a known kind the controller finds the fastest layout that fits, and says what it expects
HD_CUDASIM_NAME='NVIDIA H100 80GB HBM3' HD_CUDASIM_DEVICES=2 emulated run priced --isolation off --set resources.devices=2
check_equal a_job_whose_layout_was_searched_ends_well 0 $?
check the_choice_is_told grep -qE '"kind":"layout",.*micro-batch 2, .*: predicted [0-9.e-]+ s a step' "$work/priced.jsonl"
compare which_learns_the_same 1e-5 "$work/priced.jsonl" "$work/cpu.jsonl"

# a rank that dies without a word has left its collectives where its supervisor finds them
emulated run killed --set train.steps=100000 --set restart.max=0 &
local_pid=$!
trained() { grep -q '"type":"step",.*"step":2,' "$work/killed.jsonl"; }
await 60 trained
kill -KILL $(ranks_below $local_pid)
wait $local_pid
check_equal a_killed_rank_fails_its_job 1 $?
check its_end_tells_its_last_collective \
    grep -q '"type":"end",.*signal 9.*\(it was in\|its last collective was\) [a-z_]* #[0-9]* of group world' "$work/killed.jsonl"

# the doctor sees the GPU that ranks would compute on
uuid=$(emulated "$HEDDLE_BIN/heddle-worker" gpus | member uuid)
emulated "$HEDDLE_BIN/heddled" --doctor >"$work/doctor"
check_equal the_doctor_sees_the_gpu 1 "$(grep -c "^gpu 0  *ok .*, $uuid, " "$work/doctor")"
check_equal and_nothing_is_wrong_with_it 0 "$(grep -c '^gpu .*problem' "$work/doctor")"
finish
