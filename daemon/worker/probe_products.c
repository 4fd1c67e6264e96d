/* probe_products: products of a grid of sizes, in each layout of the factors, as linear layers have
 * them: forward C = X W^T, backward dX = dY W and dW = dY^T X; and what the device computes in the
 * same pass (hd_gemm_takes_epilogue).
 *
 * Weights lie in memory that was not used for a while, as in training; the other factor and the
 * result are warm. */
#include <stdlib.h>

#include "base/clock.h"
#include "worker/probe.h"

enum {
    SIDE_MAX = 2048,
    POOL_BYTES = 64 << 20, /* of weights; larger than the caches of a processor's share */
    RUNS_MAX = 24,
    RUNS_NS = 10 * 1000 * 1000,
    RUNS_LONG_NS = 100 * 1000 * 1000 /* for at least three runs */
};
static const int64_t sides[] = {32, 128, 512, 2048};
enum { SIDES = sizeof sides / sizeof sides[0], QUICK_SIDES = 2 };

static const struct probed_product {
    bool trans_a, trans_b, dbias;
    enum hd_gemm_epilogue epilogue;
} products[] = {
    {false, true, false, HD_EPILOGUE_NONE},           {false, false, false, HD_EPILOGUE_NONE},
    {true, false, false, HD_EPILOGUE_NONE},           {false, true, false, HD_EPILOGUE_GELU},
    {false, false, false, HD_EPILOGUE_GELU_BACKWARD}, {true, false, true, HD_EPILOGUE_NONE},
};
enum { PRODUCTS = sizeof products / sizeof products[0] };

struct bench {
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_traits traits;
    char *a, *c, *pre, *pool, *scratch;
    float *dbias;
    int64_t pool_used, scratch_bytes;
};

static void *from_pool(struct bench *b, int64_t bytes)
{
    char *at;

    bytes = (bytes + HD_TENSOR_ALIGN - 1) / HD_TENSOR_ALIGN * HD_TENSOR_ALIGN;
    if (b->pool_used + bytes > POOL_BYTES)
        b->pool_used = 0;
    at = b->pool + b->pool_used;
    b->pool_used += bytes;
    return at;
}

static void fill(struct bench *b, const struct probed_product *of, int64_t M, int64_t N, int64_t K,
                 enum hd_dtype dtype, struct hd_gemm_args *a)
{
    const int64_t size = (int64_t)hd_dtype_size(dtype);

    *a = (struct hd_gemm_args){.M = M,
                               .N = N,
                               .K = K,
                               .trans_a = of->trans_a,
                               .trans_b = of->trans_b,
                               .lda = of->trans_a ? M : K,
                               .ldb = of->trans_b ? K : N,
                               .ldc = N,
                               .epilogue = of->epilogue,
                               .ab_dtype = dtype,
                               .c_dtype = of->trans_a ? HD_F32 : dtype};
    a->a = b->a;
    a->c = of->trans_a ? from_pool(b, M * N * 4) : b->c; /* a weight's gradient */
    a->b = of->trans_a ? b->c : from_pool(b, K * N * size);
    a->pre = of->epilogue == HD_EPILOGUE_GELU ? b->pre : NULL;
    a->gelu_inp = of->epilogue == HD_EPILOGUE_GELU_BACKWARD ? b->pre : NULL;
    a->dbias = of->dbias ? b->dbias : NULL;
    a->scratch = b->scratch;
}

static enum hd_status get_scratch(struct bench *b, const struct hd_gemm_args *a)
{
    const int64_t bytes = hd_kernel_scratch_bytes(HD_K_gemm, a, &b->traits);
    const int64_t rounded = (bytes + HD_SCRATCH_ALIGN - 1) / HD_SCRATCH_ALIGN * HD_SCRATCH_ALIGN;

    if (bytes <= b->scratch_bytes)
        return HD_OK;
    free(b->scratch);
    b->scratch_bytes = 0;
    b->scratch = aligned_alloc(HD_SCRATCH_ALIGN, (size_t)rounded);
    if (!b->scratch)
        return hd_err(HD_NO_MEMORY, "no memory for a product's scratch");
    b->scratch_bytes = bytes;
    return HD_OK;
}

static enum hd_status time_product(struct probe *p, struct bench *b,
                                   const struct probed_product *of, int64_t M, int64_t N, int64_t K,
                                   enum hd_dtype dtype)
{
    struct probe_record r = {.what = PROBE_KERNEL};
    struct hd_costs costs = {0};
    struct hd_gemm_args args;
    double times[RUNS_MAX];
    int64_t spent_ns = 0;
    int count = 0;
    enum hd_status st;

    fill(b, of, M, N, K, dtype, &args);
    st = get_scratch(b, &args);
    if (!st)
        st = p->table->prepare(b->backend, HD_K_gemm, &args);
    for (int i = 0; !st && count < RUNS_MAX &&
                    (count < 1 || (count < 3 && spent_ns < RUNS_LONG_NS) || spent_ns < RUNS_NS);
         i++) {
        int64_t begin_ns, ns;

        fill(b, of, M, N, K, dtype, &args);
        begin_ns = hd_clock_now_ns();
        st = hd_launch(b->stream, HD_K_gemm, &args);
        ns = hd_clock_now_ns() - begin_ns;
        spent_ns += ns;
        if (i > 0) /* the first one warms up */
            times[count++] = 1e-9 * (double)ns;
    }
    if (st)
        return st;
    hd_kernel_cost_add(&costs, HD_K_gemm, &args);
    hd_calibration_key_of(HD_K_gemm, &args, &costs, &r.key);
    r.seconds = probe_mean(times, count);
    probe_keep(p, &r);
    return HD_OK;
}

static bool is_fused(const struct bench *b, const struct probed_product *of, enum hd_dtype dtype)
{
    struct hd_gemm_args args = {.M = 512,
                                .N = 512,
                                .K = 512,
                                .trans_a = of->trans_a,
                                .trans_b = of->trans_b,
                                .epilogue = of->epilogue,
                                .ab_dtype = dtype,
                                .c_dtype = of->trans_a ? HD_F32 : dtype,
                                .dbias = of->dbias ? b->dbias : NULL};

    return (of->epilogue == HD_EPILOGUE_NONE && !of->dbias) ||
           hd_gemm_takes_epilogue(&args, &b->traits);
}

static enum hd_status time_grid(struct probe *p, struct bench *b, const struct probed_product *of,
                                enum hd_dtype dtype)
{
    const int count = p->quick ? QUICK_SIDES : SIDES;
    enum hd_status st = HD_OK;
    bool goes_on = true;

    for (int m = 0; !st && m < count; m++)
        for (int n = 0; !st && n < count; n++) {
            st = probe_agree(p, &goes_on);
            if (st || !goes_on)
                return st;
            for (int k = 0; !st && k < count; k++)
                st = time_product(p, b, of, sides[m], sides[n], sides[k], dtype);
        }
    return st;
}

static float *numbers(int64_t count)
{
    float *x = aligned_alloc(4096, (size_t)count * sizeof *x);

    for (int64_t i = 0; x && i < count; i++)
        x[i] = 0.001f * (float)(i % 997 - 498);
    return x;
}

static enum hd_status open_bench(struct probe *p, struct bench *b)
{
    const struct hd_backend_options options = {.threads = (int)p->threads};
    const int64_t most = (int64_t)SIDE_MAX * SIDE_MAX;
    enum hd_status st;

    *b = (struct bench){.a = (char *)numbers(most),
                        .c = (char *)numbers(most),
                        .pre = (char *)numbers(most),
                        .pool = (char *)numbers(POOL_BYTES / (int64_t)sizeof(float)),
                        .dbias = numbers(4096)};
    if (!b->a || !b->c || !b->pre || !b->pool || !b->dbias)
        return hd_err(HD_NO_MEMORY, "no memory for products");
    p->table->describe(&options, &b->traits);
    st = p->table->open(&options, &b->backend);
    return st ? st : p->table->stream_open(b->backend, HD_STREAM_FOR_COMPUTE, &b->stream);
}

static void close_bench(struct probe *p, struct bench *b)
{
    if (b->stream)
        p->table->stream_close(b->stream);
    if (b->backend)
        p->table->close(b->backend);
    free(b->a);
    free(b->c);
    free(b->pre);
    free(b->pool);
    free(b->dbias);
    free(b->scratch);
}

enum hd_status probe_products(struct probe *p, bool half)
{
    const enum hd_dtype dtype = half ? HD_BF16 : HD_F32;
    struct bench b;
    enum hd_status st = open_bench(p, &b);

    for (int i = 0; !st && i < PRODUCTS; i++)
        if (is_fused(&b, &products[i], dtype))
            st = time_grid(p, &b, &products[i], dtype);
    close_bench(p, &b);
    return st;
}
