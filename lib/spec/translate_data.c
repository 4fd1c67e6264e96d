/* translate_data: data sets of other tools: names of the hub, files, functions of torchtune, prefixes
 * of Megatron-LM; and the chat template that their forms have. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "translate_internal.h"

/* The format that axolotl and torchtune call alpaca, without the sentence that they put in front of
 * the first instruction. */
static const char alpaca_template[] =
    "{%- for message in messages -%}\n"
    "{%- if message['role'] == 'system' -%}\n"
    "{{ message['content'] }}{{ '\\n\\n' }}\n"
    "{%- elif message['role'] == 'user' -%}\n"
    "{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}\n"
    "{%- elif message['role'] == 'assistant' -%}\n"
    "{{ '### Response:\\n' + message['content'] + eos_token }}\n"
    "{%- if not loop.last -%}{{ '\\n\\n' }}{%- endif -%}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{ '### Response:\\n' }}{%- endif -%}\n";

static const char chatml_template[] =
    "{%- for message in messages -%}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}\n";

const char *translate_template(const char *file)
{
    return strcmp(file, "alpaca.jinja") == 0   ? alpaca_template
           : strcmp(file, "chatml.jinja") == 0 ? chatml_template
                                               : NULL;
}

bool translate_names_a_file(const char *text)
{
    static const char *const ends[] = {".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt",
                                       ".arrow", ".gz",   ".zst",     ".npy", ".bin"};

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (hd_text_ends(text, ends[i]))
            return true;
    return strchr("./~", text[0]) != NULL;
}

const char *translate_our_data(struct translated_file *t, const char *path)
{
    const char *slash = strchr(path, '/');
    char file[4096];

    (void)snprintf(file, sizeof file, "%s/%s", t->folder, path);
    if (hd_text_starts(path, "hf://") || hd_text_starts(path, "s3://") ||
        translate_names_a_file(path) || !slash || access(file, F_OK) == 0)
        return path;
    return hd_arena_printf(t->arena, "hf://datasets/%s", path);
}

static void add_data_set(struct translated_file *t, bool is_val, const char *name, double weight)
{
    size_t *count = is_val ? &t->val_count : &t->train_count;

    if (*count == TRANSLATE_SETS_MAX || !*name)
        return;
    if (!is_val)
        t->weights[*count] = weight;
    (is_val ? t->val : t->train)[(*count)++] = name;
}

void translate_add_set(struct translated_file *t, bool is_val, const char *name)
{
    add_data_set(t, is_val, name, 0);
}

/* Adds the files of a list or of one value. */
static void add_files_of(struct translated_file *t, bool is_val, const struct yaml_node *node)
{
    if (node->kind == YAML_KIND_SCALAR)
        add_data_set(t, is_val, translate_our_data(t, translate_text(t, node)), 0);
    for (const struct yaml_node *c = node->first; c; c = c->next)
        if (c->kind == YAML_KIND_SCALAR)
            add_data_set(t, is_val, translate_our_data(t, translate_text(t, c)), 0);
        else
            add_files_of(t, is_val, c); /* data_files: {train: a.jsonl} */
}

/* Sets data.columns from an axolotl type of one's own: {field_instruction: q, field_output: a}. Columns
 * that have their usual names need no key. */
static void take_fields(struct translated_file *t, const struct yaml_node *map)
{
    static const struct {
        const char *theirs, *ours, *usual;
    } fields[] = {{"field_instruction", "prompt", "instruction"},
                  {"field_input", "input", "input"},
                  {"field_output", "answer", "output"},
                  {"field_system", "system", "system"},
                  {"field", "text", "text"},
                  {"field_prompt", "prompt", "prompt"},
                  {"field_chosen", "chosen", "chosen"},
                  {"field_rejected", "rejected", "rejected"}};
    const bool pairs = hd_yaml_find(map, "field_chosen") != NULL;
    const struct yaml_node *messages = hd_yaml_find(map, "field_messages");
    const char *list = messages ? translate_text(t, messages) : "";
    bool differs = *list && strcmp(list, "messages") != 0 && strcmp(list, "conversations") != 0;
    struct hd_text out = {0};

    hd_text_add(&out, "{");
    if (differs)
        hd_text_add(&out, "%s: %s", pairs ? "prompt" : "messages", translate_quote(t, list));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const struct yaml_node *node = hd_yaml_find(map, fields[i].theirs);
        const char *column = node ? translate_text(t, node) : "";

        if (!*column)
            continue;
        differs |= strcmp(column, fields[i].usual) != 0;
        hd_text_add(&out, "%s%s: %s", out.len_bytes > 1 ? ", " : "", fields[i].ours,
                    translate_quote(t, column));
    }
    hd_text_add(&out, "}");
    if (differs && !out.failed)
        translate_put(t, "data.columns", hd_arena_strdup(t->arena, out.data), NULL);
    hd_text_free(&out);
}

void translate_note_form(struct translated_file *t, const char *type)
{
    const bool alpaca = hd_text_starts(type, "alpaca");

    t->some_data = true;
    t->all_alpaca &= alpaca;
    if (strcmp(type, "completion") == 0 || strcmp(type, "pretrain") == 0)
        translate_put(t, "data.format", "text", NULL);
}

static void tell_split(struct translated_file *t, const char *theirs, const char *split)
{
    const char *note;

    if (!*split || strcmp(split, "train") == 0)
        return;
    note = hd_arena_printf(t->arena, "the files of %s: hf://datasets/ORG/NAME/PATTERN", split);
    translate_lack(t, theirs, note);
    translate_tell(t, theirs, "data.train", note);
}

static const char *member_of(struct translated_file *t, const struct yaml_node *map,
                             const char *name)
{
    const struct yaml_node *node = hd_yaml_find(map, name);

    return node ? translate_text(t, node) : "";
}

/* One element of axolotl's datasets, or of TRL's. */
static void take_set(struct translated_file *t, const char *theirs, bool is_val,
                     const struct yaml_node *map)
{
    const struct yaml_node *files = hd_yaml_find(map, "data_files");
    const struct yaml_node *type = hd_yaml_find(map, "type");
    const char *path = member_of(t, map, "path");

    if (files && !translate_is_null(t, files))
        add_files_of(t, is_val, files);
    else
        add_data_set(t, is_val, translate_our_data(t, path), 0);
    if (type && type->kind == YAML_KIND_MAP)
        take_fields(t, type);
    else
        take_fields(t, map);
    translate_note_form(t, type ? translate_text(t, type) : "");
    if (strcmp(member_of(t, map, "chat_template"), "chatml") == 0)
        t->template_file = "chatml.jinja";
    tell_split(t, hd_arena_printf(t->arena, "%s.split", theirs),
               *member_of(t, map, "split") ? member_of(t, map, "split")
                                           : member_of(t, map, "train_on_split"));
    if (*member_of(t, map, "name"))
        tell_split(t, hd_arena_printf(t->arena, "%s.name", theirs),
                   hd_arena_printf(t->arena, "configuration %s", member_of(t, map, "name")));
}

/* A function of torchtune.datasets: the set that it is of, or its source. */
static void take_function(struct translated_file *t, bool is_val, const struct yaml_node *map)
{
    static const struct {
        const char *function, *set;
    } sets[] = {{"alpaca_cleaned_dataset", "yahma/alpaca-cleaned"},
                {"alpaca_dataset", "tatsu-lab/alpaca"},
                {"slimorca_dataset", "Open-Orca/SlimOrca-Dedup"},
                {"samsum_dataset", "Samsung/samsum"},
                {"grammar_dataset", "liweili/c4_200m"},
                {"wikitext_dataset", "EleutherAI/wikitext_document_level"},
                {"cnn_dailymail_articles_dataset", "ccdv/cnn_dailymail"},
                {"stack_exchange_paired_dataset", "lvwerra/stack-exchange-paired"},
                {"hh_rlhf_helpful_dataset", "RLHFlow/HH-RLHF-Helpful-standard"}};
    const char *function = member_of(t, map, "_component_"), *source = member_of(t, map, "source");
    const struct yaml_node *files = hd_yaml_find(map, "data_files");
    const char *dot = strrchr(function, '.');
    bool known = false;

    function = dot ? dot + 1 : function;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0] && !files && !known; i++)
        if (strcmp(function, sets[i].function) == 0) {
            add_data_set(t, is_val, translate_our_data(t, *source ? source : sets[i].set), 0);
            known = true;
        }
    if (files && !translate_is_null(t, files))
        add_files_of(t, is_val, files);
    else if (!known && *source)
        add_data_set(t, is_val, translate_our_data(t, source), 0);
    if (!is_val)
        tell_split(t, "dataset.split", member_of(t, map, "split"));
    translate_note_form(t, strstr(function, "alpaca") ? "alpaca"
                           : strstr(function, "text_completion") || strstr(function, "wikitext")
                               ? "completion"
                               : "");
    if (translate_is_true(t, hd_yaml_find(map, "train_on_input")
                                 ? hd_yaml_find(map, "train_on_input")
                                 : &(const struct yaml_node){.kind = YAML_KIND_SCALAR, .text = ""}))
        translate_put(t, "data.loss", "all", NULL);
}

/* Megatron-LM: PREFIX, or WEIGHT PREFIX WEIGHT PREFIX .. of files PREFIX.bin and PREFIX.idx. */
static void take_blend(struct translated_file *t, bool is_val, const struct yaml_node *node)
{
    double weight = 0;

    if (node->kind == YAML_KIND_SCALAR) {
        add_data_set(t, is_val, hd_arena_printf(t->arena, "%s.bin", translate_text(t, node)), 0);
        return;
    }
    for (const struct yaml_node *c = node->first; c; c = c->next) {
        const double number = translate_number(t, c, 0);

        if (number > 0) {
            weight = number;
            continue;
        }
        add_data_set(t, is_val, hd_arena_printf(t->arena, "%s.bin", translate_text(t, c)), weight);
        weight = 0;
    }
}

void translate_data(struct translated_file *t, const struct spec_row *row, const char *theirs,
                    const struct yaml_node *node)
{
    const bool is_val = row->call == CALL_VAL_DATA ||
                        (row->call == CALL_BLEND && strcmp(row->path, "data.val") == 0);
    const char *value = translate_text(t, node), *ours = is_val ? "data.val" : "data.train";

    if (row->call == CALL_SPLIT) {
        if (row->path)
            tell_split(t, theirs, value);
        else
            translate_tell(t, theirs, "data.val", "the files of that split, or data.val_split");
        return;
    }
    if (row->call == CALL_BLEND) {
        take_blend(t, is_val, node);
        translate_tell(t, theirs, ours, "files PREFIX.bin, with PREFIX.idx beside them");
        return;
    }
    if (t->tool == TOOL_TUNE) {
        take_function(t, is_val, node);
    } else if (node->kind == YAML_KIND_LIST) {
        for (const struct yaml_node *c = node->first; c; c = c->next)
            if (c->kind == YAML_KIND_MAP)
                take_set(t, theirs, is_val, c);
            else
                add_data_set(t, is_val, translate_our_data(t, translate_text(t, c)), 0);
    } else if (node->kind == YAML_KIND_MAP) {
        take_set(t, theirs, is_val, node);
    } else {
        add_data_set(t, is_val, translate_our_data(t, value), 0);
    }
    if (strcmp(theirs, "pretraining_dataset") == 0)
        translate_put(t, "data.format", "text", NULL);
    translate_tell(t, theirs, ours, "a set of the hub is written hf://datasets/ORG/NAME");
}

static const char *list_of(struct translated_file *t, const char *const *names,
                           const double *weights, size_t count)
{
    struct hd_text out = {0};
    bool mixed = weights != NULL;
    const char *text;

    for (size_t i = 0; i < count; i++)
        mixed &= weights && weights[i] > 0;
    hd_text_add(&out, "[");
    for (size_t i = 0; i < count; i++)
        if (mixed)
            hd_text_add(&out, "%s{path: %s, weight: %.6g}", i ? ", " : "",
                        translate_quote(t, names[i]), weights[i]);
        else
            hd_text_add(&out, "%s%s", i ? ", " : "", translate_quote(t, names[i]));
    hd_text_add(&out, "]");
    text = hd_arena_strdup(t->arena, out.data ? out.data : "[]");
    hd_text_free(&out);
    return text;
}

/* Megatron-LM: the model has no folder, so that its family follows from its switches. */
static void finish_megatron_model(struct translated_file *t)
{
    const bool gated = hd_yaml_find(t->root, "swiglu") != NULL;
    const bool experts = translate_get(t, "model.experts") != NULL;

    translate_put(t, "model.family",
                  experts                                 ? "mixtral"
                  : hd_yaml_find(t->root, "qk_layernorm") ? "qwen3"
                  : hd_yaml_find(t->root, "add_qkv_bias") ? "qwen2"
                  : gated                                 ? "llama"
                                                          : "gpt2",
                  "by swiglu, normalization and experts of theirs");
    if (!hd_yaml_find(t->root, "untie_embeddings_and_output_weights") && (gated || experts))
        translate_put(t, "model.tie_embeddings", "true", "their default");
    if ((gated || experts) && !hd_yaml_find(t->root, "disable_bias_linear"))
        translate_lack(t, "disable_bias_linear",
                       "without it their linears have biases; here "
                       "model.qkv_bias, out_bias and mlp_bias");
    if (!gated && !experts) {
        translate_drop(t, "model.positions");
        translate_drop(t, "model.rope_theta");
    }
}

/* Leaves out sets of the validation that train, too: theirs differ by their split. Returns whether there
 * was one. */
static bool drop_what_trains(struct translated_file *t)
{
    const size_t before = t->val_count;

    t->val_count = 0;
    for (size_t i = 0; i < before; i++) {
        size_t k = 0;

        while (k < t->train_count && strcmp(t->val[i], t->train[k]) != 0)
            k++;
        if (k == t->train_count)
            t->val[t->val_count++] = t->val[i];
    }
    return t->val_count < before;
}

void translate_finish_data(struct translated_file *t)
{
    static const char another[] = "theirs is another split of the same set";
    const bool pairs = translate_get(t, "train.objective") != NULL;
    const bool is_mixture = t->train_count && t->weights[0] > 0;

    if (drop_what_trains(t)) {
        if (t->val_count || is_mixture)
            translate_lack(t, "validation on a set that trains",
                           hd_arena_printf(t->arena, "%s; name its files in data.val", another));
        else if (!translate_get(t, "data.val_split"))
            translate_put(t, "data.val_split", "0.05", another);
    }
    if (t->train_count)
        translate_put(t, "data.train", list_of(t, t->train, t->weights, t->train_count), NULL);
    else
        translate_put(t, "data.train", "[train.jsonl]", "their file does not say it: set it");
    if (t->val_count)
        translate_put(t, "data.val", list_of(t, t->val, NULL, t->val_count), NULL);
    if (t->val_count || is_mixture)
        translate_leave(t, "data.val_split",
                        t->val_count ? "data.val has sets of its own"
                                     : "no share of a mixture is held out; name files in data.val");
    if (t->some_data && t->all_alpaca && !pairs) {
        translate_put(t, "data.format", "alpaca", NULL);
        if (!t->template_file)
            t->template_file = "alpaca.jinja";
    }
    if (translate_get(t, "data.template"))
        t->template_file = NULL;
    else if (t->template_file)
        translate_put(t, "data.template", t->template_file,
                      "heddle translate --out writes it, too");
    if (t->tool == TOOL_MEGATRON)
        finish_megatron_model(t);
    else if (!translate_get(t, "model.from"))
        translate_put(t, "model.from", "hf://ORG/NAME", "their file does not say it: set it");
}
