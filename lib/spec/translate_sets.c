/* translate_sets: data sets of LLaMA-Factory, by their names in its dataset_info.json: files, columns
 * and tags. The file is looked for in dataset_dir (theirs, "data" if they name none) below the
 * translated file's folder, then beside the translated file, then below the working directory. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/words.h"
#include "translate_internal.h"

enum { INFO_BYTES_MAX = 4 << 20, INFO_VALUES_MAX = 100000, INFO_DEPTH_MAX = 16, PATH_BYTES = 4096 };

/* ---- the file ---- */

static bool read_info(struct translated_file *t, const char *folder, struct translated_sets *ret)
{
    const struct hd_json_limits limits = {INFO_VALUES_MAX, INFO_DEPTH_MAX};
    struct hd_text text = {0};
    char path[PATH_BYTES];
    bool good;

    (void)snprintf(path, sizeof path, "%s/dataset_info.json", folder);
    if (access(path, F_OK) != 0)
        return false;
    ret->path = hd_arena_strdup(t->arena, path);
    ret->folder = hd_arena_strdup(t->arena, folder);
    good = !hd_file_read(path, INFO_BYTES_MAX, &text) &&
           !hd_json_parse_repeated(t->arena, text.data, text.len_bytes, &limits, &ret->root);
    if (!good)
        ret->problem = hd_arena_printf(t->arena, "%s cannot be read: %s", path, hd_err_message());
    else if (ret->root->kind != HD_JSON_OBJECT)
        ret->problem = hd_arena_printf(t->arena, "%s is no object with names of sets", path);
    if (ret->problem)
        ret->root = NULL;
    hd_text_free(&text);
    return true;
}

/* Finds and reads dataset_info.json once. */
static void find_info(struct translated_file *t)
{
    const struct yaml_node *node = hd_yaml_find(t->root, "dataset_dir");
    const char *dir = node ? translate_text(t, node) : "data";
    char path[PATH_BYTES];

    if (t->sets.searched)
        return;
    t->sets.searched = true;
    if (hd_text_starts(dir, "/")) {
        (void)read_info(t, dir, &t->sets);
        return;
    }
    (void)snprintf(path, sizeof path, "%s/%s", t->folder, dir);
    if (!read_info(t, path, &t->sets) && !read_info(t, t->folder, &t->sets))
        (void)read_info(t, dir, &t->sets);
}

/* ---- one set ---- */

static const char *member(const struct hd_json *object, const char *name)
{
    const char *text = hd_json_text(object, name);

    return text ? text : "";
}

static bool is_true(const struct hd_json *object, const char *name)
{
    const struct hd_json *value = hd_json_member(object, name);

    return value && value->kind == HD_JSON_TRUE;
}

/* Sets a key that all sets of a job share; names it as not here if an earlier set has another. */
static void put_shared(struct translated_file *t, const char *set, const char *path,
                       const char *value)
{
    const char *had = translate_get(t, path);

    if (!had)
        translate_put(t, path, value, NULL);
    else if (strcmp(had, value) != 0)
        translate_lack(t, hd_arena_printf(t->arena, "%s of the set %s", path, set),
                       hd_arena_printf(t->arena,
                                       "%s, where an earlier set has %s: one value counts for all "
                                       "sets; give the columns of one of them other names",
                                       value, had));
}

/* Sets data.columns from the member `columns`, where it has other names than the usual ones. */
static void take_columns(struct translated_file *t, const char *name, const struct hd_json *set)
{
    static const struct {
        const char *theirs, *ours, *usual;
    } columns[] = {{"prompt", "prompt", "instruction"}, {"query", "input", "input"},
                   {"response", "answer", "output"},    {"messages", "messages", "conversations"},
                   {"system", "system", "system"},      {"tools", "tools", "tools"},
                   {"chosen", "chosen", "chosen"},      {"rejected", "rejected", "rejected"},
                   {"kto_tag", "label", "label"}};
    static const char *const lacking[] = {"history", "images", "videos", "audios"};
    const struct hd_json *map = hd_json_member(set, "columns");
    struct hd_text out = {0};
    bool differs = false;

    for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++)
        if (*member(map, lacking[i]))
            translate_lack(t, hd_arena_printf(t->arena, "columns.%s of %s", lacking[i], name),
                           strcmp(lacking[i], "history") == 0
                               ? "earlier turns are messages of a conversation here"
                               : "this column is not read");
    hd_text_add(&out, "{");
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        const char *column = member(map, columns[i].theirs);

        if (!*column)
            continue;
        differs |= strcmp(column, columns[i].usual) != 0 &&
                   !(strcmp(column, "messages") == 0 && strcmp(columns[i].theirs, column) == 0);
        hd_text_add(&out, "%s%s: %s", out.len_bytes > 1 ? ", " : "", columns[i].ours,
                    translate_quote(t, column));
    }
    hd_text_add(&out, "}");
    if (differs && !out.failed)
        put_shared(t, name, "data.columns", hd_arena_strdup(t->arena, out.data));
    hd_text_free(&out);
}

/* Sets data.roles from the tags of roles, where they are not known without it. */
static void take_tags(struct translated_file *t, const char *name, const struct hd_json *set)
{
    static const struct {
        const char *theirs, *ours, *known;
    } tags[] = {{"user_tag", "user", "human user"},
                {"assistant_tag", "assistant", "gpt assistant"},
                {"system_tag", "system", "system"},
                {"observation_tag", "tool", "observation tool"},
                {"function_tag", "assistant", "function_call"}};
    const struct hd_json *map = hd_json_member(set, "tags");
    const char *role = member(map, "role_tag"), *content = member(map, "content_tag");
    struct hd_text out = {0};

    if ((*role && strcmp(role, "from") != 0 && strcmp(role, "role") != 0) ||
        (*content && strcmp(content, "value") != 0 && strcmp(content, "content") != 0))
        translate_lack(t, hd_arena_printf(t->arena, "tags of %s", name),
                       "a message is {role, content} or {from, value}: rename the others");
    hd_text_add(&out, "{");
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        const char *tag = member(map, tags[i].theirs);

        if (*tag && !hd_words_have(tags[i].known, tag))
            hd_text_add(&out, "%s%s: %s", out.len_bytes > 1 ? ", " : "", translate_quote(t, tag),
                        tags[i].ours);
    }
    hd_text_add(&out, "}");
    if (out.len_bytes > 2 && !out.failed)
        put_shared(t, name, "data.roles", hd_arena_strdup(t->arena, out.data));
    hd_text_free(&out);
}

/* Returns how data.train names the data of a set; NULL: it is nowhere that Heddle reads. */
static const char *path_of(struct translated_file *t, const struct hd_json *set)
{
    const char *file = member(set, "file_name"), *hub = member(set, "hf_hub_url");
    const char *below = t->sets.folder;
    const size_t length = strlen(t->folder);

    if (*hub)
        return hd_arena_printf(t->arena, "hf://datasets/%s%s%s", hub,
                               *member(set, "folder") ? "/" : "", member(set, "folder"));
    if (!*file)
        return NULL;
    if (file[0] == '/')
        return file;
    /* relative to the translated file, as a job file's paths are to it */
    if (strncmp(below, t->folder, length) == 0 && below[length] == '/')
        return hd_arena_printf(t->arena, "%s/%s", below + length + 1, file);
    return strcmp(below, t->folder) == 0 ? file : hd_arena_printf(t->arena, "%s/%s", below, file);
}

static void take_named_set(struct translated_file *t, bool is_val, const char *name,
                           const struct hd_json *set)
{
    const char *path = path_of(t, set), *formatting = member(set, "formatting");
    const char *split = member(set, "split");

    if (!path) {
        translate_lack(t, hd_arena_printf(t->arena, "dataset %s", name),
                       "neither file_name nor hf_hub_url: a set of ModelScope, OpenMind or of a "
                       "script is not read; fetch it, and name its files in data.train");
        return;
    }
    translate_add_set(t, is_val, path);
    if (*split && strcmp(split, "train") != 0)
        translate_lack(
            t, hd_arena_printf(t->arena, "split of %s", name),
            hd_arena_printf(t->arena, "the files of %s: hf://datasets/ORG/NAME/PATTERN", split));
    if (*member(set, "subset"))
        translate_lack(t, hd_arena_printf(t->arena, "subset of %s", name),
                       hd_arena_printf(t->arena, "the files of %s: hf://datasets/ORG/NAME/PATTERN",
                                       member(set, "subset")));
    if (hd_json_member(set, "num_samples"))
        translate_lack(t, hd_arena_printf(t->arena, "num_samples of %s", name),
                       "train.steps or a mixture of data.train bounds it");
    if (is_true(set, "ranking") && !translate_get(t, "train.objective"))
        translate_lack(t, hd_arena_printf(t->arena, "ranking of %s", name),
                       "pairs need train.objective: dpo, orpo, simpo, cpo or reward");
    if (!*formatting || strcmp(formatting, "alpaca") == 0)
        translate_note_form(t, is_true(set, "ranking") ? "" : "alpaca");
    else
        translate_note_form(t, "");
    take_columns(t, name, set);
    take_tags(t, name, set);
}

/* ---- names ---- */

void translate_sets(struct translated_file *t, const char *theirs, bool is_val, const char *names)
{
    size_t found = 0, asked = 0;

    find_info(t);
    if (t->sets.problem)
        translate_lack(t, theirs, t->sets.problem);
    for (const char *at = names; *at; at += strcspn(at, ","), at += strspn(at, ", ")) {
        const int length = (int)hd_text_trim_end(at, strcspn(at, ","));
        const char *name = hd_arena_printf(t->arena, "%.*s", length, at);
        const struct hd_json *set =
            t->sets.root && name ? hd_json_member(t->sets.root, name) : NULL;

        if (!name)
            return;
        asked++;
        if (set && set->kind == HD_JSON_OBJECT) {
            take_named_set(t, is_val, name, set);
            found++;
        } else if (translate_names_a_file(name) || strchr(name, '/')) {
            translate_add_set(t, is_val, translate_our_data(t, name));
            found++;
        } else {
            translate_add_set(t, is_val, hd_arena_printf(t->arena, "data/%s.json", name));
            if (t->sets.root)
                translate_lack(t, hd_arena_printf(t->arena, "dataset %s", name),
                               hd_arena_printf(t->arena, "%s has no such name", t->sets.path));
        }
    }
    translate_tell(t, theirs, is_val ? "data.val" : "data.train",
                   found == asked && t->sets.root
                       ? hd_arena_printf(t->arena, "by %s", t->sets.path)
                       : "the files that dataset_info.json names: look whether they are "
                         "data/NAME.json");
}
