"""conversations_beside.py HEDDLE_WORKER: heddle data tokenize of conversations beside transformers.

Makes 1,000 conversations of one to four questions and answers from the words of this project's documents, and a
byte-level BPE of 8,000 tokens trained on them. Both render each with the same template (ChatML), tokenize it
and find the tokens of its answers, with one thread: ours from process start to the synced files, theirs
apply_chat_template on lists in memory. By turns, five times each. Prints seconds of CPU time and the ratio;
exits with 1 when the numbers of tokens differ (that ids and masks are equal: tests/interop/conversations).
"""
import glob
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONVERSATIONS, TURNS = 1000, 5
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
)


def converse(draw, words):
    def some(least, most):
        return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))

    messages = []
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": some(5, 60)})
        messages.append({"role": "assistant", "content": some(20, 200)})
    return messages


def children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(worker):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
    words = [w for path in sorted(glob.glob(os.path.join(docs, "*.md"))) for w in open(path).read().split()]
    draw = random.Random(1)
    conversations = [converse(draw, words) for _ in range(CONVERSATIONS)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        (m["content"] for c in conversations for m in c),
        trainers.BpeTrainer(vocab_size=8000, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=TEMPLATE)
    ours_s, theirs_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        path, source, template, out = (
            os.path.join(folder, n) for n in ("tokenizer.json", "chat.jsonl", "chat.jinja", "tokens"))
        bpe.save(path)
        with open(source, "w") as lines:
            lines.writelines(json.dumps({"messages": c}) + "\n" for c in conversations)
        with open(template, "w") as file:
            file.write(TEMPLATE)
        for _ in range(TURNS):
            begin, tokens = time.process_time(), 0
            for c in conversations:
                made = theirs.apply_chat_template(c, return_dict=True, return_assistant_tokens_mask=True)
                tokens += len(made["input_ids"])
            theirs_s.append(time.process_time() - begin)
            begin = children_s()
            subprocess.run([worker, "tokenize", "--out", out, "--format", "megatron", "--tokenizer", path,
                            "--template", template, "--threads", "1", "--", source], check=True,
                           stdout=subprocess.DEVNULL)
            ours_s.append(children_s() - begin)
        ids = sum(os.path.getsize(f) for f in glob.glob(out + "*.bin")) // 2
    ratios = sorted(a / b for a, b in zip(theirs_s, ours_s))
    print("%d conversations, %d tokens, transformers %s" % (CONVERSATIONS, tokens, transformers.__version__))
    for name, seconds in (("heddle", ours_s), ("transformers", theirs_s)):
        print("%-13s %6.3f s of CPU time  (%.3f to %.3f)" %
              (name, statistics.median(seconds), min(seconds), max(seconds)))
    print("ratio         %6.1f       (%.1f to %.1f)" % (statistics.median(ratios), ratios[0], ratios[-1]))
    if ids < tokens:
        print("%d tokens were written" % ids)
    return 0 if ids >= tokens else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
