#include "train/rollout_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/hash.h"

static const char magic[8] = "HDROLL1", part[] = ".part";

enum { RECORD_BYTES_MAX = 1 << 30, ANSWERS = 1, REWARDS = 2 };

struct hd_rollout_file {
    int fd;
    struct hd_rollout_header header;
    struct hd_text record;           /* reused */
    char path[HD_JOB_PATH_MAX + 64]; /* with `part` until it is published */
};

/* In front of the bytes of a record. */
struct record_head {
    int32_t kind, reserved;
    int64_t size_bytes; /* of the bytes behind this head */
    uint64_t hash;      /* of these bytes */
};

/* In front of the ids and log-probabilities of an answer. */
struct answer_head {
    int64_t count;
    int64_t end; /* enum hd_rollout_end */
};

/* ---- writing ---- */

static enum hd_status append_record(struct hd_rollout_file *f, int32_t kind)
{
    const struct record_head head = {.kind = kind,
                                     .size_bytes = (int64_t)f->record.len_bytes,
                                     .hash = hd_hash_bytes(f->record.data, f->record.len_bytes)};
    enum hd_status st;

    if (f->record.failed)
        return hd_err(HD_NO_MEMORY, "no memory for a record of answers");
    st = hd_file_write_all(f->fd, &head, sizeof head);
    if (!st)
        st = hd_file_write_all(f->fd, f->record.data, f->record.len_bytes);
    if (!st && fsync(f->fd) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot flush: %s", hd_file_error_text(errno));
    return st ? hd_err_prefix(st, "%s", f->path) : HD_OK;
}

enum hd_status hd_rollout_file_create(const char *dir, int64_t rank,
                                      const struct hd_rollout_header *header,
                                      struct hd_rollout_file **ret_file)
{
    struct hd_rollout_file *f = calloc(1, sizeof *f);
    enum hd_status st = HD_OK;

    if (!f)
        return hd_err(HD_NO_MEMORY, "no memory for a file of answers");
    f->header = *header;
    (void)snprintf(f->path, sizeof f->path, "%s/%lld.%lld%s", dir, (long long)header->step,
                   (long long)rank, part);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0664);
    if (f->fd < 0)
        st = hd_err(hd_file_write_status(errno), "cannot create %s: %s", f->path,
                    hd_file_error_text(errno));
    if (!st) {
        hd_text_add_bytes(&f->record, magic, sizeof magic);
        hd_text_add_bytes(&f->record, (const char *)header, sizeof *header);
        st = append_record(f, 0);
    }
    if (st)
        hd_rollout_file_close(f);
    else
        *ret_file = f;
    return st;
}

enum hd_status hd_rollout_file_publish(struct hd_rollout_file *f)
{
    char name[sizeof f->path];

    (void)snprintf(name, sizeof name, "%.*s", (int)(strlen(f->path) - strlen(part)), f->path);
    if (rename(f->path, name) < 0)
        return hd_err(hd_file_write_status(errno), "cannot rename %s: %s", f->path,
                      hd_file_error_text(errno));
    memcpy(f->path, name, sizeof name);
    return hd_folder_sync_of(name);
}

enum hd_status hd_rollout_file_add(struct hd_rollout_file *f, int64_t index,
                                   const struct hd_rollout_sequence *answers)
{
    hd_text_clear(&f->record);
    hd_text_add_bytes(&f->record, (const char *)&index, sizeof index);
    for (int64_t i = 0; i < f->header.group; i++) {
        const struct answer_head head = {answers[i].count, (int64_t)answers[i].end};

        hd_text_add_bytes(&f->record, (const char *)&head, sizeof head);
        hd_text_add_bytes(&f->record, (const char *)answers[i].ids,
                          (size_t)head.count * sizeof *answers->ids);
        hd_text_add_bytes(&f->record, (const char *)answers[i].log_probabilities,
                          (size_t)head.count * sizeof *answers->log_probabilities);
    }
    return append_record(f, ANSWERS);
}

enum hd_status hd_rollout_file_rate(struct hd_rollout_file *f, int64_t index, const double *rewards)
{
    hd_text_clear(&f->record);
    hd_text_add_bytes(&f->record, (const char *)&index, sizeof index);
    hd_text_add_bytes(&f->record, (const char *)rewards,
                      (size_t)(f->header.group * f->header.rewards) * sizeof *rewards);
    return append_record(f, REWARDS);
}

void hd_rollout_file_close(struct hd_rollout_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        (void)close(f->fd);
    hd_text_free(&f->record);
    free(f);
}

/* ---- reading ---- */

/* Groups while they are read. */
struct group_list {
    struct hd_arena *arena;
    const struct hd_rollout_header *header;
    struct hd_rollout_group *groups;
    int64_t count;
    int capacity;
};

static struct hd_rollout_group *find_group(const struct group_list *l, int64_t index)
{
    for (int64_t i = 0; i < l->count; i++)
        if (l->groups[i].index == index)
            return &l->groups[i];
    return NULL;
}

/* Takes `size_bytes` bytes from the cursor; NULL: there are fewer. */
static const void *take_bytes(const char **at, const char *end, size_t size_bytes)
{
    const char *here = *at;

    if ((size_t)(end - here) < size_bytes)
        return NULL;
    *at += size_bytes;
    return here;
}

static bool read_recorded_answer(const struct group_list *l, const char **at, const char *end,
                                 struct hd_rollout_sequence *ret)
{
    struct answer_head head;
    const void *bytes = take_bytes(at, end, sizeof head);

    if (!bytes)
        return false;
    memcpy(&head, bytes, sizeof head);
    if (head.count < 0 || head.count > l->header->max_tokens || head.end < 0 ||
        head.end > HD_ROLLOUT_NOT_FINITE)
        return false;
    ret->count = head.count;
    ret->end = (enum hd_rollout_end)head.end;
    ret->ids = hd_arena_array(l->arena, (size_t)head.count + 1, sizeof *ret->ids);
    ret->log_probabilities =
        hd_arena_array(l->arena, (size_t)head.count + 1, sizeof *ret->log_probabilities);
    bytes = take_bytes(at, end, (size_t)head.count * sizeof *ret->ids);
    if (!bytes || hd_arena_failed(l->arena))
        return false;
    memcpy(ret->ids, bytes, (size_t)head.count * sizeof *ret->ids);
    bytes = take_bytes(at, end, (size_t)head.count * sizeof *ret->log_probabilities);
    if (bytes)
        memcpy(ret->log_probabilities, bytes, (size_t)head.count * sizeof *ret->log_probabilities);
    return bytes != NULL;
}

static bool take_answers(struct group_list *l, int64_t index, const char *at, const char *end)
{
    struct hd_rollout_group group = {.index = index};

    group.answers = hd_arena_array(l->arena, (size_t)l->header->group, sizeof *group.answers);
    for (int64_t i = 0; i < l->header->group; i++)
        if (!group.answers || !read_recorded_answer(l, &at, end, &group.answers[i]))
            return false;
    if (find_group(l, index))
        return true;
    l->groups = hd_arena_grow(l->arena, l->groups, (int)l->count, &l->capacity, sizeof *l->groups);
    if (!l->groups)
        return false;
    l->groups[l->count++] = group;
    return true;
}

static bool take_rewards(struct group_list *l, int64_t index, const char *at, const char *end)
{
    const size_t bytes = (size_t)(l->header->group * l->header->rewards) * sizeof(double);
    struct hd_rollout_group *group = find_group(l, index);
    double *rewards = hd_arena_alloc(l->arena, bytes);

    if (!group || !rewards || (size_t)(end - at) != bytes)
        return false;
    memcpy(rewards, at, bytes);
    if (!group->rewards)
        group->rewards = rewards;
    return true;
}

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Returns whether a file with this first record is one of the step, written with the same weights. */
static bool is_of_step(const char *bytes, size_t size_bytes, const struct hd_rollout_header *header,
                       bool any_weights)
{
    struct hd_rollout_header is;

    if (size_bytes != sizeof magic + sizeof is || memcmp(bytes, magic, sizeof magic) != 0)
        return false;
    memcpy(&is, bytes + sizeof magic, sizeof is);
    return is.step == header->step && is.group == header->group &&
           is.max_tokens == header->max_tokens && is.rewards == header->rewards &&
           is.settings == header->settings &&
           (any_weights ||
            (same_bits(is.loss, header->loss) && same_bits(is.grad_norm, header->grad_norm) &&
             is.update == header->update));
}

/* Reads the records of one file, up to the first that is cut or damaged. */
static void read_records(const struct hd_text *file, bool any_weights, struct group_list *l)
{
    const char *at = file->data, *end = at + file->len_bytes;
    bool first = true;

    for (;;) {
        struct record_head head;
        const void *bytes = take_bytes(&at, end, sizeof head);
        int64_t index;

        if (!bytes)
            return;
        memcpy(&head, bytes, sizeof head);
        if (head.size_bytes < (int64_t)sizeof index || head.size_bytes > RECORD_BYTES_MAX ||
            !(bytes = take_bytes(&at, end, (size_t)head.size_bytes)) ||
            hd_hash_bytes(bytes, (size_t)head.size_bytes) != head.hash)
            return;
        if (first && !is_of_step(bytes, (size_t)head.size_bytes, l->header, any_weights))
            return;
        memcpy(&index, bytes, sizeof index);
        if (head.kind == ANSWERS && !take_answers(l, index, (const char *)bytes + sizeof index,
                                                  (const char *)bytes + head.size_bytes))
            return;
        if (head.kind == REWARDS && !take_rewards(l, index, (const char *)bytes + sizeof index,
                                                  (const char *)bytes + head.size_bytes))
            return;
        first = false;
    }
}

/* Reads STEP of a name; returns false for another file. *ret_part: it is not published. */
static bool is_rollout_name(const char *name, long long *ret_step, bool *ret_part)
{
    long long rank;
    int len = 0;

    if (sscanf(name, "%lld.%lld%n", ret_step, &rank, &len) != 2)
        return false;
    *ret_part = strcmp(name + len, part) == 0;
    return !name[len] || *ret_part;
}

static int by_index(const void *a, const void *b)
{
    const struct hd_rollout_group *x = a, *y = b;

    return x->index < y->index ? -1 : x->index > y->index;
}

enum hd_status hd_rollout_files_read(const char *dir, const struct hd_rollout_header *header,
                                     bool any_weights, struct hd_arena *arena,
                                     struct hd_rollout_group **ret_groups, int64_t *ret_count)
{
    struct group_list l = {.arena = arena, .header = header};
    DIR *folder = opendir(dir);
    const struct dirent *entry;
    long long step;
    bool is_part;

    while (folder && (entry = readdir(folder))) {
        char path[HD_JOB_PATH_MAX + 320];
        struct hd_text file = {0};

        if (!is_rollout_name(entry->d_name, &step, &is_part) || is_part || step != header->step)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (!hd_file_read(path, RECORD_BYTES_MAX, &file) && file.data)
            read_records(&file, any_weights, &l);
        hd_text_free(&file);
    }
    if (folder)
        (void)closedir(folder);
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for the answers of step %lld",
                      (long long)header->step);
    if (l.count)
        qsort(l.groups, (size_t)l.count, sizeof *l.groups, by_index);
    *ret_groups = l.groups;
    *ret_count = l.count;
    return HD_OK;
}

void hd_rollout_files_remove(const char *dir, int64_t first, int64_t last)
{
    DIR *folder = opendir(dir);
    const struct dirent *entry;
    long long step;
    bool is_part;

    while (folder && (entry = readdir(folder)))
        if (is_rollout_name(entry->d_name, &step, &is_part) && (step < first || step > last))
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        (void)closedir(folder);
}
