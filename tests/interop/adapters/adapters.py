"""adapters.py LIST   a line of LIST is "NAME BASE ADAPTER MERGED NPY": PEFT loads the folder ADAPTER beside the
   transformers model in BASE; NPY holds our logits with that adapter, MERGED is our folder with it added to the
   weights. Are all three alike, and none of them the base? Prints ok or not ok."""
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models"))
import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

TOKENS = [(37 * i * i + 11 * i + 5) % 256 for i in range(41)]  # of models.py


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def say(name, error, bound, above=False):
    good = error > bound if above else error < bound
    print(f"{'ok' if good else 'not ok'} {name}: {error:.2g} of the largest logit")


def compare(name, base, adapter, merged, npy):
    ours = np.load(npy)
    size = float(np.abs(ours).max())
    plain = logits_of(load(base))
    peft = PeftModel.from_pretrained(load(base), adapter).eval()
    theirs = logits_of(peft)
    say(f"{name}_is_loaded_by_peft", float(np.abs(theirs - ours).max()) / size, 1e-5)
    say(f"{name}_is_not_the_base", float(np.abs(plain - ours).max()) / size, 1e-2, above=True)
    theirs = {n: p for n, p in peft.merge_and_unload().state_dict().items()}
    apart = max(float((p - theirs[n]).abs().max() / theirs[n].abs().max()) for n, p in load(merged).state_dict().items())
    say(f"{name}_is_merged_as_peft_merges", apart, 1e-6)


for line in open(sys.argv[1]):
    compare(*line.split())
