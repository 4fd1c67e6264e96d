#!/bin/bash
# Conversations from their file to an answer: validate and plan say what an epoch has, data show what
# counts, and a model that learned them answers and stops.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

. "$HEDDLE_SOURCE_DIR/tests/e2e/cli/chat_model.sh" || exit 1

conversations {a..f}{a..f} >"$dir/chat.jsonl"
cat >"$dir/job.yaml" <<END
name: chat
model: {family: llama, layers: 2, hidden: 64, heads: 4, vocab: 259, context: 256}
data: {train: [chat.jsonl], tokenizer: tokenizer.json, template: chat_template.jinja}
train: {epochs: 4, global_batch: 2, lr: {peak: 3e-3, decay: constant, warmup: 0}}
resources: {device_type: cpu, threads: 1}
END

# A conversation has 1 + 5 + 3 + 1 + 1 tokens of the question, 1 + 10 in front of the answer, and 4 + 1 + 1
# that count: 28 in all. Nine fit into 256 rows: 4 windows of 252 rows, 98.4% filled.
# 4 epochs of 4 windows in steps of 2 are 8 steps.
check a_job_of_conversations_is_valid heddle validate "$dir/job.yaml"
has_line() { check_equal "$1" 1 "$(grep -cxF -- "$2" "$work/check.out")"; }
has_line it_says_the_form_that_it_found "data.train: messages, 1 file of $(stat -c %s "$dir/chat.jsonl" | awk '{printf "%.1f KiB", $1 / 1024}'): 36 documents, tokens to be made when the job starts"
has_line it_says_what_counts "conversations: messages; 36 in 4 sequences an epoch, 98.4% of their rows filled; 216 of 1008 tokens count for the loss, the longest has 28"
has_line it_derives_the_steps "train.epochs: 4 times 4 sequences are 8 steps of 2"
check a_plan_of_it heddle plan "$dir/job.yaml" --devices cpu:1
has_line a_plan_says_what_counts "conversations: messages; 36 in 4 sequences an epoch, 98.4% of their rows filled; 216 of 1008 tokens count for the loss, the longest has 28"
check samples_are_shown heddle data show "$dir/job.yaml" --samples 1
check_equal with_what_counts_in_brackets 9 "$(grep -c '^⟦[a-f]\{4\}<|im_end|>$' "$work/check.out")"
check samples_as_json heddle data show "$dir/job.yaml" --samples 1 -o json
check_equal with_a_number_for_each_token 54 "$(grep -o '"counts":\[[^]]*' "$work/check.out" | tr -cd 1 | wc -c)"
check a_token_file_of_them heddle data tokenize "$dir/chat.jsonl" --out "$dir/c.idx" --tokenizer "$dir/tokenizer.json"
check_equal it_says_what_counts_too 1 "$(grep -c '^216 tokens count for the loss$' "$work/check.out")"
check_status that_has_no_place_for_it 2 heddle data tokenize "$dir/chat.jsonl" --out "$dir/c.npy" --tokenizer "$dir/tokenizer.json"
check a_token_file_is_trained_on heddle validate "$dir/job.yaml" --set 'data.train=[c.bin]'
has_line it_packs_the_same "conversations: 36 in 4 sequences an epoch, 98.4% of their rows filled; 216 of 1008 tokens count for the loss, the longest has 28"

# the end of a document is the eos_token of the files beside the tokenizer; where none names it, that is said
printf ab >"$dir/ab.txt"
mkdir "$dir/alone"
cp "$dir/tokenizer.json" "$dir/alone"
ids() { od -An -v -tu2 -j128 "$1" | xargs; } # of a .npy: behind its head of 128 bytes
said() { check_equal "$1" 1 "$(grep -cF -- "$2" "$work/check.err")"; }
check an_end_that_a_file_names heddle data tokenize "$dir/ab.txt" --out "$dir/ab.npy" --tokenizer "$dir/tokenizer.json"
check_equal is_behind_the_document "97 98 257" "$(ids "$dir/ab.npy")"
check an_end_that_no_file_names heddle data tokenize "$dir/ab.txt" --out "$dir/alone/ab.npy" --tokenizer "$dir/alone/tokenizer.json"
said is_told "note: no file beside $dir/alone/tokenizer.json names an eos_token, so no token ends a document; write --end-of-text ID"
check_equal and_is_not_guessed "97 98" "$(ids "$dir/alone/ab.npy")"
check an_end_by_its_id heddle data tokenize "$dir/ab.txt" --out "$dir/alone/id.npy" --tokenizer "$dir/alone/tokenizer.json" --end-of-text 258
check_equal is_taken "97 98 258" "$(ids "$dir/alone/id.npy")"
check a_job_without_an_end heddle validate "$dir/job.yaml" --set data.tokenizer=alone/tokenizer.json
said is_told_the_key "heddle: note: data.end_of_text: no file beside "

# ---- what is wrong is said before a step, with its place ----
refused() { # NAME MESSAGE ARGUMENT...
    local name=$1 message=$2
    shift 2
    check_status "$name" 2 heddle validate "$dir/job.yaml" "$@"
    check_equal "${name}_and_why" 1 "$(grep -cF -- "$message" "$work/check.err")"
}
printf '%s' '{% for m in messages %}{{ m.content | shuffle }}{% endfor %}' >"$dir/bad.jinja"
refused a_template_that_is_not_supported "chat.jsonl:1: the chat template: 1:39: not supported: the filter 'shuffle'" --set data.template=bad.jinja
printf '%s' "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}" >"$dir/mute.jinja"
printf '%s' '{% for m in messages %}{% endif %}' >"$dir/broken.jinja"
refused a_template_that_is_no_template "data.template: $dir/broken.jinja:1:" --set data.template=broken.jinja
printf '%s' '{% for i in range(1000000000) %}{% endfor %}' >"$dir/endless.jinja"
refused a_template_beyond_its_limits "chat.jsonl:1: the chat template: 1:18: a range of more than 100000 numbers" --set data.template=endless.jinja
refused a_template_without_answers "chat.jsonl:1: message 2: the chat template $dir/mute.jinja does not show this answer" --set data.template=mute.jinja
refused steps_and_epochs "train.epochs: cannot be used with train.steps" --set train.epochs=2 --set train.steps=3
refused a_context_that_is_too_short "36 conversations are longer than model.context = 16 tokens; the first is $dir/chat.jsonl:1, with 28 tokens" --set model.context=16
refused joined_conversations "data.documents: conversations are bounded" --set data.documents=joined
refused a_vocabulary_without_the_special_tokens "model.vocab: 256 is less than the 259 tokens" --set model.vocab=256
printf '{"messages": [{"role": "user", "content": "a"}]}\n' >"$dir/no.jsonl"
refused a_conversation_without_an_answer "no.jsonl:1: the conversation has no answer" --set 'data.train=[no.jsonl]'
cp "$dir/chat.jsonl" "$dir/late.jsonl"
printf '\n{"messages": [{"role": "boss", "content": "a"}]}\n' >>"$dir/late.jsonl"
refused a_wrong_role_of_a_later_line "late.jsonl:38: message 1: 'role' is 'boss', which is no known role; the conversation has boss" --set 'data.train=[late.jsonl]'
sed 's/chat\.jsonl/late.jsonl/' "$dir/job.yaml" >"$dir/late.yaml"
check_status a_wrong_line_is_refused_where_it_is_named 2 heddle validate "$dir/late.yaml"
check_equal in_the_job_file 1 "$(grep -c "late.yaml:3: data.train: $dir/late.jsonl: 1 of 37 records cannot be used" "$work/check.err")"
refused another_form_than_was_said "chat.jsonl:1:" --set data.format=alpaca

# ---- training, and an answer that ends ----
check a_model_learns_them heddle local "$dir/job.yaml" --dir run --state-dir "$work/runs" --set train.epochs=60 -o jsonl
cp "$work/check.err" "$work/run.err"
check_equal each_step_says_what_counts 120 "$(grep -c '"type":"step".*"targets":108,' "$work/check.out")"
for question in ab fd; do
    check "it_answers_$question" heddle generate "$work/runs/run" --chat --prompt "$question?" --greedy --max-tokens 64
    check_equal "it_answers_${question}_and_stops" "${question:0:1}${question:0:1}${question:1:1}${question:1:1}" "$(cat "$work/check.out")"
done
# a conversation, and another one; the first is saved in the form that it was trained on
printf 'ab?\n/save %s\n/reset\nfd?\n/nope\n' "$work/said.jsonl" >"$work/questions"
check_status a_conversation_of_lines 2 heddle chat "$work/runs/run" --temperature 0 --max-tokens 64 <"$work/questions"
check_equal is_answered_line_by_line "aabb ffdd " "$(tr '\n' ' ' <"$work/check.out")"
check_equal until_a_command_that_there_is_not 1 "$(grep -c 'there is no /nope' "$work/check.err")"
check_equal and_is_kept '{"messages":[{"role":"user","content":"ab?"},{"role":"assistant","content":"aabb"}]}' "$(cat "$work/said.jsonl")"
check_equal whose_hint_is_at_the_end_of_the_run 1 "$(grep -c "heddle chat $work/runs/run" "$work/run.err")"
check an_export heddle checkpoint export "$work/runs/run" --out "$work/model"
check_equal carries_what_a_chat_needs "chat_template.jinja config.json generation_config.json heddle-hashes.json model.safetensors tokenizer.json tokenizer_config.json" \
    "$(cd "$work/model" && echo *)"
check_equal says_where_its_documents_end 1 "$(grep -c '"eos_token_id":257[,}]' "$work/model/config.json")" # the <|im_end|> of tokenizer_config.json
check an_exported_model_chats heddle generate "$work/model" --chat --prompt 'ce?' --greedy --max-tokens 64
check_equal and_stops_too ccee "$(cat "$work/check.out")"

finish
