#include "plan/step_cost.h"

#include <string.h>

#include "base/math.h"
#include "plan/links.h"

/* ---- programs ---- */

/* Returns whether the layer profiles contain the share of each block that trains: everything
 * trains, or the same adapter does in each block. */
static bool profiles_know(const struct hd_model_config *c)
{
    const struct hd_only only = hd_model_only(c);

    return c->adapter.kind != HD_ADAPTER_NONE || hd_only_is_all(&only);
}

enum hd_status hd_step_cost_trained(const struct hd_model_config *c, struct hd_arena *arena,
                                    const double **ret_trained)
{
    const size_t units = (size_t)hd_model_unit_count(c);
    double *trained, *all;
    struct hd_registry registry;
    struct hd_arena scratch;
    struct hd_model model;
    enum hd_status st;

    *ret_trained = NULL;
    if (profiles_know(c))
        return HD_OK;
    hd_arena_init(&scratch, 0);
    hd_registry_init(&registry, &scratch, NULL, 0);
    st = hd_model_declare(c, &registry, &scratch, &model);
    trained = hd_arena_array(arena, units, sizeof *trained);
    all = hd_arena_array(&scratch, units, sizeof *all);
    if (!st && (!trained || !all))
        st = hd_err(HD_NO_MEMORY, "no memory for a price");
    for (int i = 0; !st && i < registry.param_count; i++) {
        const struct hd_param *p = &registry.params[i];

        all[p->unit] += (double)p->count;
        trained[p->unit] += p->trainable ? (double)p->count : 0;
    }
    for (size_t u = 0; !st && u < units; u++)
        trained[u] = all[u] > 0 ? trained[u] / all[u] : 0;
    hd_arena_done(&scratch);
    if (!st)
        *ret_trained = trained;
    return st;
}

/* Returns the share, 0 to 1, of a unit's program that runs if train.trainable trains a part of the
 * model; F always runs whole. */
static double backward_share_of(const struct hd_layer_profiles *p, const struct hd_model_config *c,
                                int unit, enum hd_layer_profile_call call)
{
    const int64_t layer = unit - HD_UNIT_FIRST_BLOCK;
    const struct hd_layer_profile *block = &p->kind[hd_model_layer_kind(c, layer)].block;
    const bool split = block->time[HD_LAYER_PROFILE_W][0].run > 0;
    struct hd_backward_shares s;

    if (call == HD_LAYER_PROFILE_F)
        return 1;
    s = hd_model_backward_shares(c, layer);
    if (call == HD_LAYER_PROFILE_W)
        return s.weights;
    return split ? s.inputs : s.all;
}

/* Returns the kind of the first block of a chunk; without blocks: that of the model's first
 * block. */
static int first_kind(const struct hd_layer_profiles *p, const struct hd_model_config *c,
                      struct hd_units units)
{
    const int64_t layer = units.first > HD_UNIT_FIRST_BLOCK ? units.first - HD_UNIT_FIRST_BLOCK : 0;

    return layer < c->L ? hd_model_layer_kind(c, layer) : p->first_kind;
}

/* Adds one block, times `share`, to the numbers of profiles `block` ([0]) and `inner` ([1]) by
 * kind. A block that continues a recompute segment takes more than one that begins it, because
 * backward recomputes its input: the output of the block before, whose kind therefore counts. */
static void count_block(const struct hd_model_config *c, int unit, bool continues, double share,
                        double blocks[2][HD_LAYER_KINDS])
{
    const int64_t layer = unit - HD_UNIT_FIRST_BLOCK;

    blocks[0][hd_model_layer_kind(c, layer)] += share;
    if (continues) {
        const int before = hd_model_layer_kind(c, layer - 1);

        blocks[1][before] += share;
        blocks[0][before] -= share;
    }
}

struct hd_program_time hd_step_cost_program(const struct hd_layer_profiles *p,
                                            const struct hd_model_config *c, struct hd_units units,
                                            int64_t segment, enum hd_layer_profile_call call,
                                            bool last)
{
    const int head = hd_model_unit_count(c) - 1;
    struct hd_program_time t = p->kind[first_kind(p, c, units)].base.time[call][last];
    const bool all = profiles_know(c), backward = call != HD_LAYER_PROFILE_F;
    double blocks[2][HD_LAYER_KINDS] = {{0}};

    for (int unit = units.first; unit < units.end; unit++)
        if (unit == HD_UNIT_EMBEDDING && backward && !all && c->lowest_trained > unit)
            continue; /* the embedding is not trained, so backward ends above it */
        else if (unit == HD_UNIT_EMBEDDING)
            hd_program_time_add(&t, 1, &p->embedding.time[call][last]);
        else if (unit == head)
            hd_program_time_add(&t, 1, &p->head.time[call][last]);
        else
            count_block(c, unit, hd_layer_profile_continues(units, unit, segment),
                        all ? 1 : backward_share_of(p, c, unit, call), blocks);
    for (int kind = 0; kind < HD_LAYER_KINDS; kind++)
        if (blocks[0][kind] != 0)
            hd_program_time_add(&t, blocks[0][kind], &p->kind[kind].block.time[call][last]);
    for (int kind = 0; kind < HD_LAYER_KINDS; kind++)
        if (blocks[1][kind] != 0)
            hd_program_time_add(&t, blocks[1][kind], &p->kind[kind].inner.time[call][last]);
    t.run = hd_max_real(t.run, t.compute);
    return t;
}

/* ---- the walk ---- */

struct stage {
    /* seconds: end of the stage's last program; sums of the time of its programs, and of its
     * waiting for other stages */
    double clock, busy, waited;
    double reduce_end; /* seconds at which the stage's reduction stream ends */
    /* seconds at which the stage's last transfer ends: [0 hidden rows, 1 gradients][0: to an
     * earlier stage, 1: to a later one] */
    double channel[2][2];
    int32_t next; /* index of the stage's next schedule entry */
};

/* The transfer of a chunk's output to its neighbour. */
struct passage {
    int32_t stage; /* pipeline stage of the neighbouring chunk; -1: there is none */
    double seconds;
};

struct step_walk {
    const struct hd_step_cost_layout *l;
    const struct hd_cluster *cluster;
    const struct hd_layer_profiles *profiles;
    struct hd_program_time (
        *times)[HD_LAYER_PROFILE_CALLS][2]; /* [chunks], by call; [1]: in the last micro-batch */
    /* [chunks] transfers of hidden rows to the next chunk; of gradients to the previous one */
    struct passage (*ways)[2];
    struct stage *stages;
    /* [chunk, micro-batch] seconds at which the program's input arrived: [0] rows for F, [1]
     * gradients for B; -1: not yet */
    double *arrived[2];
};

static int profile_call(enum hd_call call)
{
    return call == HD_CALL_F   ? HD_LAYER_PROFILE_F
           : call == HD_CALL_B ? HD_LAYER_PROFILE_B
                               : HD_LAYER_PROFILE_W;
}

static int64_t slot_of(const struct step_walk *s, int32_t chunk, int32_t micro_batch)
{
    return (int64_t)chunk * s->l->order->micro_batches + micro_batch;
}

/* Returns the chunk whose output a program needs: the previous one for F, the next one for B; -1:
 * none. */
static int32_t giver(const struct step_walk *s, const struct hd_schedule_entry *e)
{
    if (e->call == HD_CALL_F)
        return e->chunk - 1;
    return e->call == HD_CALL_B && e->chunk + 1 < s->l->pipeline.chunks ? e->chunk + 1 : -1;
}

/* Computes when a program's output arrives at the chunk that needs it. If transfers take the
 * receiving rank's thread, they start only when that rank receives. */
static void send(struct step_walk *s, struct stage *from, int32_t stage,
                 const struct hd_schedule_entry *e)
{
    const bool back = e->call == HD_CALL_B;
    const int32_t taker = back ? e->chunk - 1 : e->chunk + 1;
    const struct passage *way = &s->ways[e->chunk][back];
    double *channel, start;

    if (e->call == HD_CALL_W || way->stage < 0 || (back && taker < s->l->order->frozen))
        return;
    if (way->stage == stage) {
        s->arrived[back][slot_of(s, taker, e->micro_batch)] = from->clock;
        return;
    }
    if (s->cluster->rates.collectives_take_thread) {
        s->arrived[back][slot_of(s, taker, e->micro_batch)] = from->clock;
        return;
    }
    channel = &from->channel[back][way->stage > stage];
    start = hd_max_real(*channel, from->clock);
    *channel = start + way->seconds;
    s->arrived[back][slot_of(s, taker, e->micro_batch)] = *channel;
}

/* Returns the seconds that the rank's own thread spends on receiving a program's input from another
 * stage; 0: transfers run beside it. */
static double receives(const struct step_walk *s, const struct hd_schedule_entry *e, int32_t stage)
{
    const int32_t from = giver(s, e);

    if (!s->cluster->rates.collectives_take_thread ||
        hd_pipeline_stage(&s->l->pipeline, from) == stage)
        return 0;
    return s->ways[from][e->call == HD_CALL_B].seconds;
}

/* Advances a stage by its next program; false: the program's input has not been computed yet. */
static bool advance(struct step_walk *s, int32_t number)
{
    struct stage *st = &s->stages[number];
    const struct hd_schedule_entry *e = &s->l->order->stages[number].entries[st->next];
    const bool last = e->micro_batch == s->l->order->micro_batches - 1;
    const struct hd_program_time *t = &s->times[e->chunk][profile_call(e->call)][last];
    double start = st->clock;

    if (giver(s, e) >= 0) {
        const double at = s->arrived[e->call == HD_CALL_B][slot_of(s, e->chunk, e->micro_batch)];

        if (at < 0)
            return false;
        start = hd_max_real(start, at) + receives(s, e, number);
    }
    st->waited += start - st->clock;
    st->clock = start + t->run;
    st->busy += t->run;
    if (t->reduce > 0)
        st->reduce_end = hd_max_real(st->reduce_end + t->reduce, st->clock + t->reduce_after);
    send(s, st, number, e);
    st->next++;
    return true;
}

static enum hd_status walk_stages(struct step_walk *s)
{
    const int32_t stages = s->l->pipeline.stages;
    bool moved = true;

    while (moved) {
        moved = false;
        for (int32_t i = 0; i < stages; i++)
            while (s->stages[i].next < s->l->order->stages[i].count && advance(s, i))
                moved = true;
    }
    for (int32_t i = 0; i < stages; i++)
        if (s->stages[i].next < s->l->order->stages[i].count)
            return hd_err(HD_INVALID, "the order of the pipeline waits for itself on stage %d",
                          (int)i);
    return HD_OK;
}

static struct passage passage_of(const struct step_walk *s, int32_t chunk, int32_t taker)
{
    const int64_t ranks = s->l->ranks_per_stage;
    const int32_t stage = hd_pipeline_stage(&s->l->pipeline, chunk);
    struct passage way = {.stage = -1};

    if (taker < 0 || taker >= s->l->pipeline.chunks)
        return way;
    way.stage = hd_pipeline_stage(&s->l->pipeline, taker);
    if (way.stage != stage)
        way.seconds = hd_links_transfer(s->cluster, &s->profiles->stages, stage * ranks,
                                        way.stage * ranks, (double)s->profiles->stage_io_bytes) +
                      s->cluster->rates.wait_s;
    return way;
}

static enum hd_status prepare(struct step_walk *s, struct hd_arena *arena)
{
    const int32_t chunks = s->l->pipeline.chunks;
    const size_t values = (size_t)chunks * (size_t)s->l->order->micro_batches;

    s->stages = hd_arena_array(arena, (size_t)s->l->pipeline.stages, sizeof *s->stages);
    s->times = hd_arena_array(arena, (size_t)chunks, sizeof *s->times);
    s->ways = hd_arena_array(arena, (size_t)chunks, sizeof *s->ways);
    for (int back = 0; back < 2; back++) {
        s->arrived[back] = hd_arena_array(arena, values, sizeof(double));
        for (size_t i = 0; s->arrived[back] && i < values; i++)
            s->arrived[back][i] = -1;
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory to walk a step");
    for (int32_t c = 0; c < chunks; c++) {
        s->ways[c][0] = passage_of(s, c, c + 1);
        s->ways[c][1] = passage_of(s, c, c - 1);
        for (int call = 0; call < HD_LAYER_PROFILE_CALLS; call++)
            for (int last = 0; last < 2; last++)
                s->times[c][call][last] =
                    hd_step_cost_program(s->profiles, s->l->config, s->l->units[c], s->l->segment,
                                         (enum hd_layer_profile_call)call, last);
    }
    return HD_OK;
}

/* ---- the cost ---- */

/* Returns the seconds of U and P of one unit. */
static double unit_update(const struct step_walk *s, int unit)
{
    const struct hd_model_config *c = s->l->config;

    if (unit == HD_UNIT_EMBEDDING)
        return s->profiles->update_first;
    if (unit == hd_model_unit_count(c) - 1)
        return s->profiles->update_last;
    return s->profiles->kind[hd_model_layer_kind(c, unit - HD_UNIT_FIRST_BLOCK)].update;
}

static double update_of(const struct step_walk *s, int32_t stage)
{
    const int32_t each = s->l->pipeline.chunks / s->l->pipeline.stages;
    double seconds = s->profiles->update_base;

    for (int32_t k = 0; k < each; k++) {
        const struct hd_units u = s->l->units[hd_pipeline_chunk(&s->l->pipeline, stage, k)];

        for (int unit = u.first; unit < u.end; unit++)
            seconds += (s->l->trained ? s->l->trained[unit] : 1) * unit_update(s, unit);
    }
    return seconds;
}

/* Adds to *sum the times of all programs of a pipeline stage. */
static void add_programs(const struct step_walk *s, int32_t stage, struct hd_program_time *sum)
{
    const struct hd_stage_schedule *o = &s->l->order->stages[stage];

    for (int32_t i = 0; i < o->count; i++) {
        const struct hd_schedule_entry *e = &o->entries[i];
        const bool last = e->micro_batch == s->l->order->micro_batches - 1;

        hd_program_time_add(sum, 1, &s->times[e->chunk][profile_call(e->call)][last]);
    }
}

static void explain(const struct step_walk *s, int32_t stage, double end, struct hd_step_cost *p)
{
    const struct stage *st = &s->stages[stage];
    struct hd_program_time sum = {0};
    double known;

    add_programs(s, stage, &sum);
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        p->communication_s[g] = hd_max_real(sum.waits[g], 0);
    p->communication_s[HD_GROUP_DP_CP] += hd_max_real(st->reduce_end - st->clock, 0);
    p->update_s = update_of(s, stage);
    p->compute_s = sum.compute;
    known = p->compute_s + p->update_s;
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        known += p->communication_s[g];
    p->bubble_s = end - known > 1e-9 * end ? end - known : 0; /* less is rounding */
}

enum hd_status hd_step_cost_of_layout(const struct hd_layer_profiles *profiles,
                                      const struct hd_step_cost_layout *layout,
                                      const struct hd_cluster *cluster, struct hd_arena *arena,
                                      struct hd_step_cost *ret_cost)
{
    struct step_walk s = {.l = layout, .cluster = cluster, .profiles = profiles};
    const int32_t stages = layout->pipeline.stages;
    double ends = 0, update = 0;
    int32_t most = 0;
    enum hd_status st = prepare(&s, arena);

    if (!st)
        st = walk_stages(&s);
    if (st)
        return st;
    *ret_cost = (struct hd_step_cost){0};
    for (int32_t i = 0; i < stages; i++) {
        ends = hd_max_real(ends, hd_max_real(s.stages[i].clock, s.stages[i].reduce_end));
        update = hd_max_real(update, update_of(&s, i));
        ret_cost->programs_s = hd_max_real(ret_cost->programs_s, s.stages[i].clock);
        ret_cost->busy_s += s.stages[i].busy / stages;
        if (s.stages[i].busy > s.stages[most].busy)
            most = i;
    }
    /* in U all ranks exchange the step's records before any weight changes */
    ret_cost->step_s = ends + update;
    /* the frozen model's stages take equal times, and the pipeline fills once before a step */
    ret_cost->frozen_s =
        profiles->frozen * (double)(layout->order->micro_batches + stages - 1) / stages;
    explain(&s, most, ret_cost->step_s, ret_cost);
    ret_cost->step_s += ret_cost->frozen_s;
    ret_cost->compute_s += ret_cost->frozen_s;
    if (stages * layout->ranks_per_stage > 1) {
        const double waits = cluster->rates.wait_share * ret_cost->compute_s;

        ret_cost->step_s += waits;
        ret_cost->communication_s[HD_GROUP_WORLD] += waits;
    }
    return HD_OK;
}

void hd_step_cost_add(struct hd_step_cost *y, double a, const struct hd_step_cost *x)
{
    y->step_s += a * x->step_s;
    y->compute_s += a * x->compute_s;
    y->update_s += a * x->update_s;
    y->bubble_s += a * x->bubble_s;
    y->programs_s += a * x->programs_s;
    y->frozen_s += a * x->frozen_s;
    y->busy_s += a * x->busy_s;
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        y->communication_s[g] += a * x->communication_s[g];
}

void hd_step_cost_rate(struct hd_step_cost *p, double flops_per_token, const struct hd_job *job,
                       int64_t devices, double peak_flops)
{
    const double tokens = (double)job->global_batch * (double)job->context;

    p->bubble = p->programs_s > 0 ? 1 - p->busy_s / p->programs_s : 0;
    p->tokens_per_s = tokens / p->step_s;
    p->mfu =
        peak_flops > 0 ? tokens * flops_per_token / (p->step_s * peak_flops * (double)devices) : 0;
}
