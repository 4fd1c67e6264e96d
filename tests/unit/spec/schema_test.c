/* The JSON Schema of a job file: what editors call right is what people write, and what they call
 * wrong is refused here, too. */
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "fixture.h"
#include "yaml/yaml.h"

static struct hd_arena arena;
static const struct hd_json *schema;

static int make_schema(void **state)
{
    const struct hd_json_limits limits = {100000, 64};
    struct hd_text text = {0};

    (void)make_corpus(state);
    hd_arena_init(&arena, 0);
    hd_spec_add_schema(&text);
    assert_false(text.failed);
    assert_int_equal(hd_json_parse(&arena, text.data, text.len_bytes, &limits, &schema), HD_OK);
    hd_text_free(&text);
    return 0;
}

static int drop_schema(void **state)
{
    hd_arena_done(&arena);
    return drop_corpus(state);
}

/* ---- a validator of the words that the schema uses ---- */

static bool is_number(const struct yaml_node *node, bool whole, double *ret_value)
{
    char *end;

    if (node->kind != YAML_KIND_SCALAR || !node->plain || !node->text || !*node->text)
        return false;
    *ret_value = strtod(node->text, &end);
    return !*end && (!whole || *ret_value == floor(*ret_value));
}

static bool is_of_type(const struct yaml_node *node, const char *type)
{
    const char *text = node->kind == YAML_KIND_SCALAR && node->text ? node->text : "";
    double value;

    if (strcmp(type, "object") == 0)
        return node->kind == YAML_KIND_MAP;
    if (strcmp(type, "array") == 0)
        return node->kind == YAML_KIND_LIST;
    if (strcmp(type, "boolean") == 0)
        return node->plain && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0);
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return is_number(node, *type == 'i', &value);
    assert_string_equal(type, "string");
    return node->kind == YAML_KIND_SCALAR && !is_of_type(node, "boolean") &&
           !is_number(node, false, &value);
}

static bool is_one_of_types(const struct yaml_node *node, const struct hd_json *type)
{
    if (type->kind == HD_JSON_STRING)
        return is_of_type(node, type->text);
    for (const struct hd_json *t = type->first; t; t = t->next)
        if (is_of_type(node, t->text))
            return true;
    return false;
}

static bool is_in(const struct yaml_node *node, const struct hd_json *words)
{
    for (const struct hd_json *w = words->first; w; w = w->next) {
        const char *text = w->kind == HD_JSON_TRUE    ? "true"
                           : w->kind == HD_JSON_FALSE ? "false"
                                                      : w->text;

        if (node->kind == YAML_KIND_SCALAR && node->text && strcmp(node->text, text) == 0)
            return true;
    }
    return false;
}

static bool is_in_range(const struct yaml_node *node, const struct hd_json *s)
{
    const struct hd_json *min = hd_json_member(s, "minimum"), *max = hd_json_member(s, "maximum");
    double value;

    if (!is_number(node, false, &value))
        return true;
    return (!min || value >= strtod(min->text, NULL)) && (!max || value <= strtod(max->text, NULL));
}

/* Returns the path's tail at which the node is wrong; "": it is right. */
static bool is_valid(const struct yaml_node *node, const struct hd_json *s)
{
    const struct hd_json *any = hd_json_member(s, "anyOf"), *words = hd_json_member(s, "enum");
    const struct hd_json *type = hd_json_member(s, "type"), *only = hd_json_member(s, "const");
    const struct hd_json *properties = hd_json_member(s, "properties");
    bool one = !any;

    for (const struct hd_json *a = any ? any->first : NULL; a; a = a->next)
        one = one || is_valid(node, a);
    if (!one || (words && !is_in(node, words)) || (type && !is_one_of_types(node, type)) ||
        (only && (node->kind != YAML_KIND_SCALAR || strcmp(node->text, only->text) != 0)) ||
        !is_in_range(node, s))
        return false;
    for (const struct yaml_node *c = properties && node->kind == YAML_KIND_MAP ? node->first : NULL;
         c; c = c->next) {
        const struct hd_json *child = hd_json_member(properties, c->key);

        if (!child || !is_valid(c, child)) {
            print_message("key %s (line %d)\n", c->key, c->line);
            return false;
        }
    }
    return true;
}

static bool text_is_valid(const char *text, size_t size)
{
    struct hd_arena tree;
    const struct hd_yaml_source source = {
        .name = "job.yaml", .kind = "job file", .bytes = text, .size_bytes = size};
    struct yaml_node *root;
    bool valid;

    hd_arena_init(&tree, 0);
    assert_int_equal(hd_yaml_parse(&source, &tree, &root), HD_OK);
    valid = is_valid(root, schema);
    hd_arena_done(&tree);
    return valid;
}

/* ---- tests ---- */

/* Each block of YAML with a model in the documents is a job file, or the part of one. */
static void job_files_of_the_documents_are_right(void **state)
{
    const char *source = getenv("HEDDLE_SOURCE_DIR");
    char pattern[4096], *line = NULL;
    struct hd_text block = {0};
    int blocks = 0;
    glob_t files;
    size_t size = 0;

    (void)snprintf(pattern, sizeof pattern, "%s/docs/*.md", source ? source : ".");
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    (void)snprintf(pattern, sizeof pattern, "%s/README.md", source ? source : ".");
    assert_int_equal(glob(pattern, GLOB_APPEND, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        FILE *file = fopen(files.gl_pathv[i], "re");
        bool inside = false;

        assert_non_null(file);
        while (getline(&line, &size, file) > 0) {
            if (strncmp(line, "```", 3) != 0) {
                if (inside)
                    hd_text_add(&block, "%s", line);
                continue;
            }
            if (inside && block.data &&
                (strstr(block.data, "model:") == block.data || strstr(block.data, "\nmodel:"))) {
                blocks++;
                if (!text_is_valid(block.data, block.len_bytes))
                    fail_msg("%s: %s", files.gl_pathv[i], block.data);
            }
            hd_text_clear(&block);
            inside = strncmp(line, "```yaml", 7) == 0;
        }
        assert_int_equal(fclose(file), 0);
    }
    assert_true(blocks >= 4);
    free(line);
    hd_text_free(&block);
    globfree(&files);
}

/* Fails if a value of the job file is the default of its key. */
static void assert_says_no_default(const char *file, const struct yaml_node *node, const char *path)
{
    for (const struct yaml_node *c = node->kind == YAML_KIND_MAP ? node->first : NULL; c;
         c = c->next) {
        struct hd_text fallback = {0};
        char child[256];
        const struct hd_key *key;

        (void)snprintf(child, sizeof child, "%s%s%s", path, *path ? "." : "", c->key);
        key = hd_job_find_key(child);
        assert_says_no_default(file, c, child);
        if (!key || key->hidden || c->kind != YAML_KIND_SCALAR)
            continue;
        hd_spec_document_default(key, &fallback);
        if (strcmp(c->text, fallback.data ? fallback.data : "") == 0)
            fail_msg("%s:%d: %s: %s is the default; leave it out", file, c->line, child, c->text);
        hd_text_free(&fallback);
    }
}

/* Recipes (recipes/) are what people begin with: each value in them is there for a reason. */
static void job_files_of_the_recipes_are_right_and_say_no_default(void **state)
{
    const char *source = getenv("HEDDLE_SOURCE_DIR");
    char pattern[4096];
    glob_t files;

    (void)snprintf(pattern, sizeof pattern, "%s/recipes/*/job.yaml", source ? source : ".");
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 16);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *file = files.gl_pathv[i];
        struct hd_text text = {0};
        struct hd_arena tree;
        struct yaml_node *root;

        assert_int_equal(hd_file_read(file, HD_SPEC_FILE_BYTES_MAX, &text), HD_OK);
        if (!hd_text_starts(text.data, "# yaml-language-server: $schema=job.schema.json\n"))
            fail_msg("%s: the first line names no schema", file);
        if (!text_is_valid(text.data, text.len_bytes))
            fail_msg("%s does not follow the schema", file);
        hd_arena_init(&tree, 0);
        assert_int_equal(hd_yaml_parse(&(struct hd_yaml_source){.name = file,
                                                                .kind = "job file",
                                                                .bytes = text.data,
                                                                .size_bytes = text.len_bytes},
                                       &tree, &root),
                         HD_OK);
        assert_says_no_default(file, root, "");
        hd_arena_done(&tree);
        hd_text_free(&text);
    }
    globfree(&files);
}

static void a_good_job_is_right(void **state)
{
    assert_true(text_is_valid(good, good_bytes));
}

/* The schema finds a mistake that is one of a single key. */
static void wrong_keys_and_values_are_wrong(void **state)
{
    static const char *const wrong[] = {
        "nam: x\n",
        "model: {layer: 2}\n",
        "model: {layers: two}\n",
        "model: {layers: 0}\n",
        "model: {qk_norm: maybe}\n",
        "model: [llama]\n",
        "train: {lr: {peek: 1}}\n",
        "train: {lr: [1]}\n",
        "train: {precision: fp12}\n",
        "train: {weight_decay: much}\n",
        "parallel: off\n",
        "parallel: {tp: none}\n",
        "resources: {devices: [1]}\n",
        "checkpoint: {every: -3}\n",
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (text_is_valid(wrong[i], strlen(wrong[i])))
            fail_msg("%s", wrong[i]);
}

static void short_forms_and_words_are_right(void **state)
{
    static const char *const right[] = {
        "parallel: auto\n",
        "parallel: {tp: auto, recompute: {full: 2}, layers_per_stage: [1, 2]}\n",
        "train: {lr: 1e-3, dropout: 0.1, trainable: {last: 2}}\n",
        "train: {lr: {peak: 1e-3, decay: linear}, adapter: {type: lora, targets: [q_proj]}}\n",
        "data: {train: [{path: a.txt, weight: 2}], columns: {prompt: q}}\n",
        "resources: {devices: {min: 2, max: 4}}\n",
        "after: [1, 2]\n",
        "name: 12\n",
    };

    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++)
        if (!text_is_valid(right[i], strlen(right[i])))
            fail_msg("%s", right[i]);
}

RUN_CASES_BETWEEN(make_schema, drop_schema)
