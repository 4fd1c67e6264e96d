/* Optimizers: 20 steps of Lion and Muon give PyTorch's losses, gradient norms and weights, against
 * values/optimizer-*.golden (optimizers.py). Distillation: 10 steps of a student beside the model of a
 * teacher give its losses, divergences and gradient norms, against values/distill-*.golden
 * (distill_steps.py).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "golden.h"
#include "harness.h"
#include "job/frozen_model.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/trainer.h"

enum { STEPS = 20 };

struct followed {
    const struct golden *golden;
    char story[200];    /* first difference; "": none */
    const char *prefix; /* of the names whose weights are saved */
    struct hd_saved saved;
    struct golden_completions completions;
};

static void write_tokens(struct harness *h, struct hd_job *job, struct hd_job_file *file)
{
    const int64_t n = job->global_batch * job->context + 1;
    struct hd_text text = {0};

    hd_text_add_bytes(&text, "\x93NUMPY\x01\x00\x76\x00", 10);
    hd_text_add(&text, "%-117s\n", "");
    (void)snprintf(text.data + 10, 118,
                   "{'descr': '|u1', 'fortran_order': False, 'shape': (%lld,)}", (long long)n);
    text.data[strlen(text.data + 10) + 10] = ' ';
    for (int64_t i = 0; i < n; i++) {
        const char id = (char)(golden_number("tokens", i) * (double)job->vocab);

        hd_text_add_bytes(&text, &id, 1);
    }
    (void)snprintf(h->corpus, sizeof h->corpus, "%s/tokens.npy", h->dir);
    assert_int_equal(hd_file_write_atomic(h->corpus, text.data, text.len_bytes, 0600), HD_OK);
    *file = (struct hd_job_file){.path = h->corpus, .size_bytes = (int64_t)text.len_bytes};
    job->train = file;
    hd_text_free(&text);
}

static void note(struct followed *f, const char *what, int at, double got, double want,
                 double bound)
{
    if (!*f->story && !(fabs(got - want) <= bound))
        (void)snprintf(f->story, sizeof f->story, "%s %d: %.9g, PyTorch's %.9g", what, at, got,
                       want);
}

/* Compares all weights of a parameter by the length of the difference: 1e-4 of their length. */
static void compare_weights(struct hd_trainer *t, struct followed *f)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        char name[GOLDEN_NAME_MAX];
        const struct golden_tensor *want;
        float *w = harness_take(t, i, HD_STATE_WEIGHT);
        double apart = 0, length = 0;

        (void)snprintf(name, sizeof name, "weight %s", p->name);
        want = golden_find(f->golden, name);
        for (int64_t k = 0; want && k < p->real_count; k++) {
            apart += pow((double)w[k] - (double)want->values[k], 2);
            length += pow((double)want->values[k], 2);
        }
        note(f, name, i, want ? sqrt(apart) : NAN, 0, 1e-4 * sqrt(length));
        free(w);
    }
}

/* A step's rounding, some 1e-7 of a gradient, is amplified about tenfold by the iteration of Muon,
 * and inherited by the next step: bounds grow by that of one step each, as in golden_test.c. */
static enum hd_status follow(struct harness_rank *r)
{
    struct followed *f = r->context;
    const float *losses = golden_find(f->golden, "curve")->values;
    const float *norms = golden_find(f->golden, "norms")->values;
    const struct golden_tensor *divergence = golden_find(f->golden, "divergence");
    const struct golden_tensor *top = golden_find(f->golden, "top");
    const struct golden_tensor *clipped = golden_find(f->golden, "clipped");
    const int steps = (int)golden_find(f->golden, "curve")->count;
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    if (!*r->job->init_from)
        golden_set_weights(t);
    st = hd_trainer_open_teacher(t);
    for (int s = 0; s < steps && !st; s++) {
        if (hd_job_has_policy(r->job))
            st = hd_trainer_set_completions(t, f->completions.list, GOLDEN_COMPLETIONS);
        if (!st)
            st = hd_trainer_step(t, 0, &result);
        note(f, "loss of step", s + 1, result.loss, (double)losses[s],
             1e-5 * (s + 1) * (double)losses[s]);
        note(f, "norm of step", s + 1, result.grad_norm, (double)norms[s],
             1e-4 * (s + 1) * (double)norms[s]);
        if (divergence)
            note(f, "divergence of step", s + 1, result.distill_loss, (double)divergence->values[s],
                 1e-5 * (s + 1));
        if (top) {
            note(f, "largest score of step", s + 1, result.max_attention_logit,
                 (double)top->values[s], 1e-5 * (s + 1));
            note(f, "clipped heads of step", s + 1, (double)result.clipped_heads,
                 (double)clipped->values[s], 0);
        }
    }
    if (!st && !divergence)
        compare_weights(t, f);
    hd_trainer_free(t);
    return st;
}

/* Saves a checkpoint whose weights are those of the rule for the prefix and their names. */
static enum hd_status save_weights(struct harness_rank *r)
{
    struct followed *f = r->context;
    const struct hd_registry *registry;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    registry = &hd_trainer_rank_program(t)->registry;
    for (int i = 0; i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];
        float *w = harness_take(t, i, HD_STATE_WEIGHT);
        char name[GOLDEN_NAME_MAX];

        (void)snprintf(name, sizeof name, "%s%s", f->prefix, p->name);
        for (int64_t k = 0; k < p->real_count; k++)
            w[k] = golden_weight(name, p->dim_count, k);
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
    st = hd_trainer_save(t, &f->saved);
    hd_trainer_free(t);
    return st;
}

/* Makes the checkpoint of the job's teacher, and names it in the job. */
static void make_teacher(struct followed *f, struct hd_job *job)
{
    struct hd_job teacher;

    must(hd_job_of_teacher(job, job_arena(), &teacher));
    teacher.init_from = "";
    teacher.distill_write = false;
    teacher.attempt_dir = job_text("%s.teacher", job->attempt_dir);
    f->prefix = "teacher ";
    must(harness_threads(&teacher, 1, f, save_weights));
    job->distill_teacher = job_text("%s", f->saved.path);
}

/* Makes the checkpoint from which ranks of any layout take the student's weights. */
static void make_student(struct followed *f, struct hd_job *job)
{
    struct hd_job student = *job;

    student.objective = HD_JOB_OBJECTIVE_NEXT_TOKEN;
    student.distill_teacher = student.distill_model = "";
    f->prefix = "";
    must(harness_threads(&student, 1, f, save_weights));
    job->init_from = job_text("%s", f->saved.path);
}

/* A job of answers has all of them, others the first. */
static const struct {
    int64_t tp, pp, dp, cp;
} layouts[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}};

static void check(void **state)
{
    struct golden golden;
    struct followed f = {.golden = &golden};
    struct hd_job_file file;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;

    golden_open(*state, STEPS, &h, &arena, &job, &golden);
    write_tokens(&h, &job, &file);
    if (*job.distill_model)
        make_teacher(&f, &job);
    if (hd_job_has_policy(&job))
        make_student(&f, &job);
    golden_make_completions(job.vocab, &f.completions);
    for (size_t i = 0; i < (hd_job_has_policy(&job) ? sizeof layouts / sizeof layouts[0] : 1);
         i++) {
        job.tp = layouts[i].tp;
        job.pp = layouts[i].pp;
        job.dp = layouts[i].dp;
        job.cp = layouts[i].cp;
        (void)snprintf(job.schedule, sizeof job.schedule, "%s", job.pp > 1 ? "1f1b" : "none");
        if (harness_threads(&job, (int)(job.tp * job.pp * job.dp * job.cp), &f, follow))
            fail_msg("%s", hd_err_message());
        if (*f.story)
            fail_msg("layout %zu: %s", i, f.story);
    }
    hd_arena_done(&arena);
    harness_teardown(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"lion", check, NULL, NULL, "optimizer-lion"},
        {"muon", check, NULL, NULL, "optimizer-muon"},
        {"muon_with_the_scale_of_keller", check, NULL, NULL, "optimizer-muon-keller"},
        {"muon_with_qk_clip", check, NULL, NULL, "optimizer-muon-qk-clip"},
        {"a_student_beside_a_teacher", check, NULL, NULL, "distill-forward"},
        {"a_student_by_the_reverse_divergence", check, NULL, NULL, "distill-reverse"},
        {"a_student_between_the_divergences", check, NULL, NULL, "distill-jsd"},
        {"a_student_on_its_own_answers_in_each_layout", check, NULL, NULL, "distill-gkd"},
    };

    return cmocka_run_group_tests_name("optimizer_golden", tests, NULL, NULL);
}
