/* Job files: what is refused and in which words. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "spec/spec_internal.h"

/* ---- one mistake, one message ---- */

static const struct mistake mistakes[] = {
    /* the form */
    {1, "name: [",
     "job.yaml:3: not YAML: did not find expected ',' or ']', while parsing a flow sequence that "
     "begins in line 1"},
    {1, "name: *x", "job.yaml:1: aliases (*name) are not allowed; write the value again"},
    {1, "name: &x tiny",
     "job.yaml:1: anchors (&name) and tags (!type) are not allowed; write the plain value"},
    {4, "  layers: !!int 2",
     "job.yaml:4: anchors (&name) and tags (!type) are not allowed; write the plain value"},
    {1, "name: \"a\\0b\"", "job.yaml:1: a text holds the character NUL; remove it"},
    {16, "---\nname: x", "job.yaml:16: a second document begins; a job file is one document"},
    {1, "name: caf\xe9", "job.yaml:1: not UTF-8 text; save the file as UTF-8"},
    {1, "[a]: b\nname: tiny", "job.yaml:1: a key must be a plain word"},
    {1, "name: [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]", "job.yaml:1: nested deeper than 16 levels"},
    {1, "name: @x",
     "job.yaml:1: not YAML: a line may not be indented by tabs, and no value may begin with @, ` "
     "or %, while scanning for the next token"},
    {1, "name: tiny\n\tx: 1",
     "job.yaml:2: not YAML: found a tab character that violates indentation, while scanning a "
     "plain scalar that begins in line 1"},
    /* keys */
    {4, "  layer: 2", "job.yaml:4: model.layer: unknown key; did you mean layers?"},
    {1, "name: tiny\nvalidation: {every: 3}",
     "job.yaml:2: validation: unknown key; did you mean validate?"},
    {15, "parallel: {xyzzy: 1}",
     "job.yaml:15: parallel.xyzzy: unknown key; parallel has tp, pp, "
     "dp, cp, ep, expert_rows, zero, zero_shard, schedule, virtual_stages, layers_per_stage, "
     "micro_batch, "
     "offload, recompute, sequence, cp_exchange"},
    {1, "name: tiny\n\"\\e[31m\": 1",
     "job.yaml:2: ?[31m: unknown key; a job file has name, model, "
     "data, train, validate, parallel, resources, checkpoint, "
     "restart, hang, queue, priority, after, array, time_limit"},
    /* the queue */
    {1, "name: tiny\npriority: 1001",
     "job.yaml:2: priority: 1001 is not possible; give a whole number from -1000 to 1000"},
    {1, "name: tiny\nqueue: ../x",
     "job.yaml:2: queue: '../x' is no name of a queue; use 1 to 63 letters, digits, '.', '_' or "
     "'-', not beginning with '.' or '-'"},
    {1, "name: tiny\nafter: job 7",
     "job.yaml:2: after: 'job 7' does not name jobs; write the number or name of one, such as 12, "
     "or up to 8, such as [12, 13]"},
    {1, "name: tiny\nafter: [7, 'job 7']",
     "job.yaml:2: after[1]: 'job 7' is no number and no name of a job"},
    {1, "name: tiny\nafter: [7, 0]",
     "job.yaml:2: after[1]: 0 is not possible; give a whole number from 1 to 1e+15"},
    {1, "name: tiny\nafter: [2, 7, 2]", "job.yaml:2: after: names job 2 twice; remove one"},
    {1, "name: tiny\nafter: [1, 2, 3, 4, 5, 6, 7, 8, 9]",
     "job.yaml:2: after: more than 8 jobs; name only the last ones"},
    {1, "name: tiny\ntime_limit: 90",
     "job.yaml:2: time_limit: '90' is no duration; write 90m, 12h, 1h30m or 2d, at least 1s, or "
     "none"},
    {5, "  hidden: 64\n  layers: 3",
     "job.yaml:6: model.layers: is given twice, first in line 4; remove one"},
    {14, "  lr: {peak: 1, peak: 2}",
     "job.yaml:14: train.lr.peak: is given twice, first in line 14; remove one"},
    {15, "model: {}", "job.yaml:15: model: is given twice, first in line 2; remove one"},
    /* kinds */
    {4, "  layers: two",
     "job.yaml:4: model.layers: 'two' is not a whole number; write digits only, such as 1000"},
    {4, "  layers: 2.5",
     "job.yaml:4: model.layers: '2.5' is not a whole number; write digits only, such as 1000"},
    {4, "  layers: \"2\"",
     "job.yaml:4: model.layers: expected a whole number, not a text; remove the quotes"},
    {4, "  layers: [2]", "job.yaml:4: model.layers: expected a whole number, not a list"},
    {4,
     "  layers:", "job.yaml:4: model.layers: has no value; give a whole number or remove the line"},
    {4, "  layers: 0",
     "job.yaml:4: model.layers: 0 is not possible; give a whole number from 1 to 1024"},
    {4, "  layers: 99999999999999999999",
     "job.yaml:4: model.layers: 99999999999999999999 is not possible; give a "
     "whole number from 1 to 1024"},
    {4, "  layers: 2\n  norm_eps: nan",
     "job.yaml:5: model.norm_eps: 'nan' is not a number; write it like 0.001 or 1e-3"},
    {4, "  layers: 2\n  norm_eps: 0x1",
     "job.yaml:5: model.norm_eps: '0x1' is not a number; write it like 0.001 or 1e-3"},
    {4, "  layers: 2\n  tie_embeddings: yes",
     "job.yaml:5: model.tie_embeddings: 'yes' is neither true nor false"},
    {15, "restart:", "job.yaml:15: restart: has no value; give its keys or remove the line"},
    {15, "parallel: automatic",
     "job.yaml:15: parallel: expected its keys, not a plain value; it has tp, pp, dp, cp, ep, "
     "expert_rows, zero, zero_shard, schedule, virtual_stages, layers_per_stage, micro_batch, "
     "offload, "
     "recompute, sequence, cp_exchange"},
    {13, "  global_batch: 8\n  loss_scale: {floor: 2}",
     "job.yaml:14: train.loss_scale.floor: only fp16 has a loss scale, and train.precision is "
     "auto; remove it, or set train.precision: fp16"},
    {15, "parallel: {zero: none}",
     "job.yaml:15: parallel.zero: 'none' is not possible; give auto or a whole number from 0 to 3"},
    {13, "  global_batch: 8\n  precision: fp31",
     "job.yaml:14: train.precision: 'fp31' is not one "
     "of auto, fp32, bf16, fp16, fp8; did you mean "
     "fp32?"},
    {13, "  global_batch: 18446744073709551615",
     "job.yaml:13: train.global_batch: 18446744073709551615 is not possible; give a whole number "
     "from 1 to 16777216"},
    {13, "  global_batch: 8\n  moments: 4bit",
     "job.yaml:14: train.moments: '4bit' is not one of fp32, 8bit; did you mean 8bit?"},
    {13, "  global_batch: 8\n  grad_reduce_dtype: bf16\n  native_reduction: true",
     "job.yaml:14: train.grad_reduce_dtype: bf16 is for sums in rank order; with "
     "train.native_reduction NCCL "
     "would add in bf16; set one of the two"},
    {9, "  train: [corpus/a.txt, {b: c}]",
     "job.yaml:9: data.train[1]: expected a path, not a group of keys"},
    /* what is missing: at the line of its group */
    {1, "", "job.yaml:2: name: is missing; give the job a name, such as tiny-llama"},
    {4, "", "job.yaml:2: model.layers: is missing; give a whole number from 1 to 1024"},
    {9, "",
     "job.yaml:8: data.train: is missing; give a list of text files, such as "
     "[corpus/*.txt], or data.stages"},
    {14, "", "job.yaml:11: train.lr.peak: is missing; give a number from 1e-12 to 1000"},
    {14, "  lr: {warmup: 3}",
     "job.yaml:14: train.lr.peak: is missing; give a number from 1e-12 to 1000"},
    /* rules */
    {1, "name: my job",
     "job.yaml:1: name: 'my job' is not possible; use 1 to 63 letters, digits, '.', '_' and '-'"},
    {3, "  family: lama", "job.yaml:3: model.family: 'lama' is not a family; did you mean llama?"},
    {6, "  heads: 3",
     "job.yaml:6: model.heads: 3 does not divide model.hidden = 64; use 1, 2, 4 or 8, or give "
     "model.head_width, a multiple of 8 up to 256"},
    {6, "  heads: 16",
     "job.yaml:6: model.heads: 16 heads of model.hidden = 64 are 4 wide, but a width is a multiple "
     "of 8 (rotary pairs and vector registers) and at most 256 (the attention kernel's tile); use "
     "1, 2, 4 or 8, or give model.head_width, a multiple of 8 up to 256"},
    /* the width comes from hidden, which is to blame; of its 49 divisors up to 4096 none makes
     * heads of 8, 16 .. 256 channels: 3907 to 4096 alone are small enough, there 4000 with 250 */
    {5, "  hidden: 1000000",
     "job.yaml:6: model.heads: 8 heads of model.hidden = 1000000 are 125000 wide, but a width is a "
     "multiple of 8 (rotary pairs and vector registers) and at most 256 (the attention kernel's "
     "tile); no number of heads is possible with it: give model.head_width, a multiple of 8 up to "
     "256"},
    {5, "  hidden: 1001",
     "job.yaml:6: model.heads: 8 does not divide model.hidden = 1001; no number of heads is "
     "possible with it: give model.head_width, a multiple of 8 up to 256"},
    {5, "  hidden: 10485760",
     "job.yaml:5: model.hidden: 10485760 is not possible; give a whole number from 1 to 1048576"},
    {6, "  heads: 8\n  head_width: 0",
     "job.yaml:7: model.head_width: 0 is not possible; give a whole number from 8 to 256"},
    {6, "  heads: 8\n  head_width: 512",
     "job.yaml:7: model.head_width: 512 is not possible; give a whole number from 8 to 256"},
    {6, "  heads: 8\n  kv_heads: 3",
     "job.yaml:7: model.kv_heads: 3 does not divide model.heads = 8; use 1, 2, 4 or 8"},
    {6, "  heads: 8\n  vocab: 300",
     "job.yaml:7: model.vocab: 300 does not fit data.tokenizer = bytes, which has 256 tokens; "
     "write 256 or remove the line"},
    {9, "  train: [short.txt]\n  tokenizer: none",
     "job.yaml:10: data.tokenizer: none cannot read text; write bytes, or give token files (.npy, "
     ".bin) alone"},
    {9, "  train: [{path: short.txt, weight: 0}]",
     "job.yaml:9: data.train[0].weight: 0 is not possible; give a number from 1e-09 to 1000000000"},
    {9, "  train: [{path: short.txt}]",
     "job.yaml:9: data.train[0]: needs path and weight, such as {path: a/*.txt, weight: 0.7}"},
    {9, "  train: [{path: [], weight: 1}]",
     "job.yaml:9: data.train[0].path: is an empty list; name a file, or remove the entry"},
    {9, "  train: [{path: short.txt, weigth: 1}]",
     "job.yaml:9: data.train[0].weigth: 'weigth' is not one of path, weight; did you mean weight?"},
    {9, "  train: [{path: short.txt, weight: 1}, short.txt]",
     "job.yaml:9: data.train[1]: has no weight; write {path: .., weight: ..} like the first "
     "entry"},
    {9, "  train:\n  - {path: short.txt, weight: 1}\n  - {path: corpus/v*.txt, weight: 2}",
     "job.yaml:11: data.train[1]: every file of it is in data.val; give other files"},
    /* stages */
    {9, "  stages: [{train: corpus/a.txt}]\n  train: [short.txt]",
     "job.yaml:10: data.train: data.train and data.stages cannot be used together: each stage has "
     "a "
     "`train` of its own; remove one of the two"},
    {9, "  stages: []",
     "job.yaml:9: data.stages: expected a list of stages, such as [{until: 1000, train: "
     "[a/*.txt]}, {train: [b/*.txt]}]"},
    {9, "  stages:\n  - {until: 50, train: corpus/a.txt}\n  - {until: 70}",
     "job.yaml:11: data.stages[1]: has no files; give train: [..], as in data.train"},
    {9, "  stages:\n  - {train: corpus/a.txt}\n  - {train: long.txt}",
     "job.yaml:10: data.stages[0]: needs until, the last step of the stage; only the last stage "
     "has "
     "none"},
    {9,
     "  stages:\n  - {until: 50, train: long.txt}\n  - {until: 50, train: long.txt}\n  - {train: "
     "long.txt}",
     "job.yaml:11: data.stages[1].until: 50 is not above 50, the end of the stage before"},
    {9, "  stages:\n  - {until: 100, train: long.txt}\n  - {train: corpus/a.txt}",
     "job.yaml:10: data.stages[0].until: 100 leaves no step of train.steps = 100 for the stages "
     "behind it; lower it, or remove these"},
    {9, "  stages:\n  - {until: 50, train: long.txt}\n  - {until: 99, train: corpus/a.txt}",
     "job.yaml:11: data.stages[1].until: 99 is not train.steps = 100, with which the last stage "
     "ends; remove it, or make them equal"},
    {9, "  stages:\n  - {until: 50, train: long.txt, mix: 1}\n  - {train: corpus/a.txt}",
     "job.yaml:10: data.stages[0].mix: 'mix' is not one of until, train, lr, context, "
     "global_batch, rope_theta; use one of them"},
    {9, "  stages:\n  - {until: 50, train: long.txt, context: 7}\n  - {train: corpus/a.txt}",
     "job.yaml:10: data.stages[0].context: the 256 tokens of a step (train.global_batch x "
     "model.context) are no whole number of windows of 7; give another context, or the stage a "
     "global_batch"},
    {9,
     "  stages:\n  - {until: 50, train: long.txt, context: 8, global_batch: 12}\n  - {train: "
     "corpus/a.txt}",
     "job.yaml:10: data.stages[0].global_batch: 12 is no multiple of 8, the batch of the longest "
     "context, by which the ranks divide it; give a multiple"},
    {9, "  stages:\n  - {until: 50, train: long.txt}\n  - {train: corpus/a.txt, lr: {min: 0}}",
     "job.yaml:11: data.stages[1].lr: needs peak, such as {peak: 3e-4, decay: linear, min: 0}"},
    {9,
     "  stages:\n  - {until: 50, train: long.txt}\n  - {train: corpus/a.txt, lr: {peak: 1, "
     "warmup: 51}}",
     "job.yaml:11: data.stages[1].lr.warmup: 51 steps are more than the 50 of the stage; lower it"},
    {9,
     "  stages:\n  - {until: 50, train: long.txt}\n  - {train: corpus/a.txt, lr: {peak: 1, decay: "
     "exp}}",
     "job.yaml:11: data.stages[1].lr.decay: 'exp' is not one of cosine, linear, wsd, constant, "
     "inverse_sqrt; use one of them"},
    {9, "  stages:\n  - {until: 50, train: long.txt}\n  - {train: [corpus/v*.txt]}",
     "job.yaml:11: data.stages[1].train: every file of it is in data.val; give other files"},
    {9, "  train: [short.txt]\n  end_of_text: 256",
     "job.yaml:10: data.end_of_text: 256 is no token; write an id from 0 to 255, none, or auto"},
    {9, "  train: [short.txt]\n  documents: cut",
     "job.yaml:10: data.documents: 'cut' is not one of bounded, joined; use one of them"},
    {10, "  val: [corpus/val.txt]\n  too_long: drop",
     "job.yaml:11: data.too_long: no file of this job has conversations, so it would change "
     "nothing; remove the line, or name files of conversations in data.train"},
    {10, "  val: [corpus/val.txt]\n  val_split: 0.1",
     "job.yaml:11: data.val_split: cannot be used with data.val; remove one of the two"},
    {10, "  val: {web: [corpus/val.txt], 'a b': [short.txt]}",
     "job.yaml:10: data.val.a b: is no name of a validation set; use 1 to 31 letters, digits, '_' "
     "or '-', beginning with a letter or digit, and not true or false"},
    {10, "  val:\n    web: [corpus/val.txt]\n    web: [long.txt]",
     "job.yaml:12: data.val.web: is given twice; remove one"},
    {10, "  val:\n    web: [corpus/val.txt]\n    code: []",
     "job.yaml:12: data.val.code: is an empty list; name a file, or remove the set"},
    {10, "  val: {}",
     "job.yaml:10: data.val: has no set; write {NAME: [files]}, or remove the line"},
    {10, "  val:\n    web: [corpus/val.txt]\n    code: [long.txt, no*.txt, '']",
     "job.yaml:12: data.val.code[2]: is empty; give a text or remove the line"},
    {10, "  val: {web: [corpus/val.txt]}\ncheckpoint: {best: code}",
     "job.yaml:11: checkpoint.best: 'code' is no number of this job's validations, which have web"},
    {10, "  val: [corpus/val.txt]\ncheckpoint: {best: code}",
     "job.yaml:11: checkpoint.best: 'code' is no number of this job's validations, which have "
     "loss"},
    {10, "  val: [corpus/val.txt]\ncheckpoint: {best: 'yes!'}",
     "job.yaml:11: checkpoint.best: 'yes!' is neither true nor false, nor the name of a set of "
     "data.val or of a score of validate.choices or validate.tasks"},
    {10,
     "  val: {web: [corpus/val.txt], code: [long.txt]}\nvalidate: {choices: {quiz: short.txt}}\n"
     "checkpoint: {best: quiz/loss}",
     "job.yaml:12: checkpoint.best: 'quiz/loss' is neither true nor false, nor the name of a set "
     "of "
     "data.val or of a score of validate.choices or validate.tasks"},
    {10,
     "  val: {web: [corpus/val.txt], code: [long.txt]}\nvalidate: {choices: {quiz: short.txt}, "
     "stop: "
     "{metric: quizz, patience: 2}}",
     "job.yaml:11: validate.stop.metric: 'quizz' is no number of this job's validations, which "
     "have "
     "web, code, mean, quiz/acc, quiz/acc_norm"},
    {10, "validate: {stop: {patience: 2}}",
     "job.yaml:10: validate.stop: there is no validation data; give data.val, data.val_split, "
     "validate.choices or validate.tasks, or remove the line"},
    {10, "  val: {web: [corpus/val.txt]}\nvalidate: {choices: {web: short.txt}}",
     "job.yaml:11: validate.choices.web: data.val has a set of this name; use another"},
    {10, "validate: {choices: [short.txt, corpus/short.jsonl]}",
     "job.yaml:10: validate.choices: two files have the name short; write {NAME: path, ..} with "
     "other names"},
    {10, "validate: {choices: {'a b': short.txt}}",
     "job.yaml:10: validate.choices.a b: 'a b' is no name of a file of questions; use 1 to 31 "
     "letters, digits, '_' or '-', beginning with a letter or digit, and not true or false"},
    {10, "validate: {choices: {}}",
     "job.yaml:10: validate.choices: names no file; write {NAME: path}, or remove the line"},
    {10, "validate: {tasks: {files: short.txt}}",
     "job.yaml:10: validate.tasks.check: is missing: what says whether an answer is right, such as "
     "[{builtin: number, field: answer}]"},
    {10, "validate: {tasks: {files: short.txt, check: [number], k: 2}}",
     "job.yaml:10: validate.tasks.k: pass@2 is not estimated from 1 answer; raise "
     "validate.tasks.samples, or lower k"},
    {10, "validate: {tasks: {files: short.txt, check: [number], samples: 2}}",
     "job.yaml:10: validate.tasks.temperature: without one all answers to a task are the same; "
     "give "
     "one, such as 0.8, or one sample"},
    {10, "validate: {tasks: {files: short.txt, check: [{model: short.txt}]}}",
     "job.yaml:10: validate.tasks.check: a reward model does not say whether an answer is right; "
     "use a builtin or a program"},
    {10,
     "validate: {tasks: {files: short.txt, check: [{builtin: overlong, buffer: 9}], tokens: 8}}",
     "job.yaml:10: validate.tasks.check: the buffer of overlong, 9 tokens, is longer than any "
     "answer (validate.tasks.tokens = 8); lower it"},
    {10, "validate: {tasks: {limit: 9}}",
     "job.yaml:10: validate.tasks.limit: there are no tasks; give validate.tasks.files, or remove "
     "the "
     "line"},
    {10, "validate: {choices: {web: short.txt}, tasks: {files: {web: short.txt}, check: [number]}}",
     "job.yaml:10: validate.tasks.files.web: validate.choices has a file of this name; use "
     "another"},
    {10, "validate: {samples: []}",
     "job.yaml:10: validate.samples: has no prompt; write [\"Once upon a time\"], or remove the "
     "line"},
    {10, "validate:\n  samples:\n    - one\n    - [two]",
     "job.yaml:13: validate.samples[1]: expected a text (messages are lines of a file), not a "
     "list"},
    {10, "validate: {samples: {prompts: [a], tokens: 0}}",
     "job.yaml:10: validate.samples.tokens: 0 tokens are no sample; give at least 1"},
    {10, "validate: {samples: {prompts: [a], top_p: 0.5}}",
     "job.yaml:10: validate.samples.top_p: without a temperature the likeliest token is taken, so "
     "it "
     "would change nothing; give validate.samples.temperature, or remove it"},
    {10, "validate: {samples: {tokens: 9}}",
     "job.yaml:10: validate.samples.tokens: there are no prompts; give validate.samples.prompts, "
     "or "
     "remove the line"},
    {13, "  global_batch: 8\n  rollout: {group: 4}",
     "job.yaml:14: train.rollout.group: is a setting of train.objective: grpo or gkd; add that "
     "line, or remove this one"},
    {13, "  global_batch: 8\n  objective: grpo\n  rollout: {prompts: 4}",
     "job.yaml:11: train.rewards: is missing: what rates an answer, such as [{builtin: number, "
     "field: answer}]"},
    {13, "  global_batch: 8\n  objective: grpo\n  rewards: [number]",
     "job.yaml:11: train.rollout.prompts: is missing: the number of prompts that a step answers, "
     "such as 16"},
    {13, "  global_batch: 8\n  rewards: [nummer]",
     "job.yaml:14: train.rewards[0]: 'nummer' is not one of exact, number, regex, format, length, "
     "overlong; did you mean number?"},
    {13, "  global_batch: 8\n  rewards: [{builtin: regex, pattern: '('}]",
     "job.yaml:14: train.rewards[0].pattern: is no extended POSIX expression: Unmatched ( or \\("},
    {13, "  global_batch: 8\n  rewards: [{builtin: number, buffer: 3}]",
     "job.yaml:14: train.rewards[0]: `number` has no buffer; remove it"},
    {13, "  global_batch: 8\n  rewards: [number, {builtin: number}]",
     "job.yaml:14: train.rewards[1]: a reward before it has the name number, too; give it a "
     "`name`"},
    {13, "  global_batch: 8\n  rewards: [{program: p, memory: lots}]",
     "job.yaml:14: train.rewards[0].memory: expected a size of at least 1MiB, such as 4GiB"},
    {13, "  global_batch: 8\n  rewards: [{model: m}, {model: n, name: b}]",
     "job.yaml:14: train.rewards[1].model: a job has at most one reward model; run another one in "
     "a "
     "program, which has processors and no network"},
    {13,
     "  global_batch: 8\n  objective: grpo\n  rollout: {prompts: 9, max_tokens: 8}\n"
     "  rewards: [{builtin: overlong, buffer: 9}]",
     "job.yaml:16: train.rewards: the buffer of overlong, 9 tokens, is longer than any answer "
     "(train.rollout.max_tokens = 8); lower it"},
    {13, "  global_batch: 8\n  objective: grpo\n  rollout: {prompts: 9}\n  rewards: [number]",
     "job.yaml:10: data.val: with train.objective: grpo there is no validation loss; use "
     "validate.tasks or validate.choices, and remove the line"},
    {10, "validate: {every: 5}",
     "job.yaml:10: validate.batches: there is nothing to validate on; give data.val or "
     "data.val_split, or write 0"},
    {14, "  lr: {peak: 1e-3, min: 1e-2}",
     "job.yaml:14: train.lr.min: 0.01 is above train.lr.peak = 0.001; lower it"},
    {14, "  lr: {peak: 1e-3, warmup: 101}",
     "job.yaml:14: train.lr.warmup: 101 steps are more than "
     "train.steps = 100; lower it"},
    {14, "  lr: {peak: 1e-3, decay: constant, decay_steps: 3}",
     "job.yaml:14: train.lr.decay_steps: a constant rate has no decay; remove the line"},
    {14, "  lr: {peak: 1e-3, decay: inverse_sqrt, decay_steps: 3}",
     "job.yaml:14: train.lr.decay_steps: the decay of inverse_sqrt has no end; remove the line"},
    {14, "  lr: {peak: 1e-3, decay_shape: sqrt}",
     "job.yaml:14: train.lr.decay_shape: only the decay of wsd has a shape, and train.lr.decay is "
     "cosine; remove the line, or set train.lr.decay: wsd"},
    {14, "  lr: {peak: 1e-3, warmup: 60, decay_steps: 41}",
     "job.yaml:14: train.lr.decay_steps: 41 steps do not fit after the warm-up; at most 40 are "
     "left of train.steps"},
    {16, "resources: {devices: 5}", /* two layers have no five stages */
     "job.yaml:16: resources.devices: 5 does not divide train.global_batch = 8; use 1, 2, 4 or 8"},
    {15, "parallel: {dp: 4}",
     "job.yaml:15: parallel.dp: 4 is in no layout of this model and batch on resources.devices = "
     "2; "
     "use 1 or 2"},
    {15, "parallel: {micro_batch: 3}",
     "job.yaml:15: parallel.micro_batch: 3 is in no layout of this model and batch on "
     "resources.devices = 2; use 1, 2, 4 or 8"}, /* 8: of two stages, or with tp 2 */
    {15, "parallel: {virtual_stages: 3}",
     "job.yaml:15: parallel.virtual_stages: 2 stages x 3 virtual_stages are more chunks than the 4 "
     "units of the model (embedding, 2 layers, head); use 1 or 2"},
    /* parallel: with 2 devices, 8 heads, a width of 192 and 32 tokens */
    {15, "parallel: {tp: 3}",
     "job.yaml:15: parallel.tp: 3 does not divide model.heads = 8; use 1 or 2"},
    {15, "parallel: {cp: 3}",
     "job.yaml:15: parallel.cp: 3 ranks take two chunks each of model.context = 32, which 6 does "
     "not divide; use 1 or 2"},
    {15, "parallel: {tp: 2, cp: 2}",
     "job.yaml:15: parallel.cp: 2 is in no layout of this model and batch on resources.devices = "
     "2; "
     "use 1"},
    {15, "parallel: {tp: 2, dp: 2}",
     "job.yaml:15: parallel.dp: 2 is in no layout of this model and batch on resources.devices = "
     "2; "
     "use 1"},
    {15, "parallel: {tp: 1, sequence: true}",
     "job.yaml:15: parallel.sequence: true shares rows among the ranks of parallel.tp, which is 1; "
     "write auto or false, or raise tp"},
    {15, "parallel: {sequence: maybe}",
     "job.yaml:15: parallel.sequence: 'maybe' is not one of auto, true, false; use one of them"},
    {15, "parallel: {pp: 1, schedule: zb-v}",
     "job.yaml:15: parallel.schedule: 'zb-v' is an order of pipeline stages, and parallel.pp is 1; "
     "write auto, or raise pp"},
    {15, "parallel: {pp: 2, schedule: zigzag}",
     "job.yaml:15: parallel.schedule: 'zigzag' is no order of pipeline stages; use auto, 1f1b, "
     "gpipe, interleaved, zb-h1 or zb-v"},
    {15, "parallel: {pp: 2, schedule: interleaved, virtual_stages: 1}",
     "job.yaml:15: parallel.schedule: interleaved needs several chunks per stage, and "
     "parallel.virtual_stages is 1; raise it, or write 1f1b"},
    {15, "parallel: {pp: 2, schedule: zb-h1, virtual_stages: 2}",
     "job.yaml:15: parallel.virtual_stages: 2; zb-h1 has one chunk per stage; write 1 or auto, or "
     "take the schedule interleaved"},
    {13, "  global_batch: 8\n  precision: bf16\n  fp8: {scaling: current}",
     "job.yaml:15: train.fp8.scaling: only fp8 has scales of tensors, and train.precision is bf16; "
     "remove it, or set train.precision: fp8"},
    {13, "  global_batch: 8\n  adapter: {type: bottleneck, rank: 8}",
     "job.yaml:14: train.adapter.rank: an adapter of type bottleneck has no such key, but "
     "train.adapter.width, train.adapter.dropout; remove it, or set train.adapter.type: lora"},
    {13, "  global_batch: 8\n  adapter: {type: lora, width: 8}",
     "job.yaml:14: train.adapter.width: an adapter of type lora has no such key, but "
     "train.adapter.rank, train.adapter.alpha, train.adapter.init, train.adapter.rslora, "
     "train.adapter.dora, "
     "train.adapter.loraplus_lr_ratio, "
     "train.adapter.dropout, train.adapter.targets; remove it, or set train.adapter.type: "
     "bottleneck"},
    {13, "  global_batch: 8\n  adapter: {type: prefix, width: 8}",
     "job.yaml:14: train.adapter.width: an adapter of type prefix has no such key, but "
     "train.adapter.tokens; remove it, or set train.adapter.type: bottleneck"},
    {13, "  global_batch: 8\n  adapter: {width: 8}",
     "job.yaml:14: train.adapter.width: there is no adapter; add train.adapter.type: bottleneck, "
     "or remove it"},
    {13, "  global_batch: 8\n  precision: fp8\n  fp8: {scaling: current, history: 8}",
     "job.yaml:15: train.fp8.history: with train.fp8.scaling: current there is no history; remove "
     "one of the two"},
    {13, "  global_batch: 8\n  precision: fp8\n  fp8: {history: 0}",
     "job.yaml:15: train.fp8.history: 0 is not possible; give a whole number from 1 to 1024"},
    {13, "  global_batch: 8\n  precision: fp16\n  loss_scale: {initial: 1000}",
     "job.yaml:15: train.loss_scale.initial: 1000 is no power of two; use 512 or 1024"},
    {13, "  global_batch: 8\n  precision: fp16\n  loss_scale: {initial: 4, floor: 8}",
     "job.yaml:15: train.loss_scale.floor: 8 is above train.loss_scale.initial = 4; lower it"},
    {15, "parallel: {zero: 0, zero_shard: 2}",
     "job.yaml:15: parallel.zero_shard: 2 ranks would share what parallel.zero names, and zero is "
     "0; write zero: 1, 2 or 3, or remove zero_shard"},
    {15, "parallel: {zero: 1, zero_shard: 3}",
     "job.yaml:15: parallel.zero_shard: 3 is in no layout of this model and batch on "
     "resources.devices = 2; use 1 or 2"},
    {15, "parallel: {recompute: some}",
     "job.yaml:15: parallel.recompute: 'some' is not known; use auto, none, selective, full or "
     "{full: LAYERS}"},
    {15, "parallel: {recompute: {full: 99}}",
     "job.yaml:15: parallel.recompute: full: 99 is more than model.layers = 2; give at most 2"},
    {15, "parallel: {recompute: {full: 0}}",
     "job.yaml:15: parallel.recompute.full: 0 is not possible; give a whole number from 1 to 1024"},
    {15, "parallel: {recompute: {half: 2}}",
     "job.yaml:15: parallel.recompute: expected none, selective, full or {full: LAYERS}"},
    {15, "parallel: {pp: 2, layers_per_stage: [1, 2, 3]}",
     "job.yaml:15: parallel.layers_per_stage: 3 numbers of layers; parallel.pp x "
     "parallel.virtual_stages = 2 "
     "are needed"},
    {15, "parallel: {pp: 2, layers_per_stage: [1, 20]}",
     "job.yaml:15: parallel.layers_per_stage: the numbers add up to 21; model.layers is 2"},
    {15, "parallel: {pp: 2, stages: 2}",
     "job.yaml:15: parallel.layers_per_stage: expected the layers of each chunk, such as [7, 8, 8, "
     "7], or "
     "auto"},
    {15, "parallel: {pp: 8}",
     "job.yaml:15: parallel.pp: 8 stages x 1 virtual_stages are more chunks than the 4 units of "
     "the model (embedding, 2 layers, head); use 1 or 2"},
    {14, "  lr: -1e-3",
     "job.yaml:14: train.lr: -0.001 is not possible; give a number from 1e-12 to 1000"},
    {14, "  lr: {peak: -1e-3}",
     "job.yaml:14: train.lr.peak: -0.001 is not possible; give a number from 1e-12 to 1000"},
    {15, "parallel: {cp_exchange: rings}",
     "job.yaml:15: parallel.cp_exchange: 'rings' is not one of auto, ring, all_gather; did you "
     "mean ring?"},
    {16, "resources: {devices: 0}",
     "job.yaml:16: resources.devices: 0 is not possible; give a whole number from 1 to 4096, "
     "which is what the engine gloo connects"},
    {16, "resources: {devices: {min: 0, max: 2}, device_type: cuda}",
     "job.yaml:16: resources.devices.min: 0 is not possible; give a whole number from 1 to 4096, "
     "which is what the engine nccl connects"},
    {16, "resources: {devices: {min: 2}}",
     "job.yaml:16: resources.devices: needs both min and max; or give one whole number"},
    {16, "resources: {devices: {min: 4, max: 2}}",
     "job.yaml:16: resources.devices: min = 4 is above max = 2; swap them"},
    {16, "resources: {devices: {min: 9, max: 11}}",
     "job.yaml:16: resources.devices: no number from 9 to 11 shares train.global_batch = 8 evenly; "
     "change one of them"},
    {13, "  global_batch: 8\n  profile: {steps: [3]}",
     "job.yaml:14: train.profile.steps: expected the first and the last step, such as [10, 12]"},
    {13, "  global_batch: 8\n  profile: {steps: [3, x]}",
     "job.yaml:14: train.profile.steps[1]: 'x' is not a whole number; write digits only, such as "
     "1000"},
    {13, "  global_batch: 8\n  profile: {steps: [5, 4]}",
     "job.yaml:14: train.profile.steps: from 5 to 4 is no interval of steps; write the first and "
     "the last, such as [10, 12]"},
    {13, "  global_batch: 8\n  profile: {steps: [1, 101]}",
     "job.yaml:14: train.profile.steps: from 1 to 101 is more than 100 steps; give fewer"},
    {15, "checkpoint: {copy_to: /mnt/copies}",
     "job.yaml:15: checkpoint.copy_to: /mnt/copies is no folder of an object store; write "
     "s3://BUCKET/PREFIX, with a prefix of this job's own and no / at its end"},
    {15, "checkpoint: {copy_to: 's3://runs/../other'}", /* the daemon would never copy there */
     "job.yaml:15: checkpoint.copy_to: s3://runs/../other is no folder of an object store; write "
     "s3://BUCKET/PREFIX, with a prefix of this job's own and no / at its end"},
    {15, "checkpoint: {copy_to: 's3://our runs/copies'}", /* nor there */
     "job.yaml:15: checkpoint.copy_to: s3://our runs/copies is no folder of an object store; write "
     "s3://BUCKET/PREFIX, with a prefix of this job's own and no / at its end"},
};

/* Sensible wishes: another status, words of their own. */
static const struct mistake wishes[] = {
    {16, "resources: {devices: 4097}",
     "job.yaml:16: resources.devices: 4097 is not possible; give a whole number from 1 to 4096, "
     "which is what the engine gloo connects"},
    {16, "resources: {device_type: cuda, devices: 4097}",
     "job.yaml:16: resources.devices: 4097 is not possible; give a whole number from 1 to 4096, "
     "which is what the engine nccl connects"},
    {16, "resources: {devices: {min: 8, max: 4097}, device_type: cuda}",
     "job.yaml:16: resources.devices.max: 4097 is not possible; give a whole number from 1 to "
     "4096, "
     "which is what the engine nccl connects"},
};

/* 3, 5, 6 and 7 devices get no equal shares of 8 sequences; 8194 = 2 x 17 x 241 could be shared by
 * 4097 GPUs, which nccl does not connect. */
static void a_range_of_devices_offers_the_most_that_share_the_batch(void **state)
{
    static const struct {
        int batch, min, max, micro, dp, most;
    } rows[] = {
        {8, 1, 7, 0, 0, 4},         {8, 3, 9, 0, 0, 8},         {8, 2, 7, 4, 0, 2},
        {8, 1, 8, 0, 2, 2},         {8, 5, 7, 0, 0, 0},         {8194, 1, 8194, 0, 0, 482},
        {8194, 1, 4097, 0, 0, 482}, {8194, 483, 8194, 0, 0, 0}, {8192, 1, 8192, 0, 0, 4096}};
    struct hd_job *spec = read_good(NULL);

    spec->device = HD_JOB_DEVICE_CUDA;
    spec->tp = spec->pp = spec->cp = 1; /* else others may split what does not share the batch */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        spec->global_batch = rows[i].batch;
        spec->devices_min = rows[i].min;
        spec->devices_max = rows[i].max;
        spec->micro_batch = rows[i].micro;
        spec->dp = rows[i].dp;
        assert_int_equal(hd_spec_most_devices(spec), rows[i].most);
        assert_int_equal(hd_spec_check(spec), rows[i].most ? HD_OK : HD_INVALID);
    }
}

static void each_mistake_has_its_place_and_remedy(void **state)
{
    expect_refusals(mistakes, sizeof mistakes / sizeof mistakes[0], HD_INVALID);
}

/* A job that is resumed has no lines: what is wrong with it came by an override, or from the job.
 */
static void a_stored_job_names_the_override(void **state)
{
    static const struct {
        const char *override, *message;
    } rows[] = {
        {"train.lr.peak=1e-6",
         "--set train.lr.peak=1e-6: train.lr.min: 1e-05 is above train.lr.peak = 1e-06; lower it"},
        {"train.lr={peak: 1e-6, min: 1e-5}",
         "--set train.lr={peak: 1e-6, min: 1e-5}: train.lr.min: 1e-05 is above train.lr.peak = "
         "1e-06; lower it"},
        {"train.step=1", "--set train.step=1: train.step: unknown key; did you mean steps?"},
        {"train.seed=2", "job 7: train.lr.min: 1e-05 is above train.lr.peak = 1e-06; lower it"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = with_line(14, i < 3 ? "  lr: {peak: 1e-3, min: 1e-5}"
                                         : "  lr: {peak: 1e-6, min: 1e-5}");
        const struct hd_spec_source source = {.name = "job 7",
                                              .folder = folder,
                                              .bytes = text,
                                              .size_bytes = strlen(text),
                                              .overrides = &rows[i].override,
                                              .override_count = 1,
                                              .is_stored = true};
        struct hd_job job;

        assert_int_equal(hd_spec_read_yaml(&source, &jobs, &job), HD_INVALID);
        assert_string_equal(hd_err_message(), rows[i].message);
        free(text);
    }
}

/* Goal: keys of fine-tuning that exclude each other are refused. */
static void what_does_not_go_together_is_refused(void **state)
{
    enum { SAID = 4 };
    static const struct {
        const char *said[SAID], *message;
    } rows[] = {
        {{"train.objective=dpo", "train.adapter={type: lora, dropout: 0.1}"},
         "train.adapter.dropout: with train.objective: dpo answers are compared with a reference, "
         "which has no dropout; set 0"},
        {{"train.objective=dpo", "model.family=mixtral", "model.router={noisy: true, balance: 0}"},
         "model.router.noisy: with train.objective: dpo answers are compared with a reference, "
         "whose routers have no noise; set false"},
        {{"train.objective=orpo", "model.family=mixtral", "model.router={balance: 0.01}"},
         "model.router.balance: with train.objective: orpo the balancing loss of routers is not "
         "supported; set 0"},
        {{"train.objective=reward", "model.family=mixtral",
          "model.router={balance: 0, z_loss: 0.01}"},
         "model.router.z_loss: with train.objective: reward the z-loss of routers is not "
         "supported; set "
         "0"},
        {{"train.objective=kto", "train.preference.loss=hinge"},
         "train.preference.loss: hinge compares two answers, and with train.objective: kto each "
         "answer is rated by itself; use kto or apo_zero_unpaired"},
        {{"train.objective=dpo", "train.preference.loss=kto"},
         "train.preference.loss: kto is a loss on rated answers; use train.objective: kto"},
        {{"train.objective=dpo", "train.preference.desirable_weight=2"},
         "train.preference.desirable_weight: it weighs the rated answers of kto"},
        {{"train.objective=kto", "train.dropout.residual=0.1"},
         "train.dropout.residual: with train.objective: kto answers are compared with a reference"},
        {{"train.objective=dpo", "train.distill.teacher=/t"},
         "train.distill.teacher: with train.objective: dpo the loss is not that of next tokens"},
        {{"train.distill.teacher=/t", "train.distill.write=true"},
         "train.distill.write: the job has a teacher of its own; remove train.distill.teacher"},
        {{"train.distill.temperature=2"},
         "train.distill.temperature: there is no teacher; name its file in train.distill.teacher"},
        {{"train.distill.teacher=/t", "train.distill.beta=0.3"},
         "train.distill.beta: only train.distill.loss: jsd has it"},
        {{"train.distill.teacher=/t", "train.distill.loss=jsd", "train.distill.beta=1"},
         "train.distill.beta: 1 is not between 0 and 1; in place of 0 use train.distill.loss: "
         "forward, in place of 1 reverse"},
        {{"train.distill.teacher=/t", "train.z_loss=1e-4"},
         "train.z_loss: with train.distill.teacher there is none; set 0"},
        {{"train.qk_clip.threshold=100", "model.qk_norm=true"},
         "train.qk_clip.threshold: does not go with model.qk_norm: norms of queries and keys undo "
         "what it does to their weights; remove train.qk_clip"},
        {{"train.qk_clip.threshold=100", "model.attention_cap=50"},
         "train.qk_clip.threshold: does not go with model.attention_cap: the cap bounds scores"},
        {{"train.qk_clip.threshold=100", "train.adapter.type=lora"},
         "train.qk_clip.threshold: does not go with train.adapter.type: the weights of queries"},
        {{"train.qk_clip.threshold=100", "train.trainable=[norms]"},
         "train.qk_clip.threshold: does not go with train.trainable: all queries and keys must"},
        {{"train.qk_clip.alpha=0.4"},
         "train.qk_clip.alpha: nothing is clipped; give train.qk_clip.threshold, too"},
        {{"validate.ema=true"}, "validate.ema: the job keeps no average of its weights; give"},
        {{"train.ema.decay=0.9", "validate.ema=true", "validate.batches=0"},
         "validate.ema: no loss is validated; give"},
        {{"train.objective=kto", "train.z_loss=1e-4"},
         "train.z_loss: with train.objective: kto the loss compares answers"},
        {{"data={stages: [{until: 50, train: long.txt, context: 8}, {train: corpus/a.txt}]}",
          "train.distill.write=true"},
         "train.distill.write: a teacher reads all data in windows of one model.context; remove "
         "context, global_batch and rope_theta of data.stages"},
        {{"train={steps: 9, global_batch: 16, lr: 1e-3, objective: gkd, rollout: {prompts: 2, "
          "max_tokens: 8}, distill: {teacher: /t}}",
          "data={train: corpus/a.txt}"},
         "train.distill.teacher: train.objective: gkd needs a model folder or checkpoint, which is "
         "there when"},
        {{"train.distill.teacher=/t", "train.distill.on_policy=0.5"},
         "train.distill.on_policy: only train.objective: gkd has answers of the student"},
        {{"train={steps: 9, global_batch: 16, lr: 1e-3, objective: grpo, rollout: {prompts: 2, "
          "group: "
          "1}, rewards: [number]}",
          "data={train: corpus/a.txt}"},
         "train.rollout.group: with train.objective: grpo the answers to a prompt are compared"},
        {{"train={steps: 9, global_batch: 16, lr: 1e-3, objective: grpo, rollout: {prompts: 2, "
          "max_tokens: 8}, rewards: [number]}",
          "data.bad_rows=skip"},
         "data.bad_rows: with train.objective: grpo a row that is no prompt ends the job"},
        {{"train={steps: 9, global_batch: 16, lr: 1e-3, objective: grpo, rollout: {prompts: 2, "
          "max_tokens: 8}, rewards: [number]}",
          "data={train: corpus/a.txt}", "train.policy.dual_clip=1.1"},
         "train.policy.dual_clip: 1.1 is below 1 + train.policy.clip_high = 1.28, and so would "
         "bound"},
        {{"train={steps: 9, global_batch: 16, lr: 1e-3, objective: grpo, rollout: {prompts: 2, "
          "max_tokens: 8}, rewards: [number]}",
          "data={train: corpus/a.txt}", "train.policy.kl=k2"},
         "train.policy.kl_beta: is missing or 0: the factor of the divergence k2"},
        {{"train={steps: 9, global_batch: 16, lr: 1e-3, objective: grpo, rollout: {prompts: 2, "
          "max_tokens: 400}, rewards: [number]}",
          "data={train: corpus/a.txt}"},
         "train.rollout.max_tokens: answers of up to 400 tokens leave no room for a prompt"},
        {{"train.policy.kl=k3"}, "train.policy.kl: is a setting of train.objective: grpo"},
        {{"train.policy.kl_beta=1"}, "train.policy.kl_beta: is a setting of train.objective: grpo"},
        {{"train.policy.scale=none"}, "train.policy.scale: is a setting of train.objective: grpo"},
        {{"train.policy.clip_low=0.1"},
         "train.policy.clip_low: is a setting of train.objective: grpo"},
        {{"train.rollout.stop=[x]"}, "train.rollout.stop: is a setting of train.objective: grpo"},
        {{"train={steps: 9, global_batch: 16, lr: 1e-3, objective: grpo, rollout: {prompts: 2, "
          "max_tokens: 8}, rewards: [number]}",
          "data={train: corpus/a.txt}", "train.policy.kl_in=reward"},
         "train.policy.kl_in: there is no divergence; give train.policy.kl_beta"},
        {{"train.batch_schedule=0:4 x"},
         "train.batch_schedule: 'x' is no span; write STEP:SEQUENCES"},
        {{"train.batch_schedule=0:4 2:16", "train.global_batch=8"},
         "train.global_batch: 8 is not the largest batch of train.batch_schedule, 16; remove"},
        {{"train.batch_schedule=0:4 9999999:8", "train.global_batch=8"},
         "train.batch_schedule: the last span begins after 9999999 steps, and train.steps is"},
        {{"train.objective=kto", "train.neftune_alpha=5"},
         "train.neftune_alpha: with train.objective: kto answers are compared with a reference, "
         "whose embeddings have no noise"},
        {{"model.quantization=nf4", "train.precision=fp8", "train.adapter={type: lora}"},
         "train.precision: fp8 multiplies the matrices of blocks in fp8, but with "
         "model.quantization: "
         "nf4 they are codes, which are multiplied in bf16; use bf16"},
        /* 64 columns of the products that leave attention: 16 a rank, a quarter of a block */
        {{"model.quantization=nf4", "train.adapter={type: lora}", "parallel.tp=4",
          "resources.devices=4"},
         "parallel.tp: 4 cuts through a block of 64 weights of the matrices of blocks; with "
         "model.quantization: nf4 use 1, or take int8"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t said = 0;
        struct hd_spec_source source = {.name = "job.yaml",
                                        .folder = folder,
                                        .bytes = good,
                                        .size_bytes = good_bytes,
                                        .overrides = rows[i].said};
        struct hd_job job;

        while (said < SAID && rows[i].said[said])
            said++;
        source.override_count = said;
        if (hd_spec_read_yaml(&source, &jobs, &job) != HD_INVALID)
            fail_msg("row %zu: %s", i, rows[i].message);
        if (!strstr(hd_err_message(), rows[i].message))
            fail_msg("%s", hd_err_message());
    }
}

static void what_is_not_built_says_so(void **state)
{
    expect_refusals(wishes, sizeof wishes / sizeof wishes[0], HD_UNSUPPORTED);
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
