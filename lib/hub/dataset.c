/* dataset: which files of a data set are its training data, when the job names none.
 *
 *     list of the repository, README.md
 *       --> `configs:` of README.md's head: files of the split train of the default configuration
 *       --> else files whose names have the word train; or all, if no name has a split's word
 *       --> none that Heddle reads: the hub's own conversion, the branch refs/convert/parquet
 *
 * These are the rules of `datasets`. A folder or a configuration that is ambiguous is refused with
 * what to write.
 */
#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "hub_internal.h"
#include "yaml/yaml.h"

enum { README_BYTES_MAX = 4 << 20, CONFIGS_SHOWN = 8 };

#define CONVERTED "refs/convert/parquet"

/* A data set whose files are chosen. */
struct hub_set {
    const struct hd_hub_request *request;
    struct hd_arena *arena;
    struct hd_hub_name name;     /* its revision is the commit */
    struct hd_hub_result listed; /* all files */
    const char **wanted;         /* paths; in the arena */
    size_t wanted_count;
};

/* Lists all files of the commit of a revision. */
static enum hd_status list_all(struct hub_set *s, const char *revision)
{
    struct hd_hub_request request = *s->request;
    enum hd_status st;

    s->name = *s->request->name;
    s->name.path[0] = '\0';
    if (strlen(revision) >= sizeof s->name.revision)
        return hd_err(HD_INVALID, "hf://datasets/%s: a revision has at most %zu bytes",
                      s->name.repo, sizeof s->name.revision - 1);
    memcpy(s->name.revision, revision, strlen(revision) + 1);
    request.name = &s->name;
    request.include_count = request.exclude_count = 0;
    request.list_only = true;
    st = hd_hub_get(&request, s->arena, &s->listed);
    if (!st)
        memcpy(s->name.revision, s->listed.commit, sizeof s->listed.commit);
    s->wanted_count = 0;
    s->wanted = st ? NULL : hd_arena_array(s->arena, s->listed.file_count + 1, sizeof *s->wanted);
    return st ? st : s->wanted ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a data set");
}

static bool has_file(const struct hub_set *s, const char *path)
{
    for (size_t i = 0; i < s->listed.file_count; i++)
        if (strcmp(s->listed.files[i].path, path) == 0)
            return true;
    return false;
}

static void want(struct hub_set *s, const char *path)
{
    for (size_t i = 0; i < s->wanted_count; i++)
        if (strcmp(s->wanted[i], path) == 0)
            return;
    if (s->wanted_count < s->listed.file_count)
        s->wanted[s->wanted_count++] = path;
}

/* ---- README.md ---- */

/* Cuts the block `configs:` out of the head of README.md, as YAML of its own: the rest of a head has
 * forms that are of no use here. */
static void cut_configs(const char *readme, struct hd_text *ret_yaml)
{
    bool inside = false;

    if (!hd_text_starts(readme, "---"))
        return;
    for (const char *line = strchr(readme, '\n'); line && *++line; line = strchr(line, '\n')) {
        const size_t n = strcspn(line, "\r\n");

        if (n >= 3 && strncmp(line, "---", 3) == 0)
            return;
        if (n && line[0] != ' ' && line[0] != '-' && line[0] != '#')
            inside = hd_text_starts(line, "configs:");
        if (inside)
            hd_text_add(ret_yaml, "%.*s\n", (int)n, line);
    }
}

static const char *text_of(const struct yaml_node *map, const char *key)
{
    const struct yaml_node *node = hd_yaml_find(map, key);

    return node && node->kind == YAML_KIND_SCALAR ? node->text : NULL;
}

static const char *config_name(const struct yaml_node *config)
{
    const char *name = text_of(config, "config_name");

    return name ? name : "default";
}

static bool is_default(const struct yaml_node *config)
{
    const char *text = text_of(config, "default");

    return text && strcasecmp(text, "true") == 0;
}

/* Wants the files that a pattern of README.md matches. `*` does not cross folders, `**` does. */
static void want_pattern(struct hub_set *s, const char *folder, const char *pattern)
{
    char whole[2 * HD_HUB_PATH_MAX];
    const bool crosses = strstr(pattern, "**");

    pattern += hd_text_starts(pattern, "./") ? 2 : 0;
    (void)snprintf(whole, sizeof whole, "%s%s%s", folder, *folder ? "/" : "", pattern);
    for (size_t i = 0; i < s->listed.file_count; i++) {
        const char *path = s->listed.files[i].path;

        if (fnmatch(whole, path, crosses ? FNM_PERIOD : FNM_PATHNAME | FNM_PERIOD) == 0 ||
            strcmp(whole, path) == 0)
            want(s, path);
    }
}

/* Wants the files of a node: one pattern or a list of them. */
static void want_patterns(struct hub_set *s, const char *folder, const struct yaml_node *node)
{
    if (node && node->kind == YAML_KIND_SCALAR)
        want_pattern(s, folder, node->text);
    for (const struct yaml_node *item = node && node->kind == YAML_KIND_LIST ? node->first : NULL;
         item; item = item->next)
        if (item->kind == YAML_KIND_SCALAR)
            want_pattern(s, folder, item->text);
}

/* Wants the files of the split train of a configuration: `data_files` is a pattern, a list of
 * patterns, a list of {split, path}, or a map from splits to patterns. Appends the other splits. */
static void want_config(struct hub_set *s, const struct yaml_node *config,
                        struct hd_text *ret_splits)
{
    const struct yaml_node *files = hd_yaml_find(config, "data_files");
    const char *dir = text_of(config, "data_dir");
    const char *folder = dir && strcmp(dir, ".") != 0 ? dir : "";

    if (!files)
        return;
    if (files->kind == YAML_KIND_MAP) {
        for (const struct yaml_node *split = files->first; split; split = split->next)
            if (strcmp(split->key, "train") == 0)
                want_patterns(s, folder, split);
            else
                hd_text_add(ret_splits, " %s", split->key);
        return;
    }
    if (files->kind == YAML_KIND_SCALAR)
        want_pattern(s, folder, files->text);
    for (const struct yaml_node *item = files->kind == YAML_KIND_LIST ? files->first : NULL; item;
         item = item->next) {
        const char *split = text_of(item, "split");

        if (item->kind == YAML_KIND_SCALAR)
            want_pattern(s, folder, item->text);
        else if (!split || strcmp(split, "train") == 0)
            want_patterns(s, folder, hd_yaml_find(item, "path"));
        else
            hd_text_add(ret_splits, " %s", split);
    }
}

/* Appends what to write for a configuration: the first pattern of its training files. */
static void add_choice(const struct yaml_node *config, struct hd_text *out)
{
    const struct yaml_node *node = hd_yaml_find(config, "data_files");

    while (node && node->kind != YAML_KIND_SCALAR) {
        const struct yaml_node *path = hd_yaml_find(node, "path");

        node = path ? path : node->first;
    }
    hd_text_add(out, " %s (%s)", config_name(config), node ? node->text : "?");
}

static enum hd_status refuse_ambiguous(const struct hub_set *s, const struct yaml_node *configs)
{
    struct hd_text choices = {0};
    int count = 0;
    enum hd_status st;

    for (const struct yaml_node *c = configs->first; c; c = c->next)
        if (++count <= CONFIGS_SHOWN)
            add_choice(c, &choices);
    st = hd_err(HD_INVALID,
                "hf://datasets/%s has %d configurations, none of which is the default; name the "
                "files of one, such as hf://datasets/%s/PATTERN. Configurations with a pattern "
                "each:%.600s%s",
                s->name.repo, count, s->name.repo, choices.failed ? "" : choices.data,
                count > CONFIGS_SHOWN ? " .." : "");
    hd_text_free(&choices);
    return st;
}

/* Chooses by README.md; nothing, if it names no files. */
static enum hd_status choose_by_configs(struct hub_set *s, const struct yaml_node *configs)
{
    const struct yaml_node *chosen = NULL;
    struct hd_text splits = {0};
    enum hd_status st = HD_OK;

    for (const struct yaml_node *c = configs->first; c; c = c->next)
        if (is_default(c) || (!chosen && strcmp(config_name(c), "default") == 0))
            chosen = c;
    if (!chosen && configs->first && !configs->first->next)
        chosen = configs->first;
    if (!chosen)
        return configs->first ? refuse_ambiguous(s, configs) : HD_OK;
    if (!hd_yaml_find(chosen, "data_files"))
        return HD_OK;
    want_config(s, chosen, &splits);
    if (!s->wanted_count)
        st = hd_err(HD_NOT_FOUND,
                    "the configuration %s of hf://datasets/%s has no files of a split train%s%s; "
                    "name its files, such as hf://datasets/%s/PATTERN",
                    config_name(chosen), s->name.repo, splits.len_bytes ? "; its splits:" : "",
                    splits.len_bytes && !splits.failed ? splits.data : "", s->name.repo);
    hd_text_free(&splits);
    return st;
}

static enum hd_status choose_by_readme(struct hub_set *s)
{
    const char *include = "README.md";
    struct hd_hub_request request = *s->request;
    struct hd_hub_result result;
    struct hd_text path = {0}, readme = {0}, yaml = {0};
    struct yaml_node *root = NULL;
    const struct yaml_node *configs;
    enum hd_status st;

    if (!has_file(s, include))
        return HD_OK;
    request.name = &s->name;
    request.include = &include;
    request.include_count = 1;
    request.exclude_count = 0;
    st = hd_hub_get(&request, s->arena, &result);
    hd_text_add(&path, "%s/README.md", result.snapshot);
    if (!st)
        st = path.failed ? hd_err(HD_NO_MEMORY, "no memory for a data set")
                         : hd_file_read(path.data, README_BYTES_MAX, &readme);
    hd_text_add(&readme, "%s", "");
    if (!st && !readme.failed)
        cut_configs(readme.data, &yaml);
    if (!st && yaml.len_bytes) {
        const struct hd_yaml_source source = {.name = "README.md",
                                              .kind = "head of a data set",
                                              .bytes = yaml.data,
                                              .size_bytes = yaml.len_bytes};

        st = hd_yaml_parse(&source, s->arena, &root);
        if (st && st != HD_NO_MEMORY)
            st = hd_err(HD_INVALID,
                        "the configurations of hf://datasets/%s cannot be read (%s); name its "
                        "files, such as hf://datasets/%s/data/train-*",
                        s->name.repo, hd_err_message(), s->name.repo);
    }
    configs = root ? hd_yaml_find(root, "configs") : NULL;
    if (!st && configs && configs->kind == YAML_KIND_LIST)
        st = choose_by_configs(s, configs);
    hd_text_free(&path);
    hd_text_free(&readme);
    hd_text_free(&yaml);
    return st;
}

/* ---- names ---- */

/* Returns whether a path has the word between characters that are no letters. */
static bool has_word(const char *path, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = path; *at; at++)
        if (strncasecmp(at, word, n) == 0 && (at == path || !isalpha((unsigned char)at[-1])) &&
            !isalpha((unsigned char)at[n]))
            return true;
    return false;
}

static bool has_any_word(const char *path, const char *const *words)
{
    for (; *words; words++)
        if (has_word(path, *words))
            return true;
    return false;
}

/* Chooses by the names of files and folders; nothing, if no file is data. */
static enum hd_status choose_by_names(struct hub_set *s)
{
    static const char *const train[] = {"train", "training", NULL};
    static const char *const others[] = {"test",  "testing",    "eval", "evaluation", "val",
                                         "valid", "validation", "dev",  NULL};
    bool any_data = false, any_other = false;

    for (size_t i = 0; i < s->listed.file_count; i++) {
        const char *path = s->listed.files[i].path;

        if (!hub_is_data_file(path) || hub_is_forbidden(path, true))
            continue;
        any_data = true;
        any_other |= has_any_word(path, others);
        if (has_any_word(path, train))
            want(s, path);
    }
    for (size_t i = 0; i < s->listed.file_count && !s->wanted_count && !any_other; i++)
        if (hub_is_data_file(s->listed.files[i].path) &&
            !hub_is_forbidden(s->listed.files[i].path, true))
            want(s, s->listed.files[i].path);
    if (any_data && !s->wanted_count)
        return hd_err(HD_NOT_FOUND,
                      "hf://datasets/%s has only files of other splits, none of train; name the "
                      "files to train on, such as hf://datasets/%s/%s",
                      s->name.repo, s->name.repo, s->listed.files[0].path);
    return HD_OK;
}

/* ---- the hub's own conversion ---- */

/* Chooses the files of the folder CONFIG/train; of a large set the hub has converted a part. */
static enum hd_status choose_converted(struct hub_set *s)
{
    const char *config = NULL;
    enum hd_status st = list_all(s, CONVERTED);

    for (size_t i = 0; i < s->listed.file_count && !st; i++) {
        const char *path = s->listed.files[i].path, *rest = strchr(path, '/');
        const size_t n = rest ? (size_t)(rest - path) : 0;

        if (!rest || !hd_text_ends(path, ".parquet") ||
            (!hd_text_starts(rest, "/train/") && !hd_text_starts(rest, "/partial-train/")))
            continue;
        if (config && (strlen(config) != n || memcmp(config, path, n) != 0))
            return hd_err(
                HD_INVALID,
                "hf://datasets/%s has several configurations, such as %s and %.*s; name "
                "the files of one: hf://datasets/%s@refs%%2Fconvert%%2Fparquet/%s/train/*",
                s->name.repo, config, (int)n, path, s->name.repo, config);
        if (!config)
            config = hd_arena_printf(s->arena, "%.*s", (int)n, path);
        if (!config)
            return hd_err(HD_NO_MEMORY, "no memory for a data set");
        want(s, path);
    }
    if (st == HD_NOT_FOUND || (!st && !s->wanted_count))
        st =
            hd_err(HD_NOT_FOUND,
                   "hf://datasets/%s has no files that Heddle reads, and the hub has no conversion "
                   "of it (branch " CONVERTED "); download and convert it",
                   s->name.repo);
    return st;
}

/* ---- all of it ---- */

enum hd_status hd_hub_get_set(const struct hd_hub_request *request, struct hd_arena *arena,
                              struct hd_hub_result *ret_result)
{
    struct hub_set s = {.request = request, .arena = arena};
    struct hd_hub_request whole = *request;
    struct hd_hub_name name = *request->name;
    enum hd_status st = list_all(&s, request->name->revision);

    if (!st)
        st = choose_by_readme(&s);
    if (!st && !s.wanted_count)
        st = choose_by_names(&s);
    if (!st && !s.wanted_count) {
        st = choose_converted(&s);
        (void)snprintf(name.revision, sizeof name.revision, CONVERTED);
    }
    if (st)
        return st;
    name.path[0] = '\0';
    whole.name = &name; /* with the branch, which the cache then knows as this commit */
    whole.include = s.wanted;
    whole.include_count = s.wanted_count;
    whole.exclude_count = 0;
    return hd_hub_get(&whole, arena, ret_result);
}

enum hd_status hd_hub_add_paths(const struct hd_hub_result *result, const char *folder,
                                struct hd_text *out)
{
    struct hd_text path = {0};
    bool any = false;

    for (size_t i = 0; i < result->file_count; i++) {
        if (!hub_is_data_file(result->files[i].path))
            continue;
        hd_text_clear(&path);
        hd_text_add(&path, "%s/%s", folder, result->files[i].path);
        hd_text_add(out, any ? "\n" : "%s", "");
        if (!path.failed)
            hub_add_exact(out, path.data);
        out->failed |= path.failed;
        any = true;
    }
    hd_text_free(&path);
    if (!any)
        return hd_err(HD_NOT_FOUND,
                      "no file in %s has a name of data, such as *.jsonl or *.parquet; name the "
                      "files",
                      folder);
    return out->failed ? hd_err(HD_NO_MEMORY, "no memory for a data set") : HD_OK;
}
