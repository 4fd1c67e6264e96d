/* search_candidates: the heap of the candidates that are still to be refined, the lowest bound on top;
 * the layout of a candidate, whose undecided members are those of the job's request; and whether the
 * search may reject layouts for their memory, and may offload. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/optim.h"
#include "plan/search_internal.h"

static const char *const recomputes[] = {"none", "selective", "full"};
static const char *const schedules[] = {"none", "1f1b", "interleaved", "zb-h1", "zb-v", "gpipe"};
static const enum hd_job_offload offloads[] = {HD_JOB_OFFLOAD_NONE, HD_JOB_OFFLOAD_OPTIMIZER};

/* ---- the heap ---- */

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    const double first = a->bound_s + a->rollout_s, second = b->bound_s + b->rollout_s;

    if (first != second)
        return first < second;
    if (a->decided != b->decided)
        /* among equal bounds, the candidate nearest to completion comes first */
        return a->decided > b->decided;
    return a->tie_break < b->tie_break;
}

void search_push(struct layout_search *s, const struct candidate *c)
{
    int64_t i = s->count;

    if (s->count == s->capacity) {
        const int64_t capacity = s->capacity ? 2 * s->capacity : 1024;
        struct candidate *heap = realloc(s->heap, (size_t)capacity * sizeof *heap);

        if (!heap) {
            s->st = hd_err(HD_NO_MEMORY, "no memory to search layouts");
            return;
        }
        s->heap = heap;
        s->capacity = capacity;
    }
    s->count++;
    while (i > 0 && is_before(c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = *c;
}

struct candidate search_pop(struct layout_search *s)
{
    const struct candidate first = s->heap[0], last = s->heap[--s->count];
    int64_t i = 0;

    for (int64_t child = 1; child < s->count; child = 2 * i + 1) {
        if (child + 1 < s->count && is_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!is_before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return first;
}

/* ---- layouts ---- */

static void set_word(char word[HD_JOB_WORD_MAX], const char *text)
{
    (void)snprintf(word, HD_JOB_WORD_MAX, "%s", text);
}

/* Writes a partition into stages in the form of parallel.layers_per_stage. */
static void write_stages(const struct search_partition *partition, char ret_text[HD_JOB_WORD_MAX])
{
    const int32_t chunks = partition->even->step.pipeline.chunks;
    int64_t layers[HD_PLAN_CHUNKS_MAX];

    for (int32_t c = 0; c < chunks; c++)
        layers[c] =
            partition->units[c].end - partition->units[c].first - (c == 0) - (c == chunks - 1);
    (void)hd_stages_write(layers, chunks, ret_text);
}

/* Returns the job's request with the values that the candidate has decided; values that the job
 * pins are already in it. */
static struct hd_plan_request request_of(const struct layout_search *s, const struct candidate *c)
{
    struct hd_plan_request r = *s->asked->request;

    r.sizes.pp = c->pp;
    r.sizes.tp = c->tp;
    r.sizes.cp = c->cp;
    r.sizes.ep = c->ep;
    r.sizes.micro_batch = c->micro_batch;
    if (c->recompute < SEGMENTS)
        set_word(r.sizes.recompute, recomputes[c->recompute]);
    if (c->recompute == SEGMENTS)
        (void)snprintf(r.sizes.recompute, sizeof r.sizes.recompute, "full:%d", (int)c->segment);
    if (c->decided >= DECIDED_SCHEDULE) {
        if (c->schedule < PINNED_SCHEDULE)
            set_word(r.sizes.schedule, schedules[c->schedule]);
        r.sizes.virtual_stages = c->virtual_stages;
    }
    if (c->own) /* the text always fits: partitions are searched only if there are few chunks */
        write_stages(c->own, r.sizes.stages);
    if (c->decided >= DECIDED_SEGMENTS) {
        r.sizes.zero = c->zero;
        r.sizes.zero_shard = c->zero_shard;
        if (c->offload < OFFLOADS)
            r.sizes.offload = offloads[c->offload];
    }
    return r;
}

bool search_size(const struct layout_search *s, const struct candidate *c,
                 struct hd_layout_sizes *sizes)
{
    const struct hd_plan_request r = request_of(s, c);

    if (!hd_plan_size_searched(&r, s->asked->devices, sizes))
        return false;
    hd_plan_decide_device(sizes->device, s->asked->bf16_fast, s->asked->threads, sizes);
    return true;
}

/* Orders simple layouts first: without offload, then by pp, tp, cp, recompute, large micro-batches,
 * then by ZeRO and schedule. */
uint64_t search_tie_break(const struct candidate *c)
{
    return (uint64_t)(c->own || c->offload == OFFLOAD_OPTIMIZER) << 63 |
           ((((((((uint64_t)c->recompute << 10 | (uint64_t)(c->cp & 1023)) << 10) |
                (uint64_t)(c->pp & 1023))
               << 10) |
              (uint64_t)(c->tp & 1023))
             << 8) |
            (uint64_t)(255 - (c->micro_batch & 255)))
               << 6 |
           (uint64_t)(c->zero << 3) | (uint64_t)c->schedule;
}

static unsigned axes_of(bool pp, bool tp, bool ep, bool cp, bool host)
{
    return (unsigned)pp | (unsigned)tp << 1 | (unsigned)ep << 2 | (unsigned)cp << 3 |
           (unsigned)host << 4;
}

unsigned hd_search_axes(const struct hd_layout_sizes *z)
{
    return axes_of(z->pp > 1, z->tp > 1, z->ep > 1, z->cp > 1,
                   z->offload == HD_JOB_OFFLOAD_OPTIMIZER);
}

const char *hd_search_axis_spared(const struct hd_layout_sizes *more,
                                  const struct hd_layout_sizes *fewer)
{
    static const char *const names[] = {"pp", "tp", "ep", "cp", "an optimizer on the host"};
    const unsigned spared = hd_search_axes(more) & ~hd_search_axes(fewer);
    int name = 4;

    while (name > 0 && !(spared & 1u << name))
        name--;
    return names[name];
}

unsigned search_axes(const struct layout_search *s, const struct candidate *c)
{
    return axes_of(c->pp > 1, c->tp > 1, c->ep > 1, c->cp > 1,
                   c->offload == OFFLOAD_OPTIMIZER ||
                       s->asked->request->sizes.offload == HD_JOB_OFFLOAD_OPTIMIZER);
}

const struct hd_job *search_job(struct layout_search *s, const struct hd_layout_sizes *sizes)
{
    s->job.layout = *sizes;
    return &s->job;
}

/* ---- what the search may do ---- */

void search_note_refusal(struct layout_search *s, enum hd_status st)
{
    if (st == HD_NO_MEMORY)
        s->st = st;
    if (s->refused || !st)
        return;
    s->refused = st;
    (void)snprintf(s->why, sizeof s->why, "%s", hd_err_message());
}

bool search_may_reject(const struct layout_search *s)
{
    return s->asked->memory_bytes && s->found->families > 1;
}

bool search_may_offload(const struct layout_search *s)
{
    return s->asked->request->sizes.offload == HD_JOB_OFFLOAD_AUTO &&
           !hd_optimizer_needs_matrices(s->asked->spec) &&
           s->asked->cluster->traits.memory_bytes > 0 && s->asked->cluster->host_memory_bytes > 0;
}
