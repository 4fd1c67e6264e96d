/* Rows that are no tokens count in nothing: the same conversations in windows of any length, packed
 * in any way, in any layout and any number of micro-batches, give one loss, one gradient and one
 * set of metrics. golden/rows_golden_test.c holds those of one conversation against transformers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/random.h"
#include "compare.h"
#include "data/token_writer.h"
#include "harness.h"
#include "tests/program/test.h"

/* ---- conversations ---- */

/* Returns whether token i of conversation d counts: every other run of five to eight tokens does.
 */
static bool counts_at(int d, int i)
{
    return i / (5 + d % 4) % 2 == 1;
}

static int32_t token_at(int d, int i)
{
    return 'a' + (int32_t)(hd_random_u64((uint64_t)d, (uint64_t)i) % 20);
}

static void write_all(struct harness *h, const int *lengths, int count, struct hd_job_file *file)
{
    static char path[200];
    struct hd_token_writer *w;
    struct stat info;
    char out[192];

    (void)snprintf(out, sizeof out, "%.180s/rows", h->dir);
    (void)snprintf(path, sizeof path, "%s.bin", out);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    for (int d = 0; d < count; d++) {
        int32_t ids[64];
        char counts[64];

        for (int i = 0; i < lengths[d]; i++) {
            ids[i] = token_at(d, i);
            counts[i] = counts_at(d, i);
        }
        assert_int_equal(hd_token_writer_add_document(w, ids, counts, lengths[d]), HD_OK);
    }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    assert_int_equal(stat(path, &info), 0);
    *file = (struct hd_job_file){.path = path, .size_bytes = info.st_size};
}

static struct hd_job job_of(const struct harness *h, struct hd_job_file *file)
{
    struct hd_job job = harness_job(h, "mixtral", 1);

    job.train = file;
    job.val_split = 0;
    job.val = file;
    job.val_count = 1;
    job.validate_batches = 100; /* all windows */
    job.balance = 0.5;
    job.z_loss = 0.05;
    job.end_of_text = -1;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.too_long = HD_JOB_TOO_LONG_ERROR;
    return job;
}

/* ---- the property ---- */

/* A step is all conversations. Best-fit decreasing: in 48 rows each of them has a window, since two
 * have 50 tokens and more; in 64 they are four full pairs; in 128 39 + 38 + 36, 34 + 30 + 28 + 26
 * and 25; in 256 one full window; in 512 one that is half empty. */
static const int lengths[] = {25, 39, 30, 34, 28, 36, 26, 38};
enum { TOKENS = 256 };

struct channel {
    int context, windows, micro_batch;
    int dp, cp, tp, pp, ep;
};

/* The first is the one that the others are held against. */
static const struct channel ways[] = {
    {48, 8, 1, 1, 1, 1, 1, 1},  {48, 8, 8, 1, 1, 1, 1, 1},  {48, 8, 2, 2, 1, 1, 1, 2},
    {48, 8, 1, 4, 1, 1, 1, 4},  {48, 8, 2, 1, 2, 1, 1, 1},  {48, 8, 1, 1, 1, 1, 2, 1},
    {48, 8, 4, 1, 2, 1, 1, 2},  {48, 8, 2, 1, 1, 2, 1, 1},  {64, 4, 1, 1, 1, 1, 1, 1},
    {64, 4, 4, 1, 1, 1, 1, 1},  {64, 4, 1, 2, 2, 1, 1, 4},  {64, 4, 2, 1, 1, 2, 1, 1},
    {64, 4, 1, 2, 1, 1, 2, 2},  {128, 3, 1, 1, 1, 1, 1, 1}, {128, 3, 3, 1, 1, 1, 1, 1},
    {128, 3, 1, 3, 1, 1, 1, 1}, {128, 3, 1, 1, 4, 1, 1, 4}, {128, 3, 3, 1, 2, 2, 1, 2},
    {256, 1, 1, 1, 1, 1, 1, 1}, {256, 1, 1, 1, 4, 1, 1, 1}, {512, 1, 1, 1, 1, 1, 1, 1},
    {512, 1, 1, 1, 4, 1, 1, 2}};

static void set_way(struct hd_job *job, const struct channel *channel)
{
    job->context = channel->context;
    job->global_batch = channel->windows;
    job->micro_batch = channel->micro_batch;
    job->dp = channel->dp;
    job->cp = channel->cp;
    job->tp = channel->tp;
    job->pp = channel->pp;
    job->ep = channel->ep;
    (void)snprintf(job->schedule, sizeof job->schedule, "%s", channel->pp > 1 ? "1f1b" : "none");
}

/* Counts the targets of all conversations: the first token of each is none. */
static int64_t count_targets(void)
{
    int64_t targets = 0;

    for (int d = 0; d < (int)(sizeof lengths / sizeof lengths[0]); d++)
        for (int i = 1; i < lengths[d]; i++)
            targets += counts_at(d, i);
    return targets;
}

static void check_ways(double capacity)
{
    struct run *one = run_new(3); /* each step is the same conversations, in another order */
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;
    int64_t choices = 0;

    harness_setup(&h, 64);
    write_all(&h, lengths, (int)(sizeof lengths / sizeof lengths[0]), &file);
    job = job_of(&h, &file);
    job.capacity = capacity;
    set_way(&job, &ways[0]);
    one->noise = 0.1f;
    if (run_on_threads(&job, one))
        fail_msg("%s", hd_err_message());
    assert_int_equal(one->tokens[0], TOKENS);
    assert_int_equal(one->targets[0], count_targets());
    for (int e = 0; e < RUN_EXPERTS_MAX; e++)
        choices += one->routers.load[e];
    assert_int_equal(choices, job.layers * TOKENS * job.experts_per_token);
    assert_true((one->routers.dropped > 0) == (capacity > 0));
    for (size_t i = 1; i < sizeof ways / sizeof ways[0]; i++) {
        const struct channel *w = &ways[i];

        set_way(&job, w);
        if (compare_with(&job, one, NULL))
            fail_msg("context %d micro_batch %d dp %d cp %d tp %d pp %d ep %d: %s", w->context,
                     w->micro_batch, w->dp, w->cp, w->tp, w->pp, w->ep, hd_err_message());
    }
    run_free(one);
    harness_teardown(&h);
}

static void windows_packing_and_layouts_change_nothing(void **state)
{
    check_ways(0);
}

static void a_capacity_is_that_of_each_conversation(void **state)
{
    check_ways(0.75);
}

/* ---- fp8 ---- */

/* Leaves channel 0 to token 0, which no conversation has: behind the first norm it is sqrt(C) 1e4,
 * so that numbers of other rows would be nothing in its scale. */
static void raise_token_0(struct hd_trainer *t, int step, void *context)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; step == 0 && i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        const bool embedding = strcmp(p->name, "embedding.weight") == 0;
        float *w;

        if (!embedding && strcmp(p->name, "blocks.0.norm1.weight") != 0)
            continue;
        w = harness_take(t, i, HD_STATE_WEIGHT);
        for (int64_t k = 0; embedding && k < p->real_count; k++)
            if (k % p->shape[1] == 0 || k < p->shape[1])
                w[k] = 0;
        w[0] = 1e4f;
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
}

/* Goal: scales of fp8 are those of tokens. Method: a window of rows that all are, and longer ones
 * whose empty rows would be the largest of all if they were token 0. A row's numbers do not depend
 * on how many rows there are, so losses are equal to the rounding of their sum. */
static void empty_rows_have_no_share_in_the_scales_of_fp8(void **state)
{
    static const int windows[] = {32, 48, 96};
    static const int length = 32;
    struct run *runs[3];
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_all(&h, &length, 1, &file);
    job = job_of(&h, &file);
    job.family = "llama";
    job.precision = HD_JOB_PRECISION_FP8;
    job.experts = job.experts_per_token = 0;
    job.renormalize = false;
    job.balance = job.z_loss = 0;
    job.global_batch = job.micro_batch = 1;
    for (int i = 0; i < 3; i++) {
        job.context = windows[i];
        runs[i] = run_new(4);
        runs[i]->before_step = raise_token_0;
        if (run_on_threads(&job, runs[i]))
            fail_msg("%s", hd_err_message());
        for (int s = 0; s < 4; s++)
            if (!(fabs(runs[i]->loss[s] / runs[0]->loss[s] - 1) <= 1e-6))
                fail_msg("window of %d, step %d: loss %.9g, without padding %.9g", windows[i],
                         s + 1, runs[i]->loss[s], runs[0]->loss[s]);
    }
    for (int i = 0; i < 3; i++)
        run_free(runs[i]);
    harness_teardown(&h);
}

RUN_CASES()
