/* From a tree of YAML to a JobSpec, key by key through the table; then the defaults of keys that
 * are not there, the rules, the files. Every mistake is reported with the line of the nearest thing
 * that the file does say.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "spec_internal.h"

enum { TREE_BYTES_MAX = 64 << 20 }; /* a tree of 256 KiB of the smallest nodes is well below */

struct reader {
    const char *name; /* of the file, for messages */
    const char *folder;
    struct hd_arena arena;
    struct yaml_node *root;
    const struct yaml_node *here;  /* what is being read, */
    char path[SPEC_PATH_TEXT_MAX]; /* and its key */
};

/* ---- where a mistake is ---- */

/* Puts "FILE:LINE: " in front of the story; an override is its own place. */
static enum hd_status at_node(const struct reader *r, const struct yaml_node *node,
                              enum hd_status st)
{
    if (st == HD_NO_MEMORY)
        return st;
    if (node && node->origin)
        return hd_err_prefix(st, "%s", node->origin);
    return hd_err_prefix(st, "%s:%d", r->name, node && node->line ? node->line : 1);
}

/* The node of a dotted path, or of the longest part of it that the file has. */
static const struct yaml_node *nearest_node(const struct yaml_node *root, const char *path)
{
    const struct yaml_node *node = root;

    while (*path) {
        char key[64];
        size_t len = strcspn(path, ".[");
        const struct yaml_node *child;

        if (*path == '[') { /* an item of a list, counted from 0 */
            long index = strtol(path + 1, NULL, 10);

            for (child = node->first; child && index; index--)
                child = child->next;
            len = strcspn(path, "]") + 1;
        } else {
            (void)snprintf(key, sizeof key, "%.*s", (int)len, path);
            child = spec_yaml_find(node, key);
        }
        if (!child || len > strlen(path))
            break;
        node = child;
        path += len;
        path += *path == '.';
    }
    return node;
}

/* Adds the place to a story that begins with "KEY.PATH: ". */
static enum hd_status at_story(const struct reader *r, enum hd_status st)
{
    char path[SPEC_PATH_TEXT_MAX];
    const char *story = hd_err_message();

    (void)snprintf(path, sizeof path, "%.*s", (int)strcspn(story, ": "), story);
    return at_node(r, nearest_node(r->root, path), st);
}

static size_t path_push(struct reader *r, const char *name)
{
    size_t len = strlen(r->path);

    (void)snprintf(r->path + len, sizeof r->path - len, "%s%s", len ? "." : "", name);
    return len;
}

static void path_pop(struct reader *r, size_t len)
{
    r->path[len] = '\0';
}

/* ---- single values ---- */

static const char *kind_text(const struct yaml_node *node)
{
    switch (node->kind) {
    case YAML_KIND_LIST:
        return "a list";
    case YAML_KIND_MAP:
        return "a group of keys";
    case YAML_KIND_SCALAR:
        break;
    }
    return node->plain ? "a plain value" : "a text in quotes";
}

static bool is_nothing(const struct yaml_node *node)
{
    return node->kind == YAML_KIND_SCALAR && node->plain &&
           (!*node->text || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

static enum hd_status need_scalar(struct reader *r, const struct yaml_node *node, const char *what)
{
    if (is_nothing(node))
        return hd_err(HD_INVALID, "%s: has no value; give %s or remove the line", r->path, what);
    if (node->kind != YAML_KIND_SCALAR)
        return hd_err(HD_INVALID, "%s: expected %s, not %s", r->path, what, kind_text(node));
    return HD_OK;
}

static enum hd_status need_number(struct reader *r, const struct yaml_node *node, const char *what)
{
    enum hd_status st = need_scalar(r, node, what);

    if (!st && !node->plain)
        st = hd_err(HD_INVALID, "%s: expected %s, not a text; remove the quotes", r->path, what);
    return st;
}

static enum hd_status read_int(struct reader *r, const struct spec_key *key,
                               const struct yaml_node *node, int64_t *ret_value)
{
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st;
    long long value;
    char *end;

    st = need_number(r, node, "a whole number");
    if (st)
        return st;
    errno = 0;
    value = strtoll(node->text, &end, 10);
    if (*end || end == node->text || *node->text == '+')
        return hd_err(HD_INVALID, "%s: %s is not a whole number; write digits only, such as 1000",
                      r->path, spec_quote(node->text, quoted));
    if (errno || !spec_number_in_range(key, (double)value))
        return spec_err_range(r->path, key, strtod(node->text, NULL));
    *ret_value = value;
    return HD_OK;
}

static enum hd_status read_real(struct reader *r, const struct spec_key *key,
                                const struct yaml_node *node, double *ret_value)
{
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st;
    double value;
    char *end;

    st = need_number(r, node, "a number");
    if (st)
        return st;
    value = strtod(node->text, &end);
    if (*end || end == node->text || node->text[strspn(node->text, "0123456789+-.eE")])
        return hd_err(HD_INVALID, "%s: %s is not a number; write it like 0.001 or 1e-3", r->path,
                      spec_quote(node->text, quoted));
    if (!spec_number_in_range(key, value))
        return spec_err_range(r->path, key, value);
    *ret_value = value;
    return HD_OK;
}

static enum hd_status read_bool(struct reader *r, const struct yaml_node *node,
                                protobuf_c_boolean *ret_value)
{
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st = need_number(r, node, "true or false");

    if (st)
        return st;
    if (strcmp(node->text, "true") != 0 && strcmp(node->text, "false") != 0)
        return hd_err(HD_INVALID, "%s: %s is neither true nor false", r->path,
                      spec_quote(node->text, quoted));
    *ret_value = node->text[0] == 't';
    return HD_OK;
}

/* "X is not one of a, b, c; did you mean b?" */
static enum hd_status unknown_word(const char *path, const char *text, const char *const *names,
                                   size_t count)
{
    const char *nearest = hd_spec_nearest(text, names, count);
    char quoted[SPEC_QUOTE_MAX];
    char list[256] = "";
    size_t len = 0;

    for (size_t i = 0; i < count && len < sizeof list; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", names[i]);
    if (nearest)
        return hd_err(HD_INVALID, "%s: %s is not one of %s; did you mean %s?", path,
                      spec_quote(text, quoted), list, nearest);
    return hd_err(HD_INVALID, "%s: %s is not one of %s; use one of them", path,
                  spec_quote(text, quoted), list);
}

static enum hd_status read_word(struct reader *r, const struct spec_key *key,
                                const struct yaml_node *node, int *ret_value)
{
    const char *names[8];
    size_t count = 0;
    enum hd_status st;

    st = need_scalar(r, node, "a word");
    if (st)
        return st;
    for (const struct spec_word *w = key->word; w->name; w++) {
        if (strcmp(w->name, node->text) == 0) {
            *ret_value = w->value;
            return HD_OK;
        }
        names[count++] = w->name;
    }
    return unknown_word(r->path, node->text, names, count);
}

static enum hd_status read_text(struct reader *r, const struct yaml_node *node, char **member)
{
    enum hd_status st = need_scalar(r, node, "a text");

    if (!st && !*node->text)
        st = hd_err(HD_INVALID, "%s: is empty; give a text or remove the line", r->path);
    if (!st && !spec_set_text(member, node->text))
        st = hd_err(HD_NO_MEMORY, "no memory for the job file");
    return st;
}

static bool is_auto(const struct yaml_node *node)
{
    return node->kind == YAML_KIND_SCALAR && strcmp(node->text, "auto") == 0;
}

/* ---- values with a form of their own ---- */

/* devices: 4   or   devices: {min: 4, max: 16} */
static enum hd_status read_devices(struct reader *r, const struct spec_key *key,
                                   const struct yaml_node *node, Heddle__V1__ResourceSpec *spec)
{
    static const char *const names[] = {"min", "max"};
    int64_t bounds[2] = {0, 0};
    enum hd_status st = HD_OK;

    if (node->kind != YAML_KIND_MAP) {
        st = read_int(r, key, node, &bounds[0]);
        bounds[1] = bounds[0];
    }
    for (const struct yaml_node *c = node->first; node->kind == YAML_KIND_MAP && c && !st;
         c = c->next) {
        size_t len = path_push(r, c->key);
        int which = strcmp(c->key, "max") == 0;

        r->here = c;
        if (!which && strcmp(c->key, "min") != 0)
            st = unknown_word(r->path, c->key, names, 2);
        else
            st = read_int(r, key, c, &bounds[which]);
        path_pop(r, len);
    }
    if (!st && (!bounds[0] || !bounds[1]))
        st = hd_err(HD_INVALID, "%s: needs both min and max; or give one whole number", r->path);
    spec->devices_min = (int32_t)bounds[0];
    spec->devices_max = (int32_t)bounds[1];
    return st;
}

/* steps: [10, 12]   or   steps: 10 */
static enum hd_status read_steps(struct reader *r, const struct spec_key *key,
                                 const struct yaml_node *node, int64_t interval[2])
{
    size_t count = 0, len = strlen(r->path);
    enum hd_status st = HD_OK;

    if (node->kind != YAML_KIND_LIST) {
        st = read_int(r, key, node, &interval[0]);
        interval[1] = interval[0];
        return st;
    }
    for (const struct yaml_node *c = node->first; c; c = c->next)
        count++;
    if (count != 2)
        return hd_err(HD_INVALID, "%s: expected the first and the last step, such as [10, 12]",
                      r->path);
    count = 0;
    for (const struct yaml_node *c = node->first; c && !st; c = c->next, count++) {
        (void)snprintf(r->path + len, sizeof r->path - len, "[%zu]", count);
        r->here = c;
        st = read_int(r, key, c, &interval[count]);
        path_pop(r, len);
    }
    return st;
}

struct file_list { /* protobuf-c's two members of a repeated field */
    size_t count;
    Heddle__V1__DataFile **items;
};

static enum hd_status add_file(struct reader *r, const struct yaml_node *node,
                               struct file_list *list)
{
    Heddle__V1__DataFile *file;
    enum hd_status st;

    file = (Heddle__V1__DataFile *)spec_new_message(&heddle__v1__data_file__descriptor);
    if (!file)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    list->items[list->count++] = file;
    st = need_scalar(r, node, "a path");
    return st ? st : read_text(r, node, &file->path);
}

/* train: [a.txt, b/x.txt]   or   train: a.txt */
static enum hd_status read_files(struct reader *r, const struct yaml_node *node,
                                 struct file_list *list)
{
    bool many = node->kind == YAML_KIND_LIST;
    enum hd_status st = HD_OK;
    size_t count = 0, len = strlen(r->path);

    for (const struct yaml_node *c = many ? node->first : node; c; c = many ? c->next : NULL)
        count++;
    if (count > HD_SPEC_FILES_MAX)
        return hd_err(HD_INVALID, "%s: more than %d entries; use a pattern such as corpus/*.txt",
                      r->path, HD_SPEC_FILES_MAX);
    list->items = calloc(count ? count : 1, sizeof list->items[0]);
    if (!list->items)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    if (!many)
        return add_file(r, node, list);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next) {
        (void)snprintf(r->path + len, sizeof r->path - len, "[%zu]", list->count);
        r->here = c;
        st = add_file(r, c, list);
        path_pop(r, len);
    }
    return st;
}

/* The files of a source join the list of the whole mixture; on failure they are let go. */
static enum hd_status take_source(Heddle__V1__DataSpec *data, struct file_list *list,
                                  struct file_list *found, enum hd_status st)
{
    Heddle__V1__DataFile **items =
        st ? NULL : realloc(list->items, (list->count + found->count) * sizeof *items);

    if (!st && !items)
        st = hd_err(HD_NO_MEMORY, "no memory for the job file");
    if (items)
        list->items = items;
    for (size_t i = 0; i < found->count; i++) {
        if (st) {
            heddle__v1__data_file__free_unpacked(found->items[i], NULL);
            continue;
        }
        found->items[i]->source = (int32_t)data->n_train_weights;
        list->items[list->count++] = found->items[i];
    }
    free(found->items);
    data->n_train_weights += !st;
    return st;
}

/* One entry of a mixture: {path: a.txt, weight: 0.7}; path: may be a list. */
static enum hd_status read_source(struct reader *r, const struct spec_key *key,
                                  const struct yaml_node *node, Heddle__V1__DataSpec *data)
{
    static const char *const names[] = {"path", "weight"};
    struct file_list *list = (struct file_list *)&data->n_train;
    const struct yaml_node *path = spec_yaml_find(node, "path");
    const struct yaml_node *weight = spec_yaml_find(node, "weight");
    struct file_list found = {0};
    enum hd_status st = HD_OK;
    size_t len;

    for (const struct yaml_node *c = node->first; c; c = c->next) {
        r->here = c;
        len = path_push(r, c->key);
        if (c == weight)
            st = read_real(r, key, c, &data->train_weights[data->n_train_weights]);
        else if (c == path)
            st = read_files(r, c, &found);
        else if (strcmp(c->key, "path") == 0 || strcmp(c->key, "weight") == 0)
            st = hd_err(HD_INVALID, "%s: stands twice; remove one", r->path);
        else
            st = unknown_word(r->path, c->key, names, 2);
        path_pop(r, len);
        if (st)
            break;
    }
    r->here = st ? r->here : node;
    if (!st && (!path || !weight || !found.count))
        st = hd_err(HD_INVALID, "%s: needs path and weight, such as {path: a/*.txt, weight: 0.7}",
                    r->path);
    return take_source(data, list, &found, st);
}

/* train: a.txt   or   [a.txt, b/x.txt]   or   [{path: a.txt, weight: 0.7}, ...] */
static enum hd_status read_sources(struct reader *r, const struct spec_key *key,
                                   const struct yaml_node *node, Heddle__V1__DataSpec *data)
{
    const bool mixed =
        node->kind == YAML_KIND_LIST && node->first && node->first->kind == YAML_KIND_MAP;
    const size_t len = strlen(r->path);
    enum hd_status st = HD_OK;

    if (!mixed)
        return read_files(r, node, (struct file_list *)&data->n_train);
    data->train_weights = calloc(HD_JOB_SOURCES_MAX, sizeof *data->train_weights);
    if (!data->train_weights)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    for (const struct yaml_node *c = node->first; c && !st; c = c->next) {
        (void)snprintf(r->path + len, sizeof r->path - len, "[%zu]", data->n_train_weights);
        r->here = c;
        if (c->kind != YAML_KIND_MAP)
            st = hd_err(HD_INVALID, "%s: has no weight; write {path: .., weight: ..} as the first",
                        r->path);
        else if (data->n_train_weights == HD_JOB_SOURCES_MAX)
            st = hd_err(HD_INVALID, "%s: more than %d sources; join some", r->path,
                        HD_JOB_SOURCES_MAX);
        else
            st = read_source(r, key, c, data);
        path_pop(r, len);
    }
    return st;
}

/* ---- sections ---- */

static enum hd_status read_section(struct reader *r, const struct spec_section *section,
                                   const struct yaml_node *node, ProtobufCMessage *message);

/* A section, or the plain value that stands for its most important key. */
static enum hd_status read_subsection(struct reader *r, const struct spec_key *key,
                                      const struct yaml_node *node, ProtobufCMessage *holder)
{
    ProtobufCMessage *message = *spec_member_message(holder, key);
    const struct yaml_node *map;

    if (node->kind != YAML_KIND_SCALAR || !key->section->short_key || is_nothing(node))
        return read_section(r, key->section, node, message);
    map = spec_yaml_expand(&r->arena, key->section, node);
    if (!map)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    return read_section(r, key->section, map, message);
}

static enum hd_status read_value(struct reader *r, const struct spec_key *key,
                                 const struct yaml_node *node, ProtobufCMessage *message)
{
    void *member = (char *)message + key->offset;
    Heddle__V1__ParallelSpec *parallel = (Heddle__V1__ParallelSpec *)message;
    enum hd_status st;
    int64_t i = 0;

    switch (key->kind) {
    case SPEC_TEXT:
    case SPEC_PATH:
        return read_text(r, node, member);
    case SPEC_CHOICE:
        return is_auto(node) ? HD_OK : read_text(r, node, member);
    case SPEC_INT:
        return read_int(r, key, node, member);
    case SPEC_SEED:
        st = read_int(r, key, node, &i);
        *(uint64_t *)member = (uint64_t)i;
        return st;
    case SPEC_INT32:
    case SPEC_AUTO:
        st = key->kind == SPEC_AUTO && is_auto(node) ? HD_OK : read_int(r, key, node, &i);
        *(int32_t *)member = (int32_t)i;
        return st;
    case SPEC_ZERO:
        if (is_auto(node))
            return HD_OK;
        st = read_int(r, key, node, &i);
        parallel->_zero_case = HEDDLE__V1__PARALLEL_SPEC___ZERO_ZERO;
        parallel->zero = (int32_t)i;
        return st;
    case SPEC_AUTO_REAL:
        return is_auto(node) ? HD_OK : read_real(r, key, node, member);
    case SPEC_REAL:
        return read_real(r, key, node, member);
    case SPEC_BOOL:
        return read_bool(r, node, member);
    case SPEC_WORD:
    case SPEC_SWITCH:
        return read_word(r, key, node, member);
    case SPEC_FILES:
        return read_files(r, node, member);
    case SPEC_SOURCES:
        return read_sources(r, key, node, (Heddle__V1__DataSpec *)message);
    case SPEC_DEVICES:
        return read_devices(r, key, node, (Heddle__V1__ResourceSpec *)message);
    case SPEC_STEPS:
        return read_steps(r, key, node, member);
    case SPEC_SECTION:
        return read_subsection(r, key, node, message);
    }
    return hd_err(HD_INTERNAL, "%s: a kind of key without a reader", r->path);
}

static enum hd_status unknown_key(const struct spec_section *section, const char *name)
{
    const char *names[64];
    char list[256] = "", quoted[SPEC_QUOTE_MAX];
    const char *nearest, *where = *section->path ? section->path : "a job file";
    const char *dot = *section->path ? "." : "";
    size_t len = 0;

    for (size_t i = 0; i < section->key_count; i++) {
        names[i] = section->keys[i].name;
        if (len < sizeof list)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", names[i]);
    }
    nearest = hd_spec_nearest(name, names, section->key_count);
    (void)spec_quote(name, quoted);
    quoted[strlen(quoted) - 1] = '\0'; /* the key is part of a path: no quotes */
    if (nearest)
        return hd_err(HD_INVALID, "%s%s%s: unknown key; did you mean %s?", section->path, dot,
                      quoted + 1, nearest);
    return hd_err(HD_INVALID, "%s%s%s: unknown key; %s has %s", section->path, dot, quoted + 1,
                  where, list);
}

static enum hd_status read_key(struct reader *r, const struct spec_section *section,
                               const struct yaml_node *map, const struct yaml_node *node,
                               ProtobufCMessage *message)
{
    const struct spec_key *key = spec_find_key(section, node->key);
    const struct yaml_node *earlier;
    enum hd_status st;
    size_t len;

    r->here = node;
    if (!key)
        return unknown_key(section, node->key);
    len = path_push(r, key->name);
    earlier = spec_yaml_find(map, node->key);
    if (earlier != node)
        st = hd_err(HD_INVALID, "%s: stands twice, first in line %d; remove one", r->path,
                    earlier->line);
    else
        st = read_value(r, key, node, message);
    path_pop(r, len);
    return st;
}

static enum hd_status read_section(struct reader *r, const struct spec_section *section,
                                   const struct yaml_node *node, ProtobufCMessage *message)
{
    enum hd_status st = HD_OK;

    r->here = node;
    if (node->kind != YAML_KIND_MAP) {
        if (!*section->path)
            return hd_err(HD_INVALID, "expected keys such as name: and model:, not %s",
                          kind_text(node));
        if (is_nothing(node))
            return hd_err(HD_INVALID, "%s: has no value; give its keys or remove the line",
                          r->path);
        return hd_err(HD_INVALID, "%s: expected keys, not %s", r->path, kind_text(node));
    }
    for (const struct yaml_node *c = node->first; c && !st; c = c->next)
        st = read_key(r, section, node, c, message);
    return st;
}

/* ---- the whole ---- */

static enum hd_status read_spec(struct reader *r, const struct hd_spec_source *source,
                                Heddle__V1__JobSpec *spec)
{
    enum hd_status st;

    st = spec_yaml_parse(r->name, NULL, source->bytes, source->size_bytes, &r->arena, &r->root);
    if (!st)
        st = spec_apply_overrides(source, r->name, &r->arena, r->root);
    if (st)
        return st;
    st = read_section(r, &spec_root, r->root, &spec->base);
    if (st)
        return at_node(r, r->here, st);
    st = spec_read_from(spec, r->folder, r->root);
    if (st)
        return at_story(r, st);
    spec_fill_absent(r->root, spec);
    st = hd_spec_fill_defaults(spec);
    if (!st)
        st = hd_spec_check(spec);
    if (!st)
        st = spec_find_files(spec, r->folder);
    if (!st && !spec_has(r->root, "data", "documents")) { /* now that patterns are expanded */
        spec->data->documents = HEDDLE__V1__DOCUMENT_ENDS__DOCUMENT_ENDS_UNSPECIFIED;
        st = hd_spec_fill_defaults(spec);
    }
    return st ? at_story(r, st) : HD_OK;
}

enum hd_status hd_spec_read_yaml(const struct hd_spec_source *source,
                                 struct Heddle__V1__JobSpec **ret_spec)
{
    struct reader r = {.name = source->name, .folder = source->folder};
    Heddle__V1__JobSpec *spec;
    enum hd_status st;

    spec = spec_new_complete();
    if (!spec)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    hd_arena_init(&r.arena, TREE_BYTES_MAX);
    st = read_spec(&r, source, spec);
    hd_arena_done(&r.arena);
    if (st)
        hd_spec_free(spec);
    else
        *ret_spec = spec;
    return st;
}

static enum hd_status read_stdin(struct hd_text *ret_text)
{
    char buffer[4096];
    ssize_t n;

    while ((n = read(STDIN_FILENO, buffer, sizeof buffer)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hd_err(HD_IO, "cannot read the job from standard input: %s", strerror(errno));
        hd_text_add_bytes(ret_text, buffer, (size_t)n);
        if (ret_text->len_bytes > HD_SPEC_FILE_BYTES_MAX)
            return HD_OK; /* the parser refuses it by its size */
    }
    return HD_OK;
}

/* The absolute folder of the job file, which relative paths in it start from. */
static enum hd_status folder_of(const char *path, struct hd_text *ret_folder)
{
    const char *slash = strrchr(path, '/');
    char *cwd;

    if (path[0] == '/') {
        hd_text_add(ret_folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
        return HD_OK;
    }
    cwd = getcwd(NULL, 0);
    if (!cwd)
        return hd_err(HD_IO, "cannot tell the working directory: %s", strerror(errno));
    hd_text_add(ret_folder, "%s", cwd);
    if (slash)
        hd_text_add(ret_folder, "/%.*s", (int)(slash - path), path);
    free(cwd);
    return HD_OK;
}

enum hd_status hd_spec_read_file(const char *path, const char *const *overrides,
                                 size_t override_count, struct Heddle__V1__JobSpec **ret_spec)
{
    struct hd_spec_source source = {.overrides = overrides, .override_count = override_count};
    bool from_stdin = strcmp(path, "-") == 0;
    struct hd_text bytes = {0}, folder = {0};
    enum hd_status st;

    source.name = from_stdin ? "standard input" : path;
    st = from_stdin ? read_stdin(&bytes) : hd_file_read(path, HD_SPEC_FILE_BYTES_MAX, &bytes);
    if (st == HD_LIMIT)
        st = hd_err(HD_INVALID, "%s: larger than 256 KiB, which no job file needs to be", path);
    if (!st)
        st = folder_of(from_stdin ? "x" : path, &folder);
    if (!st && (bytes.failed || folder.failed))
        st = hd_err(HD_NO_MEMORY, "no memory to read %s", source.name);
    if (!st) {
        source.folder = folder.data;
        source.bytes = bytes.data ? bytes.data : "";
        source.size_bytes = bytes.len_bytes;
        st = hd_spec_read_yaml(&source, ret_spec);
    }
    hd_text_free(&bytes);
    hd_text_free(&folder);
    return st;
}
