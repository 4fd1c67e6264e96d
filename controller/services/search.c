/* search: lists the complete checkpoints of an attempt whose node was lost, from its folder in the
 * jobs directory. In a thread of libuv's pool: a network file system may not answer for long. */
#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "controller/services/internal.h"

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

/* HD_NOT_FOUND, HD_IO: it has been removed meanwhile, or cannot be read. */
static enum hd_status read_place(struct ckpt_search *s, const struct hd_ckpt_place *place)
{
    struct hd_ckpt_summary summary;
    struct hd_checkpoint_record *record = &s->checkpoints[s->count];
    const enum hd_status st = hd_ckpt_summarize(place->path, &summary);

    if (st)
        return st;
    *record = (struct hd_checkpoint_record){
        .attempt = s->attempt,
        .step = place->step,
        .path = hd_arena_strdup(&s->arena, place->path),
        .hash = hd_arena_strdup(&s->arena, summary.hash),
        .time_ms = summary.time_ms,
        .size_bytes = summary.size_bytes,
        .val_loss = summary.val_loss,
    };
    s->count += record->path && record->hash;
    return HD_OK;
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
