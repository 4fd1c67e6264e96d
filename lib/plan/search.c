#include "plan/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/math.h"
#include "job/frozen_model.h"
#include "plan/search_internal.h"

/* most virtual stages that the search tries, unless the job pins more */
enum { VIRTUAL_STAGES_MAX = 8 };

void search_note_refusal(struct layout_search *s, enum hd_status st)
{
    if (st == HD_NO_MEMORY)
        s->st = st;
    if (s->refused || !st)
        return;
    s->refused = st;
    (void)snprintf(s->why, sizeof s->why, "%s", hd_err_message());
}

/* ---- steps 3 and 4: schedules, and stages of ZeRO ---- */

/* Returns whether the candidate may fit, or a layout with segments of recompute that it
 * represents. */
static bool may_fit(struct layout_search *s, struct candidate *c,
                    const struct hd_layout_sizes *sizes, const struct ordered *ordered,
                    const struct search_sizes *bytes)
{
    if (!c->only_segments && search_could_fit(s, search_least_memory(s, c, sizes, ordered, bytes)))
        return true;
    c->only_segments = search_has_segments(s, c);
    return c->only_segments && search_segments_may_fit(s, c, sizes, ordered, bytes);
}

/* Returns a lower bound of the seconds of ZeRO's traffic; what depends on the axes alone is computed once. */
static double traffic_bound(struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z, const struct search_sizes *sizes)
{
    struct search_traffic *memo = z->zero < 2 ? NULL : search_traffic_memo(s, z);

    return memo ? search_traffic_bound(s, c, z, sizes, memo) : 0;
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
    /* the layer profiles with which the walk computed its time */
    profiled = ordered ? search_profiles(s, c, &sizes, true) : NULL;
    if (!profiled || (s->asked->memory_bytes && !may_fit(s, c, &sizes, ordered, &profiled->sizes)))
        return;
    c->bound_s = hd_max_real(search_variant_bound(s, c, &sizes),
                             traffic_bound(s, c, &sizes, &c->blocks->sizes));
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

/* Tries the candidate with every ZeRO stage, sharded over all replicas or over groups of them. */
static void try_zeros(struct layout_search *s, const struct candidate *of)
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

/* The trial of a candidate with one schedule after the other. */
struct schedule_trial {
    const struct search_sizes *bytes; /* of the candidate's blocks */
    double least_s; /* least lower bound of what ZeRO moves with a schedule that may fit */
};

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
    return search_stages_may_fit(s, &longest, sizes, ordered, bytes);
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
        least = hd_min_real(least, traffic_bound(s, c, &z, bytes));
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
                                search_cuts_bound(s, c, ordered, bytes, stage_s));
    if (!search_may_reject(s) || may_fit(s, c, sizes, ordered, bytes))
        *ret_even = hd_max_real(least_traffic(s, c, sizes, ordered, bytes, false),
                                search_schedule_bound(s, c, ordered, bytes));
}

/* Adds the candidate with this schedule to the search's candidates, if it may fit. */
static void try_schedule(struct layout_search *s, const struct candidate *of, int8_t schedule,
                         int32_t virtual_stages, struct schedule_trial *trial)
{
    struct candidate c = *of;
    struct hd_layout_sizes sizes;
    const struct ordered *ordered = decide_schedule(s, &c, schedule, virtual_stages, &sizes);
    struct candidate partitions = c;
    double even, cuts;

    if (!ordered)
        return;
    try_stages(s, &c, &sizes, ordered, trial->bytes, &even, &cuts);
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

/* Lowers trial->least_s to what the candidate takes with this schedule, if it may fit. */
static void bound_schedule(struct layout_search *s, const struct candidate *of, int8_t schedule,
                           int32_t virtual_stages, struct schedule_trial *trial)
{
    struct candidate c = *of;
    struct hd_layout_sizes sizes;
    const struct ordered *ordered;
    double even, cuts;

    if (trial->least_s <= c.bound_s)
        return; /* another schedule may fit, and does not raise the bound */
    ordered = decide_schedule(s, &c, schedule, virtual_stages, &sizes);
    if (!ordered)
        return;
    try_stages(s, &c, &sizes, ordered, trial->bytes, &even, &cuts);
    trial->least_s = hd_min_real(trial->least_s, hd_min_real(even, cuts));
}

/* Adds one of the partitions that a candidate represents to the search's candidates. */
static void try_partition(struct layout_search *s, const struct search_partition *partition,
                          void *context)
{
    struct candidate c = *(const struct candidate *)context;

    c.own = partition;
    try_schedule(s, &c, c.schedule, c.virtual_stages,
                 &(struct schedule_trial){&c.blocks->sizes, INFINITY});
}

static void refine_partitions(struct layout_search *s, const struct candidate *c)
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

/* Calls `each` with every schedule that the candidate may have. */
static void
each_schedule(struct layout_search *s, const struct candidate *c, struct schedule_trial *trial,
              void (*each)(struct layout_search *s, const struct candidate *c, int8_t schedule,
                           int32_t virtual_stages, struct schedule_trial *trial))
{
    const struct hd_layout_sizes *requested = &s->asked->request->sizes;
    const int32_t given = (int32_t)requested->virtual_stages;

    if (strcmp(requested->schedule, "auto") != 0) {
        each(s, c, PINNED_SCHEDULE, given, trial);
        return;
    }
    if (c->pp == 1) {
        each(s, c, NO_SCHEDULE, given, trial);
        return;
    }
    if (given <= 1) {
        each(s, c, ONE_F_ONE_B, 1, trial);
        each(s, c, ZB_H1, 1, trial);
        each(s, c, GPIPE, 1, trial);
    }
    if (given > 1)
        each(s, c, INTERLEAVED, given, trial);
    for (int32_t v = 2; !given && v <= VIRTUAL_STAGES_MAX; v++)
        each(s, c, INTERLEAVED, v, trial);
    if (!given || given == 2)
        each(s, c, ZB_V, 2, trial);
}

double search_schedules_bound(struct layout_search *s, const struct candidate *c,
                              const struct search_sizes *bytes)
{
    struct schedule_trial trial = {bytes, INFINITY};

    each_schedule(s, c, &trial, bound_schedule);
    return trial.least_s;
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

/* Computes the time of all stages' programs, without update and reductions: a lower bound for every
 * variant with this schedule. */
static void refine_schedule(struct layout_search *s, struct candidate *c)
{
    struct hd_step_cost p;

    if (!walk_candidate(s, c, true, &p))
        return;
    s->found->walked++;
    c->decided = DECIDED_WALKED;
    c->bound_s = hd_max_real(c->bound_s, p.programs_s + p.frozen_s);
    search_push(s, c);
}

static void refine_variant(struct layout_search *s, struct candidate *c)
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

/* ---- step 5: laid out ---- */

/* Computes memory and step time of a layout; if the memory of the limit's stage is above the limit
 * (NULL: none), the plan is partial and has no time. */
static enum hd_status cost_within(const struct hd_search_asked *asked,
                                  const struct hd_layout_sizes *sizes,
                                  const struct hd_plan_limit *limit, struct hd_arena *arena,
                                  struct hd_search_plan *ret_plan)
{
    struct hd_traits traits = asked->cluster->traits;
    const struct hd_plan_class *most = NULL;
    struct hd_model_config config;
    enum hd_status st;

    *ret_plan = (struct hd_search_plan){.job = *asked->spec};
    ret_plan->job.layout = *sizes;
    if (!hd_traits_is_cuda(&traits))
        traits.threads = (int)sizes->threads;
    st = hd_model_config_from_job(&ret_plan->job, &config);
    if (!st)
        st = hd_plan_build_within(&ret_plan->job, &traits, limit, arena, &ret_plan->plan);
    if (!st && !ret_plan->plan.partial)
        st = search_cost(asked, &config, &ret_plan->job, &ret_plan->cost);
    if (st)
        return st;
    ret_plan->needed_bytes = search_needed(&ret_plan->plan, &traits, &most);
    ret_plan->fits = !asked->memory_bytes || ret_plan->needed_bytes <= asked->memory_bytes;
    return HD_OK;
}

enum hd_status hd_search_cost(const struct hd_search_asked *asked,
                              const struct hd_layout_sizes *sizes, struct hd_arena *arena,
                              struct hd_search_plan *ret_plan)
{
    return cost_within(asked, sizes, NULL, arena, ret_plan);
}

/* Returns the stage that is likely to need most memory: that of the last layout that did not fit,
 * else by the bounds. */
static int64_t fullest_stage(struct layout_search *s, const struct candidate *c,
                             const struct hd_layout_sizes *sizes)
{
    const struct ordered *ordered = search_ordered(s, c, sizes);

    if (!ordered)
        return 0;
    if (!s->has_full_stage)
        return search_least_memory(s, c, sizes, ordered, &c->blocks->sizes).stage;
    return s->full_stage < 0 || s->full_stage >= sizes->pp ? sizes->pp - 1 : s->full_stage;
}

/* Takes over the plan behind the last one, which fits: to the front if it is simpler than the first
 * plan and nearly as fast as the fastest. */
static void take_plan(struct layout_search *s)
{
    struct hd_search *f = s->found;
    const struct hd_search_plan p = f->plans[f->plan_count];
    const bool first = !f->plan_count;

    if (first) {
        f->fastest = p.job.layout;
        f->fastest_s = p.cost.step_s;
    }
    if (first || (p.cost.step_s <= (1 + HD_SEARCH_NEAR) * f->fastest_s &&
                  hd_search_axes(&p.job.layout) < hd_search_axes(&f->plans[0].job.layout))) {
        memmove(&f->plans[1], &f->plans[0], (size_t)f->plan_count * sizeof p);
        f->plans[0] = p;
    }
    f->plan_count += f->plan_count < s->asked->top;
}

static void lay_out(struct layout_search *s, const struct candidate *c)
{
    struct hd_search_plan *p = &s->found->plans[s->found->plan_count];
    struct hd_plan_limit limit = {.bytes = s->asked->memory_bytes};
    struct hd_layout_sizes sizes;
    enum hd_status st;

    if (!search_size(s, c, &sizes))
        return;
    limit.stage = (int32_t)fullest_stage(s, c, &sizes);
    st = cost_within(s->asked, &sizes, search_may_reject(s) ? &limit : NULL, s->arena, p);
    s->found->laid_out += !p->plan.partial;
    search_note_refusal(s, st);
    if (st)
        return;
    if (p->plan.partial)
        p->cost.step_s = c->bound_s;
    else if (c->offload == OFFLOAD_OPTIMIZER && !search_host_fits(s->asked->cluster, &p->plan))
        return;
    if (p->fits)
        take_plan(s);
    else
        search_reject_plan(s, p);
}

/* ---- the search ---- */

/* Returns whether the job pins every member of the layout: there is one family, with one
 * variant. */
static bool is_pinned(const struct layout_search *s)
{
    return s->found->families == 1 && s->variants == 1;
}

static void refine(struct layout_search *s, struct candidate *c)
{
    switch (c->decided) {
    case DECIDED_FAMILY:
        search_refine_family(s, c);
        break;
    case DECIDED_BLOCKS:
        each_schedule(s, c, &(struct schedule_trial){&c->blocks->sizes, INFINITY}, try_schedule);
        break;
    case DECIDED_PARTITIONS:
        refine_partitions(s, c);
        break;
    case DECIDED_SCHEDULE:
        refine_schedule(s, c);
        break;
    case DECIDED_WALKED:
        try_zeros(s, c);
        break;
    case DECIDED_SEGMENTS:
        search_expand_segments(s, c);
        break;
    case DECIDED_VARIANT:
        refine_variant(s, c);
        break;
    default:
        lay_out(s, c);
    }
}

/* Counts the parameters of each unit that do not train. */
static void count_frozen(struct layout_search *s, const struct hd_registry *r, int head)
{
    for (int u = 0; u < r->unit_count; u++) {
        const struct hd_unit *unit = &r->units[u];
        int64_t count = 0, experts = 0;

        for (int i = unit->first_param; i < unit->first_param + unit->param_count; i++)
            if (!r->params[i].trainable)
                *(r->params[i].experts ? &experts : &count) += r->params[i].count;
        if (u == HD_UNIT_EMBEDDING)
            s->first_frozen = count;
        else if (u == head)
            s->last_frozen = count;
        else {
            const int64_t layer = u - HD_UNIT_FIRST_BLOCK;
            const int kind = hd_model_layer_kind(&s->config, layer);
            const bool first = !s->kinds_before[layer][kind];
            int64_t *block = &s->block_frozen[kind], *of_experts = &s->experts_frozen[kind];

            *block = first || count < *block ? count : *block;
            *of_experts = first || experts < *of_experts ? experts : *of_experts;
        }
    }
}

/* Counts the blocks of each kind before each layer. */
static enum hd_status count_kinds(struct layout_search *s)
{
    const int64_t L = s->config.L;

    s->kinds_before = hd_arena_array(&s->kept, (size_t)L + 1, sizeof *s->kinds_before);
    if (!s->kinds_before)
        return hd_err(HD_NO_MEMORY, "no memory to search layouts");
    for (int64_t layer = 0; layer < L; layer++) {
        memcpy(s->kinds_before[layer + 1], s->kinds_before[layer], sizeof s->kinds_before[layer]);
        s->kinds_before[layer + 1][hd_model_layer_kind(&s->config, layer)]++;
    }
    for (int kind = 0; kind < HD_LAYER_KINDS; kind++)
        if (s->kinds_before[L][kind] > 0)
            s->kinds[s->kind_count++] = kind;
    return HD_OK;
}

/* Adds a trained parameter to the parameters of its kind of block, of the embedding or of the head.
 * Of each kind the first block is counted. */
static void count_parameter(struct layout_search *s, const struct hd_param *p, int head)
{
    const int64_t layer = p->unit - HD_UNIT_FIRST_BLOCK;
    int kind;

    if (p->unit == HD_UNIT_EMBEDDING) {
        s->first_parameters += p->count;
        return;
    }
    if (p->unit == head) { /* ep splits the experts that predict further tokens: not counted */
        s->last_parameters += p->experts || p->keep_fp32 ? 0 : p->count;
        return;
    }
    kind = hd_model_layer_kind(&s->config, layer);
    if (!s->kinds_before[layer][kind] && !p->keep_fp32) /* a router's weights stay fp32 */
        (p->experts ? s->block_experts : s->block_parameters)[kind] += p->count;
}

/* Counts the parameters of a block, the embedding and the head; if only a part of them trains, also
 * those that do not. */
static enum hd_status count_parameters(struct layout_search *s)
{
    struct hd_registry registry;
    struct hd_arena arena;
    struct hd_model model;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_registry_init(&registry, &arena, NULL, 0);
    st = hd_model_declare(&s->config, &registry, &arena, &model);
    for (int i = 0; !st && i < registry.param_count; i++)
        s->tuned |= !registry.params[i].trainable && !registry.params[i].state;
    s->differ = s->tuned && (s->config.adapter.kind == HD_ADAPTER_NONE ||
                             /* without `adapter_also`, every block trains the same adapter */
                             *s->asked->spec->adapter_also);
    for (int i = 0; !st && !s->tuned && i < registry.param_count; i++)
        count_parameter(s, &registry.params[i], model.unit_head);
    if (!st && s->tuned)
        count_frozen(s, &registry, model.unit_head);
    hd_arena_done(&arena);
    return st;
}

/* Counts the parameters of the frozen model, if the job has one. */
static enum hd_status count_frozen_model(struct layout_search *s, const struct hd_job *job)
{
    struct hd_model_config config;
    struct hd_registry registry;
    struct hd_job frozen;
    struct hd_arena arena;
    struct hd_model model;
    enum hd_status st;

    if (!hd_job_has_frozen_model(job))
        return HD_OK;
    hd_arena_init(&arena, 0);
    hd_registry_init(&registry, &arena, NULL, 0);
    st = hd_job_of_frozen(job, &arena, &frozen);
    if (!st)
        st = hd_model_config_from_job(&frozen, &config);
    if (st)
        st = hd_err_prefix(st, "%s", hd_job_frozen_path(job));
    else
        st = hd_model_declare(&config, &registry, &arena, &model);
    for (int i = 0; !st && i < registry.param_count; i++) {
        const struct hd_param *p = &registry.params[i];

        *(p->experts ? &s->frozen_experts : &s->frozen_parameters) += p->state ? 0 : p->count;
    }
    hd_arena_done(&arena);
    return st;
}

static enum hd_status begin(struct layout_search *s)
{
    struct hd_job job = *s->asked->spec;
    struct hd_layout_sizes sizes;
    enum hd_status st = hd_plan_decide(s->asked->request, s->asked->devices, &sizes);

    if (st) { /* the default values of auto are illegal, but others may be legal */
        sizes = s->asked->request->sizes;
        sizes.tp = sizes.tp ? sizes.tp : 1;
    }
    hd_plan_decide_device(sizes.device, s->asked->bf16_fast, s->asked->threads, &sizes);
    job.layout = sizes;
    st = hd_model_config_from_job(&job, &s->config);
    if (!st)
        st = count_kinds(s);
    if (!st)
        st = count_parameters(s);
    if (!st)
        st = count_frozen_model(s, &job);
    if (!st)
        st = search_model_of(&s->config, &s->kept, &s->model);
    s->found->plans = hd_arena_array(s->arena, (size_t)s->asked->top + 1, sizeof *s->found->plans);
    if (!st && hd_arena_failed(s->arena))
        st = hd_err(HD_NO_MEMORY, "no memory to search layouts");
    return st;
}

/* Returns whether no open candidate can change the result: the list is full, and no layout that is nearly
 * as fast as the fastest can be simpler than the first. */
static bool is_done(const struct layout_search *s)
{
    const struct hd_search *f = s->found;

    return f->plan_count == s->asked->top &&
           (!hd_search_axes(&f->plans[0].job.layout) ||
            s->heap[0].bound_s + s->heap[0].rollout_s > (1 + HD_SEARCH_NEAR) * f->fastest_s);
}

/* Returns whether the candidate has a place in the list, or is simpler than the first plan. */
static bool may_be_taken(const struct layout_search *s, const struct candidate *c)
{
    const struct hd_search *f = s->found;

    return f->plan_count < s->asked->top ||
           search_axes(s, c) < hd_search_axes(&f->plans[0].job.layout);
}

enum hd_status hd_search_layouts(const struct hd_search_asked *asked, struct hd_arena *arena,
                                 struct hd_search *ret_search)
{
    struct layout_search s = {.asked = asked, .arena = arena, .found = ret_search};
    struct hd_layout_sizes sizes;

    *ret_search = (struct hd_search){0};
    hd_arena_init(&s.kept, 0);
    s.job = *asked->spec;
    s.st = begin(&s);
    if (!s.st)
        search_try_families(&s);
    if (!s.st && !s.count) /* no layout is legal: makes the error message */
        s.st = hd_plan_decide(asked->request, asked->devices, &sizes);
    while (!s.st && s.count && !is_done(&s)) {
        struct candidate c;

        if (asked->deadline_ns && hd_clock_now_ns() >= asked->deadline_ns) {
            ret_search->is_cut = true;
            break;
        }
        if (asked->tell)
            asked->tell(asked->about, ret_search);
        c = search_pop(&s);
        if (may_be_taken(&s, &c))
            refine(&s, &c);
    }
    if (!s.st && s.count && !ret_search->plan_count)
        s.st = hd_err(HD_TIMEOUT,
                      "the search among the layouts of %d devices was ended at its "
                      "deadline, before it found one that fits",
                      asked->devices);
    if (!s.st && !ret_search->plan_count)
        search_find_least(&s);
    if (!s.st && !ret_search->plan_count && is_pinned(&s) && ret_search->least.needed_bytes) {
        s.st = hd_search_cost(asked, &ret_search->least.sizes, arena, &ret_search->plans[0]);
        ret_search->plan_count = !s.st;
    }
    if (!s.st && !ret_search->plan_count && !ret_search->least.needed_bytes && s.refused)
        s.st = hd_err(s.refused, "%s", s.why);
    free(s.heap);
    hd_arena_done(&s.kept);
    return s.st;
}
