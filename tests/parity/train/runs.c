#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"

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

int64_t run_copy_state(struct hd_trainer *t, enum hd_state_kind kind, float *ret_values)
{
    const struct hd_registry *r = &hd_trainer_layout(t)->registry;
    int64_t at = 0;

    for (int i = 0; i < r->param_count; at += r->params[i++].count)
        if (at + r->params[i].count <= RUN_ELEMENTS_MAX)
            memcpy(ret_values + at, hd_trainer_state(t, i, kind),
                   (size_t)r->params[i].count * sizeof *ret_values);
    return at;
}

uint64_t run_hash_state(struct hd_trainer *t)
{
    static const enum hd_state_kind kinds[] = {HD_STATE_WEIGHT, HD_STATE_GRAD, HD_STATE_MOMENT1,
                                               HD_STATE_MOMENT2};
    const struct hd_registry *r = &hd_trainer_layout(t)->registry;
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int i = 0; i < r->param_count; i++)
            hd_hash_add(&hash, hd_trainer_state(t, i, kinds[k]),
                        (size_t)r->params[i].count * sizeof(float));
    return hd_hash_value(&hash);
}

static void replace_masters(struct hd_trainer *t, const float *values)
{
    const struct hd_registry *r = &hd_trainer_layout(t)->registry;

    for (int i = 0; i < r->param_count; values += r->params[i++].count)
        memcpy(hd_trainer_state(t, i, HD_STATE_WEIGHT), values,
               (size_t)r->params[i].count * sizeof *values);
}

static enum hd_status take_steps(struct hd_trainer *t, struct run *run, bool speaks)
{
    for (int s = 0; s < run->steps; s++) {
        struct hd_step_result result;
        enum hd_status st;

        if (run->replace_after && s == run->replace_after)
            replace_masters(t, run->replacement);
        if (speaks && s == run->steps - 1)
            (void)run_copy_state(t, HD_STATE_WEIGHT, run->before_last);
        st = hd_trainer_step(t, 0, &result);
        if (st)
            return st;
        if (!speaks)
            continue;
        run->loss[s] = result.loss;
        run->grad_norm[s] = result.grad_norm;
        if (s == 0)
            (void)run_copy_state(t, HD_STATE_GRAD, run->first_grad);
    }
    return HD_OK;
}

static enum hd_status body(struct harness_rank *r)
{
    struct run *run = r->shared ? r->shared : r->context;
    const struct hd_trainer_options options = {
        .backend = hd_backend_cpu(), .comm = r->comm, .rank = r->rank, .layout = run->layout};
    const bool speaks = r->rank == 0;
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = hd_trainer_init(t);
    if (!st && speaks)
        run->count = run_copy_state(t, HD_STATE_WEIGHT, run->initial);
    if (!st && speaks && run->count > RUN_ELEMENTS_MAX)
        st = hd_err(HD_LIMIT, "the model of this test is larger than RUN_ELEMENTS_MAX");
    if (!st)
        st = take_steps(t, run, speaks);
    if (!st && speaks) {
        (void)run_copy_state(t, HD_STATE_WEIGHT, run->weights);
        (void)run_copy_state(t, HD_STATE_GRAD, run->last_grad);
    }
    run->state_hash[r->rank] = run_hash_state(t);
    hd_trainer_free(t);
    return st;
}

void run_threads(struct hd_job job, int dp, struct run *run)
{
    job.dp = dp;
    if (harness_threads(&job, dp, run, body))
        fail_msg("%d threads: %s", dp, hd_err_message());
}

void run_processes(struct hd_job job, int dp, struct run *run)
{
    job.dp = dp;
    if (harness_processes(&job, dp, run, body))
        fail_msg("%d processes: %s", dp, hd_err_message());
}

void run_layout(const struct hd_job *job, const struct hd_layout_options *options,
                struct hd_arena *arena, struct hd_layout *ret_layout)
{
    const struct hd_backend_options backend = {.threads = (int)job->threads};
    struct hd_traits traits;

    hd_backend_cpu()->describe(&backend, &traits);
    if (hd_layout_build(job, 0, &traits, options, arena, ret_layout))
        fail_msg("%s", hd_err_message());
}
