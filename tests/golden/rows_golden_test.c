/* One conversation through a mixture of experts, in windows of several lengths, against
 * transformers (rows.py): the gradient of the balancing loss is that of its 42 tokens, whatever the
 * window and however few of them count for the main loss.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data/token_writer.h"
#include "golden.h"
#include "harness.h"
#include "tests/program/test.h"
#include "values/rows.inc"

struct step {
    double loss, norm, balance, z;
};

static enum hd_status take_step(struct harness_rank *r)
{
    struct step *s = r->context;
    struct hd_step_result result = {0};
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    for (int i = 0; !st && i < hd_trainer_rank_program(t)->registry.param_count; i++) {
        const struct hd_param *p = &hd_trainer_rank_program(t)->registry.params[i];
        float *w = harness_take(t, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; k < p->real_count; k++)
            w[k] = golden_weight(p->name, p->dim_count, k);
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    *s = (struct step){result.loss, result.grad_norm, result.router.balance, result.z_loss};
    hd_trainer_free(t);
    return st;
}

/* The loss with the balancing loss of 42 tokens of which 17 count, of one layer, by
 * MixtralForCausalLM with an attention mask, in fp64 (golden/rows.py). */
static void one_conversation_has_the_gradient_of_transformers(void **state)
{
    static const int windows[] = {42, 48, 64, 128};
    struct hd_token_writer *w;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;
    char out[200], path[220];
    struct stat info;

    harness_setup(&h, 64);
    (void)snprintf(out, sizeof out, "%.180s/one", h.dir);
    (void)snprintf(path, sizeof path, "%s.bin", out);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    assert_int_equal(hd_token_writer_add_document(w, rows_ids, rows_counts, ROWS_TOKENS), HD_OK);
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    assert_int_equal(stat(path, &info), 0);
    file = (struct hd_job_file){.path = path, .size_bytes = info.st_size};
    job = harness_job(&h, "mixtral", 1);
    job.train = &file;
    job.val_split = 0;
    job.validate_batches = 0;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.layers = 1;
    job.balance = 1; /* 0.5 of transformers, whose loss is 2 (the choices of a row) at balance */
    job.z_loss = 0;
    job.global_batch = job.micro_batch = 1;
    job.lr_peak = job.lr_min = job.clip = 0;
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        struct step s;

        job.context = windows[i];
        if (harness_threads(&job, 1, &s, take_step))
            fail_msg("%s", hd_err_message());
        if (!(fabs(s.loss / ROWS_LOSS - 1) < 1e-6) || !(fabs(s.norm / ROWS_NORM - 1) < 1e-5) ||
            !(fabs(s.balance / ROWS_BALANCE - 1) < 1e-6))
            fail_msg("window of %d: loss %.8g norm %.8g balance %.8g, transformers' %.8g %.8g %.8g",
                     windows[i], s.loss, s.norm, s.balance, ROWS_LOSS, ROWS_NORM, ROWS_BALANCE);
        assert_true(s.z == 0);
        job.head_z_loss = 0.25;
        if (harness_threads(&job, 1, &s, take_step))
            fail_msg("%s", hd_err_message());
        job.head_z_loss = 0;
        if (!(fabs(s.loss / ROWS_LOSS - 1) < 1e-6) || !(fabs(s.norm / ROWS_Z_NORM - 1) < 1e-5) ||
            !(fabs(s.z / ROWS_Z - 1) < 1e-6))
            fail_msg("window of %d with z-loss: loss %.8g norm %.8g z %.8g, torch's %.8g %.8g %.8g",
                     windows[i], s.loss, s.norm, s.z, ROWS_LOSS, ROWS_Z_NORM, ROWS_Z);
    }
    harness_teardown(&h);
}

RUN_CASES()
