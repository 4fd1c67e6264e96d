#!/bin/bash
# A node of two GPUs, the second and third of its machine, is probed by the command, on the GPU's emulator and with the
# smallest sizes: each is measured by a process of its own and both together by NCCL, people see their figures, and plans
# go by them.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

export HEDDLE_CUDA_PLUGIN=$HEDDLE_BUILD_DIR/lib/libheddle_cudasim.so
export HD_CUDASIM_NAME='NVIDIA H100 80GB HBM3' HD_CUDASIM_DEVICES=3 NCCL_HOSTID=n1
cat >"$work/worker" <<END_OF_WORKER
#!/bin/bash
echo "\$@" >>"$work/asked"
[ "\$1" != probe ] || exec "$HEDDLE_BIN/heddle-worker" "\$@" --quick
exec "$HEDDLE_BIN/heddle-worker" "\$@"
END_OF_WORKER
chmod +x "$work/worker"
cat >"$work/job.yaml" <<END_OF_JOB
name: priced
model: {family: llama, layers: 2, hidden: 64, heads: 2, kv_heads: 2, ffn_hidden: 64, context: 16}
data: {train: [corpus.txt]}
train: {steps: 2, global_batch: 4, lr: 3e-3, precision: bf16}
resources: {device_type: cuda, devices: 1}
checkpoint: {every: 0, keep: 0}
END_OF_JOB
head -c 4000 "$HEDDLE_SOURCE_DIR/LICENSE" >"$work/corpus.txt"

start_controller
start_node n1 cuda:1,2 --worker "$work/worker" --isolation off # the stand-in for NCCL has Unix streams
measured() { heddle plan "$work/job.yaml" --live -o json | grep -o '"rates_measured":[a-z]*'; }
check_equal without_a_probe_times_are_by_data_sheets '"rates_measured":false' "$(measured)"

heddle probe n1 >"$work/figures" 2>"$work/notes"
check_equal a_node_of_gpus_is_probed 0 $?
check_equal its_gpus_are_named 1 "$(grep -cE '^probe --devices cuda:GPU-[0-9a-f-]+,GPU-[0-9a-f-]+ ' "$work/asked")"
for part in '^n1: probed [0-9.]*m?s ago' '^ +1 +[0-9.]+ +[0-9.]+ +[0-9.]+$' '^ +2 +[0-9.]+ +[0-9.]+ +[0-9.]+$' 'bf16 small [0-9.]+' \
    '^ +1 +X +[0-9.]+ [0-9.]+' 'all_reduce +2 +[-0-9.e]+ +[-0-9.e]+' 'all_to_all_v +2 '; do
    check_equal "it_shows_$(tr -cd 'a-z0-9' <<<"$part")" 1 "$(grep -cE "$part" "$work/figures")"
done
check_equal devices_have_the_numbers_of_heddle_nodes '"device_numbers":[1,2] "number":1 "number":2' \
    "$(heddle topo -o jsonl | grep -oE '"device_numbers":\[[0-9,]*\]|"number":[0-9]+' | tr '\n' ' ' | sed 's/ $//')"
check_equal they_are_by_nccl 1 "$(heddle topo -o jsonl | grep -c '"engine":"nccl"')"
check_equal then_times_are_measured '"rates_measured":true' "$(measured)"
job=$(submit "$work/job.yaml")
heddle wait "$job" >/dev/null 2>&1
check_equal jobs_go_by_it 1 "$(heddle show "$job" | grep -c '^step time .*predicted [0-9.]* [mu]\?s')"

# the file of a workstation: the same kind elsewhere; not another kind
"$HEDDLE_BIN/heddle-worker" probe --devices cuda:1 --quick --out "$work/one.json" 2>/dev/null
check_equal a_workstation_probes_its_gpu 0 $?
# the emulator's own clock goes on by 1 us with each launch
check_equal launches_are_timed_by_the_device 1.00e-06 \
    "$(grep -oE '"kernel":"(rope|gemm)"[^}]*' "$work/one.json" | grep -oE '[0-9.]+e-[0-9]+\]' | tr -d ']' | xargs -n 1 printf '%.2e\n' | sort -u)"
check_equal a_plan_takes_its_file 1 \
    "$(heddle plan "$work/job.yaml" --devices h100:1 --calibration "$work/one.json" | grep -c '^times are by measured rates')"
check_status another_kind_does_not_take_it 2 heddle plan "$work/job.yaml" --devices a100-80gb:1 --calibration "$work/one.json"
finish
