/* Goal: a trainer copes with odd data: few validation windows, a vocabulary that is too small,
 * files that change under it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
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

/* ---- validation sets ---- */

struct sets {
    double loss[2]; /* of each set */
    double decides; /* of the set that decides */
    bool best[2];   /* whether the weights were the best after the validation of each set */
    int64_t count;
};

static enum hd_status validate_sets(struct harness_rank *r)
{
    struct sets *sets = r->context;
    struct hd_step_result step;
    struct hd_trainer *t = NULL;
    int64_t targets;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_step(t, 0, &step);
    sets->count = st ? 0 : hd_trainer_validation_count(t);
    for (int64_t k = 0; !st && k < sets->count && k < 2; k++) {
        st = hd_trainer_validate_set(t, k, &sets->loss[k], &targets);
        sets->best[k] = hd_trainer_is_best(t);
    }
    if (!st)
        st = hd_trainer_validate(t, &sets->decides, &targets);
    hd_trainer_free(t);
    return st;
}

static struct sets run_sets(struct hd_job *job, struct hd_job_file *val, int64_t count)
{
    struct sets sets = {.count = 0};

    job->val = val;
    job->val_count = count;
    job->val_split = 0;
    if (harness_threads(job, 1, &sets, validate_sets))
        fail_msg("%s", hd_err_message());
    return sets;
}

/* Goal: a set has the loss of its own files, and the named one decides. Method: the sets one by one
 * as plain lists, in runs of their own. */
static void each_validation_set_has_its_own_loss(void **state)
{
    struct hd_job_file files[3];
    struct sets both, one, two;
    char other[256];
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 640);
    (void)snprintf(other, sizeof other, "%s/other.txt", h.dir);
    assert_int_equal(hd_file_write_atomic(other, "0123456789abcdefghijklmnopqrstuvwxyz", 36, 0644),
                     HD_OK);
    job = harness_job(&h, "llama", 1);
    job.checkpoint_best = true;
    files[0] = (struct hd_job_file){.path = h.corpus, .size_bytes = 640};
    files[1] = files[2] = (struct hd_job_file){.path = other, .size_bytes = 36};
    one = run_sets(&job, files, 1);
    two = run_sets(&job, files + 1, 2);
    files[1].source = files[2].source = 1;
    job.val_sets = "corpus,other";
    job.checkpoint_best_set = "other";
    both = run_sets(&job, files, 3);
    assert_int_equal(one.count, 1);
    assert_int_equal(both.count, 2);
    assert_true(both.loss[0] == one.loss[0] && both.loss[1] == two.loss[0]);
    assert_true(both.loss[0] != both.loss[1]);
    assert_true(both.decides == both.loss[1]);
    assert_false(both.best[0]);
    assert_true(both.best[1]);
    harness_teardown(&h);
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
