#!/bin/bash
# serve: a model answers by HTTP what heddle generate writes; requests side by side, in streams, with
# odds; what is wrong is said in the API's form; it ends in order.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/e2e/http/http.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/e2e/cli/chat_model.sh" || exit 1

# A model that answers "ab?" by "aabb" and stops, as in cli/chat.sh.
conversations {a..f}{a..f} >"$dir/chat.jsonl"
cat >"$dir/job.yaml" <<END
name: chat
model: {family: llama, layers: 2, hidden: 64, heads: 4, vocab: 259, context: 256}
data: {train: [chat.jsonl], tokenizer: tokenizer.json, template: chat_template.jinja}
train: {epochs: 60, global_batch: 2, lr: {peak: 3e-3, decay: constant, warmup: 0}}
resources: {device_type: cpu, threads: 1}
END
check a_model_is_trained heddle local "$dir/job.yaml" --dir run --state-dir "$work/runs"
check a_model_is_exported heddle checkpoint export "$work/runs/run" --out "$work/model"

# serve NAME ARGUMENT...: starts a server and waits for its address: $door is "HOST PORT", $server its process
serve() {
    local name=$1
    shift
    : >"$work/$name.address"
    "$HEDDLE_BIN/heddle" serve "$@" >"$work/$name.address" 2>"$work/$name.log" &
    server=$!
    await 60 test -s "$work/$name.address" || { not_ok "serve_$name" "$(tail -n 3 "$work/$name.log")"; finish; }
    door=$(sed -nE 's#^https?://([0-9.]*):([0-9]*)/v1$#\1 \2#p' "$work/$name.address")
}
# post PATH BODY [HEADER...]: the answer, head and body
post() {
    local path=$1 body=$2 header
    shift 2
    exec 8<>"/dev/tcp/${door% *}/${door#* }" || return 1
    printf 'POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n' "$path" "$(printf %s "$body" | wc -c)" >&8
    for header; do printf '%s\r\n' "$header" >&8; done
    printf '\r\n%s' "$body" >&8
    timeout 60 cat <&8
    exec 8>&-
}
answer() { post "$@" | sed '1,/^\r$/d'; }
code() { post "$@" | sed -n '1s/^HTTP\/1.1 \([0-9]*\).*/\1/p'; }
# texts: of all choices, in their order, from an answer
texts() { grep -o '"text":"[^"]*"' | sed 's/"text":"\(.*\)"/\1/' | tr '\n' '|'; }
unchunk() { tr -d '\r' | grep '^data: '; }

serve one "$work/model" --listen 127.0.0.1:0 --name tiny --sequences 3 --threads 1 --queue 20
check_equal health 200 "$(status $door /health)"
check_equal models_are_listed tiny "$(body $door /v1/models | member id)"
check_equal one_model_is_described 200 "$(status $door /v1/models/tiny)"
check_equal another_one_is_not_there 404 "$(status $door /v1/models/huge)"

# ---- completions ----

prompt='<|im_start|>user\nce?<|im_end|>\n<|im_start|>assistant\n'
written=$(heddle generate "$work/model" --chat --prompt 'ce?' --greedy --max-tokens 64)
check_equal generate_knows_the_answer ccee "$written"
check_equal and_so_do_two_stages ccee "$(heddle generate "$work/model" --chat --prompt 'ce?' --greedy --max-tokens 64 --pp 2)"
one=$(answer /v1/completions '{"prompt": "'"$prompt"'", "temperature": 0, "max_tokens": 64}')
check_equal a_completion_is_what_generate_writes "ccee|" "$(texts <<<"$one")"
check_equal it_ends_at_the_token_that_ends_an_answer stop "$(member finish_reason <<<"$one")"
# 1 + 4 + 1 + 3 + 1 + 1 of the question, 1 + 10 in front of the answer; 4 letters and the token that ends it
check_equal its_tokens_are_counted '"usage":{"prompt_tokens":22,"completion_tokens":5,"total_tokens":27}' "$(grep -o '"usage":{[^}]*}' <<<"$one")"
short=$(answer /v1/completions '{"prompt": "'"$prompt"'", "temperature": 0, "max_tokens": 2}')
check_equal too_few_tokens_are_a_length "cc| length" "$(texts <<<"$short") $(member finish_reason <<<"$short")"
stop=$(answer /v1/completions '{"prompt": "'"$prompt"'", "temperature": 0, "stop": ["x", "ce"]}')
check_equal a_stop_text_is_cut_off "c| stop" "$(texts <<<"$stop") $(member finish_reason <<<"$stop")"
many=$(answer /v1/completions '{"prompt": ["'"${prompt/ce/ab}"'", "'"${prompt/ce/fd}"'", "'"${prompt/ce/bb}"'", "'"${prompt/ce/ea}"'"], "temperature": 0, "n": 2}')
check_equal prompts_and_choices_keep_their_order "aabb|aabb|ffdd|ffdd|bbbb|bbbb|eeaa|eeaa|" "$(texts <<<"$many")"
echo=$(answer /v1/completions '{"prompt": "ab", "echo": true, "max_tokens": 1, "logprobs": 1, "temperature": 0}')
check_equal echo_begins_with_the_prompt ab "$(texts <<<"$echo" | cut -c1-2)"
check_equal the_first_token_follows_nothing "[null," "$(grep -o '"token_logprobs":\[[^,]*,' <<<"$echo" | cut -d: -f2)"
check_equal each_token_has_its_odds 3 "$(grep -o '"token_logprobs":\[[^]]*' <<<"$echo" | tr ',' '\n' | wc -l)"
ids=$(answer /v1/completions '{"prompt": [97, 98], "echo": true, "max_tokens": 1, "logprobs": 1, "temperature": 0}')
check_equal ids_are_as_good_as_texts "$(grep -o '"logprobs":{.*}}' <<<"$echo" | sed 's/,"usage.*//')" "$(grep -o '"logprobs":{.*}}' <<<"$ids" | sed 's/,"usage.*//')"
seeded() { answer /v1/completions '{"prompt": "a", "max_tokens": 12, "temperature": 3, "seed": '"$1"'}' | texts; }
check_equal a_seed_repeats_itself "$(seeded 5)" "$(seeded 5)"
# of 12 draws among hundreds of tokens two seeds do not agree
if [ "$(seeded 5)" != "$(seeded 6)" ]; then ok another_seed_is_another_text; else not_ok another_seed_is_another_text "$(seeded 6)"; fi

# ---- chat ----

ask='"messages": [{"role": "user", "content": "fd?"}], "temperature": 0'
chat=$(answer /v1/chat/completions "{$ask}")
check_equal a_chat_is_answered "ffdd stop" "$(member content <<<"$chat") $(member finish_reason <<<"$chat")"
check_equal parts_of_content_are_one_text ffdd "$(answer /v1/chat/completions '{"temperature": 0, "messages": [{"role": "user", "content": [{"type": "text", "text": "f"}, {"type": "text", "text": "d?"}]}]}' | member content)"
check_equal tools_need_a_template_for_them 'the chat template of this model takes no tools' "$(answer /v1/chat/completions "{$ask, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}" | member message)"
odds=$(answer /v1/chat/completions "{$ask, \"logprobs\": true, \"top_logprobs\": 2}")
check_equal a_chat_tells_odds '"token":"f"' "$(grep -o '"token":"[^"]*"' <<<"$odds" | head -n 1)"
# a message that spells a special token is text: ten letters in place of one token, in
# 1 + 4 + 1 + 1 + 10 + 1 + 1 + 1 of the question and 1 + 10 in front of the answer
check_equal a_message_makes_no_special_token 31 "$(answer /v1/chat/completions '{"messages": [{"role": "user", "content": "a<|im_end|>b"}], "max_tokens": 1}' | grep -o '"prompt_tokens":[0-9]*' | sed 's/.*://')"

# ---- streams ----

stream=$(post /v1/chat/completions "{$ask, \"stream\": true, \"stream_options\": {\"include_usage\": true}}" | unchunk)
check_equal a_stream_has_the_same_text ffdd "$(grep -o '"content":"[^"]*"' <<<"$stream" | cut -d'"' -f4 | tr -d '\n')"
check_equal a_stream_says_how_it_ended 1 "$(grep -c '"finish_reason":"stop"' <<<"$stream")"
check_equal a_stream_ends_with_the_usage 1 "$(tail -n 2 <<<"$stream" | head -n 1 | grep -c '"choices":\[\],"usage":{')"
check_equal a_stream_is_done 'data: [DONE]' "$(tail -n 1 <<<"$stream")"
held=$(post /v1/completions '{"prompt": "'"$prompt"'", "temperature": 0, "stream": true, "stop": "ee"}' | unchunk)
check_equal a_stream_never_sends_a_stop_text cc "$(grep -o '"text":"[^"]*"' <<<"$held" | cut -d'"' -f4 | tr -d '\n')"

# ---- what is wrong ----

# wrong NAME STATUS MESSAGE PATH BODY [HEADER...]
wrong() {
    local name=$1 expected=$2 message=$3 got
    shift 3
    got=$(post "$@")
    check_equal "$name" "$expected" "$(sed -n '1s/^HTTP\/1.1 \([0-9]*\).*/\1/p' <<<"$got")"
    if grep -qF -- '{"error":{"message":"' <<<"$got" && grep -qF -- "$message" <<<"$got"; then
        ok "${name}_and_why"
    else
        not_ok "${name}_and_why" "$(tail -n 1 <<<"$got")"
    fi
}
wrong no_json 400 'the body is not JSON' /v1/completions '{'
wrong an_unknown_setting 400 '"param":"temprature"' /v1/completions '{"prompt": "a", "temprature": 1}'
wrong another_model 404 'this server has \"tiny\"' /v1/completions '{"prompt": "a", "model": "huge"}'
wrong a_prompt_that_is_too_long 400 'the prompt has 300 tokens, and the context is 256' /v1/completions '{"prompt": "'"$(printf 'a%.0s' {1..300})"'"}'
wrong an_id_that_is_no_token 400 'token 259 is outside the vocabulary of 259' /v1/completions '{"prompt": [259]}'
wrong more_choices_than_may_wait 400 'at most 20 are allowed (--queue)' /v1/completions '{"prompt": "a", "n": 21}'
wrong no_such_path 404 'there is no /v1/embeddings' /v1/embeddings '{}'
wrong a_path_that_is_read 405 'takes GET' /v1/models '{}'
wrong a_page_of_another_site 403 'a page of another site' /v1/completions '{"prompt": "a"}' 'Origin: http://evil.example'

# ---- multiple choice ----

for pair in ab ce fd ea; do
    a=${pair:0:1} b=${pair:1:1}
    printf '{"prompt": "%s", "choices": ["%s", "%s", "%s"], "answer": 1, "delimiter": ""}\n' "${prompt/ce/$pair}" $b$b$a$a $a$a$b$b $a$b$a$b
done >"$work/questions.jsonl"
check questions_are_answered heddle eval "$work/model" --threads 1 --choices "$work/questions.jsonl"
check_equal all_of_them_right "acc 1.0000 acc_norm 1.0000 questions 4" "$(awk '/^(acc|acc_norm|questions) / { printf "%s%s %s", (n++ ? " " : ""), $1, $2 }' "$work/check.out")"
check questions_with_their_answers heddle eval "$work/model" --threads 1 --choices "$work/questions.jsonl" --limit 3 --tp 2 --pp 2 -o jsonl
check_equal each_has_a_line 3 "$(grep -c '"type":"question".*"answer":1,"choice":1,"choice_norm":1,' "$work/check.out")"
# A tokenizer that puts a token in front of a text does so for a question, unless its prompt begins with that token.
cp -r "$work/model" "$work/begins"
begin='{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|im_end|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<|im_end|>":{"id":"<|im_end|>","ids":[257],"tokens":["<|im_end|>"]}}}'
sed -i "s/\"post_processor\":null/\"post_processor\":$begin/" "$work/begins/tokenizer.json"
printf '{"bos_token": "<|im_end|>", "eos_token": "<|im_end|>"}\n' >"$work/begins/tokenizer_config.json"
odds() { heddle eval "$work/$1" --threads 1 --choices "$2" -o jsonl | grep -o '"log_likelihoods":[^]]*'; }
printf '{"prompt": "ab", "choices": ["a", "b"], "answer": 0}\n' >"$work/plain.jsonl"
printf '{"prompt": "<|im_end|>ab", "choices": ["a", "b"], "answer": 0}\n' >"$work/begun.jsonl"
check_equal a_question_begins_as_its_tokenizer_says "$(odds model "$work/begun.jsonl")" "$(odds begins "$work/plain.jsonl")"
check_equal but_not_twice "$(odds model "$work/begun.jsonl")" "$(odds begins "$work/begun.jsonl")"
check_equal and_not_where_it_says_nothing 1 "$([ "$(odds model "$work/begun.jsonl")" != "$(odds model "$work/plain.jsonl")" ] && echo 1)"
printf '{"prompt": "a"}\n' >"$work/wrong.jsonl"
check_status a_line_that_is_no_question_is_said 2 heddle eval "$work/model" --threads 1 --choices "$work/wrong.jsonl"
check_equal with_its_place 1 "$(grep -c 'wrong.jsonl:1: ' "$work/check.err")"

# Six times 1 + 1 + 12 bytes in three tokens, and the token that ends the text, which has no bytes. One window has
# all of them; the first one is no target: 18 targets of 84 - 1 bytes.
printf 'ab<|im_start|>%.0s' {1..6} >"$work/six.txt"
check perplexity_of_a_byte heddle eval "$work/model" --threads 1 --data "$work/six.txt" --context 18 -o json
check_equal counts_the_bytes_of_the_targets "18 83" "$(member tokens <"$work/check.out") $(member bytes <"$work/check.out")"

# ---- clients that go, and the end ----

# a stream whose client goes is not generated to its end: its place in the queue is free again
exec 7<>"/dev/tcp/${door% *}/${door#* }"
long='{"prompt": "a", "stream": true, "n": 20, "max_tokens": 250, "temperature": 3, "seed": 1, "stop": ["@@@@@@"]}'
printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#long} "$long" >&7
timeout 20 head -n 1 <&7 >/dev/null
exec 7>&-
is_idle() { [ "$(body $door /health | grep -o '"choices":[0-9]*')" = '"choices":0' ]; }
if await 30 is_idle; then ok a_client_that_goes_frees_its_place; else not_ok a_client_that_goes_frees_its_place "$(body $door /health)"; fi

post /v1/completions '{"prompt": "'"$prompt"'", "temperature": 0, "n": 20}' >"$work/last" &
last=$!
has_come() { [ -s "$work/last" ] || [ "$(body $door /health | grep -o '"choices":[0-9]*')" != '"choices":0' ]; }
await 20 has_come
kill -TERM "$server"
wait "$server"
check_equal it_ends_in_order 0 $?
wait "$last"
check_equal and_answers_what_it_was_asked 20 "$(grep -o '"text":"ccee"' "$work/last" | wc -l)"

# ---- doors ----

check_status beyond_this_machine_it_needs_tokens_and_tls 5 heddle serve "$work/model" --listen 0.0.0.0:0
printf 'ann ann-0123456789abcdef\n' >"$work/tokens"
chmod 600 "$work/tokens"
serve two "$work/model/" --threads 1 --listen 127.0.0.1:0 --tokens "$work/tokens" --weights nf4 --precision bf16
wrong without_a_token 401 'a token is needed' /v1/completions '{"prompt": "a"}'
check_equal with_a_token_of_codes_in_bf16 200 "$(code /v1/completions '{"prompt": "a"}' 'Authorization: Bearer ann-0123456789abcdef')"
check_equal a_folder_gives_its_name model "$(body $door /v1/models 'Authorization: Bearer ann-0123456789abcdef' | member id)"
check_equal health_needs_none 200 "$(status $door /health)"
printf 'bob bob-0123456789abcdef\n' >"$work/tokens"
kill -HUP "$server"
check tokens_are_read_again await 10 grep -q 'reload: tokens read again from the file' "$work/two.log"
check_equal a_token_that_is_gone_opens_nothing "401 200" "$(code /v1/completions '{"prompt": "a"}' 'Authorization: Bearer ann-0123456789abcdef') $(code /v1/completions '{"prompt": "a"}' 'Authorization: Bearer bob-0123456789abcdef')"
chmod 644 "$work/tokens"
kill -HUP "$server"
check a_file_that_others_can_read_is_refused await 10 grep -q 'reload: .*; keeping the previous tokens' "$work/two.log"
check_equal and_the_tokens_of_before_stay 200 "$(code /v1/completions '{"prompt": "a"}' 'Authorization: Bearer bob-0123456789abcdef')"
kill -TERM "$server"
wait "$server"
# a certificate that is broken keeps nothing else from being read
chmod 600 "$work/tokens"
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$work/key.pem" -out "$work/cert.pem" -days 2 -subj /CN=localhost 2>/dev/null
serve three "$work/runs/run" --threads 1 --listen 127.0.0.1:0 --tp 2 --pp 2 --tokens "$work/tokens" --cert "$work/cert.pem" --key "$work/key.pem"
printf 'ann ann-fedcba9876543210\n' >"$work/tokens"
echo broken >"$work/cert.pem"
kill -HUP "$server"
check tokens_are_read_beside_a_broken_certificate await 10 grep -q 'reload: tokens read again from the file' "$work/three.log"
check_equal and_the_certificate_of_before_stays 1 "$(grep -c 'reload: .*; keeping the previous certificate' "$work/three.log")"
secret() { # TOKEN: the model's name, by TLS
    printf 'GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n' "$1" |
        timeout 20 openssl s_client -connect "${door/ /:}" -quiet -ign_eof 2>/dev/null | member id
}
check_equal a_checkpoint_has_its_jobs_name "chat|" "$(secret ann-fedcba9876543210)|$(secret bob-0123456789abcdef)"
kill -TERM "$server"
wait "$server"
check_status no_model_is_said 4 heddle serve "$work/nothing"
check_status a_wrong_flag_is_said 2 heddle serve "$work/model" --sequences 0
check_status an_address_that_nobody_can_read_is_said 6 sh -c '"$HEDDLE_BIN/heddle" serve "$1" --threads 1 --listen 127.0.0.1:0 >/dev/full' sh "$work/model"
finish
