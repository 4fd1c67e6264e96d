/* Distillation: a teacher's file, written by any layout and by attempts that were stopped, and the steps
 * of a student that reads it, in any layout.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "harness.h"
#include "job/frozen_model.h"
#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/trainer.h"

/* Everything about a run of the tests below. */
struct lesson {
    int64_t stop_at;  /* windows after which writing stops; 0: never */
    int64_t began_at; /* windows that were done when writing began */
    int calls;
    double factor; /* of the teacher's weights, NaN: they are not finite; 0: 5 */
    double loss;   /* of the teacher, on the text of the corpus */
    struct hd_step_result step;
    struct hd_saved saved;
};

static bool goes_on(void *context, int64_t done_windows, int64_t windows)
{
    struct lesson *l = context;

    assert_true(done_windows < windows);
    if (!l->calls++)
        l->began_at = done_windows;
    return !l->stop_at || done_windows < l->stop_at;
}

/* Makes a trainer with larger weights, so that its predictions are far from even; the same ones in any
 * layout. */
static enum hd_status stretched(struct harness_rank *r, struct hd_trainer **ret_trainer)
{
    const double asked = ((const struct lesson *)r->context)->factor;
    const float factor = asked != 0 ? (float)asked : 5;
    const struct hd_registry *registry;
    enum hd_status st = harness_trainer(r, ret_trainer);

    if (st)
        return st;
    registry = &hd_trainer_rank_program(*ret_trainer)->registry;
    for (int i = 0; i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];
        float *w = harness_take(*ret_trainer, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; w && k < p->count; k++)
            w[k] *= factor;
        harness_put(*ret_trainer, i, HD_STATE_WEIGHT, w);
    }
    return HD_OK;
}

static enum hd_status teach(struct harness_rank *r)
{
    /* rank 0 alone stops: it is then behind its own flush */
    struct lesson none = {.stop_at = 0}, *l = r->rank ? &none : r->context;
    const struct hd_reference_watch watch = {goes_on, l};
    struct hd_text said = {0};
    struct hd_trainer *t = NULL;
    int64_t targets;
    enum hd_status st = stretched(r, &t);

    if (!st)
        st = hd_trainer_write_teacher(t, &watch, &said);
    if (!st)
        assert_true(strstr(said.data, "likeliest next tokens"));
    if (!st)
        st = hd_trainer_validate(t, &l->loss, &targets);
    hd_text_free(&said);
    hd_trainer_free(t);
    return st;
}

/* Saves the teacher as a checkpoint. */
static enum hd_status keep(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    struct hd_saved saved;
    enum hd_status st = stretched(r, &t);

    if (!st)
        st = hd_trainer_save(t, &saved);
    if (!st && r->rank == 0)
        ((struct lesson *)r->context)->saved = saved;
    hd_trainer_free(t);
    return st;
}

/* The first step of a student that has the weights of the teacher of `teach`, if the seed is the same. */
static enum hd_status learn(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    struct hd_step_result s;
    enum hd_status st = stretched(r, &t);

    if (!st)
        st = hd_trainer_open_teacher(t);
    if (!st)
        st = hd_trainer_step(t, 0, &s);
    if (!st && r->rank == 0)
        ((struct lesson *)r->context)->step = s;
    hd_trainer_free(t);
    return st;
}

enum { WINDOWS = 140, CONTEXT = 16, TOP_K = 256 };

static struct hd_job lesson_job(const struct harness *h, int64_t top_k)
{
    struct hd_job job = harness_job(h, "llama", 1);

    job.distill_top_k = top_k;
    job.distill_temperature = 1;
    job.distill_weight = 0.25;
    job.distill_beta = 0.5;
    job.distill_tail = true;
    job.distill_loss = HD_JOB_DISTILL_LOSS_FORWARD;
    job.val_split = 0;
    job.val = (struct hd_job_file *)&h->file;
    job.val_count = 1;
    job.validate_batches = WINDOWS; /* more than there are: all */
    return job;
}

/* Reads a teacher's file of u16 ids, as teacher.c describes it. */
static char *read_file(const struct harness *h, size_t *ret_bytes)
{
    struct hd_text path = {0}, bytes = {0};
    char *copy;

    hd_text_add(&path, "%s/tokens/teacher", h->dir);
    must(hd_file_read(path.data, 64 << 20, &bytes));
    copy = malloc(bytes.len_bytes);
    memcpy(copy, bytes.data, bytes.len_bytes);
    *ret_bytes = bytes.len_bytes;
    hd_text_free(&path);
    hd_text_free(&bytes);
    return copy;
}

/* Returns log q of a token in the record of the token at `place`; NaN: the record lacks it. */
static double logq_of(const char *file, int64_t k, int64_t place, int token)
{
    const char *record = file + 128 + place * k * 4;

    for (int64_t j = 0; j < k; j++) {
        uint16_t id, logq;

        memcpy(&id, record + 2 * j, 2);
        memcpy(&logq, record + 2 * k + 2 * j, 2);
        if (id == token + 1)
            return hd_f16_to_f32(logq);
    }
    return NAN;
}

struct layout {
    int tp, pp, dp, cp, micro_batch;
};

static int place_layout(struct hd_job *job, const struct layout *l)
{
    job->tp = l->tp;
    job->pp = l->pp;
    if (l->pp > 1)
        memcpy(job->schedule, "1f1b", 5);
    job->dp = l->dp;
    job->cp = l->cp;
    job->micro_batch = l->micro_batch;
    return l->tp * l->pp * l->dp * l->cp;
}

static const struct layout layouts[] = {{1, 1, 1, 1, 2}, {1, 1, 2, 1, 1}, {2, 1, 1, 1, 2},
                                        {1, 2, 1, 1, 1}, {1, 1, 1, 2, 2}, {2, 1, 2, 1, 1}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* Goal: the file has the teacher's predictions of each token, at that token, whatever the layout; and
 * an attempt goes on where another one stopped, in another layout. Method: with all 256 ids in a
 * record, the mean of -log q at the text's own bytes is the loss of a validation over the same windows,
 * which other programs compute. */
static void the_file_has_what_the_teacher_predicts(void **state)
{
    struct harness h;

    harness_setup(&h, WINDOWS * CONTEXT + 1);
    for (int i = 0; i < LAYOUTS; i++) {
        struct lesson l = {.stop_at = i == 1 ? WINDOWS / 2 : 0};
        struct hd_job job = lesson_job(&h, TOP_K);
        const int world = place_layout(&job, &layouts[i]);
        struct hd_text text = {0}, path = {0};
        double sum = 0;
        size_t bytes;
        char *file;

        job.distill_write = true;
        hd_text_add(&path, "%s/tokens/teacher", h.dir);
        (void)remove(path.data);
        if (l.stop_at) { /* is stopped, and another layout goes on */
            const enum hd_status st = harness_threads(&job, world, &l, teach);

            assert_true(st == HD_ABORTED);
            assert_false(hd_file_exists(path.data));
            job = lesson_job(&h, TOP_K);
            job.distill_write = true;
            l = (struct lesson){.stop_at = 0};
            must(harness_threads(&job, 1, &l, teach));
            assert_true(l.began_at > 0);
        } else {
            must(harness_threads(&job, world, &l, teach));
            assert_int_equal(l.began_at, 0);
        }
        file = read_file(&h, &bytes);
        assert_int_equal(bytes, 128 + (WINDOWS * CONTEXT + 1) * TOP_K * 4);
        must(hd_file_read(h.corpus, 1 << 20, &text));
        for (int64_t place = 1; place <= WINDOWS * CONTEXT; place++)
            sum -=
                logq_of(file, TOP_K, place, (unsigned char)text.data[place]) / (WINDOWS * CONTEXT);
        /* each log q has an error of at most 2^-11 of some 10 nats, their mean far less */
        if (!(fabs(sum - l.loss) < 1e-4 * l.loss))
            fail_msg("layout %d: %.9f by the file, %.9f by validation", i, sum, l.loss);
        free(file);
        hd_text_free(&text);
        hd_text_free(&path);
    }
    harness_teardown(&h);
}

/* Goal: a step reads the record of each of its targets, and its loss is one of the global batch.
 * Method: a student with the teacher's own weights diverges by nothing but the rounding of log q; one
 * of another seed by the same number in every layout. */
static void a_student_reads_the_records_of_its_targets(void **state)
{
    struct lesson l = {.stop_at = 0}, one = l;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 120 * CONTEXT + 1);
    job = lesson_job(&h, 24);
    job.distill_write = true;
    must(harness_threads(&job, 1, &l, teach));
    for (int i = 0; i < LAYOUTS; i++) {
        int world;

        job = lesson_job(&h, 24);
        job.distill_teacher = job_text("%s", h.dir);
        world = place_layout(&job, &layouts[i]);
        if (i == 0) {
            must(harness_threads(&job, world, &l, learn));
            assert_true(fabs(l.step.distill_loss) < 1e-4);
        }
        job.seed = 11;
        must(harness_threads(&job, world, &l, learn));
        one = i ? one : l;
        assert_true(l.step.distill_loss > 0.1);
        if (fabs(l.step.distill_loss - one.step.distill_loss) > 1e-5 ||
            fabs(l.step.loss - one.step.loss) > 1e-5 ||
            fabs(l.step.grad_norm - one.step.grad_norm) > 1e-4 * one.step.grad_norm)
            fail_msg("layout %d: loss %.9f distill %.9f norm %.9f, one rank %.9f %.9f %.9f", i,
                     l.step.loss, l.step.distill_loss, l.step.grad_norm, one.step.loss,
                     one.step.distill_loss, one.step.grad_norm);
    }
    harness_teardown(&h);
}

/* Makes a student's job whose teacher is a checkpoint of the job `teacher`. */
static struct hd_job beside(const struct hd_job *teacher, const struct hd_saved *saved)
{
    struct hd_job job = *teacher;

    job.distill_teacher = job_text("%s", saved->path);
    must(hd_job_set_teacher_model(teacher, &job));
    job.seed = 11;
    return job;
}

/* Goal: a model on the student's ranks teaches what its file would, in every layout, for steps of several
 * micro-batches too. Method: the first step with the file, whose log q are rounded to fp16, 11 bits; among
 * layouts numbers are those of one rank. The plan's bytes of the teacher are all that the plan grows by. */
static void a_model_on_the_ranks_teaches_as_its_file_does(void **state)
{
    struct hd_rank_program with, without;
    struct lesson l = {.stop_at = 0}, one = l, file = l;
    struct hd_arena arena;
    struct harness h;
    struct hd_job teacher, job;

    harness_setup(&h, 120 * CONTEXT + 1);
    teacher = lesson_job(&h, 24);
    job = teacher;
    job.distill_write = true;
    must(harness_threads(&job, 1, &l, teach));
    must(harness_threads(&teacher, 1, &l, keep));
    job = teacher;
    job.distill_teacher = job_text("%s", h.dir);
    job.seed = 11;
    must(harness_threads(&job, 1, &file, learn));
    for (int i = 0; i < LAYOUTS; i++) {
        int world;

        job = beside(&teacher, &l.saved);
        world = place_layout(&job, &layouts[i]);
        must(harness_threads(&job, world, &l, learn));
        one = i ? one : l;
        if (fabs(l.step.distill_loss - file.step.distill_loss) > 2e-3 * file.step.distill_loss ||
            fabs(l.step.grad_norm - file.step.grad_norm) > 2e-3 * file.step.grad_norm)
            fail_msg("layout %d: distill %.9f norm %.9f, with the file %.9f %.9f", i,
                     l.step.distill_loss, l.step.grad_norm, file.step.distill_loss,
                     file.step.grad_norm);
        if (fabs(l.step.distill_loss - one.step.distill_loss) > 1e-5 ||
            fabs(l.step.grad_norm - one.step.grad_norm) > 1e-4 * one.step.grad_norm)
            fail_msg("layout %d: distill %.9f norm %.9f, one rank %.9f %.9f", i,
                     l.step.distill_loss, l.step.grad_norm, one.step.distill_loss,
                     one.step.grad_norm);
    }
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &with);
    job.distill_model = "";
    job.distill_teacher = "";
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &without);
    /* at least the weights, in fp32, of this rank's half */
    assert_true(with.memory.teacher > 4 * with.frozen_program->registry.buckets[0].count);
    assert_int_equal(without.memory.teacher, 0);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Goal: a layout that the teacher's shapes do not allow is refused in words. */
static void a_teacher_that_the_layout_does_not_fit_is_refused(void **state)
{
    struct hd_rank_program program;
    struct hd_arena arena;
    struct harness h;
    struct hd_job teacher, job;

    harness_setup(&h, 100);
    hd_arena_init(&arena, 0);
    teacher = lesson_job(&h, 24);
    job = teacher;
    teacher.heads = teacher.kv_heads = 3;
    must(hd_job_set_teacher_model(&teacher, &job));
    (void)place_layout(&job, &(struct layout){2, 1, 1, 1, 2});
    assert_int_equal(hd_rank_program_build(&job, 0, &(struct hd_traits){0},
                                           &(struct hd_rank_program_options){0}, &arena, &program),
                     HD_INVALID);
    if (!strstr(hd_err_message(),
                "train.distill.teacher, which takes the layout of the model that trains: "
                "parallel.tp = 2 does not divide its model.heads = 3"))
        fail_msg("%s", hd_err_message());
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Goal: a file that does not fit the job is refused before a step, with the key to change. */
static void a_file_of_another_kind_is_refused(void **state)
{
    static const char *const told[] = {"train.distill.top_k: ", "train.distill.temperature: ",
                                       "train.distill.vocab: ", "train.distill.teacher: "};
    struct lesson l = {.stop_at = 0};
    struct harness h, other;
    struct hd_job job;

    harness_setup(&h, 40 * CONTEXT + 1);
    harness_setup(&other, 41 * CONTEXT + 1);
    job = lesson_job(&h, 8);
    job.distill_write = true;
    must(harness_threads(&job, 1, &l, teach));
    for (int i = 0; i < 4; i++) {
        job = lesson_job(i == 3 ? &other : &h, i == 0 ? 9 : 8);
        job.distill_teacher = job_text("%s", h.dir);
        job.distill_temperature = i == 1 ? 2 : 1;
        job.distill_vocab = i == 2 ? 200 : 0;
        assert_int_equal(harness_threads(&job, 1, &l, learn), HD_INVALID);
        if (!strstr(hd_err_message(), told[i]))
            fail_msg("%s", hd_err_message());
    }
    harness_teardown(&h);
    harness_teardown(&other);
}

/* Goal: a teacher whose weights are not finite is not taken for one without predictions, of whose file a
 * student would learn nothing. */
static void a_teacher_of_no_numbers_is_refused(void **state)
{
    struct lesson l = {.factor = NAN};
    struct hd_text path = {0};
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 40 * CONTEXT + 1);
    job = lesson_job(&h, 8);
    job.distill_write = true;
    assert_int_equal(harness_threads(&job, 1, &l, teach), HD_CORRUPT);
    if (!strstr(hd_err_message(), "not finite"))
        fail_msg("%s", hd_err_message());
    hd_text_add(&path, "%s/tokens/teacher", h.dir);
    assert_false(hd_file_exists(path.data));
    hd_text_free(&path);
    harness_teardown(&h);
}

RUN_CASES()
