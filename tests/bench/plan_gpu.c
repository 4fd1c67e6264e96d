/* plan_gpu: how near the planner's times come to those of real steps on a GPU.
 *
 *   plan_gpu [--calibration FILE] [--model gpt2,llama,mixtral] [--steps 3] [--minutes 5]
 *
 * Layouts of one GPU: three models, four micro-batches each, and the three policies of recompute.
 * Each is priced (plan/search.h), by the calibration of `heddle-worker probe --devices cuda:1` and,
 * beside it, by the data sheet of the kind, and then trained: a step to warm up and --steps
 * measured ones, of which the median counts. The first layout of a model runs again at the end,
 * which says how far two runs of the same differ. After --minutes no further layout is begun.
 *
 * Prints a line for each, and for each model the mean error, Spearman's rank correlation, and the
 * layout with the least predicted time beside the fastest, each by calibration and by data sheet;
 * the aims are 15%, 0.9 and 10%. Run by hand on an idle GPU; nothing is fitted to what it measures.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "kernels/plugin.h"
#include "plan/calibration.h"
#include "plan/search.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/train_gpu.h"

static const struct gpu_case models[] = {
    {"gpt2", "GPT-2 type, 6 x 768", "gpt2", 6, 768, 12, 12, 64, 3072, 8192, 1024, 0, 64, 0},
    {"llama", "Llama type, 4 x 1024", "llama", 4, 1024, 16, 4, 64, 2816, 8192, 2048, 0, 32, 0},
    {"qwen2", "Qwen2 type, 2 x 1536", "qwen2", 2, 1536, 12, 4, 128, 4096, 8192, 1024, 0, 64, 0},
};
static const char *const policies[] = {"none", "selective", "full"};
enum { MODELS = sizeof models / sizeof models[0], POLICIES = 3, MICROS = 4, STEPS_MAX = 16 };
enum { LAYOUTS = MICROS * POLICIES };

enum { BY_CALIBRATION, BY_SHEET, WAYS };
static const char *const ways[WAYS] = {"calibration", "data sheet"};

struct layout {
    int64_t micro_batch;
    const char *recompute;
    double predicted_s[WAYS], taken_s;
};

struct bench {
    struct gpu_run run;
    struct hd_cluster clusters[WAYS];
    bool calibrated;
    int64_t end_ns, memory_bytes;
    char dir[BENCH_DIR_MAX], tokens[PATH_MAX], choices[PATH_MAX];
    struct hd_arena arena;
};

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "plan_gpu: %s: %s\n", what, why);
    exit(1);
}

static struct hd_job job_of(const struct gpu_case *c, const struct layout *l,
                            struct hd_job_file *file)
{
    struct hd_job job = gpu_case_job(c, "bf16", file);

    job.layout.micro_batch = l->micro_batch;
    bench_job_word(job.layout.recompute, l->recompute);
    return job;
}

/* ---- prices ---- */

static double price(struct bench *b, const struct gpu_case *c, const struct layout *l, int way)
{
    struct hd_job_file file = {.path = b->tokens};
    struct hd_job job = job_of(c, l, &file);
    const struct hd_search_asked asked = {.spec = &job,
                                          .cluster = &b->clusters[way],
                                          .devices = 1,
                                          .threads = 1,
                                          .bf16_fast = true,
                                          .memory_bytes = b->memory_bytes};
    struct hd_search_plan plan;
    struct hd_arena arena;
    double seconds = 0;

    hd_arena_init(&arena, 0);
    if (!hd_search_cost(&asked, &job.layout, &arena, &plan) && plan.fits)
        seconds = plan.cost.step_s;
    hd_arena_done(&arena);
    return seconds;
}

/* ---- runs ---- */

static double run(struct bench *b, const struct gpu_case *c, const struct layout *l)
{
    struct hd_job_file file = {.path = b->tokens};
    double ms[STEPS_MAX];
    struct hd_step_result result = {0};
    struct gpu_rank rank = {0};
    struct hd_job job;
    enum hd_status st = gpu_case_tokens(c, b->tokens, &file.size_bytes);

    job = job_of(c, l, &file);
    if (!st)
        st = gpu_rank_open(&job, &b->run, b->choices, &rank);
    for (int i = -1; !st && i < b->run.steps; i++) {
        st = hd_trainer_step(rank.trainer, 0, &result);
        if (i >= 0)
            ms[i] = result.step_ms;
    }
    if (st)
        die(c->name, hd_err_message());
    gpu_rank_close(&rank);
    return 1e-3 * train_gpu_median(ms, b->run.steps);
}

/* ---- figures of merit ---- */

static double rank_of(const double *values, int count, int i)
{
    double below = 0, equal = 0;

    for (int k = 0; k < count; k++) {
        below += values[k] < values[i];
        equal += values[k] == values[i];
    }
    return below + (equal - 1) / 2;
}

static double spearman(const double *a, const double *b, int count)
{
    double ab = 0, aa = 0, bb = 0, mean = (count - 1) / 2.0;

    for (int i = 0; i < count; i++) {
        const double x = rank_of(a, count, i) - mean, y = rank_of(b, count, i) - mean;

        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return ab / sqrt(aa * bb);
}

static void print_merit(const struct layout *layouts, int count, int way)
{
    double taken[LAYOUTS], predicted[LAYOUTS], error = 0;
    int fastest = 0, chosen = 0;

    for (int i = 0; i < count; i++) {
        taken[i] = layouts[i].taken_s;
        predicted[i] = layouts[i].predicted_s[way];
        error += fabs(predicted[i] / taken[i] - 1) / count;
        fastest = taken[i] < taken[fastest] ? i : fastest;
        chosen = predicted[i] < predicted[chosen] ? i : chosen;
    }
    printf("  by %-11s mean error %4.1f%%%s  Spearman %.3f%s  chosen %.1f%% above the fastest%s\n",
           ways[way], 100 * error, error <= 0.15 ? "" : " MISSED",
           spearman(taken, predicted, count),
           spearman(taken, predicted, count) >= 0.9 ? "" : " MISSED",
           100 * (taken[chosen] / taken[fastest] - 1),
           taken[chosen] <= 1.1 * taken[fastest] ? "" : " MISSED");
}

/* Micro-batches from the whole batch down by fours. */
static int list_layouts(struct bench *b, const struct gpu_case *c, struct layout ret[LAYOUTS])
{
    int count = 0;

    for (int64_t micro = c->global_batch, i = 0; i < MICROS && micro >= 1; micro /= 2, i++)
        for (int p = 0; p < POLICIES; p++) {
            struct layout l = {.micro_batch = micro, .recompute = policies[p]};
            bool fits = true;

            for (int way = b->calibrated ? 0 : BY_SHEET; way < WAYS; way++) {
                l.predicted_s[way] = price(b, c, &l, way);
                fits &= l.predicted_s[way] > 0;
            }
            if (fits)
                ret[count++] = l;
        }
    return count;
}

static void compare(struct bench *b, const struct gpu_case *c)
{
    struct layout layouts[LAYOUTS];
    const int count = list_layouts(b, c, layouts);
    double again;
    int done = 0;

    printf("\n%s, %lld x %lld tokens a step\n  micro  recompute     taken ms  calibration          "
           "data sheet\n",
           c->what, (long long)c->global_batch, (long long)c->context);
    while (done < count && hd_clock_now_ns() < b->end_ns) {
        struct layout *l = &layouts[done++];

        l->taken_s = run(b, c, l);
        printf("  %5lld  %-10s %11.2f", (long long)l->micro_batch, l->recompute, 1e3 * l->taken_s);
        for (int way = 0; way < WAYS; way++)
            if (l->predicted_s[way] > 0)
                printf("  %9.2f %+6.1f%%", 1e3 * l->predicted_s[way],
                       100 * (l->predicted_s[way] / l->taken_s - 1));
        printf("\n");
        (void)fflush(stdout);
    }
    if (done < 2)
        return;
    again = run(b, c, &layouts[0]);
    printf("  the first one again: %.2f ms (%+.1f%%)\n", 1e3 * again,
           100 * (again / layouts[0].taken_s - 1));
    for (int way = b->calibrated ? 0 : BY_SHEET; way < WAYS; way++)
        print_merit(layouts, done, way);
    (void)fflush(stdout);
}

/* ---- the command ---- */

static void open_clusters(struct bench *b, const char *calibration)
{
    struct hd_calibration *cal = hd_arena_alloc(&b->arena, sizeof *cal);
    struct hd_plugin_gpu gpus[HD_PLUGIN_GPUS_MAX];
    const struct hd_gpu_kind *kind;
    struct hd_traits traits;
    int count;

    if (!cal || hd_plugin_cuda(&b->run.table) || hd_plugin_cuda_gpus(gpus, &count))
        die("the GPU", hd_err_message());
    b->run.table->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    kind = hd_gpu_kind_of_name(gpus[0].name);
    if (!kind) /* an emulated one */
        kind = hd_gpu_kind_find("h100");
    printf("%s, %s\n", gpus[0].name, traits.library);
    b->memory_bytes = gpus[0].memory_bytes;
    for (int way = 0; way < WAYS; way++)
        hd_cluster_of_gpus(kind, 1, 1, false, &b->clusters[way]);
    if (!calibration)
        return;
    if (hd_calibration_read_file(calibration, &b->arena, cal) ||
        hd_calibration_check(cal, &traits, 1))
        die(calibration, hd_err_message());
    hd_rates_calibrate(&b->clusters[BY_CALIBRATION].rates, cal);
    b->calibrated = true;
}

int main(int argc, char **argv)
{
    struct bench b = {.run = {.precision = "bf16", .steps = 3}};
    const char *names = "gpt2,llama,qwen2", *calibration = NULL;
    int64_t minutes = 5;

    for (int i = 1; i < argc; i += 2) {
        const char *option = argv[i], *value = argv[i + 1];
        int64_t number = 0;

        if (!value)
            die(option, "wants a value; see the first comment of plan_gpu.c");
        if (!strcmp(option, "--calibration"))
            calibration = value;
        else if (!strcmp(option, "--model"))
            names = value;
        else if (!strcmp(option, "--steps") && !hd_text_to_int64(value, 1, STEPS_MAX, &number))
            b.run.steps = (int)number;
        else if (!strcmp(option, "--minutes") && !hd_text_to_int64(value, 1, 600, &number))
            minutes = number;
        else
            die(option, "is not known, or has no such value; see the first comment of plan_gpu.c");
    }
    hd_arena_init(&b.arena, 0);
    open_clusters(&b, calibration);
    if (bench_make_dir(b.dir))
        die("a folder", hd_err_message());
    (void)snprintf(b.tokens, sizeof b.tokens, "%s/tokens.npy", b.dir);
    (void)snprintf(b.choices, sizeof b.choices, "%s/choices", b.dir);
    b.end_ns = hd_clock_now_ns() + minutes * 60 * 1000000000LL;
    for (int i = 0; i < MODELS; i++)
        if (strstr(names, models[i].name))
            compare(&b, &models[i]);
    (void)hd_file_remove_tree(b.dir);
    hd_arena_done(&b.arena);
    return 0;
}
