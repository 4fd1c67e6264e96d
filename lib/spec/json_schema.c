/* json_schema: the keys of a job file as a JSON Schema (draft 7), for editors and for checks of job
 * files elsewhere. A schema knows each key and value by itself; the rules between keys are known to
 * heddle validate alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "spec_internal.h"

/* Keys whose value may also be a list or a map, with a form of its own. */
static const struct {
    const char *path, *types; /* types of JSON, separated by blanks */
} forms[] = {
    {"data.train", "array string object"},
    {"data.val", "array string object"},
    {"data.stages", "array"},
    {"validate.choices", "array string object"},
    {"validate.samples.prompts", "array string"},
    {"validate.tasks.files", "array string object"},
    {"validate.tasks.check", "array"},
    {"train.rewards", "array"},
    {"train.rollout.stop", "array string"},
    {"train.profile.steps", "integer array"},
    {"parallel.layers_per_stage", "array string"},
    {"resources.devices", "integer string object"},
    {"parallel.recompute", "string object"},
    {"parallel.schedule", "string object"},
    {"data.bad_rows", "string integer object"},
    {"data.columns", "string object"},
    {"data.roles", "string object"},
    {"after", "array string integer"},
    {"checkpoint.best", "boolean string number"},
    {"train.trainable", "array string object"},
    {"train.adapter.targets", "array string"},
    {"train.adapter.trainable", "array string"},
    {"train.adapter.tokens", "array string integer"},
};

static void add_types(struct hd_json_writer *w, const char *types)
{
    hd_json_begin(w, "type", '[');
    while (*types) {
        const size_t len = strcspn(types, " ");
        char word[16];

        (void)snprintf(word, sizeof word, "%.*s", (int)len, types);
        hd_json_add_string(w, NULL, word);
        types += len + strspn(types + len, " ");
    }
    hd_json_end(w, ']');
}

/* Adds the words that a key has: "auto=-2 none=-1" has the words auto and none. A word of digits, or
 * true and false, is a number or a truth value in YAML. none_word: hd_key.none_word. */
static void add_words(struct hd_json_writer *w, const char *words, const char *none_word)
{
    hd_json_begin(w, "enum", '[');
    if (none_word)
        hd_json_add_string(w, NULL, "none");
    while (*words) {
        const size_t len = strcspn(words, " "), name = strcspn(words, "= ");
        char word[HD_JOB_WORD_MAX], *end;

        (void)snprintf(word, sizeof word, "%.*s", (int)(name < len ? name : len), words);
        hd_json_add_string(w, NULL, word);
        if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0)
            hd_json_add_bool(w, NULL, *word == 't');
        else if (strtoll(word, &end, 10) || strcmp(word, "0") == 0)
            hd_json_add_int64(w, NULL, strtoll(word, NULL, 10));
        words += len + strspn(words + len, " ");
    }
    hd_json_end(w, ']');
}

static void add_range(struct hd_json_writer *w, const struct hd_key *key)
{
    hd_json_add_string(w, "type", key->kind == HD_KEY_INT ? "integer" : "number");
    if (key->max > key->min) {
        hd_json_add_real(w, "minimum", key->min);
        if (key->max < 0x1p63)
            hd_json_add_real(w, "maximum", key->max);
    }
}

/* Adds the members of a schema for the value of a key. */
static void add_value_schema(struct hd_json_writer *w, const struct hd_key *key)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (strcmp(forms[i].path, key->path) == 0) {
            add_types(w, forms[i].types);
            return;
        }
    switch (key->kind) {
    case HD_KEY_WORD:
        add_words(w, key->words, key->none_word);
        break;
    case HD_KEY_INT:
    case HD_KEY_REAL:
        if (!key->words) {
            add_range(w, key);
            break;
        }
        hd_json_begin(w, "anyOf", '[');
        hd_json_begin(w, NULL, '{');
        add_range(w, key);
        hd_json_end(w, '}');
        hd_json_begin(w, NULL, '{');
        add_words(w, key->words, NULL);
        hd_json_end(w, '}');
        hd_json_end(w, ']');
        break;
    case HD_KEY_BOOL:
        hd_json_add_string(w, "type", "boolean");
        break;
    case HD_KEY_NAME: /* a name of digits needs no quotes */
    case HD_KEY_PATH:
        add_types(w, "string number boolean");
        break;
    case HD_KEY_FORM: /* the short form of a group, such as train.lr */
        add_types(w, "number string");
        break;
    }
}

static void add_group(struct hd_json_writer *w, const char *path);

/* Adds the schema of a key, of a group, or of a group with a short form. */
static void add_child(struct hd_json_writer *w, const char *name, const char *path)
{
    const struct hd_key *key = spec_find_key(path);
    const bool is_group = spec_is_group(path);

    hd_json_begin(w, name, '{');
    if (key && key->help)
        hd_json_add_string(w, "markdownDescription", key->help);
    if (key && is_group) {
        hd_json_begin(w, "anyOf", '[');
        hd_json_begin(w, NULL, '{');
        add_value_schema(w, key);
        hd_json_end(w, '}');
        hd_json_begin(w, NULL, '{');
        add_group(w, path);
        hd_json_end(w, '}');
        hd_json_end(w, ']');
    } else if (is_group && strcmp(path, "parallel") == 0) { /* parallel: auto */
        hd_json_begin(w, "anyOf", '[');
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "const", "auto");
        hd_json_end(w, '}');
        hd_json_begin(w, NULL, '{');
        add_group(w, path);
        hd_json_end(w, '}');
        hd_json_end(w, ']');
    } else if (is_group) {
        add_group(w, path);
    } else {
        add_value_schema(w, key);
    }
    hd_json_end(w, '}');
}

/* Adds the old names of the group's keys, which editors then strike out and explain. */
static void add_old_names(struct hd_json_writer *w, const char *group)
{
    const size_t len = strlen(group);

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        char message[SPEC_PATH_TEXT_MAX];

        if (!key->old_path || key->hidden || !len || strncmp(key->old_path, group, len) != 0 ||
            key->old_path[len] != '.' || strchr(key->old_path + len + 1, '.'))
            continue;
        (void)snprintf(message, sizeof message, "is now called %s", key->path);
        hd_json_begin(w, key->old_path + len + 1, '{');
        hd_json_add_bool(w, "deprecated", true);
        hd_json_add_string(w, "deprecationMessage", message);
        add_value_schema(w, key);
        hd_json_end(w, '}');
    }
}

/* Adds the members of a schema for a group of keys. Nothing is required: train.steps may be
 * train.epochs, and most keys of a model come from model.from. */
static void add_group(struct hd_json_writer *w, const char *path)
{
    struct spec_children children;

    spec_list_children(path, &children);
    hd_json_add_string(w, "type", "object");
    hd_json_add_bool(w, "additionalProperties", false);
    hd_json_begin(w, "properties", '{');
    for (size_t i = 0; i < children.count; i++) {
        char child[SPEC_PATH_TEXT_MAX];

        (void)snprintf(child, sizeof child, "%s%s%s", path, *path ? "." : "", children.names[i]);
        add_child(w, children.names[i], child);
    }
    add_old_names(w, path);
    hd_json_end(w, '}');
}

void hd_spec_add_schema(struct hd_text *out)
{
    struct hd_json_writer w = {.out = out};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "$schema", "http://json-schema.org/draft-07/schema#");
    hd_json_add_string(&w, "title", "A job of Heddle");
    add_group(&w, "");
    hd_json_end(&w, '}');
    hd_text_add(out, "\n");
}
