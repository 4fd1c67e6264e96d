#!/bin/bash
# A mixture of experts from job file to report and to Hugging Face's form, its experts shared out.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
cp "$HEDDLE_SOURCE_DIR/LICENSE" "$work/corpus.txt"
cat >"$work/experts.yaml" <<END
name: experts
model: {family: mixtral, layers: 2, hidden: 64, heads: 4, kv_heads: 2, context: 32, ffn_hidden: 96, experts: 4}
data: {train: [corpus.txt]}
train: {steps: 3, global_batch: 4, lr: 1e-3, precision: fp32}
parallel: {ep: 2}
resources: {devices: 2}
END
# choices STEP: "sum of the loads, dropped" of one step of a run
choices() {
    grep "\"type\":\"step\",.*\"step\":$1," | sed -nE 's/.*"router_dropped":([0-9]+),.*"expert_load":\[([0-9,]*)\].*/\2 \1/p' |
        awk '{ n = split($1, load, ","); for (i = 1; i <= n; i++) sum += load[i]; print n, sum, $2 }'
}
loads() { grep '"type":"step",.*"step":1,' | grep -o '"expert_load":\[[0-9,]*\]'; }

check_status a_plan 0 heddle plan "$work/experts.yaml" -o jsonl
check_equal tells_which_block_of_experts_a_rank_has '"ep":0 "ep":1 ' "$(grep -o '"ep":[0-9]*' "$work/check.out" | tr '\n' ' ')"
check_status for_people_too 0 heddle plan "$work/experts.yaml"
check_equal it_tells_ep 1 "$(grep -c ' x dp 2 x pp 1, ep 2, ' "$work/check.out")"

heddle local "$work/experts.yaml" --state-dir "$work/two" -o jsonl >"$work/two.jsonl" 2>"$work/two.err"
check_equal experts_on_two_ranks_train 0 $?
check_equal the_event_of_the_start_tells_ep 1 "$(grep -c 'dp 2, ep 2, micro-batch 2' "$work/two.jsonl")"
# 4 sequences of 32 tokens have 2 experts each in 2 blocks
check_equal every_token_has_its_experts "4 512 0 4 512 0 4 512 0" \
    "$(for step in 1 2 3; do choices $step <"$work/two.jsonl"; done | xargs)"
check_equal tensorboard_has_them_each_step 3 \
    "$(cat "$work"/two/latest/*/tensorboard/events.out.tfevents.* | grep -aoF 'router/busiest_expert' | wc -l)"
heddle local "$work/experts.yaml" --set parallel.ep=1 --state-dir "$work/one" -o jsonl >"$work/one.jsonl" 2>"$work/one.err"
check_equal all_experts_on_each_rank_are_chosen_alike "$(loads <"$work/one.jsonl")" "$(loads <"$work/two.jsonl")"
# an even share of a sequence's 64 choices is 16: with a quarter of it each of 4 experts takes 4
heddle local "$work/experts.yaml" --set model.router.capacity_factor=0.25 --set train.steps=1 --state-dir "$work/few" -o jsonl \
    >"$work/few.jsonl" 2>"$work/few.err"
dropped=$(choices 1 <"$work/few.jsonl" | cut -d ' ' -f 3)
# 2 blocks x 4 sequences x (64 - 4 x 4), or more where an expert was chosen less than 4 times
check below_capacity_the_rest_is_dropped test "${dropped:-0}" -ge 384

checkpoint=$(find "$work/two" -type d -name 'step-00000003')
check it_goes_out heddle checkpoint export "$checkpoint" --out "$work/model"
cat >"$work/again.yaml" <<END
name: again
model: {from: model}
data: {train: [corpus.txt]}
train: {steps: 2, global_batch: 4, lr: 1e-3, precision: fp32}
END
check_status and_is_read_as_what_it_was 0 heddle validate "$work/again.yaml" -o json
check_equal with_its_experts 1 "$(grep -cE '"experts": ?4' "$work/check.out")"
check and_trains_on heddle local "$work/again.yaml" --state-dir "$work/again"

check_status ep_that_does_not_divide_is_2 2 heddle validate "$work/experts.yaml" --set parallel.ep=3
check_equal and_says_what_does 1 "$(grep -cF 'parallel.ep: 3 does not divide model.experts = 4; use 1 or 2' "$work/check.err")"
finish
