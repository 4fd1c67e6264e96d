# chat_model.sh: a tokenizer, a chat template and settings of generation in $dir; sourced behind cluster.sh.
dir=$work/chat
mkdir "$dir"
# byte-level: the 256 letters of tokenizer.json's alphabet, and three special tokens behind them
awk 'BEGIN {
    n = 0
    for (b = 0; b < 256; b++)
        code[b] = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : 256 + n++
    printf "{\"version\":\"1.0\",\"added_tokens\":["
    split("<|im_start|> <|im_end|> <|endoftext|>", special, " ")
    for (i = 1; i <= 3; i++)
        printf "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":false}", (i == 1 ? "" : ","), 255 + i, special[i]
    printf "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    printf "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{"
    for (b = 0; b < 256; b++)
        printf "%s\"\\u%04x\":%d", (b ? "," : ""), code[b], b
    printf "},\"merges\":[]}}"
}' >"$dir/tokenizer.json"
printf '%s' "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}" >"$dir/chat_template.jinja"
printf '{"eos_token_id": 257}' >"$dir/generation_config.json"
printf '{"bos_token": null, "eos_token": "<|im_end|>"}' >"$dir/tokenizer_config.json"

# conversations PAIR...: a line for each pair of letters, a question of both that is answered by each twice
conversations() {
    local pair a b
    for pair; do
        a=${pair:0:1} b=${pair:1:1}
        printf '{"messages": [{"role": "user", "content": "%s?"}, {"role": "assistant", "content": "%s"}]}\n' $pair $a$a$b$b
    done
}
