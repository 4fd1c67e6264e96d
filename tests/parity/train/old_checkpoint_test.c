/* A checkpoint that an older build wrote (tests/golden/checkpoint_version_1) is gone on from. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "harness.h"
#include "tests/program/test.h"

enum { SAVED_AT = 3, STEPS = 6 };

/* Losses of the steps that the older build took after its checkpoint. */
static const double losses[STEPS + 1] = {
    [4] = 5.375918714781944, [5] = 5.357895799088299, [6] = 5.342555033766294};

struct resumed {
    const char *dir, *hash;
    double loss[STEPS + 1];
};

static enum hd_status resume(struct harness_rank *r)
{
    struct resumed *resumed = r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank};
    struct hd_trainer *t;
    struct hd_text note = {0};
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = hd_trainer_load(t, resumed->dir, resumed->hash, &note);
    hd_text_free(&note);
    if (!st && hd_trainer_steps_done(t) != SAVED_AT)
        st = hd_err(HD_INTERNAL, "loaded step %lld", (long long)hd_trainer_steps_done(t));
    for (int step = SAVED_AT + 1; !st && step <= STEPS; step++) {
        struct hd_step_result result = {0};

        st = hd_trainer_step(t, 0, &result);
        if (r->rank == 0)
            resumed->loss[step] = result.loss;
    }
    hd_trainer_free(t);
    return st;
}

/* Goal: no checkpoint is lost by an upgrade. Method: its own job, its own ranks; the losses of the
 * steps that follow are those that the older build had, but for the rounding of other machines
 * (fp32, 1e-5 of 5.4). */
static void a_checkpoint_of_version_1_is_gone_on_from(void **state)
{
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    char dir[512], corpus[600], hash[HD_HASH_TEXT_MAX];
    struct resumed resumed = {.dir = dir, .hash = hash};
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_ckpt *ckpt = NULL;
    struct hd_arena arena;
    const char *text;

    assert_non_null(job);
    hd_arena_init(&arena, 0);
    (void)snprintf(dir, sizeof dir, "%s/tests/golden/checkpoint_version_1", root ? root : ".");
    (void)snprintf(corpus, sizeof corpus, "%s/corpus.txt", dir);
    if (hd_ckpt_open(dir, &ckpt))
        fail_msg("%s", hd_err_message());
    text = hd_ckpt_get_manifest(ckpt)->config;
    assert_true(hd_text_starts(text, "HEDDLE-JOB 1\n"));
    hd_hash_format(hd_ckpt_hash(ckpt), hash);
    if (hd_job_read(text, strlen(text), &arena, job))
        fail_msg("%s", hd_err_message());
    hd_ckpt_close(ckpt);
    assert_int_equal(hd_layout_world(&job->layout), 2);
    job->train[0].path = corpus;
    if (harness_threads(job, 2, &resumed, resume))
        fail_msg("%s", hd_err_message());
    for (int step = SAVED_AT + 1; step <= STEPS; step++)
        assert_true(fabs(resumed.loss[step] - losses[step]) < 1e-5 * losses[step]);
    hd_arena_done(&arena);
    free(job);
}

RUN_CASES()
