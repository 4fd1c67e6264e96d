/* The floor of train_cpu: what the step that we compiled cannot do without on this machine.
 *
 *   every product of a step, at the best rate that own code or the library reach at its shape
 * + attention's products, at the best rate of any product of the step (or its bytes, if longer)
 * + the bytes of every other op, each tensor once, over the bandwidth of a triad
 *
 * all measured here, again in every run, so that a ratio compares times that were taken side by
 * side. Operations and bytes are those of kernels/costs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tests/bench/train_cpu.h"
#include "train/rank_program.h"

enum {
    SHAPES_MAX = 64,
    TRIAD_FLOATS = 16 << 20,
    POOL_BYTES = 256 << 20 /* at least */,
    ENGINES = 2
};

struct shape {
    struct hd_gemm_args args;
    int count; /* launches per step */
    double flops, best_ms[ENGINES];
};

struct engine {
    struct hd_backend *backend;
    struct hd_stream *stream;
};

struct floor {
    struct hd_arena arena;
    struct hd_rank_program layout;
    struct hd_traits traits;
    struct shape shapes[SHAPES_MAX];
    int shape_count;
    double attention_flops, attention_bytes, other_bytes;
    struct engine engines[ENGINES]; /* own, library */
    char *pool, *scratch;
    int64_t pool_bytes, pool_used; /* the tensors of any product fit together */
};

/* ---- what a step does ---- */

static bool same_shape(const struct hd_gemm_args *a, const struct hd_gemm_args *b)
{
    return a->M == b->M && a->N == b->N && a->K == b->K && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->trans_a == b->trans_a && a->trans_b == b->trans_b &&
           a->accumulate == b->accumulate && a->ab_dtype == b->ab_dtype && a->c_dtype == b->c_dtype;
}

static void count_gemm(struct floor *f, const struct hd_node *node)
{
    struct hd_gemm_args args = *(const struct hd_gemm_args *)node->args;
    struct hd_costs costs = {0};
    int i = 0;

    if (node->contribution)
        args.accumulate = !node->first_contribution;
    if (args.b_codes.quant != HD_QUANT_NONE) { /* at best as fast as one of what is encoded */
        args.ldb = args.trans_b ? args.K : args.N;
        args.b_codes = (struct hd_quant_factor){.quant = HD_QUANT_NONE};
    }
    while (i < f->shape_count && !same_shape(&f->shapes[i].args, &args))
        i++;
    if (i == f->shape_count) {
        if (i == SHAPES_MAX) {
            fprintf(stderr, "train_cpu: more than %d shapes of products\n", SHAPES_MAX);
            exit(1);
        }
        hd_kernel_cost_add(&costs, HD_K_gemm, &args);
        f->shapes[f->shape_count++] = (struct shape){.args = args, .flops = costs.flops};
    }
    f->shapes[i].count++;
}

static void count_program(struct floor *f, const struct hd_program *p)
{
    for (int i = 0; i < p->count; i++) {
        const struct hd_node *node = p->nodes[i];
        struct hd_costs costs = {0};

        if (node->is_comm)
            continue;
        if (node->kernel == HD_K_gemm) {
            count_gemm(f, node);
            continue;
        }
        hd_kernel_cost_add(&costs, node->kernel, node->args);
        if (node->kernel == HD_K_attention_forward || node->kernel == HD_K_attention_backward) {
            f->attention_flops += costs.flops;
            f->attention_bytes += (double)(costs.read_bytes + costs.write_bytes);
        } else {
            f->other_bytes += (double)(costs.read_bytes + costs.write_bytes);
        }
    }
}

/* ---- what the machine does ---- */

static void *tensor(struct floor *f, int64_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    if (f->pool_used + bytes > f->pool_bytes)
        f->pool_used = 0;
    f->pool_used += bytes;
    return f->pool + f->pool_used - bytes;
}

static double time_launch(const struct engine *e, enum hd_kernel kernel, const void *args)
{
    const int64_t begin_ns = hd_clock_now_ns();

    if (hd_launch(e->stream, kernel, args)) {
        fprintf(stderr, "train_cpu: %s\n", hd_err_message());
        exit(1);
    }
    return (double)(hd_clock_now_ns() - begin_ns) * 1e-6;
}

/* The library's threads spin for milliseconds behind a product: not beside our own. */
static void let_threads_sleep(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
}

static int64_t a_bytes(const struct hd_gemm_args *a)
{
    return (a->trans_a ? a->K : a->M) * a->lda * (int64_t)hd_dtype_size(a->ab_dtype);
}

static int64_t b_bytes(const struct hd_gemm_args *a)
{
    return (a->trans_b ? a->N : a->K) * a->ldb * (int64_t)hd_dtype_size(a->ab_dtype);
}

static int64_t c_bytes(const struct hd_gemm_args *a)
{
    return a->M * a->ldc * (int64_t)hd_dtype_size(a->c_dtype);
}

/* The best of a few launches on tensors that change from launch to launch. */
static double time_shape(struct floor *f, const struct engine *e, const struct shape *s)
{
    enum { LAUNCHES = 4 };
    double best_ms = 1e30;

    let_threads_sleep();
    for (int i = 0; i < LAUNCHES; i++) {
        struct hd_gemm_args a = s->args;
        double ms;

        a.a = tensor(f, a_bytes(&a));
        a.b = tensor(f, b_bytes(&a));
        a.c = tensor(f, c_bytes(&a));
        a.bias = a.gelu_inp = a.add = NULL; /* the product alone */
        a.pre = NULL;
        a.epilogue = HD_EPILOGUE_NONE;
        a.scratch = f->scratch;
        if (hd_backend_cpu()->prepare(e->backend, HD_K_gemm, &a))
            exit(1);
        ms = time_launch(e, HD_K_gemm, &a);
        if (i > 0 && ms < best_ms)
            best_ms = ms;
    }
    return best_ms;
}

static double triad_bytes_per_ms(struct floor *f)
{
    double best_ms = 1e30;

    let_threads_sleep();
    for (int i = 0; i < 4; i++) {
        const struct hd_add_args a = {.out = f->pool,
                                      .a = f->pool + POOL_BYTES / 4,
                                      .b = f->pool + POOL_BYTES / 2,
                                      .N = TRIAD_FLOATS,
                                      .dtype = HD_F32};
        const double ms = time_launch(&f->engines[0], HD_K_add, &a);

        best_ms = ms < best_ms ? ms : best_ms;
    }
    return 12.0 * TRIAD_FLOATS / best_ms;
}

/* One line: the floor, then its three parts, in milliseconds. */
static void measure(struct floor *f)
{
    const double triad = triad_bytes_per_ms(f);
    double gemm_ms = 0, best_rate = 0, attention_ms;

    for (int i = 0; i < f->shape_count; i++) {
        struct shape *s = &f->shapes[i];
        double best_ms = 1e30;

        for (int e = 0; e < ENGINES; e++) {
            const double ms = time_shape(f, &f->engines[e], s);

            if (!s->best_ms[e] || ms < s->best_ms[e])
                s->best_ms[e] = ms;
            best_ms = ms < best_ms ? ms : best_ms;
        }
        gemm_ms += s->count * best_ms;
        best_rate = s->flops / best_ms > best_rate ? s->flops / best_ms : best_rate;
    }
    attention_ms = f->attention_flops / best_rate;
    if (f->attention_bytes / triad > attention_ms)
        attention_ms = f->attention_bytes / triad;
    printf("%.3f %.3f %.3f %.3f\n", gemm_ms + attention_ms + f->other_bytes / triad, gemm_ms,
           attention_ms, f->other_bytes / triad);
    (void)fflush(stdout);
}

static void print_shapes(const struct floor *f)
{
    fprintf(stderr, "    products of a step, best GFLOP/s of all runs:          own   library\n");
    for (int i = 0; i < f->shape_count; i++) {
        const struct shape *s = &f->shapes[i];
        char label[96];

        (void)snprintf(label, sizeof label, "%lld x %lld x %lld%s%s%s", (long long)s->args.M,
                       (long long)s->args.N, (long long)s->args.K, s->args.trans_a ? " a'" : "",
                       s->args.trans_b ? " b'" : "", s->args.accumulate ? " +=" : "");
        fprintf(stderr, "    %3d times %-36s %9.0f %9.0f\n", s->count, label,
                s->flops / s->best_ms[0] * 1e-6, s->flops / s->best_ms[1] * 1e-6);
    }
}

static bool set_up(struct floor *f, const struct hd_job *job)
{
    static const enum hd_gemm_by by[ENGINES] = {HD_GEMM_BY_OWN, HD_GEMM_BY_LIBRARY};
    int64_t scratch_bytes = 0;

    f->pool_bytes = POOL_BYTES;
    hd_arena_init(&f->arena, 0);
    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = (int)job->threads},
                               &f->traits);
    if (hd_rank_program_build(job, 0, &f->traits, &(struct hd_rank_program_options){0}, &f->arena,
                              &f->layout))
        return false;
    count_program(f, &f->layout.train[0]->program[HD_CALL_F]);
    count_program(f, &f->layout.train[0]->program[HD_CALL_B]);
    count_program(f, &f->layout.update->program[HD_CALL_U]);
    for (int e = 0; e < ENGINES; e++) {
        const struct hd_backend_options o = {.threads = (int)job->threads, .gemm_by = by[e]};
        struct hd_traits traits;

        if (hd_backend_cpu()->open(&o, &f->engines[e].backend) ||
            hd_backend_cpu()->stream_open(f->engines[e].backend, HD_STREAM_FOR_COMPUTE,
                                          &f->engines[e].stream))
            return false;
        hd_backend_cpu()->describe(&o, &traits);
        for (int i = 0; i < f->shape_count; i++) {
            const struct hd_gemm_args *a = &f->shapes[i].args;
            const int64_t bytes = hd_kernel_scratch_bytes(HD_K_gemm, a, &traits);
            const int64_t tensors = (a_bytes(a) + b_bytes(a) + c_bytes(a) + 4 * 4096) / 4096 * 4096;

            scratch_bytes = bytes > scratch_bytes ? bytes : scratch_bytes;
            f->pool_bytes = tensors > f->pool_bytes ? tensors : f->pool_bytes;
        }
    }
    f->pool = aligned_alloc(4096, (size_t)f->pool_bytes);
    f->scratch = aligned_alloc(4096, (size_t)(scratch_bytes + 4096) / 4096 * 4096);
    if (!f->pool || !f->scratch)
        return false;
    for (int64_t i = 0; i < f->pool_bytes / 4; i++) /* also sensible as bf16: exponents near 1 */
        ((uint32_t *)(void *)f->pool)[i] =
            0x3f003e80u ^ (uint32_t)((uint64_t)i * 2654435761u % 127);
    return true;
}

int train_cpu_floor(const struct hd_job *job)
{
    static struct floor f;
    char line[64];

    if (!set_up(&f, job)) {
        fprintf(stderr, "train_cpu: %s\n", hd_err_message());
        return 1;
    }
    printf("floor, %s, %s\n", f.traits.isa, f.traits.library);
    (void)fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        measure(&f);
    print_shapes(&f);
    for (int e = 0; e < ENGINES; e++) {
        hd_backend_cpu()->stream_close(f.engines[e].stream);
        hd_backend_cpu()->close(f.engines[e].backend);
    }
    free(f.pool);
    free(f.scratch);
    hd_arena_done(&f.arena);
    return 0;
}
