/* probe_products: measures matrix products of a grid of sizes, in each layout of the factors that
 * linear layers have: forward C = X W^T, backward dX = dY W and dW = dY^T X; and the epilogues that
 * the device computes in the same pass (hd_gemm_takes_epilogue).
 *
 * Weights are in memory that was not used for a while, as in training; the other factor and the
 * result are in the caches.
 */
#include "worker/probe.h"

enum {
    RUNS_MAX = 24,
    RUNS_NS = 10 * 1000 * 1000,
    /* ns that the runs of one product may take; three runs are made in any case */
    RUNS_LONG_NS = 100 * 1000 * 1000
};

/* Grid of sizes of matrix products for one kind of device. The weights lie in a pool, which is
 * larger than the caches of a GPU or of a CPU device's share. */
static const struct size_grid {
    int64_t sides[4];
    int64_t pool_bytes;
    /* smallest memory of a device, in bytes, for these sizes; a device with less takes the next
     * grid */
    int64_t device_bytes;
} grids[] = {
    {{256, 1024, 4096, 16384}, (int64_t)4 << 30, (int64_t)30 << 30}, /* GPUs */
    {{256, 1024, 2048, 4096}, (int64_t)1 << 30, 0},
    {{32, 128, 512, 2048}, (int64_t)64 << 20, 0}, /* CPUs */
    {{16, 48}, (int64_t)1 << 20, 0},              /* emulated GPUs, with `quick` */
};
enum { SIDES = 4, QUICK_SIDES = 2, GRIDS = sizeof grids / sizeof grids[0] };
enum { QUICK_POOL_BYTES = 1 << 20 }; /* the pool of `quick`, whose times say nothing */

static const struct size_grid *grid_of(const struct probe *p)
{
    const struct size_grid *g = grids;

    if (!p->is_gpu || p->quick)
        return &grids[p->is_gpu ? GRIDS - 1 : GRIDS - 2];
    while (p->memory_bytes < g->device_bytes)
        g++;
    return g;
}

static const struct probed_product {
    bool trans_a, trans_b;
    enum hd_gemm_epilogue epilogue;
} products[] = {
    {false, true, HD_EPILOGUE_NONE},           {false, false, HD_EPILOGUE_NONE},
    {true, false, HD_EPILOGUE_NONE},           {false, true, HD_EPILOGUE_GELU},
    {false, false, HD_EPILOGUE_GELU_BACKWARD},
};
enum { PRODUCTS = sizeof products / sizeof products[0] };

struct bench {
    const struct size_grid *grid;
    struct hd_traits traits;
    void *a, *c, *pre, *pool, *scratch;
    int64_t pool_bytes, pool_used, scratch_bytes;
};

static void *from_pool(struct bench *b, int64_t bytes)
{
    char *at;

    bytes = hd_tensor_align(bytes);
    if (b->pool_used + bytes > b->pool_bytes)
        b->pool_used = 0;
    at = (char *)b->pool + b->pool_used;
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
    /* the gradient of a weight, stored in the pool like a weight */
    a->c = of->trans_a ? from_pool(b, M * N * 4) : b->c;
    a->b = of->trans_a ? b->c : from_pool(b, K * N * size);
    a->pre = of->epilogue == HD_EPILOGUE_GELU ? b->pre : NULL;
    a->gelu_inp = of->epilogue == HD_EPILOGUE_GELU_BACKWARD ? b->pre : NULL;
    a->scratch = b->scratch;
}

static enum hd_status get_scratch(struct probe *p, struct bench *b, const struct hd_gemm_args *a)
{
    const int64_t bytes = hd_kernel_scratch_bytes(HD_K_gemm, a, &b->traits);
    enum hd_status st;

    if (bytes <= b->scratch_bytes)
        return HD_OK;
    probe_release(p, b->scratch);
    b->scratch = NULL;
    b->scratch_bytes = 0;
    st = probe_reserve(p, bytes, &b->scratch);
    if (!st)
        b->scratch_bytes = bytes;
    return st;
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
    st = get_scratch(p, b, &args);
    args.scratch = b->scratch;
    if (!st)
        st = p->table->prepare(p->backend, HD_K_gemm, &args);
    for (int i = 0; !st && count < RUNS_MAX &&
                    (count < 1 || (count < 3 && spent_ns < RUNS_LONG_NS) || spent_ns < RUNS_NS);
         i++) {
        double seconds = 0;

        fill(b, of, M, N, K, dtype, &args);
        st = probe_begin(p);
        if (!st)
            st = hd_launch(p->stream, HD_K_gemm, &args);
        if (!st)
            st = probe_end(p, &seconds);
        spent_ns += (int64_t)(1e9 * seconds);
        if (i > 0) /* the first run is not counted: it warms up */
            times[count++] = seconds;
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
                                .c_dtype = of->trans_a ? HD_F32 : dtype};

    return of->epilogue == HD_EPILOGUE_NONE || hd_gemm_takes_epilogue(&args, &b->traits);
}

static enum hd_status time_grid(struct probe *p, struct bench *b, const struct probed_product *of,
                                enum hd_dtype dtype)
{
    const int count = p->quick ? QUICK_SIDES : SIDES;
    const int64_t *sides = b->grid->sides;
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

static enum hd_status get_numbers(struct probe *p, int64_t bytes, void **ret_numbers)
{
    const enum hd_status st = probe_reserve(p, bytes, ret_numbers);

    return st ? st : probe_fill(p, *ret_numbers, bytes);
}

static enum hd_status open_bench(struct probe *p, struct bench *b)
{
    const struct hd_backend_options options = probe_options(p);
    const struct size_grid *grid = grid_of(p);
    const int64_t side = grid->sides[p->quick ? QUICK_SIDES - 1 : SIDES - 1];
    const int64_t most_bytes = side * side * (int64_t)sizeof(float);
    enum hd_status st = probe_open(p);

    *b = (struct bench){.grid = grid};
    if (!st)
        p->table->describe(&options, &b->traits);
    if (!st)
        st = get_numbers(p, most_bytes, &b->a);
    if (!st)
        st = get_numbers(p, most_bytes, &b->c);
    if (!st)
        st = get_numbers(p, most_bytes, &b->pre);
    b->pool_bytes = p->quick ? QUICK_POOL_BYTES : grid->pool_bytes;
    return st ? st : get_numbers(p, b->pool_bytes, &b->pool);
}

static void close_bench(struct probe *p, struct bench *b)
{
    void *const all[] = {b->a, b->c, b->pre, b->pool, b->scratch};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        probe_release(p, all[i]);
    probe_close(p);
}

enum hd_status probe_products(struct probe *p, bool half)
{
    const enum hd_dtype dtype = half ? HD_BF16 : HD_F32;
    const int64_t side = p->quick ? 32 : 4096;
    struct bench b;
    enum hd_status st = open_bench(p, &b);

    /* on a GPU bf16 products are measured first, because the time may be over before the fp32
     * products */
    if (!st && p->is_gpu && half)
        st = time_product(p, &b, &products[0], side, side, side, HD_F32);
    for (int i = 0; !st && i < PRODUCTS; i++)
        if (is_fused(&b, &products[i], dtype))
            st = time_grid(p, &b, &products[i], dtype);
    close_bench(p, &b);
    return st;
}
