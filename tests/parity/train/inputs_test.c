/* Goal: a trainer copes with odd data: few validation windows, a vocabulary that is too small,
 * files that change under it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "tests/program/test.h"
#include "train/job_data.h"

struct check {
    double loss[HARNESS_WORLD_MAX];
    int64_t targets[HARNESS_WORLD_MAX];
};

static enum hd_status check_rank(struct harness_rank *r)
{
    struct check *check = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_validate(t, &check->loss[r->rank], &check->targets[r->rank]);
    hd_trainer_free(t);
    return st;
}

static struct check validate_few(int dp)
{
    struct harness h;
    struct hd_job job;
    struct check check = {0};
    enum hd_status st;

    harness_setup(&h, 640); /* a tenth is 64 bytes: windows at 0, 16 and 32, the fourth lacks one */
    job = harness_job(&h, "llama", dp);
    st = harness_threads(&job, dp, &check, check_rank);
    harness_teardown(&h);
    if (st)
        fail_msg("%s", hd_err_message());
    return check;
}

/* Goal: padding counts for nothing. Method: 3 windows of 16 targets on 4 ranks with micro-batches
 * of 2: rank 0 has two, rank 1 one and a row of padding, the others none. */
static void fewer_validation_windows_than_places_give_the_same_loss(void **state)
{
    const struct check one = validate_few(1), four = validate_few(4);

    assert_int_equal(one.targets[0], 3 * 16);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(four.targets[rank], 3 * 16);
        assert_true(fabs(four.loss[rank] - one.loss[0]) <= 1e-6 * one.loss[0]);
    }
}

/* ---- refusals ---- */

static enum hd_status new_rank(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    hd_trainer_free(t);
    return st;
}

/* Without it, bytes from 128 on would have no row in the table and no target. */
static void a_vocabulary_smaller_than_the_tokenizer_is_refused(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 640);
    job = harness_job(&h, "llama", 1);
    job.vocab = 128;
    assert_int_equal(harness_threads(&job, 1, NULL, new_rank), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "model.vocab: 128"));
    harness_teardown(&h);
}

/* 2^20 sequences of 2^24 tokens, 3 * 2^22 channels of four bytes: 2^20 * 2^24 * 3 * 2^24 bytes is
 * beyond 64 bits. */
static void shapes_beyond_all_addresses_are_refused(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 640);
    job = harness_job(&h, "llama", 1);
    job.micro_batch = job.global_batch = 1 << 20;
    job.context = 1 << 24;
    job.ffn_hidden = 1 << 22;
    assert_int_equal(harness_threads(&job, 1, NULL, new_rank), HD_LIMIT);
    assert_non_null(strstr(hd_err_message(), "model.context"));
    harness_teardown(&h);
}

/* Goal: each source gets its own files, in the job's order. Method: the corpus as one source, then
 * twice as the other. */
static void a_mixture_of_the_job_becomes_sources(void **state)
{
    double weights[] = {3, 1};
    struct hd_job_file files[3];
    struct hd_job_data data;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 640);
    job = harness_job(&h, "llama", 1);
    for (int i = 0; i < 3; i++)
        files[i] = (struct hd_job_file){.path = h.corpus, .size_bytes = 640, .source = i > 0};
    job.train = files;
    job.train_count = 3;
    job.weights = weights;
    job.weight_count = 2;
    job.val_split = 0;
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_job_data_open(&job, NULL, NULL, &arena, &data), HD_OK);
    assert_int_equal(data.sampler.mixture.count, 2);
    assert_int_equal(data.sampler.sources[0].range.count, 640);
    assert_int_equal(data.sampler.sources[1].range.first, 640);
    assert_int_equal(data.sampler.sources[1].range.count, 1280);
    assert_true(data.sampler.mixture.share[0] > 2 * data.sampler.mixture.share[1]);
    assert_false(hd_corpus_is_bounded(data.train_corpus));
    hd_job_data_close(&data);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

static enum hd_status watch_rank(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);
    FILE *file;

    if (!st)
        st = hd_trainer_check_data(t);
    if (st) {
        hd_trainer_free(t);
        return hd_err_prefix(HD_INTERNAL, "before the change");
    }
    file = fopen(r->job->train[0].path, "a");
    if (!file || fputs("more\n", file) < 0 || fclose(file))
        abort();
    st = hd_trainer_check_data(t);
    hd_trainer_free(t);
    return st;
}

static void data_that_changes_in_use_is_named(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 640);
    job = harness_job(&h, "llama", 1);
    assert_int_equal(harness_threads(&job, 1, NULL, watch_rank), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), h.corpus));
    harness_teardown(&h);
}

RUN_CASES()
