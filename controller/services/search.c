/* search: lists a job's complete checkpoints in the jobs directory: of one attempt whose node was
 * lost or, where stored checkpoints are missing, of all attempts. Runs in libuv's thread pool,
 * because a network file system may not respond for long.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "controller/services/internal.h"

struct ckpt_search {
    uv_work_t work;
    struct controller *c; /* NULL: the controller was freed; the result is dropped */
    struct ckpt_search *next;
    struct hd_core_search asked;
    struct hd_arena arena;
    const char *job_dir;
    struct hd_checkpoint_record *checkpoints; /* [HD_CTL_CHECKPOINTS_MAX + 1] */
    size_t count;
    bool cut; /* older checkpoints were left out of the list */
    struct hd_error error;
};

/* Appends the summary of one checkpoint. HD_NOT_FOUND: it was removed meanwhile. HD_IO: it cannot
 * be read. */
static enum hd_status read_place(struct ckpt_search *s, int32_t attempt,
                                 const struct hd_ckpt_place *place)
{
    struct hd_ckpt_summary summary;
    struct hd_checkpoint_record *record = &s->checkpoints[s->count];
    const enum hd_status st = hd_ckpt_summarize(place->path, &summary);

    if (st)
        return st;
    *record = (struct hd_checkpoint_record){
        .attempt = attempt,
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

/* Lists the checkpoints of one attempt; with too many, the newest. An unreadable one is left out,
 * so no attempt starts from it; but if the list must be whole, the listing fails, because an
 * unreadable checkpoint must not be reported as missing. */
static enum hd_status list_attempt(struct ckpt_search *s, int32_t attempt)
{
    const char *dir = hd_arena_printf(&s->arena, "%s/attempt-%" PRId32, s->job_dir, attempt);
    struct hd_ckpt_place *places = NULL;
    size_t count = 0, room = HD_CTL_CHECKPOINTS_MAX - s->count, first;
    enum hd_status st = dir ? hd_ckpt_list(dir, &places, &count)
                            : hd_err(HD_NO_MEMORY, "no memory for the folder of an attempt");

    first = count > room ? count - room : 0;
    s->cut |= first > 0;
    for (size_t i = first; !st && i < count; i++) {
        st = read_place(s, attempt, &places[i]);
        if (st == HD_NOT_FOUND || !s->asked.whole)
            st = HD_OK;
    }
    hd_ckpt_places_free(places, count);
    return st;
}

static void list(uv_work_t *work)
{
    struct ckpt_search *s = work->data;
    const int32_t oldest = s->asked.whole ? 1 : s->asked.attempt;
    enum hd_status st = HD_OK;

    s->checkpoints = hd_arena_array(&s->arena, HD_CTL_CHECKPOINTS_MAX + 1, sizeof *s->checkpoints);
    if (!s->checkpoints)
        st = hd_err(HD_NO_MEMORY, "no memory for a list of checkpoints");
    else if (s->asked.whole && !hd_file_exists(s->job_dir))
        st = hd_err(HD_NOT_FOUND, "the controller does not see the job's folder, %s", s->job_dir);
    for (int32_t k = s->asked.attempt; !st && k >= oldest; k--)
        st = list_attempt(s, k);
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
        .found = {.job = s->asked.job,
                  .attempt = s->asked.attempt,
                  .whole = s->asked.whole,
                  .cut = s->cut,
                  .checkpoints = s->checkpoints,
                  .checkpoint_count = s->count,
                  .problem = s->error.status ? s->error.message : ""}};

    if (c)
        unlink_search(s);
    if (c && !c->stopping && !status) {
        transaction_begin(c);
        (void)transaction_step(c, &event);
        transaction_end(c);
    }
    hd_arena_done(&s->arena);
    free(s);
}

void search_begin(struct controller *c, const struct hd_core_search *asked)
{
    struct ckpt_search *s = calloc(1, sizeof *s);

    if (!s)
        return; /* the core stops waiting after search_timeout_ms */
    hd_arena_init(&s->arena, 0);
    s->c = c;
    s->asked = *asked;
    s->work.data = s;
    s->job_dir = convert_job_dir(&s->arena, c, asked->job);
    if (s->job_dir && uv_queue_work(c->loop, &s->work, list, listed) == 0) {
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
