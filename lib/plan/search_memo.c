/* search_memo: layer profiles, schedules and states of candidates, each made once, and the costs that
 * follow. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/math.h"
#include "plan/search_internal.h"

/* Micro-batches per pipeline stage of which the walk computes the times; later ones repeat the same
 * pattern. */
enum { WALKED_PER_STAGE = 5 };

/* ---- memos ---- */

/* Returns the table's entry for a key; its `known` tells whether a value was stored. NULL: no
 * memory, or the table is full. */
static struct memo_entry *find_memo_entry(struct layout_search *s, struct memo *m,
                                          const int32_t key[KEY_NUMBERS])
{
    const size_t bytes = KEY_NUMBERS * sizeof *key;
    uint64_t at = hd_hash_bytes(key, bytes) % MEMO_SLOTS;

    if (!m->slots)
        m->slots = hd_arena_array(&s->kept, MEMO_SLOTS, sizeof *m->slots);
    if (!m->slots || m->count == MEMO_SLOTS / 2) {
        s->st = hd_err(HD_NO_MEMORY, "no memory to search layouts; pin some of them");
        return NULL;
    }
    while (m->slots[at].known && memcmp(m->slots[at].key, key, bytes) != 0)
        at = (at + 1) % MEMO_SLOTS;
    return &m->slots[at];
}

/* Stores the value of a key in an entry whose `known` is false. */
static void note(struct memo *m, struct memo_entry *e, const int32_t key[KEY_NUMBERS], void *value)
{
    memcpy(e->key, key, sizeof e->key);
    e->known = true;
    e->value = value;
    m->count++;
}

/* ---- layer profiles ---- */

/* Returns the seconds of the calls first to end - 1 of a layer profile in one micro-batch; of F alone
 * if only a part of the model trains. */
static double profile_seconds(const struct layout_search *s, const struct hd_layer_profile *p,
                              int first, int end)
{
    double seconds = 0;

    for (int call = first; call < end; call++)
        seconds += s->tuned && call > HD_LAYER_PROFILE_F ? 0 : p->time[call][0].run;
    return seconds;
}

/* Computes a lower bound of a block's seconds in these calls, by kind. A chunk of n blocks of one
 * kind takes base + n blocks, so at least n times the lesser of what a block takes alone and beside
 * others. */
static void block_seconds(const struct layout_search *s, const struct hd_layer_profiles *p,
                          int first, int end, double ret_seconds[HD_LAYER_KINDS])
{
    double least = 0;

    for (int i = 0; i < s->kind_count; i++)
        least = hd_min_real(least, profile_seconds(s, &p->kind[s->kinds[i]].base, first, end));
    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        ret_seconds[kind] = profile_seconds(s, &p->kind[kind].block, first, end);
        if (p->has_inner)
            ret_seconds[kind] = hd_min_real(ret_seconds[kind],
                                            profile_seconds(s, &p->kind[kind].inner, first, end));
        ret_seconds[kind] += least;
    }
}

/* Returns what the search needs of layer profiles: bytes by kind of block, and lower bounds of the
 * seconds of its passes. */
static struct search_sizes sizes_of(const struct layout_search *s,
                                    const struct hd_layer_profiles *p)
{
    struct search_sizes b = {.forward_s = {0}};

    block_seconds(s, p, 0, HD_LAYER_PROFILE_B, b.forward_s);
    block_seconds(s, p, 0, HD_LAYER_PROFILE_CALLS, b.all_s);
    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];
        const struct hd_block_profiles *of_kind = &p->kind[kind];

        b.saved[kind] = (double)of_kind->block.saved_bytes;
        b.deferred[kind] = (double)of_kind->block.deferred_bytes;
        b.inner_deferred[kind] = (double)of_kind->inner.deferred_bytes;
        b.base_saved[kind] = (double)of_kind->base.saved_bytes;
        b.base_deferred[kind] = (double)of_kind->base.deferred_bytes;
        b.work[kind] = (double)of_kind->base.work_bytes;
    }
    return b;
}

/* Builds the layer profiles of a layout; blocks_only: with hd_layer_profiles_blocks. */
static struct profiled *build_profiles(struct layout_search *s, const struct hd_job *job,
                                       bool blocks_only, const struct profiled *dense)
{
    const struct hd_cluster *cluster = s->asked->cluster;
    struct profiled *p = hd_arena_alloc(&s->kept, sizeof *p);
    enum hd_status st = HD_OK;

    if (!p)
        st = hd_err(HD_NO_MEMORY, "no memory to search layouts");
    else if (blocks_only)
        st = hd_layer_profiles_blocks(job, cluster, dense ? &dense->profiles : NULL, &p->profiles);
    else
        st = hd_layer_profiles_build(job, cluster, &p->profiles);
    search_note_refusal(s, st);
    if (st)
        return NULL;
    p->sizes = sizes_of(s, &p->profiles);
    return p;
}

/* Returns whether some blocks of the model have experts, and others have none. */
static bool mixes_experts(const struct layout_search *s)
{
    bool dense = false, experts = false;

    for (int i = 0; i < s->kind_count; i++) {
        dense |= (s->kinds[i] & HD_LAYER_DENSE) != 0;
        experts |= !(s->kinds[i] & HD_LAYER_DENSE);
    }
    return dense && experts;
}

/* Reduces dp to the fewest replicas that the experts need, and turns off ZeRO and offload. */
static void leave_out_replicas(struct hd_layout_sizes *sizes)
{
    sizes->dp = sizes->ep > sizes->cp ? sizes->ep / sizes->cp : 1;
    if (sizes->dp * sizes->cp % sizes->ep)
        sizes->dp = sizes->ep;
    sizes->zero = 0;
    sizes->zero_shard = 0;
    sizes->offload = HD_JOB_OFFLOAD_NONE;
}

const struct profiled *search_blocks(struct layout_search *s, const struct candidate *c,
                                     const struct hd_layout_sizes *sizes)
{
    const int32_t key[KEY_NUMBERS] = {c->tp, c->cp, c->ep, c->micro_batch, c->recompute};
    struct memo_entry *e = find_memo_entry(s, &s->blocks, key);
    const struct profiled *dense = NULL;
    struct hd_layout_sizes of = *sizes;
    struct candidate alone = *c;

    if (!e || e->known)
        return e ? e->value : NULL;
    if (sizes->ep > 1 && mixes_experts(s)) { /* blocks without experts do not depend on ep */
        alone.ep = 1;
        of.ep = 1;
        dense = search_blocks(s, &alone, &of);
        e = find_memo_entry(s, &s->blocks, key);
        of.ep = sizes->ep;
        if (!e)
            return NULL;
    }
    leave_out_replicas(&of);
    of.pp = 1;
    (void)snprintf(of.stages, sizeof of.stages, "auto");
    s->found->blocks++;
    note(&s->blocks, e, key, build_profiles(s, search_job(s, &of), true, dense));
    return e->value;
}

/* Makes the key of a layout's layer profiles. Of the schedule, they depend only on whether B and W
 * are split, and whether there are several stages. */
static void key_of_profiles(const struct candidate *c, const struct hd_layout_sizes *sizes,
                            int32_t ret_key[KEY_NUMBERS])
{
    const int32_t key[KEY_NUMBERS] = {c->tp,
                                      c->cp,
                                      c->ep,
                                      c->micro_batch,
                                      c->recompute,
                                      (int32_t)sizes->dp,
                                      (int32_t)sizes->zero,
                                      (int32_t)sizes->zero_shard,
                                      sizes->pp > 1,
                                      strncmp(sizes->schedule, "zb-", 3) == 0,
                                      sizes->offload == HD_JOB_OFFLOAD_OPTIMIZER};

    memcpy(ret_key, key, sizeof key);
}

const struct profiled *search_profiles(struct layout_search *s, const struct candidate *c,
                                       const struct hd_layout_sizes *sizes, bool alone)
{
    struct hd_layout_sizes of = *sizes;
    int32_t key[KEY_NUMBERS];
    struct memo_entry *e;

    if (alone)
        leave_out_replicas(&of);
    key_of_profiles(c, &of, key);
    e = find_memo_entry(s, &s->profiles, key);
    if (e && !e->known)
        note(&s->profiles, e, key, build_profiles(s, search_job(s, &of), false, NULL));
    return e ? e->value : NULL;
}

double search_rollout(struct layout_search *s, const struct hd_layout_sizes *z)
{
    const bool gathers = z->zero == 3; /* other stages of ZeRO have whole weights */
    const int32_t key[KEY_NUMBERS] = {(int32_t)z->tp,
                                      (int32_t)z->cp,
                                      (int32_t)z->ep,
                                      (int32_t)z->dp,
                                      z->pp > 1,
                                      gathers,
                                      gathers ? (int32_t)z->zero_shard : 0};
    struct hd_layout_sizes of = *z;
    struct hd_rollout_profile *r;
    struct memo_entry *e;
    enum hd_status st;

    if (!hd_job_has_policy(s->asked->spec))
        return 0;
    e = find_memo_entry(s, &s->rollouts, key);
    if (e && !e->known) {
        of.zero = gathers ? 3 : 0;
        of.zero_shard = gathers ? z->zero_shard : 0;
        of.offload = HD_JOB_OFFLOAD_NONE;
        r = hd_arena_alloc(&s->kept, sizeof *r);
        st = r ? hd_rollout_profile_build(search_job(s, &of), s->asked->cluster, r)
               : hd_err(HD_NO_MEMORY, "no memory to search layouts");
        search_note_refusal(s, st);
        note(&s->rollouts, e, key, st ? NULL : r);
    }
    return e && e->value ? hd_rollout_seconds(e->value, search_job(s, z), s->asked->cluster) : 0;
}

/* ---- schedules ---- */

static enum hd_status order_of(const struct hd_job *job, int64_t micro_batches,
                               struct hd_units *partition, struct hd_arena *arena,
                               struct ordered_step *ret_step)
{
    struct hd_rank_program_shared shared;
    struct hd_job some = *job;
    enum hd_status st;

    some.global_batch = job->dp * job->micro_batch * micro_batches;
    some.validate_batches = 1; /* the schedule of validation is not needed: make it short */
    st = hd_rank_program_schedule(&some, partition, arena, &shared);
    *ret_step = (struct ordered_step){shared.pipeline, shared.units, shared.order};
    return st;
}

static enum hd_status describe_stages(struct ordered *o, struct hd_arena *arena)
{
    const struct hd_pipeline *p = &o->step.pipeline;
    const enum hd_call frees = o->step.order.split ? HD_CALL_W : HD_CALL_B;

    o->stages = hd_arena_array(arena, (size_t)p->stages, sizeof *o->stages);
    if (!o->stages)
        return hd_err(HD_NO_MEMORY, "no memory to search layouts");
    for (int32_t i = 0; i < p->stages; i++) {
        const struct hd_stage_schedule *order = &o->step.order.stages[i];
        struct ordered_stage *stage = &o->stages[i];
        int32_t kept = 0, deferred = 0;

        for (int32_t k = 0; k < p->chunks / p->stages; k++) {
            const int32_t blocks = search_blocks_of(&o->step, hd_pipeline_chunk(p, i, k));

            stage->blocks += blocks;
            stage->largest = blocks > stage->largest ? blocks : stage->largest;
        }
        for (int32_t k = 0; k < hd_pipeline_chunk(p, i, 0); k++)
            stage->before += search_blocks_of(&o->step, k);
        for (int32_t k = 0; k < order->count; k++) {
            kept += (order->entries[k].call == HD_CALL_F) - (order->entries[k].call == frees);
            stage->kept = kept > stage->kept ? kept : stage->kept;
            if (o->step.order.split)
                deferred +=
                    (order->entries[k].call == HD_CALL_B) - (order->entries[k].call == HD_CALL_W);
            stage->deferred = deferred > stage->deferred ? deferred : stage->deferred;
            if (order->entries[k].chunk < o->step.order.frozen)
                kept = 0; /* chunks that only run F save nothing for later */
        }
    }
    return HD_OK;
}

/* Makes the schedule of a step. Schedules are periodic once the pipeline is full: P more
 * micro-batches always add the same time. So a step of many micro-batches is costed by two shorter
 * steps, of M' and M' - P, with the same remainder. A schedule from a file is walked whole.
 * partition: the units of each chunk, of an earlier layout with as many chunks; NULL: none yet. */
static enum hd_status order_step(const struct hd_job *job, struct hd_units *partition,
                                 struct hd_arena *arena, struct ordered *ret_ordered)
{
    const int64_t M = job->global_batch / (job->dp * job->micro_batch), P = job->pp;
    int64_t walked = M;
    enum hd_status st;

    *ret_ordered = (struct ordered){0};
    if (!job->schedule_order && M > (WALKED_PER_STAGE + 1) * P)
        walked = WALKED_PER_STAGE * P + M % P;
    st = order_of(job, walked, partition, arena, &ret_ordered->step);
    if (!st && walked < M)
        st = order_of(job, walked - P, ret_ordered->step.units, arena, &ret_ordered->shorter);
    ret_ordered->repeats = (double)(M - walked) / (double)P;
    if (!st)
        st = describe_stages(ret_ordered, arena);
    for (int32_t i = 0; !st && i < P && strcmp(job->schedule, "gpipe") == 0; i++)
        /* gpipe saves all micro-batches of the step, not only those of the shorter one */
        ret_ordered->stages[i].kept = (int32_t)M;
    return st;
}

const struct ordered *search_ordered(struct layout_search *s, const struct candidate *c,
                                     const struct hd_layout_sizes *sizes)
{
    const int32_t key[KEY_NUMBERS] = {
        c->pp, c->schedule, c->virtual_stages,
        (int32_t)(s->asked->spec->global_batch / (sizes->dp * sizes->micro_batch))};
    const int32_t partition_key[KEY_NUMBERS] = {(int32_t)sizes->pp, (int32_t)sizes->virtual_stages};
    struct memo_entry *e, *partition;
    struct ordered *o;
    enum hd_status st;

    if (c->own)
        return search_repartition(s, c->own);
    e = find_memo_entry(s, &s->orders, key);
    if (!e || e->known)
        return e ? e->value : NULL;
    partition = find_memo_entry(s, &s->partitions, partition_key);
    if (!partition)
        return NULL;
    o = hd_arena_alloc(&s->kept, sizeof *o);
    st = o ? order_step(search_job(s, sizes), partition->value, &s->kept, o)
           : hd_err(HD_NO_MEMORY, "no memory to search layouts");
    search_note_refusal(s, st);
    note(&s->orders, e, key, st ? NULL : o);
    if (!st && !partition->known)
        note(&s->partitions, partition, partition_key, o->step.units);
    return e->value;
}

/* ---- states ---- */

static struct held_state state_of(const struct layout_search *s,
                                  const struct hd_layer_states *states)
{
    struct held_state state = {.embedding = states->embedding.device_bytes,
                               .head = states->head.device_bytes,
                               .tied = states->tied_bytes};

    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];
        const struct hd_layer_state *block = &states->block[kind];

        state.block[kind] = block->device_bytes;
        state.host[kind] = block->host_bytes;
        state.gathered[kind] = block->gathered_bytes;
        state.gather_s[kind] = block->gather_s;
        state.reduce_s[kind] = block->reduce_s;
    }
    return state;
}

const struct held_state *search_state(struct layout_search *s, const struct hd_layout_sizes *z)
{
    static const struct held_state none;
    const int32_t key[KEY_NUMBERS] = {
        (int32_t)z->tp,   (int32_t)z->ep,         (int32_t)(z->dp * z->cp),
        (int32_t)z->zero, (int32_t)z->zero_shard, z->offload == HD_JOB_OFFLOAD_OPTIMIZER,
        z->pp > 1};
    struct memo_entry *e = find_memo_entry(s, &s->states, key);
    struct hd_layer_states states;
    struct held_state *state = NULL;
    enum hd_status st;

    if (e && !e->known) {
        st = hd_layer_states_find(search_job(s, z), s->asked->cluster, s->differ, &states);
        search_note_refusal(s, st);
        if (!st)
            state = hd_arena_alloc(&s->kept, sizeof *state);
        if (state)
            *state = state_of(s, &states);
        note(&s->states, e, key, state);
    }
    return e && e->value ? e->value : &none;
}

/* ---- costs ---- */

enum hd_status search_model_of(const struct hd_model_config *config, struct hd_arena *arena,
                               struct search_model *ret_model)
{
    *ret_model = (struct search_model){.config = config,
                                       .flops_per_token = hd_model_flops_per_token(config)};
    return hd_step_cost_trained(config, arena, &ret_model->trained);
}

static enum hd_status walk_one(const struct hd_search_asked *asked,
                               const struct search_model *model, const struct hd_job *job,
                               const struct hd_layer_profiles *profiles,
                               const struct ordered_step *step, struct hd_step_cost *ret_cost)
{
    const struct hd_step_cost_layout layout = {.pipeline = step->pipeline,
                                               .units = step->units,
                                               .order = &step->order,
                                               .config = model->config,
                                               .ranks_per_stage = job->dp * job->cp * job->tp,
                                               .segment = hd_layer_profile_segment(job),
                                               .trained = model->trained};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_step_cost_of_layout(profiles, &layout, asked->cluster, &arena, ret_cost);
    hd_arena_done(&arena);
    return st;
}

enum hd_status search_walk(const struct hd_search_asked *asked, const struct search_model *model,
                           const struct hd_job *job, const struct hd_layer_profiles *profiles,
                           const struct ordered *o, double rollout_s, struct hd_step_cost *ret_cost)
{
    struct hd_step_cost shorter, more;
    enum hd_status st = walk_one(asked, model, job, profiles, &o->step, ret_cost);

    if (!st && o->repeats > 0) {
        st = walk_one(asked, model, job, profiles, &o->shorter, &shorter);
        more = *ret_cost;
        hd_step_cost_add(&more, -1, &shorter);
        hd_step_cost_add(ret_cost, o->repeats, &more);
    }
    ret_cost->rollout_s = rollout_s;
    ret_cost->step_s += rollout_s;
    if (!st)
        hd_step_cost_rate(ret_cost, model->flops_per_token, asked->spec, asked->devices,
                          asked->peak_flops);
    return st;
}

enum hd_status search_cost(const struct hd_search_asked *asked,
                           const struct hd_model_config *config, const struct hd_job *job,
                           struct hd_step_cost *ret_cost)
{
    struct ordered ordered;
    struct hd_rollout_profile rollout = {.draw_s = 0};
    struct hd_layer_profiles profiles;
    struct search_model model;
    struct hd_arena arena;
    enum hd_status st = hd_layer_profiles_build(job, asked->cluster, &profiles);

    if (!st && hd_job_has_policy(job))
        st = hd_rollout_profile_build(job, asked->cluster, &rollout);
    if (st)
        return st;
    hd_arena_init(&arena, 0);
    st = order_step(job, NULL, &arena, &ordered);
    if (!st)
        st = search_model_of(config, &arena, &model);
    if (!st)
        st = search_walk(asked, &model, job, &profiles, &ordered,
                         hd_rollout_seconds(&rollout, job, asked->cluster), ret_cost);
    hd_arena_done(&arena);
    return st;
}
