/* Goal: times by data sheet come true. Method: the layouts of published runs are priced, and the
 * predicted steps compared with the measured ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "plan/links.h"
#include "plan/search_internal.h"
#include "tests/program/test.h"

enum model { gpt, mpt, llama };

struct run {
    const char *source;
    enum model model;
    const char *gpu;
    int64_t layers, hidden, heads, context;
    int32_t gpus;
    int64_t tp, pp, chunks, zero;
    const char *recompute;
    int64_t micro_batch, batch;
    /* what is published: tokens/s of a GPU, 10^12 model FLOP/s of a GPU, or a step's seconds */
    double tokens, tflops, step;
    bool held_out; /* the shares were not fitted to it */
};

static const struct run runs[] = {
#define ROW(held, source, model, gpu, layers, hidden, heads, context, gpus, tp, pp, chunks, zero, \
            recompute, micro_batch, batch, member, value)                                         \
    {                                                                                             \
        #source,                                                                                  \
        model,                                                                                    \
        gpu,                                                                                      \
        layers,                                                                                   \
        hidden,                                                                                   \
        heads,                                                                                    \
        context,                                                                                  \
        gpus,                                                                                     \
        tp,                                                                                       \
        pp,                                                                                       \
        chunks,                                                                                   \
        zero,                                                                                     \
        recompute,                                                                                \
        micro_batch,                                                                              \
        batch,                                                                                    \
        .member = value,                                                                          \
        .held_out = held},
#define R(...) ROW(false, __VA_ARGS__)
#define H(...) ROW(true, __VA_ARGS__)
#include "published.def"
#undef H
#undef R
#undef ROW
};
enum { RUNS = sizeof runs / sizeof runs[0], DOCUMENT_BYTES = 1 << 16 };

static int64_t vocab_of(const struct run *r)
{
    if (strcmp(r->source, "megatron") == 0)
        return 131072;
    if (strcmp(r->source, "titan") == 0)
        return 128256;
    return r->model == mpt ? 50368 : 51200;
}

/* Narayanan et al. 2021, equation 3, without its third of recompute. */
static double model_flops(const struct run *r)
{
    const double h = (double)r->hidden, s = (double)r->context, L = (double)r->layers;

    return 72 * (double)r->batch * s * L * h * h *
           (1 + s / (6 * h) + (double)vocab_of(r) / (12 * h * L));
}

static double measured_step(const struct run *r)
{
    if (r->step > 0)
        return r->step;
    if (r->tflops > 0)
        return model_flops(r) / (r->gpus * r->tflops * 1e12);
    return (double)(r->batch * r->context) / (r->tokens * r->gpus);
}

static struct hd_job job_of(const struct run *r)
{
    struct hd_job job = priced_job(r->layers, r->hidden, r->batch);

    job.heads = job.kv_heads = r->heads;
    job.head_width = r->hidden / r->heads;
    job.ffn_hidden = 4 * r->hidden;
    job.context = r->context;
    job.vocab = vocab_of(r);
    if (r->model == llama) { /* Llama 3.1 8B */
        job.kv_heads = 8;
        job.ffn_hidden = 14336;
    } else {
        job.family = "gpt2";
        job.positions = HD_JOB_POSITIONS_LEARNED;
        job.tie_embeddings = r->model == mpt;
        job.qkv_bias = job.out_bias = job.mlp_bias = r->model == gpt;
    }
    job.tp = r->tp;
    job.pp = r->pp;
    job.cp = job.ep = 1;
    job.dp = r->gpus / (r->tp * r->pp);
    job.micro_batch = r->micro_batch;
    job.virtual_stages = r->chunks;
    job.zero = r->zero;
    job.sequence = r->tp > 1;
    job.native_reduction = true; /* those frameworks do not order their sums */
    priced_set(job.recompute, r->recompute);
    priced_set(job.schedule, r->pp == 1 ? "none" : r->chunks > 1 ? "interleaved" : "1f1b");
    job.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    return job;
}

static double planned_step(const struct run *r)
{
    const struct hd_job job = job_of(r);
    const struct hd_gpu_kind *kind = hd_gpu_kind_find(r->gpu);
    const struct hd_plan_request request = priced_request(&job);
    struct hd_model_config config;
    struct hd_step_cost cost;
    struct hd_cluster c;
    const struct hd_search_asked asked = {.spec = &job,
                                          .request = &request,
                                          .cluster = &c,
                                          .devices = r->gpus,
                                          .threads = 1,
                                          .bf16_fast = true,
                                          .top = 1};

    hd_cluster_of_kind(kind, r->gpus, false, &c);
    if (strcmp(r->source, "titan") == 0 && strcmp(r->gpu, "h100") == 0)
        c.rates.memory_bytes_per_s *= 2400 / kind->memory_gb_per_s;
    if (hd_model_config_from_job(&job, &config) || search_cost(&asked, &config, &job, &cost))
        fail_msg("%s, %d layers: %s", r->source, (int)r->layers, hd_err_message());
    return cost.step_s;
}

/* Returns the relative errors of all planned steps; they are computed once. */
static const double *errors(void)
{
    static double of[RUNS];

    for (size_t i = 0; of[0] == 0 && i < RUNS; i++)
        of[RUNS - 1 - i] =
            planned_step(&runs[RUNS - 1 - i]) / measured_step(&runs[RUNS - 1 - i]) - 1;
    return of;
}

struct summary {
    int runs;
    double mean, bias, worst;
};

/* Returns the errors of the runs that are (or are not) held out, on one kind of GPU or ("") any. */
static struct summary summary_of(bool held_out, const char *gpu)
{
    struct summary s = {0};

    for (size_t i = 0; i < RUNS; i++)
        if (runs[i].held_out == held_out && strncmp(runs[i].gpu, gpu, strlen(gpu)) == 0) {
            s.bias += errors()[i];
            s.mean += fabs(errors()[i]);
            s.worst = fmax(s.worst, fabs(errors()[i]));
            s.runs++;
        }
    assert_true(s.runs > 5);
    s.bias /= s.runs;
    s.mean /= s.runs;
    return s;
}

static void compare(bool held_out, const char *gpu, double bias_most)
{
    const struct summary s = summary_of(held_out, gpu);

    print_message("%d runs%s%s%s: mean error %.1f%%, bias %+.1f%%, worst %.1f%%\n", s.runs,
                  held_out ? " held out" : "", *gpu ? " on " : "", gpu, 100 * s.mean, 100 * s.bias,
                  100 * s.worst);
    assert_true(s.mean <= 0.10);
    assert_true(s.worst <= 0.25);
    assert_true(fabs(s.bias) <= bias_most);
}

static void planned_steps_are_near_published_ones(void **state)
{
    (void)state;
    compare(false, "", 0.04);
    compare(true, "", 0.04);
    compare(false, "h100", 0.05);
    compare(false, "a100", 0.05);
}

/* The band that a plan prints holds for nine runs of ten, and is not much wider than that. */
static void nine_of_ten_runs_are_within_the_printed_band(void **state)
{
    struct hd_rates rates;
    int within = 0, near = 0;

    (void)state;
    for (size_t i = 0; i < RUNS; i++) {
        hd_rates_of_kind(hd_gpu_kind_find(runs[i].gpu), false, &rates);
        within += fabs(errors()[i]) <= rates.error_band;
        near += fabs(errors()[i]) <= rates.error_band / 2;
    }
    assert_true(within >= 0.9 * RUNS);
    assert_true(near < 0.9 * RUNS);
}

/* NCCL's all-reduce over the 8 GPUs of a DGX H100, as it was measured there. */
static void a_collective_within_a_node_takes_what_nccl_takes(void **state)
{
    static const struct {
        double bytes, us;
    } measured[] = {{64 << 10, 19.5},  {1 << 20, 27.4},     {16 << 20, 123.8},
                    {64 << 20, 324.7}, {256 << 20, 1112.5}, {1 << 30, 4029}};
    struct hd_link_group g = {.size = 8, .near = {8}};
    struct hd_cluster c;

    (void)state;
    hd_cluster_of_kind(hd_gpu_kind_find("h100"), 8, false, &c);
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++) {
        const double us =
            1e6 * hd_links_collective(&c, &g, HD_COMM_ALL_REDUCE, measured[i].bytes, true);

        print_message("%.0f bytes: %.1f us, measured %.1f\n", measured[i].bytes, us,
                      measured[i].us);
        assert_true(fabs(us / measured[i].us - 1) < 0.35);
    }
}

/* Returns 1, and prints the line, if the text's line of a part of the runs is missing, or off by more
 * than half a percentage point. */
static int lacks_summary(const char *text, const char *part, struct summary s)
{
    double mean = 0, bias = 0, worst = 0;
    char line[64];
    const char *found;

    (void)snprintf(line, sizeof line, "| %s: %d |", part, s.runs);
    found = strstr(text, line);
    if (found &&
        sscanf(found + strlen(line), " %lf%% | %lf%% | %lf%%", &mean, &bias, &worst) == 3 &&
        fabs(mean - 100 * s.mean) < 0.5 && fabs(bias - 100 * s.bias) < 0.5 &&
        fabs(worst - 100 * s.worst) < 0.5)
        return 0;
    print_message("%s %.1f%% | %+.1f%% | %.1f%% |\n", line, 100 * s.mean, 100 * s.bias,
                  100 * s.worst);
    return 1;
}

/* The document's table has a line per run with both steps; its planned ones are within a hundredth. */
static void the_document_has_these_runs(void **state)
{
    static char text[DOCUMENT_BYTES];
    char path[1024];
    FILE *file;
    size_t bytes;
    int lacking = 0;

    (void)state;
    (void)snprintf(path, sizeof path, "%s/docs/engine/plan-times.md", getenv("HEDDLE_SOURCE_DIR"));
    file = fopen(path, "r");
    assert_non_null(file);
    bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    (void)fclose(file);
    for (size_t i = 0; i < RUNS; i++) {
        const struct run *r = &runs[i];
        const double step = measured_step(r), planned = step * (1 + errors()[i]);
        char line[256];
        const char *found;
        double written = 0;

        (void)snprintf(line, sizeof line,
                       "| %s%s | %s | %d x %d, %d | %d | %d x %d | %d | %s | %d x %d | %.3g |",
                       r->source, r->held_out ? " *" : "", r->gpu, (int)r->layers, (int)r->hidden,
                       (int)r->context, r->gpus, (int)r->tp, (int)r->pp, (int)r->zero, r->recompute,
                       (int)r->micro_batch, (int)r->batch, step);
        found = strstr(text, line);
        if (found)
            written = strtod(found + strlen(line), NULL);
        if (!found || fabs(written / planned - 1) > 0.01) {
            print_message("%s %.3g | %+.0f%% |\n", line, planned, 100 * errors()[i]);
            lacking++;
        }
    }
    lacking += lacks_summary(text, "fitted", summary_of(false, ""));
    lacking += lacks_summary(text, "held out", summary_of(true, ""));
    if (lacking)
        fail_msg("%s lacks the lines above, or has others of these runs", path);
}

RUN_CASES()
