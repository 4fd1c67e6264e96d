/* moe: rows of a mixture of experts on their ways through expert order. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "tests/unit/kernels/harness.h"

/* Choices and what assign makes of them. */
struct plan {
    int64_t R, E, K, Q, T, P;
    double capacity;
    struct tensor *chosen;
    struct tensor *begins, *lengths; /* or NULL: documents are whole sequences */
    struct tensor *slot, *counts, *sent;
    struct hd_step_state block;
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

/* Documents of 1 to 9 tokens, and a fifth of each sequence that is no token and chooses nothing. */
static void cut(struct plan *p, uint64_t key)
{
    const int64_t S = p->R / p->Q;

    p->begins = tensor_int32(p->R, 0, 0);
    p->lengths = tensor_int32(p->R, 0, 0);
    for (int64_t q = 0; q < p->Q; q++)
        for (int64_t begin = 0, n; begin < S; begin += n) {
            const int64_t any = 1 + (int64_t)(hd_random_u64(key, (uint64_t)(q * S + begin)) % 9);
            const bool padding = begin >= S - S / 5;

            n = padding || any > S - begin ? S - begin : any;
            for (int64_t r = q * S + begin; r < q * S + begin + n; r++) {
                tensor_put(p->begins, r, (double)begin);
                tensor_put(p->lengths, r, padding ? 0 : (double)n);
                for (int64_t k = 0; padding && k < p->K; k++)
                    tensor_put(p->chosen, r * p->K + k, -1);
            }
        }
}

static struct plan make_plan(int64_t R, int64_t E, int64_t K, int64_t Q)
{
    struct plan p = {.R = R, .E = E, .K = K, .Q = Q, .T = R * K, .P = 1};

    choose(&p, (uint64_t)(R + E));
    return p;
}

static void assign(struct device *device, struct plan *p)
{
    struct hd_assign_args a = {.block = &p->block,
                               .chosen = p->chosen->data,
                               .begins = p->begins ? p->begins->data : NULL,
                               .lengths = p->lengths ? p->lengths->data : NULL,
                               .at = {.Q = p->Q, .runs = 1, .P = 1},
                               .R = p->R,
                               .E = p->E,
                               .K = p->K,
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

/* How many choices of the same expert are before choice i in its document. */
static int64_t earlier(const struct plan *p, int64_t i)
{
    const int64_t S = p->R / p->Q, begin = p->begins ? (int64_t)tensor_get(p->begins, i / p->K) : 0;
    int64_t count = 0;

    for (int64_t j = (i / p->K / S * S + begin) * p->K; j < i; j++)
        count += expert_of(p, j) == expert_of(p, i);
    return count;
}

/* Whether choice i has room: its document's capacity is ceil(capacity n K / E). */
static bool fits(const struct plan *p, int64_t i)
{
    const double n = p->lengths ? tensor_get(p->lengths, i / p->K) : (double)(p->R / p->Q);

    if (expert_of(p, i) < 0)
        return false;
    return p->capacity == 0 ||
           (double)earlier(p, i) < ceil(p->capacity * n * (double)p->K / (double)p->E);
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

        assert_int_equal(slot >= 0, fits(p, i));
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

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int kind = 0; kind < 4; kind++) {
                struct plan p = make_plan(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);

                p.capacity = kind & 1 ? 1.1 : 0;
                p.P = p.E % 2 ? p.E : 2;
                if (kind & 2)
                    cut(&p, 5);
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

    for (int64_t r = 0; r < p.R; r++)
        tensor_put(p.chosen, r, 3);
    assign(&device, &p);
    check_plan(&p);
    for (int64_t r = 0; r < p.R; r++)
        assert_int_equal(slot_of(&p, r), r);
    for (int64_t e = 0; e < p.E; e++) /* the others are without rows */
        assert_true(tensor_get(p.counts, e) == (e == 3 ? 40 : 0));
    p.capacity = 5; /* ceil(5 x 20 x 1 / 5): exactly what each of the two sequences sends */
    assign(&device, &p);
    assert_int_equal(p.total, 40);
    p.capacity = 4.75; /* 19 */
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
    struct hd_assign_args a = {
        .R = 1, .E = 6, .K = 1, .at = {.Q = 1, .runs = 1, .P = 1}, .T = 1, .P = 4};

    assert_int_equal(device_try(&device, HD_K_assign, &a), HD_INVALID);
    device_close(&device);
}

/* Goal: who else is in a window, and how long it is, changes nothing that is kept of a document.
 * Method: documents one behind the other in one sequence, and each in a longer one of its own. */
static void capacity_does_not_depend_on_the_window(void **state)
{
    enum { DOCUMENTS = 4, N = 13, E = 5, K = 2, LONG = 20 };
    struct device device = device_open(&settings[1]);
    struct plan packed = make_plan(DOCUMENTS * N, E, K, 1);
    struct plan alone = make_plan(DOCUMENTS * LONG, E, K, DOCUMENTS);

    packed.begins = tensor_int32(packed.R, 0, 0);
    packed.lengths = tensor_int32(packed.R, N, 0);
    alone.begins = tensor_int32(alone.R, 0, 0);
    alone.lengths = tensor_int32(alone.R, 0, 0);
    for (int64_t r = 0; r < packed.R; r++)
        tensor_put(packed.begins, r, (double)(r / N * N));
    for (int64_t r = 0; r < alone.R; r++) {
        const bool token = r % LONG < N;

        tensor_put(alone.begins, r, token ? 0 : N);
        tensor_put(alone.lengths, r, token ? N : 0);
        for (int64_t k = 0; k < K; k++)
            tensor_put(alone.chosen, r * K + k,
                       token ? tensor_get(packed.chosen, (r / LONG * N + r % LONG) * K + k) : -1);
    }
    packed.capacity = alone.capacity = 0.8;
    assign(&device, &packed);
    assign(&device, &alone);
    check_plan(&packed);
    check_plan(&alone);
    assert_int_equal(packed.total, alone.total);
    assert_true(packed.total < DOCUMENTS * N * K);
    for (int64_t i = 0; i < alone.R * K; i++)
        if (i / K % LONG < N)
            assert_int_equal(slot_of(&alone, i),
                             slot_of(&packed, (i / K / LONG * N + i / K % LONG) * K + i % K));
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
            p.capacity = kind % 2 ? 0.6 : 0;
            if (kind % 2)
                cut(&p, 3);
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

/* Checks that a kernel wrote `want` at `slots`, and behind them nothing was written. */
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
    b.dinp = NULL; /* either result alone */
    b.inp = inp->data;
    tensor_poison(dgate);
    device_launch(device, HD_K_combine_backward, &b);
    assert_close("dgate", dgate, want_dgate, FP32_UNITS);
    b.dinp = dinp->data;
    b.inp = b.dgate = NULL;
    tensor_poison(dinp);
    device_launch(device, HD_K_combine_backward, &b);
    assert_slots("dinp", dinp, want_dinp, p, C, 2);
}

static void combine_weighs_rows_by_their_gates(void **state)
{
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

    for (int n = 0; n < 2 * setting_count; n++) {
        const int64_t width = n % 2 ? 24 : 21; /* a device moves 16 bytes at a time, or 4 */
        struct device device = device_open(&settings[n / 2]);
        const struct tensor *all_counts = tensor_random_int32(PEERS * LOCAL_EXPERTS, 0, 21, 4);
        struct tensor *inp = tensor_new(T * width, HD_F32), *out = tensor_new(T * width, HD_F32);
        struct tensor *back = tensor_new(T * width, HD_F32);
        struct tensor *counts = tensor_new(LOCAL_EXPERTS, HD_I32);
        struct hd_step_state block = {0};
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
    struct hd_step_state block = {0};

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

RUN_CASES()
