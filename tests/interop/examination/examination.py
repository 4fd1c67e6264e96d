"""examination.py make DIR           model folders with tokenizers, questions, texts, and tasks of
                                     lm-evaluation-harness on them; prints the models' names. DIR/MODEL.serve
                                     has what heddle serve is told
   examination.py run DIR MODEL URL  examines DIR/MODEL by lm-evaluation-harness, once by its model `hf` in fp32
                                     and once by `local-completions` at URL; prints ok or not ok for each task,
                                     and writes what `hf` says of the questions to DIR/MODEL.answers
   examination.py compare ANSWERS JSONL   are the answers of heddle eval --choices -o jsonl those of ANSWERS?"""
import json
import os
import random
import sys

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
                  TOKENIZERS_PARALLELISM="false")
# Log-likelihoods are sums over some ten tokens of numbers of about 10, in fp32.
BOUND = 1e-3
QUESTIONS, TEXTS = 24, 6
WORDS = ("the licence grants each recipient a perpetual worldwide right to reproduce prepare display and "
         "distribute the work in source or object form größe 漢字 naïve").split()


def words(rng, low, high):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def write_lines(path, items):
    with open(path, "w", encoding="utf-8") as out:
        for item in items:
            out.write(json.dumps(item, ensure_ascii=False) + "\n")


def make_tokenizer(out, family):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    rng = random.Random(7)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((words(rng, 5, 30) for _ in range(200)), trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>",
                            bos_token="<|endoftext|>").save_pretrained(out)
    return tokenizer.get_vocab_size()


def make_quantised(out, base):
    """An adapter of PEFT for `base` with its blocks' matrices in int8. heddle serve encodes them itself (model.quantization:
    absmax of each row, 127 steps); `hf` gets a folder with the decoded values, made here by that definition."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    name = f"{base}-int8"
    model = AutoModelForCausalLM.from_pretrained(f"{out}/{base}", dtype=torch.float32)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if key.startswith("model.layers.") and key.endswith("_proj.weight"):
                scale = weight.abs().max(dim=1, keepdim=True).values / 127
                weight.copy_((weight / scale).round() * scale)
    model.save_pretrained(f"{out}/{name}")
    AutoTokenizer.from_pretrained(f"{out}/{base}").save_pretrained(f"{out}/{name}")
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear"))
    torch.manual_seed(9)
    for key, factor in adapted.named_parameters():
        if "lora_B" in key:  # zeros otherwise
            torch.nn.init.normal_(factor, std=0.05)
    adapted.save_pretrained(f"{out}/{name}.adapter")
    with open(f"{out}/{name}.serve", "w") as serve:
        serve.write(f"{out}/{base} --weights int8 --adapter {out}/{name}.adapter")
    return name


def make(out):
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config
    like = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=128, max_position_embeddings=256, bos_token_id=0, eos_token_id=0)
    configs = {"llama": lambda v: LlamaConfig(vocab_size=v, **like),
               "qwen2": lambda v: Qwen2Config(vocab_size=v + 8, tie_word_embeddings=True, **like),
               "gpt2": lambda v: GPT2Config(vocab_size=v, n_positions=256, n_embd=64, n_layer=2, n_head=4,
                                            bos_token_id=0, eos_token_id=0)}
    torch.manual_seed(3)
    for name, config in configs.items():
        vocab = make_tokenizer(f"{out}/{name}", name)
        model = AutoModelForCausalLM.from_config(config(vocab))
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        model.save_pretrained(f"{out}/{name}")
        with open(f"{out}/{name}.serve", "w") as serve:
            serve.write(f"{out}/{name}")
    names = list(configs) + [make_quantised(out, "llama")]
    rng = random.Random(5)
    questions = []
    for i in range(QUESTIONS):
        # one prompt ends with white space, which belongs to the choice
        prompt = words(rng, 3, 25) + (":" if i % 3 else "  ")
        questions.append({"prompt": prompt, "choices": [words(rng, 1, 6) for _ in range(2 + i % 3)],
                          "answer": rng.randrange(2)})
    write_lines(f"{out}/questions.jsonl", questions)
    write_lines(f"{out}/texts.jsonl", [{"text": words(rng, 10, 60)} for _ in range(TEXTS)])
    os.makedirs(f"{out}/tasks", exist_ok=True)
    common = "dataset_path: json\ndataset_kwargs: {{data_files: {{test: {out}/{file}}}}}\ntest_split: test\n"
    with open(f"{out}/tasks/choices.yaml", "w") as task:
        task.write("task: local_choices\noutput_type: multiple_choice\n" + common.format(out=out, file="questions.jsonl") +
                   "doc_to_text: '{{prompt}}'\ndoc_to_choice: choices\ndoc_to_target: answer\n"
                   "metric_list: [{metric: acc}, {metric: acc_norm}]\n")
    with open(f"{out}/tasks/rolling.yaml", "w") as task:
        task.write("task: local_rolling\noutput_type: loglikelihood_rolling\n" + common.format(out=out, file="texts.jsonl") +
                   "doc_to_text: ''\ndoc_to_target: text\nmetric_list: [{metric: byte_perplexity}]\n")
    with open(f"{out}/tasks/written.yaml", "w") as task:
        task.write("task: local_written\noutput_type: generate_until\n" + common.format(out=out, file="texts.jsonl") +
                   "doc_to_text: text\ndoc_to_target: text\nmetric_list: [{metric: exact_match}]\n"
                   "generation_kwargs: {until: [' the'], max_gen_toks: 24, do_sample: false, temperature: 0}\n")
    print(" ".join(names))


TASKS = ["local_choices", "local_rolling", "local_written"]


def examine(out, model, arguments):
    import lm_eval
    from lm_eval.tasks import TaskManager
    result = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=TASKS, log_samples=True,
                                     bootstrap_iters=0, device="cpu",
                                     task_manager=TaskManager(include_path=f"{out}/tasks"))
    for task in TASKS:
        result["samples"][task].sort(key=lambda sample: sample["doc_id"])
    return result


def largest(pairs):
    return max(abs(a - b) for a, b in pairs)


def verdict(name, good, why):
    print(f"{'ok' if good else 'not ok'} {name}: {why}")


def run(out, name, url):
    adapter = f"{out}/{name}.adapter"
    theirs = examine(out, "hf", f"pretrained={out}/{name},dtype=float32" + (f",peft={adapter}" if os.path.isdir(adapter) else ""))
    ours = examine(out, "local-completions",
                   f"model={name},base_url={url}/completions,tokenizer={out}/{name},max_length=255,"
                   "num_concurrent=4,batch_size=3,max_retries=1")
    pairs = {task: list(zip(theirs["samples"][task], ours["samples"][task])) for task in TASKS}

    def likelihoods(sample):
        return [float(response[0]) for response in sample["filtered_resps"]]
    gap = largest((a, b) for x, y in pairs["local_choices"] for a, b in zip(likelihoods(x), likelihoods(y)))
    same = sum(x[m] == y[m] for x, y in pairs["local_choices"] for m in ("acc", "acc_norm"))
    greedy = sum(a[1] == b[1] for x, y in pairs["local_choices"]
                 for a, b in zip(x["filtered_resps"], y["filtered_resps"]))
    choices = sum(len(x["filtered_resps"]) for x, _ in pairs["local_choices"])
    verdict(f"choices_of_{name}", len(pairs["local_choices"]) == QUESTIONS and same == 2 * QUESTIONS and
            greedy == choices and gap < BOUND,
            f"{same} of {2 * QUESTIONS} equal, {greedy} of {choices} greedy, log-likelihoods {gap:.1e} apart")
    rolling = [(float(x["filtered_resps"][0]), float(y["filtered_resps"][0])) for x, y in pairs["local_rolling"]]
    perplexity = [r["results"]["local_rolling"]["byte_perplexity,none"] for r in (theirs, ours)]
    verdict(f"texts_of_{name}", len(rolling) == TEXTS and largest(rolling) < 5 * BOUND and
            abs(perplexity[0] / perplexity[1] - 1) < 1e-5,
            f"log-likelihoods {largest(rolling):.1e} apart, byte perplexity {perplexity[0]:.6f} and {perplexity[1]:.6f}")
    written = [(x["filtered_resps"][0], y["filtered_resps"][0]) for x, y in pairs["local_written"]]
    verdict(f"answers_of_{name}", len(written) == TEXTS and all(a == b for a, b in written),
            f"{sum(a == b for a, b in written)} of {len(written)} equal; {written[0]}")
    with open(f"{out}/{name}.answers", "w") as answers:
        for sample, _ in pairs["local_choices"]:
            answers.write(json.dumps({"log_likelihoods": likelihoods(sample), "acc": sample["acc"],
                                      "acc_norm": sample["acc_norm"]}) + "\n")


def compare(path, ours):
    with open(path) as theirs:
        want = [json.loads(line) for line in theirs]
    with open(ours) as lines:
        got = [json.loads(line) for line in lines]
    summary = got.pop()
    gap = largest((a, b) for w, g in zip(want, got) for a, b in zip(w["log_likelihoods"], g["log_likelihoods"]))
    same = sum((g["choice"] == g["answer"]) == bool(w["acc"]) and
               (g["choice_norm"] == g["answer"]) == bool(w["acc_norm"]) for w, g in zip(want, got))
    means = [abs(summary[m] - sum(w[m] for w in want) / len(want)) for m in ("acc", "acc_norm")]
    print("ok" if len(want) == len(got) == same == QUESTIONS and gap < BOUND and max(means) < 1e-12
          else f"not ok: {same} of {len(want)} equal, {gap:.1e} apart, means {means} apart")


if __name__ == "__main__":
    {"make": make, "run": run, "compare": compare}[sys.argv[1]](*sys.argv[2:])
