#!/usr/bin/env python3
"""Makes cases.json: folders with special tokens in all places and forms, and what transformers says of them.

    make_cases.py OUT.json        needs transformers 5 and torch; made with transformers 5.24, tokenizers 0.23.3

Each case has the companion files of a tokenizer.json as text, the parts of tokenizer.json that differ (the test
puts the other parts around them; without "added" it has <|endoftext|>, <|im_start|>, <|im_end|>), and the answers of AutoTokenizer: names with their ids, the added tokens with
their flags, the ids of some texts where no case before had the same added tokens, and the ids of the text "a" with
special tokens. Cases of models have config.json and
generation_config.json and the ids with which generate begins, ends and pads.
"""
import itertools
import json
import os
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

from transformers import AutoConfig, AutoTokenizer, GenerationConfig  # noqa: E402

NAMES = ["bos_token", "eos_token", "pad_token", "unk_token"]
FLAGS = ["lstrip", "rstrip", "single_word", "normalized", "special"]
TEXTS = ["a<|eos|>b", "a <|im_end|> <A> b", "x<B> <tool>y", "<|endoftext|>word<pad>"]
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}


seen = set()


def letters():
    behind, out = 0, []
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174:
            out.append(chr(b))
        else:
            out.append(chr(256 + behind))
            behind += 1
    return out


def own(token, number, **flags):
    return {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True, **flags}


def typed(content, **flags):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "rstrip": False, "single_word": False,
            "normalized": False, **flags}


def template(before, behind, ids):
    piece = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before]
    piece.append({"Sequence": {"id": "A", "type_id": 0}})
    piece += [{"SpecialToken": {"id": t, "type_id": 0}} for t in behind]
    return {"type": "TemplateProcessing", "single": piece, "pair": piece[:-len(behind) or None] + [
        {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {
            t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in sorted(set(before + behind))}}


THREE = [own("<|endoftext|>", 256), own("<|im_start|>", 257), own("<|im_end|>", 258)]


def tokenizer_json(case):
    vocab = {letter: i for i, letter in enumerate(letters())}
    for word in case.get("words", []):
        vocab[word] = len(vocab)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": case["added"], "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": case.get("post"),
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                      "merges": []}}


def write(folder, files):
    for name, value in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            out.write(value if isinstance(value, str) else json.dumps(value))


def answer(case):
    folder = tempfile.mkdtemp()
    try:
        write(folder, {**case["files"], "tokenizer.json": tokenizer_json(case)})
        try:
            t = AutoTokenizer.from_pretrained(folder)
        except (TypeError, ValueError):
            return None
        added = [[i, a.content, "".join(f[0] if getattr(a, f) else "-" for f in FLAGS)]
                 for i, a in sorted(t.added_tokens_decoder.items())]
        out = {"names": {n: [getattr(t, n), getattr(t, n + "_id")] for n in NAMES if getattr(t, n) is not None},
               "added": added, "around": t("a").input_ids}
        key = json.dumps([added, t.split_special_tokens])  # the ids of texts follow from these
        if key not in seen:
            seen.add(key)
            out["texts"] = [t(x, add_special_tokens=False).input_ids for x in TEXTS]
        return out
    finally:
        shutil.rmtree(folder)


def token_cases():
    def case(name, files, added=THREE, **more):
        cases.append({"name": name, "files": files, "added": added, **more})

    cases = []
    for model, klass, tc in itertools.product(
            [None, "llama", "gpt2", "qwen2", "qwen3", "mistral", "mixtral"],
            [None, "PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizerFast"],
            [None, {}, {"eos_token": "<|im_end|>"}, {"eos_token": None, "pad_token": "<pad>"}]):
        if tc is None and klass:
            continue
        files = {"config.json": {"model_type": model}} if model else {}
        if tc is not None:
            files["tokenizer_config.json"] = {**tc, **({"tokenizer_class": klass} if klass else {})}
        case(f"class: {model}, {klass}, {tc}", files)
    decoder = {"added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in THREE}}
    forms = [("text", "<|im_end|>"), ("new text", "<|eos|>"), ("object", typed("<|im_end|>", lstrip=True)),
             ("new object", typed("<|eos|>", lstrip=True, rstrip=True)), ("null", None)]
    for name, (label, value), place in itertools.product(NAMES, forms, range(5)):
        plain = {k: v for k, v in value.items() if k != "__type"} if isinstance(value, dict) else value
        if place == 0:
            files = {"tokenizer_config.json": {**FAST, name: value}}
        elif place == 1:
            files = {"tokenizer_config.json": {**FAST}, "special_tokens_map.json": {name: plain}}
        elif place == 2:
            files = {"special_tokens_map.json": {name: plain}}
        elif place == 3:
            files = {"tokenizer_config.json": {**FAST, name: "<|endoftext|>"}, "special_tokens_map.json": {name: plain}}
        else:
            files = {"tokenizer_config.json": {**FAST, **decoder, name: value},
                     "special_tokens_map.json": {name: "<|endoftext|>"}}
        case(f"{name}: {label}, place {place}", files)
    lists = {
        "decoder, next id": {"added_tokens_decoder": {"259": {"content": "<|eos|>", "special": True}}},
        "decoder, far id": {"added_tokens_decoder": {"300": {"content": "<|eos|>", "special": True}},
                            "eos_token": "<|eos|>"},
        "decoder, two out of order": {"added_tokens_decoder": {"270": {"content": "<B>"},
                                                               "269": {"content": "<A>", "special": True}}},
        "decoder, other flags": {"added_tokens_decoder": {"258": {"content": "<|im_end|>", "lstrip": True}}},
        "decoder, flags of a name": {"added_tokens_decoder": {"258": {"content": "<|im_end|>", "rstrip": True}},
                                     "eos_token": "<|im_end|>"},
        "decoder, empty": {"added_tokens_decoder": {}, "eos_token": "<|eos|>"},
        "decoder, stripped": {"added_tokens_decoder": {"259": {"content": "<A>", "lstrip": True, "rstrip": True}}},
        "decoder and extras": {"added_tokens_decoder": {"259": {"content": "<A>", "special": True}},
                               "extra_special_tokens": ["<B>", "<A>", "<|im_end|>"]},
        "extra list": {"extra_special_tokens": ["<A>", typed("<B>", lstrip=True)]},
        "extra list, empty": {"extra_special_tokens": []},
        "extra object": {"extra_special_tokens": {"tool_token": "<tool>", "image_token": "<A>"}},
        "additional": {"additional_special_tokens": ["<A>", "<tool>"]},
        "additional and extra": {"additional_special_tokens": ["<A>"], "extra_special_tokens": ["<B>"]},
        "additional and no extra": {"additional_special_tokens": ["<A>"], "extra_special_tokens": []},
        "own name": {"tool_token": "<tool>", "eos_token": "<|eos|>", "add_bos_token": True},
        "one token, two names": {"eos_token": "<|eos|>", "pad_token": "<|eos|>", "unk_token": "<|im_end|>"},
        "one token, two forms": {"eos_token": typed("<|eos|>", lstrip=True), "pad_token": "<|eos|>"},
        "all names": {"bos_token": "<A>", "eos_token": "<B>", "unk_token": "<tool>", "pad_token": "<pad>"},
        "a word of the model": {"eos_token": "word"},
        "add_bos_token": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": True,
                          "add_eos_token": True},
    }
    for (label, tc), klass in itertools.product(lists.items(), ["PreTrainedTokenizerFast", "Qwen2Tokenizer"]):
        case(f"{label}, {klass}", {"tokenizer_config.json": {**tc, "tokenizer_class": klass}})
    for label, tc in lists.items():
        files = {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", **tc}}
        case(f"{label}, words in the model", files, added=[], words=["word", "<|im_end|>", "<A>"])
    maps = {
        "map additional": {"additional_special_tokens": ["<A>"]},
        "map extra": {"extra_special_tokens": ["<A>", {"content": "<B>", "lstrip": True}]},
        "map extra object": {"extra_special_tokens": {"tool_token": "<tool>"}},
        "map own name": {"tool_token": "<tool>", "eos_token": "<|im_end|>"},
    }
    for (label, stm), tc in itertools.product(maps.items(), [None, {}, {"additional_special_tokens": ["<tool>"]},
                                                             {"extra_special_tokens": ["<A>", "<tool>"]}]):
        files = {"special_tokens_map.json": stm}
        if tc is not None:
            files["tokenizer_config.json"] = {**FAST, **tc}
        case(f"{label}, {tc}", files)
    for label, atj, tc in [("alone", {"<A>": 259, "<B>": 260}, None), ("special", {"<A>": 259}, {"eos_token": "<A>"}),
                           ("extra", {"<A>": 259}, {"extra_special_tokens": ["<A>"]}),
                           ("far", {"<B>": 400, "<A>": 300}, {}), ("used id", {"<A>": 257}, {}),
                           ("not read", {"<A>": 259}, {"added_tokens_decoder": {}}),
                           ("in the file", {"<|im_end|>": 258}, {"eos_token": "<|im_end|>"})]:
        for klass in ["PreTrainedTokenizerFast", "Qwen2Tokenizer"]:
            files = {"added_tokens.json": atj}
            if tc is not None:
                files["tokenizer_config.json"] = {**tc, "tokenizer_class": klass}
            elif klass == "Qwen2Tokenizer":
                files["config.json"] = {"model_type": "qwen2"}
            case(f"added_tokens.json {label}, {klass}", files)
    named = {"tokenizer_config.json": {**FAST, "eos_token": "<|eos|>"}}
    case("a gap of ids", named, added=[own("<A>", 300), own("<B>", 280)])
    case("no special flag", {"tokenizer_config.json": {**FAST, "eos_token": "<|eos|>"}},
         added=[own("<|eos|>", 256, special=False, normalized=True), own("<A>", 257, special=False)])
    case("a word as added token", named, added=[own("word", 256, normalized=True, special=False)], words=["word"])
    ids = {t["content"]: t["id"] for t in THREE}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    posts = {
        "bos": template(["<|im_start|>"], [], ids), "eos": template([], ["<|im_end|>"], ids),
        "both": template(["<|im_start|>"], ["<|im_end|>"], ids),
        "two": template(["<|im_start|>", "<|endoftext|>"], [], ids),
        "sequence": {"type": "Sequence", "processors": [byte_level, template(["<|endoftext|>"], [], ids)]},
        "roberta": {"type": "RobertaProcessing", "sep": ["<|im_end|>", 258], "cls": ["<|im_start|>", 257],
                    "trim_offsets": True, "add_prefix_space": False},
        "bert": {"type": "BertProcessing", "sep": ["<|im_end|>", 258], "cls": ["<|im_start|>", 257]},
        "byte level": byte_level,
    }
    for (label, post), add in itertools.product(posts.items(), [None, True, False]):
        tc = {**FAST, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
        if add is not None:
            tc["add_bos_token"] = add
        case(f"post_processor {label}, add_bos_token {add}", {"tokenizer_config.json": tc}, post=post)
    mixed = [own("<|endoftext|>", 256), own("<|im_start|>", 257, lstrip=True, rstrip=True),
             own("<|im_end|>", 258, normalized=True), own("<A>", 259, special=False),
             own(">b", 260, special=False, normalized=True)]
    for label, value in [("true", True), ("false", False)]:
        for klass in ["PreTrainedTokenizerFast", "Qwen2Tokenizer", "GPT2Tokenizer"]:
            tc = {"tokenizer_class": klass, "split_special_tokens": value, "eos_token": "<|eos|>"}
            case(f"split_special_tokens {label}, {klass}", {"tokenizer_config.json": tc}, added=mixed)
            case(f"split_special_tokens {label}, {klass}, extra", {"tokenizer_config.json": {
                **tc, "extra_special_tokens": ["<B>", "<tool>"], "pad_token": "<pad>"}})
    for label, tc in [("a number", {"eos_token": 5}), ("split_special_tokens of a text", {"split_special_tokens": "no"}), ("a list", {"eos_token": ["<|im_end|>"]}),
                      ("true", {"pad_token": True}),
                      ("decoder of texts", {"added_tokens_decoder": {"259": "<A>"}}),
                      ("decoder without numbers", {"added_tokens_decoder": {"x": {"content": "<A>"}}}),
                      ("extra number", {"extra_special_tokens": 5})]:
        case(f"wrong: {label}", {"tokenizer_config.json": {**FAST, **tc}})
    for c in cases:
        c["expect"] = answer(c)
    return cases


def model_answer(files):
    """As from_pretrained of a model makes its generation_config, and as generate reads its ids."""
    folder = tempfile.mkdtemp()
    try:
        write(folder, files)
        try:
            g = GenerationConfig.from_pretrained(folder)
        except OSError:
            g = GenerationConfig.from_model_config(
                AutoConfig.from_pretrained(folder) if "text_config" not in files["config.json"]
                else dict(files["config.json"]))
        eos = g.eos_token_id
        return {"eos": [] if eos is None else eos if isinstance(eos, list) else [eos],
                "bos": g.bos_token_id, "pad": g.pad_token_id}
    finally:
        shutil.rmtree(folder)


def model_cases():
    cases = []
    for config, generation in itertools.product(
            [{}, {"eos_token_id": 7, "bos_token_id": 6}, {"eos_token_id": [7, 8], "pad_token_id": 3},
             {"eos_token_id": None}, {"text_config": {"eos_token_id": 11, "bos_token_id": 12}},
             {"eos_token_id": 7, "text_config": {"eos_token_id": 11, "pad_token_id": 13}}],
            [None, {}, {"eos_token_id": None}, {"eos_token_id": 9}, {"eos_token_id": [9, 10, 7]},
             {"bos_token_id": 5, "pad_token_id": 4}]):
        given = {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None, **config}
        files = {"config.json": {"model_type": "llama", **given}}
        if generation is not None:
            files["generation_config.json"] = generation
        cases.append({"name": f"{config}, {generation}", "files": files, "expect": model_answer(files)})
    return cases


def as_text(cases):
    """Files, tokens and post-processors as the text that the test writes."""
    for c in cases:
        if c.get("added") == THREE:
            del c["added"]
        c["files"] = {name: json.dumps(value) for name, value in c["files"].items()}
        for key in "added", "post":
            if key in c:
                c[key] = json.dumps(c[key])
    return cases


def main():
    out = {"texts": TEXTS, "tokens": as_text(token_cases()), "models": as_text(model_cases())}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write('{"texts": ' + json.dumps(TEXTS))
        for key in "tokens", "models":
            file.write(f',\n"{key}": [\n' + ",\n".join(json.dumps(c, ensure_ascii=False) for c in out[key]) + "]")
        file.write("}\n")


main()
