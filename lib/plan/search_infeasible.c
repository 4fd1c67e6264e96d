/* search_infeasible: layouts that do not fit, and which of them needs least memory.
 *
 * For most of them only a lower bound is known (search_bounds.c), which omits much. If no layout
 * fits, those with the lowest bounds are built, and the one that then needs least is reported with
 * its exact bytes. */
#include <string.h>

#include "base/clock.h"
#include "plan/search_internal.h"

/* Compares two layouts except for their micro-batch, schedule and replicas: of layouts that differ
 * only in the micro-batch, the smallest needs least. */
static bool is_same_layout(const struct hd_layout_sizes *a, const struct hd_layout_sizes *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->cp == b->cp && a->ep == b->ep &&
           a->zero == b->zero && strcmp(a->recompute, b->recompute) == 0 &&
           a->offload == b->offload;
}

/* Inserts a layout into s->lowest, once: a layout may first come with a low bound and later with a
 * better one, which replaces it. */
void search_note_least(struct layout_search *s, const struct hd_search_rejected *r)
{
    int at = 0, known = 0;

    while (known < s->lowest_count && !is_same_layout(&s->lowest[known].sizes, &r->sizes))
        known++;
    if (known < s->lowest_count) {
        const struct hd_search_rejected *other = &s->lowest[known];

        if (other->sizes.micro_batch < r->sizes.micro_batch ||
            (other->sizes.micro_batch == r->sizes.micro_batch &&
             other->needed_bytes >= r->needed_bytes))
            return;
        s->lowest_count--;
        memmove(&s->lowest[known], &s->lowest[known + 1],
                (size_t)(s->lowest_count - known) * sizeof *s->lowest);
    }
    while (at < s->lowest_count && s->lowest[at].needed_bytes <= r->needed_bytes)
        at++;
    if (at == SEARCH_LOWEST_MAX)
        return;
    s->lowest_count += s->lowest_count < SEARCH_LOWEST_MAX;
    memmove(&s->lowest[at + 1], &s->lowest[at],
            (size_t)(s->lowest_count - 1 - at) * sizeof *s->lowest);
    s->lowest[at] = *r;
}

/* Records a layout that does not fit as rejected. Layouts come in the order of their time
 * bounds. */
static void reject(struct layout_search *s, const struct hd_search_rejected *r)
{
    struct hd_search *f = s->found;

    if (f->rejected_count < HD_SEARCH_REJECTED_MAX && !f->plan_count)
        f->rejected[f->rejected_count++] = *r;
    search_note_least(s, r);
}

bool search_could_fit(struct layout_search *s, struct hd_search_rejected least)
{
    if (least.needed_bytes <= s->asked->memory_bytes)
        return true;
    reject(s, &least);
    return false;
}

bool search_host_fits(const struct hd_cluster *cluster, const struct hd_plan *plan)
{
    int64_t most = 0;

    for (int32_t i = 0; i < plan->class_count; i++)
        if (plan->classes[i].memory.host_bytes > most)
            most = plan->classes[i].memory.host_bytes;
    return most <= cluster->host_memory_bytes;
}

/* Sets what a rejected layout needs, from its plan, which may be partial. */
static void take_needs(const struct hd_plan *plan, struct hd_search_rejected *r)
{
    const struct hd_plan_class *most = hd_plan_fullest(plan, -1);

    r->stage = most->stage;
    r->needed_bytes = hd_plan_class_bytes(most);
    r->exact = !plan->partial;
    r->activations = (double)(most->memory.kept + most->memory.deferred) / (double)r->needed_bytes;
}

void search_reject_plan(struct layout_search *s, const struct hd_search_plan *p)
{
    struct hd_search_rejected r = {.sizes = p->job.layout, .step_s = p->cost.step_s};

    take_needs(&p->plan, &r);
    s->has_full_stage = true;
    s->full_stage = r.stage < p->job.layout.pp - 1 ? r.stage : -1;
    reject(s, &r);
}

/* Builds the layout and sets its exact bytes; false: it cannot be built, or its host lacks memory.
 * If only the host lacks memory, tries it without offload. */
static bool lay_out_rejected(const struct layout_search *s, struct hd_search_rejected *r)
{
    const bool away = search_may_offload(s) && r->sizes.offload != HD_JOB_OFFLOAD_NONE;
    struct hd_arena arena;
    struct hd_plan plan;
    bool known;

    hd_arena_init(&arena, 0);
    known = !hd_plan_build_layout(s->asked->spec, &r->sizes, &s->asked->cluster->traits, NULL,
                                  &arena, &plan) &&
            (!away || search_host_fits(s->asked->cluster, &plan));
    if (known)
        take_needs(&plan, r);
    hd_arena_done(&arena);
    if (known || !away)
        return known;
    r->sizes.offload = HD_JOB_OFFLOAD_NONE;
    return lay_out_rejected(s, r);
}

/* Sets found->least: builds the layouts with the lowest bounds of memory, until no other can need
 * less. */
void search_find_least(struct layout_search *s)
{
    struct hd_search_rejected *least = &s->found->least;

    for (int i = 0; i < s->lowest_count; i++) {
        struct hd_search_rejected r = s->lowest[i];

        if (least->exact && r.needed_bytes >= least->needed_bytes)
            break;
        if (s->asked->deadline_ns && hd_clock_now_ns() >= s->asked->deadline_ns)
            break;
        if (s->asked->tell)
            s->asked->tell(s->asked->about, s->found);
        s->found->laid_out += !r.exact;
        if ((r.exact || lay_out_rejected(s, &r)) &&
            (!least->exact || r.needed_bytes < least->needed_bytes))
            *least = r;
    }
    if (!least->exact && s->lowest_count)
        *least = s->lowest[0];
}
