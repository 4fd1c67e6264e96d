/* search_schedules: steps 3 and 4 of the search. A candidate whose blocks are compiled gets a schedule, with
 * stages of even work or others, then a stage of ZeRO. */
#include <math.h>
#include <string.h>

#include "base/math.h"
#include "plan/search_internal.h"

/* most virtual stages that the search tries, unless the job pins more */
enum { VIRTUAL_STAGES_MAX = 8 };

/* Returns whether the candidate may fit, or a layout with segments of recompute that it
 * represents. */
static bool may_fit(struct layout_search *s, struct candidate *c,
                    const struct hd_layout_sizes *sizes, const struct ordered *ordered,
                    const struct search_sizes *bytes)
{
    if (!c->only_segments &&
        search_could_fit(s, search_least_memory(s, c, sizes, ordered, bytes, INFINITY)))
        return true;
    c->only_segments = search_has_segments(s, c);
    return c->only_segments && search_segments_may_fit(s, c, sizes, ordered, bytes);
}

static void try_variant(struct layout_search *s, struct candidate *c)
{
    const struct profiled *profiled;
    const struct ordered *ordered;
    struct hd_layout_sizes sizes;

    c->decided = DECIDED_VARIANT;
    if (!search_size(s, c, &sizes))
        return;
    s->variants += !c->own && c->offload != OFFLOAD_OPTIMIZER;
    ordered = search_ordered(s, c, &sizes);
    /* the memo has these layer profiles: the walk computed the candidate's time with them */
    profiled = ordered ? search_profiles(s, c, &sizes, true) : NULL;
    if (!profiled || (s->asked->memory_bytes && !may_fit(s, c, &sizes, ordered, &profiled->sizes)))
        return;
    c->bound_s = hd_max_real((sizes.zero == 3 ? SEARCH_GATHERED_SHARE : 1) * c->bound_s,
                             search_traffic_bound(s, c, &sizes, &c->blocks->sizes));
    c->rollout_s = search_rollout(s, &sizes);
    c->tie_break = search_tie_break(c);
    search_push(s, c);
}

/* Tries the candidate with the optimizer state on the device and on its host, or only where the job
 * pins it. */
static void try_offloads(struct layout_search *s, struct candidate *c)
{
    const bool any = search_may_offload(s);

    for (int8_t offload = 0; offload < (any ? OFFLOADS : 1); offload++) {
        struct candidate one = *c;

        one.offload = any ? offload : PINNED_OFFLOAD;
        try_variant(s, &one);
    }
}

void search_try_zeros(struct layout_search *s, const struct candidate *of)
{
    const struct hd_layout_sizes *requested = &s->asked->request->sizes;
    const int64_t ranks = s->asked->devices / ((int64_t)of->pp * of->tp);

    for (int8_t zero = 0; !s->st && zero <= 3; zero++) {
        struct candidate c = *of;

        c.zero = requested->zero >= 0 ? (int8_t)requested->zero : zero;
        c.zero_shard = (int32_t)requested->zero_shard;
        if (zero > 0 && (requested->zero >= 0 || ranks == 1))
            break; /* the job pins zero; or one replica makes all stages equal */
        try_offloads(s, &c);
        for (int64_t shard = 2; c.zero && !requested->zero_shard && shard < ranks; shard++)
            if (ranks % shard == 0) {
                struct candidate hybrid = *of;

                hybrid.zero = c.zero;
                hybrid.zero_shard = (int32_t)shard;
                try_offloads(s, &hybrid);
            }
    }
}

/* Decides the candidate's schedule, and sets its layout with the least state. Returns NULL if it is
 * not legal. */
static const struct ordered *decide_schedule(struct layout_search *s, struct candidate *c,
                                             int8_t schedule, int32_t virtual_stages,
                                             struct hd_layout_sizes *ret_sizes)
{
    c->decided = DECIDED_SCHEDULE;
    c->schedule = schedule;
    c->virtual_stages = virtual_stages;
    if (!search_size(s, c, ret_sizes))
        return NULL;
    search_take_least_state(s, ret_sizes);
    return search_ordered(s, c, ret_sizes);
}

/* Returns whether the candidate may fit with stages of even work, or, cuts: with any other. */
static bool state_may_fit(struct layout_search *s, const struct candidate *c,
                          const struct hd_layout_sizes *sizes, const struct ordered *ordered,
                          const struct search_sizes *bytes, bool cuts)
{
    struct candidate longest = *c;

    if (cuts)
        return search_cuts_seconds(s, c, sizes, ordered, bytes) < INFINITY;
    if (c->only_segments) {
        longest.segment = INT16_MAX;
        longest.plain = NULL;
    }
    return search_least_memory(s, &longest, sizes, ordered, bytes, (double)s->asked->memory_bytes)
               .needed_bytes <= s->asked->memory_bytes;
}

/* Sets z->zero_shard to the fewest ranks that may share the state so that it fits; all of them fit.
 * More ranks need less memory each. */
static void take_fewest_shards(struct layout_search *s, const struct candidate *c,
                               const struct ordered *ordered, const struct search_sizes *bytes,
                               bool cuts, struct hd_layout_sizes *z)
{
    const int64_t ranks = z->dp * z->cp, unit = z->ep > 1 ? z->ep : 1;
    int64_t shards[64];
    int least = 0, most = 0;

    for (int64_t n = unit > 1 ? unit : 2; n <= ranks && most < 63; n++)
        if (ranks % n == 0 && n % unit == 0)
            shards[most++] = n;
    shards[--most] = ranks;
    while (least < most) {
        const int middle = (least + most) / 2;

        z->zero_shard = shards[middle];
        if (state_may_fit(s, c, z, ordered, bytes, cuts))
            most = middle;
        else
            least = middle + 1;
    }
    z->zero_shard = shards[least];
}

/* Returns a lower bound of the seconds in which ZeRO moves weights and gradients of a layout that
 * may fit with its least state: 0 with ZeRO 1, else with the fewest ranks that may share. */
static double least_traffic(struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *sizes, const struct ordered *ordered,
                            const struct search_sizes *bytes, bool cuts)
{
    const struct hd_layout_sizes *requested = &s->asked->request->sizes;
    struct hd_layout_sizes z = *sizes;
    double least = INFINITY;

    if (!search_may_reject(s) || requested->zero >= 0 || requested->zero_shard ||
        z.dp * z.cp == 1 || s->tuned)
        return 0;
    z.zero = 1;
    if (state_may_fit(s, c, &z, ordered, bytes, cuts))
        return 0;
    for (z.zero = 2; z.zero <= 3; z.zero++) {
        z.zero_shard = 0;
        if (z.zero == 2 && !state_may_fit(s, c, &z, ordered, bytes, cuts))
            continue;
        take_fewest_shards(s, c, ordered, bytes, cuts, &z);
        least = hd_min_real(least, search_traffic_bound(s, c, &z, bytes));
    }
    return least;
}

/* Sets *ret_even and *ret_cuts to lower bounds of a step's seconds with stages of even work, and with
 * any others; INFINITY: these do not fit, or are not searched. */
static void try_stages(struct layout_search *s, struct candidate *c,
                       const struct hd_layout_sizes *sizes, const struct ordered *ordered,
                       const struct search_sizes *bytes, double *ret_even, double *ret_cuts)
{
    double stage_s = INFINITY;

    *ret_even = *ret_cuts = INFINITY;
    if (!c->own && search_may_partition(s, ordered->step.pipeline.chunks))
        stage_s = search_may_reject(s) ? search_cuts_seconds(s, c, sizes, ordered, bytes) : 0;
    if (stage_s < INFINITY)
        *ret_cuts = hd_max_real(least_traffic(s, c, sizes, ordered, bytes, true),
                                search_blocks_bound(s, c, bytes, stage_s));
    if (!search_may_reject(s) || may_fit(s, c, sizes, ordered, bytes))
        *ret_even = hd_max_real(least_traffic(s, c, sizes, ordered, bytes, false),
                                search_schedule_bound(s, c, ordered, bytes));
}

/* Adds the candidate with this schedule to the search's candidates, if it may fit. */
static void try_schedule(struct layout_search *s, const struct candidate *of, int8_t schedule,
                         int32_t virtual_stages)
{
    struct candidate c = *of;
    struct hd_layout_sizes sizes;
    const struct ordered *ordered = decide_schedule(s, &c, schedule, virtual_stages, &sizes);
    struct candidate partitions = c;
    double even, cuts;

    if (!ordered)
        return;
    try_stages(s, &c, &sizes, ordered, &c.blocks->sizes, &even, &cuts);
    if (cuts < INFINITY) {
        partitions.decided = DECIDED_PARTITIONS;
        partitions.tie_break = search_tie_break(&partitions);
        partitions.bound_s = hd_max_real(partitions.bound_s, cuts);
        search_push(s, &partitions);
    }
    if (even == INFINITY)
        return;
    c.bound_s = hd_max_real(c.bound_s, even);
    c.tie_break = search_tie_break(&c);
    search_push(s, &c);
}

/* Adds one of the partitions that a candidate represents to the search's candidates. */
static void try_partition(struct layout_search *s, const struct search_partition *partition,
                          void *context)
{
    struct candidate c = *(const struct candidate *)context;

    c.own = partition;
    try_schedule(s, &c, c.schedule, c.virtual_stages);
}

void search_refine_partitions(struct layout_search *s, const struct candidate *c)
{
    const struct search_partition *timed;
    const struct profiled *profiled;
    const struct ordered *even;
    struct hd_layout_sizes sizes;
    struct candidate of = *c;

    of.decided = DECIDED_SCHEDULE;
    if (!search_size(s, &of, &sizes))
        return;
    even = search_ordered(s, &of, &sizes);
    if (!even)
        return;
    if (search_has_few_partitions(s, even->step.pipeline.chunks)) {
        search_each_partition(s, even, try_partition, &of);
        return;
    }
    profiled = search_profiles(s, &of, &sizes, true);
    timed = profiled ? search_timed_partition(s, even, &profiled->profiles) : NULL;
    if (timed)
        try_partition(s, timed, &of);
}

void search_try_schedules(struct layout_search *s, const struct candidate *c)
{
    const struct hd_layout_sizes *requested = &s->asked->request->sizes;
    const int32_t given = (int32_t)requested->virtual_stages;

    if (strcmp(requested->schedule, "auto") != 0) {
        try_schedule(s, c, PINNED_SCHEDULE, given);
        return;
    }
    if (c->pp == 1) {
        try_schedule(s, c, NO_SCHEDULE, given);
        return;
    }
    if (given <= 1) {
        try_schedule(s, c, ONE_F_ONE_B, 1);
        try_schedule(s, c, ZB_H1, 1);
        try_schedule(s, c, GPIPE, 1);
    }
    if (given > 1)
        try_schedule(s, c, INTERLEAVED, given);
    for (int32_t v = 2; !given && v <= VIRTUAL_STAGES_MAX; v++)
        try_schedule(s, c, INTERLEAVED, v);
    if (!given || given == 2)
        try_schedule(s, c, ZB_V, 2);
}

/* Computes the step time of the candidate; alone: only that of its programs, without replicas and
 * ZeRO. False: it cannot be built. */
static bool walk_candidate(struct layout_search *s, const struct candidate *c, bool alone,
                           struct hd_step_cost *ret_cost)
{
    const struct profiled *profiled;
    const struct ordered *ordered;
    struct hd_layout_sizes sizes;
    double rollout_s;
    enum hd_status st;

    if (!search_size(s, c, &sizes))
        return false;
    ordered = search_ordered(s, c, &sizes);
    profiled = ordered ? search_profiles(s, c, &sizes, alone) : NULL;
    if (!profiled)
        return false;
    rollout_s = alone ? 0 : search_rollout(s, &sizes);
    st = search_walk(s->asked, &s->model, search_job(s, &sizes), &profiled->profiles, ordered,
                     rollout_s, ret_cost);
    search_note_refusal(s, st);
    return !st;
}

void search_refine_schedule(struct layout_search *s, struct candidate *c)
{
    struct hd_step_cost p;

    if (!walk_candidate(s, c, true, &p))
        return;
    s->found->walked++;
    c->decided = DECIDED_WALKED;
    c->bound_s = hd_max_real(c->bound_s, p.programs_s + p.frozen_s);
    search_push(s, c);
}

void search_refine_variant(struct layout_search *s, struct candidate *c)
{
    struct hd_step_cost p;

    if (!walk_candidate(s, c, false, &p))
        return;
    s->found->costed++;
    c->bound_s = p.step_s;
    c->rollout_s = 0;
    if (search_has_segments(s, c)) {
        c->decided = DECIDED_SEGMENTS;
        search_push(s, c);
    }
    c->decided = DECIDED_COSTED;
    if (!c->only_segments)
        search_push(s, c);
}
