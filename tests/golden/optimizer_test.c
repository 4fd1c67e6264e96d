/* Optimizers: 20 steps of Lion and Muon give PyTorch's losses, gradient norms and weights, against
 * values/optimizer-*.golden (optimizers.py).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "golden.h"
#include "harness.h"
#include "tests/program/test.h"

enum { STEPS = 20 };

struct followed {
    const struct golden *golden;
    char story[200]; /* first difference; "": none */
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
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    golden_set_weights(t);
    for (int s = 0; s < STEPS && !st; s++) {
        st = hd_trainer_step(t, 0, &result);
        note(f, "loss of step", s + 1, result.loss, (double)losses[s],
             1e-5 * (s + 1) * (double)losses[s]);
        note(f, "norm of step", s + 1, result.grad_norm, (double)norms[s],
             1e-4 * (s + 1) * (double)norms[s]);
    }
    if (!st)
        compare_weights(t, f);
    hd_trainer_free(t);
    return st;
}

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
    if (harness_threads(&job, 1, &f, follow))
        fail_msg("%s", hd_err_message());
    if (*f.story)
        fail_msg("%s", f.story);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"lion", check, NULL, NULL, "optimizer-lion"},
        {"muon", check, NULL, NULL, "optimizer-muon"},
        {"muon_with_the_scale_of_keller", check, NULL, NULL, "optimizer-muon-keller"},
    };

    return cmocka_run_group_tests_name("optimizer_golden", tests, NULL, NULL);
}
