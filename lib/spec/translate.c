/* translate: a file of axolotl, TRL, torchtune, LLaMA-Factory, TrainingArguments or Megatron-LM as a
 * job file.
 *
 *     their file -> tree -> which tool? -> each setting by its row (translate_rows.c)
 *                -> keys, a table "their key | ours | note" -> text of the job file
 *
 * Nothing is guessed that changes results: a setting that Heddle lacks, or that has no row, is a
 * comment in the job file and a line of the table.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/words.h"
#include "translate_internal.h"

enum {
    DEPTH_MAX = 4,        /* nesting of groups whose members are settings of their own */
    NAME_BYTES_MAX = 160, /* of a dotted setting */
    MATCHES_MIN = 3       /* settings that a file of a tool has at least */
};

/* ---- a setting ---- */

/* Returns a number as a job file has it: the digits of their file without '_', an integer without
 * ".0". NULL: it is no number, or not one that the key may have. */
static const char *number_for(struct translated_file *t, const struct hd_key *key,
                              const struct yaml_node *node)
{
    const double value = translate_number(t, node, NAN);

    if (isnan(value))
        return NULL;
    if (key->kind == HD_KEY_INT && value == floor(value) && fabs(value) < 1e15)
        return hd_job_number_is_possible(key, value) ? hd_arena_printf(t->arena, "%.0f", value)
                                                     : NULL;
    if (key->kind == HD_KEY_INT || !hd_job_number_is_possible(key, value))
        return NULL;
    return strpbrk(translate_text(t, node), "_,") ? hd_arena_printf(t->arena, "%.12g", value)
                                                  : translate_text(t, node);
}

static void copy_value(struct translated_file *t, const struct spec_row *row, const char *theirs,
                       const struct yaml_node *node)
{
    const struct hd_key *key = hd_job_find_key(row->path);
    const bool is_number = key && (key->kind == HD_KEY_INT || key->kind == HD_KEY_REAL);
    const char *text =
        is_number ? number_for(t, key, node) : translate_quote(t, translate_text(t, node));

    if (text)
        translate_put(t, row->path, text, NULL);
    translate_tell(
        t, theirs, row->path,
        text ? row->note
             : hd_arena_printf(t->arena, "%s is not possible there; left out",
                               *translate_text(t, node) ? translate_text(t, node) : "its value"));
}

/* Returns our word for theirs by a list "theirs=ours ..."; NULL: none. */
static const char *our_word(struct translated_file *t, const char *words, const char *theirs)
{
    const size_t len = strlen(theirs);

    for (const char *at = words; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strncmp(at, theirs, len) == 0 && at[len] == '=')
            return hd_arena_printf(t->arena, "%.*s", (int)strcspn(at + len + 1, " "), at + len + 1);
    return NULL;
}

static void put_word(struct translated_file *t, const struct spec_row *row, const char *theirs,
                     const struct yaml_node *node)
{
    const char *value = translate_text(t, node), *word = our_word(t, row->arg, value);
    const bool differs = word && strcmp(word, value) != 0 && strlen(value) > strlen(word);

    if (word)
        translate_put(t, row->path, word, NULL);
    else
        translate_lack(
            t, theirs,
            hd_arena_printf(t->arena, "%s is not here; %s has its default", value, row->path));
    translate_tell(t, theirs, row->path,
                   !word ? hd_arena_printf(t->arena, "%s is not here: the default is kept", value)
                   : differs && !hd_text_starts(value, word)
                       ? hd_arena_printf(t->arena, "%s here is %s", value, word)
                       : row->note);
}

static void take_setting(struct translated_file *t, const char *theirs,
                         const struct yaml_node *node, int depth);

static void apply(struct translated_file *t, const struct spec_row *row, const char *theirs,
                  const struct yaml_node *node)
{
    switch (row->how) {
    case HOW_COPY:
        copy_value(t, row, theirs, node);
        break;
    case HOW_BOOL:
    case HOW_NOT:
        translate_put(t, row->path,
                      translate_is_true(t, node) == (row->how == HOW_BOOL) ? "true" : "false",
                      NULL);
        translate_tell(t, theirs, row->path, row->note);
        break;
    case HOW_WORDS:
        put_word(t, row, theirs, node);
        break;
    case HOW_TRUE:
        if (translate_is_true(t, node) && !translate_get(t, row->path))
            translate_put(t, row->path, row->arg, NULL);
        translate_tell(t, theirs, row->path, row->note);
        break;
    case HOW_DROP:
        translate_tell(t, theirs, "not needed", row->note);
        break;
    case HOW_LACK:
        if (translate_is_false(t, node)) {
            translate_tell(t, theirs, "not needed", "off");
            break;
        }
        translate_lack(t, theirs, row->note);
        translate_tell(t, theirs, "not here", row->note);
        break;
    case HOW_CALL:
        translate_value(t, row, theirs, node);
        break;
    }
}

/* Handles the members of a group. */
static void take_group(struct translated_file *t, const char *group, const struct yaml_node *map,
                       int depth)
{
    for (const struct yaml_node *c = map->first; c && depth < DEPTH_MAX; c = c->next) {
        char *name = hd_arena_printf(t->arena, "%s%s%s", group, *group ? "." : "", c->key);

        if (!name)
            return;
        for (char *at = name; *at; at++)
            *at = *at == '-' ? '_' : *at;
        take_setting(t, name, c, depth + 1);
    }
}

/* Handles one setting, or a group of settings. */
static void take_setting(struct translated_file *t, const char *theirs,
                         const struct yaml_node *node, int depth)
{
    const struct spec_row *row = spec_find_row(t->tool, theirs);

    if (!row && hd_text_starts(theirs, "no_")) { /* a setting that no key needs, switched off */
        row = spec_find_row(t->tool, theirs + 3);
        row = row && row->how == HOW_DROP ? row : NULL;
    }
    if (translate_is_null(t, node)) { /* a blank line says nothing */
        if (t->tool == TOOL_MEGATRON && row && (row->how == HOW_COPY || row->call == CALL_BLEND)) {
            translate_lack(
                t, theirs,
                hd_arena_printf(t->arena, "%s: the script gets its value when it runs", row->path));
            translate_tell(t, theirs, row->path, "set it: the script gets it when it runs");
        }
        return;
    }
    if (row) {
        apply(t, row, theirs, node);
    } else if (node->kind == YAML_KIND_MAP) {
        take_group(t, theirs, node, depth);
    } else if (t->tool == TOOL_TUNE && depth <= 1 && strchr(translate_text(t, node), '/')) {
        translate_tell(t, theirs, "not needed", "a variable of the file");
    } else {
        t->unknown++;
        translate_lack(t, theirs, "is not known to Heddle; look whether it matters");
        translate_tell(t, theirs, "?", "not known; look whether it matters");
    }
}

/* ---- which tool ---- */

static const struct {
    enum spec_tool tool;
    const char *name;
    const char *marks; /* settings that this tool alone has */
} tools[TOOLS] = {
    {TOOL_AXOLOTL, "axolotl",
     "base_model sequence_len sample_packing micro_batch_size num_epochs lora_r val_set_size "
     "dataset_prepared_path lora_target_linear wandb_project adapter"},
    {TOOL_TRL, "TRL",
     "dataset_name use_peft lora_r max_length dataset_train_split assistant_only_loss loss_type "
     "beta "
     "load_in_4bit max_seq_length"},
    {TOOL_TUNE, "torchtune", "enable_activation_checkpointing checkpointer metric_logger"},
    {TOOL_FACTORY, "LLaMA-Factory",
     "finetuning_type stage do_train cutoff_len template lora_target plot_loss overwrite_cache "
     "dataset_dir preprocessing_num_workers"},
    {TOOL_TRAINER, "TrainingArguments of transformers", "per_device_train_batch_size"},
    {TOOL_MEGATRON, "Megatron-LM", "num_layers micro_batch_size train_iters"},
};

static bool has_component(const struct yaml_node *root)
{
    for (const struct yaml_node *c = root->first; c; c = c->next)
        if (c->kind == YAML_KIND_MAP && hd_yaml_find(c, "_component_"))
            return true;
    return false;
}

/* Returns whether the file has a group that only job files have. */
static bool is_job(const struct yaml_node *root)
{
    static const char *const groups[] = {"model",    "data",      "train",     "validate",
                                         "parallel", "resources", "checkpoint"};

    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const struct yaml_node *node = hd_yaml_find(root, groups[i]);

        if (node && node->kind == YAML_KIND_MAP && !hd_yaml_find(node, "_component_"))
            return true;
    }
    return false;
}

/* Counts the settings that a tool has, and those of them that it alone has. */
static size_t count_settings(const struct yaml_node *root, int tool, size_t *ret_marks)
{
    size_t count = 0;

    *ret_marks = 0;
    for (const struct yaml_node *c = root->first; c; c = c->next) {
        char name[NAME_BYTES_MAX];

        (void)snprintf(name, sizeof name, "%s", c->key);
        for (char *at = name; *at; at++)
            *at = *at == '-' ? '_' : *at;
        count += spec_find_row(tools[tool].tool, name) != NULL;
        *ret_marks += hd_words_have(tools[tool].marks, name);
    }
    return count;
}

/* Returns the index of the tool whose file this is; -1: it is a job file, or no tool's. */
static int find_tool(const struct yaml_node *root)
{
    size_t most = 0;
    int found = -1;

    if (!root || root->kind != YAML_KIND_MAP)
        return -1;
    if (has_component(root))
        return __builtin_ctz(TOOL_TUNE);
    if (is_job(root))
        return -1;
    for (int i = 0; i < TOOLS; i++) {
        size_t marks, count = count_settings(root, i, &marks);

        /* a mark counts twice: the names of TrainingArguments are those of three tools */
        if (tools[i].tool != TOOL_MEGATRON && count >= MATCHES_MIN && marks &&
            count + 2 * marks > most) {
            most = count + 2 * marks;
            found = i;
        }
    }
    return found;
}

/* ---- the end ---- */

/* Defaults of the tools that differ from those of a job file. */
static const struct {
    unsigned tools;
    const char *path, *value;
} defaults[] = {
    {TOOLS_SFT, "train.weight_decay", "0"},
    {TOOL_TUNE, "train.weight_decay", "0.01"},
    {TOOL_MEGATRON, "train.weight_decay", "0.01"},
    {TOOLS_ALL, "train.beta2", "0.999"},
    {TOOL_TUNE, "train.clip", "0"},
    {TOOLS_HF, "train.lr.decay", "linear"},
    {TOOL_TUNE, "train.lr.decay", "constant"},
    {TOOL_MEGATRON, "train.lr.decay", "linear"},
    {TOOLS_ALL, "train.lr.min", "0"},
    {TOOLS_ALL, "train.lr.warmup", "0"},
    {TOOL_TRL, "train.lr.peak", "2e-5"},
    {TOOL_FACTORY | TOOL_TRAINER, "train.lr.peak", "5e-5"},
    {TOOLS_HF, "train.epochs", "3"},
    {TOOL_TRL, "model.context", "1024"},
    {TOOL_FACTORY, "model.context", "2048"},
    {TOOL_MEGATRON, "train.dropout.attention", "0.1"},
    {TOOL_MEGATRON, "train.dropout.residual", "0.1"},
};

/* Sets the keys of which their file leaves the default, where ours is another one, and marks those
 * that no file can be without. */
static void finish_defaults(struct translated_file *t)
{
    static const char *const needed[][2] = {{"train.global_batch", "8"}, {"train.lr.peak", "1e-4"}};

    if (t->tool == TOOL_TRL && !translate_get(t, "train.lr.peak") &&
        !translate_get(t, "train.distill.teacher") &&
        (t->has_beta || translate_get(t, "train.objective")))
        translate_put(t, "train.lr.peak", "1e-6", "their default of a preference");
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        const char *path = defaults[i].path;
        const bool is_ratio = strcmp(path, "train.lr.warmup") == 0 && t->warmup_ratio > 0;
        const bool has_steps = strcmp(path, "train.epochs") == 0 && translate_get(t, "train.steps");

        if ((defaults[i].tools & t->tool) && !translate_get(t, path) && !is_ratio && !has_steps)
            translate_put(t, path, defaults[i].value, "their default");
    }
    if (t->tool == TOOL_FACTORY && t->has_adapter && !translate_get(t, "train.adapter.alpha")) {
        const char *rank = translate_get(t, "train.adapter.rank");

        if (!rank)
            translate_put(t, "train.adapter.rank", rank = "8", "their default");
        translate_put(t, "train.adapter.alpha",
                      hd_arena_printf(t->arena, "%.6g", 2 * strtod(rank, NULL)), "their default");
    }
    for (size_t i = 0; i < 2; i++)
        if (!translate_get(t, needed[i][0]))
            translate_put(t, needed[i][0], needed[i][1], "their file does not say it: set it");
    if (!translate_get(t, "train.steps") && !translate_get(t, "train.epochs"))
        translate_put(t, "train.epochs", "3", "their file does not say it: set it");
}

static void put_number(struct translated_file *t, const char *path, double value, const char *note)
{
    translate_put(t, path, hd_arena_printf(t->arena, "%.6g", value), note);
}

/* Returns the devices of one replica. */
static double axes_of(const struct translated_file *t)
{
    static const char *const axes[] = {"parallel.tp", "parallel.pp", "parallel.cp"};
    double product = 1;

    for (size_t i = 0; i < 3; i++)
        product *= translate_get(t, axes[i]) ? strtod(translate_get(t, axes[i]), NULL) : 1;
    return product;
}

/* Computes what several settings together say: the batch, the warm-up, the rate at the end. */
static void finish_train(struct translated_file *t)
{
    const double devices = (t->devices ? t->devices : 1) * (t->nodes ? t->nodes : 1);
    const char *steps = translate_get(t, "train.steps"), *peak = translate_get(t, "train.lr.peak");

    if (t->devices || t->nodes)
        put_number(t, "resources.devices", devices, NULL);
    else if (axes_of(t) > 1)
        put_number(t, "resources.devices", axes_of(t), "tp x pp x cp, the fewest");
    if (!t->micro && !translate_get(t, "train.global_batch") && (t->tool & TOOLS_HF))
        t->micro = 8; /* the default of TrainingArguments */
    if (!translate_get(t, "train.global_batch") && t->micro)
        put_number(t, "train.global_batch", t->micro * (t->accum ? t->accum : 1) * devices,
                   t->devices ? NULL
                              : "sequences per step of one device; times the devices of theirs");
    if (t->micro)
        put_number(t, "parallel.micro_batch", t->micro, NULL);
    if (steps && translate_get(t, "train.epochs"))
        translate_leave(t, "train.epochs", "train.steps decides");
    if (t->warmup_ratio >= 0 && steps && !translate_get(t, "train.lr.warmup"))
        put_number(t, "train.lr.warmup", floor(t->warmup_ratio * strtod(steps, NULL)), NULL);
    if (!translate_get(t, "parallel.tp") || strcmp(translate_get(t, "parallel.tp"), "1") == 0)
        translate_leave(t, "parallel.sequence", "it is true where parallel.tp is more than 1");
    if (t->min_ratio >= 0 && peak)
        put_number(t, "train.lr.min", t->min_ratio * strtod(peak, NULL), NULL);
}

/* Leaves out the keys of rewards, and without gkd also those of answers, which grpo and gkd have. */
static void leave_policy(struct translated_file *t, bool gkd)
{
    static const char *const of_rewards[] = {
        "train.rewards",          "train.rollout.group", "train.policy.clip_low",
        "train.policy.clip_high", "train.policy.scale",  "train.policy.mask_truncated"};
    static const char *const of_answers[] = {"train.rollout.max_tokens",
                                             "train.rollout.temperature", "train.rollout.updates"};

    for (size_t i = 0; i < sizeof of_rewards / sizeof of_rewards[0]; i++)
        translate_leave(t, of_rewards[i], "only train.objective: grpo has it");
    for (size_t i = 0; !gkd && i < sizeof of_answers / sizeof of_answers[0]; i++)
        translate_leave(t, of_answers[i], "only train.objective: grpo and gkd have it");
}

/* Completes a job of GKD, whose answers are one for each prompt, and whose loss is named by its beta. */
static void finish_gkd(struct translated_file *t)
{
    static const char *const theirs[][2] = {{"train.distill.on_policy", "0.5"},
                                            {"train.rollout.temperature", "0.9"},
                                            {"train.rollout.max_tokens", "128"}};
    const char *beta = translate_get(t, "train.preference.beta");
    const char *temperature;

    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++)
        if (t->tool == TOOL_TRL && !translate_get(t, theirs[i][0]))
            translate_put(t, theirs[i][0], theirs[i][1], "their default");
    temperature = translate_get(t, "train.rollout.temperature");
    translate_lack(t, "teacher_model_name_or_path",
                   "train.objective: gkd needs train.rollout.prompts, the prompts that a step "
                   "answers, and train.steps");
    leave_policy(t, true);
    translate_put(t, "train.rollout.group", "1", NULL);
    translate_leave(t, "train.epochs", "train.steps is to be written");
    if (temperature)
        translate_put(t, "train.distill.temperature", temperature, NULL);
    if (t->has_beta && (!beta || strtod(beta, NULL) >= 1))
        translate_put(t, "train.distill.loss", beta ? "reverse" : "forward", NULL);
    else if (beta)
        translate_put(t, "train.distill.beta", beta, NULL);
    translate_drop(t, "train.preference.beta");
}

/* Completes a job of GRPO. Its prompts and rewards have no counterpart that could be copied: `heddle
 * validate` refuses the file until they are written. */
static void finish_policy(struct translated_file *t)
{
    const char *beta = translate_get(t, "train.preference.beta");
    const char *clip = translate_get(t, "train.policy.clip_low");

    translate_lack(t, "reward_funcs",
                   "train.objective: grpo needs train.rollout and train.rewards, which "
                   "docs/grpo.md describes; a reward function in Python becomes a program");
    if (translate_get(t, "train.epochs"))
        translate_lack(t, "num_train_epochs",
                       "steps of grpo are not counted by data: give train.steps");
    translate_leave(t, "train.epochs", "train.steps is to be written");
    if (beta)
        translate_put(t, "train.policy.kl_beta", beta, NULL);
    translate_drop(t, "train.preference.beta");
    if (clip && !translate_get(t, "train.policy.clip_high"))
        translate_put(t, "train.policy.clip_high", clip, NULL);
}

/* Leaves QK-clip out unless --qk-clip switches it on: Megatron-LM's threshold and alpha have
 * defaults. */
static void finish_qk_clip(struct translated_file *t)
{
    const struct yaml_node *on = hd_yaml_find(t->root, "qk_clip");

    if (t->tool != TOOL_MEGATRON || (on && translate_is_true(t, on)))
        return;
    translate_leave(t, "train.qk_clip.threshold", "without --qk-clip nothing is clipped");
    translate_leave(t, "train.qk_clip.alpha", "without --qk-clip nothing is clipped");
}

/* Leaves out keys of adapters, pairs and validation where the job has none of these. */
static void finish_rules(struct translated_file *t)
{
    const char *objective = translate_get(t, "train.objective");
    const bool validates = t->val_count || translate_get(t, "data.val_split");
    static const char none[] = "there is no data for validation";

    if (t->tool == TOOL_TRL && t->has_beta && !objective &&
        !translate_get(t, "train.distill.teacher"))
        translate_put(t, "train.objective", objective = "dpo",
                      "by beta; for `trl orpo` write orpo");
    if (t->tool == TOOL_TRL && !objective && translate_get(t, "train.preference.center"))
        translate_put(t, "train.objective", objective = "reward", NULL);
    if (t->tool == TOOL_TRL && !objective && translate_get(t, "train.distill.on_policy"))
        translate_put(t, "train.objective", objective = "gkd", "by lmbda");
    if (t->tool == TOOL_TRL && !objective && translate_get(t, "train.distill.teacher"))
        translate_put(t, "train.objective", objective = "gkd", "by the teacher of theirs");
    if (objective && strcmp(objective, "grpo") == 0)
        finish_policy(t);
    else if (objective && strcmp(objective, "gkd") == 0)
        finish_gkd(t);
    else
        leave_policy(t, false);
    if (!objective || strcmp(objective, "next_token") == 0 || strcmp(objective, "reward") == 0)
        translate_leave(t, "train.preference.beta", "only training on preferences has it");
    if (!objective || strcmp(objective, "reward") != 0)
        translate_leave(t, "train.preference.center", "only train.objective: reward has it");
    finish_qk_clip(t);
    if (!t->has_adapter) {
        static const char *const keys[] = {"rank",      "alpha", "dropout", "targets",
                                           "trainable", "dora",  "rslora",  "loraplus_lr_ratio",
                                           "from",      "init"};
        const bool quantized = translate_get(t, "model.quantization") != NULL;

        for (size_t i = 0; i < sizeof keys / sizeof keys[0] && !quantized; i++) {
            char path[64];

            (void)snprintf(path, sizeof path, "train.adapter.%s", keys[i]);
            translate_leave(t, path, "there is no adapter");
        }
        if (quantized)
            translate_put(t, "train.adapter.type", "lora",
                          "a quantised model trains by an adapter");
    }
    if (translate_get(t, "train.adapter.from"))
        for (size_t i = 0; i < 7; i++) {
            static const char *const form[] = {"train.adapter.type",  "train.adapter.rank",
                                               "train.adapter.alpha", "train.adapter.targets",
                                               "train.adapter.dora",  "train.adapter.rslora",
                                               "train.adapter.init"};

            translate_leave(t, form[i], "train.adapter.from has it");
        }
    if (!validates) {
        translate_leave(t, "validate.every", none);
        translate_leave(t, "validate.batches", none);
        translate_leave(t, "checkpoint.best", none);
        translate_leave(t, "validate.stop.patience", none);
        translate_leave(t, "validate.stop.min_delta", none);
    }
    if (!translate_get(t, "validate.stop.patience"))
        translate_leave(t, "validate.stop.min_delta", "without a patience nothing stops a run");
}

static void finish_name(struct translated_file *t)
{
    const char *slash = strrchr(t->name, '/'), *name = slash ? slash + 1 : t->name;
    char clean[TRANSLATE_NAME_MAX];
    size_t n;

    if (translate_get(t, "name"))
        return;
    translate_clean_name(name, clean);
    n = strlen(clean);
    while (n && (clean[n - 1] == '.' || clean[n - 1] == '-'))
        n--;
    clean[n] = '\0';
    for (size_t i = 0; i < 5; i++) {
        static const char *const ends[] = {".yaml", ".yml", ".json", ".sh", ".args"};

        if (hd_text_ends(clean, ends[i]))
            clean[strlen(clean) - strlen(ends[i])] = '\0';
    }
    translate_put(t, "name", hd_arena_strdup(t->arena, *clean ? clean : "job"), NULL);
}

/* ---- writing ---- */

static void add_key(struct hd_text *out, const struct translated_key *key, char open[64])
{
    char group[64] = "";
    const char *last = key->path, *dot;
    int depth = 0;

    /* opens the groups that the key before is not in */
    while ((dot = strchr(last, '.')) != NULL) {
        const size_t len = (size_t)(dot - key->path);

        (void)snprintf(group, sizeof group, "%.*s", (int)len, key->path);
        if (strncmp(open, group, len) != 0 || (open[len] && open[len] != '.'))
            hd_text_add(out, "%*s%.*s:\n", 2 * depth, "", (int)(dot - last), last);
        last = dot + 1;
        depth++;
    }
    (void)snprintf(open, 64, "%s", group);
    hd_text_add(out, "%*s%s: %s%s%s\n", 2 * depth, "", last, key->text, key->note ? "  # " : "",
                key->note ? key->note : "");
}

/* Writes the keys in the order of a job file's keys. */
static void write_job(struct translated_file *t, struct hd_text *out)
{
    char open[64] = "";

    hd_text_add(out, "# made by heddle translate from %s, a file of %s\n",
                translate_quote(t, t->name), tools[__builtin_ctz(t->tool)].name);
    for (size_t i = 0; i < hd_job_key_count; i++)
        for (size_t k = 0; k < t->key_count; k++)
            if (strcmp(t->keys[k].path, hd_job_keys[i].path) == 0)
                add_key(out, &t->keys[k], open);
    if (t->lack_count)
        hd_text_add(out, "\n# Settings of theirs that this file does not have:\n");
    for (size_t i = 0; i < t->lack_count; i++)
        hd_text_add(out, "# %s\n", t->lacks[i]);
}

static void write_table(const struct translated_file *t, struct hd_text *out)
{
    size_t width[2] = {9, 4};

    for (size_t i = 0; i < t->line_count; i++) {
        if (strlen(t->lines[i].theirs) > width[0])
            width[0] = strlen(t->lines[i].theirs);
        if (strlen(t->lines[i].ours) > width[1])
            width[1] = strlen(t->lines[i].ours);
    }
    hd_text_add(out, "%-*s  %-*s  NOTE\n", (int)width[0], "THEIR KEY", (int)width[1], "OURS");
    for (size_t i = 0; i < t->line_count; i++)
        hd_text_add(out, "%-*s  %-*s  %s\n", (int)width[0], t->lines[i].theirs, (int)width[1],
                    t->lines[i].ours, t->lines[i].note);
}

/* Sets *ret_root to the tree of their file. */
static enum hd_status read_foreign(const char *name, const void *bytes, size_t size_bytes,
                                   struct hd_arena *arena, struct yaml_node **ret_root,
                                   bool *ret_args)
{
    *ret_args = spec_has_arguments(bytes, size_bytes);
    if (*ret_args)
        return translate_read_arguments(bytes, size_bytes, arena, ret_root);
    return spec_yaml_parse(name, NULL, bytes, size_bytes, arena, ret_root);
}

static const char *tool_of(const struct yaml_node *root)
{
    const int tool = find_tool(root);

    return tool < 0 ? NULL : tools[tool].name;
}

/* Goes through all settings of a tree. */
static struct translated_file *translate_tree(const char *name, const char *folder,
                                              enum spec_tool tool, const struct yaml_node *root,
                                              struct hd_arena *arena)
{
    struct translated_file *t = hd_arena_alloc(arena, sizeof *t);

    if (!t)
        return NULL;
    *t = (struct translated_file){.tool = tool,
                                  .name = name,
                                  .folder = folder,
                                  .root = root,
                                  .arena = arena,
                                  .all_alpaca = true,
                                  .warmup_ratio = -1,
                                  .min_ratio = -1};
    take_group(t, "", root, 0);
    finish_train(t);
    finish_defaults(t);
    translate_finish_data(t);
    finish_rules(t);
    finish_name(t);
    return hd_arena_failed(arena) ? NULL : t;
}

static bool add_table(const char *name, const char *folder, const struct yaml_node *root,
                      struct hd_arena *arena, struct hd_text *ret_table)
{
    const int tool = find_tool(root);
    struct translated_file *t =
        tool < 0 ? NULL : translate_tree(name, folder, tools[tool].tool, root, arena);

    if (t)
        write_table(t, ret_table);
    return t != NULL;
}

enum hd_status hd_spec_translate(const char *name, const char *folder, const void *bytes,
                                 size_t size_bytes, struct hd_arena *arena,
                                 struct hd_spec_translation *ret)
{
    struct yaml_node *root = NULL;
    struct translated_file *t;
    bool has_arguments;
    int tool;
    enum hd_status st = read_foreign(name, bytes, size_bytes, arena, &root, &has_arguments);

    if (st)
        return st;
    tool = has_arguments ? __builtin_ctz(TOOL_MEGATRON) : find_tool(root);
    if (tool < 0)
        return hd_err(HD_NOT_FOUND,
                      "%s: is no file of axolotl, TRL, torchtune, LLaMA-Factory, TrainingArguments "
                      "or Megatron-LM%s",
                      name,
                      root && is_job(root) ? "; it is a job file: heddle validate checks it" : "");
    t = translate_tree(name, folder, tools[tool].tool, root, arena);
    if (!t)
        return hd_err(HD_NO_MEMORY, "no memory for a translation");
    *ret = (struct hd_spec_translation){
        .tool = tools[tool].name,
        .template_file = t->template_file,
        .template_text = t->template_file ? translate_template(t->template_file) : NULL,
        .settings = t->line_count,
        .unknown = t->unknown};
    write_job(t, &ret->job);
    write_table(t, &ret->table);
    return ret->job.failed || ret->table.failed
               ? hd_err(HD_NO_MEMORY, "no memory for a translation")
               : HD_OK;
}

enum hd_status spec_refuse_foreign(struct spec_reader *r)
{
    const char *tool = tool_of(r->root);

    if (!tool || r->source->is_stored)
        return HD_OK;
    if (r->source->mistakes)
        (void)add_table(r->name, r->folder, r->root, &r->arena, r->source->mistakes);
    return hd_err(
        HD_INVALID,
        "%s:1: is a file of %s, not a job file; `heddle translate %s --out job.yaml` writes "
        "the job file",
        r->name, tool, r->name);
}

enum hd_status spec_refuse_arguments(struct spec_reader *r)
{
    const struct hd_spec_source *source = r->source;
    struct hd_spec_translation made = {0};

    if (source->is_stored || !spec_has_arguments(source->bytes, source->size_bytes))
        return HD_OK;
    if (source->mistakes &&
        !hd_spec_translate(r->name, r->folder, source->bytes, source->size_bytes, &r->arena, &made))
        hd_text_add(source->mistakes, "%s", made.table.data);
    hd_text_free(&made.table);
    hd_text_free(&made.job);
    return hd_err(
        HD_INVALID,
        "%s:1: has arguments of Megatron-LM, and is no job file; `heddle translate %s --out "
        "job.yaml` writes the job file",
        r->name, r->name);
}
