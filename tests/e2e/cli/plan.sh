#!/bin/bash
# heddle plan: what is said before is what the ranks reserve, part by part, on this very machine.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
file=$(job_file planned)
# parts JSON: "PART BYTES" lines of the first rank, in the order of the JSON
parts() { head -n 1 | grep -o '"[a-z_]*_bytes":[0-9]*' | sed -n '/weights/,/exchange/p' | sed -E 's/"(.*)_bytes":/\1 /'; }
# reserved JOB_FILE: the same from the program that computes
reserved() { "$HEDDLE_BIN/heddle-worker" memory --job "$1" | sed '$d' | awk '{ print $2, $1 }'; }

for precision in fp32 bf16; do
    heddle plan "$file" --set train.precision=$precision -o jsonl >"$work/plan.jsonl"
    check_equal "an_item_for_each_rank_$precision" 2 "$(grep -c '"type":"rank_plan"' "$work/plan.jsonl")"
    heddle local "$file" --set train.steps=1 --set train.precision=$precision --state-dir "$work/runs-$precision" \
        -o jsonl >"$work/run.jsonl" 2>"$work/run.err"
    resolved=$(find "$work/runs-$precision" -path '*/nodes/*/job')
    check_equal "plan_and_ranks_agree_in_every_part_$precision" "$(reserved "$resolved")" \
        "$(parts <"$work/plan.jsonl")"
    total=$(head -n 1 "$work/plan.jsonl" | sed -nE 's/.*"total_bytes":([0-9]+).*/\1/p')
    check_equal "the_total_is_the_reservation_$precision" "$total" \
        "$("$HEDDLE_BIN/heddle-worker" memory --job "$resolved" | sed -nE 's/ *([0-9]+)  total.*/\1/p')"
done

check_status for_people_too 0 heddle plan "$file"
check_equal with_a_line_for_each_part 1 "$(grep -c '^gradients ' "$work/check.out")"
check_status other_devices 0 heddle plan "$file" --devices cpu:4:1 -o jsonl
check_equal are_as_many_ranks 4 "$(wc -l <"$work/check.out")"
# 2 x 2 ranks, tp fastest; rank 2 takes what rank 0 takes. The vocabulary of 256 is even on both.
check_status two_axes 0 heddle plan "$file" --devices cpu:4:1 --set parallel.tp=2 -o jsonl
check_equal ranks_are_numbered_tp_fastest "0 0 0 1 1 0 1 1" \
    "$(grep -o '"dp":[01],"cp":0,"tp":[01]' "$work/check.out" | tr -cd '01 \n:,' | sed -E 's/:([01]),:0,:([01])/\1 \2/' | xargs)"
check_equal and_hold_equal_shares 1 "$(sed -E 's/.*"memory":([^}]*).*/\1/' "$work/check.out" | sort -u | wc -l)"
check_status the_layout_for_people 0 heddle plan "$file" --devices cpu:4:1 --set parallel.tp=2
check_equal says_how_ranks_stand 1 "$(grep -c '; tp 2 x cp 1 x dp 2 x pp 1, sequence parallel, ' "$work/check.out")"
check_equal and_equal_ranks_are_one_table 1 "$(grep -cE '^ranks (0-3|0, 2), each:$' "$work/check.out")"
check_status a_key_of_two_options_is_2 2 heddle plan "$file" --set resources.devices=1 --devices cpu:8:1
check_equal which_it_names 1 "$(grep -c -- '--set resources.devices=1 and --devices cpu:8:1 both give resources.devices; leave' "$work/check.err")"
check_status and_of_a_pin 2 heddle plan "$file" --devices h100:8 --set parallel.tp=2 --pin tp=4
check_status tp_that_does_not_divide_is_2 2 heddle plan "$file" --devices cpu:3 --set parallel.tp=3
check_status wrong_devices_are_2 2 heddle plan "$file" --devices gpu:1
check_equal which_names_the_kinds 1 "$(grep -c 'h100-pcie, .*b200' "$work/check.err")"

# a GPU that is nowhere near: its kind's data sheet. A product's time is its operations by the rate.
HEDDLE_CUDA_PLUGIN=none check_status a_gpu_that_is_not_here 0 heddle plan "$file" --devices h100:2 \
    --set train.precision=bf16 -o jsonl
check_equal is_planned_for_as_many_ranks 2 "$(wc -l <"$work/check.out")"
check_equal which_say_that_they_fit 2 "$(grep -c '"fits":true' "$work/check.out")"
check_equal at_the_rate_of_its_encoding "989.4" "$(head -n 1 "$work/check.out" |
    sed -E 's/.*"matrix_flops":([0-9.e+]+).*"data_sheet_products_ms":([0-9.e+-]+).*/\1 \2/' |
    awk '{ printf "%.1f", $1 / $2 * 1e-9 }')"
check_equal and_in_fp32_at_that "66.9" "$(heddle plan "$file" --devices h100:2 --set train.precision=fp32 -o jsonl |
    head -n 1 | sed -E 's/.*"matrix_flops":([0-9.e+]+).*"data_sheet_products_ms":([0-9.e+-]+).*/\1 \2/' |
    awk '{ printf "%.1f", $1 / $2 * 1e-9 }')"
sed 's/^resources: .*/resources: {device_type: cpu}/' "$file" >"$work/cores.yaml"
check_status also_of_a_job_for_cores 0 heddle plan "$work/cores.yaml" --devices b200:1
check_equal says_how_long_all_steps_take 1 "$(grep -c '^all [0-9]* steps take about [0-9]' "$work/check.out")"
check_equal says_whose_rates_these_are 1 "$(grep -c 'at the rates of its data sheet' "$work/check.out")"
check_equal and_how_it_fits 1 "$(grep -c "^of a GPU's memory: .* planned + 1.0 GiB for the process = .*, a little less than such GPUs report" "$work/check.out")"
check_equal where_it_does 0 "$(grep -c 'NOT fit' "$work/check.out")"
check_status one_of_a_batch_that_grows 0 heddle plan "$work/cores.yaml" --devices b200:1 --set 'train.batch_schedule=0:4 5:8'
check_equal does_not_as_steps_differ "1 0" \
    "$(grep -c '^train.batch_schedule, .* steps; plans' "$work/check.out") $(grep -c '^all [0-9]* steps' "$work/check.out")"
# 12 x 8192^2 x 64 parameters of 16 bytes and more are 770 GiB; it has 24 GB
HEDDLE_CUDA_ATTENTION=cudnn HEDDLE_CUDA_GLU=wgmma check_status or_that_none_does_which_is_2 2 heddle plan "$file" --devices l4:1 --set model.hidden=8192 --set model.heads=64 \
    --set model.layers=64
check_equal without_kernels_that_are_not_planned 'HEDDLE_CUDA_ATTENTION=cudnn HEDDLE_CUDA_GLU=wgmma ' \
    "$(sed -n 's/^note: \(.*\) is outside this plan.*/\1/p' "$work/check.out" | tr '\n' ' ')"
check_equal and_by_how_much 1 "$(grep -cE '^no layout fits: the one that takes least is .* over memory by .* on stage 0: needs [0-9.]+ [GM]iB of ' "$work/check.out")"
# more ranks than any engine connects: 4 of tp x 2 stages x dp 1024; a job to run still may not
check_status eight_thousand_ranks 0 heddle plan "$file" --devices h100:8192 --pin tp=4,pp=2,zero=0,recompute=none \
    --set train.global_batch=2048
check_equal are_planned_with_a_note 1 "$(grep -c '^note: it cannot run yet: the engine nccl connects at most 4096 ranks' "$work/check.out")"
check_equal and_a_line_for_each_stage 2 "$(grep -cE '^ +[01]  (embedding|layer|head)' "$work/check.out")"
check_status an_item_for_each_of_them 0 heddle plan "$file" --devices h100:1024 --pin tp=1,pp=1,zero=1,recompute=none --set train.global_batch=1024 -o jsonl
check_equal by_number "1024 1023" "$(wc -l <"$work/check.out") $(tail -n 1 "$work/check.out" | sed -E 's/.*"rank":([0-9]+),.*/\1/')"
check_status to_run_is_another_matter 2 heddle validate "$file" --set resources.devices=8192
# what is auto is chosen to fit; with room for it all there is no line about it
heddle plan "$file" --devices cpu:2:1 --device-memory 2M >"$work/check.out" # whether one fits depends on the processor
check_equal a_layout_is_chosen 1 "$(grep -cE '^(pp [12] and zero [0-3] chosen to fit: pp 1 and zero 0 would take|no layout fits 2 devices)' "$work/check.out")"
check_status a_pinned_layout_that_does_not_fit_is_1 1 heddle plan "$file" --devices cpu:2:1 --device-memory 1M --set parallel.zero=0 \
    --set parallel.pp=1
check_equal and_says_so 1 "$(grep -c '^it does NOT fit: a rank takes .* of the 1.0 MiB of --device-memory' "$work/check.out")"
check_status also_for_programs 1 heddle plan "$file" --devices cpu:2:1 --device-memory 1M --set parallel.zero=0 \
    --set parallel.pp=1 -o json
check_equal which_are_told_why 1 "$(grep -c 'a rank takes more memory than its device has' "$work/check.err")"
check_status with_much_memory 0 heddle plan "$file" --devices cpu:2:1 --device-memory 20000G
check_equal none_is 0 "$(grep -cE 'chosen to fit|no layout fits' "$work/check.out")"
check_status more_than_such_a_gpu_has 0 heddle plan "$file" --devices h100:2 --device-memory 5000G
check_equal is_said 1 "$(grep -c 'device-memory: 4.9 TiB is more than such a device has, which is ' "$work/check.err")"
check_status a_size_without_sense_is_2 2 heddle plan "$file" --devices cpu:2:1 --device-memory much
check_status gpus_of_two_nodes 0 heddle plan "$file" --devices h100:16 --pin tp=1,pp=1 --set train.global_batch=16
check_equal show_what_crosses_between_them 1 "$(grep -c ' cross between nodes of 8 devices$' "$work/check.out")"
check_status gpus_of_one_node 0 heddle plan "$file" --devices h100:8 --pin tp=1,pp=1 --set train.global_batch=16
check_equal have_nothing_between_nodes 0 "$(grep -c 'between nodes of' "$work/check.out")"
check_status threads_of_a_gpu_are_2 2 heddle plan "$file" --devices h100:2:4

# a cluster that is nowhere near, for a model that no single one of its devices holds; no data files
cat >"$work/cluster.yaml" <<'EOF'
groups:
  - {nodes: "n[1-4]", device: a100-80gb}
  - {nodes: "m[1-2]", device: l4}
devices_per_node: 8
tiers: [{name: leaf, nodes: 2, bandwidth: 25GB/s, latency: 6us}]
EOF
cat >"$work/large.yaml" <<'EOF'
name: large
model: {family: llama, layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn_hidden: 14336, vocab: 128256, context: 8192}
data: {train: [/nowhere/tokens.npy]}
train: {steps: 10, global_batch: 64, precision: bf16, lr: 1e-4}
resources: {devices: 16}
EOF
field() { grep -o "\"$1\":[^,}]*" "$work/check.out" | head -n 1 | sed 's/.*://'; } # of the first plan: the chosen one
check_status a_cluster 0 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" -o json
check_equal is_planned_without_its_data 1 "$(grep -c 'without the data: data.train' "$work/check.err")"
check_equal as_one_object "1 1" "$(wc -l <"$work/check.out") $(grep -c '^{"api_version":"heddle/v1","kind":"Plan",' "$work/check.out")"
check_equal on_the_faster_nodes '"n[1-4]" "a100-80gb" 16' "$(field group) $(field device) $(field devices)"
check_equal with_tp_within_a_node_that_fits "yes true true" \
    "$([ "$(field tp)" -le 8 ] && echo yes) $(field fits) $(field runnable)"
check_equal and_two_alternatives 3 "$(grep -o '"mfu":[0-9]' "$work/check.out" | wc -l)"
check_equal and_a_device_for_each_rank 16 "$(grep -oE '\[[01],[0-7]\]' "$work/check.out" | wc -l)"
check_status pinned_members 0 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" --pin tp=8,pp=2 \
    --pin recompute=full,zero=0 --top 1 -o json
check_equal stay "8 2 1 \"full\" 0" "$(field tp) $(field pp) $(field dp) $(field recompute) $(field zero)"
# the process, communicators and pages, and nothing that is on the host
check_status an_offloaded_optimizer 0 heddle plan "$work/large.yaml" --devices h100:8 --pin offload=optimizer,zero=0,tp=8 --top 1 -o json
check_equal is_not_in_the_devices_memory yes "$([ "$(field beside)" -gt 0 ] && [ "$(field optimizer)" -lt 100000000 ] && [ "$(field host)" -gt 10000000000 ] && echo yes)"
check_status a_tp_group_over_two_nodes_is_priced 0 heddle plan "$work/large.yaml" --devices h100:16 --pin tp=16 --top 1 -o json
check_equal and_cannot_run '16 false' "$(field tp) $(field runnable)"
check_status with_a_note 0 heddle plan "$work/large.yaml" --devices h100:16 --pin tp=16
check_equal that_says_why 1 "$(grep -c 'tp group are on one node, and parallel.tp = 16 does not divide the 8 devices of one' "$work/check.out")"
sed 's/^groups:/device: h100\nnodes: 16/; /^ /d; s/^devices_per_node: 8/devices_per_node: 1/; /^tiers/d' "$work/cluster.yaml" >"$work/ones.yaml"
check_status nodes_of_one_device 0 heddle plan "$work/large.yaml" --cluster "$work/ones.yaml" --set train.global_batch=1 --top 1 -o json
check_equal have_no_tp '1 true' "$(field tp) $(field runnable)"
check_status a_pin_that_is_given_twice_is_2 2 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" --pin tp=8 --pin pp=2,tp=4
check_equal and_named 1 "$(grep -c -- '--pin tp=8 and --pin tp=4 both give parallel.tp; leave one out' "$work/check.err")"
check_status so_are_segments_longer_than_the_model 2 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" --pin recompute=full:999
check_equal with_its_layers 1 "$(grep -c 'recompute: full: 999 is more than model.layers = ' "$work/check.err")"
check_status an_empty_cluster_file_is_2 2 heddle plan "$work/large.yaml" --cluster /dev/null
check_equal which_names_where_an_example_is 1 "$(grep -c 'docs/planning.md has an example' "$work/check.err")"
check_status an_illegal_pin_is_2 2 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" --pin tp=3
check_equal with_what_is_legal 1 "$(grep -c 'parallel.tp: 3 does not divide model.heads = 32; use ' "$work/check.err")"
# the remedy is what the search may still choose, and the option is the one that was given
check_status a_micro_batch_of_no_layout_is_2 2 heddle plan "$work/large.yaml" --devices h100:16 --pin pp=2,micro_batch=3
check_equal by_its_pin 1 "$(grep -c '^--pin micro_batch=3: parallel.micro_batch: 3 is in no layout .*; use 1, 2, 4, 8, 16, 32 or 64$' "$work/check.err")"
check_status so_are_devices_that_share_nothing 2 heddle plan "$work/large.yaml" --devices h100:37
check_equal by_theirs 1 "$(grep -c '^--devices h100:37: resources.devices: 37 ' "$work/check.err")"
# all that a plan prints of its layout can be pinned, and gives that plan
heddle plan "$work/large.yaml" --devices h100:16 --pin pp=2 --top 1 -o json 2>/dev/null >"$work/plan.json"
pins=$(sed -E 's/.*"chosen":\{"layout":\{([^}]*)\}.*/\1/' "$work/plan.json" | tr -d '"' | sed -E 's/:/=/g; s/=([0-9]+)=/=\1:/g; s/full=/full:/')
check_status every_member_of_a_layout 0 heddle plan "$work/large.yaml" --devices h100:16 --pin "$pins" -o json
check_equal may_be_pinned "$(grep -o '"step_time_s":[^,]*' "$work/plan.json" | head -n 1) 0" \
    "$(grep -o '"step_time_s":[^,]*' "$work/check.out" | head -n 1) $(grep -c '"alternatives":\[{' "$work/check.out")"
# also those of the layout that needs least, where none fits: it needs so many bytes
heddle plan "$work/large.yaml" --devices l4:4 -o json 2>/dev/null >"$work/least.json"
pins=$(sed -E 's/.*"least":\{"layout":\{([^}]*)\}.*/\1/' "$work/least.json" | tr -d '"' | sed -E 's/:/=/g; s/=([0-9]+)=/=\1:/g; s/full=/full:/')
check_status what_needs_least_can_be_pinned 0 heddle plan "$work/large.yaml" --devices l4:4 --pin "$pins" -o json
check_equal and_needs_what_was_said "$(sed -E 's/.*"least":.*"needed_bytes":([0-9]+).*/\1/' "$work/least.json")" \
    "$(grep -o '"total":[0-9]*' "$work/check.out" | cut -d: -f2 | sort -n | tail -n 1)"
check_status on_one_stage_every_schedule_of_one_chunk 0 heddle plan "$work/large.yaml" --devices h100:16 --pin pp=1,schedule=gpipe \
    --top 1 -o json
check_equal is_none '"none"' "$(field schedule)"
check_status a_pin_without_a_value_is_2 2 heddle plan "$work/large.yaml" --devices h100:16 --pin tp
check_status a_pin_of_nothing_is_2 2 heddle plan "$work/large.yaml" --devices h100:16 --pin =3
check_status stages_that_do_not_add_up_are_2 2 heddle plan "$work/large.yaml" --devices h100:16 --pin 'pp=2,stages=[1,2]'
head -c 1100000 /dev/zero | tr '\0' '#' >"$work/long.yaml"
check_status a_cluster_file_beyond_its_limit_is_2 2 heddle plan "$work/large.yaml" --cluster "$work/long.yaml"
check_equal which_is_told 1 "$(grep -c 'larger than 1 MiB, the limit of a cluster file' "$work/check.err")"
check_status what_is_too_large_is_2 2 heddle plan "$work/large.yaml" --devices l4:2 --set resources.devices=2 -o json
check_equal with_nothing_chosen 1 "$(grep -c '"chosen":null,.*"least":{' "$work/check.out")"
# of two groups the one that lacks least is told, not the one that stands first
printf 'groups: [{nodes: 1, device: l4}, {nodes: 1, device: a100-80gb}]\ndevices_per_node: 1\n' >"$work/small.yaml"
check_status what_fits_no_group_is_2 2 heddle plan "$work/large.yaml" --cluster "$work/small.yaml" --set resources.devices=1
check_equal and_told_of_the_one_that_lacks_least 1 "$(grep -c '^1 x a100-80gb on 1 node ' "$work/check.out")"
check_status one_layout_alone_is_priced_whether_it_fits_or_not 0 heddle plan "$work/large.yaml" --devices l4:1 \
    --pin tp=1,pp=1,cp=1,micro_batch=1,recompute=none,zero=0 -o json
check_equal but_does_not_fit false "$(field fits)"
check_status for_people 0 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" --explain
check_equal where_time_goes 1 "$(grep -c '^where the step goes, on the busiest stage: kernels ' "$work/check.out")"
check_equal and_what_was_searched 1 "$(grep -cE '^searched: [0-9]+ families' "$work/check.out")"
# TF32 makes the products of the same machines as much faster, whoever says what machines they are
printf 'nodes: 1\ndevices_per_node: 8\ndevice: h100\n' >"$work/usual.yaml"
set -- "$work/large.yaml" --set train.precision=fp32 --set train.tf32=true --pin tp=8,pp=1,cp=1,micro_batch=1,recompute=full,zero=0 -o json
check_status tf32_on_usual_machines 0 heddle plan "$@" --devices h100:8
of_devices="$(field step_time_s) $(field mfu)"
check_status tf32_on_those_of_a_file 0 heddle plan "$@" --cluster "$work/usual.yaml" --set resources.devices=8
check_equal takes_as_long "$of_devices" "$(field step_time_s) $(field mfu)"
# devices that are not alike: 0 and 4, 1 and 5, .. are under one switch each, so tp 2 takes those pairs
cat >"$work/switches.yaml" <<'EOF'
nodes: 2
devices_per_node: 8
device: a100-80gb
links:
  rates: {pix: 13GB/s, node: 10GB/s, sys: 9GB/s}
  matrix:
    - X node sys sys pix node sys sys
    - node X sys sys node pix sys sys
    - sys sys X node sys sys pix node
    - sys sys node X sys sys node pix
    - pix node sys sys X node sys sys
    - node pix sys sys node X sys sys
    - sys sys pix node sys sys X node
    - sys sys node pix sys sys node X
  shared: [{devices: [0, 1, 4, 5], bandwidth: 9GB/s}]
EOF
set -- "$work/large.yaml" --cluster "$work/switches.yaml" --pin tp=2,pp=1,cp=1,micro_batch=1 --top 1
check_status a_matrix_of_links 0 heddle plan "$@" -o json
check_equal gives_tp_the_pairs_under_a_switch '"ranks":[[0,0],[0,4],' "$(grep -oE '"ranks":[[][[]0,0[]],[[]0,.[]],' "$work/check.out")"
check_status which_people_see 0 heddle plan "$@" --explain
check_equal by_node_and_group 2 "$(grep -cE '^[01] +(0-7|8-15) +0 4, ' "$work/check.out")"
check_status two_ways_to_name_devices_are_2 2 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" --devices h100:8
printf 'nodes: 4\ndevice: h100\n' >"$work/bad.yaml"
check_status a_bad_cluster_file_is_2 2 heddle plan "$work/large.yaml" --cluster "$work/bad.yaml"
check_equal with_its_line 1 "$(grep -c 'bad.yaml:1: devices_per_node: is missing' "$work/check.err")"
check_status a_cluster_that_is_too_small_is_2 2 heddle plan "$work/large.yaml" --cluster "$work/cluster.yaml" \
    --set resources.devices=64
check_equal and_says_what_it_has 1 "$(grep -c 'resources.devices: 64, but the largest group .* has 32' "$work/check.err")"
check_status devices_that_do_not_divide_are_2 2 heddle plan "$file" --devices cpu:5
check_status a_bad_file_is_2 2 heddle plan "$file" --set model.heads=3

# What was measured of this machine's cores takes the place of their peaks. The pace would hide all but one of them.
check a_probe_writes_a_calibration env -u LD_PRELOAD "$HEDDLE_BIN/heddle-worker" probe --devices cpu:1 --seconds 4 --out "$work/cores.json"
check_status a_plan_searches_by_it 0 heddle plan "$file" --devices cpu:1 --calibration "$work/cores.json" --top 2 -o json
check_equal and_says_that_it_was_measured "true 1 cpu" "$(field rates_measured) $(field devices) $(field device | tr -d '"')"
check_equal with_an_alternative 2 "$(grep -o '"step_time_s":[0-9]' "$work/check.out" | wc -l)"
check_status one_of_other_devices_is_2 2 heddle plan "$file" --devices cpu:1:$(($(nproc) + 1)) --calibration "$work/cores.json"
check_equal and_says_how_to_probe 1 "$(grep -c 'probe with --devices cpu:N:' "$work/check.err")"
finish
