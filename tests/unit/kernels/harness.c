#include "tests/unit/kernels/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/random.h"
#include "tests/sanitized.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FORBID(memory, bytes) __asan_poison_memory_region(memory, bytes)
#define PERMIT(memory, bytes) __asan_unpoison_memory_region(memory, bytes)
#else
#define FORBID(memory, bytes) ((void)(memory), (void)(bytes))
#define PERMIT(memory, bytes) ((void)(memory), (void)(bytes))
#endif

enum {
    GUARD_BYTES = 64,
    TENSORS_MAX = 4096,
    GUARD = 0xff, /* a NaN, should it be read */
    POISON_MAX = 1024 * 1024
};

static struct tensor *live[TENSORS_MAX];
static double *live_doubles[TENSORS_MAX];
static int live_count, live_doubles_count;

bool setting_is_in_turn(int setting, int number)
{
    if (HD_TEST_SANITIZED && settings[1].order == 0) /* slow, and here only addresses matter */
        return setting == (number + number / 7) % attention_setting_count;
    return settings[1].order == 0 || setting == number % setting_count;
}

bool setting_takes(int s, enum hd_dtype factors)
{
    const enum hd_gemm_by by = settings[s].gemm_by;

    return s < setting_count || factors == HD_BF16 ||
           (by != HD_GEMM_BY_WIDENED && by != HD_GEMM_BY_TILE_MODEL);
}

struct device device_open(const struct setting *setting)
{
    const struct hd_backend_options options = {.threads = setting->threads,
                                               .force_plain = setting->force_plain,
                                               .gemm_by = setting->gemm_by,
                                               .deterministic = setting->deterministic};
    const struct hd_backend_table *table = on_backend();
    struct device device = {0};

    assert_int_equal(hd_backend_check(table), HD_OK);
    on_device(setting);
    table->describe(&options, &device.traits);
    if (table->open(&options, &device.backend))
        fail_msg("%s", hd_err_message());
    assert_int_equal(table->stream_open(device.backend, HD_STREAM_FOR_COMPUTE, &device.stream),
                     HD_OK);
    on_open(device.backend, setting);
    return device;
}

void device_close(struct device *device)
{
    on_backend()->stream_close(device->stream);
    on_backend()->close(device->backend);
}

/* `bytes` between two guards, with no better alignment than `align`. Of a library's tens of
 * megabytes the ends are poisoned. */
static char *guarded(size_t bytes, size_t align, char **ret_memory)
{
    const size_t first = bytes < POISON_MAX ? bytes : POISON_MAX;
    const size_t last = bytes - first < POISON_MAX ? bytes - first : POISON_MAX;
    const size_t whole = bytes + 4 * align + 2 * (size_t)GUARD_BYTES;
    char *memory = on_memory((whole + 63) / 64 * 64), *data;

    assert_non_null(memory);
    data = memory + 2 * align - (uintptr_t)memory % (2 * align) + align;
    memset(data - GUARD_BYTES, GUARD, GUARD_BYTES);
    memset(data, 0xff, first); /* NaN in every float encoding */
    memset(data + (bytes - last), 0xff, last);
    memset(data + bytes, GUARD, GUARD_BYTES);
    FORBID(data - GUARD_BYTES,
           GUARD_BYTES); /* a guard shows stores; AddressSanitizer sees loads, too */
    FORBID(data + bytes, GUARD_BYTES);
    *ret_memory = memory;
    return data;
}

static void check_guard(const char *data, size_t bytes)
{
    PERMIT(data - GUARD_BYTES, GUARD_BYTES);
    PERMIT(data + bytes, GUARD_BYTES);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal((unsigned char)data[i - GUARD_BYTES], GUARD);
        assert_int_equal((unsigned char)data[bytes + i], GUARD);
    }
}

/* An operand that a test keeps on the host for the launch's time. */
struct loan {
    struct hd_step_state *host, *device;
    char *memory;
    bool written;
};

/* Returns the bytes of the tensor from `data` on; -1: it is in no tensor. */
static int64_t bytes_from(const void *data)
{
    for (int i = live_count - 1; i >= 0; i--) {
        const char *begin = live[i]->data;
        const char *end = begin + (size_t)live[i]->count * hd_dtype_size(live[i]->dtype);

        if ((const char *)data >= begin && (const char *)data <= end)
            return end - (const char *)data;
    }
    return -1;
}

/* Fails if the kernel's row in kernels.def asks for more than the contract gives: the tensors of the
 * tests have no more. */
static void check_sizes(enum hd_kernel kernel, const struct hd_kernel_info *info, const void *args)
{
    struct hd_operand_bytes bytes[HD_KERNEL_OPERANDS_MAX];

    hd_kernel_operand_bytes(kernel, args, bytes);
    for (int i = 0; i < info->operand_count; i++) {
        const void *data;
        int64_t given;

        memcpy(&data, (const char *)args + info->operands[i].offset, sizeof data);
        given = data ? bytes_from(data) : -1;
        if (given >= 0 && bytes[i].size_bytes > given)
            fail_msg("%s: %s has %lld bytes, its row asks for %lld", info->name,
                     info->operands[i].name, (long long)given, (long long)bytes[i].size_bytes);
    }
}

/* Only device memory goes to a device: blocks are lent, all else must be in tensors. */
static struct loan lend(const struct hd_kernel_info *info, void *args)
{
    struct loan loan = {0};

    for (int i = 0; i < info->operand_count; i++) {
        const struct hd_kernel_operand *operand = &info->operands[i];
        void *data;

        memcpy(&data, (char *)args + operand->offset, sizeof data);
        if (!data || operand->access == HD_SCRATCH || bytes_from(data) >= 0)
            continue;
        if (strcmp(operand->name, "block") != 0)
            fail_msg("%s: %s is in no tensor, where a device would not find it", info->name,
                     operand->name);
        loan.host = data;
        loan.device =
            (struct hd_step_state *)guarded(sizeof *loan.device, HD_TENSOR_ALIGN, &loan.memory);
        *loan.device = *loan.host;
        loan.written = operand->access != HD_READ;
        memcpy((char *)args + operand->offset, &loan.device, sizeof loan.device);
    }
    return loan;
}

static void give_back(const struct hd_kernel_info *info, void *args, const struct loan *loan)
{
    if (!loan->host)
        return;
    if (loan->written)
        *loan->host = *loan->device;
    for (int i = 0; i < info->operand_count; i++)
        if (!strcmp(info->operands[i].name, "block"))
            memcpy((char *)args + info->operands[i].offset, &loan->host, sizeof loan->host);
    check_guard((const char *)loan->device, sizeof *loan->device);
    on_memory_free(loan->memory);
}

enum hd_status device_try(struct device *device, enum hd_kernel kernel, void *args)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(kernel);
    const struct hd_backend_table *table = on_backend();
    const size_t bytes = (size_t)hd_kernel_scratch_bytes(kernel, args, &device->traits);
    char *memory, *scratch = guarded(bytes, HD_SCRATCH_ALIGN, &memory);
    struct loan loan = {0};
    enum hd_status st;

    for (int i = 0; i < info->operand_count; i++)
        if (info->operands[i].access == HD_SCRATCH)
            memcpy((char *)args + info->operands[i].offset, &scratch, sizeof scratch);
    if (table->device)
        loan = lend(info, args);
    st = hd_launch(device->stream, kernel, args);
    if (!st)
        st = table->synchronize(device->stream);
    if (!st)
        check_sizes(kernel, info, args);
    give_back(info, args, &loan);
    check_guard(scratch, bytes);
    on_memory_free(memory);
    return st;
}

void device_launch(struct device *device, enum hd_kernel kernel, void *args)
{
    const enum hd_status st = device_try(device, kernel, args);

    if (st)
        fail_msg("%s: %s", hd_kernel_get_info(kernel)->name, hd_err_message());
}

struct tensor *tensor_new(int64_t count, enum hd_dtype dtype)
{
    struct tensor *t = calloc(1, sizeof *t);

    assert_non_null(t);
    assert_true(live_count < TENSORS_MAX);
    t->count = count;
    t->dtype = dtype;
    t->data = guarded((size_t)count * hd_dtype_size(dtype), HD_TENSOR_ALIGN, &t->memory);
    t->values = calloc((size_t)count + 1, sizeof *t->values);
    assert_non_null(t->values);
    live[live_count++] = t;
    return t;
}

void tensors_free(void)
{
    while (live_count > 0) {
        struct tensor *t = live[--live_count];

        check_guard(t->data, (size_t)t->count * hd_dtype_size(t->dtype));
        on_memory_free(t->memory);
        free(t->values);
        free(t);
    }
    while (live_doubles_count > 0)
        free(live_doubles[--live_doubles_count]);
}

double *doubles(int64_t count)
{
    double *d = calloc((size_t)count + 1, sizeof *d);

    assert_non_null(d);
    assert_true(live_doubles_count < TENSORS_MAX);
    live_doubles[live_doubles_count++] = d;
    return d;
}

static struct {
    uint64_t key;
    int64_t count;
    double *values;
} kept[TENSORS_MAX];
static int kept_count;

double *kept_doubles(uint64_t key, int64_t count, bool *ret_is_new)
{
    for (int i = kept_count - 1; i >= 0; i--)
        if (kept[i].key == key && kept[i].count == count) {
            *ret_is_new = false;
            return kept[i].values;
        }
    assert_true(kept_count < TENSORS_MAX);
    kept[kept_count].key = key;
    kept[kept_count].count = count;
    kept[kept_count].values = calloc((size_t)count + 1, sizeof(double));
    assert_non_null(kept[kept_count].values);
    *ret_is_new = true;
    return kept[kept_count++].values;
}

void kept_free(void)
{
    while (kept_count > 0)
        free(kept[--kept_count].values);
}

struct product_in_double product_in_double(const struct tensor *a, const struct tensor *b,
                                           const struct tensor *bias, int64_t M, int64_t N,
                                           int64_t K, bool trans_a, bool trans_b)
{
    const int64_t shape[] = {M, N, K, trans_a, trans_b, bias != NULL};
    struct product_in_double exact;
    struct hd_hash hash;
    bool is_new;

    hd_hash_begin(&hash);
    hd_hash_add(&hash, shape, sizeof shape);
    hd_hash_add(&hash, a->values, (size_t)(M * K) * sizeof(double));
    hd_hash_add(&hash, b->values, (size_t)(K * N) * sizeof(double));
    if (bias)
        hd_hash_add(&hash, bias->values, (size_t)N * sizeof(double));
    exact.sum = kept_doubles(hd_hash_value(&hash), 2 * M * N, &is_new);
    exact.size = exact.sum + M * N;
    if (is_new) {
        double *abs_a = doubles(M * K), *abs_b = doubles(K * N);

        for (int64_t i = 0; i < M * K; i++)
            abs_a[i] = fabs(a->values[i]);
        for (int64_t i = 0; i < K * N; i++)
            abs_b[i] = fabs(b->values[i]);
        ref_gemm(exact.sum, a->values, b->values, bias ? bias->values : NULL, M, N, K, trans_a,
                 trans_b);
        ref_gemm(exact.size, abs_a, abs_b, NULL, M, N, K, trans_a, trans_b);
    }
    return exact;
}

double tensor_get(const struct tensor *t, int64_t i)
{
    switch (t->dtype) {
    case HD_F32:
        return (double)((const float *)t->data)[i];
    case HD_BF16:
        return (double)hd_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case HD_F16:
        return (double)hd_f16_to_f32(((const uint16_t *)t->data)[i]);
    case HD_F64:
        return ((const double *)t->data)[i];
    case HD_I32:
        return ((const int32_t *)t->data)[i];
    default:
        fail_msg("the harness has no %s", hd_dtype_name(t->dtype));
        return 0;
    }
}

void tensor_put(struct tensor *t, int64_t i, double value)
{
    if (t->dtype == HD_F32)
        ((float *)t->data)[i] = (float)value;
    else if (t->dtype == HD_BF16)
        ((uint16_t *)t->data)[i] = hd_f32_to_bf16((float)value);
    else if (t->dtype == HD_F16)
        ((uint16_t *)t->data)[i] = hd_f32_to_f16((float)value);
    else if (t->dtype == HD_F64)
        ((double *)t->data)[i] = value;
    else
        ((int32_t *)t->data)[i] = (int32_t)value;
    t->values[i] = tensor_get(t, i);
}

void tensor_poison(struct tensor *t)
{
    memset(t->data, 0xff, (size_t)t->count * hd_dtype_size(t->dtype));
}

/* The first `count` normal numbers of a key or more: drawn once, as each setting asks for the same.
 */
static const float *normals(uint64_t key, int64_t count)
{
    enum { KEYS_MAX = 16 };
    static struct {
        uint64_t key;
        int64_t count, room;
        float *values;
    } drawn[KEYS_MAX];
    static int next;
    int at = 0;

    while (at < KEYS_MAX && !(drawn[at].values && drawn[at].key == key))
        at++;
    if (at == KEYS_MAX) {
        at = next++ % KEYS_MAX;
        drawn[at].key = key;
        drawn[at].count = 0;
    }
    if (drawn[at].room < count) {
        drawn[at].values = realloc(drawn[at].values, (size_t)count * sizeof(float));
        assert_non_null(drawn[at].values);
        drawn[at].room = count;
    }
    for (; drawn[at].count < count; drawn[at].count++)
        drawn[at].values[drawn[at].count] = hd_random_normal(key, (uint64_t)drawn[at].count);
    return drawn[at].values;
}

struct tensor *tensor_random(int64_t count, enum hd_dtype dtype, double spread, uint64_t key)
{
    struct tensor *t = tensor_new(count, dtype);
    const float *values = normals(key, count);

    for (int64_t i = 0; i < count; i++)
        tensor_put(t, i, spread * values[i]);
    return t;
}

struct tensor *tensor_int32(int64_t count, int64_t first, int64_t step)
{
    struct tensor *t = tensor_new(count, HD_I32);

    for (int64_t i = 0; i < count; i++)
        tensor_put(t, i, (double)(first + i * step));
    return t;
}

void *reachable(const void *bytes, size_t size_bytes)
{
    struct tensor *t = tensor_new((int64_t)size_bytes, HD_U8);

    if (bytes)
        memcpy(t->data, bytes, size_bytes);
    else
        memset(t->data, 0, size_bytes);
    return t->data;
}

struct tensor *tensor_random_int32(int64_t count, int64_t low, int64_t high, uint64_t key)
{
    struct tensor *t = tensor_new(count, HD_I32);

    for (int64_t i = 0; i < count; i++)
        tensor_put(
            t, i,
            (double)(low + (int64_t)(hd_random_uniform(key, (uint64_t)i) * (double)(high - low))));
    return t;
}

struct tensor *tensor_copy(const struct tensor *tensor)
{
    struct tensor *t = tensor_new(tensor->count, tensor->dtype);

    memcpy(t->data, tensor->data, (size_t)t->count * hd_dtype_size(t->dtype));
    for (int64_t i = 0; i < t->count; i++)
        t->values[i] = tensor_get(t, i);
    return t;
}

void assert_close_at(const char *what, int64_t i, double got, double want, double bound)
{
    if (isinf(want) ? got == want : fabs(got - want) <= bound)
        return;
    fail_msg("%s[%lld] is %.9g, should be %.9g; the error %.3g is more than %.3g", what,
             (long long)i, got, want, fabs(got - want), bound);
}

double rounding_of(enum hd_dtype dtype, double x)
{
    const double half_least = 0x1p-25; /* of f16's smallest number */

    return dtype == HD_BF16  ? 0x1p-8 * fabs(x)
           : dtype == HD_F16 ? 0x1p-11 * fabs(x) + half_least
                             : 0;
}

double rounding_of_product(enum hd_dtype dtype, double sum, double added)
{
    const bool twice = on_backend()->device && added != 0;

    return rounding_of(dtype, sum) + (twice ? rounding_of(dtype, fabs(sum) + added) : 0);
}

double units_of_sum(enum hd_dtype factors, int64_t K)
{
    enum { PRODUCTS = 8, UNITS = 9 + 2 };
    enum { FP8_PRODUCTS = 32, FP8_UNITS = 1 << 11 };

    if (on_backend()->device && factors == HD_U8)
        return FP8_UNITS * (double)((K + FP8_PRODUCTS - 1) / FP8_PRODUCTS + 1);
    if (!on_backend()->device || hd_dtype_size(factors) != 2)
        return (double)K;
    return UNITS * (double)((K + PRODUCTS - 1) / PRODUCTS + 1);
}

void assert_close_terms(const char *what, const struct tensor *got, const double *want,
                        double fp32_units, double terms)
{
    double magnitude = terms;

    for (int64_t i = 0; i < got->count; i++)
        if (isfinite(want[i]))
            magnitude = fmax(magnitude, fabs(want[i]));
    for (int64_t i = 0; i < got->count; i++)
        assert_close_at(what, i, tensor_get(got, i), want[i],
                        rounding_of(got->dtype, want[i]) + fp32_units * 0x1p-24 * magnitude);
}

void assert_close(const char *what, const struct tensor *got, const double *want, double fp32_units)
{
    assert_close_terms(what, got, want, fp32_units, 1e-30);
}

static double rounded(double x, enum hd_dtype dtype)
{
    return dtype == HD_BF16  ? (double)hd_bf16_to_f32(hd_f32_to_bf16((float)x))
           : dtype == HD_F16 ? (double)hd_f16_to_f32(hd_f32_to_f16((float)x))
                             : x;
}

void assert_close_as_naive(const char *what, const struct tensor *got, const double *want,
                           const double *naive)
{
    double worst[2] = {0}, squares[2] = {0};

    for (int64_t i = 0; i < got->count; i++) {
        const double value[2] = {tensor_get(got, i), rounded(naive[i], got->dtype)};

        if (isinf(want[i]) && value[0] == want[i])
            continue;
        for (int j = 0; j < 2; j++) {
            const double error = fabs(value[j] - want[i]);

            worst[j] = fmax(worst[j], error); /* a NaN is seen in the squares */
            squares[j] += error * error;
        }
    }
    if (!(worst[0] <= 2 * worst[1]) || !(squares[0] <= 4 * squares[1]))
        fail_msg("%s: errors of %.3g (root of the mean square) and %.3g (largest) are more than "
                 "twice the naive %.3g and %.3g",
                 what, sqrt(squares[0] / (double)got->count), worst[0],
                 sqrt(squares[1] / (double)got->count), worst[1]);
}

double dropout_factor(const struct dropping *d, int64_t sample, int64_t index, int64_t head,
                      int64_t number)
{
    uint32_t words[4];

    hd_random_philox(hd_random_key(d->key, (uint64_t)d->step),
                     (uint64_t)index << 32 | (uint64_t)number / 4,
                     (uint64_t)sample << 32 | (uint64_t)head, words);
    return (double)words[number % 4] < floor(d->p * 0x1p32) ? 0 : 1 / (1 - d->p);
}

double *dropout_factors(const struct dropping *d, const struct ref_attention *a,
                        const int32_t *sample, int64_t first_head)
{
    double *factor = doubles(a->B * a->H * a->q_len * a->kv_len);

    for (int64_t n = 0; n < a->B * a->H * a->q_len * a->kv_len; n++) {
        const int64_t j = n % a->kv_len, i = n / a->kv_len % a->q_len;
        const int64_t h = n / a->kv_len / a->q_len % a->H, b = n / a->kv_len / a->q_len / a->H;
        const int64_t query = b * a->q_len + i;

        factor[n] = dropout_factor(d, sample[query], a->q_index[query], first_head + h,
                                   a->kv_index[b * a->kv_stride + j]);
    }
    return factor;
}

int64_t sums_count(const struct device *device, int64_t R, int64_t N)
{
    return hd_row_sums_count(&device->traits, R) * N;
}

void assert_row_sums(struct device *device, const struct tensor *rows, const struct tensor *sums,
                     int64_t R, int64_t N)
{
    struct tensor *dbias = tensor_new(N, HD_F32), *added = tensor_random(N, HD_F32, 1, 71);
    double *want = doubles(N), size = 0;
    struct hd_bias_backward_args a = {.dbias = dbias->data,
                                      .sums = sums->data,
                                      .R = R,
                                      .N = N,
                                      .P = sums->count / N,
                                      .dtype = rows->dtype};

    for (int64_t i = 0; i < R * N; i++) {
        want[i % N] += tensor_get(rows, i);
        size = fmax(size, fabs(tensor_get(rows, i)));
    }
    device_launch(device, HD_K_bias_backward, &a);
    assert_close_terms("sums", dbias, want, FP32_UNITS, size);
    a.dbias = added->data;
    a.accumulate = true;
    device_launch(device, HD_K_bias_backward, &a);
    for (int64_t n = 0; n < N; n++)
        want[n] += added->values[n];
    assert_close_terms("sums, added", added, want, FP32_UNITS, fmax(size, 1));
}

void assert_same_bits(const char *what, const struct tensor *a, const struct tensor *b)
{
    int64_t first = -1, differing = 0;
    const size_t size = hd_dtype_size(a->dtype);

    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++) {
        if (memcmp((char *)a->data + (size_t)i * size, (char *)b->data + (size_t)i * size, size)) {
            first = differing ? first : i;
            differing++;
        }
    }
    if (differing)
        fail_msg("%s: %lld of %lld elements differ, the first is [%lld]: %.9g and %.9g", what,
                 (long long)differing, (long long)a->count, (long long)first, tensor_get(a, first),
                 tensor_get(b, first));
}

struct hd_step_state adam_block(void)
{
    return (struct hd_step_state){.step = 5,
                                  .update = 3,
                                  .lr = 0.01f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .adam_eps = 1e-6f,
                                  .weight_decay = 0.1f,
                                  .grad_factor = 0.25f};
}

struct tensor *tensor_rows(const double *dense, int64_t rows, int64_t columns, int64_t ld,
                           enum hd_dtype dtype)
{
    struct tensor *t = tensor_new(rows * ld, dtype);

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            tensor_put(t, i * ld + j, dense[i * columns + j]);
    return t;
}

enum hd_status tensor_read(void *context, int64_t first, int64_t count, float *ret_values)
{
    const struct tensor *t = context;

    for (int64_t i = 0; i < count; i++)
        ret_values[i] = (float)t->values[first + i];
    return HD_OK;
}
