"""rewards.py make DIR   for some of the models of models.py in DIR a reward model with the same body, of
   transformers' class for sequence classification, as DIR/rater-NAME; files DIR/pair-K.jsonl and DIR/pairs.jsonl;
   prints the names
   rewards.py LIST       a line of LIST is "NAME DIR ADAPTER FILE...": DIR is a folder of transformers, ADAPTER a folder
   of PEFT to load beside it, or "-"; FILE K is what heddle eval says of pair K. Are the rewards those of
   transformers, in one batch that is padded on the right? Prints ok or not ok."""
import json
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

NAMES = ["gpt2", "llama-mqa-tied", "qwen2-window-tied", "qwen3", "mixtral"]
PAIRS = [("2+2=", "4.", "five."), ("Say it:", "certainly!", "no"), ("a", "b", "a much longer answer")]
PAD = 0  # a byte that no text of PAIRS has


def load(directory):
    return AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32, num_labels=1,
                                                              attn_implementation="eager").eval()


def make(directory):
    for name in NAMES:
        config = AutoConfig.from_pretrained(f"{directory}/{name}")
        config.num_labels, config.pad_token_id, config.heddle_tokenizer = 1, PAD, "bytes"
        torch.manual_seed(5)
        model = AutoModelForSequenceClassification.from_config(config)
        torch.nn.init.normal_(model.score.weight)  # of 0.02 rewards would be almost 0
        model.save_pretrained(f"{directory}/rater-{name}")
        print(name)
    lines = [json.dumps(dict(zip(("prompt", "chosen", "rejected"), p))) + "\n" for p in PAIRS]
    for k, line in enumerate(lines):
        open(f"{directory}/pair-{k}.jsonl", "w").write(line)
    open(f"{directory}/pairs.jsonl", "w").writelines(lines)


def compare(name, directory, adapter, *files):
    model = load(directory)
    if adapter != "-":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).eval()
    texts = [(prompt + answer).encode() for prompt, *answers in PAIRS for answer in answers]
    ids = torch.full((len(texts), max(map(len, texts))), PAD)
    for row, text in zip(ids, texts):
        row[:len(text)] = torch.tensor(list(text))
    model.config.pad_token_id = PAD  # an export of a model without such a token names none
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=(ids != PAD).long()).logits[:, 0].reshape(-1, 2)
    size, apart = float(theirs.abs().max()), 0.0
    for (chosen, rejected), file in zip(theirs.tolist(), files):
        said = json.load(open(file))["items"][0]
        apart = max(apart, abs(said["reward"] + said["margin"] / 2 - chosen),
                    abs(said["reward"] - said["margin"] / 2 - rejected))
    good = apart < 1e-5 * size and len(files) == len(PAIRS) and float(theirs.std()) > 1e-3 * size
    print(f"{'ok' if good else 'not ok'} {name}: {apart / size:.2g} of the largest reward, {size:.3g}")


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    for line in open(sys.argv[1]):
        compare(*line.split())
