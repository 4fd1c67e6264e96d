"""adapters.py make DIR  an adapter of PEFT for some of the models of models.py in DIR, as DIR/peft-NAME, each with the
   logits that it should give, DIR/peft-NAME.npy; prints the names
   adapters.py theirs DIR NAME...  are our logits in DIR/ours-NAME.npy those? Prints ok or not ok.
   adapters.py LIST   a line of LIST is "NAME BASE ADAPTER MERGED NPY": PEFT loads the folder ADAPTER beside the
   transformers model in BASE; NPY holds our logits with that adapter, MERGED is our folder with it added to the
   weights, or does not exist. Are all three alike, and none of them the base? Prints ok or not ok."""
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models"))
import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

TOKENS = [(37 * i * i + 11 * i + 5) % 256 for i in range(41)]  # of models.py


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def exact_logits_of(model):
    """In fp64: what is compared with it has its own rounding alone, whatever PyTorch's fp32 products do that day."""
    model.config._experts_implementation = "eager"  # the others know no fp64
    return logits_of(model.double())


def say(name, error, bound, remark="", above=False):
    good = error > bound if above else error < bound
    print(f"{'ok' if good else 'not ok'} {name}: {error:.2g} of the largest logit{remark}")


def compare(name, base, adapter, merged, npy):
    ours = np.load(npy)
    size = float(np.abs(ours).max())
    plain = logits_of(load(base))
    peft = PeftModel.from_pretrained(load(base), adapter).eval()
    theirs = logits_of(peft)
    say(f"{name}_is_loaded_by_peft", float(np.abs(theirs - ours).max()) / size, 1e-5)
    say(f"{name}_is_not_the_base", float(np.abs(plain - ours).max()) / size, 1e-2, above=True)
    if not os.path.exists(merged):  # a prefix
        return
    theirs = {n: p for n, p in peft.merge_and_unload().state_dict().items()}
    apart = max(float((p - theirs[n]).abs().max() / theirs[n].abs().max()) for n, p in load(merged).state_dict().items())
    say(f"{name}_is_merged_as_peft_merges", apart, 1e-6)


THEIRS = {
    "gpt2": dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    "llama-gqa": dict(r=8, lora_alpha=16, target_modules="all-linear"),
    "llama-mqa-tied": dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj"]),
    "qwen2-window-tied": dict(r=4, lora_alpha=4, target_modules=r".*self_attn\.(q|k)_proj", lora_dropout=0.1),
    "qwen3": dict(r=2, lora_alpha=8, target_modules=["o_proj", "down_proj"]),
    "mixtral": dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
}


if transformers.__version__ < "5":  # an expert is a module of its own
    THEIRS["mixtral-experts"] = dict(r=2, lora_alpha=6, target_modules=["v_proj", "w1", "w2", "w3"])
else:  # models of families.py whose experts are one parameter
    THEIRS["gpt_oss"] = dict(r=3, lora_alpha=5, target_modules=["q_proj"],
                             target_parameters=["experts.gate_up_proj", "mlp.experts.down_proj"])
    THEIRS["llama4_moe"] = dict(r=2, lora_alpha=5, target_modules=["feed_forward.down_proj"],
                                target_parameters=["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"])


DORAS = {
    "gpt2": dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    "qwen2-window-tied": dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj", "down_proj"]),
}


PREFIXES = {
    "gpt2": dict(num_virtual_tokens=4),
    "llama-gqa": dict(num_virtual_tokens=6),
    "qwen3": dict(num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=16),
}


def make(directory):
    configs = [(name, LoraConfig(task_type="CAUSAL_LM", **options)) for name, options in THEIRS.items()]
    configs += [("dora-" + name, LoraConfig(task_type="CAUSAL_LM", use_dora=True, **options))
                for name, options in DORAS.items()]
    configs += [("prefix-" + name, PrefixTuningConfig(task_type="CAUSAL_LM", **options))
                for name, options in PREFIXES.items()]
    for name, config in configs:
        if name == "mixtral-experts" and not os.path.exists(f"{directory}/{name}"):
            os.symlink("mixtral", f"{directory}/{name}")
        torch.manual_seed(7)
        model = get_peft_model(load(f"{directory}/{name.removeprefix('prefix-').removeprefix('dora-')}"), config).eval()
        for key, p in model.named_parameters():
            if "lora_B" in key:  # zeros otherwise: A would have no effect
                torch.nn.init.normal_(p, std=0.3)
            if "lora_magnitude_vector" in key:  # the norms of rows otherwise
                p.data *= 1 + 0.2 * torch.randn_like(p)
        model.save_pretrained(f"{directory}/peft-{name}")
        np.save(f"{directory}/peft-{name}-fp32.npy", logits_of(model))
        np.save(f"{directory}/peft-{name}.npy", exact_logits_of(model))
        print(name)


if sys.argv[1] == "make":
    make(sys.argv[2])
elif sys.argv[1] == "theirs":
    for name in sys.argv[3:]:
        want, ours, fp32 = (np.load(f"{sys.argv[2]}/{which}.npy")
                            for which in (f"peft-{name}", f"ours-{name}", f"peft-{name}-fp32"))
        size = np.abs(want).max()
        say(f"{name}_of_peft_computes_here", float(np.abs(want - ours).max() / size), 5e-6,
            f" (PyTorch's fp32: {np.abs(want - fp32).max() / size:.2g})")
else:
    for line in open(sys.argv[1]):
        compare(*line.split())
