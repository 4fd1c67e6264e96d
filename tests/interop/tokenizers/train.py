"""train.py compare HEDDLE_WORKER ROUNDS SEED | golden FOLDER | bench HEDDLE_WORKER VOCAB FILE...

Tokenizers that heddle-worker train-tokenizer makes beside those of BpeTrainer of Hugging Face tokenizers.

compare: random corpora, of few letters so that counts are often equal and one token has several ways to be
made; vocabulary and merges must be equal, and AutoTokenizer, where transformers is there, must load the folder
with the special tokens. golden: writes train.txt and train.json, which tokenizer_train_test reads. bench: CPU seconds of
both on one core, with equal merges.
"""
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+")


def reference(texts, vocab, pattern, min_count, specials):
    t = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel
    t.pre_tokenizer = byte_level(add_prefix_space=False) if pattern == "gpt2" else pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CL100K), "isolated"), byte_level(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=min_count, special_tokens=specials, show_progress=False,
        initial_alphabet=byte_level.alphabet()))
    return json.loads(t.to_str())["model"]


def corpus(rng):
    letters = rng.choice(["ab", "abc", "abcdefgh", "aé日 1", "ab '\n\r\t 12"])
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(1, 12))) for _ in range(rng.randint(1, 200))]
    return [" ".join(rng.choice(words) for _ in range(rng.randint(1, 300))) for _ in range(rng.randint(1, 4))]


def check_folder(folder, specials):
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded.eos_token == specials[-1] and loaded.pad_token == specials[0], loaded
    assert loaded.eos_token_id == len(specials) - 1
    assert loaded("a" + specials[-1], add_special_tokens=False)["input_ids"][-1] == loaded.eos_token_id


def compare(worker, rounds, seed):
    rng = random.Random(seed)
    repeated = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds):
            texts = corpus(rng)
            pattern, min_count = rng.choice(["gpt2", "cl100k"]), rng.randint(1, 3)
            specials = [["<s>"], ["<pad>", "</s>"], ["ab", "<e>"]][rng.randint(0, 2)]
            vocab = 256 + len(specials) + rng.randint(0, 150)
            names = []
            for k, text in enumerate(texts):
                names.append(os.path.join(folder, "%d.txt" % k))
                with open(names[-1], "w", encoding="utf-8", newline="") as f:
                    f.write(text)
            out = os.path.join(folder, "out")
            subprocess.check_call(
                [worker, "train-tokenizer", "--out", out, "--vocab", str(vocab), "--pattern", pattern, "--force",
                 "--min-count", str(min_count), "--eos", specials[-1], "--pad", specials[0],
                 "--threads", str(rng.randint(1, 3))]
                + [w for s in specials for w in ("--special", s)] + ["--"] + names,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with open(os.path.join(out, "tokenizer.json"), encoding="utf-8") as f:
                ours = json.load(f)["model"]
            theirs = reference(texts, vocab, pattern, min_count, specials)
            assert ours["vocab"] == theirs["vocab"], (seed, i, "vocab")
            assert ours["merges"] == theirs["merges"], (seed, i, "merges")
            repeated += len(ours["merges"]) > len(ours["vocab"]) - 256 - len(specials)
            if i < 3:
                check_folder(out, specials)
    print("%d tokenizers are equal; in %d of them a token can be made in several ways" % (rounds, repeated))


def golden(folder):
    rng = random.Random(7)
    words = ["".join(rng.choice("abé ") for _ in range(rng.randint(1, 12))) for _ in range(60)]
    text = " ".join(rng.choice(words) for _ in range(500))
    with open(os.path.join(folder, "train.txt"), "w", encoding="utf-8") as f:
        f.write(text)
    model = reference([text], 320, "cl100k", 2, ["<s>"])
    with open(os.path.join(folder, "train.json"), "w", encoding="utf-8") as f:
        json.dump({"vocab": model["vocab"], "merges": model["merges"]}, f, ensure_ascii=False)


def bench(worker, vocab, names):
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = [open(n, encoding="utf-8", newline="").read() for n in names]
    before = time.process_time()
    theirs = reference(texts, vocab, "cl100k", 2, ["<s>"])
    spent = time.process_time() - before
    with tempfile.TemporaryDirectory() as folder:
        subprocess.check_call([worker, "train-tokenizer", "--out", folder, "--vocab", str(vocab), "--special", "<s>",
                               "--threads", "1", "--"] + names)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
            assert json.load(f)["model"]["merges"] == theirs["merges"]
    ours = used.ru_utime + used.ru_stime
    print("%.1f MB, %d tokens: tokenizers %.1f s, heddle %.1f s of CPU time, %.1f times as fast" % (
        sum(len(t.encode()) for t in texts) / 1e6, vocab, spent, ours, spent / ours))


if __name__ == "__main__":
    if sys.argv[1] == "bench":
        bench(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    elif sys.argv[1] == "golden":
        golden(sys.argv[2])
    else:
        compare(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
