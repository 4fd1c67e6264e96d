/* Goal: questions that a validation answers have the scores of `heddle eval --choices`, in every
 * layout, and early stopping counts validations over a kill.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "decoding.h"
#include "generate/choices.h"
#include "harness.h"
#include "job/choice_sets.h"
#include "tests/program/test.h"

enum { CONTEXT = 64, QUESTIONS = 12 };

struct exam {
    struct harness h;
    char file[256];
    struct hd_job job;
    struct hd_saved saved;
    struct hd_exam_score score[HARNESS_WORLD_MAX];
    double loss; /* of the validation that follows the questions */
};

static void add_set(struct hd_job *job, const char *name, const char *path)
{
    struct hd_choice_set set = {.size_bytes = -1};

    (void)snprintf(set.name, sizeof set.name, "%s", name);
    (void)snprintf(set.path, sizeof set.path, "%s", path);
    assert_int_equal(hd_choice_set_add(&set, HD_QUESTIONS_CHOICES, job), HD_OK);
}

/* Writes questions of 2 to 4 choices whose prompts have 5 to 104 bytes, so that several share a
 * window, and that of 104 bytes with its choice is longer than the context. The corpus decides which
 * choice is likely. */
static void write_questions(struct exam *e)
{
    struct hd_text text = {0}, corpus = {0};

    assert_int_equal(hd_file_read(e->h.corpus, 1 << 20, &corpus), HD_OK);
    for (size_t i = 0; i < corpus.len_bytes; i++)
        if (strchr("\"\\\n", corpus.data[i]))
            corpus.data[i] = ' ';
    for (int q = 0; q < QUESTIONS; q++) {
        const int count = q == 5 ? 104 : 5 + 3 * q;

        hd_text_add(&text, "{\"prompt\":\"%.*sx\",\"choices\":[", count, corpus.data + 50 * q);
        for (int k = 0; k < 2 + q % 3; k++)
            hd_text_add(&text, "%s\"%.*s%d\"", k ? "," : "", 1 + (q + 3 * k) % 7,
                        corpus.data + 50 * q + 60 + 11 * k, k);
        hd_text_add(&text, "],\"answer\":%d}\n%s", q % 2, q == 3 ? "\n" : "");
    }
    assert_false(text.failed);
    assert_int_equal(hd_file_write_atomic(e->file, text.data, text.len_bytes, 0644), HD_OK);
    hd_text_free(&text);
    hd_text_free(&corpus);
}

static void exam_setup(struct exam *e, const char *family, int dp)
{
    harness_setup(&e->h, 4000);
    (void)snprintf(e->file, sizeof e->file, "%s/questions.jsonl", e->h.dir);
    write_questions(e);
    e->job = harness_job(&e->h, family, dp);
    e->job.context = CONTEXT;
    add_set(&e->job, "quiz", e->file);
}

static enum hd_status sit_exam(struct harness_rank *r)
{
    struct exam *e = r->context;
    struct hd_trainer *t = NULL;
    int64_t targets;
    double loss = 0;
    enum hd_status st = harness_trained(r, &t);

    if (!st)
        st = hd_trainer_examine(t, 0, NULL, NULL, &e->score[r->rank]);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    if (!st)
        st = hd_trainer_save(t, r->rank ? &(struct hd_saved){0} : &e->saved);
    if (r->rank == 0)
        e->loss = loss;
    hd_trainer_free(t);
    return st;
}

static void check_equal(const struct exam *e, int world, const struct hd_exam_score *want)
{
    for (int i = 0; i < world; i++) {
        assert_int_equal(e->score[i].questions, want->questions);
        assert_int_equal(e->score[i].cut, want->cut);
        assert_true(e->score[i].acc == want->acc);
        assert_true(e->score[i].acc_norm == want->acc_norm);
    }
}

/* Scores of the saved checkpoint by the decoder: another program, with key and value caches. */
static struct hd_exam_score by_decoder(const struct exam *e)
{
    const char *const files[] = {e->file};
    const struct hd_choices_options options = {.files = files, .file_count = 1};
    struct decoding d = decoding_open_as(e->saved.path, (struct hd_decoder_options){.slots = 2});
    struct hd_generator *generator = NULL;
    struct hd_language *language = NULL;
    struct hd_choices found = {.questions = 0};
    enum hd_status st = hd_language_open(d.decoder, e->saved.path, &language);

    if (!st)
        st = hd_generator_new(d.decoder, 0, &generator);
    if (!st)
        st = hd_choices_run(generator, d.decoder, language, &options, &found);
    if (st)
        fail_msg("%s", hd_err_message());
    hd_generator_free(generator);
    hd_language_close(language);
    decoding_close(&d);
    return (struct hd_exam_score){found.questions, found.cut, found.acc, found.acc_norm};
}

struct layout {
    const char *family;
    int tp, pp, dp, cp, ep, zero;
};

/* Goal: the ranks of every layout find what heddle eval finds. Method: the rules of heddle eval on
 * the checkpoint of the same weights, by other programs. Not all of the questions are answered
 * alike, or the test could not fail. */
static void every_layout_has_the_scores_of_eval(void **state)
{
    static const struct layout layouts[] = {
        {"llama", .tp = 1, .pp = 1, .dp = 1, .cp = 1, .ep = 1, .zero = 0},
        {"llama", .tp = 2, .pp = 1, .dp = 1, .cp = 1, .ep = 1, .zero = 0},
        {"llama", .tp = 1, .pp = 2, .dp = 2, .cp = 1, .ep = 1, .zero = 1},
        {"llama", .tp = 1, .pp = 1, .dp = 1, .cp = 2, .ep = 1, .zero = 0},
        {"llama", .tp = 2, .pp = 1, .dp = 2, .cp = 1, .ep = 1, .zero = 3},
        {"mixtral", .tp = 1, .pp = 1, .dp = 2, .cp = 1, .ep = 2, .zero = 1},
    };

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout *l = &layouts[i];
        const int world = l->tp * l->pp * l->dp * l->cp;
        struct exam e = {.loss = 0};
        struct hd_exam_score want;

        exam_setup(&e, l->family, l->dp);
        e.job.tp = l->tp;
        e.job.pp = l->pp;
        e.job.cp = l->cp;
        e.job.ep = l->ep;
        e.job.zero = l->zero;
        e.job.micro_batch = 1;
        (void)snprintf(e.job.schedule, sizeof e.job.schedule, "%s", l->pp > 1 ? "1f1b" : "none");
        if (harness_threads(&e.job, world, &e, sit_exam))
            fail_msg("layout %zu: %s", i, hd_err_message());
        want = by_decoder(&e);
        assert_int_equal(want.questions, QUESTIONS);
        assert_int_equal(want.cut, 1);
        assert_true(want.acc > 0 && want.acc < 1);
        check_equal(&e, world, &want);
        harness_teardown(&e.h);
    }
}

static enum hd_status validate_alone(struct harness_rank *r)
{
    struct exam *e = r->context;
    struct hd_trainer *t = NULL;
    int64_t targets;
    enum hd_status st = harness_trained(r, &t);

    if (!st)
        st = hd_trainer_validate(t, &e->loss, &targets);
    hd_trainer_free(t);
    return st;
}

/* Goal: the losses of validation are those of a run without questions. Method: both runs, on joined
 * documents, so that the bounds of the programs for questions must not show. */
static void questions_leave_the_loss_as_it_is(void **state)
{
    struct exam with = {.loss = 0}, without = {.loss = 0};

    exam_setup(&with, "llama", 1);
    assert_int_equal(harness_threads(&with.job, 1, &with, sit_exam), HD_OK);
    with.job.choices = "";
    assert_int_equal(harness_threads(&with.job, 1, &without, validate_alone), HD_OK);
    assert_true(fabs(with.loss - without.loss) <= 1e-6 * without.loss);
    harness_teardown(&with.h);
}

/* Sits the exam with larger weights, so that its answers are far from even. */
static enum hd_status sit_untrained(struct harness_rank *r)
{
    struct exam *e = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);
    const int params = st ? 0 : hd_trainer_rank_program(t)->registry.param_count;

    for (int i = 0; i < params; i++) {
        float *w = harness_take(t, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; w && k < hd_trainer_rank_program(t)->registry.params[i].count; k++)
            w[k] *= 5;
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
    if (!st)
        st = hd_trainer_examine(t, 0, NULL, NULL, &e->score[r->rank]);
    hd_trainer_free(t);
    return st;
}

/* Goal: the temperature at which a model samples its answers changes no score. Method: the same weights
 * in a job of next tokens. */
static void a_temperature_of_answers_changes_no_score(void **state)
{
    struct exam e = {.loss = 0};
    struct hd_exam_score want;
    struct hd_text text = {0};

    exam_setup(&e, "llama", 1);
    /* choices of equal lengths, or the shortest would be the likeliest at each temperature */
    for (int q = 1; q <= 60; q++)
        hd_text_add(
            &text,
            "{\"prompt\":\"%d is\",\"choices\":[\"%06d\",\"%06d\",\"%06d\"],\"answer\":%d}\n", q,
            7919 * q, 104729 * q % 1000000, 1299709 * q % 1000000, q % 3);
    assert_int_equal(hd_file_write_atomic(e.file, text.data, text.len_bytes, 0644), HD_OK);
    hd_text_free(&text);
    assert_int_equal(harness_threads(&e.job, 1, &e, sit_untrained), HD_OK);
    want = e.score[0];
    assert_true(want.acc > 0 && want.acc < 1);
    e.job.objective = HD_JOB_OBJECTIVE_GRPO;
    e.job.policy_loss = HD_JOB_POLICY_LOSS_GRPO;
    e.job.rollout_max_tokens = 8;
    e.job.rollout_temperature = 20;
    if (harness_threads(&e.job, 1, &e, sit_untrained))
        fail_msg("%s", hd_err_message());
    check_equal(&e, 1, &want);
    harness_teardown(&e.h);
}

/* ---- early stopping ---- */

struct patience {
    struct hd_saved saved; /* step 0: start anew */
    int steps;             /* steps of this run, with a validation after each */
    bool stops;            /* whether the run is to end, after them */
    struct hd_text reason;
};

/* One attempt: from a checkpoint, or anew; some steps; a checkpoint. */
static enum hd_status attempt(struct harness_rank *r)
{
    struct patience *p = r->context;
    struct hd_trainer *t = NULL;
    struct hd_step_result step;
    int64_t targets;
    double loss;
    enum hd_status st = harness_trainer(r, &t);

    if (!st && p->saved.step)
        st = hd_trainer_load(t, p->saved.path, p->saved.hash, NULL);
    for (int i = 0; !st && i < p->steps; i++) {
        st = hd_trainer_step(t, 0, &step);
        if (!st)
            st = hd_trainer_validate(t, &loss, &targets);
    }
    p->stops = !st && hd_trainer_stops_early(t);
    if (p->stops)
        hd_trainer_describe_stop(t, &p->reason);
    if (!st && p->steps)
        st = hd_trainer_save(t, &p->saved);
    hd_trainer_free(t);
    return st;
}

static bool run_attempt(const struct hd_job *job, struct patience *p, int steps)
{
    p->steps = steps;
    hd_text_clear(&p->reason);
    if (harness_threads(job, 1, p, attempt))
        fail_msg("%s", hd_err_message());
    return p->stops;
}

/* Goal: patience counts validations without an improvement, also those before a checkpoint; what
 * was counted by one number does not count for another. Method: no change is an improvement. The
 * first validation sets the number, the second counts, and the third after a restart, too. */
static void patience_outlives_a_kill(void **state)
{
    struct patience p = {.steps = 0};
    struct exam e = {.loss = 0};

    exam_setup(&e, "llama", 1);
    e.job.stop_patience = 2;
    e.job.stop_min_delta = 1e9;
    assert_false(run_attempt(&e.job, &p, 2));
    assert_true(run_attempt(&e.job, &p, 1));
    assert_non_null(strstr(p.reason.data, "ended early after step 3: loss has not fallen below "));
    assert_non_null(strstr(p.reason.data, "that of step 1, in 2 validations"));
    assert_true(run_attempt(&e.job, &p, 0)); /* killed behind its last checkpoint */
    e.job.stop_metric = "quiz/acc";
    assert_false(run_attempt(&e.job, &p, 0));
    hd_text_free(&p.reason);
    harness_teardown(&e.h);
}

/* ---- refusals ---- */

static enum hd_status new_trainer(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    hd_trainer_free(t);
    return st;
}

/* Goal: wrong lines are told with file and line. Method: a file whose second and fourth lines are
 * wrong, the third of which is blank. */
static void wrong_questions_are_told_with_their_lines(void **state)
{
    static const char lines[] = "{\"prompt\":\"a\",\"choices\":[\"b\",\"c\"],\"answer\":0}\n"
                                "{\"prompt\":\"a\",\"choices\":[\"b\",\"c\"],\"answer\":2}\n\n"
                                "{\"prompt\":\"a\",\"choices\":[\"b\"],\"answer\":0}\n";
    struct exam e = {.loss = 0};

    exam_setup(&e, "llama", 1);
    assert_int_equal(hd_file_write_atomic(e.file, lines, sizeof lines - 1, 0644), HD_OK);
    assert_int_equal(harness_threads(&e.job, 1, &e, new_trainer), HD_INVALID);
    assert_non_null(
        strstr(hd_err_message(), "validate.choices.quiz: 2 of 3 questions are wrong: "));
    assert_non_null(strstr(hd_err_message(), "questions.jsonl:2: answer: 2 is no index"));
    assert_non_null(strstr(hd_err_message(), "questions.jsonl:4: choices: give 2 to 64 texts"));
    e.job.choices_limit = 1; /* lines behind the limit are not read */
    assert_int_equal(harness_threads(&e.job, 1, &e, new_trainer), HD_OK);
    harness_teardown(&e.h);
}

RUN_CASES()
