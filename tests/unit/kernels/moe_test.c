/* moe: rows of a mixture of experts on their ways through expert order. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "tests/unit/kernels/harness.h"

/* Choices and what assign makes of them. */
struct plan {
    int64_t R, E, K, Q, T, P, capacity;
    struct tensor *chosen, *run_counts, *taken; /* taken: or NULL */
    struct tensor *slot, *counts, *sent;
    struct hd_step_block block;
    int64_t total; /* rows that have a slot */
};

/* K different experts per row, low ones more often. */
static void choose(struct plan *p, uint64_t key)
{
    p->chosen = tensor_new(p->R * p->K, HD_I32);
    for (int64_t r = 0; r < p->R; r++)
        for (int64_t k = 0; k < p->K; k++) {
            const double u = hd_random_uniform(key, (uint64_t)(r * p->K + k));
            int64_t e = (int64_t)(u * u * (double)p->E);

            for (int64_t j = 0; j < k; j++)
                if (tensor_get(p->chosen, r * p->K + j) == (double)e) {
                    e = (e + 1) % p->E;
                    j = -1; /* look at all of them again */
                }
            tensor_put(p->chosen, r * p->K + k, (double)e);
        }
}

static void count_runs(struct plan *p)
{
    p->run_counts = tensor_new(p->Q * p->E, HD_I32);
    memset(p->run_counts->data, 0, (size_t)(p->Q * p->E) * sizeof(int32_t));
    for (int64_t i = 0; i < p->R * p->K; i++)
        ((int32_t *)p->run_counts
             ->data)[i / (p->R / p->Q * p->K) * p->E + (int64_t)tensor_get(p->chosen, i)]++;
}

static struct plan make_plan(int64_t R, int64_t E, int64_t K, int64_t Q)
{
    struct plan p = {.R = R, .E = E, .K = K, .Q = Q, .T = R * K, .P = 1};

    choose(&p, (uint64_t)(R + E));
    count_runs(&p);
    return p;
}

static void assign(struct device *device, struct plan *p)
{
    struct hd_assign_args a = {.block = &p->block,
                               .chosen = p->chosen->data,
                               .run_counts = p->run_counts->data,
                               .taken = p->taken ? p->taken->data : NULL,
                               .R = p->R,
                               .E = p->E,
                               .K = p->K,
                               .Q = p->Q,
                               .T = p->T,
                               .P = p->P,
                               .capacity = p->capacity};

    p->slot = tensor_new(p->R * p->K, HD_I32);
    p->counts = tensor_new(p->E, HD_I32);
    p->sent = tensor_new(p->P, HD_I32);
    a.slot = p->slot->data;
    a.counts = p->counts->data;
    a.sent = p->sent->data;
    p->block.overflow = 0;
    device_launch(device, HD_K_assign, &a);
    p->total = 0;
    for (int64_t e = 0; e < p->E; e++)
        p->total += (int64_t)tensor_get(p->counts, e);
}

static int64_t slot_of(const struct plan *p, int64_t i)
{
    return (int64_t)tensor_get(p->slot, i);
}

static int64_t expert_of(const struct plan *p, int64_t i)
{
    return (int64_t)tensor_get(p->chosen, i);
}

/* How many choices of the same expert stand before choice i in its sequence. */
static int64_t earlier(const struct plan *p, int64_t i)
{
    const int64_t run = p->R / p->Q * p->K, e = expert_of(p, i);
    int64_t count = p->taken ? (int64_t)tensor_get(p->taken, i / run * p->E + e) : 0;

    for (int64_t j = i / run * run; j < i; j++)
        count += expert_of(p, j) == e;
    return count;
}

/* Goal: what assign promises, for choices within the bound. A choice has a slot exactly if the
 * capacity has room for it; the slots are [0, total), each once; they ascend by (expert, r, k);
 * counts and sent count them. */
static void check_plan(const struct plan *p)
{
    double *owner = doubles(p->R * p->K), *counts = doubles(p->E), *sent = doubles(p->P);
    int64_t kept = 0;

    for (int64_t i = 0; i < p->R * p->K; i++) {
        const int64_t slot = slot_of(p, i);

        assert_int_equal(slot >= 0, p->capacity == 0 || earlier(p, i) < p->capacity);
        if (slot < 0)
            continue;
        assert_in_range(slot, 0, p->total - 1);
        assert_true(owner[slot] == 0);
        owner[slot] = (double)(i + 1);
        counts[expert_of(p, i)]++;
        sent[expert_of(p, i) / (p->E / p->P)]++;
        kept++;
    }
    assert_int_equal(kept, p->total); /* so every slot has an owner */
    for (int64_t s = 1; s < p->total; s++) {
        const int64_t before = (int64_t)owner[s - 1] - 1, here = (int64_t)owner[s] - 1;

        assert_true(expert_of(p, before) < expert_of(p, here) ||
                    (expert_of(p, before) == expert_of(p, here) && before < here));
    }
    assert_close("counts", p->counts, counts, 0);
    assert_close("sent", p->sent, sent, 0);
    assert_int_equal(p->block.overflow, 0);
}

static void slots_are_a_stable_order_of_what_is_kept(void **state)
{
    static const int64_t sizes[][4] = {{60, 8, 2, 3},  {1, 4, 1, 1},     {7, 1, 1, 7},
                                       {96, 37, 5, 4}, {500, 6, 6, 2},   {333, 64, 8, 1},
                                       {1, 128, 8, 1}, {520, 128, 8, 2}, {9, 1000, 3, 1}};

    (void)state;
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int kind = 0; kind < 4; kind++) {
                struct plan p = make_plan(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);

                p.capacity = kind & 1 ? 1 + p.R * p.K / p.Q / p.E : 0;
                p.P = p.E % 2 ? p.E : 2;
                if (kind & 2)
                    p.taken = tensor_random_int32(p.Q * p.E, 0, p.capacity + 3, 5);
                assign(&device, &p);
                check_plan(&p);
                tensors_free();
            }
        device_close(&device);
    }
}

static void one_expert_may_get_everything(void **state)
{
    struct device device = device_open(&settings[1]);
    struct plan p = make_plan(40, 5, 1, 2);

    (void)state;
    for (int64_t r = 0; r < p.R; r++)
        tensor_put(p.chosen, r, 3);
    count_runs(&p);
    assign(&device, &p);
    check_plan(&p);
    for (int64_t r = 0; r < p.R; r++)
        assert_int_equal(slot_of(&p, r), r);
    for (int64_t e = 0; e < p.E; e++) /* the others are without rows */
        assert_true(tensor_get(p.counts, e) == (e == 3 ? 40 : 0));
    p.capacity = 20; /* exactly what each of the two sequences sends */
    assign(&device, &p);
    assert_int_equal(p.total, 40);
    p.capacity = 19;
    assign(&device, &p);
    check_plan(&p);
    assert_int_equal(p.total, 38);
    assert_int_equal(slot_of(&p, 19), -1); /* the last of each */
    assert_int_equal(slot_of(&p, 39), -1);
    tensors_free();
    device_close(&device);
}

/* Goal: a bound holds exactly. Method: as many rows as there is room for, then one more. */
static void more_rows_than_the_bound_overflow(void **state)
{
    struct device device = device_open(&settings[1]);
    struct plan p = make_plan(50, 6, 2, 2);
    int64_t without = 0;

    (void)state;
    assign(&device, &p);
    assert_int_equal(p.block.overflow, 0);
    assert_int_equal(p.total, 100);
    p.T = 41;
    assign(&device, &p);
    assert_int_equal(p.block.overflow, 1);
    assert_int_equal(p.total, 41); /* counts say what is there */
    for (int64_t i = 0; i < p.R * p.K; i++) {
        assert_true(slot_of(&p, i) < 41);
        without += slot_of(&p, i) < 0;
    }
    assert_int_equal(without, 59);
    tensors_free();
    device_close(&device);
}

static void experts_that_ranks_cannot_share_are_refused(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_assign_args a = {.R = 1, .E = 6, .K = 1, .Q = 1, .T = 1, .P = 4};

    (void)state;
    assert_int_equal(device_try(&device, HD_K_assign, &a), HD_INVALID);
    device_close(&device);
}

/* Goal: ranks that share sequences drop what one rank with the whole sequences drops. Method: two
 * ranks, each with two runs of each sequence (pieces 0 and 3, 1 and 2), told what is taken. */
static void capacity_does_not_depend_on_who_holds_the_sequence(void **state)
{
    enum { B = 3, S = 32, E = 5, K = 2, PIECE = S / 4, LOCAL = B * S / 2 };
    struct device device = device_open(&settings[1]);
    struct plan whole = make_plan(B * S, E, K, B), pieces = whole;

    (void)state;
    whole.capacity = 11;
    assign(&device, &whole);
    check_plan(&whole);
    pieces.Q = 4 * B;
    count_runs(&pieces); /* of every piece */
    for (int rank = 0; rank < 2; rank++) {
        struct plan p = {.R = LOCAL, .E = E, .K = K, .Q = 2 * B, .T = LOCAL * K, .P = 1};

        p.capacity = 11;
        p.chosen = tensor_new(LOCAL * K, HD_I32);
        p.taken = tensor_int32(p.Q * E, 0, 0);
        for (int64_t q = 0; q < p.Q; q++) {
            const int64_t b = q / 2, piece = q % 2 ? 3 - rank : rank;

            for (int64_t i = 0; i < PIECE * K; i++)
                tensor_put(p.chosen, q * PIECE * K + i,
                           tensor_get(whole.chosen, (b * S + piece * PIECE) * K + i));
            for (int64_t e = 0; e < E; e++)
                for (int64_t j = 0; j < piece; j++)
                    ((int32_t *)p.taken->data)[q * E + e] +=
                        (int32_t)tensor_get(pieces.run_counts, (4 * b + j) * E + e);
        }
        count_runs(&p);
        assign(&device, &p);
        for (int64_t i = 0; i < LOCAL * K; i++) {
            const int64_t q = i / (PIECE * K), piece = q % 2 ? 3 - rank : rank;
            const int64_t at = (q / 2 * S + piece * PIECE) * K + i % (PIECE * K);

            assert_int_equal(slot_of(&p, i) < 0, slot_of(&whole, at) < 0);
        }
    }
    tensors_free();
    device_close(&device);
}

/* ---- rows ---- */

typedef void check_one(struct device *device, enum hd_dtype dtype, const struct plan *p, int64_t C);

/* Every setting and encoding, with and without capacity, and room behind the last row. */
static void everywhere(check_one *check)
{
    static const int64_t sizes[][5] = {/* R, E, K, Q, C */
                                       {33, 4, 2, 3, 128},
                                       {90, 7, 3, 2, 45},
                                       {1, 9, 8, 1, 1096},
                                       {300, 5, 1, 1, 6}};

    for (int setting = 0; setting < setting_count; setting++)
        for (int kind = 0; kind < 8; kind++) {
            struct device device = device_open(&settings[setting]);
            const int64_t *size = sizes[kind / 2];
            struct plan p = make_plan(size[0], size[1], size[2], size[3]);

            p.T += 9;
            p.capacity = kind % 2 ? 6 : 0;
            assign(&device, &p);
            for (int i = 0; i < float_type_count; i++)
                check(&device, float_types[i], &p, size[4]);
            tensors_free();
            device_close(&device);
        }
}

/* [T, C] with the rows in use random, and NaN behind them. */
static struct tensor *slots_random(const struct plan *p, int64_t C, enum hd_dtype dtype,
                                   uint64_t key)
{
    struct tensor *t = tensor_random(p->T * C, dtype, 1, key);

    for (int64_t i = p->total * C; i < p->T * C; i++)
        tensor_put(t, i, NAN);
    return t;
}

/* What a kernel wrote at `slots` is `want`, and behind them nothing was written. */
static void assert_slots(const char *what, const struct tensor *got, const double *want,
                         const struct plan *p, int64_t C, double units)
{
    struct tensor used = *got;

    used.count = p->total * C;
    assert_close(what, &used, want, units);
    for (int64_t i = used.count; i < got->count; i++)
        assert_true(isnan(tensor_get(got, i)));
}

static void check_permute(struct device *device, enum hd_dtype dtype, const struct plan *p,
                          int64_t C)
{
    const struct tensor *inp = tensor_random(p->R * C, dtype, 1, 1);
    const struct tensor *dout = slots_random(p, C, dtype, 2);
    struct tensor *out = tensor_new(p->T * C, dtype), *dinp = tensor_new(p->R * C, dtype);
    double *want = doubles(p->T * C), *want_dinp = doubles(p->R * C);
    struct hd_permute_forward_args f = {.out = out->data,
                                        .inp = inp->data,
                                        .slot = p->slot->data,
                                        .R = p->R,
                                        .K = p->K,
                                        .C = C,
                                        .T = p->T,
                                        .dtype = dtype};
    struct hd_permute_backward_args b = {.dinp = dinp->data,
                                         .dout = dout->data,
                                         .slot = p->slot->data,
                                         .R = p->R,
                                         .K = p->K,
                                         .C = C,
                                         .T = p->T,
                                         .dtype = dtype};

    for (int64_t i = 0; i < p->R * p->K; i++)
        for (int64_t c = 0; c < C && slot_of(p, i) >= 0; c++) {
            want[slot_of(p, i) * C + c] = inp->values[i / p->K * C + c];
            want_dinp[i / p->K * C + c] += dout->values[slot_of(p, i) * C + c];
        }
    device_launch(device, HD_K_permute_forward, &f);
    device_launch(device, HD_K_permute_backward, &b);
    assert_slots("out", out, want, p, C, 0);
    assert_close("dinp", dinp, want_dinp, 4);
}

static void permute_copies_rows_and_adds_their_gradients(void **state)
{
    (void)state;
    everywhere(check_permute);
}

static void check_combine(struct device *device, enum hd_dtype dtype, const struct plan *p,
                          int64_t C)
{
    const struct tensor *gate = tensor_random(p->R * p->K, HD_F32, 1, 1);
    const struct tensor *dout = tensor_random(p->R * C, dtype, 1, 2);
    struct tensor *inp = slots_random(p, C, dtype, 3);
    struct tensor *out = tensor_new(p->R * C, dtype), *dinp = tensor_new(p->T * C, dtype);
    struct tensor *dgate = tensor_new(p->R * p->K, HD_F32), *same = tensor_copy(inp);
    double *want = doubles(p->R * C), *want_dinp = doubles(p->T * C);
    double *want_dgate = doubles(p->R * p->K);
    struct hd_combine_forward_args f = {.out = out->data,
                                        .inp = inp->data,
                                        .gate = gate->data,
                                        .slot = p->slot->data,
                                        .R = p->R,
                                        .K = p->K,
                                        .C = C,
                                        .T = p->T,
                                        .dtype = dtype};
    struct hd_combine_backward_args b = {.dinp = dinp->data,
                                         .dgate = dgate->data,
                                         .dout = dout->data,
                                         .inp = inp->data,
                                         .gate = gate->data,
                                         .slot = p->slot->data,
                                         .R = p->R,
                                         .K = p->K,
                                         .C = C,
                                         .T = p->T,
                                         .dtype = dtype};

    for (int64_t i = 0; i < p->R * p->K; i++)
        for (int64_t c = 0; c < C && slot_of(p, i) >= 0; c++) {
            const int64_t at = slot_of(p, i) * C + c, row = i / p->K * C + c;

            want[row] += gate->values[i] * inp->values[at];
            want_dinp[at] = gate->values[i] * dout->values[row];
            want_dgate[i] += inp->values[at] * dout->values[row];
        }
    device_launch(device, HD_K_combine_forward, &f);
    device_launch(device, HD_K_combine_backward, &b);
    assert_close("out", out, want, 4);
    assert_slots("dinp", dinp, want_dinp, p, C, 2);
    assert_close("dgate", dgate, want_dgate, FP32_UNITS);
    b.inp = b.dinp = same->data; /* in place */
    tensor_poison(dgate);
    device_launch(device, HD_K_combine_backward, &b);
    assert_slots("dinp", same, want_dinp, p, C, 2);
    assert_close("dgate", dgate, want_dgate, FP32_UNITS);
}

static void combine_weighs_rows_by_their_gates(void **state)
{
    (void)state;
    everywhere(check_combine);
}

/* ---- rows from several ranks ---- */

enum { PEERS = 3, LOCAL_EXPERTS = 4 };

static struct hd_regroup_args regroup_args(const struct tensor *inp, struct tensor *out,
                                           struct tensor *counts, const struct tensor *all_counts,
                                           int64_t T, int64_t C)
{
    return (struct hd_regroup_args){.out = out->data,
                                    .counts = counts ? counts->data : NULL,
                                    .inp = inp->data,
                                    .all_counts = all_counts->data,
                                    .P = PEERS,
                                    .E = LOCAL_EXPERTS,
                                    .T = T,
                                    .C = C,
                                    .dtype = inp->dtype};
}

/* Goal: rows that came in (rank, expert) order stand in (expert, rank) order, stable, and come
 * back. Method: each row says in its first element whose it is. */
static void regrouped_rows_stand_by_expert(void **state)
{
    enum { T = 130 };

    (void)state;
    for (int n = 0; n < 2 * setting_count; n++) {
        const int64_t width = n % 2 ? 24 : 21; /* a device moves 16 bytes at a time, or 4 */
        struct device device = device_open(&settings[n / 2]);
        const struct tensor *all_counts = tensor_random_int32(PEERS * LOCAL_EXPERTS, 0, 21, 4);
        struct tensor *inp = tensor_new(T * width, HD_F32), *out = tensor_new(T * width, HD_F32);
        struct tensor *back = tensor_new(T * width, HD_F32);
        struct tensor *counts = tensor_new(LOCAL_EXPERTS, HD_I32);
        struct hd_step_block block = {0};
        struct hd_regroup_args a = regroup_args(inp, out, counts, all_counts, T, width);
        double *want = doubles(T * width), *want_counts = doubles(LOCAL_EXPERTS);
        int64_t total = 0, place = 0;

        for (int64_t p = 0; p < PEERS; p++)
            for (int64_t e = 0; e < LOCAL_EXPERTS; e++)
                for (int64_t i = 0; i < (int64_t)tensor_get(all_counts, p * LOCAL_EXPERTS + e); i++)
                    for (int64_t c = 0; c < width; c++)
                        tensor_put(inp, total++, (double)(((p * 10 + e) * 100 + i) * 100 + c));
        for (int64_t e = 0; e < LOCAL_EXPERTS; e++)
            for (int64_t p = 0; p < PEERS; p++)
                for (int64_t i = 0; i < (int64_t)tensor_get(all_counts, p * LOCAL_EXPERTS + e);
                     i++, want_counts[e]++)
                    for (int64_t c = 0; c < width; c++)
                        want[place++] = (double)(((p * 10 + e) * 100 + i) * 100 + c);
        assert_true(total < T * width);
        a.block = &block;
        device_launch(&device, HD_K_regroup, &a);
        assert_int_equal(block.overflow, 0);
        assert_close("counts", counts, want_counts, 0);
        a = regroup_args(out, back, NULL, all_counts, T, width);
        a.inverse = true;
        device_launch(&device, HD_K_regroup, &a);
        for (int64_t i = 0; i < T * width; i++) {
            assert_true(i < total ? tensor_get(out, i) == want[i] : isnan(tensor_get(out, i)));
            assert_true(i < total ? tensor_get(back, i) == tensor_get(inp, i)
                                  : isnan(tensor_get(back, i)));
        }
        tensors_free();
        device_close(&device);
    }
}

/* A bound of one row less than there are: said, nothing past it is touched, and counts fit. */
static void more_rows_than_a_rank_has_room_for_overflow(void **state)
{
    const int64_t width = 21;
    struct device device = device_open(&settings[1]);
    const struct tensor *all_counts = tensor_int32(PEERS * LOCAL_EXPERTS, 5, 0);
    struct tensor *counts = tensor_new(LOCAL_EXPERTS, HD_I32);
    struct hd_step_block block = {0};

    (void)state;
    for (int64_t T = PEERS * LOCAL_EXPERTS * 5; T > 0; T--) {
        struct tensor *inp = tensor_random(T * width, HD_BF16, 1, 1);
        struct tensor *out = tensor_new(T * width, HD_BF16);
        struct hd_regroup_args a = regroup_args(inp, out, counts, all_counts, T, width);
        int64_t sum = 0;

        block.overflow = 0;
        a.block = &block;
        device_launch(&device, HD_K_regroup, &a);
        assert_int_equal(block.overflow, T < PEERS * LOCAL_EXPERTS * 5);
        for (int64_t e = 0; e < LOCAL_EXPERTS; e++)
            sum += (int64_t)tensor_get(counts, e);
        assert_int_equal(sum, T);
        a.inverse = true;
        device_launch(&device, HD_K_regroup, &a);
    }
    tensors_free(); /* looks at the guards */
    device_close(&device);
}

/* Goal: neither so many pairs of a rank and an expert that they are counted in several rounds, nor
 * experts without a row, displace anything. Method: rows that say whose they are. */
static void many_ranks_and_experts_are_regrouped(void **state)
{
    enum { P = 40, E = 30, C = 2 };

    (void)state;
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        const struct tensor *all_counts = tensor_random_int32(P * E, 0, 3, 4);
        struct tensor *counts = tensor_new(E, HD_I32), *inp, *out;
        double *want_counts = doubles(E);
        struct hd_regroup_args a = {
            .counts = counts->data, .all_counts = all_counts->data, .P = P, .E = E, .C = C};
        int64_t row = 0;

        for (int64_t n = 0; n < P * E; n++) {
            a.T += (int64_t)tensor_get(all_counts, n);
            want_counts[n % E] += tensor_get(all_counts, n);
        }
        inp = tensor_new(a.T * C, HD_F32);
        out = tensor_new(a.T * C, HD_F32);
        for (int64_t n = 0; n < P * E; n++)
            for (int64_t i = 0; i < (int64_t)tensor_get(all_counts, n); i++, row++) {
                tensor_put(inp, row * C, (double)n);
                tensor_put(inp, row * C + 1, (double)i);
            }
        a.out = out->data;
        a.inp = inp->data;
        device_launch(&device, HD_K_regroup, &a);
        assert_close("counts", counts, want_counts, 0);
        row = 0;
        for (int64_t e = 0; e < E; e++)
            for (int64_t p = 0; p < P; p++)
                for (int64_t i = 0; i < (int64_t)tensor_get(all_counts, p * E + e); i++, row++) {
                    assert_true(tensor_get(out, row * C) == (double)(p * E + e));
                    assert_true(tensor_get(out, row * C + 1) == (double)i);
                }
        assert_int_equal(row, a.T);
        tensors_free();
        device_close(&device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_a_stable_order_of_what_is_kept),
        cmocka_unit_test(one_expert_may_get_everything),
        cmocka_unit_test(more_rows_than_the_bound_overflow),
        cmocka_unit_test(experts_that_ranks_cannot_share_are_refused),
        cmocka_unit_test(capacity_does_not_depend_on_who_holds_the_sequence),
        cmocka_unit_test(permute_copies_rows_and_adds_their_gradients),
        cmocka_unit_test(combine_weighs_rows_by_their_gates),
        cmocka_unit_test(regrouped_rows_stand_by_expert),
        cmocka_unit_test(more_rows_than_a_rank_has_room_for_overflow),
        cmocka_unit_test(many_ranks_and_experts_are_regrouped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
