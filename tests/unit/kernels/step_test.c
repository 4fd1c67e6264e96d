/* step: the loss, the step state, the gradient norm and AdamW. */
#include <math.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

typedef void check_one(struct device *device, enum hd_dtype dtype, bool option);

static void everywhere(check_one *check)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int kind = 0; kind < 2 * float_type_count; kind++) {
            check(&device, float_types[kind / 2], kind % 2);
            tensors_free();
        }
        device_close(&device);
    }
}

/* A loss is a difference of a logarithm and a logit, both of some 10; 30 of them are added. Padding
 * columns hold NaN, which may enter nothing; targets of -1 count for nothing. */
/* Targets with the largest of the V logits of their row, which has Vp. */
static int64_t count_hits(const double *logits, const int32_t *target, int64_t R, int64_t V,
                          int64_t Vp)
{
    int64_t hits = 0;

    for (int64_t r = 0; r < R; r++) {
        bool largest = target[r] >= 0;

        for (int64_t v = 0; largest && v < V; v++)
            largest = logits[r * Vp + v] <= logits[r * Vp + target[r]];
        hits += largest;
    }
    return hits;
}

/* Returns a record without losses, of whose factor loss scales take half. */
static double *new_record(void)
{
    struct tensor *record = tensor_new(HD_FURTHER_WORDS, HD_F64);

    for (int i = 0; i < HD_FURTHER_WORDS; i++)
        tensor_put(record, i, i == HD_FURTHER_FACTOR ? 2 : 0);
    return record->data;
}

/* factor of the z-loss */
static const double Z = 0.25;

/* In place the loss is one of further tokens: its record has the sums in place of the block, and
 * its factor of 2 is on the gradients, whose loss scale is half as large. */
static void check_mapped_cross_entropy(struct device *device, struct hd_logit_map map,
                                       enum hd_dtype dtype, bool in_place)
{
    enum { R = 30, V = 307, VP = 320 };
    const int64_t displaced = in_place || map.scale == 0 ? 0 : 1; /* elements, against logits */
    struct tensor *logits = tensor_random(R * VP, dtype, 3, 1);
    struct tensor *target = tensor_random_int32(R, 0, V, 2);
    struct tensor *all = in_place ? logits : tensor_new(R * VP + displaced, dtype);
    struct tensor *dlogits = &(struct tensor){0};
    struct hd_step_state block = {.loss_sum = 5, .target_count = 7, .loss_scale = 0.5f};
    double *want = doubles(R * VP), *mapped = doubles(R * VP), loss, without, z;
    double *record = new_record();
    int64_t hits;
    struct hd_cross_entropy_args a = {.block = &block,
                                      .logits = logits->data,
                                      .target = target->data,
                                      .R = R,
                                      .V = V,
                                      .Vp = VP,
                                      .map = map,
                                      .dtype = dtype};

    *dlogits = *all;
    dlogits->data = (char *)all->data + (size_t)displaced * hd_dtype_size(dtype);
    dlogits->count = R * VP;
    tensor_put(target, 3, -1);
    tensor_put(target, 29, -100);
    tensor_put(target, 4, 0);
    tensor_put(target, 5, V - 1);
    tensor_put(logits, 6 * VP + 9, 60); /* a row that is nearly certain */
    tensor_put(target, 6, 9);
    for (int64_t i = 0; i < R * VP; i++)
        if (i % VP >= V)
            tensor_put(logits, i, NAN);
    ref_map_logits(mapped, logits->values, R * VP, map.scale, map.cap);
    loss = ref_cross_entropy(want, mapped, target->data, R, V, VP, 0.5);
    z = in_place ? 0 : ref_z_loss(want, mapped, target->data, R, V, VP, Z, 0.5);
    for (int64_t r = 0; r < R; r++) /* not the padding */
        ref_map_backward(want + r * VP, logits->values + r * VP, V, map.scale, map.cap);
    hits = count_hits(logits->values, target->data, R, V, VP);

    device_launch(device, HD_K_cross_entropy, &a); /* without gradient: validation */
    without = block.loss_sum;
    assert_close_at("loss", 0, block.loss_sum, 5 + loss, R * 20 * 8 * 0x1p-24);
    assert_int_equal(block.target_count, 7 + R - 2);
    a.dlogits = dlogits->data;
    a.record = in_place ? record : NULL;
    a.z = in_place ? 0 : (float)Z; /* a loss of further tokens has none */
    block.loss_scale = in_place ? 0.25f : 0.5f;
    device_launch(device, HD_K_cross_entropy, &a);
    assert_close_at("loss", 1, in_place ? record[HD_FURTHER_LOSS] : block.loss_sum - without,
                    without - 5,
                    displaced ? R * 20 * 8 * 0x1p-24 : 1e-9); /* displaced: in another order */
    assert_true(!in_place || block.loss_sum == without);
    assert_true(!in_place || record[HD_FURTHER_TARGETS] == R - 2);
    assert_true(!in_place || record[HD_FURTHER_HITS] == (double)hits);
    assert_true(hits > 0 && record[HD_FURTHER_FACTOR] == 2);
    assert_close("dlogits", dlogits, want, FP32_UNITS);
    assert_close_at("z", 0, block.z_sum, z, 1e-6 * z);
    assert_int_equal(block.overflow, 0);
}

/* None, a factor, and a cap within the logits. */
static const struct hd_logit_map maps[] = {{0}, {.scale = 0.25f}, {.scale = 0.5f, .cap = 4}};

static void check_cross_entropy(struct device *device, enum hd_dtype dtype, bool in_place)
{
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        check_mapped_cross_entropy(device, maps[i], dtype, in_place);
}

static void cross_entropy_is_the_reference(void **state)
{
    everywhere(check_cross_entropy);
}

/* Checks the rows of the case above their vocabulary in three shares, of which the last is short:
 * each share's gradient is its columns of the whole one, and every share adds the same loss. Where
 * no target is in a share its statistics still count. The second share's loss has a record, as
 * above. */
static void check_mapped_shares(struct device *device, struct hd_logit_map map, enum hd_dtype dtype,
                                bool in_place)
{
    enum { R = 30, V = 307, P = 3, SHARE = 120, VP = 128, WORDS = R * HD_CROSS_ENTROPY_STATS };
    struct tensor *whole = tensor_random(R * V, dtype, 3, 1);
    struct tensor *target = tensor_random_int32(R, 0, V, 2), *logits[P];
    struct tensor *stats = tensor_new(P * WORDS, HD_F32);
    double *want = doubles(R * V), *want_share = doubles(R * VP), *mapped = doubles(R * V), loss, z;
    double *with_z = doubles(R * V);
    int64_t hits;

    tensor_put(target, 3, -1);
    tensor_put(target, 4, SHARE - 1);
    tensor_put(target, 5, SHARE);
    tensor_put(whole, 6 * V + 9, 60); /* a row that is nearly certain, in one share */
    tensor_put(target, 6, 9);
    hits = count_hits(whole->values, target->data, R, V, V);
    ref_map_logits(mapped, whole->values, R * V, map.scale, map.cap);
    loss = ref_cross_entropy(want, mapped, target->data, R, V, V, 0.5);
    memcpy(with_z, want, (size_t)(R * V) * sizeof *with_z);
    z = ref_z_loss(with_z, mapped, target->data, R, V, V, Z, 0.5);
    ref_map_backward(want, whole->values, R * V, map.scale, map.cap);
    ref_map_backward(with_z, whole->values, R * V, map.scale, map.cap);
    for (int64_t p = 0; p < P; p++) {
        const int64_t first = p * SHARE, columns = V - first < SHARE ? V - first : SHARE;

        logits[p] = tensor_random(R * VP, dtype, 1, 3);
        for (int64_t i = 0; i < R * VP; i++)
            tensor_put(logits[p], i,
                       i % VP < columns ? whole->values[i / VP * V + first + i % VP] : NAN);
        device_launch(
            device, HD_K_cross_entropy_stats,
            &(struct hd_cross_entropy_stats_args){.stats = (float *)stats->data + p * WORDS,
                                                  .logits = logits[p]->data,
                                                  .target = target->data,
                                                  .R = R,
                                                  .V = columns,
                                                  .Vp = VP,
                                                  .first = first,
                                                  .map = map,
                                                  .dtype = dtype});
    }
    for (int64_t p = 0; p < P; p++) {
        const int64_t first = p * SHARE, columns = V - first < SHARE ? V - first : SHARE;
        struct hd_step_state block = {.loss_sum = 5, .target_count = 7, .loss_scale = 0.5f};
        const int64_t displaced = in_place ? 0 : p % 2; /* elements, against logits */
        struct tensor *dlogits = in_place ? logits[p] : tensor_new(R * VP + displaced, dtype);
        struct tensor used = *dlogits;
        double *record = new_record();
        struct hd_cross_entropy_shared_args a = {.block = &block,
                                                 .logits = logits[p]->data,
                                                 .stats = stats->data,
                                                 .target = target->data,
                                                 .R = R,
                                                 .V = columns,
                                                 .Vp = VP,
                                                 .P = P,
                                                 .first = first,
                                                 .map = map,
                                                 .dtype = dtype};

        device_launch(device, HD_K_cross_entropy_shared, &a); /* without gradient */
        assert_close_at("loss", p, block.loss_sum, 5 + loss, R * 20 * 8 * 0x1p-24);
        assert_int_equal(block.target_count, 7 + R - 1);
        used.data = (char *)dlogits->data + (size_t)displaced * hd_dtype_size(dtype);
        used.count = R * VP;
        a.dlogits = used.data;
        if (p == 1) {
            a.record = record;
            block.loss_scale = 0.25f;
        }
        a.z = p == 2 ? (float)Z : 0;
        device_launch(device, HD_K_cross_entropy_shared, &a);
        assert_close_at("z", p, block.z_sum, p == 2 ? z : 0, 1e-6 * z);
        assert_close_at("loss", p, p == 1 ? record[HD_FURTHER_LOSS] : loss, loss,
                        R * 20 * 8 * 0x1p-24);
        assert_int_equal(record[HD_FURTHER_TARGETS], p == 1 ? R - 1 : 0);
        assert_int_equal(record[HD_FURTHER_HITS], p == 1 ? hits : 0);
        for (int64_t i = 0; i < R * VP; i++)
            want_share[i] =
                i % VP < columns ? (p == 2 ? with_z : want)[i / VP * V + first + i % VP] : 0;
        assert_close("dlogits", &used, want_share, FP32_UNITS);
        assert_true(!displaced || isnan(tensor_get(dlogits, 0)));
        assert_int_equal(block.overflow, 0);
        ((int32_t *)target->data)[3] = V; /* nobody's */
        ((float *)stats->data)[3 * HD_CROSS_ENTROPY_STATS + 3] = 0;
        device_launch(device, HD_K_cross_entropy_shared, &a);
        assert_int_equal(block.overflow, 1);
        ((int32_t *)target->data)[3] = -1;
    }
}

static void check_shared_cross_entropy(struct device *device, enum hd_dtype dtype, bool in_place)
{
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        check_mapped_shares(device, maps[i], dtype, in_place);
}

static void a_shared_vocabulary_has_the_loss_of_the_whole(void **state)
{
    everywhere(check_shared_cross_entropy);
}

/* The logits that the host reads; at an address where a vector may begin, or one element further. */
static void check_mapped_logits(struct device *device, enum hd_dtype dtype, bool displaced)
{
    enum { N = 16 * 1024 + 3 }; /* more than a thread takes at a time */
    double *want = doubles(N + 1);

    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        struct tensor *logits = tensor_random(N + 1, dtype, 3, 1);
        struct hd_map_logits_args a = {.logits = (char *)logits->data +
                                                 (displaced ? hd_dtype_size(dtype) : 0),
                                       .N = N,
                                       .map = maps[i],
                                       .dtype = dtype};

        ref_map_logits(want, logits->values, N + 1, maps[i].scale, maps[i].cap);
        want[displaced ? 0 : N] = logits->values[displaced ? 0 : N];
        device_launch(device, HD_K_map_logits, &a);
        assert_close("logits", logits, want, FP32_UNITS);
    }
}

static void logits_are_mapped_in_place(void **state)
{
    everywhere(check_mapped_logits);
}

static void a_target_outside_the_vocabulary_stops_the_update(void **state)
{
    struct device device = device_open(&settings[0]);
    const struct tensor *logits = tensor_random(2 * 8, HD_F32, 1, 1);
    static const int32_t target[] = {3, 8};
    struct hd_step_state block = {.loss_scale = 1};
    struct hd_cross_entropy_args a = {.block = &block,
                                      .logits = logits->data,
                                      .target = reachable(target, sizeof target),
                                      .R = 2,
                                      .V = 8,
                                      .Vp = 8,
                                      .dtype = HD_F32};

    device_launch(&device, HD_K_cross_entropy, &a);
    assert_int_equal(block.overflow, 1);
    assert_int_equal(block.target_count, 1);
    tensors_free();
    device_close(&device);
}

/* Goal: nothing that a step accumulates is left from the step before, and nothing else is touched.
 * Method: every byte of the block is set before, so that a member that is added to the struct takes
 * part. Between loss_sum and mean_loss are the sums (ops.h); the only gap is behind too_many_rows.
 */
static void step_begin_zeroes_what_a_step_accumulates(void **state)
{
    const size_t sums = offsetof(struct hd_step_state, loss_sum),
                 results = offsetof(struct hd_step_state, mean_loss);
    const size_t gap = offsetof(struct hd_step_state, too_many_rows) + sizeof(int32_t),
                 behind = offsetof(struct hd_step_state, margin_sum);

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        struct hd_step_state block;
        struct hd_step_begin_args a = {.block = &block};
        const unsigned char *bytes = (const unsigned char *)&block;

        memset(&block, 0x5A, sizeof block);
        device_launch(&device, HD_K_step_begin, &a);
        for (size_t i = 0; i < sizeof block; i++)
            if (i < gap || i >= behind)
                assert_int_equal(bytes[i], i >= sums && i < results ? 0 : 0x5A);
        device_close(&device);
    }
}

/* Goal: chunk sums are exact to double, do not depend on the place of a chunk in its shard, and see
 * what is not finite. Method: two and a half chunks; the second half again as a tensor of its own.
 */
static void square_sums_are_cut_at_fixed_chunks(void **state)
{
    enum { N = HD_GRAD_CHUNK * 5 / 2 };

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        struct tensor *grad = tensor_random(N, HD_F32, 1e-3, 1);
        struct tensor *sums = tensor_new(3, HD_F64), *tail = tensor_new(2, HD_F64);
        struct hd_step_state block = {0};
        struct hd_square_sums_args a = {
            .sums = sums->data, .block = &block, .grad = grad->data, .N = N};

        device_launch(&device, HD_K_square_sums, &a);
        for (int chunk = 0; chunk < 3; chunk++) {
            double want = 0;

            for (int64_t i = chunk * HD_GRAD_CHUNK; i < (chunk + 1) * HD_GRAD_CHUNK && i < N; i++)
                want += grad->values[i] * grad->values[i];
            assert_close_at("sum", chunk, tensor_get(sums, chunk), want, want * 1e-12);
        }
        a.sums = tail->data;
        a.grad = (const float *)grad->data + HD_GRAD_CHUNK;
        a.N = N - HD_GRAD_CHUNK;
        device_launch(&device, HD_K_square_sums, &a);
        assert_memory_equal(tail->data, (double *)sums->data + 1, 2 * sizeof(double));
        assert_int_equal(block.overflow, 0);

        tensor_put(grad, N - 1, INFINITY);
        device_launch(&device, HD_K_square_sums, &a);
        assert_int_equal(block.overflow, 1);
        block.overflow = 0;
        tensor_put(grad, N - 1, NAN);
        device_launch(&device, HD_K_square_sums, &a);
        assert_int_equal(block.overflow, 1);
        tensors_free();
        device_close(&device);
    }
}

/* Two ranks with 6 and 10 targets; squares 100 + 44 = 144, so the norm of the sum is 12 and that of
 * the mean 12 / 16 / scale. */
static void step_finish_means_and_clips(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_step_state block = {.loss_scale = 2, .max_grad_norm = 0.25f};
    struct hd_step_state first = {.loss_sum = 12,
                                  .target_count = 6,
                                  .z_sum = 40,
                                  .policy = {[HD_POLICY_KL_SUM] = 3, [HD_POLICY_RATIO_MAX] = 5}};
    struct hd_step_state second = {.loss_sum = 36,
                                   .target_count = 10,
                                   .z_sum = 8,
                                   .policy = {[HD_POLICY_KL_SUM] = 4, [HD_POLICY_RATIO_MAX] = 2}};
    static const double sums[] = {100, 44};
    const size_t records_bytes = 2 * HD_EXCHANGE_WORDS * sizeof(double);
    double *records = reachable(NULL, records_bytes);
    struct hd_step_record_args r = {.record = records,
                                    .block = &first,
                                    .sums = reachable(sums, sizeof sums),
                                    .chunks = 2,
                                    .counts_loss = true};
    struct hd_step_finish_args f = {.block = &block, .records = records, .ranks = 2};

    device_launch(&device, HD_K_step_record, &r);
    r.record = records + HD_EXCHANGE_WORDS;
    r.block = &second;
    r.chunks = 0; /* the other has the same gradient and counts it */
    device_launch(&device, HD_K_step_record, &r);
    device_launch(&device, HD_K_step_finish, &f);
    assert_true(block.mean_loss == 48.0 / 16 && block.mean_z == 48.0 / 16);
    assert_true(block.total_targets == 16);
    assert_true(block.policy_total[HD_POLICY_KL_SUM] == 7);
    assert_true(block.policy_total[HD_POLICY_RATIO_MAX] == 5);
    assert_true(block.grad_norm == 12.0 / 16 / 2);
    /* clipped to 0.25: the factor of the sum is 0.25 / 12 */
    assert_close_at("factor", 0, (double)block.grad_factor, 0.25 / 12, 1e-8);
    assert_int_equal(block.skip_update, 0);

    block.max_grad_norm = 0.5f; /* above the norm of 0.375 */
    device_launch(&device, HD_K_step_finish, &f);
    assert_true(block.grad_factor == 1.0f / 32);
    block.max_grad_norm = 0; /* no clipping */
    device_launch(&device, HD_K_step_finish, &f);
    assert_true(block.grad_factor == 1.0f / 32);

    r.counts_loss = false; /* another rank has the same loss */
    device_launch(&device, HD_K_step_record, &r);
    device_launch(&device, HD_K_step_finish, &f);
    assert_true(block.mean_loss == 12.0 / 6);
    assert_true(block.total_targets == 6);

    records[HD_EXCHANGE_SQUARES] = INFINITY;
    device_launch(&device, HD_K_step_finish, &f);
    assert_int_equal(block.skip_update, 1);
    records[HD_EXCHANGE_SQUARES] = 144;
    second.overflow = 1;
    device_launch(&device, HD_K_step_record, &r);
    device_launch(&device, HD_K_step_finish, &f);
    assert_int_equal(block.skip_update, 1);
    memset(records, 0, records_bytes); /* no targets */
    device_launch(&device, HD_K_step_finish, &f);
    assert_int_equal(block.skip_update, 1);
    assert_true(block.mean_loss == 0);
    tensors_free();
    device_close(&device);
}

/* Three ranges over several pieces, with and without a copy in each encoding. */
static void check_adamw(struct device *device, enum hd_dtype copy_dtype, bool with_copy)
{
    enum { N = 40003 };
    static const struct hd_update_range ranges[] = {
        {.begin = 0, .end = 1000, .decay = 1, .lr_scale = 1},
        {.begin = 1000, .end = 20005, .decay = 0, .lr_scale = 1},
        {.begin = 20005, .end = N, .decay = 1, .lr_scale = 0.5f}};
    const struct tensor *grad = tensor_random(N, HD_F32, 1, 1);
    struct tensor *weight = tensor_random(N, HD_F32, 1, 2), *m = tensor_random(N, HD_F32, 0.1, 3);
    struct tensor *v = tensor_random(N, HD_F32, 0.1, 4), *copy = tensor_new(N, copy_dtype);
    struct hd_step_state block = adam_block();
    double *scaled = doubles(N);
    struct hd_adamw_args a = {.weight = weight->data,
                              .m = m->data,
                              .v = v->data,
                              .copy = with_copy ? copy->data : NULL,
                              .grad = grad->data,
                              .block = &block,
                              .ranges = reachable(ranges, sizeof ranges),
                              .N = N,
                              .range_count = 3,
                              .copy_dtype = copy_dtype};

    for (int64_t i = 0; i < N; i++) {
        tensor_put(v, i, v->values[i] * v->values[i]);
        scaled[i] = grad->values[i] * 0.25;
    }
    for (int k = 0; k < 3; k++) {
        const struct ref_adamw ref = {.lr = (double)block.lr * (double)ranges[k].lr_scale,
                                      .beta1 = (double)block.beta1,
                                      .beta2 = (double)block.beta2,
                                      .eps = (double)block.adam_eps,
                                      .weight_decay =
                                          (double)block.weight_decay * (double)ranges[k].decay,
                                      .step = 3};
        const int64_t at = ranges[k].begin;

        ref_adamw(&ref, weight->values + at, m->values + at, v->values + at, scaled + at,
                  ranges[k].end - at);
    }
    device_launch(device, HD_K_adamw, &a);
    assert_close("weight", weight, weight->values, 2);
    assert_close("m", m, m->values, 2);
    assert_close("v", v, v->values, 2);
    for (int64_t i = 0; with_copy && i < N; i++)
        scaled[i] = tensor_get(weight, i);
    if (with_copy)
        assert_close("copy", copy, scaled, 0);

    block.skip_update = 1;
    memcpy(scaled, weight->data, (size_t)N * sizeof(float));
    device_launch(device, HD_K_adamw, &a);
    assert_memory_equal(scaled, weight->data, (size_t)N * sizeof(float));
}

static void adamw_is_the_reference(void **state)
{
    everywhere(check_adamw);
}

/* Goal: ZeRO may cut a part anywhere without changing a bit. Method: the whole, and the same in two
 * shards cut where no vector ends. */
static void adamw_does_not_depend_on_the_cut(void **state)
{
    enum { N = 1000, CUT = 389 };

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        const struct tensor *grad = tensor_random(N, HD_F32, 1, 1);
        struct hd_step_state block = adam_block();
        struct tensor *t[2][3]; /* whole or cut; weight, m, v */

        for (int cut = 0; cut < 2; cut++) {
            for (int i = 0; i < 3; i++)
                t[cut][i] = tensor_random(N, HD_F32, 1, (uint64_t)i + 2);
            for (int64_t i = 0; i < N; i++)
                tensor_put(t[cut][2], i, fabs(t[cut][2]->values[i]));
            for (int part = 0; part < (cut ? 2 : 1); part++) {
                const int64_t begin = part ? CUT : 0, end = cut && !part ? CUT : N;
                const struct hd_update_range range = {
                    .end = end - begin, .decay = 1, .lr_scale = 1};
                struct hd_adamw_args a = {.weight = (float *)t[cut][0]->data + begin,
                                          .m = (float *)t[cut][1]->data + begin,
                                          .v = (float *)t[cut][2]->data + begin,
                                          .grad = (const float *)grad->data + begin,
                                          .block = &block,
                                          .ranges = reachable(&range, sizeof range),
                                          .N = end - begin,
                                          .range_count = 1};

                device_launch(&device, HD_K_adamw, &a);
            }
        }
        for (int i = 0; i < 3; i++)
            assert_same_bits("a shard", t[0][i], t[1][i]);
        tensors_free();
        device_close(&device);
    }
}

RUN_CASES()
