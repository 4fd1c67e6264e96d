/* search: lists the complete checkpoints of an attempt whose node was lost, from its folder in the
 * jobs directory. In a thread of libuv's pool: a network file system may not answer for long. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "controller/services/internal.h"

enum { MANIFEST_BYTES_MAX = 64 << 20 };

struct ckpt_search {
    uv_work_t work;
    struct controller *c; /* NULL: it has been stopped */
    struct ckpt_search *next;
    uint64_t job;
    int32_t attempt;
    struct hd_arena arena;
    const char *attempt_dir;
    struct hd_checkpoint_record *checkpoints;
    size_t count;
    struct hd_error error;
};

static int64_t folder_bytes(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *entry;
    struct stat info;
    int64_t sum = 0;

    while (d && (entry = readdir(d)))
        if (fstatat(dirfd(d), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode))
            sum += info.st_size;
    if (d)
        (void)closedir(d);
    return sum;
}

/* HD_NOT_FOUND, HD_IO: it has been removed meanwhile, or cannot be read. */
static enum hd_status read_place(struct ckpt_search *s, const struct hd_ckpt_place *place)
{
    struct hd_checkpoint_record *record = &s->checkpoints[s->count];
    const char *name = hd_arena_printf(&s->arena, "%s/manifest.json", place->path);
    char hash[HD_HASH_TEXT_MAX];
    struct hd_text manifest = {0};
    struct stat info;
    enum hd_status st;

    if (!name)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", place->path);
    st = hd_file_read(name, MANIFEST_BYTES_MAX, &manifest);
    if (!st && stat(name, &info) < 0)
        st = hd_err(HD_IO, "cannot examine %s", name);
    if (!st) {
        hd_hash_format(hd_hash_bytes(manifest.data, manifest.len_bytes), hash);
        *record = (struct hd_checkpoint_record){
            .attempt = s->attempt,
            .step = place->step,
            .path = hd_arena_strdup(&s->arena, place->path),
            .hash = hd_arena_strdup(&s->arena, hash),
            .time_ms = (int64_t)info.st_mtim.tv_sec * 1000,
            .size_bytes = folder_bytes(place->path),
        };
        s->count += record->path && record->hash;
    }
    hd_text_free(&manifest);
    return st;
}

static void list(uv_work_t *work)
{
    struct ckpt_search *s = work->data;
    struct hd_ckpt_place *places = NULL;
    size_t count = 0, first;
    enum hd_status st = hd_ckpt_list(s->attempt_dir, &places, &count);

    s->checkpoints = st ? NULL : hd_arena_array(&s->arena, count + 1, sizeof *s->checkpoints);
    if (!st && !s->checkpoints)
        st = hd_err(HD_NO_MEMORY, "no memory for a list of %zu checkpoints", count);
    first = count > HD_CTL_CHECKPOINTS_MAX ? count - HD_CTL_CHECKPOINTS_MAX : 0;
    for (size_t i = first; !st && i < count; i++)
        (void)read_place(s, &places[i]); /* what cannot be read now is not started from */
    hd_ckpt_places_free(places, count);
    hd_err_save(st, &s->error);
}

static void unlink_search(struct ckpt_search *s)
{
    struct ckpt_search **at = &s->c->searches;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
}

static void listed(uv_work_t *work, int status)
{
    struct ckpt_search *s = work->data;
    struct controller *c = s->c;
    const struct hd_core_event event = {
        .kind = HD_CORE_FOUND,
        .found = {.job = s->job,
                  .attempt = s->attempt,
                  .checkpoints = s->checkpoints,
                  .checkpoint_count = s->count,
                  .problem = s->error.status ? s->error.message : ""}};

    if (c)
        unlink_search(s);
    if (c && !c->stopping && !status) {
        turn_begin(c);
        (void)turn_step(c, &event);
        turn_end(c);
    }
    hd_arena_done(&s->arena);
    free(s);
}

void search_begin(struct controller *c, uint64_t job, int32_t attempt)
{
    struct ckpt_search *s = calloc(1, sizeof *s);

    if (!s)
        return; /* the core stops waiting after search_timeout_ms */
    hd_arena_init(&s->arena, 0);
    s->c = c;
    s->job = job;
    s->attempt = attempt;
    s->work.data = s;
    s->attempt_dir = convert_attempt_dir(&s->arena, c, job, attempt);
    if (s->attempt_dir && uv_queue_work(c->loop, &s->work, list, listed) == 0) {
        s->next = c->searches;
        c->searches = s;
        return;
    }
    hd_arena_done(&s->arena);
    free(s);
}

void search_forget_all(struct controller *c)
{
    for (; c->searches; c->searches = c->searches->next)
        c->searches->c = NULL;
}
