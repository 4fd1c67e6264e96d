"""compare.py CONVERSATION_IDS COUNT [SEED]: ids and masks of random conversations, ours beside transformers'.
compare.py --write FILE: a few of transformers', for tests/unit/data/conversations_test.c. What is committed was made
with transformers 5.24 and the tokenizers of tests/unit/tokenizer/tokenizers.

For each tokenizer of tokenizers/make_tokenizers.py and each template below. Prints one line each, with the
conversations that differ (at most five), and exits with 1 if one does.

transformers takes the place of an answer in characters, and ends its mask at the first token of the answer's last
character; an answer here ends with an ASCII character, of which there is one token.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tokenizers"))
import make_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

CHATML = """{%- for m in messages %}
{{- '<|im_start|>' + m['role'] + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}{{ m['content'] + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    "chatml by prefixes": CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", ""),
    "llama3": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
              "{{ m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
              "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "llama2": "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] | trim + ' [/INST]' }}"
              "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    "behind a special token": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>' }}"
                              "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}"
                              "{{ '<|eot_id|>' + m.content }}{% endif %}{% endfor %}",
    "plain": "{% for m in messages %}{% if m.role == 'user' %}{{ 'Q: ' + m.content + '\\n' }}"
             "{% elif m.role == 'assistant' %}{{ 'A: ' }}{% generation %}{{ m.content + eos_token }}{% endgeneration %}"
             "{{ '\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}",
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def conversations(count, seed):
    r = random.Random(seed)
    words = ["the", "cat", " sat", "\n", "  ", "\u00e9t\u00e9", "cafe\u0301", "\u4f60\u597d", "\U0001f600", "\u2581", "123", "x=1;", "[INST]",
             "word", "token", "<strip>", "'s", "\t", "A\u030a", "<", "<|", "\ufdd0"]
    for _ in range(count):
        messages = [{"role": "system", "content": "be brief"}] if r.random() < 0.3 else []
        for _ in range(r.randrange(1, 4)):
            for role in ("user", "assistant"):
                text = "".join(r.choice(words) + r.choice(["", " "]) for _ in range(r.randrange(1, 12)))
                messages.append({"role": role, "content": text + ("." if role == "assistant" else "")})
        yield messages


def mask_by_prefixes(tokenizer, messages, text, encoding):
    """A token counts that holds a character of what an answer adds to the text in front of it."""
    mask = [0] * len(encoding.ids)
    for i, m in enumerate(messages):
        if m["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True)
        upto = tokenizer.apply_chat_template(messages[:i + 1], tokenize=False)
        assert text.startswith(upto) and upto.startswith(before)
        held = [t for t, (a, b) in enumerate(encoding.offsets) if a < len(upto) and b > len(before)]
        for t in range(held[0], held[-1] + 1):
            mask[t] = 1
    return mask


def theirs(tokenizer, template, messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    if "{% generation %}" in template:
        out = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        return list(out["input_ids"]), list(out["assistant_masks"])
    encoding = tokenizer._tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, mask_by_prefixes(tokenizer, messages, text, encoding)


def compare(program, name, backend, label, template, folder, cases):
    backend.add_special_tokens(SPECIAL)
    path = os.path.join(folder, "tokenizer.json")
    backend.save(path, pretty=False)
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    if backend.token_to_id("<s>") is None:
        names = {"bos_token": "<|im_start|>", "eos_token": "<|eot_id|>"}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as out:
        json.dump(names, out)
    with open(os.path.join(folder, "chat_template.jinja"), "w") as out:
        out.write(template)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, chat_template=template, **names)
    given = "".join(json.dumps({"messages": m}) + "\n" for m in cases)
    answer = subprocess.run([program, path, os.path.join(folder, "chat_template.jinja"), "answers"],
                            input=given.encode(), stdout=subprocess.PIPE, check=True).stdout
    differ, ran = [], 0
    for messages, line in zip(cases, answer.decode().splitlines()):
        ours = json.loads(line)
        ids, mask = theirs(tokenizer, template, messages)
        ran += 1
        if ours.get("error") or ours["ids"] != ids or ours["counts"] != mask:
            differ.append((messages, ours, ids, mask))
    print("%s, %s: %d of %d conversations differ" % (name, label, len(differ), ran))
    for messages, ours, ids, mask in differ[:5]:
        print("  %r\n    ours   %s\n    theirs %s" % (messages, ours, {"ids": ids, "counts": mask}))
    return len(differ) + (ran != len(cases))


def write(path):
    """A JSON object a line: the tokenizer's file, the template, the conversation, its ids and mask."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "unit", "tokenizer", "tokenizers")
    with open(path, "w") as out:
        for name, label in (("qwen2", "chatml"), ("qwen2", "chatml by prefixes"), ("llama2", "llama2"), ("mistral", "llama2")):
            names = {"bos_token": "<s>", "eos_token": "</s>"} if label == "llama2" else {}
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, name + ".json"),
                                                chat_template=TEMPLATES[label], **names)
            for messages in conversations(4, 7):
                ids, mask = theirs(tokenizer, TEMPLATES[label], messages)
                out.write(json.dumps({"tokenizer": name + ".json", "template": TEMPLATES[label], "names": names,
                                      "line": json.dumps({"messages": messages}), "ids": ids, "counts": mask}) + "\n")
    return 0


def main(program, count, seed):
    wrong = 0
    for label, template in TEMPLATES.items():
        for name, backend in make_tokenizers.make():
            with tempfile.TemporaryDirectory() as folder:
                wrong += compare(program, name, backend, label, template, folder, list(conversations(count, seed)))
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        sys.exit(write(sys.argv[2]))
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1))
