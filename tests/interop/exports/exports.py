"""exports.py make DIR TEXT      odd model folders DIR/NAME with a tokenizer made from the file TEXT; prints the names
   exports.py untouched LIST     a line of LIST is "NAME BASE OUT WRITTEN": OUT is an export of BASE by a run that
                                 changed nothing. Does it say what BASE says, key by key and file by file, has it the
                                 same logits and token ids, and is WRITTEN what transformers generates with it, to
                                 the token at which it stops?
   exports.py own FILE DIR       does the export in DIR have the ids of the tokenizer FILE, and its end of a text?
   exports.py bytes DIR          has the model of bytes in DIR a tokenizer whose ids are bytes?
   exports.py adapter BASE DIR   do PEFT and AutoTokenizer load the adapter DIR by itself?
   All but the first print ok or not ok, a line for each promise."""
import json
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, MistralConfig, MixtralConfig,
                          PreTrainedTokenizerFast, Qwen2Config, Qwen3Config)

PROMPT, VOCAB, TOKENS_MAX = "Copyright", 320, 12  # 300 tokens: the last rows are padding
GPT2 = dict(vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, embd_pdrop=0.0,
            resid_pdrop=0.0)
LIKE = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=56, max_position_embeddings=128)
IDS = dict(bos_token_id=0, pad_token_id=2)
# name: its class, what a file says in the end, whether generation_config.json says where to stop
FOLDERS = {
    "gpt2_without_generation": (lambda: GPT2Config(**GPT2, **IDS, summary_type="mean", initializer_range=0.07),
                                {"n_ctx": 128, "task_specific_params": {"a": {"b": 1}}}, False),
    "gpt2_by_other_names": (lambda: GPT2Config(**GPT2, **IDS), {"n_positions": 99, "max_position_embeddings": 128},
                            True),
    "llama_two_types": (lambda: LlamaConfig(**LIKE, **IDS), {"rope_parameters": None, "rope_theta": 7000.0, "rope_scaling": {
        "rope_type": "linear", "type": "llama3", "factor": 3.0, "rope_theta": 300.0}}, True),
    "llama_other_head": (lambda: LlamaConfig(**LIKE, **IDS), {"tie_word_embeddings": True}, True),
    "llama_tied": (lambda: LlamaConfig(**LIKE, **IDS, tie_word_embeddings=True), {"num_labels": 3}, False),
    "mistral_null": (lambda: MistralConfig(**LIKE, **IDS, sliding_window=None, rope_parameters={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4,
        "original_max_position_embeddings": 16}), {"head_dim": None, "dtype": "float32", "torch_dtype": "bfloat16"}, False),
    "qwen2_window": (lambda: Qwen2Config(**LIKE, **IDS, use_sliding_window=True, sliding_window=8, max_window_layers=1),
                     {"layer_types": ["full_attention", "sliding_attention"], "max_window_layers": 28}, True),
    "qwen3_yarn": (lambda: Qwen3Config(**LIKE, **IDS, head_dim=16), {"rope_parameters": None,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5,
                         "original_max_position_embeddings": 32}}, True),
    "mixtral_router": (lambda: MixtralConfig(**LIKE, **IDS, num_local_experts=4, router_jitter_noise=0.0,
                                             output_router_logits=False), {"num_experts": 4}, False),
}


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def tokenizer_from(text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator([open(text).read()], trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "<|im_end|>", "<pad>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="<|im_end|>", pad_token="<pad>",
                                   model_max_length=77)
    fast.chat_template = {"default": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "tools": "{{ 1 }}"}
    return fast


def first_new(ids):
    """The place of the first id that no earlier place has, from the third on; None: there is none."""
    return next((k for k in range(2, len(ids)) if ids[k] not in ids[:k]), None)


def edit(directory, says, stop, in_generation):
    path = f"{directory}/config.json"
    config = json.load(open(path))
    config.update(says)
    config["eos_token_id"] = stop
    if in_generation:
        config["eos_token_id"] = 1
        json.dump({"eos_token_id": [1, stop], "temperature": 0.6, "max_length": 99, "_from_model_config": False},
                  open(f"{directory}/generation_config.json", "w"))
    else:
        os.path.exists(f"{directory}/generation_config.json") and os.remove(f"{directory}/generation_config.json")
    json.dump({k: v for k, v in config.items() if k != "rope_parameters" or v is not None}, open(path, "w"))


def make_one(directory, tokenizer, config, says, in_generation):
    """Tries seeds until a greedy text is ASCII, of tokens that are no padding of the vocabulary, and has one to stop
    at that is new in it."""
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    for seed in range(500):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config())
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.2 * torch.randn_like(weight))
        tokenizer.save_pretrained(directory)
        model.save_pretrained(directory)
        if says.get("tie_word_embeddings"):
            tensors = load_file(f"{directory}/model.safetensors")
            tensors["lm_head.weight"] = tensors["lm_head.weight"] + 0.5 * torch.randn_like(tensors["lm_head.weight"])
            save_file(tensors, f"{directory}/model.safetensors", metadata={"format": "pt"})
        edit(directory, says, 2, False)
        ids = load(directory).generate(prompt, max_new_tokens=TOKENS_MAX, do_sample=False, eos_token_id=None,
                                       pad_token_id=2)[0, prompt.shape[1]:].tolist()
        k = first_new(ids)
        if k is not None and ids[k] > 2 and not set(ids[:k]) & {0, 1, 2} and max(ids[:k + 1]) < 300 and tokenizer.decode(ids[:k]).isascii() \
                and tokenizer.decode(ids[:k]).isprintable():
            edit(directory, says, ids[k], in_generation)
            open(f"{directory}/LICENSE", "w").write("of the base")
            return
    raise SystemExit(f"{directory}: no seed gives a text that ends")


def make(out, text):
    tokenizer = tokenizer_from(text)
    for name, (config, says, in_generation) in FOLDERS.items():
        make_one(f"{out}/{name}", tokenizer, config, says, in_generation)
    print(" ".join(FOLDERS))


def say(name, good, what=""):
    print(f"ok {name}" if good else f"not ok {name}: {what}")


# An export names the tokens of its texts: those that the base names, and those of the tokenizer, which may be more.
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def as_list(ids):
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def same(key, a, b):
    if key in TOKENS:
        return set(as_list(a.get(key))) <= set(as_list(b.get(key)))
    return a.get(key, "absent") == b.get(key, "absent")


def same_file(base, out, name):
    if name == "generation_config.json":
        a, b = (json.load(open(f"{d}/{name}")) for d in (base, out))
        return all(same(k, a, b) for k in set(a) | set(b))
    return open(f"{base}/{name}", "rb").read() == open(f"{out}/{name}", "rb").read()


def different_keys(base, out):
    a, b = (json.load(open(f"{d}/config.json")) for d in (base, out))
    allowed = {"torch_dtype", "dtype"} | ({"tie_word_embeddings"} if "other_head" in base else set())
    return [k for k in sorted(set(a) | set(b)) if not same(k, a, b) and k not in allowed]


def different_files(base, out):
    found = [os.path.relpath(os.path.join(at, f), base) for at, _, files in os.walk(base) for f in files]
    return [f for f in found if f not in ("config.json", "model.safetensors") and (
        not os.path.exists(f"{out}/{f}") or not same_file(base, out, f))]


def untouched(name, base, out, written):
    keys, files = different_keys(base, out), different_files(base, out)
    say(f"{name}_says_the_keys_of_its_base", not keys, keys)
    say(f"{name}_has_the_files_of_its_base", not files, files)
    t, was, now = AutoTokenizer.from_pretrained(out), load(base), load(out)
    prompt = t(PROMPT, return_tensors="pt").input_ids
    say(f"{name}_has_the_same_ids", t(PROMPT).input_ids == AutoTokenizer.from_pretrained(base)(PROMPT).input_ids
        and len(t.get_chat_template()) > 0)
    with torch.no_grad():
        ids = torch.tensor([[(7 * i * i + 3) % 300 for i in range(100)]])  # more than the run's context
        apart = (was(ids).logits - now(ids).logits).abs().max().item()
    say(f"{name}_has_the_same_logits", apart < 1e-5, apart)
    made = now.generate(prompt, max_new_tokens=TOKENS_MAX, do_sample=False, pad_token_id=2)[0].tolist()
    stops = now.generation_config.eos_token_id
    say(f"{name}_stops_in_transformers", made[-1] in (stops if isinstance(stops, list) else [stops])
        and len(made) < prompt.shape[1] + TOKENS_MAX, made)
    text, ours = t.decode(made[:-1]), open(written).read()
    say(f"{name}_stops_alike", ours.rstrip("\n") == text.rstrip("\n"), f"{ours!r} is not {text!r}")


def byte_model(directory):
    t = AutoTokenizer.from_pretrained(directory)
    texts = ["Hello  world\n\n\t", "w\u00f6rld \u65e5\u672c \U0001f600", "".join(map(chr, range(1, 0x180))), "<s> </s> <|endoftext|>"]
    say("ids_of_a_byte_model_are_bytes", all(t(x).input_ids == list(x.encode()) for x in texts) and len(t) == 256)
    say("bytes_are_decoded", all(t.decode(t(x).input_ids) == x for x in texts))
    load(directory)


def own_tokenizer(tokenizer, directory):
    t, model, reference = AutoTokenizer.from_pretrained(directory), load(directory), Tokenizer.from_file(tokenizer)
    say("a_tokenizer_made_here_has_its_ids", t(PROMPT).input_ids == reference.encode(PROMPT).ids)
    say("the_export_names_the_end_of_a_text", (t.eos_token, t.eos_token_id, model.generation_config.eos_token_id)
        == ("<end>", 0, 0), t.eos_token)
    say("the_vocabulary_has_a_row_for_each_id", model.get_input_embeddings().weight.shape[0] == 448, len(t))


def adapter(base, directory):
    from peft import AutoPeftModelForCausalLM
    model = AutoPeftModelForCausalLM.from_pretrained(directory)
    t = AutoTokenizer.from_pretrained(directory)
    say("peft_loads_an_adapter_by_itself", model.get_input_embeddings().weight.shape[0] == VOCAB)
    say("an_adapter_has_the_tokenizer", t(PROMPT).input_ids == AutoTokenizer.from_pretrained(base)(PROMPT).input_ids
        and t.eos_token == "<|im_end|>")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    elif sys.argv[1] == "untouched":
        for line in open(sys.argv[2]):
            untouched(*line.split())
    else:
        {"bytes": byte_model, "adapter": adapter, "own": own_tokenizer}[sys.argv[1]](*sys.argv[2:])
