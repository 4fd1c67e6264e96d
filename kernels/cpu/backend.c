/* backend: the table of the CPU backend. open chooses the widest instruction set of this machine;
 * a launch runs before it returns. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HEDDLE_CPU_X86
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "base/clock.h"
#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"
#include "kernels/stream.h"

/* Bytes of scratch that the GEMM library may use per thread; oneDNN was measured to need up to 1.3
 * MiB. */
enum { GEMM_BUDGET_BYTES = 2 * 1024 * 1024 };

/* Values of ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA in the headers of Linux. */
enum { REQUEST_TILES = 0x1023, TILE_DATA = 18 };

struct cpu_stream {
    struct hd_stream stream;
    struct hd_backend *cpu;
};

#ifdef HEDDLE_CPU_X86
/* Returns true if the CPU has the features that the avx2 kernels are compiled for. gcc and clang do
 * not both accept "f16c" as a feature name. */
static bool has_avx2(void)
{
    unsigned eax, ebx, ecx, edx;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

/* Returns true if the processor has AMX with bf16 (CPUID leaf 7: edx bits 22 and 24), the kernel
 * saves tiles (XCR0 bits 17, 18), and the kernel grants this process, which must request it, their
 * use. */
static bool has_amx_bf16(void)
{
    unsigned eax, ebx, ecx, edx, low, high;

    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & (1u << 27)))
        return false; /* no xgetbv: it is unknown whether the kernel saves tiles */
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return false;
    if (!(edx & (1u << 22)) || !(edx & (1u << 24)))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & (3u << 17)) != (3u << 17))
        return false;
    return syscall(SYS_arch_prctl, REQUEST_TILES, TILE_DATA) == 0;
}
#endif

/* Returns the kernels' table of the widest instruction set that this machine can run, and sets the
 * traits isa, vector_bytes and bf16_*. AMX, and vdpbf16ps on AMD, have at least twice the fp32
 * rate; vdpbf16ps on Intel without AMX was measured at half the fp32 rate. */
static const struct hd_cpu_kernels *detect(bool force_plain, struct hd_traits *traits)
{
    const struct hd_cpu_kernels *kernels = &hd_cpu_kernels_plain;
    const char *isa = "plain";

    traits->vector_bytes = 16;
#ifdef HEDDLE_CPU_X86
    if (!force_plain && has_avx2()) {
        kernels = &hd_cpu_kernels_avx2;
        isa = "avx2";
        traits->vector_bytes = 32;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            kernels = &hd_cpu_kernels_avx512;
            isa = "avx512";
            traits->vector_bytes = 64;
            if (__builtin_cpu_supports("avx512bf16"))
                kernels = &hd_cpu_kernels_avx512bf16; /* the table that rounds to bf16 in one
                                                         instruction */
            if (has_amx_bf16()) {
                isa = "avx512_amx_bf16";
                traits->bf16_fast = true;
                traits->bf16_products = HD_BF16_TILES;
            } else if (__builtin_cpu_supports("avx512bf16")) {
                isa = "avx512_bf16";
                traits->bf16_fast = __builtin_cpu_is("amd");
                traits->bf16_products = traits->bf16_fast ? HD_BF16_PAIRS : HD_BF16_WIDENED;
            }
        }
    }
#else
    (void)force_plain;
#endif
    (void)snprintf(traits->isa, sizeof traits->isa, "%s", isa);
    return kernels;
}

static const struct hd_cpu_panels *find_panels(const struct hd_backend_options *options,
                                               const struct hd_traits *traits)
{
    if (options->gemm_by == HD_GEMM_BY_TILE_MODEL)
        return &hd_cpu_panels_model;
#ifdef HEDDLE_CPU_X86
    if (traits->bf16_products == HD_BF16_PAIRS)
        return &hd_cpu_panels_pairs;
    if (traits->bf16_products == HD_BF16_TILES)
        return &hd_cpu_panels_tiles;
#endif
    (void)traits;
    return NULL;
}

/* Chooses the code for bf16 products. Own code is used where it was measured to be faster than the
 * library on most shapes: with pairs, on AMD's Zen 5; widened to fp32, on a Xeon without AMX, where
 * the library takes four times as long for the gradients of weights. With AMX the library is used;
 * own code was not compared on AMX yet. */
static void choose_products(const struct hd_backend_options *options, struct hd_traits *t)
{
    const bool wide = t->vector_bytes == 64; /* HD_PANEL_COLUMNS is two 64-byte vectors */

    if (options->gemm_by == HD_GEMM_BY_WIDENED)
        t->bf16_products = HD_BF16_WIDENED;
    if (options->gemm_by == HD_GEMM_BY_TILE_MODEL)
        t->bf16_products = wide ? HD_BF16_TILES : HD_BF16_WIDENED;
    t->own_bf16 = options->gemm_by == HD_GEMM_BY_BEST && t->bf16_products != HD_BF16_TILES;
}

#ifdef HEDDLE_HAVE_DNNL
/* Returns true if oneDNN should be used. It is not used on AVX2: its fp32 GEMMs allocate megabytes
 * inside each launch to pack their factors (in every scratchpad mode), which no plan counts, and
 * own code was measured to be only 2% slower on average. See docs/decisions/cpu-kernels.md. */
static bool is_library_wanted(const struct hd_backend_options *options, const struct hd_traits *t)
{
    return !options->force_plain &&
           (options->gemm_by == HD_GEMM_BY_LIBRARY ||
            (options->gemm_by == HD_GEMM_BY_BEST && strcmp(t->isa, "avx2") != 0));
}
#endif

static void describe(const struct hd_backend_options *options, struct hd_traits *ret_traits)
{
    struct hd_traits *t = ret_traits;

    memset(t, 0, sizeof *t);
    (void)snprintf(t->backend, sizeof t->backend, "cpu");
    (void)detect(options->force_plain, t);
    t->threads = options->threads > 1 ? options->threads : 1;
    t->page_bytes = sysconf(_SC_PAGESIZE);
    choose_products(options, t);
    (void)snprintf(t->library, sizeof t->library, "own");
#ifdef HEDDLE_HAVE_DNNL
    if (is_library_wanted(options, t)) {
        t->gemm_scratch_bytes = (int64_t)t->threads * GEMM_BUDGET_BYTES;
        hd_cpu_gemm_library_name(t->library, sizeof t->library);
    }
#endif
    if (!t->gemm_scratch_bytes)
        t->bf16_fast = t->bf16_products != HD_BF16_WIDENED;
}

static void close_cpu(struct hd_backend *cpu)
{
    if (!cpu)
        return;
    hd_cpu_pool_free(cpu->pool);
#ifdef HEDDLE_HAVE_DNNL
    hd_cpu_gemm_library_close(cpu->gemm_library);
#endif
    free(cpu);
}

static enum hd_status open_cpu(const struct hd_backend_options *options,
                               struct hd_backend **ret_backend)
{
    struct hd_backend *cpu;
    struct hd_traits unused = {0};
    enum hd_status st = HD_OK;

    if (options->threads < 1)
        return hd_err(HD_INVALID, "cpu backend: threads is %d; give at least 1", options->threads);
    cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return hd_err(HD_NO_MEMORY, "no memory for the cpu backend");
    cpu->options = *options;
    describe(options, &cpu->traits);
    cpu->kernels = detect(options->force_plain, &unused);
    cpu->panels = find_panels(options, &cpu->traits);
    if (!cpu->kernels->fma_rate)
        st = hd_err(HD_UNSUPPORTED,
                    "this program has no kernels for this machine's processor: it was "
                    "built with -DHEDDLE_CPU_KERNELS=native on another one; build it "
                    "with -DHEDDLE_CPU_KERNELS=all");
#ifdef HEDDLE_HAVE_DNNL
    if (!st && cpu->traits.gemm_scratch_bytes)
        st = hd_cpu_gemm_library_open(cpu->traits.threads, &cpu->gemm_library);
#endif
    if (!st)
        st = hd_cpu_pool_new(cpu->traits.threads, &cpu->pool);
    if (st) {
        close_cpu(cpu);
        return st;
    }
    *ret_backend = cpu;
    return HD_OK;
}

static enum hd_status stream_open(struct hd_backend *cpu, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream)
{
    struct cpu_stream *s = calloc(1, sizeof *s);

    (void)purpose;
    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory for a stream of the cpu backend");
    s->stream.table = hd_backend_cpu();
    s->cpu = cpu;
    *ret_stream = &s->stream;
    return HD_OK;
}

static void stream_close(struct hd_stream *stream)
{
    free(stream);
}

static enum hd_status launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args)
{
    struct hd_backend *cpu = ((struct cpu_stream *)stream)->cpu;

    switch (kernel) {
#define K(name, ...)  \
    case HD_K_##name: \
        return cpu->kernels->name(cpu, args);
#include "kernels/kernels.def"
    case HD_KERNEL_COUNT:
        break;
    }
    return hd_err(HD_INTERNAL, "the cpu backend has no kernel number %d; the numbers end at %d",
                  (int)kernel, (int)HD_KERNEL_COUNT - 1);
}

static enum hd_status synchronize(struct hd_stream *stream)
{
    (void)stream; /* launches are synchronous */
    return HD_OK;
}

#ifdef HEDDLE_HAVE_DNNL
static enum hd_status prepare(struct hd_backend *cpu, enum hd_kernel kernel, const void *args);

static enum hd_status prepare_newton(struct hd_backend *cpu,
                                     const struct hd_newton_schulz_args *args)
{
    enum hd_status st = HD_OK;

    for (int k = 0; !st && k < HD_NEWTON_PRODUCTS; k++) {
        const struct hd_gemm_args g = hd_costs_newton_product(args, (enum hd_newton_product)k);

        st = prepare(cpu, HD_K_gemm, &g);
    }
    return st;
}
#endif

static enum hd_status prepare(struct hd_backend *cpu, enum hd_kernel kernel, const void *args)
{
#ifdef HEDDLE_HAVE_DNNL
    struct hd_gemm_args decoded;

    if (kernel == HD_K_newton_schulz)
        return prepare_newton(cpu, args);
    if (kernel == HD_K_fp8_gemm) {
        decoded = hd_costs_fp8_product(args, &cpu->traits);
        return prepare(cpu, HD_K_gemm, &decoded);
    }
    if (kernel == HD_K_gemm && cpu->gemm_library && !hd_costs_gemm_is_own(args, &cpu->traits))
        return hd_cpu_gemm_library_prepare(cpu->gemm_library, args, cpu->traits.gemm_scratch_bytes);
#else
    (void)cpu;
    (void)kernel;
    (void)args;
#endif
    return HD_OK;
}

struct peak {
    const struct hd_backend *cpu;
    double *rates; /* rate measured by each thread, in operations per second */
};

static void measure_threads(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct peak *p = args;

    (void)thread;
    for (int64_t i = begin; i < end; i++)
        p->rates[i] = p->cpu->kernels->fma_rate(0.05);
}

/* Returns the best rate, in operations per second on one thread, of several GEMMs that fit into the
 * caches. It runs a GEMM because the library chooses the instruction for 16-bit factors; on one
 * thread, because a barrier between threads would measure the other load of the machine. */
static double gemm_rate(struct hd_backend *cpu, enum hd_dtype dtype)
{
    enum { SIZE = 512, ROUNDS_MIN = 5 };
    struct hd_gemm_args a = {.M = SIZE,
                             .N = SIZE,
                             .K = SIZE,
                             .lda = SIZE,
                             .ldb = SIZE,
                             .ldc = SIZE,
                             .trans_b = true,
                             .ab_dtype = dtype,
                             .c_dtype = dtype};
    const size_t matrix_bytes = sizeof(uint16_t) * SIZE * SIZE;
    const int64_t scratch_bytes = hd_kernel_scratch_bytes(HD_K_gemm, &a, &cpu->traits);
    const int64_t begin_ns = hd_clock_now_ns();
    char *memory = NULL;
    double best = 0;

    if (posix_memalign((void **)&memory, HD_TENSOR_ALIGN, 3 * matrix_bytes + (size_t)scratch_bytes))
        return 0;
    memset(memory, 0, 3 * matrix_bytes + (size_t)scratch_bytes);
    a.a = memory;
    a.b = memory + matrix_bytes;
    a.c = memory + 2 * matrix_bytes;
    a.scratch = memory + 3 * matrix_bytes;
    for (int i = 0; i < ROUNDS_MIN || hd_clock_now_ns() - begin_ns < 50 * 1000 * 1000; i++) {
        const int64_t start_ns = hd_clock_now_ns();
        double rate;

        if (cpu->kernels->gemm(cpu, &a))
            break;
        rate = 2.0 * SIZE * SIZE * SIZE / ((double)(hd_clock_now_ns() - start_ns) * 1e-9);
        if (rate > best)
            best = rate;
    }
    free(memory);
    return best;
}

/* Returns the peak rate for 16-bit factors: the GEMM rate of one thread times the number of
 * threads. */
static double half_rate(const struct hd_backend *cpu, enum hd_dtype dtype)
{
    struct hd_backend_options options = cpu->options;
    struct hd_backend *one = NULL;
    double rate;

    options.threads = 1;
    if (open_cpu(&options, &one))
        return 0;
    rate = gemm_rate(one, dtype) * cpu->traits.threads;
    close_cpu(one);
    return rate;
}

/* Returns the measured peak rate in operations per second for factors of this type. fp16 factors
 * are widened to fp32, unless the library multiplies fp16 faster. Codes of fp8 are multiplied as
 * bf16. */
static double measure_peak(struct hd_backend *cpu, enum hd_dtype dtype)
{
    const struct peak peak = {.cpu = cpu,
                              .rates = calloc((size_t)cpu->traits.threads, sizeof(double))};
    double sum = 0;

    if (!peak.rates)
        return 0;
    if (dtype == HD_U8)
        dtype = HD_BF16;
    if (dtype == HD_BF16 && cpu->traits.bf16_fast) {
        sum = half_rate(cpu, dtype);
    } else {
        hd_cpu_parallel(cpu, cpu->traits.threads, 1, measure_threads, &peak);
        for (int i = 0; i < cpu->traits.threads; i++)
            sum += peak.rates[i];
    }
    if (dtype == HD_F16 && cpu->gemm_library) {
        const double by_library = half_rate(cpu, dtype);

        sum = by_library > sum ? by_library : sum;
    }
    free(peak.rates);
    return sum;
}

static struct hd_backend_table table = {
    .abi = HD_KERNEL_ABI,
    .table_bytes = sizeof table,
    .name = "cpu",
    .describe = describe,
    .open = open_cpu,
    .close = close_cpu,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .launch = launch,
    .synchronize = synchronize,
    .prepare = prepare,
    .measure_peak = measure_peak,
};

static void hash_table(void) /* kernel_list_hash is computed at start, because it is no constant
                                expression */
{
    table.kernel_list_hash = hd_kernel_list_hash();
}

const struct hd_backend_table *hd_backend_cpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, hash_table);
    return &table;
}
