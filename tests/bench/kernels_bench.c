/* kernels_bench: how near each kernel of the CPU backend comes to the machine's floor.
 *
 *   kernels_bench [-t THREADS] [-p] [-o | -l] [-d TYPE] [NAME]     -p: the portable path; -o, -l:
 * products by own code, by the library; -d: only this encoding, f32, bf16 or f16; NAME: only
 * kernels that begin so kernels_bench -t THREADS -b [-d TYPE] [NAME]         products with and
 * without a busy loop on one core beside them, in turns: the ratio of their mean times. Of two
 * cores 1.33 would be a fair share.
 *
 * Run by hand, on a quiet machine; with one thread its processor time is taken, which forgives some
 * company. The floor of a launch is the larger of its operations at the
 * measured peak (products and attention) and its bytes at the bandwidth of a triad, both measured
 * first with the same threads; bytes and operations are those of kernels/costs. Tensors change from
 * launch to launch so that they come from memory. `mallocs` counts calls of the allocator inside
 * one launch: own kernels make none, what is left is oneDNN's.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/text.h"
#include "kernels/kernels.h"

enum { POOL_BYTES = 512 * 1024 * 1024, ROUNDS_MIN = 4, TIME_NS = 200 * 1000 * 1000 };

/* Each kernel runs in these encodings, in this order. */
enum { TYPES = 3 };
_Static_assert((int)HD_F32 == 0 && (int)HD_BF16 == 1 && (int)HD_F16 == 2, "they are the first");

static atomic_llong malloc_count;

#ifdef __GLIBC__
#pragma GCC visibility push(default)
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

void *malloc(size_t size)
{
    malloc_count++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    malloc_count++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    malloc_count++;
    return __libc_realloc(old, size);
}

int posix_memalign(void **ret, size_t align, size_t size)
{
    malloc_count++;
    *ret = __libc_memalign(align, size);
    return *ret ? 0 : 12;
}

void *aligned_alloc(size_t align, size_t size)
{
    malloc_count++;
    return __libc_memalign(align, size);
}
#pragma GCC visibility pop
#endif

struct bench {
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_traits traits;
    char *pool, *scratch;
    int64_t used_bytes, scratch_bytes;
    double peak[TYPES], bytes_per_s;
    const char *only, *only_dtype;
    struct hd_step_state *block;
    pid_t neighbour; /* 0: none */
};

/* Time that this launch's work took: of this thread if it works alone. */
static int64_t now_ns(const struct bench *b)
{
    struct timespec t;

    if (b->traits.threads > 1)
        return hd_clock_now_ns();
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "kernels_bench: %s: %s\n", what, hd_err_message());
    exit(1);
}

/* A tensor of small random values from the pool, which wraps around: the next launch gets others.
 */
static void *tensor(struct bench *b, int64_t count, enum hd_dtype dtype)
{
    const int64_t bytes = (count * (int64_t)hd_dtype_size(dtype) + 4095) / 4096 * 4096;
    char *data;

    if (bytes > POOL_BYTES)
        die("a tensor is larger than the pool");
    if (b->used_bytes + bytes > POOL_BYTES)
        b->used_bytes = 0;
    data = b->pool + b->used_bytes;
    b->used_bytes += bytes;
    return data;
}

static void *indices(int64_t count, int64_t period)
{
    int32_t *index = malloc((size_t)count * sizeof *index);

    if (!index)
        die("no memory");
    for (int64_t i = 0; i < count; i++)
        index[i] = (int32_t)(i % period);
    return index;
}

static void set_scratch(struct bench *b, enum hd_kernel kernel, void *args)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(kernel);
    const int64_t bytes = hd_kernel_scratch_bytes(kernel, args, &b->traits);

    if (bytes > b->scratch_bytes) {
        free(b->scratch);
        b->scratch = aligned_alloc(64, (size_t)(bytes + 4095) / 4096 * 4096);
        if (!b->scratch)
            die("no memory");
        memset(b->scratch, 0, (size_t)bytes);
        b->scratch_bytes = bytes;
    }
    for (int i = 0; i < info->operand_count; i++)
        if (info->operands[i].access == HD_SCRATCH)
            memcpy((char *)args + info->operands[i].offset, &b->scratch, sizeof b->scratch);
}

/* Another program: a loop on the last core that this one may use, stopped until it is wanted. */
static void start_neighbour(struct bench *b)
{
    cpu_set_t mine, last;
    int core = CPU_SETSIZE - 1;

    if (sched_getaffinity(0, sizeof mine, &mine))
        die("cores");
    while (core > 0 && !CPU_ISSET(core, &mine))
        core--;
    CPU_ZERO(&last);
    CPU_SET(core, &last);
    b->neighbour = fork();
    if (b->neighbour < 0)
        die("fork");
    if (b->neighbour == 0) {
        (void)sched_setaffinity(0, sizeof last, &last);
        (void)raise(SIGSTOP);
        for (;;)
            __asm__ volatile("");
    }
    (void)waitpid(b->neighbour, NULL, WUNTRACED);
}

static void stop_neighbour(const struct bench *b)
{
    if (!b->neighbour)
        return;
    (void)kill(b->neighbour, SIGKILL);
    (void)waitpid(b->neighbour, NULL, 0);
}

typedef void make_args(struct bench *b, void *args, const int64_t *sizes, enum hd_dtype dtype);

/* Turns of some launches each, alone and beside the neighbour; prints the means. */
static void time_beside(struct bench *b, const char *label, enum hd_kernel kernel, make_args *make,
                        const int64_t *sizes, enum hd_dtype dtype)
{
    enum { TURNS = 10, LAUNCHES = 10 };
    union {
        char bytes[512];
        double align;
    } args;
    int64_t ns[2] = {0};

    for (int turn = 0; turn < 2 * TURNS; turn++) {
        (void)kill(b->neighbour, turn % 2 ? SIGCONT : SIGSTOP);
        for (int i = 0; i < LAUNCHES; i++) {
            int64_t begin_ns;

            memset(&args, 0, sizeof args);
            make(b, &args, sizes, dtype);
            set_scratch(b, kernel, &args);
            if (hd_backend_cpu()->prepare(b->backend, kernel, &args))
                die(hd_kernel_get_info(kernel)->name);
            begin_ns = hd_clock_now_ns();
            if (hd_launch(b->stream, kernel, &args))
                die(hd_kernel_get_info(kernel)->name);
            if (turn > 1) /* the first turns warm up */
                ns[turn % 2] += hd_clock_now_ns() - begin_ns;
        }
    }
    (void)kill(b->neighbour, SIGSTOP);
    printf("%-26s %-4s %-24s alone %9.3f ms, beside %9.3f ms, ratio %.2f\n",
           hd_kernel_get_info(kernel)->name, hd_dtype_name(dtype), label,
           (double)ns[0] * 1e-6 / (TURNS - 1) / LAUNCHES,
           (double)ns[1] * 1e-6 / (TURNS - 1) / LAUNCHES, (double)ns[1] / (double)ns[0]);
}

/* Times launches whose arguments `make` fills; prints the best. */
static void time_kernel(struct bench *b, const char *label, enum hd_kernel kernel, make_args *make,
                        const int64_t *sizes, enum hd_dtype dtype, bool computes)
{
    union {
        char bytes[512];
        double align;
    } args;
    const char *name = hd_kernel_get_info(kernel)->name;
    struct hd_costs costs = {0};
    int64_t best_ns = INT64_MAX, total_ns = 0;
    long long mallocs = 0;
    double floor_s, memory_s;

    if ((b->only && !hd_text_starts(name, b->only)) ||
        (b->only_dtype && strcmp(b->only_dtype, hd_dtype_name(dtype)) != 0))
        return;
    if (b->neighbour) {
        time_beside(b, label, kernel, make, sizes, dtype);
        return;
    }
    for (int round = 0; round < ROUNDS_MIN || total_ns < TIME_NS; round++) {
        int64_t begin_ns, ns;

        memset(&args, 0, sizeof args);
        make(b, &args, sizes, dtype);
        set_scratch(b, kernel, &args);
        if (hd_backend_cpu()->prepare(b->backend, kernel, &args))
            die(name);
        mallocs = malloc_count;
        begin_ns = now_ns(b);
        if (hd_launch(b->stream, kernel, &args))
            die(name);
        ns = now_ns(b) - begin_ns;
        mallocs = malloc_count - mallocs;
        total_ns += ns;
        if (round > 0 && ns < best_ns)
            best_ns = ns;
    }
    hd_kernel_cost_add(&costs, kernel, &args);
    memory_s = (double)(costs.read_bytes + costs.write_bytes) / b->bytes_per_s;
    floor_s = computes ? costs.flops / b->peak[dtype] : 0;
    if (memory_s > floor_s)
        floor_s = memory_s;
    printf("%-26s %-4s %-24s %9.3f ms %8.1f GF/s %7.1f GB/s %5.0f%% of the floor %3lld mallocs\n",
           name, hd_dtype_name(dtype), label, (double)best_ns * 1e-6, costs.flops / (double)best_ns,
           (double)(costs.read_bytes + costs.write_bytes) / (double)best_ns,
           floor_s / ((double)best_ns * 1e-9) * 100, mallocs);
}

/* ---- products ---- */

static void make_gemm(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    struct hd_gemm_args *a = args;
    const bool weight = s[3] == 'w';

    *a = (struct hd_gemm_args){.M = s[0],
                               .N = s[1],
                               .K = s[2],
                               .trans_a = weight,
                               .trans_b = s[3] == 'f',
                               .accumulate = weight,
                               .ab_dtype = dtype,
                               .c_dtype = weight ? HD_F32 : dtype};
    a->lda = weight ? a->M : a->K;
    a->ldb = a->trans_b ? a->K : a->N;
    a->ldc = a->N;
    a->a = tensor(b, a->M * a->K, dtype);
    a->b = tensor(b, a->K * a->N, dtype);
    a->c = tensor(b, a->M * a->N, a->c_dtype);
}

static void bench_gemm(struct bench *b, int64_t R, int64_t out, int64_t in)
{
    static const char kinds[] = "fbw"; /* Y = X W^T, dX = dY W, dW += dY^T X */

    for (int type = 0; type < TYPES; type++)
        for (int k = 0; k < 3; k++) {
            const int64_t forward[] = {R, out, in, 'f'}, backward[] = {R, in, out, 'b'};
            const int64_t weight[] = {out, in, R, 'w'};
            const int64_t *const all[] = {forward, backward, weight};
            char label[64];

            (void)snprintf(label, sizeof label, "%lldx%lldx%lld %c", (long long)all[k][0],
                           (long long)all[k][1], (long long)all[k][2], kinds[k]);
            time_kernel(b, label, HD_K_gemm, make_gemm, all[k], (enum hd_dtype)type, true);
        }
}

/* sizes: B, q_len, kv_len, H, G, D */
static int32_t *positions;

static void make_attention(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    struct hd_attention_forward_args *a = args;
    const int64_t rows = s[0] * s[1], keys = s[0] * s[2];

    *a = (struct hd_attention_forward_args){.out = tensor(b, rows * s[3] * s[5], dtype),
                                            .lse = tensor(b, rows * s[3], HD_F32),
                                            .q = tensor(b, rows * s[3] * s[5], dtype),
                                            .k = tensor(b, keys * s[4] * s[5], dtype),
                                            .v = tensor(b, keys * s[4] * s[5], dtype),
                                            .q_index = positions,
                                            .kv_index = positions,
                                            .B = s[0],
                                            .q_len = s[1],
                                            .kv_len = s[2],
                                            .kv_stride = s[2],
                                            .H = s[3],
                                            .G = s[4],
                                            .D = s[5],
                                            .ldq = s[3] * s[5],
                                            .ldk = s[4] * s[5],
                                            .ldv = s[4] * s[5],
                                            .ldo = s[3] * s[5],
                                            .scale = 0.125f,
                                            .causal = s[1] > 1,
                                            .dtype = dtype};
}

static void make_attention_backward(struct bench *b, void *args, const int64_t *s,
                                    enum hd_dtype dtype)
{
    struct hd_attention_forward_args f;
    struct hd_attention_backward_args *a = args;
    float *lse;

    make_attention(b, &f, s, dtype);
    lse = f.lse;
    for (int64_t i = 0; i < s[0] * s[1] * s[3]; i++)
        lse[i] = 8;
    *a = (struct hd_attention_backward_args){.dq = tensor(b, f.B * f.q_len * f.ldq, dtype),
                                             .dk = tensor(b, f.B * f.kv_len * f.ldk, dtype),
                                             .dv = tensor(b, f.B * f.kv_len * f.ldv, dtype),
                                             .dout = tensor(b, f.B * f.q_len * f.ldq, dtype),
                                             .q = f.q,
                                             .k = f.k,
                                             .v = f.v,
                                             .out = f.out,
                                             .lse = f.lse,
                                             .q_index = positions,
                                             .kv_index = positions,
                                             .B = f.B,
                                             .q_len = f.q_len,
                                             .kv_len = f.kv_len,
                                             .kv_stride = f.kv_len,
                                             .H = f.H,
                                             .G = f.G,
                                             .D = f.D,
                                             .ldq = f.ldq,
                                             .ldk = f.ldk,
                                             .ldv = f.ldv,
                                             .ldo = f.ldo,
                                             .lddq = f.ldq,
                                             .lddk = f.ldk,
                                             .lddv = f.ldv,
                                             .lddo = f.ldo,
                                             .scale = f.scale,
                                             .causal = f.causal,
                                             .dtype = dtype,
                                             .grad_dtype = dtype};
}

static void bench_attention(struct bench *b)
{
    static const int64_t sizes[][6] = {{16, 256, 256, 6, 6, 64},
                                       {2, 1024, 1024, 12, 12, 64},
                                       {1, 2048, 2048, 12, 4, 128},
                                       {8, 1, 1024, 12, 4, 64}};

    for (int i = 0; i < 4; i++)
        for (int type = 0; type < TYPES; type++) {
            const int64_t *s = sizes[i];
            char label[64];

            (void)snprintf(label, sizeof label, "B%lld %lldx%lld H%lld/%lld D%lld", (long long)s[0],
                           (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4],
                           (long long)s[5]);
            time_kernel(b, label, HD_K_attention_forward, make_attention, s, (enum hd_dtype)type,
                        true);
            if (s[1] > 1)
                time_kernel(b, label, HD_K_attention_backward, make_attention_backward, s,
                            (enum hd_dtype)type, true);
        }
}

/* ---- rows and elements; sizes: R, C, F, V ---- */

static void make_attention_merge(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    const int64_t D = 64, H = s[1] / D;

    *(struct hd_attention_merge_args *)args =
        (struct hd_attention_merge_args){.acc = tensor(b, s[0] * s[1], HD_F32),
                                         .lse = tensor(b, s[0] * H, HD_F32),
                                         .block_out = tensor(b, s[0] * s[1], dtype),
                                         .block_lse = tensor(b, s[0] * H, HD_F32),
                                         .R = s[0],
                                         .H = H,
                                         .D = D,
                                         .dtype = dtype};
}

/* Samples and indices are the tensor's bits: any will do. */
static void make_dropout(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_dropout_args *)args =
        (struct hd_dropout_args){.out = tensor(b, s[0] * s[1], dtype),
                                 .inp = tensor(b, s[0] * s[1], dtype),
                                 .sample = tensor(b, s[0], HD_F32),
                                 .index = tensor(b, s[0], HD_F32),
                                 .block = tensor(b, sizeof(struct hd_step_state), HD_F32),
                                 .R = s[0],
                                 .C = s[1],
                                 .p = 0.1f,
                                 .dtype = dtype};
}

static void make_bias(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_bias_backward_args *)args =
        (struct hd_bias_backward_args){.dbias = tensor(b, s[1], HD_F32),
                                       .dout = tensor(b, s[0] * s[1], dtype),
                                       .R = s[0],
                                       .N = s[1],
                                       .ldd = s[1],
                                       .dtype = dtype};
}

static int32_t *token_index;

static void make_embedding(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_embedding_forward_args *)args =
        (struct hd_embedding_forward_args){.out = tensor(b, s[0] * s[1], dtype),
                                           .index = token_index,
                                           .weight = tensor(b, s[3] * s[1], dtype),
                                           .R = s[0],
                                           .C = s[1],
                                           .V = s[3],
                                           .dtype = dtype};
}

static void make_embedding_backward(struct bench *b, void *args, const int64_t *s,
                                    enum hd_dtype dtype)
{
    *(struct hd_embedding_backward_args *)args =
        (struct hd_embedding_backward_args){.dweight = tensor(b, s[3] * s[1], HD_F32),
                                            .index = token_index,
                                            .dout = tensor(b, s[0] * s[1], dtype),
                                            .R = s[0],
                                            .C = s[1],
                                            .V = s[3],
                                            .accumulate = true,
                                            .dtype = dtype};
}

static void make_rmsnorm(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_rmsnorm_forward_args *)args =
        (struct hd_rmsnorm_forward_args){.out = tensor(b, s[0] * s[1], dtype),
                                         .sum = tensor(b, s[0] * s[1], dtype),
                                         .rstd = tensor(b, s[0], HD_F32),
                                         .inp = tensor(b, s[0] * s[1], dtype),
                                         .add = tensor(b, s[0] * s[1], dtype),
                                         .weight = tensor(b, s[1], dtype),
                                         .R = s[0],
                                         .C = s[1],
                                         .eps = 1e-5f,
                                         .dtype = dtype};
}

static void make_rmsnorm_backward(struct bench *b, void *args, const int64_t *s,
                                  enum hd_dtype dtype)
{
    *(struct hd_rmsnorm_backward_args *)args =
        (struct hd_rmsnorm_backward_args){.dinp = tensor(b, s[0] * s[1], dtype),
                                          .dout = tensor(b, s[0] * s[1], dtype),
                                          .inp = tensor(b, s[0] * s[1], dtype),
                                          .rstd = tensor(b, s[0], HD_F32),
                                          .weight = tensor(b, s[1], dtype),
                                          .add = tensor(b, s[0] * s[1], dtype),
                                          .R = s[0],
                                          .C = s[1],
                                          .dtype = dtype};
}

static void make_rmsnorm_weight(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_rmsnorm_backward_weight_args *)args =
        (struct hd_rmsnorm_backward_weight_args){.dweight = tensor(b, s[1], HD_F32),
                                                 .dout = tensor(b, s[0] * s[1], dtype),
                                                 .inp = tensor(b, s[0] * s[1], dtype),
                                                 .rstd = tensor(b, s[0], HD_F32),
                                                 .R = s[0],
                                                 .C = s[1],
                                                 .dtype = dtype};
}

static void make_layernorm(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_layernorm_forward_args *)args =
        (struct hd_layernorm_forward_args){.out = tensor(b, s[0] * s[1], dtype),
                                           .mean = tensor(b, s[0], HD_F32),
                                           .rstd = tensor(b, s[0], HD_F32),
                                           .inp = tensor(b, s[0] * s[1], dtype),
                                           .weight = tensor(b, s[1], dtype),
                                           .bias = tensor(b, s[1], dtype),
                                           .R = s[0],
                                           .C = s[1],
                                           .eps = 1e-5f,
                                           .dtype = dtype};
}

static void make_layernorm_backward(struct bench *b, void *args, const int64_t *s,
                                    enum hd_dtype dtype)
{
    *(struct hd_layernorm_backward_args *)args =
        (struct hd_layernorm_backward_args){.dinp = tensor(b, s[0] * s[1], dtype),
                                            .dout = tensor(b, s[0] * s[1], dtype),
                                            .inp = tensor(b, s[0] * s[1], dtype),
                                            .mean = tensor(b, s[0], HD_F32),
                                            .rstd = tensor(b, s[0], HD_F32),
                                            .weight = tensor(b, s[1], dtype),
                                            .R = s[0],
                                            .C = s[1],
                                            .dtype = dtype};
}

static void make_layernorm_weight(struct bench *b, void *args, const int64_t *s,
                                  enum hd_dtype dtype)
{
    *(struct hd_layernorm_backward_weight_args *)args =
        (struct hd_layernorm_backward_weight_args){.dweight = tensor(b, s[1], HD_F32),
                                                   .dbias = tensor(b, s[1], HD_F32),
                                                   .dout = tensor(b, s[0] * s[1], dtype),
                                                   .inp = tensor(b, s[0] * s[1], dtype),
                                                   .mean = tensor(b, s[0], HD_F32),
                                                   .rstd = tensor(b, s[0], HD_F32),
                                                   .R = s[0],
                                                   .C = s[1],
                                                   .dtype = dtype};
}

static void make_rope(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_rope_args *)args = (struct hd_rope_args){.x = tensor(b, s[0] * s[1], dtype),
                                                         .position = positions,
                                                         .table = tensor(b, s[0] * 64, HD_F32),
                                                         .R = s[0],
                                                         .H = s[1] / 64,
                                                         .D = 64,
                                                         .P = s[0],
                                                         .ldx = s[1],
                                                         .dtype = dtype};
}

static void make_swiglu(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_swiglu_forward_args *)args =
        (struct hd_swiglu_forward_args){.out = tensor(b, s[0] * s[2], dtype),
                                        .inp = tensor(b, s[0] * 2 * s[2], dtype),
                                        .R = s[0],
                                        .F = s[2],
                                        .dtype = dtype};
}

static void make_swiglu_backward(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_swiglu_backward_args *)args =
        (struct hd_swiglu_backward_args){.dinp = tensor(b, s[0] * 2 * s[2], dtype),
                                         .dout = tensor(b, s[0] * s[2], dtype),
                                         .inp = tensor(b, s[0] * 2 * s[2], dtype),
                                         .R = s[0],
                                         .F = s[2],
                                         .dtype = dtype};
}

static void make_gelu(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_gelu_forward_args *)args =
        (struct hd_gelu_forward_args){.out = tensor(b, s[0] * s[2], dtype),
                                      .inp = tensor(b, s[0] * s[2], dtype),
                                      .N = s[0] * s[2],
                                      .dtype = dtype};
}

static void make_gelu_backward(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_gelu_backward_args *)args =
        (struct hd_gelu_backward_args){.dinp = tensor(b, s[0] * s[2], dtype),
                                       .dout = tensor(b, s[0] * s[2], dtype),
                                       .inp = tensor(b, s[0] * s[2], dtype),
                                       .N = s[0] * s[2],
                                       .dtype = dtype};
}

static void make_add(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_add_args *)args = (struct hd_add_args){.out = tensor(b, s[0] * s[1], dtype),
                                                       .a = tensor(b, s[0] * s[1], dtype),
                                                       .b = tensor(b, s[0] * s[1], dtype),
                                                       .N = s[0] * s[1],
                                                       .dtype = dtype};
}

static void make_cast(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_cast_args *)args = (struct hd_cast_args){.out = tensor(b, s[0] * s[1], dtype),
                                                         .inp = tensor(b, s[0] * s[1], HD_F32),
                                                         .N = s[0] * s[1],
                                                         .out_dtype = dtype,
                                                         .inp_dtype = HD_F32};
}

static void make_zero(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    const int64_t bytes = s[0] * s[1] * (int64_t)hd_dtype_size(dtype);

    *(struct hd_zero_args *)args =
        (struct hd_zero_args){.out = tensor(b, s[0] * s[1], dtype), .size_bytes = bytes};
}

static void make_cross_entropy(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_cross_entropy_args *)args =
        (struct hd_cross_entropy_args){.dlogits = tensor(b, s[0] * s[3], dtype),
                                       .block = b->block,
                                       .logits = tensor(b, s[0] * s[3], dtype),
                                       .target = token_index,
                                       .R = s[0],
                                       .V = s[3],
                                       .Vp = s[3],
                                       .dtype = dtype};
}

static void make_square_sums(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_square_sums_args *)args =
        (struct hd_square_sums_args){.sums = tensor(b, s[1] * s[2] / HD_GRAD_CHUNK + 1, HD_F64),
                                     .block = b->block,
                                     .grad = tensor(b, 4 * s[1] * s[2], HD_F32),
                                     .N = 4 * s[1] * s[2]};
}

static void make_adamw(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    static struct hd_update_range range = {.decay = 1, .lr_scale = 1};
    const int64_t N = 4 * s[1] * s[2];

    range.end = N;
    *(struct hd_adamw_args *)args = (struct hd_adamw_args){.weight = tensor(b, N, HD_F32),
                                                           .m = tensor(b, N, HD_F32),
                                                           .v = tensor(b, N, HD_F32),
                                                           .copy = tensor(b, N, dtype),
                                                           .grad = tensor(b, N, HD_F32),
                                                           .block = b->block,
                                                           .ranges = &range,
                                                           .N = N,
                                                           .range_count = 1,
                                                           .copy_dtype = dtype};
}

/* Moments in blocks of 256. */
static void make_adamw_blocks(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    static struct hd_update_range range = {.decay = 1, .lr_scale = 1, .block = HD_BLOCK_MAX};
    struct hd_adamw_args *a = args;

    make_adamw(b, args, s, dtype);
    range.end = a->N;
    a->ranges = &range;
    a->moment_bytes = hd_encoding_bytes(a->N, range.block);
    a->m = tensor(b, a->moment_bytes, HD_U8);
    a->v = tensor(b, a->moment_bytes, HD_U8);
}

static void bench_rows(struct bench *b, const int64_t *s)
{
    static const struct {
        enum hd_kernel kernel;
        void (*make)(struct bench *, void *, const int64_t *, enum hd_dtype);
    } all[] = {{HD_K_attention_merge, make_attention_merge},
               {HD_K_bias_backward, make_bias},
               {HD_K_dropout, make_dropout},
               {HD_K_embedding_forward, make_embedding},
               {HD_K_embedding_backward, make_embedding_backward},
               {HD_K_rmsnorm_forward, make_rmsnorm},
               {HD_K_rmsnorm_backward, make_rmsnorm_backward},
               {HD_K_rmsnorm_backward_weight, make_rmsnorm_weight},
               {HD_K_layernorm_forward, make_layernorm},
               {HD_K_layernorm_backward, make_layernorm_backward},
               {HD_K_layernorm_backward_weight, make_layernorm_weight},
               {HD_K_rope, make_rope},
               {HD_K_swiglu_forward, make_swiglu},
               {HD_K_swiglu_backward, make_swiglu_backward},
               {HD_K_gelu_forward, make_gelu},
               {HD_K_gelu_backward, make_gelu_backward},
               {HD_K_add, make_add},
               {HD_K_cast, make_cast},
               {HD_K_zero, make_zero},
               {HD_K_cross_entropy, make_cross_entropy},
               {HD_K_square_sums, make_square_sums},
               {HD_K_adamw, make_adamw}};
    char label[64];

    (void)snprintf(label, sizeof label, "R%lld C%lld F%lld V%lld", (long long)s[0], (long long)s[1],
                   (long long)s[2], (long long)s[3]);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int type = 0; type < TYPES; type++)
            time_kernel(b, label, all[i].kernel, all[i].make, s, (enum hd_dtype)type, false);
    (void)snprintf(label, sizeof label, "R%lld C%lld F%lld 8bit", (long long)s[0], (long long)s[1],
                   (long long)s[2]);
    for (int type = 0; type < TYPES; type++)
        time_kernel(b, label, HD_K_adamw, make_adamw_blocks, s, (enum hd_dtype)type, false);
}

/* ---- experts: sizes are {R, C, F, E, K} ---- */

static struct {
    int32_t *counts, *slot; /* every expert gets as many rows, none is dropped */
} experts;

static void set_experts(const int64_t *s)
{
    const int64_t T = s[0] * s[4], E = s[3];

    for (int64_t e = 0; e < E; e++)
        experts.counts[e] = (int32_t)(T / E);
    for (int64_t i = 0; i < T; i++) /* choice i is of expert i % E */
        experts.slot[i] = (int32_t)(i % E * (T / E) + i / E);
}

static void make_route(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_route_forward_args *)args =
        (struct hd_route_forward_args){.probs = tensor(b, s[0] * s[3], HD_F32),
                                       .lse = tensor(b, s[0], HD_F32),
                                       .chosen = tensor(b, s[0] * s[4], HD_I32),
                                       .gate = tensor(b, s[0] * s[4], HD_F32),
                                       .logits = tensor(b, s[0] * s[3], HD_F32),
                                       .R = s[0],
                                       .E = s[3],
                                       .K = s[4],
                                       .renormalize = true};
}

static void make_permute(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_permute_forward_args *)args =
        (struct hd_permute_forward_args){.out = tensor(b, s[0] * s[4] * s[1], dtype),
                                         .inp = tensor(b, s[0] * s[1], dtype),
                                         .slot = experts.slot,
                                         .R = s[0],
                                         .K = s[4],
                                         .C = s[1],
                                         .T = s[0] * s[4],
                                         .dtype = dtype};
}

static void make_combine(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_combine_forward_args *)args =
        (struct hd_combine_forward_args){.out = tensor(b, s[0] * s[1], dtype),
                                         .inp = tensor(b, s[0] * s[4] * s[1], dtype),
                                         .gate = tensor(b, s[0] * s[4], HD_F32),
                                         .slot = experts.slot,
                                         .R = s[0],
                                         .K = s[4],
                                         .C = s[1],
                                         .T = s[0] * s[4],
                                         .dtype = dtype};
}

static void make_combine_backward(struct bench *b, void *args, const int64_t *s,
                                  enum hd_dtype dtype)
{
    *(struct hd_combine_backward_args *)args =
        (struct hd_combine_backward_args){.dinp = tensor(b, s[0] * s[4] * s[1], dtype),
                                          .dgate = tensor(b, s[0] * s[4], HD_F32),
                                          .dout = tensor(b, s[0] * s[1], dtype),
                                          .inp = tensor(b, s[0] * s[4] * s[1], dtype),
                                          .gate = tensor(b, s[0] * s[4], HD_F32),
                                          .slot = experts.slot,
                                          .R = s[0],
                                          .K = s[4],
                                          .C = s[1],
                                          .T = s[0] * s[4],
                                          .dtype = dtype};
}

static void make_grouped(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_grouped_gemm_args *)args =
        (struct hd_grouped_gemm_args){.c = tensor(b, s[0] * s[4] * 2 * s[2], dtype),
                                      .a = tensor(b, s[0] * s[4] * s[1], dtype),
                                      .b = tensor(b, s[3] * 2 * s[2] * s[1], dtype),
                                      .counts = experts.counts,
                                      .E = s[3],
                                      .T = s[0] * s[4],
                                      .N = 2 * s[2],
                                      .K = s[1],
                                      .lda = s[1],
                                      .ldb = s[1],
                                      .ldc = 2 * s[2],
                                      .stride_b = 2 * s[2] * s[1],
                                      .trans_b = true,
                                      .ab_dtype = dtype,
                                      .c_dtype = dtype};
}

static void make_grouped_weight(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_grouped_gemm_weight_args *)args =
        (struct hd_grouped_gemm_weight_args){.c = tensor(b, s[3] * 2 * s[2] * s[1], HD_F32),
                                             .a = tensor(b, s[0] * s[4] * 2 * s[2], dtype),
                                             .b = tensor(b, s[0] * s[4] * s[1], dtype),
                                             .counts = experts.counts,
                                             .E = s[3],
                                             .T = s[0] * s[4],
                                             .M = 2 * s[2],
                                             .N = s[1],
                                             .lda = 2 * s[2],
                                             .ldb = s[1],
                                             .ldc = s[1],
                                             .stride_c = 2 * s[2] * s[1],
                                             .accumulate = true,
                                             .ab_dtype = dtype};
}

static void bench_experts(struct bench *b, const int64_t *s)
{
    static const struct {
        enum hd_kernel kernel;
        make_args *make;
        bool computes;
    } all[] = {{HD_K_route_forward, make_route, false},
               {HD_K_permute_forward, make_permute, false},
               {HD_K_combine_forward, make_combine, false},
               {HD_K_combine_backward, make_combine_backward, false},
               {HD_K_grouped_gemm, make_grouped, true},
               {HD_K_grouped_gemm_weight, make_grouped_weight, true}};
    char label[64];

    (void)snprintf(label, sizeof label, "R%lld C%lld F%lld E%lld K%lld", (long long)s[0],
                   (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4]);
    set_experts(s);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int type = 0; type < (all[i].kernel == HD_K_route_forward ? 1 : TYPES); type++)
            time_kernel(b, label, all[i].kernel, all[i].make, s, (enum hd_dtype)type,
                        all[i].computes);
}

/* a = b + c over tensors that no cache holds, through the add kernel: what its threads can move. */
static double measure_bandwidth(struct bench *b)
{
    const int64_t N = 24 * 1024 * 1024;
    double best = 0;

    for (int i = 0; i < 5; i++) {
        struct hd_add_args a = {.out = tensor(b, N, HD_F32),
                                .a = tensor(b, N, HD_F32),
                                .b = tensor(b, N, HD_F32),
                                .N = N,
                                .dtype = HD_F32};
        const int64_t begin_ns = now_ns(b);
        double rate;

        if (hd_launch(b->stream, HD_K_add, &a))
            die("add");
        rate = 12.0 * (double)N / ((double)(now_ns(b) - begin_ns) * 1e-9);
        if (rate > best)
            best = rate;
    }
    return best;
}

int main(int argc, char **argv)
{
    static const int64_t small[] = {4096, 384, 1024, 256}, large[] = {2048, 768, 3072, 50304};
    static const int64_t few[] = {2048, 768, 1024, 8, 2}, many[] = {2048, 768, 256, 64, 8};
    struct hd_step_state block = {.step = 1,
                                  .lr = 1e-4f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .adam_eps = 1e-6f,
                                  .loss_scale = 1,
                                  .grad_factor = 1};
    struct hd_backend_options options = {.threads = 1};
    struct bench b = {.block = &block};
    const struct hd_backend_table *table = hd_backend_cpu();
    bool beside = false;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-p"))
            options.force_plain = true;
        else if (!strcmp(argv[i], "-o"))
            options.gemm_by = HD_GEMM_BY_OWN;
        else if (!strcmp(argv[i], "-l"))
            options.gemm_by = HD_GEMM_BY_LIBRARY;
        else if (!strcmp(argv[i], "-d") && i + 1 < argc)
            b.only_dtype = argv[++i];
        else if (!strcmp(argv[i], "-b"))
            beside = true;
        else if (!strcmp(argv[i], "-t") && i + 1 < argc)
            options.threads = atoi(argv[++i]);
        else
            b.only = argv[i];
    }
    table->describe(&options, &b.traits);
    if (table->open(&options, &b.backend) ||
        table->stream_open(b.backend, HD_STREAM_FOR_COMPUTE, &b.stream))
        die("open");
    b.pool = aligned_alloc(4096, POOL_BYTES);
    positions = indices(65536, 65536);
    token_index = indices(65536, 251);
    experts.counts = indices(64, 1);
    experts.slot = indices(65536, 1);
    if (!b.pool)
        die("no memory");
    /* as 16-bit values, too, the exponents are near that of 1 */
    for (int64_t i = 0; i < POOL_BYTES / 4; i++)
        ((uint32_t *)(void *)b.pool)[i] = 0x3f003e80u ^ (uint32_t)((uint64_t)i * 2654435761u % 127);
    for (int type = 0; type < TYPES; type++)
        b.peak[type] = table->measure_peak(b.backend, (enum hd_dtype)type);
    b.bytes_per_s = measure_bandwidth(&b);
    printf("%s, %d threads: peak %.0f GF/s fp32, %.0f bf16, %.0f f16; memory %.1f GB/s\n",
           b.traits.isa, b.traits.threads, b.peak[HD_F32] * 1e-9, b.peak[HD_BF16] * 1e-9,
           b.peak[HD_F16] * 1e-9, b.bytes_per_s * 1e-9);

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (beside)
        start_neighbour(&b);

    bench_gemm(&b, 4096, 384, 384);
    bench_gemm(&b, 4096, 2048, 384);
    bench_gemm(&b, 2048, 3072, 768);
    bench_gemm(&b, 1024, 50304, 768);
    bench_gemm(&b, 1, 3072, 768);
    bench_attention(&b);
    bench_rows(&b, small);
    bench_rows(&b, large);
    bench_experts(&b, few);
    bench_experts(&b, many);

    stop_neighbour(&b);
    table->stream_close(b.stream);
    table->close(b.backend);
    free(b.scratch);
    free(b.pool);
    free(positions);
    free(token_index);
    free(experts.counts);
    free(experts.slot);
    return 0;
}
