/* latent: the rows of multi-head latent attention, joined from queries, latents' products and the
 * keys that all heads share, and their gradients. */
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

/* Sizes of a case; D = nope + rope. */
struct sizes {
    int64_t R, H, nope, rope, value, padded;
};

/* Returns where channel c of a row of joined q, k and v comes from: the index in q, or 1 + that in
 * kv, as a negative number, or the channel of the shared key plus `shared`; `none`: padding. */
enum { NONE = 1 << 28, SHARED = 1 << 27 };

static int64_t origin(const struct sizes *s, int64_t c)
{
    const int64_t D = s->nope + s->rope, W = s->nope + s->value;
    int64_t h, d;

    if (c < s->H * D)
        return c;
    c -= s->H * D;
    if (c < s->H * D) {
        h = c / D;
        d = c % D;
        return d < s->nope ? -1 - (h * W + d) : SHARED + d - s->nope;
    }
    c -= s->H * D;
    h = c / s->padded;
    d = c % s->padded;
    return d < s->value ? -1 - (h * W + s->nope + d) : NONE;
}

static void check_forward(struct device *device, const struct sizes *s, enum hd_dtype dtype)
{
    const int64_t D = s->nope + s->rope, Q = s->H * D, KV = s->H * (s->nope + s->value);
    const int64_t N = 2 * Q + s->H * s->padded;
    const struct tensor *q = tensor_random(s->R * Q, dtype, 1, 1);
    const struct tensor *kv = tensor_random(s->R * KV, dtype, 1, 2);
    const struct tensor *k_rope = tensor_random(s->R * s->rope, dtype, 1, 3);
    struct tensor *out = tensor_new(s->R * N, dtype);
    struct hd_latent_join_forward_args a = {.out = out->data,
                                            .q = q->data,
                                            .kv = kv->data,
                                            .k_rope = k_rope->data,
                                            .R = s->R,
                                            .H = s->H,
                                            .nope = s->nope,
                                            .rope = s->rope,
                                            .value = s->value,
                                            .padded = s->padded,
                                            .dtype = dtype};

    device_launch(device, HD_K_latent_join_forward, &a);
    for (int64_t r = 0; r < s->R; r++)
        for (int64_t c = 0; c < N; c++) {
            const int64_t from = origin(s, c);
            const double want = from == NONE     ? 0
                                : from >= SHARED ? k_rope->values[r * s->rope + from - SHARED]
                                : from >= 0      ? q->values[r * Q + from]
                                                 : kv->values[r * KV - 1 - from];

            assert_true(tensor_get(out, r * N + c) == want);
        }
}

/* Every gradient but the shared key's is a copy; that one is the sum over its origins. */
static void check_backward(struct device *device, const struct sizes *s, enum hd_dtype dtype,
                           bool without_q)
{
    const int64_t D = s->nope + s->rope, Q = s->H * D, KV = s->H * (s->nope + s->value);
    const int64_t N = 2 * Q + s->H * s->padded;
    const struct tensor *dout = tensor_random(s->R * N, dtype, 1, 4);
    struct tensor *dq = tensor_new(s->R * Q, dtype), *dkv = tensor_new(s->R * KV, dtype);
    struct tensor *dk_rope = tensor_new(s->R * s->rope, dtype);
    double *sum = doubles(s->R * s->rope);
    struct hd_latent_join_backward_args a = {.dq = without_q ? NULL : dq->data,
                                             .dkv = dkv->data,
                                             .dk_rope = dk_rope->data,
                                             .dout = dout->data,
                                             .R = s->R,
                                             .H = s->H,
                                             .nope = s->nope,
                                             .rope = s->rope,
                                             .value = s->value,
                                             .padded = s->padded,
                                             .dtype = dtype};

    memset(sum, 0, (size_t)(s->R * s->rope) * sizeof *sum);
    device_launch(device, HD_K_latent_join_backward, &a);
    for (int64_t r = 0; r < s->R; r++)
        for (int64_t c = 0; c < N; c++) {
            const int64_t from = origin(s, c);
            const double value = dout->values[r * N + c];

            if (from >= SHARED && from < NONE)
                sum[r * s->rope + from - SHARED] += value;
            else if (from < 0)
                assert_true(tensor_get(dkv, r * KV - 1 - from) == value);
            else if (from < NONE && !without_q)
                assert_true(tensor_get(dq, r * Q + from) == value);
        }
    assert_close("dk_rope", dk_rope, sum, 8);
}

/* Widths that are whole vectors, with padded and with wide values, and widths that are none. */
static void rows_are_joined_and_their_gradients_split(void **state)
{
    static const struct sizes cases[] = {
        {17, 3, 24, 8, 16, 32}, {5, 2, 16, 16, 32, 32}, {9, 5, 7, 6, 5, 11}, {0, 2, 8, 8, 8, 16}};

    (void)state;
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int type = 0; type < float_type_count; type++)
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                check_forward(&device, &cases[i], float_types[type]);
                check_backward(&device, &cases[i], float_types[type], i % 2 == 1);
                tensors_free();
            }
        device_close(&device);
    }
}

RUN_CASES()
