/* search_families: steps 1 and 2 of the search. A family is a mesh, a micro-batch and a way of
 * recompute; for those that may fit, one block is compiled. */
#include <math.h>
#include <string.h>

#include "base/math.h"
#include "plan/search_internal.h"

/* ---- step 1: all families ---- */

static void try_family(struct layout_search *s, struct candidate *c)
{
    struct hd_layout_sizes sizes;

    c->decided = DECIDED_FAMILY;
    c->blocks = NULL;
    if (!search_size(s, c, &sizes))
        return;
    c->micro_batch = (int32_t)sizes.micro_batch;
    c->bound_s = search_ideal_seconds(s);
    c->tie_break = search_tie_break(c);
    s->found->families++;
    search_push(s, c);
}

static void try_recomputes(struct layout_search *s, struct candidate *c)
{
    int64_t segment;

    if (strcmp(s->asked->request->sizes.recompute, "auto") != 0) {
        (void)hd_recompute_read(s->asked->request->sizes.recompute, &segment);
        c->recompute = PINNED_RECOMPUTE;
        c->segment = (int16_t)segment;
        try_family(s, c);
        return;
    }
    for (c->recompute = 0; c->recompute < SEGMENTS; c->recompute++) {
        c->segment = c->recompute == FULL;
        try_family(s, c); /* FULL: only the shortest segments; search_segments.c adds the others */
    }
}

static void try_micro_batches(struct layout_search *s, struct candidate *c)
{
    const struct hd_plan_request *r = s->asked->request;
    const int64_t dp = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);
    const int64_t share = hd_plan_batch_unit(r) / dp;

    if (r->sizes.micro_batch || r->sizes.order_micro_batches) {
        c->micro_batch = (int32_t)r->sizes.micro_batch;
        try_recomputes(s, c);
        return;
    }
    for (int64_t size = 1; size <= share && size <= HD_SEARCH_MICRO_BATCH_MAX; size++)
        if (share % size == 0) {
            c->micro_batch = (int32_t)size;
            try_recomputes(s, c);
        }
}

static void try_experts(struct layout_search *s, struct candidate *c)
{
    const struct hd_plan_request *r = s->asked->request;
    const int64_t ranks = s->asked->devices / ((int64_t)c->pp * c->tp);

    if (r->sizes.ep || !r->experts) {
        c->ep = (int32_t)r->sizes.ep;
        try_micro_batches(s, c);
        return;
    }
    for (int64_t ep = 1; ep <= r->experts; ep++)
        if (r->experts % ep == 0 && ranks % ep == 0) {
            c->ep = (int32_t)ep;
            try_micro_batches(s, c);
        }
}

/* Sets *axis to every divisor, from `least` to `most`, of the devices that the other axes leave, or
 * to the pinned value, and calls `each`. */
static void try_axis(struct layout_search *s, struct candidate *c, int64_t pinned, int64_t least,
                     int64_t most, int32_t *axis,
                     void (*each)(struct layout_search *, struct candidate *))
{
    const int64_t left = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);

    for (int64_t n = pinned ? pinned : least; !s->st && n <= left && n <= most; n++) {
        if ((pinned && n != pinned) || left % n)
            continue;
        *axis = (int32_t)n;
        each(s, c);
    }
    *axis = 1;
}

static void try_cp(struct layout_search *s, struct candidate *c)
{
    const int64_t pinned = s->asked->request->sizes.cp;
    const int64_t most = s->asked->request->context / HD_PLAN_ROWS_MIN;

    try_axis(s, c, pinned, 1, pinned ? pinned : most > 1 ? most : 1, &c->cp, try_experts);
}

static void try_pp(struct layout_search *s, struct candidate *c)
{
    try_axis(s, c, s->asked->request->sizes.pp, s->pp_least, s->asked->request->layers + 2, &c->pp,
             try_cp);
}

/* Tries the candidate's tp with all values of the other axes. A pinned tp is costed even if its
 * groups do not lie within nodes (hd_report_runs tells). */
static void try_tp(struct layout_search *s, struct candidate *c)
{
    if (s->asked->request->sizes.tp ||
        hd_cluster_keeps_tp(s->asked->cluster, s->asked->devices, c->tp))
        try_pp(s, c);
}

static void try_from(struct layout_search *s, int64_t pp_least)
{
    struct candidate c = {.pp = 1, .tp = 1, .cp = 1};

    s->pp_least = pp_least;
    try_axis(s, &c, s->asked->request->sizes.tp, 1, s->asked->request->heads, &c.tp, try_tp);
}

/* Pushes every family. A pinned schedule orders several stages, so one stage is tried only if no
 * layout has several, for example on one device. */
void search_try_families(struct layout_search *s)
{
    const bool named = strcmp(s->asked->request->sizes.schedule, "auto") != 0;

    if (named)
        try_from(s, 2);
    if (!s->count)
        try_from(s, 1);
}

/* ---- step 2: families that may fit ---- */

/* Raises the family's bound, before its blocks are compiled, by those with the largest micro-batch and without
 * recompute, which are the same for many families. Returns whether the bound rose. Times that a
 * calibration interpolates give no bound. */
static bool raise_bound(struct layout_search *s, struct candidate *c)
{
    struct candidate plain = c->recompute < SEGMENTS ? search_without_recompute(c) : *c;
    const struct profiled *large;
    struct hd_layout_sizes of;
    double bound;

    if (c->raised || s->asked->request->sizes.micro_batch || s->asked->cluster->rates.calibration)
        return false;
    c->raised = true;
    if (!search_size(s, &plain, &of))
        return false;
    plain.micro_batch = HD_SEARCH_MICRO_BATCH_MAX;
    of.micro_batch = HD_SEARCH_MICRO_BATCH_MAX;
    large = search_blocks(s, &plain, &of);
    if (!large)
        return false;
    bound = search_coarse_bound(s, c, &large->sizes);
    if (bound <= c->bound_s)
        return false;
    c->bound_s = bound;
    return true;
}

void search_refine_family(struct layout_search *s, struct candidate *c)
{
    struct hd_layout_sizes sizes;

    if (!search_size(s, c, &sizes))
        return;
    if (c->rollout_s <= 0) {
        /* of one of the family's layouts; others may gather weights in less time */
        c->rollout_s = SEARCH_GATHERED_SHARE * search_rollout(s, &sizes);
        if (c->rollout_s > 0) {
            search_push(s, c);
            return;
        }
    }
    if (raise_bound(s, c)) {
        search_push(s, c);
        return;
    }
    c->blocks = search_blocks(s, c, &sizes);
    if (!c->blocks)
        return; /* no block of this family can be built */
    c->decided = DECIDED_BLOCKS;
    c->bound_s = hd_max_real(c->bound_s, search_blocks_bound(s, c, &c->blocks->sizes, 0));
    search_push(s, c);
}
