/* translate_values: settings of other tools whose value needs code. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/words.h"
#include "job/family.h"
#include "translate_internal.h"

/* Sets model.from to a folder, or to a name of the hub. */
static void take_model_name(struct translated_file *t, const struct spec_row *row,
                            const char *theirs, const char *value)
{
    const char *slash = strchr(value, '/');
    const bool is_name =
        slash && slash > value && !strchr(slash + 1, '/') && slash[1] && !strchr("./~", value[0]);
    const char *from = is_name ? hd_arena_printf(t->arena, "hf://%s", value) : value;

    translate_put(t, "model.from", translate_quote(t, from ? from : ""), NULL);
    translate_tell(t, theirs, "model.from",
                   is_name ? "a model of the hub is written hf://ORG/NAME"
                           : (row->note ? row->note : "a folder of transformers"));
}

/* Sets the name of the job to the letters of a text that a name may have. */
static void take_name(struct translated_file *t, const char *text)
{
    char clean[TRANSLATE_NAME_MAX];

    translate_clean_name(text, clean);
    if (*clean && !translate_get(t, "name"))
        translate_put(t, "name", hd_arena_strdup(t->arena, clean), NULL);
}

static void take_adapter_kind(struct translated_file *t, const char *theirs,
                              const struct yaml_node *node)
{
    const char *value = translate_text(t, node);
    const bool lora = strcmp(value, "lora") == 0 || strcmp(value, "qlora") == 0 ||
                      (strcmp(theirs, "use_peft") == 0 && translate_is_true(t, node));

    t->has_adapter |= lora;
    if (lora)
        translate_put(t, "train.adapter.type", "lora", NULL);
    if (strcmp(value, "qlora") == 0 && !translate_get(t, "model.quantization"))
        translate_put(t, "model.quantization", "nf4", NULL);
    if (!lora && strcmp(value, "full") != 0 && strcmp(value, "freeze") != 0 &&
        !translate_is_false(t, node)) {
        translate_lack(t, theirs,
                       hd_arena_printf(t->arena,
                                       "%s is not here; of adapters there are "
                                       "lora, bottleneck and prefix",
                                       value));
        translate_tell(t, theirs, "train.adapter.type", "this adapter is not here");
        return;
    }
    translate_tell(t, theirs, "train.adapter.type",
                   strcmp(value, "qlora") == 0 ? "and model.quantization: nf4"
                   : lora                      ? NULL
                                               : "no adapter: everything trains");
}

static void take_quantization(struct translated_file *t, const char *theirs,
                              const struct yaml_node *node)
{
    const bool is_bits = strcmp(theirs, "quantization_bit") == 0;
    const bool four = is_bits ? translate_number(t, node, 0) == 4
                              : strstr(theirs, "4bit") && translate_is_true(t, node);
    const bool eight = is_bits ? translate_number(t, node, 0) == 8
                               : strstr(theirs, "8bit") && translate_is_true(t, node);

    if (four || eight)
        translate_put(t, "model.quantization", four ? "nf4" : "int8", NULL);
    else if (is_bits)
        translate_lack(t, theirs, "4 and 8 bits are here");
    translate_tell(t, theirs, "model.quantization", four ? "nf4" : eight ? "int8" : "off");
}

/* Optimizers of transformers, axolotl, torchtune (whose names end in a class) and Megatron-LM. */
static void take_optimizer(struct translated_file *t, const char *theirs, const char *value)
{
    /* names that begin like AdamW's and are other optimizers, or other forms of it */
    static const char *const others[] = {
        "adam_mini", "adamax",    "adamw_schedulefree", "adamw_schedule_free",
        "adagrad",   "adafactor", "ademamix",           "stable_adamw"};
    const bool adam = strncasecmp(value, "adam", 4) == 0 || strstr(value, "AdamW") ||
                      hd_text_starts(value, "paged_adam");
    const bool eight = strstr(value, "8bit") || strstr(value, "bnb_8");
    const bool four = strstr(value, "4bit") != NULL, fp8 = strstr(value, "fp8") != NULL;
    const bool paged = strcasestr(value, "paged") || strcasestr(value, "offload");
    const char *other = strcasestr(value, "muon")   ? "muon"
                        : strcasestr(value, "lion") ? "lion"
                                                    : NULL;
    bool known = adam || other;

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        known &= !strcasestr(value, others[i]);
    if (!known) {
        translate_lack(
            t, theirs,
            hd_arena_printf(t->arena, "%s is not here: adamw, lion and muon are", value));
        translate_tell(t, theirs, "not here",
                       hd_arena_printf(t->arena, "%s is not here; the job has AdamW", value));
        return;
    }
    if (eight || four || fp8)
        translate_put(t, "train.moments", "8bit", NULL);
    if (four || fp8)
        translate_lack(t, theirs,
                       hd_arena_printf(t->arena, "moments of %s are not here: 8bit, fp32",
                                       four ? "4 bits" : "FP8"));
    if (paged)
        translate_lack(t, theirs, "pages in the host's memory: parallel.offload: optimizer");
    if (other) {
        translate_put(t, "train.optimizer.name", other, NULL);
        translate_tell(t, theirs, "train.optimizer", eight ? "with moments in 8 bits" : other);
        return;
    }
    translate_tell(t, theirs, eight || four || fp8 ? "train.moments" : "not needed",
                   eight || four || fp8 ? "AdamW with moments in 8 bits"
                                        : "AdamW is the optimizer");
}

/* Makes the job one of GRPO (translate.c tells what else it needs). */
static void take_grpo(struct translated_file *t, const struct spec_row *row, const char *theirs,
                      const char *value)
{
    if (strcmp(row->path, "train.rollout.group") == 0)
        translate_put(t, row->path, value, NULL);
    translate_put(t, "train.objective", "grpo", NULL);
    translate_tell(t, theirs, row->path, "of grpo; write train.rollout.prompts and train.rewards");
}

/* Returns a model's folder or its name at the Hugging Face hub, quoted. */
static const char *quote_model(struct translated_file *t, const char *value)
{
    return translate_quote(
        t, *value == '/' || *value == '.' ? value : hd_arena_printf(t->arena, "hf://%s", value));
}

static void take_objective(struct translated_file *t, const struct spec_row *row,
                           const char *theirs, const char *value)
{
    static const char *const same[] = {"dpo", "orpo", "simpo", "cpo", "kto"};
    const bool is_reward = strcmp(value, "rm") == 0 || strcmp(value, "reward") == 0;

    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (strcmp(value, same[i]) == 0)
            translate_put(t, "train.objective", same[i], NULL);
    if (is_reward)
        translate_put(t, "train.objective", "reward", NULL);
    if (strcmp(value, "ipo") == 0) { /* axolotl */
        translate_put(t, "train.objective", "dpo", NULL);
        translate_put(t, "train.preference.loss", "ipo", NULL);
    }
    if (strcmp(value, "sft") == 0 || strcmp(value, "pt") == 0) {
        translate_tell(t, theirs, "train.objective", "next_token, the default");
        return;
    }
    if (translate_get(t, "train.objective")) {
        translate_tell(t, theirs, "train.objective", NULL);
        return;
    }
    if (strcmp(value, "grpo") == 0) {
        take_grpo(t, row, theirs, value);
        return;
    }
    translate_lack(t, theirs,
                   hd_arena_printf(t->arena,
                                   "%s is not here; of losses on pairs there "
                                   "are dpo, orpo, simpo, cpo, kto and reward",
                                   value));
    translate_tell(t, theirs, "train.objective",
                   hd_arena_printf(t->arena,
                                   "%s is not here; dpo, orpo, simpo, cpo, kto and reward are",
                                   value));
}

/* Returns whether train.preference.loss has this word beside sigmoid. */
static bool is_preference_loss(const char *word)
{
    const struct hd_key *key = hd_job_find_key("train.preference.loss");
    double value;

    return key && hd_job_word_value(key, word, &value) && strcmp(word, "sigmoid") != 0;
}

static void take_preference(struct translated_file *t, const struct spec_row *row,
                            const char *theirs, const char *value)
{
    if (strcmp(value, "sigmoid") == 0 || strcmp(value, "orpo") == 0) {
        if (strcmp(value, "orpo") == 0 || t->tool == TOOL_TRL)
            translate_put(t, "train.objective", *value == 'o' ? "orpo" : "dpo", NULL);
        translate_tell(t, theirs, "train.objective", *value == 'o' ? "orpo" : "dpo");
        return;
    }
    if (is_preference_loss(value)) { /* a loss of dpo or kto under our name */
        const bool rated = strcmp(value, "kto") == 0 || strcmp(value, "apo_zero_unpaired") == 0;

        translate_put(t, "train.objective", rated ? "kto" : "dpo", NULL);
        translate_put(t, "train.preference.loss", value, NULL);
        translate_tell(t, theirs, "train.preference.loss",
                       rated ? "with train.objective: kto" : "with train.objective: dpo");
        return;
    }
    if (strcmp(value, "grpo") == 0 || strcmp(value, "dapo") == 0 || strcmp(value, "dr_grpo") == 0) {
        take_grpo(t, row, theirs, value);
        translate_put(t, "train.policy.loss", value, NULL);
        return;
    }
    if (strcmp(value, "simpo") == 0) {
        translate_put(t, "train.objective", "simpo", NULL);
        translate_tell(t, theirs, "train.objective", "simpo");
        return;
    }
    if (strcmp(value, "nll") == 0 || strcmp(value, "bnpo") == 0 || strcmp(value, "dft") == 0) {
        translate_tell(t, theirs, "not needed", "the loss is of the next token");
        return;
    }
    translate_lack(t, theirs,
                   hd_arena_printf(t->arena,
                                   "%s is not here; docs/job-file.md lists train.preference.loss",
                                   value));
    translate_tell(t, theirs, "train.objective",
                   hd_arena_printf(t->arena,
                                   "%s is not here; docs/job-file.md lists train.preference.loss",
                                   value));
}

static void take_precision(struct translated_file *t, const char *theirs,
                           const struct yaml_node *node)
{
    const char *value = translate_text(t, node), *word = NULL;
    const bool eight = strncmp(theirs, "fp8", 3) == 0;

    if (strcmp(value, "auto") == 0)
        word = "auto";
    else if (eight ? !translate_is_false(t, node) : translate_is_true(t, node))
        word = eight ? "fp8" : strchr(theirs, 'b') == theirs ? "bf16" : "fp16";
    if (word && (!translate_get(t, "train.precision") || eight))
        translate_put(t, "train.precision", word, NULL);
    translate_tell(t, theirs, "train.precision", word ? word : "off");
}

static void take_zero(struct translated_file *t, const char *theirs, const struct yaml_node *node)
{
    const char *value = translate_text(t, node), *stage = NULL;
    const char *zero = strstr(value, "zero") ? strstr(value, "zero") : strstr(value, "_z");
    const char *digit = strpbrk(zero ? zero : value, "123");

    if (strncmp(theirs, "fsdp", 4) == 0 && !digit)
        stage = strstr(value, "grad_op") ? "2" : "3";
    else if (zero && digit)
        stage = *digit == '1' ? "1" : *digit == '2' ? "2" : "3";
    if (translate_is_false(t, node) || strcmp(theirs, "fsdp_version") == 0)
        stage = NULL;
    if (stage && !translate_get(t, "parallel.zero"))
        translate_put(t, "parallel.zero", stage, NULL);
    if (strstr(value, "offload"))
        translate_put(t, "parallel.offload", "optimizer", NULL);
    translate_tell(t, theirs, "parallel.zero",
                   stage ? "which is chosen by itself where the line is absent"
                         : "chosen by itself");
}

static void take_val_size(struct translated_file *t, const char *theirs,
                          const struct yaml_node *node)
{
    const double size = translate_number(t, node, 0);

    if (size > 0 && size <= 0.9)
        translate_put(t, "data.val_split", hd_arena_printf(t->arena, "%.6g", size), NULL);
    else if (size >= 1)
        translate_put(t, "data.val_split", "0.02", "theirs is a number of records; here a share");
    translate_tell(t, theirs, "data.val_split",
                   size >= 1  ? "theirs is a number of records; here a share"
                   : size > 0 ? NULL
                              : "none");
}

/* Sets the list of modules with an adapter to that of theirs. */
static void take_targets(struct translated_file *t, const char *theirs,
                         const struct yaml_node *node)
{
    const char *value = translate_text(t, node), *had = translate_get(t, "train.adapter.targets");
    struct hd_text out = {0};
    const char *list;

    if (strcmp(theirs, "model.apply_lora_to_mlp") == 0) {
        if (translate_is_true(t, node) && had && *had == '[')
            translate_put(t, "train.adapter.targets",
                          hd_arena_printf(t->arena, "%.*s, gate_proj, up_proj, down_proj]",
                                          (int)strlen(had) - 1, had),
                          NULL);
        translate_tell(t, theirs, "train.adapter.targets", NULL);
        return;
    }
    if (strcmp(value, "all") == 0 || strcmp(value, "all-linear") == 0) {
        translate_put(t, "train.adapter.targets", "all-linear", NULL);
        translate_tell(t, theirs, "train.adapter.targets", "all-linear");
        return;
    }
    hd_text_add(&out, "[");
    if (node->kind == YAML_KIND_LIST)
        for (const struct yaml_node *c = node->first; c; c = c->next)
            hd_text_add(&out, "%s%s", c == node->first ? "" : ", ",
                        strcmp(translate_text(t, c), "output_proj") == 0
                            ? "o_proj"
                            : translate_quote(t, translate_text(t, c)));
    else
        for (const char *at = value; *at; at += strcspn(at, ", "), at += strspn(at, ", "))
            hd_text_add(
                &out, "%s%s", at == value ? "" : ", ",
                translate_quote(t, hd_arena_printf(t->arena, "%.*s", (int)strcspn(at, ", "), at)));
    hd_text_add(&out, "]");
    list = hd_arena_strdup(t->arena, out.data ? out.data : "[]");
    hd_text_free(&out);
    if (list && strcmp(list, "[]") != 0 && !(had && strcmp(had, "all-linear") == 0))
        translate_put(t, "train.adapter.targets", list, NULL);
    translate_tell(t, theirs, "train.adapter.targets",
                   strcmp(theirs, "model.lora_attn_modules") == 0 ? "output_proj is o_proj" : NULL);
}

static void take_also(struct translated_file *t, const char *theirs, const struct yaml_node *node)
{
    bool embedding = false, head = false, other = false;
    const char *value = translate_text(t, node);

    if (node->kind == YAML_KIND_LIST)
        for (const struct yaml_node *c = node->first; c; c = c->next) {
            const char *name = translate_text(t, c);

            embedding |= strstr(name, "embed") != NULL;
            head |= strstr(name, "lm_head") != NULL;
            other |= !strstr(name, "embed") && !strstr(name, "lm_head");
        }
    embedding |= strstr(value, "embed") != NULL;
    head |= strstr(value, "lm_head") != NULL;
    if (embedding || head)
        translate_put(t, "train.adapter.trainable",
                      embedding && head ? "[embedding, head]"
                      : embedding       ? "[embedding]"
                                        : "[head]",
                      NULL);
    translate_tell(t, theirs, "train.adapter.trainable",
                   other ? "embedding, head and norms have words; others are patterns of our names"
                         : NULL);
}

static void take_template(struct translated_file *t, const char *theirs, const char *value)
{
    if (strcmp(value, "chatml") == 0)
        t->template_file = "chatml.jinja";
    else if (strcmp(value, "alpaca") == 0)
        t->template_file = "alpaca.jinja";
    translate_tell(t, theirs, "data.template",
                   strcmp(value, "jinja") == 0 ? "the one of chat_template_jinja"
                   : t->template_file          ? "a file beside the job file"
                                               : "the model's own, in its folder, is the default");
}

/* Families of torchtune's names of models, "llama3_1.lora_llama3_1_8b". */
static const char *family_of_component(const char *value)
{
    static const struct {
        const char *theirs, *ours;
    } families[] = {{".llama4", "llama4_text"}, {".llama", "llama"},   {".code_llama", "llama"},
                    {".qwen2_5", "qwen2"},      {".qwen2", "qwen2"},   {".qwen3", "qwen3"},
                    {".mistral", "mistral"},    {".gemma2", "gemma2"}, {".phi3", "phi3"},
                    {".phi4", "phi3"}};

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strstr(value, families[i].theirs))
            return families[i].ours;
    return NULL;
}

static void take_component(struct translated_file *t, const char *theirs, const char *value)
{
    const char *family = family_of_component(value);

    if (hd_text_starts(theirs, "model.")) {
        t->has_adapter |= strstr(value, "lora_") != NULL || strstr(value, "dora_") != NULL;
        if (t->has_adapter)
            translate_put(t, "train.adapter.type", "lora", NULL);
        if (strstr(value, "qlora_"))
            translate_put(t, "model.quantization", "nf4", NULL);
        if (!family)
            translate_lack(t, theirs,
                           hd_arena_printf(t->arena,
                                           "%s: docs/models.md has the "
                                           "families that train",
                                           value));
        translate_tell(t, theirs, "model.from",
                       family ? hd_arena_printf(t->arena, "family %s, by config.json there", family)
                              : "look whether docs/models.md has this family");
    } else if (hd_text_starts(theirs, "optimizer.")) {
        take_optimizer(t, theirs, value);
    } else if (hd_text_starts(theirs, "lr_scheduler.")) {
        translate_put(t, "train.lr.decay",
                      strstr(value, "linear")     ? "linear"
                      : strstr(value, "constant") ? "constant"
                                                  : "cosine",
                      NULL);
        translate_tell(t, theirs, "train.lr.decay", NULL);
    } else if (hd_text_starts(theirs, "loss.")) {
        if (strstr(value, "DPOLoss"))
            translate_put(t, "train.objective", "dpo", NULL);
        if (!strstr(value, "CrossEntropy") && !strstr(value, "CEWithChunked") &&
            !strstr(value, "DPOLoss"))
            translate_lack(t, theirs, hd_arena_printf(t->arena, "%s is not here", value));
        translate_tell(t, theirs, "train.objective",
                       strstr(value, "DPOLoss") ? "dpo" : "next_token, the default");
    } else {
        translate_tell(t, theirs, "not needed", "files and classes are found in the folder");
    }
}

static void take_strategy(struct translated_file *t, const struct spec_row *row, const char *theirs,
                          const char *value)
{
    if (strcmp(value, "no") == 0 && strcmp(row->path, "checkpoint.every") == 0)
        translate_put(t, row->path, "0", "the last step alone");
    if (strcmp(value, "no") == 0 && strcmp(row->path, "validate.every") == 0)
        translate_put(t, row->path, "0", "before the first and after the last step");
    translate_tell(t, theirs, row->path,
                   strcmp(value, "steps") == 0 ? "a number of steps"
                   : strcmp(value, "epoch") == 0
                       ? "a number of steps; heddle validate says how many an epoch has"
                       : NULL);
}

static void take_steps(struct translated_file *t, const struct spec_row *row, const char *theirs,
                       const struct yaml_node *node)
{
    const double steps = translate_number(t, node, -1);

    if (steps >= 1 && steps == floor(steps))
        translate_put(t, row->path, hd_arena_printf(t->arena, "%.0f", steps), NULL);
    translate_tell(t, theirs, row->path,
                   steps > 0 && steps < 1 ? "theirs is a share of the run; here a number of steps"
                   : steps < 1            ? "no limit"
                                          : NULL);
}

static void take_count(struct translated_file *t, const char *theirs, const char *ours,
                       const struct yaml_node *node, double *ret_count, const char *note)
{
    const double value = translate_number(t, node, -1);
    const bool is_count = value >= 1 && value == floor(value) && value < 1e7;

    if (is_count)
        *ret_count = value;
    else
        translate_lack(t, theirs,
                       hd_arena_printf(t->arena, "%s is no number", translate_text(t, node)));
    translate_tell(t, theirs, ours, is_count ? note : "no number: set it");
}

/* Megatron-LM: weights of training, validation and test, "969,30,1". */
static void take_split(struct translated_file *t, const char *theirs, const struct yaml_node *node)
{
    double parts[3] = {0};
    const char *text = translate_text(t, node);
    char *end;

    for (int i = 0; i < 3 && *text; i++, text = *end ? end + 1 : end)
        parts[i] = strtod(text, &end);
    if (parts[0] > 0 && parts[1] > 0 && parts[1] / (parts[0] + parts[1]) <= 0.9)
        translate_put(t, "data.val_split",
                      hd_arena_printf(t->arena, "%.4g", parts[1] / (parts[0] + parts[1])), NULL);
    translate_tell(t, theirs, "data.val_split",
                   "the share of the second number; there is no third part");
}

void translate_value(struct translated_file *t, const struct spec_row *row, const char *theirs,
                     const struct yaml_node *node)
{
    const char *value = translate_text(t, node);

    switch (row->call) {
    case CALL_MODEL:
        if (*value)
            take_model_name(t, row, theirs, value);
        break;
    case CALL_MICRO:
        take_count(t, theirs, row->path, node, &t->micro, "sequences per device and forward pass");
        break;
    case CALL_ACCUM:
        take_count(t, theirs, row->path, node, &t->accum,
                   "micro-batch x accumulation x devices: sequences per step");
        break;
    case CALL_DEVICES:
        take_count(t, theirs, row->path, node, &t->devices, "devices of all nodes");
        break;
    case CALL_NODES:
        take_count(t, theirs, row->path, node, &t->nodes, "devices of all nodes");
        break;
    case CALL_RATIO:
        t->warmup_ratio = translate_number(t, node, -1);
        translate_tell(t, theirs, row->path,
                       "a number of steps; by default a twentieth of the run");
        break;
    case CALL_MIN_RATIO:
        t->min_ratio = translate_number(t, node, -1);
        translate_tell(t, theirs, row->path, "a learning rate; by default a tenth of the peak");
        break;
    case CALL_PER_EPOCH:
        translate_tell(t, theirs, row->path,
                       "a number of steps; heddle validate says how many an epoch has");
        break;
    case CALL_STRATEGY:
        take_strategy(t, row, theirs, value);
        break;
    case CALL_QUANT:
        take_quantization(t, theirs, node);
        break;
    case CALL_ADAPTER:
        take_adapter_kind(t, theirs, node);
        break;
    case CALL_OPTIMIZER:
        take_optimizer(t, theirs, value);
        break;
    case CALL_BETAS:
        if (node->kind == YAML_KIND_LIST && node->first && node->first->next &&
            translate_number(t, node->first, -1) >= 0 &&
            translate_number(t, node->first->next, -1) >= 0) {
            translate_put(t, "train.beta1", translate_text(t, node->first), NULL);
            translate_put(t, "train.beta2", translate_text(t, node->first->next), NULL);
        }
        translate_tell(t, theirs, row->path, "and train.beta2");
        break;
    case CALL_OBJECTIVE:
        take_objective(t, row, theirs, value);
        break;
    case CALL_PREFERENCE:
        take_preference(t, row, theirs, value);
        break;
    case CALL_TEACHER:
        translate_put(t, row->path, quote_model(t, value), row->note);
        translate_tell(t, theirs, row->path, row->note);
        break;
    case CALL_REWARD_MODEL:
        translate_put(t, row->path,
                      hd_arena_printf(t->arena, "[{model: %s}]", quote_model(t, value)), NULL);
        translate_tell(t, theirs, row->path, NULL);
        break;
    case CALL_GRPO:
        take_grpo(t, row, theirs, value);
        break;
    case CALL_BETA:
        t->has_beta = true;
        if (translate_number(t, node, -1) > 0)
            translate_put(t, row->path, value, NULL);
        translate_tell(t, theirs, row->path,
                       "of grpo train.policy.kl_beta, of gkd train.distill.beta");
        break;
    case CALL_PRECISION:
        take_precision(t, theirs, node);
        break;
    case CALL_ZERO:
        take_zero(t, theirs, node);
        break;
    case CALL_VAL_SIZE:
        take_val_size(t, theirs, node);
        break;
    case CALL_NAME:
        take_name(t, value);
        translate_tell(t, theirs, "name", NULL);
        break;
    case CALL_OUTPUT:
        translate_tell(t, theirs, "not needed",
                       "the controller chooses a job's folder, heddle local --dir a run's");
        break;
    case CALL_TARGETS:
        take_targets(t, theirs, node);
        break;
    case CALL_ALSO:
        take_also(t, theirs, node);
        break;
    case CALL_TEMPLATE:
        take_template(t, theirs, value);
        break;
    case CALL_COMPONENT:
        take_component(t, theirs, value);
        break;
    case CALL_STEPS:
        take_steps(t, row, theirs, node);
        break;
    case CALL_TEXT_COLUMN:
        if (strcmp(value, "text") != 0)
            translate_put(t, row->path,
                          hd_arena_printf(t->arena, "{text: %s}", translate_quote(t, value)), NULL);
        translate_tell(t, theirs, row->path, NULL);
        break;
    case CALL_LAST_LAYERS:
        if (translate_number(t, node, 0) >= 1)
            translate_put(t, row->path,
                          hd_arena_printf(t->arena, "{last: %.0f}", translate_number(t, node, 1)),
                          NULL);
        t->is_frozen = true;
        translate_tell(t, theirs, row->path, "{last: K}, the last K blocks");
        break;
    case CALL_WEIGHTS_SPLIT:
        take_split(t, theirs, node);
        break;
    case CALL_DATA:
    case CALL_VAL_DATA:
    case CALL_SPLIT:
    case CALL_BLEND:
        if (t->tool == TOOL_FACTORY)
            translate_sets(t, theirs, row->call == CALL_VAL_DATA, value);
        else
            translate_data(t, row, theirs, node);
        break;
    case CALL_NONE:
        break;
    }
}
