#include "device_memory.h"

#include "tests/program/test.h"

#include <stdio.h>
#include <string.h>

struct hd_job device_job(const struct harness *h, const struct device_case *c)
{
    struct hd_job job = harness_job(h, c->family, (int)c->dp);

    job.layers = c->layers;
    job.ffn_hidden = c->ffn;
    job.cp = c->cp;
    job.tp = c->tp;
    job.ep = c->ep;
    job.sequence = c->sequence;
    job.global_batch = 4;
    job.micro_batch = 1;
    job.validate_batches = 1;
    job.precision = hd_job_find_word(hd_job_precision_words, c->precision);
    if (c->offload)
        job.offload = HD_JOB_OFFLOAD_OPTIMIZER;
    job.device = HD_JOB_DEVICE_CUDA;
    return job;
}

/* Whole pages of each half; in this test's own words. */
static int64_t predict(const struct harness_rank *r, const struct device_found *f)
{
    const struct hd_backend_options options = hd_trainer_backend_options(r->job);
    struct hd_traits traits;
    struct hd_rank_program layout;
    struct hd_arena arena;
    int64_t pages;

    harness_backend()->describe(&options, &traits);
    hd_arena_init(&arena, 0);
    run_layout_of(r->job, r->rank, &f->layout, &arena, &layout);
    pages = (layout.memory.private_bytes + traits.page_bytes - 1) / traits.page_bytes;
    pages += (layout.memory.registered_bytes + traits.page_bytes - 1) / traits.page_bytes;
    hd_arena_done(&arena);
    return pages * traits.page_bytes;
}

static enum hd_status look(struct harness_rank *r, struct hd_trainer *t)
{
    struct device_found *f = r->context;
    const int64_t predicted_bytes = predict(r, f);
    struct hd_device_memory there;
    struct hd_device_use use;
    enum hd_status st;

    atomic_fetch_add(&f->predicted_bytes, predicted_bytes);
    st = harness_meet(r);
    if (!st)
        st = harness_backend()->device->memory(r->instance, &there);
    if (!st)
        st = hd_trainer_device_use(t, &use);
    if (!st && (there.reserved_bytes != predicted_bytes || use.planned_bytes != predicted_bytes))
        st = hd_err(HD_INTERNAL, "rank %d reserved %lld bytes and says %lld; %lld were predicted",
                    r->rank, (long long)there.reserved_bytes, (long long)use.planned_bytes,
                    (long long)predicted_bytes);
    if (!st && use.other_bytes != there.total_bytes - there.free_bytes - predicted_bytes)
        st = hd_err(HD_INTERNAL, "rank %d says that %lld bytes are in use beside its plan", r->rank,
                    (long long)use.other_bytes);
    if (!st && r->rank == 0)
        f->in_use_bytes = there.total_bytes - there.free_bytes;
    return st ? st : harness_meet(r); /* nobody frees anything before */
}

static enum hd_status train(struct harness_rank *r)
{
    const struct device_found *f = r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .layout = f->layout};
    struct hd_step_result result;
    struct hd_trainer *t;
    int64_t targets;
    double loss;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = hd_trainer_init(t);
    for (int s = 0; !st && s < 2; s++)
        st = hd_trainer_step(t, 0, &result);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    if (!st)
        st = look(r, t);
    hd_trainer_free(t);
    return st;
}

enum hd_status device_train(const struct hd_job *job, struct device_found *found)
{
    return harness_threads(job, run_world(job), found, train);
}

struct hd_device_memory device_memory_now(void)
{
    const struct hd_backend_options options = {.threads = 1};
    struct hd_device_memory there = {0};
    struct hd_backend *backend = NULL;

    if (harness_backend()->open(&options, &backend) ||
        harness_backend()->device->memory(backend, &there))
        fail_msg("%s", hd_err_message());
    harness_backend()->close(backend);
    return there;
}
