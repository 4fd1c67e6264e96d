#include "plan/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/math.h"
#include "job/frozen_model.h"
#include "plan/search_internal.h"

/* ---- step 5: laid out ---- */

/* Computes memory and step time of a layout; if the memory of the limit's stage is above the limit
 * (NULL: none), the plan is partial and has no time. */
static enum hd_status cost_within(const struct hd_search_asked *asked,
                                  const struct hd_layout_sizes *sizes,
                                  const struct hd_plan_limit *limit, struct hd_arena *arena,
                                  struct hd_search_plan *ret_plan)
{
    struct hd_model_config config;
    enum hd_status st;

    *ret_plan = (struct hd_search_plan){.job = *asked->spec};
    ret_plan->job.layout = *sizes;
    st = hd_model_config_from_job(&ret_plan->job, &config);
    if (!st)
        st = hd_plan_build_layout(asked->spec, sizes, &asked->cluster->traits, limit, arena,
                                  &ret_plan->plan);
    if (!st && !ret_plan->plan.partial)
        st = search_cost(asked, &config, &ret_plan->job, &ret_plan->cost);
    if (st)
        return st;
    ret_plan->needed_bytes = hd_plan_class_bytes(hd_plan_fullest(&ret_plan->plan, -1));
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
        return search_least_memory(s, c, sizes, ordered, &c->blocks->sizes, INFINITY).stage;
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
        search_try_schedules(s, c);
        break;
    case DECIDED_PARTITIONS:
        search_refine_partitions(s, c);
        break;
    case DECIDED_SCHEDULE:
        search_refine_schedule(s, c);
        break;
    case DECIDED_WALKED:
        search_try_zeros(s, c);
        break;
    case DECIDED_SEGMENTS:
        search_expand_segments(s, c);
        break;
    case DECIDED_VARIANT:
        search_refine_variant(s, c);
        break;
    default:
        lay_out(s, c);
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

/* Finds out whether a part of the model trains, and whether another one in some blocks than in others. */
static enum hd_status find_trained(struct layout_search *s)
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
        st = find_trained(s);
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
