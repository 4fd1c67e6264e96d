#!/bin/bash
# The chapter on layouts: a model in pipeline stages, planned, trained, and gone on with in others.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
file=$(job_file layouts)
sed -i '/^resources:/d' "$file"
printf 'resources: {device_type: cpu, devices: 4}\nparallel: {tp: 2, pp: 2}\n' >>"$file"
cd "$work" || exit 1

check the_plan_shows_the_stages heddle plan "$file"
check_equal with_what_each_has "0 embedding, layer 0;1 layer 1, head;" \
    "$(sed -nE 's/^ +([01])  (([^ ]| [^ ])+)  .*/\1 \2/p' check.out | head -n 2 | tr '\n' ';')"
check_equal and_how_long_they_wait 1 "$(grep -cE '^pipeline 1f1b: 2 stages; .* waits [0-9.]+% of a step' check.out)"
promised=$(heddle plan "$file" -o jsonl | sed -nE 's/.*"total_bytes":([0-9]+).*/\1/p' | tr '\n' ' ')

loss_of() { sed -nE 's/^step 30\/30  loss ([0-9.]+).*/\1/p' "$1"; }
check four_devices_train_it heddle local "$file"
cp check.out stages.out
check_equal ranks_reserve_what_was_promised "$promised" \
    "$(for rank in 0 1 2 3; do
        "$HEDDLE_BIN/heddle-worker" memory --rank $rank --job "$(find heddle-runs/latest/ -path '*/nodes/*/job')" |
            sed -nE 's/ *([0-9]+)  total.*/\1/p'
    done | tr '\n' ' ')"
check one_device_trains_it heddle local "$file" --dir alone --set parallel.tp=1 --set parallel.pp=1 --set resources.devices=1
check_equal to_the_same_loss "$(loss_of stages.out | cut -c 1-5)" "$(loss_of check.out | cut -c 1-5)"
check it_goes_on_with_shards_of_everything heddle local --resume heddle-runs/layouts-* --set train.steps=40 \
    --set parallel.pp=1 --set parallel.tp=1 --set parallel.zero=3 --set parallel.recompute=full \
    --set checkpoint.async=true --set checkpoint.every=4
check_equal from_where_it_was 1 "$(grep -c '^step 31/40 ' check.out)"
check_equal and_writes_while_it_trains 3 "$(grep -c '^checkpoint at step [34]' check.out)" # 32, 36, 40
check its_moments_become_8_bits heddle local --resume heddle-runs/layouts-* --set train.steps=44 --set train.moments=8bit
check_equal which_is_noted 1 "$(grep -rhoE 'moments was fp32, is 8bit' heddle-runs/layouts-* check.err check.out | sort -u | wc -l)"
check a_plan_says_so heddle plan "$file" --set train.moments=8bit
check_equal beside_the_precision 1 "$(grep -c ', moments of 8 bits$' check.out)"
check fp16_finds_its_scale heddle local "$file" --dir half --set train.precision=fp16 --set parallel.tp=1 \
    --set parallel.zero=2 --set train.loss_scale.initial=1099511627776
check_equal and_says_so 1 "$(grep -c '^step 1: gradients overflowed fp16; .* is halved to 549755813888$' check.err)"
check_status a_run_that_changed_no_weight_fails 1 heddle local "$file" --dir none --set train.precision=fp16 \
    --set train.loss_scale.initial=1099511627776 --set train.steps=4 --set parallel.tp=1 --set parallel.zero=1
check_equal and_says_what_to_lower 1 "$(grep -c '^job failed at step [34], .* lower train.loss_scale.initial (now 1099511627776)' check.out)"
check_equal without_a_checkpoint_that_looks_sound 0 "$(ls heddle-runs/none/1/attempt-1/checkpoints 2>/dev/null | wc -l)"
check its_products_become_8_bits heddle local --resume heddle-runs/layouts-* --set train.steps=46 --set train.precision=fp8 \
    --set parallel.tp=2 --set parallel.zero=1
check_equal which_is_noted_too 1 "$(grep -rhoE 'precision was fp32, is fp8' heddle-runs/layouts-* check.err check.out | sort -u | wc -l)"
check it_is_measured_in_bf16 heddle eval "$(find heddle-runs/layouts-*/ -type d -name 'step-*46')" --data corpus.txt --windows 2
check_equal and_says_that 1 "$(grep -c ', bf16$' check.out)"
check its_weights_are_exported "$HEDDLE_BIN/heddle-worker" export --checkpoint "$(find heddle-runs/layouts-*/ -type d -name 'step-*46')" --out exported
check_status an_old_gpu_has_no_fp8 2 heddle plan "$file" --devices a100-80gb:4 --set train.precision=fp8
check_equal with_what_it_lacks 1 "$(grep -hc 'fp8 needs a GPU of compute capability 8.9 or later' check.out check.err | sort -n | tail -n 1)"
check a_new_one_has_it heddle plan "$file" --devices h100:4 --set train.precision=fp8
check_equal at_its_own_rate 2 "$(grep -c '(1979 TFLOP/s, fp8)' check.out)"
check a_sample_is_written heddle generate heddle-runs/layouts-* --prompt 'The ' --max-tokens 4
check_status too_many_stages_are_refused 2 heddle local "$file" --set parallel.pp=8
check a_schedule_is_drawn "$HEDDLE_BIN/heddle-worker" schedule --name zb-h1 --stages 2 --micro-batches 3
check_equal stage_by_stage 2 "$(grep -cE '^[01]  [.F]' check.out)"
"$HEDDLE_BIN/heddle-worker" schedule --name 1f1b --stages 2 --micro-batches 2 --text >order
check an_order_is_read_back "$HEDDLE_BIN/heddle-worker" schedule --file order
cp order own
printf 'parallel: {tp: 2, schedule: {file: %s/own}}\n' "$PWD" | cat <(sed '/^parallel:/d' "$file") - >own.yaml
check a_job_runs_the_order_of_a_file heddle local own.yaml --dir own-run --set parallel.recompute=none
check_equal to_that_loss_too "$(loss_of stages.out | cut -c 1-5)" "$(loss_of check.out | cut -c 1-5)"
rm own
check it_goes_on_without_the_file heddle local --resume heddle-runs/own-run --set train.steps=31
check_status a_job_needs_its_file 2 heddle validate own.yaml
check_equal and_says_where "parallel.schedule.file" "$(grep -o 'parallel.schedule.file' check.err | head -n 1)"
sed -i 's/F0.1 B0.0/B0.0 F0.1/; s/B1.0 F1.1/F1.1 B1.0/' order
check_status a_circle_is_refused 2 "$HEDDLE_BIN/heddle-worker" schedule --file order
check_equal with_who_waits_for_whom 1 "$(grep -c "order: the schedule deadlocks: .* waits for" check.err)"
finish
