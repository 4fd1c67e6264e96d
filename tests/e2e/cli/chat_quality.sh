#!/bin/bash
# A small model, tuned on generated conversations, answers questions that it has not seen, and stops by itself.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/e2e/cli/chat_model.sh" || exit 1

# of the 676 pairs of letters every ninth is held out: 75
pairs=() held=() n=0
for pair in {a..z}{a..z}; do
    if [ $((++n % 9)) = 0 ]; then held+=("$pair"); else pairs+=("$pair"); fi
done
conversations "${pairs[@]}" >"$dir/chat.jsonl"
cat >"$dir/job.yaml" <<END
name: chat
model: {family: llama, layers: 2, hidden: 64, heads: 4, vocab: 259, context: 256}
data: {train: [chat.jsonl], tokenizer: tokenizer.json, template: chat_template.jinja}
train: {epochs: 12, global_batch: 4, lr: 3e-3}
resources: {device_type: cpu, threads: 1}
END
check a_model_is_tuned heddle local "$dir/job.yaml" --dir run --state-dir "$work/runs"
right=0 stopped=0
for pair in "${held[@]}"; do
    answer=$(heddle generate "$work/runs/run" --chat --prompt "$pair?" --greedy --max-tokens 64 2>>"$work/log")
    [ "$answer" = "${pair:0:1}${pair:0:1}${pair:1:1}${pair:1:1}" ] && right=$((right + 1))
    [ ${#answer} -lt 60 ] && stopped=$((stopped + 1)) # 64 tokens of one letter each: it did not stop
done
printf '%d of %d right, %d stopped\n' $right ${#held[@]} $stopped
check at_least_95_percent_of_held_out_questions_are_answered_right test $((100 * right)) -ge $((95 * ${#held[@]}))
check_equal every_answer_ends_by_itself ${#held[@]} $stopped
finish
