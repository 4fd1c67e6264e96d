/* A gated activation inside the product in front of it (HEDDLE_CUDA_GLU=wgmma) against the two launches: the
 * library's product, and the activation that element_test compares with double. Factors are multiples of 1/4 up to
 * 1/2, so sums of K < 2^16 products are exact in fp32 in every order: the bits are equal. A device of another
 * capability skips. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tests/unit/kernels/harness.h"

struct gated {
    int64_t M, F, K;
    enum hd_activation act;
    bool keep; /* forward: gate and up are stored */
    uint64_t order;
};

/* Tiles have 128 rows, and forward 128, backward 256 columns of the result; 4 stages of 64 depths; 16 tiles of rows
 * run at the same time; the emulated device has 2 multiprocessors. */
static const struct gated cases[] = {
    {136, 136, 72, HD_ACT_SILU, true, 0},     /* every block has several tiles, none is whole */
    {20, 16, 456, HD_ACT_GELU_TANH, true, 1}, /* each stage is filled twice */
    {20, 272, 64, HD_ACT_SILU, false, 3},     /* whole stages; backward has two tiles of columns */
    {2056, 136, 8, HD_ACT_GELU_TANH, false, 0}, /* more tiles of rows than run together */
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static struct device open_by(const char *glu, uint64_t order)
{
    struct device device;

    (void)setenv("HEDDLE_CUDA_GLU", glu, 1);
    device = device_open(&(struct setting){.threads = 1, .order = order});
    (void)unsetenv("HEDDLE_CUDA_GLU");
    return device;
}

static void skip_unless_hopper(void)
{
    struct hd_traits traits;

    on_backend()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    if (traits.capability != 90) {
        print_message("the device has compute capability %d.%d; this kernel needs 9.0\n",
                      traits.capability / 10, traits.capability % 10);
        skip();
    }
}

static struct tensor *quarters(int64_t count, uint64_t key)
{
    struct tensor *t = tensor_new(count, HD_BF16);

    for (int64_t i = 0; i < count; i++) {
        const uint64_t place[] = {key, (uint64_t)i};

        tensor_put(t, i, (double)((int)(hd_hash_bytes(place, sizeof place) % 5) - 2) / 4);
    }
    return t;
}

static struct hd_gemm_args forward_args(const struct gated *g, const struct tensor *a,
                                        const struct tensor *b)
{
    return (struct hd_gemm_args){.a = a->data,
                                 .b = b->data,
                                 .M = g->M,
                                 .N = 2 * g->F,
                                 .K = g->K,
                                 .lda = g->K,
                                 .ldb = g->K,
                                 .ldc = 2 * g->F,
                                 .trans_b = true,
                                 .ab_dtype = HD_BF16,
                                 .c_dtype = HD_BF16};
}

static struct hd_gemm_args backward_args(const struct gated *g, const struct tensor *a,
                                         const struct tensor *b)
{
    struct hd_gemm_args args = forward_args(g, a, b);

    args.N = args.ldb = args.ldc = g->F;
    args.trans_b = false;
    return args;
}

/* Makes of a plain product that with the activation, which the device must take. */
static void add_epilogue(const struct device *device, struct hd_gemm_args *args,
                         enum hd_gemm_epilogue epilogue, enum hd_activation act)
{
    args->epilogue = epilogue;
    args->act = act;
    args->ldc = epilogue == HD_EPILOGUE_GLU ? args->N / 2 : 2 * args->N;
    assert_true(hd_gemm_takes_epilogue(args, &device->traits));
}

static void forward_is_the_two_launches(void **state)
{
    skip_unless_hopper();
    for (int i = 0; i < CASE_COUNT; i++) {
        const struct gated *g = &cases[i];
        const struct tensor *x = quarters(g->M * g->K, 1), *w = quarters(2 * g->F * g->K, 2);
        struct tensor *s = tensor_new(g->M * 2 * g->F, HD_BF16), *pre = tensor_copy(s);
        struct tensor *h = tensor_new(g->M * g->F, HD_BF16), *want = tensor_copy(h);
        struct hd_gemm_args product = forward_args(g, x, w), fused = product;
        struct hd_glu_forward_args glu = {.out = want->data,
                                          .inp = s->data,
                                          .R = g->M,
                                          .F = g->F,
                                          .act = g->act,
                                          .dtype = HD_BF16};
        struct device device = open_by("wgmma", g->order);

        product.c = s->data;
        device_launch(&device, HD_K_gemm, &product);
        device_launch(&device, HD_K_glu_forward, &glu);
        fused.c = h->data;
        fused.pre = g->keep ? pre->data : NULL;
        add_epilogue(&device, &fused, HD_EPILOGUE_GLU, g->act);
        device_launch(&device, HD_K_gemm, &fused);
        assert_same_bits("the result", h, want);
        if (g->keep)
            assert_same_bits("gate and up", pre, s);
        device_close(&device);
        tensors_free();
    }
}

static void backward_is_the_two_launches(void **state)
{
    skip_unless_hopper();
    for (int i = 0; i < CASE_COUNT; i++) {
        const struct gated *g = &cases[i];
        const struct tensor *dy = quarters(g->M * g->K, 3), *w = quarters(g->K * g->F, 4);
        const struct tensor *inp = tensor_random(g->M * 2 * g->F, HD_BF16, 3, 5);
        struct tensor *dh = tensor_new(g->M * g->F, HD_BF16);
        struct tensor *dinp = tensor_new(g->M * 2 * g->F, HD_BF16), *want = tensor_copy(dinp);
        struct hd_gemm_args product = backward_args(g, dy, w), fused = product;
        struct hd_glu_backward_args glu = {.dinp = want->data,
                                           .dout = dh->data,
                                           .inp = inp->data,
                                           .R = g->M,
                                           .F = g->F,
                                           .act = g->act,
                                           .dtype = HD_BF16};
        struct device device = open_by("wgmma", g->order);

        product.c = dh->data;
        device_launch(&device, HD_K_gemm, &product);
        device_launch(&device, HD_K_glu_backward, &glu);
        fused.c = dinp->data;
        fused.gelu_inp = inp->data;
        add_epilogue(&device, &fused, HD_EPILOGUE_GLU_BACKWARD, g->act);
        device_launch(&device, HD_K_gemm, &fused);
        assert_same_bits("the gradient of gate and up", dinp, want);
        device_close(&device);
        tensors_free();
    }
}

/* Goal: what the kernel cannot compute stays two launches, and is refused where it is launched all the same. */
static void other_products_are_left_to_two_launches(void **state)
{
    static const struct gated g = {.M = 3, .F = 24, .K = 40, .act = HD_ACT_SILU};
    const struct tensor *x = quarters(g.M * g.K, 1), *w = quarters(2 * g.F * g.K, 2);
    struct tensor *h = tensor_new(g.M * g.F, HD_BF16);
    struct hd_gemm_args fused = forward_args(&g, x, w), other;
    struct device device, separate;

    skip_unless_hopper();
    device = open_by("wgmma", 0);
    add_epilogue(&device, &fused, HD_EPILOGUE_GLU, g.act);
#define REFUSED(change) \
    (other = fused, change, assert_false(hd_gemm_takes_epilogue(&other, &device.traits)))
    REFUSED((other.N = 40, other.ldc = 20)); /* rows of gate do not begin at 16 bytes */
    REFUSED(other.lda = 41);
    REFUSED(other.ldb = 44);
    REFUSED(other.K = 0);
    REFUSED(other.trans_b = false);
    REFUSED(other.trans_a = true);
    REFUSED(other.bias = x->data);
    REFUSED(other.add = x->data);
    REFUSED(other.accumulate = true);
    REFUSED(other.act = HD_ACT_OSS);
    REFUSED(other.act = HD_ACT_RELU2);
    REFUSED(other.ab_dtype = HD_F16);
    REFUSED(other.c_dtype = HD_F32);
    other.c = h->data;
    assert_int_equal(device_try(&device, HD_K_gemm, &other), HD_UNSUPPORTED);
    device_close(&device);

    separate = open_by("separate", 0);
    assert_null(strstr(separate.traits.isa, "_glu"));
    assert_false(hd_gemm_takes_epilogue(&fused, &separate.traits));
    device_close(&separate);
    tensors_free();
}

RUN_CASES()
