/* A loss of sampled completions: twenty steps on fixed ones like those of PyTorch, against
 * values/policy-*.golden (policy.py).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data/token_writer.h"
#include "golden.h"
#include "harness.h"
#include "tests/program/test.h"

enum { STEPS = 20, SCHEDULE = 20 }; /* the schedule of generate.py */

struct fixture {
    struct harness h;
    struct hd_arena arena;
    struct golden golden;
    struct hd_job job;
    struct golden_completions completions;
    struct hd_job_file file;
    char path[200];
};

static void make_completions(struct fixture *f)
{
    const float *sampled = golden_find(&f->golden, "sampled")->values;
    const float *reference = golden_find(&f->golden, "reference")->values;

    golden_make_completions(f->job.vocab, &f->completions);
    for (int k = 0; k < GOLDEN_COMPLETIONS; k++) {
        struct hd_policy_completion *c = &f->completions.list[k];

        c->sampled = sampled;
        c->reference = reference;
        c->advantage = (float)(golden_number("advantage", k) * 2 - 0.5);
        sampled += c->count;
        reference += c->count;
    }
}

/* A trainer opens files of training data, which steps on completions do not read. */
static void write_unread(struct fixture *f)
{
    static const int32_t ids[16] = {0};
    static const char counts[16] = {0, 1};
    struct hd_token_writer *w;
    struct stat info;
    char out[180];

    (void)snprintf(out, sizeof out, "%.150s/unread", f->h.dir);
    (void)snprintf(f->path, sizeof f->path, "%s.bin", out);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    assert_int_equal(hd_token_writer_add_document(w, ids, counts, 16), HD_OK);
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    assert_int_equal(stat(f->path, &info), 0);
    f->file = (struct hd_job_file){.path = f->path, .size_bytes = info.st_size};
    f->job.train = &f->file;
}

/* A loss near 0 is a difference of terms of about 1. */
static enum hd_status check(const char *what, int step, double is, double want, double bound)
{
    if (fabs(is - want) <= bound * (0.5 + fabs(want)))
        return HD_OK;
    return hd_err(HD_INTERNAL, "step %d: %s %.8f, PyTorch's %.8f", step, what, is, want);
}

static enum hd_status compare_steps(struct harness_rank *r)
{
    struct fixture *f = r->context;
    struct hd_step_result s;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    golden_set_weights(t);
    for (int i = 0; !st && i < on_steps(STEPS); i++) {
        const double bound = 1e-5 * (i + 1);
        const double loss = (double)golden_find(&f->golden, "curve")->values[i];
        const double norm = (double)golden_find(&f->golden, "norms")->values[i];
        const double kl = (double)golden_find(&f->golden, "kl")->values[i];
        const double entropy = (double)golden_find(&f->golden, "entropy")->values[i];

        st = hd_trainer_set_completions(t, f->completions.list, GOLDEN_COMPLETIONS);
        if (!st)
            st = hd_trainer_step(t, 0, &s);
        if (!st)
            st = check("loss", i + 1, s.loss, loss, bound);
        if (!st)
            st = check("norm", i + 1, s.grad_norm, norm, 10 * bound);
        if (!st)
            st = check("kl", i + 1, s.policy.kl, kl, 10 * bound);
        if (!st)
            st = check("entropy", i + 1, s.policy.entropy, entropy, bound);
        if (!st && (s.policy.completions != GOLDEN_COMPLETIONS ||
                    s.policy.tokens != 3 + 4 + 5 + 6 + 3 + 4 || s.targets != s.policy.tokens))
            st = hd_err(HD_INTERNAL, "%lld completions with %lld tokens",
                        (long long)s.policy.completions, (long long)s.policy.tokens);
    }
    hd_trainer_free(t);
    return st;
}

static void check_case(void **state)
{
    struct fixture f = {0};

    golden_open(*state, SCHEDULE, &f.h, &f.arena, &f.job, &f.golden);
    make_completions(&f);
    write_unread(&f);
    if (harness_threads(&f.job, 1, &f, compare_steps))
        fail_msg("%s", hd_err_message());
    hd_arena_done(&f.arena);
    harness_teardown(&f.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"twenty_steps_of_dapo_at_a_temperature", check_case, NULL, NULL, "policy-dapo"},
        {"twenty_steps_of_gspo_with_masked_completions", check_case, NULL, NULL, "policy-gspo"},
        {"twenty_steps_of_dr_grpo_with_truncated_ratios", check_case, NULL, NULL, "policy-dr_grpo"},
    };

    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
