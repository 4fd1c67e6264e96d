/* Muon: in every layout the steps of one rank, checkpoints that cross layouts, and steps that are
 * nearly orthogonal.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "tests/program/test.h"

enum { STEPS = 4 };
#define THRESHOLD 0.02 /* of train.qk_clip: some heads are clipped, others not */

struct layout {
    const char *text, *family, *precision, *moments;
    int dp, tp, pp, cp, ep, zero, zero_shard;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = harness_job(h, l->family, l->dp ? l->dp : 1);

    job.optimizer = HD_JOB_OPTIMIZER_MUON;
    job.muon_adamw_lr = 0.5;
    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.ep = l->ep ? l->ep : 1;
    job.zero = l->zero;
    job.zero_shard = l->zero_shard;
    job.micro_batch = 1;
    if (l->precision)
        job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    if (l->moments)
        job.moments = hd_job_find_word(hd_job_moments_words, l->moments);
    if (job.pp > 1)
        (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

/* Owners have matrices of several shards and tp ranks, key/value heads in copies, experts of other
 * ranks' ep index, and more ranks than matrices. */
static const struct layout layouts[] = {
    {.text = "dp=2", .family = "llama", .dp = 2},
    {.text = "dp=2 zero=1", .family = "llama", .dp = 2, .zero = 1},
    {.text = "dp=4 zero=2", .family = "gpt2", .dp = 4, .zero = 2},
    {.text = "dp=2 zero=3", .family = "gpt2", .dp = 2, .zero = 3},
    {.text = "dp=4 zero=1 zero_shard=2", .family = "llama", .dp = 4, .zero = 1, .zero_shard = 2},
    {.text = "tp=2", .family = "gpt2", .tp = 2},
    {.text = "tp=4 dp=2 zero=1", .family = "llama", .tp = 4, .dp = 2, .zero = 1},
    {.text = "pp=2 tp=2 dp=2 zero=2", .family = "llama", .pp = 2, .tp = 2, .dp = 2, .zero = 2},
    {.text = "cp=2 dp=2 zero=3", .family = "llama", .cp = 2, .dp = 2, .zero = 3},
    {.text = "dp=4 ep=2", .family = "mixtral", .dp = 4, .ep = 2},
    {.text = "dp=4 ep=2 zero=1", .family = "mixtral", .dp = 4, .ep = 2, .zero = 1},
    {.text = "dp=2 ep=2 tp=2 zero=3", .family = "mixtral", .dp = 2, .ep = 2, .tp = 2, .zero = 3},
    {.text = "tp=2 of latents", .family = "deepseek_v3", .tp = 2, .dp = 2, .zero = 1},
};

/* Compares gradients, losses and weights of all steps (compare.h): rounding of a gradient, which the
 * iteration amplifies about tenfold, stays within the bounds that AdamW's runs have. */
static void every_layout_takes_the_steps_of_one_rank(void **state)
{
    struct run *reference = NULL;
    const char *family = "";
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout *l = &layouts[i], one = {.family = l->family};
        struct hd_job job = job_of(&h, l), plain;
        double worst;

        job.qk_clip_threshold = THRESHOLD;

        if (strcmp(family, l->family) != 0) {
            run_free(reference);
            reference = run_new(STEPS);
            plain = job_of(&h, &one);
            plain.qk_clip_threshold = THRESHOLD;
            run_threads(plain, 1, reference);
            family = l->family;
        }
        if (compare_with(&job, reference, &worst))
            fail_msg("%s %s: %s", l->family, l->text, hd_err_message());
    }
    run_free(reference);
    harness_teardown(&h);
}

/* ---- what is kept ---- */

/* Bytes of moments: 4 of each element of a linear, 8 of each other one. Sizes of harness_job: C = 32,
 * F = 48, 2 of 4 heads for keys, V = 256; all are multiples of 16, so nothing is added. */
static void one_moment_of_matrices_is_kept(void **state)
{
    enum { C = 32, F = 48, G = 16, V = 256 };
    const int64_t linear = 2 * (2 * C * C + 2 * G * C + 3 * F * C);
    const int64_t others = 2 * V * C + 5 * C; /* embedding, head, five norms */
    static const struct layout one = {.family = "llama"};
    struct hd_rank_program layout;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    hd_arena_init(&arena, 0);
    job = job_of(&h, &one);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
    assert_int_equal(layout.memory.moments, 4 * linear + 8 * others);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* ---- Lion ---- */

/* Elementwise, and so is QK-clip: shards have the bits of the whole. */
static void lion_has_the_bits_of_plain_data_parallelism(void **state)
{
    static const struct layout plain = {.family = "llama", .dp = 2},
                               cut = {.family = "llama", .dp = 2, .zero = 1};
    struct run *runs[2] = {run_new(STEPS), run_new(STEPS)};
    struct harness h;

    harness_setup(&h, 20000);
    for (int i = 0; i < 2; i++) {
        struct hd_job job = job_of(&h, i ? &cut : &plain);

        job.optimizer = HD_JOB_OPTIMIZER_LION;
        job.qk_clip_threshold = THRESHOLD;
        run_threads(job, 2, runs[i]);
    }
    assert_memory_equal(runs[0]->loss, runs[1]->loss, sizeof runs[0]->loss);
    assert_memory_equal(runs[0]->weights, runs[1]->weights, sizeof runs[0]->weights);
    assert_memory_equal(runs[0]->moments, runs[1]->moments, sizeof runs[0]->moments);
    for (int i = 0; i < 2; i++)
        run_free(runs[i]);
    harness_teardown(&h);
}

/* ---- steps ---- */

enum { SIDE_MAX = 256 };

/* Sets ret_values to the singular values of a [rows, columns], by rotations of its rows that make
 * them orthogonal (Jacobi); rows <= columns. */
static void singular_values(double *a, int64_t rows, int64_t columns, double *ret_values)
{
    for (int sweep = 0; sweep < 40; sweep++)
        for (int64_t p = 0; p < rows; p++)
            for (int64_t q = p + 1; q < rows; q++) {
                double *x = a + p * columns, *y = a + q * columns;
                double xx = 0, yy = 0, xy = 0, angle;

                for (int64_t k = 0; k < columns; k++) {
                    xx += x[k] * x[k];
                    yy += y[k] * y[k];
                    xy += x[k] * y[k];
                }
                if (fabs(xy) <= 1e-15 * sqrt(xx * yy))
                    continue;
                angle = atan2(2 * xy, xx - yy) / 2;
                for (int64_t k = 0; k < columns; k++) {
                    const double u = x[k], v = y[k];

                    x[k] = cos(angle) * u + sin(angle) * v;
                    y[k] = cos(angle) * v - sin(angle) * u;
                }
            }
    for (int64_t p = 0; p < rows; p++) {
        ret_values[p] = 0;
        for (int64_t k = 0; k < columns; k++)
            ret_values[p] += a[p * columns + k] * a[p * columns + k];
        ret_values[p] = sqrt(ret_values[p]);
    }
}

struct measured {
    const struct run *run;
    double lr, largest, shortest; /* largest singular value; smallest root of the mean square */
    double plain;                 /* smallest of the gradients' largest singular values */
    int count;
};

/* Returns the largest singular value of the first step of a matrix of a linear, or of its gradient;
 * *ret_root: root of the mean square of all. The step is in units of what it should be: (W0 - W1)
 * divided by the rate and by 0.2 sqrt(max). */
static double measure_one(const struct measured *m, bool step, int64_t first, int64_t rows,
                          int64_t columns, double *ret_root)
{
    const double unit = m->lr * 0.2 * sqrt((double)(rows > columns ? rows : columns));
    const int64_t n = rows < columns ? rows : columns;
    double *a = calloc((size_t)(rows * columns), sizeof *a), values[SIDE_MAX], squares = 0,
           most = 0;

    assert_true(a && n <= SIDE_MAX);
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t row = i / columns, column = i % columns;
        const double moved =
            (double)m->run->initial[first + i] - (double)m->run->weights[first + i];

        a[rows <= columns ? i : column * rows + row] =
            step ? moved / unit : (double)m->run->first_grad[first + i];
    }
    singular_values(a, n, rows <= columns ? columns : rows, values);
    for (int64_t i = 0; i < n; i++) {
        squares += values[i] * values[i];
        most = fmax(most, values[i]);
    }
    *ret_root = sqrt(squares / (double)n);
    free(a);
    return most;
}

static void measure_matrix(struct measured *m, int64_t first, int64_t rows, int64_t columns)
{
    double root, most = measure_one(m, true, first, rows, columns, &root);

    m->largest = fmax(m->largest, most);
    m->shortest = fmin(m->shortest, root);
    most = measure_one(m, false, first, rows, columns, &root);
    m->plain = fmin(m->plain, most / root);
    m->count++;
}

static void measure(const struct hd_param *p, int64_t first, void *context)
{
    const int64_t rows = p->shape[p->dim_count - 2 > 0 ? p->dim_count - 2 : 0];
    const int64_t columns = p->shape[p->dim_count - 1];

    if (p->rule == HD_RULE_MUON)
        for (int64_t k = 0; k < (p->dim_count > 2 ? p->shape[0] : 1); k++)
            measure_matrix(context, first + k * rows * columns, rows, columns);
}

/* Goal: not plain descent, whose singular values are those of the gradient, nor an iteration for
 * each micro-batch, whose sum has values of up to their number. Method: singular values of the first
 * step of each matrix: none above 1.25, which the iteration never exceeds, and in the root of the
 * mean square at least 0.5: gradients of 128 tokens have a few large values, and five iterations
 * lift the small ones as far as they can. The gradients themselves, which plain descent would follow,
 * are beyond the first bound where they have the second's length. */
static void a_step_is_nearly_orthogonal(void **state)
{
    static const struct layout cases[] = {
        {.text = "one", .family = "llama"},
        {.text = "tp=2 dp=2 zero=1", .family = "llama", .tp = 2, .dp = 2, .zero = 1},
        {.text = "dp=4 ep=2 zero=2", .family = "mixtral", .dp = 4, .ep = 2, .zero = 2},
        {.text = "bf16 dp=2 zero=3", .family = "gpt2", .precision = "bf16", .dp = 2, .zero = 3},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct run *run = run_new(1);
        struct harness h;
        struct hd_job job;
        struct measured m = {.run = run, .shortest = 1e9, .plain = 1e9};

        harness_setup(&h, 20000);
        job = job_of(&h, &cases[i]);
        job.weight_decay = 0;
        m.lr = job.lr_peak / 2; /* the first of two steps of warm-up */
        run_threads(job, (int)job.dp, run);
        run_for_params(&job, measure, &m);
        if (!(m.count >= 8 && m.largest <= 1.25 && m.shortest >= 0.5 && m.plain * 0.5 > 1.25))
            fail_msg("%s: %d matrices, singular values up to %g, roots of mean squares from %g; of "
                     "gradients of length 1 the largest from %g",
                     cases[i].text, m.count, m.largest, m.shortest, m.plain);
        run_free(run);
        harness_teardown(&h);
    }
}

/* ---- checkpoints ---- */

/* Moments are per shard, so a checkpoint fits any other layout, bit for bit. */
static void a_checkpoint_fits_other_layouts(void **state)
{
    static const struct layout from = {.family = "llama", .tp = 2, .dp = 2, .zero = 1};
    static const struct layout to[] = {{.family = "llama", .dp = 2, .zero = 3},
                                       {.family = "llama", .pp = 2},
                                       {.family = "llama", .moments = "8bit", .dp = 2, .zero = 1}};
    struct run *saved = run_new(0);
    struct hd_saved at;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &from);
    run_save(&job, 3, saved, &at);
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
        struct run *loaded = run_new(1);

        job = job_of(&h, &to[i]);
        run_load(&job, &at, loaded);
        if (!to[i].moments)
            run_compare_state(saved, loaded);
        assert_true(isfinite(loaded->loss[0]));
        run_free(loaded);
    }
    run_free(saved);
    harness_teardown(&h);
}

static enum hd_status load_by_adamw(struct harness_rank *r)
{
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    st = hd_trainer_load(t, ((struct hd_saved *)r->context)->path, "-", NULL);
    hd_trainer_free(t);
    return st;
}

static void moments_of_another_optimizer_are_refused(void **state)
{
    static const struct layout one = {.family = "llama"};
    struct run *saved = run_new(0);
    struct hd_saved at;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &one);
    run_save(&job, 1, saved, &at);
    job.optimizer = HD_JOB_OPTIMIZER_LION;
    assert_int_equal(harness_threads(&job, 1, &at, load_by_adamw), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has the moments of muon"));
    assert_non_null(strstr(hd_err_message(), "train.init_from"));
    run_free(saved);
    harness_teardown(&h);
}

RUN_CASES()
