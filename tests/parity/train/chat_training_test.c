/* Conversations in training: packed ones are worth what they are worth alone, every layout reads
 * the same ones, and a run over several epochs goes on from a checkpoint bit for bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/random.h"
#include "compare.h"
#include "data/token_writer.h"
#include "harness.h"
#include "tests/program/test.h"

enum { S = 24, PARAMS_MAX = 64 };

/* ---- token files ---- */

/* A conversation of n letters; of a question's six letters none counts, of an answer's six all. */
static void make_conversation(int n, uint64_t key, int32_t *ids, char *counts)
{
    for (int i = 0; i < n; i++) {
        ids[i] = 'a' + (int32_t)(hd_random_u64(key, (uint64_t)i) % 20);
        counts[i] = i / 6 % 2 == 1;
    }
}

static void write_conversations(struct harness *h, const int *lengths, int count, uint64_t key,
                                struct hd_job_file *file)
{
    static char path[200];
    struct hd_token_writer *w;
    struct stat info;
    char out[192];

    (void)snprintf(out, sizeof out, "%.180s/chat", h->dir);
    (void)snprintf(path, sizeof path, "%s.bin", out);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    for (int d = 0; d < count; d++) {
        int32_t ids[S];
        char counts[S];

        make_conversation(lengths[d], key + (uint64_t)d, ids, counts);
        assert_int_equal(hd_token_writer_add_document(w, ids, counts, lengths[d]), HD_OK);
    }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    assert_int_equal(stat(path, &info), 0);
    *file = (struct hd_job_file){.path = path, .size_bytes = info.st_size};
}

static struct hd_job chat_job(const struct harness *h, const char *family, struct hd_job_file *file)
{
    struct hd_job job = harness_job(h, family, 1);

    job.train = file;
    job.val_split = 0;
    job.val = file;
    job.val_count = 1;
    job.validate_batches = 1;
    job.context = S;
    job.end_of_text = -1;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.too_long = HD_JOB_TOO_LONG_ERROR;
    return job;
}

/* ---- one step's loss and gradients ---- */

struct chat_outcome {
    double loss_sum, targets;
    int param_count;
    struct hd_param params[PARAMS_MAX];
    float *grad[PARAMS_MAX]; /* sums over targets */
};

static enum hd_status run_step(struct harness_rank *r)
{
    struct chat_outcome *o = r->context;
    const struct hd_registry *registry;
    struct hd_step_result s;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_step(t, 0, &s);
    if (!st) {
        registry = &hd_trainer_rank_program(t)->registry;
        o->targets = (double)s.targets;
        o->loss_sum = s.loss * (double)s.targets;
        o->param_count = registry->param_count;
        for (int i = 0; i < registry->param_count; i++) {
            o->params[i] = registry->params[i];
            o->grad[i] = harness_take(t, i, HD_STATE_GRAD);
        }
    }
    hd_trainer_free(t);
    return st;
}

static void run(struct hd_job job, struct chat_outcome *ret_outcome)
{
    job.lr_peak = job.lr_min = job.weight_decay = 0;
    *ret_outcome = (struct chat_outcome){.loss_sum = 0};
    if (harness_threads(&job, 1, ret_outcome, run_step))
        fail_msg("%s", hd_err_message());
}

static void drop(struct chat_outcome *o)
{
    for (int i = 0; i < o->param_count; i++)
        free(o->grad[i]);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double apart = 0, length = 0;

    for (int64_t i = 0; i < n; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        length += (double)b[i] * (double)b[i];
    }
    return length > 0 ? sqrt(apart / length) : sqrt(apart);
}

/* Two windows of 24: 14 + 9, so one row of padding, and 20, so four. Of n tokens those count whose
 * place is 6..11 or 18..23: of 14 six, of 9 three, of 20 eight. */
static const int lengths[] = {14, 20, 9};

/* Goal: a neighbour is not seen, and padding counts nothing. Method: each conversation by itself,
 * in a window of its length. */
static void packed_conversations_are_worth_what_they_are_worth_alone(void **state)
{
    struct chat_outcome packed, alone, one;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_conversations(&h, lengths, 3, 0, &file);
    job = chat_job(&h, "llama", &file);
    job.global_batch = job.micro_batch = 2;
    run(job, &packed);
    assert_true(packed.targets == 6 + 3 + 8);
    alone = packed;
    alone.loss_sum = alone.targets = 0;
    for (int i = 0; i < packed.param_count; i++) {
        alone.grad[i] = calloc((size_t)packed.params[i].count, sizeof(float));
        assert_non_null(alone.grad[i]);
    }
    for (int d = 0; d < 3; d++) {
        write_conversations(&h, &lengths[d], 1, (uint64_t)d, &file);
        job.context = lengths[d];
        job.global_batch = job.micro_batch = 1;
        run(job, &one);
        alone.loss_sum += one.loss_sum;
        alone.targets += one.targets;
        for (int i = 0; i < one.param_count; i++)
            for (int64_t k = 0; k < one.params[i].count; k++)
                alone.grad[i][k] += one.grad[i][k];
        drop(&one);
    }
    assert_true(alone.targets == packed.targets);
    assert_true(fabs(packed.loss_sum - alone.loss_sum) <= 1e-6 * alone.loss_sum);
    for (int i = 0; i < packed.param_count; i++)
        if (distance(packed.grad[i], alone.grad[i], packed.params[i].count) > 1e-6)
            fail_msg("%s: %g apart", packed.params[i].name,
                     distance(packed.grad[i], alone.grad[i], packed.params[i].count));
    drop(&alone);
    drop(&packed);
    harness_teardown(&h);
}

/* ---- layouts ---- */

enum { MANY = 60 };

static void write_many(struct harness *h, struct hd_job_file *file)
{
    int many[MANY];

    for (int d = 0; d < MANY; d++)
        many[d] = 8 + (int)(hd_random_u64(11, (uint64_t)d) % (S - 8));
    write_conversations(h, many, MANY, 1000, file);
}

static void every_layout_trains_on_the_same_conversations(void **state)
{
    static const int sizes[][4] = {
        {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}, {2, 2, 1, 1}};
    struct run *one = run_new(6);
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_many(&h, &file);
    job = chat_job(&h, "llama", &file);
    one->noise = 0.2f;
    if (run_on_threads(&job, one))
        fail_msg("%s", hd_err_message());
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        job.dp = sizes[i][0];
        job.cp = sizes[i][1];
        job.tp = sizes[i][2];
        job.pp = sizes[i][3];
        (void)snprintf(job.schedule, sizeof job.schedule, "%s", job.pp > 1 ? "1f1b" : "none");
        if (compare_with(&job, one, NULL))
            fail_msg("dp %d cp %d tp %d pp %d: %s", sizes[i][0], sizes[i][1], sizes[i][2],
                     sizes[i][3], hd_err_message());
    }
    run_free(one);
    harness_teardown(&h);
}

/* ---- going on ---- */

/* 60 conversations of 8 to 23 tokens in some 45 windows of 24: with a batch of 8 an epoch ends
 * behind the sixth step, so the run goes on in the second one, which has another order. */
static void a_run_of_epochs_goes_on_bit_for_bit(void **state)
{
    enum { HALF = 5, REST = 7 };
    struct run *straight = run_new(REST), *after = run_new(REST);
    struct hd_job_file file;
    struct hd_saved saved;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_many(&h, &file);
    job = chat_job(&h, "llama", &file);
    run_save(&job, HALF, straight, &saved);
    run_load(&job, &saved, after);
    for (int s = 0; s < REST; s++) {
        assert_true(straight->loss[s] == after->loss[s]);
        assert_true(straight->targets[s] == after->targets[s]);
    }
    assert_true(straight->state_hash[0] == after->state_hash[0]);
    run_free(straight);
    run_free(after);
    harness_teardown(&h);
}

RUN_CASES()
