/* read: reads the tree of a YAML file into a job, key by key; then sets defaults, checks the rules
 * and finds the files. An error message has the line of the key, or of the nearest group in the
 * file. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "job/batch_spans.h"
#include "spec_internal.h"

enum { TREE_BYTES_MAX = 64 << 20 }; /* bytes of a file's tree; no file of 256 KiB needs as many */

/* ---- positions in error messages ---- */

/* Returns the index of the override that sets the key named by the last error message, or a group
 * that contains the key; -1: none. */
static int override_of_message(const struct hd_spec_source *source)
{
    const char *message = hd_err_message();

    for (int i = (int)source->override_count - 1; i >= 0; i--) {
        const char *override = source->overrides[i];
        const size_t len = strcspn(override, "=");

        for (const char *at = message; *at; at += strcspn(at, " :,;") + 1) {
            if (strncmp(at, override, len) == 0 && (!at[len] || strchr(". :,;", at[len])))
                return i;
            if (!at[strcspn(at, " :,;")])
                break;
        }
    }
    return -1;
}

/* Puts the name of the override, else of the job, in front of the error message of a stored job, of
 * which the user has no file. */
static enum hd_status at_override(const struct spec_reader *r, enum hd_status st)
{
    const int i = override_of_message(r->source);
    char origin[SPEC_ORIGIN_MAX];

    if (i < 0)
        return hd_err_prefix(st, "%s", r->name);
    spec_override_origin(r->source, (size_t)i, origin);
    return hd_err_prefix(st, "%s", origin);
}

/* Puts "FILE:LINE: ", or the override, in front of the error message. */
static enum hd_status at_node(const struct spec_reader *r, const struct yaml_node *node,
                              enum hd_status st)
{
    if (st == HD_NO_MEMORY)
        return st;
    if (node && node->origin)
        return hd_err_prefix(st, "%s", node->origin);
    if (r->source->is_stored)
        return at_override(r, st);
    return hd_err_prefix(st, "%s:%d", r->name, node && node->line ? node->line : 1);
}

/* Returns the YAML node of a dotted path, or of the longest beginning of the path that the file
 * has. */
static const struct yaml_node *nearest_node(const struct yaml_node *root, const char *path)
{
    const struct yaml_node *node = root;

    while (*path) {
        char key[64];
        size_t len = strcspn(path, ".[");
        const struct yaml_node *child;

        if (*path == '[') { /* index into a list, from 0 */
            long index = strtol(path + 1, NULL, 10);

            for (child = node->first; child && index; index--)
                child = child->next;
            len = strcspn(path, "]") + 1;
        } else {
            (void)snprintf(key, sizeof key, "%.*s", (int)len, path);
            child = hd_yaml_find(node, key);
        }
        if (!child || len > strlen(path))
            break;
        node = child;
        path += len;
        path += *path == '.';
    }
    return node;
}

/* Puts "FILE:LINE: " of the key in front of an error message that begins with "KEY.PATH: ". */
static enum hd_status at_key_of_message(const struct spec_reader *r, enum hd_status st)
{
    char path[SPEC_PATH_TEXT_MAX];
    const char *message = hd_err_message();

    (void)snprintf(path, sizeof path, "%.*s", (int)strcspn(message, ": "), message);
    return at_node(r, nearest_node(r->root, path), st);
}

/* ---- several mistakes ---- */

enum hd_status spec_pass(struct spec_mistakes *mistakes, enum hd_status status)
{
    struct spec_mistake *m;

    if (!mistakes || (status != HD_INVALID && status != HD_UNSUPPORTED))
        return status;
    if (mistakes->count == HD_SPEC_MISTAKES_MAX) {
        mistakes->more++;
        return HD_OK;
    }
    m = &mistakes->items[mistakes->count];
    m->text = hd_arena_strdup(mistakes->arena, hd_err_message());
    m->line = 0;
    m->status = status;
    if (!m->text)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    mistakes->count++;
    return HD_OK;
}

/* Returns where mistakes are kept; NULL: the first one ends reading. */
static struct spec_mistakes *mistakes_of(struct spec_reader *r)
{
    return r->source->mistakes ? &r->mistakes : NULL;
}

/* Keeps a mistake whose place is this node. */
static enum hd_status pass_at_node(struct spec_reader *r, const struct yaml_node *node,
                                   enum hd_status st)
{
    const size_t before = r->mistakes.count;

    if (!st || !mistakes_of(r))
        return st;
    st = spec_pass(&r->mistakes, at_node(r, node, st));
    if (r->mistakes.count > before)
        r->mistakes.items[before].line = node && node->line ? node->line : 1;
    return st;
}

/* Puts the place in front of a mistake that has only its key. */
static void locate_mistake(const struct spec_reader *r, struct spec_mistake *m)
{
    char path[SPEC_PATH_TEXT_MAX], *text;
    const struct yaml_node *node;

    if (m->line)
        return;
    (void)snprintf(path, sizeof path, "%.*s", (int)strcspn(m->text, ": "), m->text);
    node = nearest_node(r->root, path);
    (void)at_node(r, node, hd_err(m->status, "%s", m->text));
    text = hd_arena_strdup(r->mistakes.arena, hd_err_message());
    m->text = text ? text : m->text;
    m->line = node && node->line ? node->line : 1;
}

static int by_line(const void *a, const void *b)
{
    const struct spec_mistake *x = a, *y = b;

    return (x->line > y->line) - (x->line < y->line);
}

/* Makes the first of the mistakes the error, and tells the others to the caller. HD_OK: there is
 * none. */
static enum hd_status tell_mistakes(struct spec_reader *r)
{
    struct spec_mistakes *m = &r->mistakes;

    if (!m->count)
        return HD_OK;
    for (size_t i = 0; i < m->count; i++)
        locate_mistake(r, &m->items[i]);
    qsort(m->items, m->count, sizeof m->items[0], by_line);
    for (size_t i = 1; i < m->count; i++)
        hd_text_add(r->source->mistakes, "%s\n", m->items[i].text);
    if (m->more)
        hd_text_add(r->source->mistakes, "%s: and %zu more\n", r->name, m->more);
    return hd_err(m->items[0].status, "%s", m->items[0].text);
}

size_t spec_path_push(struct spec_reader *r, const char *name)
{
    size_t len = strlen(r->path);

    (void)snprintf(r->path + len, sizeof r->path - len, "%s%s", len ? "." : "", name);
    return len;
}

void spec_path_pop(struct spec_reader *r, size_t len)
{
    r->path[len] = '\0';
}

/* ---- single values ---- */

static enum hd_status read_bool(struct spec_reader *r, const struct yaml_node *node,
                                bool *ret_value)
{
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st = spec_need_number(r, node, "true or false");

    if (st)
        return st;
    if (strcmp(node->text, "true") != 0 && strcmp(node->text, "false") != 0)
        return hd_err(HD_INVALID, "%s: %s is neither true nor false", r->path,
                      spec_quote(node->text, quoted));
    *ret_value = node->text[0] == 't';
    return HD_OK;
}

/* Reads checkpoint.best: true, false, or the name of a number of a validation, which choice_rules.c
 * looks up. */
static enum hd_status read_best(struct spec_reader *r, const struct yaml_node *node)
{
    const bool is_word = node->kind == YAML_KIND_SCALAR && !spec_is_null(node);
    struct hd_job *job = r->draft.job;
    char quoted[SPEC_QUOTE_MAX];

    if (!is_word || strcmp(node->text, "true") == 0 || strcmp(node->text, "false") == 0)
        return read_bool(r, node, &job->checkpoint_best);
    if (!hd_job_val_report_is_possible(node->text))
        return hd_err(HD_INVALID,
                      "%s: %s is neither true nor false, nor the name of a set of data.val or of a "
                      "score of validate.choices or validate.tasks",
                      r->path, spec_quote(node->text, quoted));
    job->checkpoint_best = true;
    *spec_given(&r->draft, "checkpoint.best.set") = true;
    return hd_job_set_text(job, &job->checkpoint_best_set, node->text);
}

static enum hd_status read_text(struct spec_reader *r, const struct hd_key *key,
                                const struct yaml_node *node)
{
    const size_t size = key->kind == HD_KEY_PATH ? HD_JOB_PATH_MAX : HD_JOB_WORD_MAX;
    enum hd_status st = spec_need_scalar(r, node, "a text");

    if (!st && !*node->text)
        st = hd_err(HD_INVALID, "%s: is empty; give a text or remove the line", r->path);
    if (!st && strlen(node->text) >= size)
        st = hd_err(HD_INVALID, "%s: longer than %zu bytes; use a shorter one", r->path, size - 1);
    if (!st)
        st = hd_job_store_text(key, node->text, r->draft.job);
    return st;
}

enum hd_status spec_read_word(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node, unsigned *ret_word)
{
    const bool is_none =
        node->kind == YAML_KIND_SCALAR && key->none_word && strcmp(node->text, "none") == 0;

    *ret_word = node->kind == YAML_KIND_SCALAR && !spec_is_null(node)
                    ? hd_job_find_word(key->texts, is_none ? key->none_word : node->text)
                    : 0;
    return *ret_word ? HD_OK : spec_refuse_word(r, key, node);
}

/* ---- groups ---- */

static enum hd_status read_value(struct spec_reader *r, const struct hd_key *key,
                                 const struct yaml_node *node)
{
    void *member = hd_job_member(key, r->draft.job);

    r->draft.given[key - hd_job_keys] = true;
    switch (key->kind) {
    case HD_KEY_WORD:
        return spec_read_word(r, key, node, member);
    case HD_KEY_NAME:
        if (node->kind == YAML_KIND_MAP && strcmp(key->path, "parallel.recompute") == 0)
            return spec_read_recompute(r, node);
        if (node->kind == YAML_KIND_MAP && strcmp(key->path, "data.bad_rows") == 0)
            return spec_read_bad_rows(r, node);
        if (node->kind == YAML_KIND_MAP && strcmp(key->path, "parallel.schedule") == 0)
            return spec_read_schedule(r, node);
        if (node->kind == YAML_KIND_LIST && strcmp(key->path, "after") == 0)
            return spec_read_after(r, node);
        return read_text(r, key, node);
    case HD_KEY_PATH:
        if (node->kind != YAML_KIND_SCALAR && strcmp(key->path, "train.trainable") == 0)
            return spec_read_only(r, node);
        if (node->kind == YAML_KIND_MAP &&
            (strcmp(key->path, "data.columns") == 0 || strcmp(key->path, "data.roles") == 0))
            return spec_read_names(r, node, member);
        if (node->kind == YAML_KIND_LIST && (strncmp(key->path, "train.adapter.", 14) == 0 ||
                                             strcmp(key->path, "train.rollout.stop") == 0))
            return spec_read_words(r, node, member);
        return read_text(r, key, node);
    case HD_KEY_INT:
        return spec_read_int(r, key, node, member);
    case HD_KEY_REAL:
        return spec_read_real(r, key, node, member);
    case HD_KEY_BOOL:
        return strcmp(key->path, "checkpoint.best") == 0 ? read_best(r, node)
                                                         : read_bool(r, node, member);
    case HD_KEY_FORM:
        return spec_read_form(r, key, node);
    }
    return hd_err(HD_INTERNAL, "%s: a kind of key without a reader", r->path);
}

/* Returns the part of a key's path after "GROUP.", or the whole path if the key is not in the
 * group. */
static const char *as_written_in(const char *group, const char *path)
{
    const size_t len = strlen(group);

    return len && strncmp(path, group, len) == 0 && path[len] == '.' ? path + len + 1 : path;
}

static enum hd_status unknown_key(const char *group, const char *name)
{
    const char *nearest, *where = *group ? group : "a job file", *dot = *group ? "." : "";
    const char *note, *foreign = spec_find_meant(group, name, &note);
    char list[256] = "", quoted[SPEC_QUOTE_MAX];
    struct spec_children children;
    size_t len = 0;

    spec_list_children(group, &children);
    for (size_t i = 0; i < children.count && len < sizeof list; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "",
                                children.names[i]);
    nearest = hd_text_nearest(name, children.names, children.count);
    (void)spec_quote(name, quoted);
    quoted[strlen(quoted) - 1] = '\0'; /* the key is part of a path, so no quotes */
    if (!foreign && spec_find_instead(name))
        return hd_err(HD_INVALID, "%s%s%s: unknown key; %s", group, dot, quoted + 1,
                      spec_find_instead(name));
    if (foreign)
        return hd_err(HD_INVALID, "%s%s%s: unknown key; did you mean %s?%s%s", group, dot,
                      quoted + 1, as_written_in(group, foreign), note ? " " : "", note ? note : "");
    if (nearest)
        return hd_err(HD_INVALID, "%s%s%s: unknown key; did you mean %s?", group, dot, quoted + 1,
                      nearest);
    return hd_err(HD_INVALID, "%s%s%s: unknown key; %s has %s", group, dot, quoted + 1, where,
                  list);
}

static enum hd_status read_group(struct spec_reader *r, const struct yaml_node *node);

/* Reads a group, or a plain value that is its short form. */
static enum hd_status read_short_group(struct spec_reader *r, const struct yaml_node *node)
{
    const struct yaml_node *map = node;

    if (spec_is_auto_group(r->path, node))
        return HD_OK;
    if (spec_is_short_group(r->path, node)) {
        map = spec_yaml_expand(&r->arena, r->path, node);
        if (!map)
            return hd_err(HD_NO_MEMORY, "no memory for the job file");
        if (!map->first)
            map = node; /* the group has no short form: read_group reports it */
    }
    return read_group(r, map);
}

/* Reads one key of `map`, whose path is r->path. */
static enum hd_status read_key(struct spec_reader *r, const struct yaml_node *map,
                               const struct yaml_node *node)
{
    const struct yaml_node *earlier = hd_yaml_find(map, node->key);
    const size_t len = spec_path_push(r, node->key);
    const struct hd_key *key = strchr(node->key, '.') ? NULL : spec_find_key(r->path);
    const bool is_group = !strchr(node->key, '.') && spec_is_group(r->path);
    enum hd_status st;

    r->here = node;
    if (!key && !is_group) {
        spec_path_pop(r, len);
        return unknown_key(r->path, node->key);
    }
    if (earlier != node)
        st = hd_err(HD_INVALID, "%s: is given twice, first in line %d; remove one", r->path,
                    earlier->line);
    else if (node->short_form) { /* messages name the key as it was written: train.lr */
        spec_path_pop(r, len);
        st = read_value(r, key, node);
    } else
        st = is_group ? read_short_group(r, node) : read_value(r, key, node);
    spec_path_pop(r, len);
    return st;
}

static enum hd_status not_a_group(const char *path, const struct yaml_node *node)
{
    struct spec_children children;
    char list[256] = "";
    size_t len = 0, i;

    spec_list_children(path, &children);
    for (i = 0; i < children.count && len + 40 < sizeof list; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "",
                                children.names[i]);
    return hd_err(HD_INVALID, "%s: expected its keys, not %s; it has %s%s", path,
                  spec_kind_text(node), list, i < children.count ? " ..." : "");
}

/* Has a key, whose value is a mistake, count as not given. */
static void leave_out(struct spec_reader *r, const struct yaml_node *node)
{
    const size_t len = spec_path_push(r, node->key);

    if (spec_find_key(r->path))
        *spec_given(&r->draft, r->path) = false;
    spec_path_pop(r, len);
}

static enum hd_status read_group(struct spec_reader *r, const struct yaml_node *node)
{
    enum hd_status st = HD_OK;

    r->here = node;
    if (node->kind != YAML_KIND_MAP) {
        if (!*r->path)
            return hd_err(HD_INVALID, "expected keys such as name: and model:, not %s",
                          spec_kind_text(node));
        if (spec_is_null(node))
            return hd_err(HD_INVALID, "%s: has no value; give its keys or remove the line",
                          r->path);
        return not_a_group(r->path, node);
    }
    for (const struct yaml_node *c = node->first; c && !st; c = c->next) {
        st = read_key(r, node, c);
        if (st && mistakes_of(r)) {
            st = pass_at_node(r, r->here, st);
            leave_out(r, c);
        }
    }
    return st;
}

/* ---- the whole file ---- */

/* Returns whether an override (--set) gives the key NAME of the group. */
static bool is_overridden(const struct spec_reader *r, const char *group, const char *name)
{
    const struct yaml_node *node = hd_yaml_find(r->root, group);

    node = node && node->kind == YAML_KIND_MAP ? hd_yaml_find(node, name) : NULL;
    return node && node->origin;
}

/* Converts train.epochs to train.steps. If both are given, the one from an override wins. */
static enum hd_status take_epochs(struct spec_reader *r, const struct hd_spec_source *source)
{
    struct hd_job *job = r->draft.job;
    bool *steps = spec_given(&r->draft, "train.steps");

    if (*steps && job->epochs > 0) {
        const bool by_steps = is_overridden(r, "train", "steps");

        if (by_steps == is_overridden(r, "train", "epochs"))
            return hd_err(HD_INVALID,
                          "train.epochs: cannot be used with train.steps; remove one of the two");
        if (by_steps)
            job->epochs = 0;
    }
    if (job->epochs > 0) {
        job->steps = source->epoch_steps ? source->epoch_steps : HD_SPEC_STEPS_UNKNOWN;
        *steps = true;
    }
    return HD_OK;
}

int64_t hd_spec_epoch_steps(const struct hd_job *job, int64_t windows)
{
    const struct hd_batch_spans batches = hd_job_batch_spans(job);
    const double sequences = ceil(job->epochs * (double)windows);
    const int64_t steps = sequences < 0x1p60 ? hd_batch_spans_steps(&batches, (int64_t)sequences)
                                             : HD_SPEC_STEPS_UNKNOWN;

    return steps < 1 ? 1 : steps > INT64_C(1) << 40 ? HD_SPEC_STEPS_UNKNOWN : steps;
}

/* Passes on, beside other mistakes, that the job's family or the model in its folder does not train
 * here: who learns that last has mended the rest for nothing. */
static enum hd_status check_model_too(struct spec_reader *r)
{
    struct hd_job *job = r->draft.job;
    enum hd_status st = HD_OK;

    if (*spec_given(&r->draft, "model.family"))
        st = spec_check_family(job);
    else if (*spec_given(&r->draft, "model.from") && !strstr(job->from_dir, "://"))
        st = spec_read_from(&r->draft, r->folder);
    return st ? spec_pass(mistakes_of(r), st) : HD_OK;
}

static enum hd_status read_spec(struct spec_reader *r, const struct hd_spec_source *source)
{
    struct hd_job *job = r->draft.job;
    enum hd_status st;

    st = spec_refuse_arguments(r);
    if (!st)
        st = spec_yaml_parse(r->name, NULL, source->bytes, source->size_bytes, &r->arena, &r->root);
    if (!st)
        st = spec_refuse_foreign(r);
    if (st)
        return st;
    st = spec_rename_keys(r);
    if (st)
        return at_node(r, r->here, st);
    st = spec_apply_overrides(source, r->name, &r->arena, r->root);
    if (st)
        return st;
    st = spec_rename_keys(r); /* those in groups that an override gives */
    if (st)
        return at_node(r, r->here, st);
    st = read_group(r, r->root);
    if (st)
        return at_node(r, r->here, st);
    if (r->mistakes.count) {
        st = spec_check_given(&r->draft, mistakes_of(r));
        if (!st)
            st = check_model_too(r);
        return st ? st : tell_mistakes(r);
    }
    if (source->only_keys) {
        st = spec_check_given(&r->draft, mistakes_of(r));
        return st ? at_key_of_message(r, st) : HD_OK;
    }
    st = take_epochs(r, source);
    if (!st)
        st = spec_locate_names(r);
    if (!st)
        st = spec_read_from(&r->draft, r->folder);
    if (st)
        return at_key_of_message(r, st);
    st = spec_fill_vocab(&r->draft, source->notes);
    if (st)
        return at_key_of_message(r, st);
    spec_fill_absent(&r->draft);
    spec_fill_zero(job);
    spec_fill_batch(job);
    st = spec_fill_data_stages(job);
    if (!st)
        st = spec_check_draft(job, mistakes_of(r));
    if (!st && !r->mistakes.count)
        st = spec_check_continued(job);
    if (!st && r->mistakes.count)
        return tell_mistakes(r);
    if (!st && source->notes)
        st = spec_note(&r->draft, source->notes);
    if (!st && source->missing_data && source->missing_data->len_bytes) {
        st = spec_leave_files(&r->draft, r->folder); /* names that the cache does not have */
    } else if (!st) {
        st = spec_find_files(&r->draft, r->folder);
        if (!st && source->notes)
            spec_note_copies(job, source->notes);
        if (st && st != HD_NO_MEMORY && source->missing_data) {
            hd_text_add(source->missing_data, "%s", hd_err_message());
            st = spec_leave_files(&r->draft, r->folder);
        }
    }
    if (!st && source->check)
        st = source->check(job);
    if (!st && source->problem)
        st = hd_err(HD_INVALID, "%s", source->problem);
    return st ? at_key_of_message(r, st) : HD_OK;
}

/* Keeps the text of the job file, if it is not too large, with the values of --set as comments
 * behind it. */
static enum hd_status keep_text(const struct hd_spec_source *source, struct hd_arena *arena,
                                struct hd_job *job)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (source->size_bytes > HD_JOB_FILE_TEXT_MAX)
        return HD_OK;
    hd_text_add_bytes(&text, source->bytes, source->size_bytes);
    if (source->override_count && text.data && !hd_text_ends(text.data, "\n"))
        hd_text_add(&text, "\n");
    for (size_t i = 0; i < source->override_count; i++) {
        hd_text_add(&text, "# --set ");
        for (const char *c = source->overrides[i]; *c; c++)
            if (*c == '\n' || *c == '\r') /* stays within the comment */
                hd_text_add(&text, "\n#       ");
            else
                hd_text_add_bytes(&text, c, 1);
        hd_text_add(&text, "\n");
    }
    if (text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the text of a job file");
    else if (text.data && text.len_bytes <= HD_JOB_FILE_TEXT_MAX)
        job->file_text = hd_arena_strdup(arena, text.data);
    hd_text_free(&text);
    return st;
}

enum hd_status hd_spec_read_yaml(const struct hd_spec_source *source, struct hd_arena *arena,
                                 struct hd_job *ret_job)
{
    struct hd_spec_source renamed = *source;
    struct spec_reader r = {
        .name = source->name,
        .folder = source->folder,
        .source = &renamed,
        .draft = {.job = ret_job, .arena = arena, .missing_data = source->missing_data}};
    enum hd_status st;

    *ret_job = HD_JOB(.arena = arena, .only_planned = source->only_planned,
                      .layout_follows = source->layout_follows);
    hd_arena_init(&r.arena, TREE_BYTES_MAX);
    r.mistakes.arena = &r.arena;
    st = spec_rename_overrides(&renamed, &r.arena);
    if (!st)
        st = read_spec(&r, &renamed);
    if (!st && !source->is_stored)
        st = keep_text(source, arena, ret_job);
    hd_arena_done(&r.arena);
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
            return HD_OK; /* the file is too large; the parser reports that */
    }
    return HD_OK;
}

/* Sets *ret_folder to the absolute path of the job file's folder. */
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
        return hd_err(HD_IO, "cannot get the working directory: %s", strerror(errno));
    hd_text_add(ret_folder, "%s", cwd);
    if (slash)
        hd_text_add(ret_folder, "/%.*s", (int)(slash - path), path);
    free(cwd);
    return HD_OK;
}

enum hd_status hd_spec_read_file(const char *path, const struct hd_spec_source *options,
                                 struct hd_arena *arena, struct hd_job *ret_job)
{
    struct hd_spec_source source = *options;
    bool from_stdin = strcmp(path, "-") == 0;
    struct hd_text bytes = {0}, folder = {0};
    struct stat info;
    bool there;
    enum hd_status st;

    source.name = from_stdin ? "standard input" : path;
    there = !from_stdin && stat(path, &info) == 0;
    if (there && S_ISDIR(info.st_mode))
        return hd_err(HD_INVALID, "%s is a folder; give the job file, such as %s%sjob.yaml", path,
                      path, path[strlen(path) - 1] == '/' ? "" : "/");
    if (there && hd_data_name_kind(path) != HD_DATA_TEXT)
        return hd_err(HD_INVALID,
                      "%s is a file of data; give the job file, which names it: data: "
                      "{train: [%s]}",
                      path, path);
    st = from_stdin
             ? read_stdin(&bytes)
             : hd_file_read_stream(path, HD_SPEC_FILE_BYTES_MAX, HD_FILE_PATIENCE_MS, &bytes);
    if (st == HD_LIMIT)
        st = hd_err(HD_INVALID, "%s: larger than 256 KiB, the limit of a job file", path);
    if (!st)
        st = folder_of(from_stdin ? "x" : path, &folder);
    if (!st && (bytes.failed || folder.failed))
        st = hd_err(HD_NO_MEMORY, "no memory to read %s", source.name);
    if (!st) {
        source.folder = folder.data;
        source.bytes = bytes.data ? bytes.data : "";
        source.size_bytes = bytes.len_bytes;
        st = hd_spec_read_yaml(&source, arena, ret_job);
    }
    hd_text_free(&bytes);
    hd_text_free(&folder);
    return st;
}
