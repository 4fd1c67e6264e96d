#!/bin/bash
# Pairs of answers from their file to a model that prefers the chosen ones: validate, plan and data show
# say pairs, what is wrong is said with its line, and DPO begins at ln 2.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

dir=$work/job
mkdir "$dir" || exit 1
for letter in a b c d e f g h; do
    printf '{"prompt": "%s:", "chosen": "%s%s!", "rejected": "%s%s?"}\n' $letter $letter $letter $letter $letter
done >"$dir/pairs.jsonl"
cp "$dir/pairs.jsonl" "$dir/again.jsonl"
cat >"$dir/job.yaml" <<END
name: pairs
model: {family: llama, layers: 1, hidden: 32, heads: 4, context: 40}
data: {train: [pairs.jsonl], val: [again.jsonl], order: sequential}
train: {objective: dpo, steps: 12, global_batch: 2, lr: {peak: 3e-3, decay: constant, warmup: 0}}
validate: {every: 0}
resources: {device_type: cpu, threads: 1}
END

# An answer has 2 tokens of the prompt and 3 that count, and bytes have no token that ends a text: a
# pair takes 10 rows, and four fit into 40.
facts="pairs: preference; 8 in 2 sequences an epoch, 100.0% of their rows filled; 48 of 80 tokens count for the loss, the longest has 10"
check a_job_of_pairs_is_valid heddle validate "$dir/job.yaml"
check_equal it_says_pairs 1 "$(grep -cxF -- "$facts" "$work/check.out")"
check a_plan_of_it heddle plan "$dir/job.yaml" --devices cpu:1
check_equal a_plan_says_pairs 1 "$(grep -cxF -- "$facts" "$work/check.out")"
check samples_are_shown heddle data show "$dir/job.yaml" --samples 1
check_equal with_the_answers_of_each_pair 4 "$(grep -cx -- '--- pair [1-4], rejected, 5 tokens' "$work/check.out")"
check_equal with_what_counts_in_brackets 4 "$(grep -c '^[a-h]:⟦[a-h][a-h]!⟧$' "$work/check.out")"

refused() { # NAME MESSAGE ARGUMENT...
    local name=$1 message=$2
    shift 2
    check_status "$name" 2 heddle validate "$dir/job.yaml" "$@"
    check_equal "${name}_and_why" 1 "$(grep -cF -- "$message" "$work/check.err")"
}
wrong() { # NAME MESSAGE LINE: as the ninth line of the file
    { cat "$dir/pairs.jsonl"; printf '%s\n' "$3"; } >"$dir/wrong.jsonl"
    refused "$1" "wrong.jsonl:9: $2" --set 'data.train=[wrong.jsonl]'
}
wrong a_pair_of_equal_answers "chosen and rejected are the same answer" '{"prompt": "a", "chosen": "b", "rejected": "b"}'
wrong a_line_without_a_rejected_answer "the line has no rejected answer" '{"prompt": "a", "chosen": "b"}'
wrong an_answer_that_is_empty "rejected: the answer is empty" '{"prompt": "a", "chosen": "b", "rejected": ""}'
wrong answers_of_two_kinds "chosen and rejected must be two strings" '{"prompt": "a", "chosen": "b", "rejected": []}'
wrong an_answer_without_a_prompt "chosen and rejected must be two strings" '{"chosen": "b", "rejected": "c"}'
refused pairs_that_are_too_long "8 pairs are longer than model.context = 9 tokens; the first is $dir/pairs.jsonl:1, with 10 tokens in both answers" --set model.context=9
refused pairs_that_would_be_cut "data.too_long: with train.objective: dpo" --set data.too_long=cut
refused dropout "train.dropout.residual: with train.objective: dpo answers are compared with a reference" --set train.dropout.residual=0.1
refused a_reference_in_fp8 "train.precision: with train.objective: dpo" --set train.precision=fp8
refused a_beta_of_no_pairs "train.preference.beta: there are no pairs" --set train.objective=next_token --set train.preference.beta=1
refused pairs_as_a_text "it is a pair of answers, chosen and rejected; train on pairs with" --set train.objective=next_token
printf 'abc' >"$dir/text.txt"
refused a_text_as_pairs "text.txt has no records, and train.objective: dpo needs pairs" --set 'data.train=[text.txt]'

check a_model_learns_them heddle local "$dir/job.yaml" --dir run --state-dir "$work/runs" -o jsonl
cp "$work/check.out" "$work/steps"
check_equal the_first_loss_is_ln_2 1 "$(grep -c '"type":"step".*"step":1,"loss":0.69314718055994[0-9]*,' "$work/steps")"
check_equal every_step_says_pairs_and_tokens 12 "$(grep -c '"type":"step".*"targets":48,.*"pairs":8,' "$work/steps")"
check_equal in_the_end_the_chosen_are_preferred 1 "$(grep -c '"type":"step".*"step":12,.*"accuracy":1[,}]' "$work/steps")"
check it_goes_on heddle local --resume "$work/runs/run" --set train.steps=14 -o jsonl
check_equal with_the_reference_of_the_start 0 "$(grep -c "made the log-probabilities" "$work/check.out")"
check_status pairs_are_not_rated 2 heddle eval "$work/runs/run"
check_status nor_are_pairs_that_are_given 2 heddle eval "$work/runs/run" --data "$dir/again.jsonl"
check_equal as_is_said 1 "$(grep -c 'again.jsonl holds pairs of answers, which rate a reward model only' "$work/check.err")"

check so_does_orpo heddle local "$dir/job.yaml" --dir odds --state-dir "$work/runs" --set train.objective=orpo --set train.steps=2 -o jsonl
check_equal with_pairs_in_its_steps 2 "$(grep -c '"type":"step".*"pairs":8,' "$work/check.out")"

# A reward model: it learns, rates pairs, goes out as a class for sequence classification and comes back in.
refused a_beta_of_a_reward_model "train.preference.beta: the loss of a reward model has no such factor" --set train.objective=reward --set train.preference.beta=1
refused a_loss_of_simpo "train.preference.loss: it names a loss of dpo" --set train.objective=simpo --set train.preference.loss=ipo
refused a_margin_of_dpo "train.preference.gamma: it is the margin of simpo" --set train.preference.gamma=0.5
refused wrong_pairs_of_ipo "train.preference.smoothing: dpo has it with" --set train.preference.loss=ipo --set train.preference.smoothing=0.1
refused rewards_of_dpo_to_center "train.preference.center: only a reward model" --set train.preference.center=0.01
sed 's/{/{"margin": 1, /' "$dir/pairs.jsonl" >"$dir/margins.jsonl"
refused margins_of_rewards "margins.jsonl:1: the line has a margin" --set train.objective=reward --set 'data.train=[margins.jsonl]'
check a_reward_model_learns heddle local "$dir/job.yaml" --dir reward --state-dir "$work/runs" --set train.objective=reward --set train.preference.center=0.01 -o jsonl
check_equal every_step_says_its_rewards 12 "$(grep -c '"type":"step".*"pairs":8,"margin":[-0-9.e]*,"accuracy":[01][.0-9]*,"reward":' "$work/check.out")"
check_equal in_the_end_it_rates_the_chosen_higher 1 "$(grep -c '"type":"step".*"step":12,.*"accuracy":1,' "$work/check.out")"
check it_rates_pairs heddle eval "$work/runs/reward" --data "$dir/again.jsonl" -o json
cp "$work/check.out" "$work/rated"
check_equal and_says_its_accuracy 1 "$(grep -c '"pairs": *8, *"accuracy": *1,' <(tr -d '\n' <"$work/rated"))"
check_status it_writes_no_answers 2 heddle generate "$work/runs/reward" --prompt a
check_equal and_says_what_it_does 1 "$(grep -c 'is a reward model, which rates answers and writes none: heddle eval .* --data PAIRS.jsonl' "$work/check.err")"
check it_goes_out heddle checkpoint export "$work/runs/reward" --out "$dir/rater"
check_equal as_a_class_for_sequence_classification 1 "$(grep -c '"architectures":\["LlamaForSequenceClassification"\].*"id2label":{"0":"LABEL_0"}.*"pad_token_id":null' "$dir/rater/config.json")"
check_equal without_a_head_of_tokens 0 "$(head -c 4000 "$dir/rater/model.safetensors" | grep -c lm_head)"
check the_folder_rates_as_the_run_did heddle eval "$dir/rater" --data "$dir/again.jsonl" -o json --precision fp32
sed 's/model: {.*/model: {from: rater}/' "$dir/job.yaml" >"$dir/on.yaml"
check_status a_reward_model_is_no_start_for_dpo 2 heddle validate "$dir/on.yaml"
check_equal and_the_remedy 1 "$(grep -c 'model.from: .*/rater is a reward model.* add train.objective: reward' "$work/check.err")"
check a_run_goes_on_from_it heddle local "$dir/on.yaml" --dir more --state-dir "$work/runs" --set train.objective=reward --set train.steps=1 -o jsonl
check_equal where_it_was 1 "$(grep -c '"step":1,.*"accuracy":1,' "$work/check.out")"
check one_begins_with_a_model_of_tokens heddle local "$dir/job.yaml" --dir fresh --state-dir "$work/runs" --set train.objective=reward --set train.steps=1 --set "train.init_from=$(find "$work/runs/odds" -type d -name "step-*" | tail -n 1)" -o jsonl
check_equal which_is_not_told_to_write 0 "$(grep -c 'heddle generate' "$work/check.err")"
check_status a_model_of_tokens_does_not_begin_with_it 2 heddle local "$dir/job.yaml" --dir wrong --state-dir "$work/runs" --set train.steps=1 --set "train.init_from=$(find "$work/runs/reward" -type d -name "step-*" | tail -n 1)"

finish
