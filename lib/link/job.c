#include "link/job.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const char magic[] = "HEDDLE-JOB 1";

enum field_kind { WORD, PATH, INT, REAL, BOOL };

struct field {
    enum field_kind kind;
    const char *key;
    size_t offset;
    double min, max;
};

static const struct field fields[] = {
#define X(kind, member, key, min, max) \
    {kind, key, offsetof(struct hd_job, member), (double)(min), (double)(max)},
    HD_JOB_FIELDS(X)
#undef X
};
enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

static bool is_one_line(const char *text)
{
    return !strpbrk(text, "\n\r");
}

static enum hd_status write_field(const struct hd_job *job, const struct field *f,
                                  struct hd_text *ret_text)
{
    const void *p = (const char *)job + f->offset;

    switch (f->kind) {
    case WORD:
        if (!*(const char *)p || strpbrk(p, " \t\n\r"))
            return hd_err(HD_INVALID, "%s: '%s' is not one word", f->key, (const char *)p);
        hd_text_add(ret_text, "%s %s\n", f->key, (const char *)p);
        break;
    case PATH:
        if (!is_one_line(p))
            return hd_err(HD_INVALID, "%s: a path may not contain a line break", f->key);
        hd_text_add(ret_text, "%s %s\n", f->key, (const char *)p);
        break;
    case INT:
        hd_text_add(ret_text, "%s %lld\n", f->key, (long long)*(const int64_t *)p);
        break;
    case REAL:
        hd_text_add(ret_text, "%s %.17g\n", f->key, *(const double *)p);
        break;
    case BOOL:
        hd_text_add(ret_text, "%s %d\n", f->key, *(const bool *)p);
        break;
    }
    return HD_OK;
}

/* `weights`: of a mixture's sources; NULL: the files are no mixture. */
static enum hd_status write_files(const char *key, const struct hd_job_file *files, int64_t count,
                                  const double *weights, struct hd_text *ret_text)
{
    for (int64_t i = 0; i < count; i++) {
        if (weights && (i == 0 || files[i].source != files[i - 1].source))
            hd_text_add(ret_text, "data.source %.17g\n", weights[files[i].source]);
        if (!is_one_line(files[i].path))
            return hd_err(HD_INVALID, "%s: a path may not contain a line break", key);
        hd_text_add(ret_text, "%s %lld %s\n", key, (long long)files[i].size_bytes, files[i].path);
    }
    return HD_OK;
}

enum hd_status hd_job_write(const struct hd_job *job, struct hd_text *ret_text)
{
    enum hd_status st = HD_OK;

    hd_text_add(ret_text, "%s\n", magic);
    for (int i = 0; !st && i < FIELD_COUNT; i++)
        st = write_field(job, &fields[i], ret_text);
    if (!st)
        st = write_files("data.train", job->train, job->train_count,
                         job->weight_count ? job->weights : NULL, ret_text);
    if (!st)
        st = write_files("data.val", job->val, job->val_count, NULL, ret_text);
    hd_text_add(ret_text, "end\n");
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory to write the resolved job");
    return st;
}

static enum hd_status copy_text(const char *value, char *ret_text, size_t size_bytes)
{
    if (strlen(value) >= size_bytes)
        return hd_err(HD_INVALID, "longer than %zu bytes", size_bytes - 1);
    memcpy(ret_text, value, strlen(value) + 1);
    return HD_OK;
}

static enum hd_status read_field(struct hd_job *job, const struct field *f, const char *value)
{
    void *p = (char *)job + f->offset;
    enum hd_status st;
    int64_t i;

    switch (f->kind) {
    case WORD:
        if (!*value || strpbrk(value, " \t"))
            return hd_err(HD_INVALID, "'%s' is not one word", value);
        return copy_text(value, p, HD_JOB_WORD_MAX);
    case PATH:
        return copy_text(value, p, HD_JOB_PATH_MAX);
    case INT: /* a double holds every bound but INT64_MAX, which stands for itself */
        return hd_text_to_int64(value, (int64_t)f->min,
                                f->max >= 0x1p63 ? INT64_MAX : (int64_t)f->max, p);
    case REAL:
        return hd_text_to_double(value, f->min, f->max, p);
    case BOOL:
        st = hd_text_to_int64(value, 0, 1, &i);
        if (!st)
            *(bool *)p = i;
        return st;
    }
    return HD_OK;
}

/* A list while it is read: doubled in the arena, old copies stay behind until the arena goes. */
struct file_list {
    struct hd_job_file *items;
    int64_t count, room;
};

static enum hd_status add_file(struct file_list *list, struct hd_arena *arena, int64_t source,
                               char *value)
{
    char *blank = strchr(value, ' ');
    enum hd_status st;
    int64_t size;

    if (!blank || blank[1] != '/')
        return hd_err(HD_INVALID, "expected a size and an absolute path");
    *blank = '\0';
    st = hd_text_to_int64(value, 0, INT64_MAX, &size);
    if (st)
        return st;
    if (list->count == list->room) {
        int64_t room = list->room ? 2 * list->room : 16;
        struct hd_job_file *items = hd_arena_array(arena, (size_t)room, sizeof *items);

        if (!items)
            return hd_err(HD_NO_MEMORY, "no memory for %lld files", (long long)room);
        if (list->count)
            memcpy(items, list->items, (size_t)list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] =
        (struct hd_job_file){hd_arena_strdup(arena, blank + 1), size, source};
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

struct reader {
    struct hd_arena *arena;
    struct hd_job *job;
    struct file_list train, val;
    double *weights; /* [HD_JOB_SOURCES_MAX], once there is one */
    int64_t weight_count;
    bool seen[FIELD_COUNT];
};

/* The files that follow belong to this source; the one before has files, or there is none. */
static enum hd_status add_source(struct reader *r, const char *value)
{
    const int64_t last = r->train.count ? r->train.items[r->train.count - 1].source : -1;

    if (r->weight_count ? last != r->weight_count - 1 : last != -1)
        return hd_err(HD_INVALID, "a source without files, or files before the first source");
    if (!r->weights)
        r->weights = hd_arena_array(r->arena, HD_JOB_SOURCES_MAX, sizeof *r->weights);
    if (!r->weights)
        return hd_err(HD_NO_MEMORY, "no memory for the weights of a mixture");
    if (r->weight_count == HD_JOB_SOURCES_MAX)
        return hd_err(HD_LIMIT, "more than %d sources", HD_JOB_SOURCES_MAX);
    return hd_text_to_double(value, 1e-9, 1e9, &r->weights[r->weight_count++]);
}

static enum hd_status read_line(struct reader *r, char *line)
{
    char *value = strchr(line, ' ');

    if (!value)
        return hd_err(HD_INVALID, "'%s' has no value", line);
    *value++ = '\0';
    if (strcmp(line, "data.train") == 0)
        return add_file(&r->train, r->arena, r->weight_count ? r->weight_count - 1 : 0, value);
    if (strcmp(line, "data.source") == 0)
        return add_source(r, value);
    if (strcmp(line, "data.val") == 0)
        return add_file(&r->val, r->arena, 0, value);
    for (int i = 0; i < FIELD_COUNT; i++) {
        enum hd_status st;

        if (strcmp(line, fields[i].key) != 0)
            continue;
        if (r->seen[i])
            return hd_err(HD_INVALID, "%s stands twice", line);
        r->seen[i] = true;
        st = read_field(r->job, &fields[i], value);
        return st ? hd_err_prefix(st, "%s", line) : HD_OK;
    }
    return hd_err(HD_INVALID, "unknown key '%s'", line);
}

/* Keys that the jobs of older checkpoints do not have: those ran as with zero. */
static bool came_later(const char *key)
{
    return strcmp(key, "train.tf32") == 0 || strcmp(key, "train.deterministic") == 0 ||
           strcmp(key, "train.native_reduction") == 0;
}

enum hd_status hd_job_read(const char *text, size_t size_bytes, struct hd_arena *arena,
                           struct hd_job *ret_job)
{
    struct reader r = {.arena = arena, .job = ret_job};
    char *copy = hd_arena_alloc(arena, size_bytes + 1), *line, *next;
    bool ended = false;

    *ret_job = (struct hd_job){0};
    if (!copy)
        return hd_err(HD_NO_MEMORY, "no memory for a resolved job of %zu bytes", size_bytes);
    memcpy(copy, text, size_bytes);
    if (!hd_text_is_utf8(copy, size_bytes))
        return hd_err(HD_INVALID, "the resolved job is not UTF-8 text");
    line = copy;
    for (int number = 1; *line; number++, line = next) {
        enum hd_status st = HD_OK;

        next = strchr(line, '\n');
        if (!next || ended)
            return hd_err(HD_INVALID, "line %d: the resolved job must end with 'end'", number);
        *next++ = '\0';
        if (number == 1 && strcmp(line, magic) != 0)
            st = hd_err(HD_INVALID, "not a resolved job of this version: expected '%s'", magic);
        else if (number > 1 && strcmp(line, "end") == 0)
            ended = true;
        else if (number > 1)
            st = read_line(&r, line);
        if (st)
            return hd_err_prefix(st, "line %d", number);
    }
    if (!ended)
        return hd_err(HD_INVALID, "the resolved job is cut short");
    for (int i = 0; i < FIELD_COUNT; i++)
        if (!r.seen[i] && !came_later(fields[i].key))
            return hd_err(HD_INVALID, "the resolved job lacks %s", fields[i].key);
    ret_job->train = r.train.items;
    ret_job->train_count = r.train.count;
    ret_job->val = r.val.items;
    ret_job->val_count = r.val.count;
    ret_job->weights = r.weights;
    ret_job->weight_count = r.weight_count;
    if (r.weight_count &&
        (!r.train.count || r.train.items[r.train.count - 1].source != r.weight_count - 1))
        return hd_err(HD_INVALID, "the resolved job's last data.source has no files");
    return HD_OK;
}

enum hd_status hd_job_read_file(const char *path, struct hd_arena *arena, struct hd_job *ret_job)
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, HD_JOB_FILE_BYTES_MAX, &text);

    if (!st)
        st = hd_job_read(text.data, text.len_bytes, arena, ret_job);
    if (st)
        st = hd_err_prefix(st, "%s", path);
    hd_text_free(&text);
    return st;
}
