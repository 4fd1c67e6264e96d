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
 * company. The floor of a launch is the larger of its operations at the peak (products and attention)
 * and its bytes at the bandwidth of a triad; bytes and operations are those of kernels/costs, those of
 * attention without its exponentials. The floor is printed twice:
 *  - "beside": each launch has its turn beside the loop that has the peak (multiply-adds in registers,
 *    two per cycle) with as many operations, or beside a triad of as many bytes, by the same clock; the
 *    median of the turns' ratios. A virtual machine's core is slower for a while and slows both.
 *  - "of the fastest": the fastest launch beside the fastest slice, of less than a millisecond, of many.
 *    No launch of 100 ms has that rate where a neighbour of the virtual machine shares the core.
 * Where bf16 has a peak of its own, the loop's time is divided by what it is above that of fp32.
 * Tensors change from launch to launch so that they come from memory, in huge pages as a trainer's. The
 * floor of a block is the sum of its launches' floors, forward and backward: of medians beside, and of
 * fastest. `mallocs` counts calls of the allocator inside one launch: own kernels make none, what is
 * left is oneDNN's.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/math.h"
#include "base/random.h"
#include "base/text.h"
#include "kernels/cpu/cpu.h"
#include "tests/bench/kernels_bench.h"

enum {
    POOL_BYTES = 512 * 1024 * 1024,
    PAGE_BYTES = 2 * 1024 * 1024,
    TURNS_MIN = 9,
    TURNS_MAX = 99,
    TIME_MS = 400
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
    const pid_t parent = getpid();
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
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
            _exit(1);
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

/* Executes at least `operations` in independent chains of fused multiply-adds, enough to hide the
 * latency on two units; nothing else that a core does has more operations per cycle. One function per
 * length of a vector. Returns a number that keeps the compiler from removing the loop. */
#define CHAINS(X)      X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define BEGIN_CHAIN(c) sum##c = {c}, /* equal chains would be compiled to one */
#define LENGTHEN(c)    sum##c = sum##c * factor + term;
#define ADD_CHAIN(c)   total += sum##c;
#define MULTIPLY_ADD(bytes, ...)                                                   \
    __VA_ARGS__ static float multiply_add_##bytes(double operations)               \
    {                                                                              \
        typedef float vector __attribute__((vector_size(bytes)));                  \
        const int64_t rounds = (int64_t)(operations / (2.0 * 12 * bytes / 4)) + 1; \
        const vector factor = (vector){0} + 0.999f, term = (vector){0} + 0.001f;   \
        vector CHAINS(BEGIN_CHAIN) total = {0};                                    \
                                                                                   \
        for (int64_t r = 0; r < rounds; r++) {                                     \
            CHAINS(LENGTHEN)                                                       \
        }                                                                          \
        CHAINS(ADD_CHAIN)                                                          \
        return total[0];                                                           \
    }
#ifdef __x86_64__
MULTIPLY_ADD(64, __attribute__((target("avx512f"))))
MULTIPLY_ADD(32, __attribute__((target("avx2,fma"))))
#endif
MULTIPLY_ADD(16, )

struct share {
    float (*loop)(double operations);
    double operations;
};

static void multiply_share(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct share *s = args;
    volatile float kept;

    (void)thread;
    for (int64_t i = begin; i < end; i++)
        kept = s->loop(s->operations);
    (void)kept;
}

/* Multiplies and adds in registers of all threads for as long as `operations` of an encoding take at
 * its peak. */
static void multiply_add(const struct bench *b, double operations, enum hd_dtype dtype)
{
    const int threads = b->traits.threads;
    struct share share = {multiply_add_16, operations * b->peak[HD_F32] / b->peak[dtype] / threads};

#ifdef __x86_64__
    if (b->traits.vector_bytes == 64)
        share.loop = multiply_add_64;
    else if (b->traits.vector_bytes == 32)
        share.loop = multiply_add_32;
#endif
    hd_cpu_parallel(b->backend, threads, 1, multiply_share, &share);
}

/* Reads and writes that many bytes that no cache holds: a = b + c, by the add kernel. */
static void move_bytes(struct bench *b, double bytes)
{
    const int64_t whole = (int64_t)(bytes / 12), most = 8 * 1024 * 1024;

    for (int64_t done = 0; done < whole; done += most) {
        const int64_t N = hd_min(most, whole - done);
        const struct hd_add_args a = {.out = bench_tensor(b, N, HD_F32),
                                      .a = bench_tensor(b, N, HD_F32),
                                      .b = bench_tensor(b, N, HD_F32),
                                      .N = N,
                                      .dtype = HD_F32};

        if (hd_launch(b->stream, HD_K_add, &a))
            bench_die("add");
    }
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the values, and returns their median. */
static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

void bench_kernel(struct bench *b, const char *label, enum hd_kernel kernel, make_args *make,
                  const int64_t *sizes, enum hd_dtype dtype, bool computes)
{
    union {
        char bytes[512];
        double align;
    } args;
    const char *name = hd_kernel_get_info(kernel)->name;
    const double part = b->smoke ? 1.0 / 64 : 1; /* of the floor's work, which is done */
    const int first = b->smoke ? 0 : -1;         /* turn -1 warms up, and is not counted */
    struct hd_costs costs = {0};
    double ours_ms[TURNS_MAX], floor_ms[TURNS_MAX], ratio[TURNS_MAX];
    double fastest_ms, best_ms, bytes = 0, total_ms = 0;
    long long mallocs = 0;
    bool by_bytes = false;
    int turns = 0;

    if ((b->only && !hd_text_starts(name, b->only)) ||
        (b->only_dtype && strcmp(b->only_dtype, hd_dtype_name(dtype)) != 0))
        return;
    if (b->neighbour) {
        time_beside(b, label, kernel, make, sizes, dtype);
        return;
    }
    for (int turn = first;
         turn < (b->smoke ? 1 : TURNS_MIN) || (!b->smoke && turn < TURNS_MAX && total_ms < TIME_MS);
         turn++) {
        int64_t begin_ns, end_ns;

        memset(&args, 0, sizeof args);
        make(b, &args, sizes, dtype);
        set_scratch(b, kernel, &args);
        if (hd_backend_cpu()->prepare(b->backend, kernel, &args))
            bench_die(name);
        if (turn == first) {
            hd_kernel_cost_add(&costs, kernel, &args);
            bytes = (double)(costs.read_bytes + costs.write_bytes);
            by_bytes = !computes || bytes / b->bytes_per_s > costs.flops / b->peak[dtype];
        }
        mallocs = malloc_count;
        begin_ns = now_ns(b);
        if (hd_launch(b->stream, kernel, &args))
            bench_die(name);
        end_ns = now_ns(b);
        mallocs = malloc_count - mallocs;
        if (by_bytes)
            move_bytes(b, bytes * part);
        else
            multiply_add(b, costs.flops * part, dtype);
        if (turn < 0)
            continue;
        ours_ms[turn] = (double)(end_ns - begin_ns) * 1e-6;
        floor_ms[turn] = (double)(now_ns(b) - end_ns) * 1e-6 / part;
        ratio[turn] = floor_ms[turn] / ours_ms[turn];
        total_ms += ours_ms[turn];
        turns = turn + 1;
    }
    fastest_ms = (by_bytes ? bytes / b->bytes_per_s : costs.flops / b->peak[dtype]) * 1e3;
    b->ours_ms += median(ours_ms, turns);
    b->floor_ms += median(floor_ms, turns);
    best_ms = ours_ms[0]; /* sorted by `median` */
    b->best_ms += best_ms;
    b->fastest_ms += fastest_ms;
    printf("%-26s %-4s %-24s %9.3f ms %8.1f GF/s %7.1f GB/s %5.0f%% of the floor beside %5.0f%% of "
           "the fastest %3lld mallocs\n",
           name, hd_dtype_name(dtype), label, best_ms, costs.flops / best_ms * 1e-6,
           bytes / best_ms * 1e-6, median(ratio, turns) * 100, fastest_ms / best_ms * 100, mallocs);
}

void bench_sum(struct bench *b, const char *block, const char *label, enum hd_dtype dtype)
{
    if (b->ours_ms > 0 && !b->only)
        printf("%-26s %-4s %-24s %9.3f ms, medians; floor beside %9.3f ms: %5.0f%% of the floor "
               "beside %5.0f%% of the fastest\n",
               block, hd_dtype_name(dtype), label, b->ours_ms, b->floor_ms,
               b->floor_ms / b->ours_ms * 100, b->fastest_ms / b->best_ms * 100);
    b->ours_ms = b->floor_ms = b->best_ms = b->fastest_ms = 0;
}

/* Returns the bandwidth of the fastest of a few triads, in bytes per second. */
static double measure_bandwidth(struct bench *b)
{
    const double bytes = 12.0 * (double)bench_size(b, 8 * 1024 * 1024);
    double best = 0;

    for (int i = 0; i < 15; i++) {
        const int64_t begin_ns = now_ns(b);
        double rate;

        move_bytes(b, bytes);
        rate = bytes / ((double)(now_ns(b) - begin_ns) * 1e-9);
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
