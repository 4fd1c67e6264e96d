#include "runs.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/random.h"
#include "pairs.h"
#include "tests/program/test.h"
#include "traffic.h"

struct run *run_new(int steps)
{
    struct run *run = harness_shared(sizeof *run);

    run->steps = steps;
    return run;
}

void run_free(struct run *run)
{
    harness_shared_free(run, sizeof *run);
}

int64_t param_elements(const struct hd_param *p)
{
    int64_t elements = 1;

    for (int d = 0; d < p->dim_count; d++)
        elements *= p->shape[d];
    return elements;
}

/* The lowest rank that has this rank's share of p, or of it the same shard of ZeRO, puts it into
 * the whole. */
static bool speaks_for(const struct hd_registry *r, const struct hd_param *p,
                       enum hd_state_kind kind)
{
    const struct hd_bucket *bucket = &r->buckets[p->bucket];
    const struct hd_range mine = hd_bucket_range(r, bucket, kind, r->rank);
    int rank = 0;

    while (!hd_bucket_is_held_by(r, bucket, rank) ||
           hd_param_shard_index(p, &r->mesh, rank) != hd_param_shard_index(p, &r->mesh, r->rank) ||
           hd_bucket_range(r, bucket, kind, rank).begin != mine.begin)
        rank++;
    return rank == r->rank;
}

/* A function applied to one element of a shard and its index in the whole. */
typedef void element_fn(void *context, float *mine, int64_t at);

/* Calls `each` for every parameter and each element of this rank's share that is no padding; of
 * parameters of which an earlier rank holds the same share only if `all`. Returns the elements of
 * the whole. */
static int64_t for_share(struct hd_trainer *t, enum hd_state_kind kind, bool all,
                         element_fn *element, void *context)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;
    int64_t whole = 0;

    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        int64_t first, count;
        float *share;

        hd_trainer_local_shard(t, i, kind, &first, &count);
        if (count && !all && !speaks_for(r, p, kind))
            count = 0;
        share = count ? harness_take(t, i, kind) : NULL;
        for (int64_t k = first; k < first + count; k++) {
            const int64_t at = hd_param_global_index(p, k);

            if (at >= 0)
                element(context, share + k, whole + at);
        }
        if (share)
            harness_put(t, i, kind, share);
        whole += param_elements(p);
    }
    return whole;
}

static void put(void *context, float *mine, int64_t at)
{
    if (at < RUN_ELEMENTS_MAX)
        ((float *)context)[at] = *mine;
}

static void take(void *context, float *mine, int64_t at)
{
    *mine = ((const float *)context)[at];
}

static void disturb(void *context, float *mine, int64_t at)
{
    *mine += *(const float *)context * hd_random_normal(11, (uint64_t)at);
}

struct check {
    const float *whole;
    int64_t differ;
};

static void check_bits(void *context, float *mine, int64_t at)
{
    struct check *check = context;

    check->differ += memcmp(mine, &check->whole[at], sizeof *mine) != 0;
}

int64_t run_copy_state(struct hd_trainer *t, enum hd_state_kind kind, float *ret_values)
{
    return for_share(t, kind, false, put, ret_values);
}

void run_put_state(struct hd_trainer *t, enum hd_state_kind kind, float *values)
{
    (void)for_share(t, kind, true, take, values);
}

void run_copy_saved(struct hd_trainer *t, struct run *run)
{
    (void)run_copy_state(t, HD_STATE_WEIGHT, run->weights);
    (void)run_copy_state(t, HD_STATE_MOMENT1, run->moments[0]);
    (void)run_copy_state(t, HD_STATE_MOMENT2, run->moments[1]);
}

uint64_t run_hash_kinds(struct hd_trainer *t, const enum hd_state_kind *kinds, int count)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < r->param_count; i++) {
            int64_t first, held;
            float *values;

            hd_trainer_local_shard(t, i, kinds[k], &first, &held);
            if (!held)
                continue;
            values = harness_take(t, i, kinds[k]);
            hd_hash_add(&hash, values + first, (size_t)held * sizeof(float));
            free(values);
        }
    return hd_hash_value(&hash);
}

uint64_t run_hash_state(struct hd_trainer *t)
{
    static const enum hd_state_kind kinds[] = {HD_STATE_WEIGHT, HD_STATE_GRAD, HD_STATE_MOMENT1,
                                               HD_STATE_MOMENT2};

    return run_hash_kinds(t, kinds, (int)(sizeof kinds / sizeof kinds[0]));
}

static void keep_routers(const struct hd_router_result *router, struct run_routers *ret)
{
    *ret = (struct run_routers){router->balance, router->z, router->dropped, {0}};
    for (int64_t e = 0; e < router->experts && e < RUN_EXPERTS_MAX; e++)
        ret->load[e] = router->load[e];
}

static enum hd_status take_steps(struct harness_rank *r, struct hd_trainer *t, struct run *run)
{
    for (int s = 0; s < run->steps; s++) {
        const bool is_counted = run->traffic && s == 1; /* what happens once is the first step's */
        struct hd_step_result result;
        enum hd_status st;

        if (s == run->steps - 1) {
            (void)run_copy_state(t, HD_STATE_WEIGHT, run->before_last);
            if (run->last_at)
                (void)for_share(t, HD_STATE_WEIGHT, true, take, (void *)run->last_at);
        }
        if (run->before_step)
            run->before_step(t, s, run->context);
        if (is_counted)
            traffic_begin(r, t);
        st = pairs_step(t, &result);
        if (!st && is_counted)
            st = traffic_end_step(r, t, run->traffic);
        if (st)
            return st;
        if (s == 0)
            (void)run_copy_state(t, HD_STATE_GRAD, run->first_grad);
        if (r->rank)
            continue;
        run->loss[s] = result.loss;
        run->grad_norm[s] = result.grad_norm;
        run->targets[s] = result.targets;
        run->tokens[s] = result.tokens;
        if (s == 0)
            keep_routers(&result.router, &run->routers);
    }
    return HD_OK;
}

static enum hd_status validate(struct harness_rank *r, struct hd_trainer *t, struct run *run)
{
    int64_t targets = 0;
    double loss = 0;
    enum hd_status st = HD_OK;

    if (run->traffic)
        traffic_begin(r, t);
    /* the data of grpo are prompts, and it validates nothing */
    if (!hd_job_has_policy(&hd_trainer_rank_program(t)->job))
        st = hd_trainer_validate(t, &loss, &targets);
    if (!st && run->traffic)
        st = traffic_end_validation(r, t, run->traffic);
    if (!st && r->rank == 0) {
        run->validation_loss = loss;
        run->validation_targets = targets;
    }
    return st;
}

/* Puts the state in the end together, and looks whether every rank has what was put. */
static enum hd_status compare_ranks(struct harness_rank *r, struct hd_trainer *t, struct run *run)
{
    const struct {
        enum hd_state_kind kind;
        float *whole;
    } states[] = {{HD_STATE_WEIGHT, run->weights},
                  {HD_STATE_GRAD, run->last_grad},
                  {HD_STATE_MOMENT1, run->moments[0]},
                  {HD_STATE_MOMENT2, run->moments[1]}};
    enum hd_status st;

    for (size_t k = 0; k < sizeof states / sizeof states[0]; k++)
        (void)run_copy_state(t, states[k].kind, states[k].whole);
    st = harness_meet(r);
    for (size_t k = 0; !st && k < sizeof states / sizeof states[0]; k++) {
        struct check check = {.whole = states[k].whole};

        (void)for_share(t, states[k].kind, true, check_bits, &check);
        run->disagree[r->rank] += check.differ;
    }
    return st;
}

static enum hd_status body(struct harness_rank *r)
{
    struct run *run = r->shared ? r->shared : r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend =
                                                   run->backend ? run->backend : harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .layout = run->layout};
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = harness_init(t);
    if (!st && hd_registry_global_count(&hd_trainer_rank_program(t)->registry) > RUN_ELEMENTS_MAX)
        st = hd_err(HD_LIMIT, "the model of this test is larger than RUN_ELEMENTS_MAX");
    if (!st && r->rank == 0)
        run->count = hd_registry_global_count(&hd_trainer_rank_program(t)->registry);
    if (!st && run->noise > 0)
        (void)for_share(t, HD_STATE_WEIGHT, true, disturb, &run->noise);
    if (!st)
        (void)run_copy_state(t, HD_STATE_WEIGHT, run->initial);
    if (!st)
        st = take_steps(r, t, run);
    if (!st)
        st = validate(r, t, run);
    if (!st)
        st = compare_ranks(r, t, run);
    run->state_hash[r->rank] = run_hash_state(t);
    hd_trainer_free(t);
    return st;
}

int run_world(const struct hd_job *job)
{
    return (int)(job->pp * job->dp * job->cp * job->tp);
}

enum hd_status run_on_threads(const struct hd_job *job, struct run *run)
{
    return harness_threads(job, run_world(job), run, body);
}

enum hd_status run_on_processes(const struct hd_job *job, struct run *run)
{
    return harness_processes(job, run_world(job), run, body);
}

enum hd_status run_on_gloo(const struct hd_job *job, struct run *run)
{
    return harness_gloo_processes(job, run_world(job), run, body);
}

void run_threads(struct hd_job job, int dp, struct run *run)
{
    job.dp = dp;
    if (run_on_threads(&job, run))
        fail_msg("%d threads: %s", run_world(&job), hd_err_message());
}

void run_processes(struct hd_job job, int dp, struct run *run)
{
    job.dp = dp;
    if (run_on_processes(&job, run))
        fail_msg("%d processes: %s", run_world(&job), hd_err_message());
}

/* ---- checkpoints ---- */

struct crossing {
    int steps;                    /* before it saves */
    const struct hd_saved *saved; /* to load; NULL: it begins anew */
    struct hd_saved *ret_saved;   /* NULL: it does not save */
    struct run *run;
};

static enum hd_status begin_crossing(struct hd_trainer *t, const struct crossing *c, int rank)
{
    struct hd_step_result result;
    struct hd_saved saved;
    enum hd_status st;

    st = harness_init(t); /* also where it loads: a reference is of the start */
    if (!st && c->saved)
        st = hd_trainer_load(t, c->saved->path, c->saved->hash, NULL);
    for (int s = 0; !st && s < c->steps; s++)
        st = pairs_step(t, &result);
    if (!st && c->ret_saved)
        st = hd_trainer_save(t, &saved);
    if (!st && c->ret_saved && rank == 0)
        *c->ret_saved = saved;
    return st;
}

static enum hd_status cross(struct harness_rank *r)
{
    const struct crossing *c = r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank};
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = begin_crossing(t, c, r->rank);
    if (!st) {
        run_copy_saved(t, c->run);
    }
    for (int s = 0; !st && s < c->run->steps; s++) {
        st = pairs_step(t, &result);
        if (!st && r->rank == 0)
            c->run->loss[s] = result.loss;
    }
    hd_trainer_free(t);
    return st;
}

static void run_crossing(const struct hd_job *job, struct crossing *crossing)
{
    if (harness_threads(job, run_world(job), crossing, cross))
        fail_msg("%s", hd_err_message());
}

void run_save(const struct hd_job *job, int steps, struct run *run, struct hd_saved *ret_saved)
{
    run_crossing(job, &(struct crossing){.steps = steps, .ret_saved = ret_saved, .run = run});
}

void run_load(const struct hd_job *job, const struct hd_saved *saved, struct run *run)
{
    run_crossing(job, &(struct crossing){.saved = saved, .run = run});
}

void run_load_and_save(const struct hd_job *job, const struct hd_saved *saved, struct run *run,
                       struct hd_saved *ret_saved)
{
    run_crossing(job, &(struct crossing){.saved = saved, .ret_saved = ret_saved, .run = run});
}

void run_compare_state(const struct run *a, const struct run *b)
{
    assert_memory_equal(a->weights, b->weights, sizeof a->weights);
    assert_memory_equal(a->moments, b->moments, sizeof a->moments);
}

void run_layout(const struct hd_job *job, const struct hd_rank_program_options *options,
                struct hd_arena *arena, struct hd_rank_program *ret_layout)
{
    run_layout_of(job, 0, options, arena, ret_layout);
}

void run_layout_of(const struct hd_job *job, int rank,
                   const struct hd_rank_program_options *options, struct hd_arena *arena,
                   struct hd_rank_program *ret_layout)
{
    const struct hd_backend_options backend = {.threads = (int)job->threads};
    struct hd_traits traits;

    harness_backend()->describe(&backend, &traits);
    if (hd_rank_program_build(job, rank, &traits, options, arena, ret_layout))
        fail_msg("%s", hd_err_message());
}

void run_for_params(const struct hd_job *job,
                    void (*visit)(const struct hd_param *p, int64_t first, void *context),
                    void *context)
{
    struct hd_arena arena;
    struct hd_rank_program l;
    int64_t first = 0;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_rank_program_options){0}, &arena, &l);
    for (int i = 0; i < l.registry.param_count; i++) {
        visit(&l.registry.params[i], first, context);
        first += param_elements(&l.registry.params[i]);
    }
    hd_arena_done(&arena);
}
