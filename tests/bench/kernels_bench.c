/* kernels_bench: how near each kernel of the CPU backend comes to the machine's floor.
 *
 *   kernels_bench [-t THREADS] [-p] [-o | -l] [-d TYPE] [-s] [NAME]
 *
 * -p: the portable path; -o, -l: products by own code, by the library; -d: only this encoding, f32,
 * bf16 or f16; -s: small sizes, one launch of each kernel, a test of this program; NAME: only kernels
 * that begin so, or a block, latent_block or experts_block.
 *
 *   kernels_bench -t THREADS -b [-d TYPE] [NAME]
 *
 * -b: products with and without a busy loop on one core beside them, in turns: the ratio of their
 * mean times. Of two cores 1.33 would be a fair share.
 *
 * Run by hand, on a quiet machine; with one thread its processor time is taken, which forgives some
 * company. The floor of a launch is the larger of its operations at the
 * measured peak (products and attention) and its bytes at the bandwidth of a triad, both measured
 * first with the same threads; bytes and operations are those of kernels/costs, those of attention
 * without its exponentials. The peak is that of the fastest millisecond of many: where a neighbour of
 * the virtual machine shares the core, no launch of 100 ms has it. Tensors change from launch to
 * launch so that they come from memory, in huge pages as a trainer's. The floor of a block is the sum of its launches'
 * floors, forward and backward. `mallocs` counts calls of the allocator inside
 * one launch: own kernels make none, what is left is oneDNN's.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/math.h"
#include "base/random.h"
#include "base/text.h"
#include "tests/bench/kernels_bench.h"

enum {
    POOL_BYTES = 512 * 1024 * 1024,
    PAGE_BYTES = 2 * 1024 * 1024,
    ROUNDS_MIN = 4,
    TIME_NS = 200 * 1000 * 1000
};

static atomic_llong malloc_count;

#if defined __GLIBC__ && !defined __SANITIZE_ADDRESS__ /* whose allocator it is there */
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

/* Time that this launch's work took: of this thread if it works alone. */
static int64_t now_ns(const struct bench *b)
{
    struct timespec t;

    if (b->traits.threads > 1)
        return hd_clock_now_ns();
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t bench_size(const struct bench *b, int64_t size)
{
    enum { SMALL = 64 };

    return b->smoke && size > SMALL ? SMALL : size;
}

_Noreturn void bench_die(const char *what)
{
    fprintf(stderr, "kernels_bench: %s: %s\n", what, hd_err_message());
    exit(1);
}

void *bench_tensor(struct bench *b, int64_t count, enum hd_dtype dtype)
{
    const int64_t bytes = (count * (int64_t)hd_dtype_size(dtype) + 4095) / 4096 * 4096;
    char *data;

    if (bytes > POOL_BYTES)
        bench_die("a tensor is larger than the pool");
    if (b->used_bytes + bytes > POOL_BYTES)
        b->used_bytes = 0;
    data = b->pool + b->used_bytes;
    b->used_bytes += bytes;
    return data;
}

static void set_scratch(struct bench *b, enum hd_kernel kernel, void *args)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(kernel);
    const int64_t bytes = hd_kernel_scratch_bytes(kernel, args, &b->traits);

    if (bytes > b->scratch_bytes) {
        free(b->scratch);
        b->scratch = aligned_alloc(PAGE_BYTES, (size_t)hd_round_up(bytes, PAGE_BYTES));
        if (!b->scratch)
            bench_die("no memory");
        (void)madvise(b->scratch, (size_t)bytes, MADV_HUGEPAGE);
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
        bench_die("cores");
    while (core > 0 && !CPU_ISSET(core, &mine))
        core--;
    CPU_ZERO(&last);
    CPU_SET(core, &last);
    b->neighbour = fork();
    if (b->neighbour < 0)
        bench_die("fork");
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
                bench_die(hd_kernel_get_info(kernel)->name);
            begin_ns = hd_clock_now_ns();
            if (hd_launch(b->stream, kernel, &args))
                bench_die(hd_kernel_get_info(kernel)->name);
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

void bench_kernel(struct bench *b, const char *label, enum hd_kernel kernel, make_args *make,
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
    for (int round = 0; b->smoke ? round < 2 : round < ROUNDS_MIN || total_ns < TIME_NS; round++) {
        int64_t begin_ns, ns;

        memset(&args, 0, sizeof args);
        make(b, &args, sizes, dtype);
        set_scratch(b, kernel, &args);
        if (hd_backend_cpu()->prepare(b->backend, kernel, &args))
            bench_die(name);
        mallocs = malloc_count;
        begin_ns = now_ns(b);
        if (hd_launch(b->stream, kernel, &args))
            bench_die(name);
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
    b->ours_ms += (double)best_ns * 1e-6;
    b->floor_ms += floor_s * 1e3;
    printf("%-26s %-4s %-24s %9.3f ms %8.1f GF/s %7.1f GB/s %5.0f%% of the floor %3lld mallocs\n",
           name, hd_dtype_name(dtype), label, (double)best_ns * 1e-6, costs.flops / (double)best_ns,
           (double)(costs.read_bytes + costs.write_bytes) / (double)best_ns,
           floor_s / ((double)best_ns * 1e-9) * 100, mallocs);
}

void bench_sum(struct bench *b, const char *block, const char *label, enum hd_dtype dtype)
{
    if (b->ours_ms > 0 && !b->only)
        printf("%-26s %-4s %-24s %9.3f ms, floor %9.3f ms: %21.0f%% of the floor\n", block,
               hd_dtype_name(dtype), label, b->ours_ms, b->floor_ms,
               b->floor_ms / b->ours_ms * 100);
    b->ours_ms = b->floor_ms = 0;
}

/* a = b + c over tensors that no cache holds, through the add kernel: what its threads can move. */
static double measure_bandwidth(struct bench *b)
{
    const int64_t N = bench_size(b, 24 * 1024 * 1024);
    double best = 0;

    for (int i = 0; i < 5; i++) {
        struct hd_add_args a = {.out = bench_tensor(b, N, HD_F32),
                                .a = bench_tensor(b, N, HD_F32),
                                .b = bench_tensor(b, N, HD_F32),
                                .N = N,
                                .dtype = HD_F32};
        const int64_t begin_ns = now_ns(b);
        double rate;

        if (hd_launch(b->stream, HD_K_add, &a))
            bench_die("add");
        rate = 12.0 * (double)N / ((double)(now_ns(b) - begin_ns) * 1e-9);
        if (rate > best)
            best = rate;
    }
    return best;
}

int main(int argc, char **argv)
{
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
        else if (!strcmp(argv[i], "-s"))
            b.smoke = true;
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
        bench_die("open");
    b.pool = aligned_alloc(PAGE_BYTES, POOL_BYTES);
    if (!b.pool)
        bench_die("no memory");
    (void)madvise(b.pool, POOL_BYTES, MADV_HUGEPAGE); /* as a trainer's memory */
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

    bench_all(&b);
    stop_neighbour(&b);
    table->stream_close(b.stream);
    table->close(b.backend);
    free(b.scratch);
    free(b.pool);
    return 0;
}
