/* Our run of train_gpu: one rank that trains on a device, its step time, and the device's time by
 * class of kernel beside the floor of each launch. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/random.h"
#include "data/token_writer.h"
#include "program/dry.h"
#include "program/launch_times.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/train_gpu.h"
#include "tests/sorted.h"
#include "train/train.h"

static const struct gpu_case cases[] = {
    {"124m", "GPT-2 124M, T 1024", "gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024, 32, 128,
     256 << 20},
    {"1558m", "GPT-2 1558M, T 1024", "gpt2", 48, 1600, 25, 25, 64, 6400, 50257, 1024, 8, 32,
     256 << 20},
    {"qwen", "Qwen2.5-1.5B, T 1024", "qwen2", 28, 1536, 12, 2, 128, 8960, 151936, 1024, 8, 32,
     256 << 20},
    {"llama", "Llama type, 1.2B, T 4096", "llama", 16, 2048, 32, 8, 64, 8192, 128256, 4096, 2, 8,
     256 << 20},
    {"toy", "2 layers, for the emulator", "gpt2", 2, 64, 1, 1, 64, 128, 67, 16, 1, 2, 1 << 14},
};

const struct gpu_case *gpu_case_at(int i)
{
    return i >= 0 && (size_t)i < sizeof cases / sizeof cases[0] ? &cases[i] : NULL;
}

const struct gpu_case *gpu_case_find(const char *name)
{
    for (int i = 0; gpu_case_at(i); i++)
        if (!strcmp(cases[i].name, name))
            return &cases[i];
    return NULL;
}

double train_gpu_median(const double *values, int count)
{
    double sorted[TRAIN_GPU_STEPS_MAX];

    memcpy(sorted, values, (size_t)count * sizeof *values);
    sort_doubles(sorted, (size_t)count);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* ---- the job ---- */

struct hd_job gpu_case_job(const struct gpu_case *c, const char *precision,
                           struct hd_job_file *file)
{
    const bool gpt2 = !strcmp(c->family, "gpt2");
    struct hd_job j = bench_job(c->family, precision, "cuda", file);

    j.layers = c->layers;
    j.hidden = c->hidden;
    j.heads = c->heads;
    j.kv_heads = c->kv_heads;
    j.head_width = c->head_width;
    j.qkv_bias = strcmp(c->family, "llama") != 0;
    j.out_bias = j.mlp_bias = gpt2;
    j.ffn_hidden = c->ffn_hidden;
    j.vocab = c->vocab;
    j.context = c->context;
    j.rope_theta = 1e6;
    j.global_batch = c->global_batch;
    j.micro_batch = c->micro_batch;
    j.tokenizer = "none";
    j.order = HD_JOB_ORDER_SEQUENTIAL;
    return j;
}

enum hd_status gpu_case_tokens(const struct gpu_case *c, const char *path, int64_t *ret_bytes)
{
    const int64_t count = 4 * c->global_batch * (c->context + 1);
    struct hd_token_writer *writer;
    enum hd_status st = hd_token_writer_open(path, HD_TOKEN_FORMAT_NPY, 4, &writer);
    FILE *file;

    if (st)
        return st;
    for (int64_t i = 0; !st && i < count; i++) {
        const int32_t id = (int32_t)(hd_random_u64(1, (uint64_t)i) % (uint64_t)c->vocab);

        st = hd_token_writer_add(writer, &id, 1);
    }
    if (st) {
        hd_token_writer_drop(writer);
        return st;
    }
    st = hd_token_writer_finish(writer);
    if (st)
        return st;
    file = fopen(path, "rbe");
    if (!file || fseek(file, 0, SEEK_END))
        st = hd_err(HD_IO, "cannot look at %s", path);
    else
        *ret_bytes = ftell(file);
    if (file)
        (void)fclose(file);
    return st;
}

/* ---- what the device can do ---- */

struct limits {
    double peak, bandwidth; /* operations, and bytes read and written, per second */
};

/* out = a + b over three arrays, best of a few. */
static enum hd_status time_adds(const struct hd_backend_table *table, struct hd_stream *stream,
                                struct hd_event *events[2], char *pool, int64_t bytes,
                                double *ret_seconds)
{
    const struct hd_add_args args = {.out = pool,
                                     .a = pool + bytes,
                                     .b = pool + 2 * bytes,
                                     .N = bytes / (int64_t)sizeof(float),
                                     .dtype = HD_F32};
    enum hd_status st = HD_OK;

    *ret_seconds = 1e30;
    for (int i = 0; !st && i < 6; i++) {
        double seconds = 0;

        st = table->device->event_record(events[0], stream);
        if (!st)
            st = hd_launch(stream, HD_K_add, &args);
        if (!st)
            st = table->device->event_record(events[1], stream);
        if (!st)
            st = table->device->event_finish(events[1]);
        if (!st)
            st = table->device->event_elapsed(events[0], events[1], &seconds);
        if (!st && i > 0 && seconds < *ret_seconds)
            *ret_seconds = seconds;
    }
    return st;
}

static enum hd_status measure(const struct gpu_case *c, const struct gpu_run *run,
                              struct hd_backend *backend, struct limits *ret_limits)
{
    const struct hd_backend_table *table = run->table;
    struct hd_event *events[2] = {NULL, NULL};
    struct hd_stream *stream = NULL;
    void *pool = NULL;
    double seconds = 1;
    enum hd_status st = table->stream_open(backend, HD_STREAM_FOR_COMPUTE, &stream);

    for (int i = 0; !st && i < 2; i++)
        st = table->device->event_new(backend, true, &events[i]);
    if (!st)
        st = table->device->reserve(backend, 3 * c->probe_bytes, false, &pool);
    if (!st)
        st = time_adds(table, stream, events, pool, c->probe_bytes, &seconds);
    if (pool)
        table->device->release(backend, pool);
    for (int i = 0; i < 2; i++)
        if (events[i])
            table->device->event_free(events[i]);
    if (stream)
        table->stream_close(stream);
    ret_limits->bandwidth = 3 * (double)c->probe_bytes / (seconds > 1e-9 ? seconds : 1e-9);
    ret_limits->peak =
        table->measure_peak(backend, strcmp(run->precision, "fp32") ? HD_BF16 : HD_F32);
    return st;
}

/* ---- where the time goes ---- */

#define CLASSES(X)             \
    X(PRODUCTS, "products")    \
    X(ATTENTION, "attention")  \
    X(NORMS, "norms")          \
    X(ELEMENTS, "elements")    \
    X(EMBEDDING, "embeddings") \
    X(LOSS, "loss")            \
    X(UPDATE, "update")        \
    X(EXPERTS, "experts' rows")

enum class {
#define X(name, text) CLASS_##name,
    CLASSES(X)
#undef X
        CLASS_COUNT
};

static enum class class_of(enum hd_kernel kernel) {
    static const struct {const char * begin; enum class class;}
names[] = {
    {"gemm", CLASS_PRODUCTS},   {"grouped_gemm", CLASS_PRODUCTS}, {"attention", CLASS_ATTENTION},
    {"rmsnorm", CLASS_NORMS},   {"layernorm", CLASS_NORMS},       {"head_norm", CLASS_NORMS},
    {"qk_norm", CLASS_NORMS},   {"embedding", CLASS_EMBEDDING},   {"cross_entropy", CLASS_LOSS},
    {"step_", CLASS_UPDATE},    {"square_sums", CLASS_UPDATE},    {"adamw", CLASS_UPDATE},
    {"route_", CLASS_EXPERTS},  {"assign", CLASS_EXPERTS},        {"permute", CLASS_EXPERTS},
    {"combine", CLASS_EXPERTS}, {"regroup", CLASS_EXPERTS},
};
const char *name = hd_kernel_get_info(kernel)->name;

for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (!strncmp(name, names[i].begin, strlen(names[i].begin)))
        return names[i].class;
return CLASS_ELEMENTS;
}

struct class_time {
    double seconds, floor;
    int launches;
};

/* A product or attention can do no better than the peak or the bandwidth, the others than the
 * latter. */
static double floor_of(const struct hd_node *node, const struct limits *limits)
{
    const enum class class = class_of(node->kernel);
    struct hd_costs costs = {0};
    double by_bytes, by_flops;

    hd_dry_node_costs(&costs, node);
    by_bytes = (double)(costs.read_bytes + costs.write_bytes) / limits->bandwidth;
    by_flops = class == CLASS_PRODUCTS || class == CLASS_ATTENTION ? costs.flops / limits->peak : 0;
    return by_bytes > by_flops ? by_bytes : by_flops;
}

static enum hd_status add_up(const struct hd_launch_times *times, const struct limits *limits,
                             struct class_time ret_classes[CLASS_COUNT])
{
    for (int i = 0; i < hd_launch_times_count(times); i++) {
        const struct hd_node *node;
        double seconds;
        const enum hd_status st = hd_launch_times_get(times, i, &node, &seconds);
        struct class_time *class;

        if (st)
            return st;
        class = &ret_classes[class_of(node->kernel)];
        class->seconds += seconds;
        class->floor += floor_of(node, limits);
        class->launches++;
    }
    return HD_OK;
}

static void print_classes(const struct class_time *classes, double step_ms, FILE *out)
{
    static const char *const names[] = {
#define X(name, text) text,
        CLASSES(X)
#undef X
    };
    double sum = 0, floor = 0;

    fprintf(out, "  %-14s %8s %10s %7s %10s %7s\n", "class", "launches", "ms", "share", "floor ms",
            "floor");
    for (int i = 0; i < CLASS_COUNT; i++) {
        const struct class_time *class = &classes[i];

        if (!class->launches)
            continue;
        sum += class->seconds * 1e3;
        floor += class->floor * 1e3;
        fprintf(out, "  %-14s %8d %10.3f %6.1f%% %10.3f %6.1f%%\n", names[i], class->launches,
                class->seconds * 1e3, 100 * class->seconds * 1e3 / step_ms, class->floor * 1e3,
                100 * class->floor / class->seconds);
    }
    fprintf(out, "  %-14s %8s %10.3f %6.1f%% %10.3f\n", "all", "", sum, 100 * sum / step_ms, floor);
}

/* Kernels in order of their time; products are told apart by their shapes. */
enum { LINES_MAX = 256, LABEL_CHARS = 64 };
struct line {
    char label[LABEL_CHARS];
    struct class_time time;
};

static void label_of(const struct hd_node *node, char ret_label[LABEL_CHARS])
{
    const char *name = hd_kernel_get_info(node->kernel)->name;

    if (node->kernel == HD_K_gemm) {
        const struct hd_gemm_args *g = node->args;

        (void)snprintf(ret_label, LABEL_CHARS, "%s %lldx%lldx%lld%s%s%s", name, (long long)g->M,
                       (long long)g->N, (long long)g->K, g->trans_a ? " A^T" : "",
                       g->trans_b ? " B^T" : "", g->epilogue || g->bias || g->add ? " +" : "");
    } else {
        (void)snprintf(ret_label, LABEL_CHARS, "%s", name);
    }
}

static int by_seconds(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return (x->time.seconds < y->time.seconds) - (x->time.seconds > y->time.seconds);
}

static enum hd_status print_kernels(const struct hd_launch_times *times,
                                    const struct limits *limits, double step_ms, FILE *out)
{
    static struct line lines[LINES_MAX];
    int count = 0;

    for (int i = 0; i < hd_launch_times_count(times); i++) {
        char label[LABEL_CHARS];
        const struct hd_node *node;
        double seconds;
        int at = 0;
        const enum hd_status st = hd_launch_times_get(times, i, &node, &seconds);

        if (st)
            return st;
        label_of(node, label);
        while (at < count && strcmp(lines[at].label, label) != 0)
            at++;
        if (at == LINES_MAX)
            return hd_err(HD_LIMIT, "a step has more than %d kernels and shapes", LINES_MAX);
        if (at == count) {
            lines[at] = (struct line){.time = {0, 0, 0}};
            memcpy(lines[at].label, label, sizeof label);
            count++;
        }
        lines[at].time.seconds += seconds;
        lines[at].time.floor += floor_of(node, limits);
        lines[at].time.launches++;
    }
    qsort(lines, (size_t)count, sizeof *lines, by_seconds);
    fprintf(out, "  %-36s %8s %10s %7s %10s %7s\n", "kernel", "launches", "ms", "share", "floor ms",
            "floor");
    for (int i = 0; i < count; i++) {
        const struct class_time *t = &lines[i].time;

        fprintf(out, "  %-36s %8d %10.3f %6.1f%% %10.3f %6.1f%%\n", lines[i].label, t->launches,
                t->seconds * 1e3, 100 * t->seconds * 1e3 / step_ms, t->floor * 1e3,
                100 * t->floor / t->seconds);
    }
    return HD_OK;
}

/* Two steps under events: the first makes them. */
static enum hd_status show_classes(struct hd_trainer *t, const struct gpu_run *run,
                                   struct hd_backend *backend, const struct limits *limits,
                                   FILE *out)
{
    struct class_time classes[CLASS_COUNT] = {{0, 0, 0}};
    struct hd_step_result result = {0};
    struct hd_launch_times *times = NULL;
    struct hd_profiler profiler;
    enum hd_status st =
        hd_launch_times_new(run->table, backend, hd_runner_stream(hd_trainer_runner(t)), &times);

    if (st)
        return st;
    hd_launch_times_profiler(times, &profiler);
    hd_runner_profile(hd_trainer_runner(t), &profiler);
    for (int i = 0; !st && i < 2; i++) {
        hd_launch_times_clear(times);
        st = hd_trainer_step(t, 0, &result);
    }
    hd_runner_profile(hd_trainer_runner(t), NULL);
    if (!st)
        st = add_up(times, limits, classes);
    if (!st)
        print_classes(classes, result.step_ms, out);
    if (!st)
        st = print_kernels(times, limits, result.step_ms, out);
    hd_launch_times_free(times);
    return st;
}

/* ---- the run ---- */

static enum hd_status time_steps(struct hd_trainer *t, const struct gpu_case *c,
                                 const struct gpu_run *run, const struct limits *limits, FILE *out,
                                 double *ret_ms)
{
    const double tokens = (double)(c->global_batch * c->context);
    const double flops = hd_model_flops_per_token(&hd_trainer_rank_program(t)->model.config);
    const struct hd_memory *memory = &hd_trainer_rank_program(t)->memory;
    double ms[TRAIN_GPU_STEPS_MAX], least = 1e30, most = 0, median;
    struct hd_step_result result = {0};

    for (int i = 0; i < run->warm_up + run->steps; i++) {
        const enum hd_status st = hd_trainer_step(t, 0, &result);

        if (st)
            return st;
        if (i < run->warm_up)
            continue;
        ms[i - run->warm_up] = result.step_ms;
        least = result.step_ms < least ? result.step_ms : least;
        most = result.step_ms > most ? result.step_ms : most;
    }
    median = train_gpu_median(ms, run->steps);
    fprintf(out,
            "  ours           %9.2f ms a step (%.2f .. %.2f) %9.0f tokens/s  MFU %.1f%%  "
            "memory %.0f MiB\n",
            median, least, most, tokens / median * 1e3,
            100 * flops * tokens / median * 1e3 / limits->peak,
            (double)(memory->private_bytes + memory->registered_bytes) / 1048576);
    fprintf(out,
            "  MFU = %.4g GFLOP per token (6 per weight that multiplies, and causal attention) x "
            "tokens/s / %.4g TFLOP/s; bandwidth %.4g TB/s; loss %.4f\n",
            flops * 1e-9, limits->peak * 1e-12, limits->bandwidth * 1e-12, result.loss);
    *ret_ms = median;
    return HD_OK;
}

enum hd_status gpu_rank_open(const struct hd_job *job, const struct gpu_run *run,
                             const char *choices_dir, struct gpu_rank *ret_rank)
{
    const struct hd_backend_options backend = {/* products are timed, as a job's are */
                                               .threads = 1,
                                               .epilogues_separate = run->apart,
                                               .choices_dir = choices_dir};
    struct hd_trainer_options options = {.backend = run->table, .epilogues_separate = run->apart};
    struct gpu_rank *r = ret_rank;
    enum hd_status st;

    *r = (struct gpu_rank){.trainer = NULL};
    st = hd_rank_open(&(struct hd_rank_opening){.table = run->table,
                                                .options = backend,
                                                .alone = true,
                                                .deadline_ms = HD_STEP_DEADLINE_MS},
                      &r->open);
    options.instance = r->open.backend;
    options.comm = r->open.comm;
    if (!st)
        st = hd_trainer_new(job, &options, &r->trainer);
    return st ? st : hd_trainer_init(r->trainer);
}

void gpu_rank_close(struct gpu_rank *r)
{
    hd_trainer_free(r->trainer);
    hd_rank_close(&r->open);
}

static enum hd_status train(const struct gpu_case *c, const struct gpu_run *run, const char *tokens,
                            FILE *out, double *ret_ms)
{
    struct hd_job_file file = {.path = tokens};
    struct limits limits = {0, 0};
    struct gpu_rank rank = {0};
    char choices[PATH_MAX];
    struct hd_job job;
    enum hd_status st = gpu_case_tokens(c, tokens, &file.size_bytes);

    (void)snprintf(choices, sizeof choices, "%s.choices", tokens);
    job = gpu_case_job(c, run->precision, &file);
    if (!st)
        st = gpu_rank_open(&job, run, choices, &rank);
    if (!st)
        st = measure(c, run, rank.open.backend, &limits);
    if (!st)
        st = time_steps(rank.trainer, c, run, &limits, out, ret_ms);
    if (!st)
        st = show_classes(rank.trainer, run, rank.open.backend, &limits, out);
    gpu_rank_close(&rank);
    return st;
}

enum hd_status train_gpu_ours(const struct gpu_case *c, const struct gpu_run *run, FILE *out,
                              double *ret_ms)
{
    char dir[BENCH_DIR_MAX], tokens[sizeof dir + sizeof "/tokens.npy"];
    enum hd_status st = bench_make_dir(dir);

    if (st)
        return st;
    (void)snprintf(tokens, sizeof tokens, "%s/tokens.npy", dir);
    st = train(c, run, tokens, out, ret_ms);
    (void)hd_file_remove_tree(dir);
    return st;
}
