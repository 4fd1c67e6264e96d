#!/bin/bash
# The way of docs/fine-tuning.md: a model folder, an adapter beside it, checkpoints without the base, the
# adapter and the merged model out again, another run from that adapter.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:2
base=$(submit "$(job_file base)" --set validate.every=0)
check a_base_is_trained heddle wait "$base"
check and_put_out heddle checkpoint export "$base" --out "$work/model"

cat >"$work/tune.yaml" <<END
name: tune
model: {from: model}
data: {train: [corpus.txt], val_split: 0.1}
train:
  {steps: 20, global_batch: 8, lr: 1e-2, precision: bf16, adapter: {type: lora, rank: 4, alpha: 8}}
validate: {every: 20, batches: 2}
resources: {devices: 2}
checkpoint: {every: 10, keep: 0}
END
job=$(submit "$work/tune.yaml")
check an_adapter_is_trained_beside_it heddle wait "$job"
whole=$(submit "$work/tune.yaml" --set checkpoint.frozen=save)
check also_with_the_base_in_its_checkpoints heddle wait "$whole"
newest() { heddle checkpoint ls "$1" -o jsonl | tail -n 1 | member path; }
bytes() { cat "$1"/*.safetensors | wc -c; }
step=$(newest "$job")
# 2 blocks of 64 wide have 98,304 weights in matrices, embedding and head 32,768; the factors of rank 4
# 9,984 (4 x (4 x 128 + 3 x 240) x 2), with their moments 29,952
small=$(bytes "$step") large=$(bytes "$(newest "$whole")")
check_equal checkpoints_leave_the_base_out 1 "$((large - small > 4 * 98304 && small < 4 * 3 * 12000))"
mv "$work/model" "$work/moved"
check_status a_base_that_is_gone_is_told_at_once 2 heddle resume "$job"
check_equal with_its_folder_and_the_remedy 1 "$(grep -c "is not in $work/model, .*--set train.init_from=DIR" "$work/check.err")"
mv "$work/moved" "$work/model"
text() { heddle generate "$@" --prompt 'The licence' --greedy --max-tokens 24; }
check_equal and_write_the_same "$(text "$whole")" "$(text "$job")"
loss() { heddle eval "$@" --data "$work/corpus.txt" --threads 1 -o json | member loss; }
check_equal and_have_the_same_loss "$(loss "$whole")" "$(loss "$job")"

check the_adapter_goes_out heddle checkpoint export "$job" --out "$work/peft" --adapter
check so_does_the_merged_model heddle checkpoint export "$job" --out "$work/merged"
check_equal and_it_is_said_what_it_was_added_to 1 "$(grep -c "the adapter was added to the weights of $work/model, in fp32" "$work/check.err")"
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 1e-3 && d > -1e-3) }'; }
tuned=$(loss "$work/model" --adapter "$work/peft" --precision fp32)
check the_base_with_the_adapter_is_the_merged_model near "$tuned" "$(loss "$work/merged" --precision fp32)"
check_equal a_checkpoint_is_an_adapter_too "$tuned" "$(loss "$work/model" --adapter "$step" --precision fp32)"
check_equal and_it_is_no_longer_the_base 1 "$(awk -v a="$tuned" -v b="$(loss "$work/model")" 'BEGIN { print (a < b) }')"
check_status a_model_has_one_adapter 2 heddle eval "$job" --adapter "$work/peft" --data "$work/corpus.txt"
check_status an_adapter_is_no_model 4 heddle eval "$work/peft" --data "$work/corpus.txt"
check_equal and_is_given_by_its_option 1 "$(grep -c "give the model's folder, and --adapter $work/peft\$" "$work/check.err")"

# an adapter that begins with singular directions: alone, it has twice the rank, and the base is the folder's
check directions_are_trained heddle local "$work/tune.yaml" --dir "$work/pissa" --set train.adapter.init=pissa \
    --set train.precision=fp32 --set train.steps=4
check they_go_out_alone heddle checkpoint export "$work/pissa" --out "$work/peft-pissa" --adapter
check_equal with_twice_the_rank 1 "$(grep -c '"r": *8,' "$work/peft-pissa/adapter_config.json")"
check and_merged heddle checkpoint export "$work/pissa" --out "$work/merged-pissa"
turned=$(loss "$work/pissa" --precision fp32)
check_equal which_is_no_longer_the_base 1 "$(awk -v a="$turned" -v b="$(loss "$work/model")" 'BEGIN { d = a - b; print (d > 1e-3 || d < -1e-3) }')"
closer() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 2e-6 && d > -2e-6) }'; }
check the_merged_model_is_the_run closer "$turned" "$(loss "$work/merged-pissa" --precision fp32)"
check so_is_the_base_with_the_adapter closer "$turned" "$(loss "$work/model" --adapter "$work/peft-pissa" --precision fp32)"
check and_with_the_checkpoint closer "$turned" "$(loss "$work/model" --adapter "$(newest "$work/pissa")" --precision fp32)"

cat >"$work/anew.yaml" <<END
name: anew
model: {from: model}
data: {train: [corpus.txt], val_split: 0.1}
train: {steps: 2, global_batch: 8, lr: 1e-9, precision: fp32, adapter: {from: peft}}
validate: {every: 20, batches: 2}
resources: {devices: 2}
END
check another_run_begins_with_it heddle local "$work/anew.yaml" --dir "$work/anew"
check_equal and_is_where_that_ended 1 "$(grep -c '"rank":4\|rank: 4' <(heddle validate "$work/anew.yaml" -o json))"
check it_has_the_loss_of_the_adapter near "$tuned" "$(loss "$work/anew" --precision fp32)"
check_status another_rank_is_refused 2 heddle validate "$work/anew.yaml" --set train.adapter.rank=8
check_equal by_line_and_remedy 1 "$(grep -c "train.adapter.rank: 8 is not the 4 of $work/peft; remove the line" "$work/check.err")"
check_status a_folder_without_an_adapter_is_refused 2 heddle validate "$work/anew.yaml" --set train.adapter.from=model
sed -i 's/"use_rslora": *false/"lora_bias":true/' "$work/peft/adapter_config.json"
check_status so_is_a_setting_that_no_job_has 2 heddle validate "$work/anew.yaml"
check_equal and_named 1 "$(grep -c 'adapter_config.json: lora_bias: an adapter with this setting' "$work/check.err")"

# a prefix, which no weights can hold
sed 's/adapter: .*}}/adapter: {type: prefix, tokens: 8}}/; /^validate/d' "$work/tune.yaml" >"$work/prefix.yaml"
check a_prefix_is_trained heddle local "$work/prefix.yaml" --dir "$work/prefix" --set train.steps=4
check_status it_is_not_merged 2 heddle checkpoint export "$work/prefix" --out "$work/nothing"
check_equal and_the_remedy_is_said 1 "$(grep -c 'export it alone, with --adapter' "$work/check.err")"
check but_goes_out_alone heddle checkpoint export "$work/prefix" --out "$work/peft-prefix" --adapter
check_equal and_is_what_was_trained "$(text "$work/prefix")" "$(text "$work/model" --adapter "$work/peft-prefix" --precision bf16)"
# a checkpoint is evaluated in its micro-batch, a model folder is not, so sums differ in their last digits
check_equal as_is_its_loss "$(printf %.9f "$(loss "$work/prefix")")" \
    "$(printf %.9f "$(loss "$work/model" --adapter "$work/peft-prefix" --precision bf16)")"

mv "$work/model" "$work/moved"
check_status a_base_that_is_gone_is_missed 2 heddle eval "$job" --data "$work/corpus.txt"
check_equal and_it_is_said_what_to_do 1 "$(grep -c "the others are in the model folder $work/model: restore it" "$work/check.err")"
check_equal a_base_may_move "$(loss "$whole")" "$(loss "$job" --base "$work/moved")"
check the_adapter_needs_no_base heddle checkpoint export "$job" --out "$work/peft2" --adapter
check the_merged_model_needs_it heddle checkpoint export "$job" --out "$work/merged2" --base "$work/moved"
check_equal and_is_the_same "$(cksum <"$work/merged/model.safetensors")" "$(cksum <"$work/merged2/model.safetensors")"
check_status a_run_does_not_go_on_without_it 2 heddle resume "$job" --set train.steps=24
check_status nor_beside_another_model 2 heddle resume "$job" --set train.steps=24 --set model.from="$work/merged" # train.init_from follows it
check_equal which_is_named 1 "$(grep -c "model.from: the weights in $work/merged are not those with which the job began" "$work/check.err")"
cd "$work" || exit 1
check it_is_told_where_its_base_is heddle resume "$job" --set train.steps=24 --set model.from=moved
check and_goes_on heddle wait "$job"
check_status another_model_is_not_its_base 2 heddle eval "$job" --data "$work/corpus.txt" --base "$work/merged"
check_equal and_that_is_said 1 "$(grep -c 'is not the model that' "$work/check.err")"
finish
