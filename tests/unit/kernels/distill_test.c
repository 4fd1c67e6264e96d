/* distill: a teacher's largest logits, and the loss of a student, against torch, against a reference
 * in double with gradients by differences, and in shares of a split vocabulary. */
#include <math.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

/* By tests/golden/distill.py, in fp64. */
static const struct golden {
    enum hd_distill_loss loss;
    double temperature, beta;
    int64_t k;
    double student[6], teacher[6], divergence, gradient[6];
} golden[] = {
#include "distill.inc"
};

static const enum hd_dtype types[] = {HD_F32, HD_BF16, HD_F16};

static void everywhere(void (*check)(struct device *device))
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        check(&device);
        tensors_free();
        device_close(&device);
    }
}

/* ---- torch ---- */

/* Two columns behind the six are padding, which count for the labels alone: weight 1 hides these. */
static void check_golden(struct device *device, const struct golden *g)
{
    enum { V = 8, REAL = 6 };
    struct tensor *logits = tensor_new(V, HD_F32), *teacher = tensor_new(V, HD_F32);
    struct tensor *top = tensor_new(HD_TOP_WORDS(REAL), HD_F32),
                  *out = tensor_new(2 * REAL, HD_F32);
    struct tensor *ids = tensor_int32(REAL, 0, 1), *logq = tensor_new(REAL, HD_F32);
    struct tensor *stats = tensor_new(HD_DISTILL_WORDS(REAL), HD_F32);
    struct tensor *target = tensor_int32(1, 7, 0);
    struct hd_step_state block = {.loss_scale = 1};
    struct hd_top_logits_args a = {.top = top->data,
                                   .logits = teacher->data,
                                   .R = 1,
                                   .V = REAL,
                                   .Vp = V,
                                   .k = g->k,
                                   .temperature = (float)g->temperature,
                                   .dtype = HD_F32};
    struct hd_top_merge_args m = {.out = out->data, .top = top->data, .R = 1, .P = 1, .k = g->k};
    struct hd_distill_stats_args s = {.stats = stats->data,
                                      .logits = logits->data,
                                      .target = target->data,
                                      .ids = ids->data,
                                      .R = 1,
                                      .V = V,
                                      .Vp = V,
                                      .real = REAL,
                                      .k = g->k,
                                      .temperature = (float)g->temperature,
                                      .dtype = HD_F32};
    struct hd_distill_args d = {.dlogits = logits->data,
                                .block = &block,
                                .logits = logits->data,
                                .stats = stats->data,
                                .target = target->data,
                                .ids = ids->data,
                                .logq = logq->data,
                                .R = 1,
                                .V = V,
                                .Vp = V,
                                .P = 1,
                                .real = REAL,
                                .k = g->k,
                                .temperature = (float)g->temperature,
                                .weight = 1,
                                .beta = (float)g->beta,
                                .loss = g->loss,
                                .tail = true,
                                .dtype = HD_F32};

    for (int v = 0; v < V; v++) {
        tensor_put(logits, v, v < REAL ? g->student[v] : 9);
        tensor_put(teacher, v, v < REAL ? g->teacher[v] : 99);
    }
    device_launch(device, HD_K_top_logits, &a);
    device_launch(device, HD_K_top_merge, &m);
    for (int64_t j = 0; j < g->k; j++) {
        tensor_put(logq, j, tensor_get(out, 2 * j));
        tensor_put(ids, j, tensor_get(out, 2 * j + 1));
    }
    device_launch(device, HD_K_distill_stats, &s);
    device_launch(device, HD_K_distill, &d);
    assert_close_at("divergence", 0, block.distill_sum, g->divergence,
                    1e-6 * (1 + fabs(g->divergence)));
    assert_true(block.distill_rows == 1 && block.target_count == 1 && !block.overflow);
    for (int v = 0; v < V; v++)
        assert_close_at("gradient", v, tensor_get(logits, v), v < REAL ? g->gradient[v] : 0, 1e-6);
    tensors_free();
}

static void check_all_golden(struct device *device)
{
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++)
        check_golden(device, &golden[i]);
}

static void divergences_and_gradients_are_those_of_torch(void **state)
{
    everywhere(check_all_golden);
}

/* ---- the largest logits ---- */

/* Returns the number of ids that come before id v: larger ones, and equal ones with a lower id. */
static int64_t rank_of(const double *row, int64_t V, int64_t v)
{
    int64_t before = 0;

    for (int64_t u = 0; u < V; u++)
        before += row[u] > row[v] || (row[u] == row[v] && u < v);
    return before;
}

/* Takes the largest of 3 x 40 ids in three shares, of which 113 are real, with many equal ones. */
static void check_top_of(struct device *device, double cap, enum hd_dtype dtype)
{
    enum { R = 5, P = 3, V = 40, VP = 48, REAL = 113, K = 17 };
    struct tensor *all = tensor_new(P * R * HD_TOP_WORDS(K), HD_F32);
    struct tensor *out = tensor_new(R * 2 * K, HD_F32);
    struct tensor *share[P];
    struct hd_top_merge_args m = {.out = out->data, .top = all->data, .R = R, .P = P, .k = K};
    /* without a factor the exponents are larger; logits of 16 bits have the fast exponential */
    const double T = 1.5, scale = cap < 0 ? 1 : 0.5, bound = dtype == HD_F32 ? 4e-6 : 4e-5;

    for (int64_t p = 0; p < P; p++) {
        share[p] = tensor_random(R * VP, dtype, 3, (uint64_t)p + 1);
        for (int64_t i = 0; i < R * VP; i++) /* a step of 1/2: equal ones in a share and between */
            tensor_put(share[p], i, i % VP < V ? floor(2 * share[p]->values[i]) / 2 : NAN);
        device_launch(device, HD_K_top_logits,
                      &(struct hd_top_logits_args){
                          .top = (float *)all->data + p * R * HD_TOP_WORDS(K),
                          .logits = share[p]->data,
                          .R = R,
                          .V = p < P - 1 ? V : REAL - p * V,
                          .Vp = VP,
                          .first = p * V,
                          .k = K,
                          .temperature = (float)T,
                          .map = {.scale = (float)scale, .cap = (float)(cap > 0 ? cap : 0)},
                          .dtype = dtype});
    }
    device_launch(device, HD_K_top_merge, &m);
    for (int64_t r = 0; r < R; r++) {
        double row[P * V], log_z = 0;

        for (int64_t v = 0; v < REAL; v++) {
            row[v] = scale * share[v / V]->values[r * VP + v % V];
            row[v] = (cap > 0 ? cap * tanh(row[v] / cap) : row[v]) / T;
            log_z += exp(row[v]);
        }
        log_z = log(log_z);
        for (int64_t v = 0; v < REAL; v++) {
            const int64_t j = rank_of(row, REAL, v);

            if (j >= K)
                continue;
            assert_int_equal((int64_t)tensor_get(out, r * 2 * K + 2 * j + 1), v);
            assert_close_at("log q", j, tensor_get(out, r * 2 * K + 2 * j), row[v] - log_z, bound);
        }
    }
}

/* cap -1: neither a factor nor a cap; 0: a factor */
static void check_top(struct device *device)
{
    for (int i = 0; i < 9; i++) {
        check_top_of(device, i / 3 == 2 ? 4 : i / 3 - 1, types[i % 3]);
        tensors_free();
    }
}

static void the_largest_logits_are_found_in_any_shares(void **state)
{
    everywhere(check_top);
}

/* ---- a student ---- */

enum { ROWS = 7, SHARE = 24, SHARES = 3, ALL = 70, REAL_IDS = 61, KEPT = 5 };

struct student {
    double logits[ROWS][ALL]; /* as they are stored */
    int32_t target[ROWS], ids[ROWS][KEPT];
    double logq[ROWS][KEPT];
    double scale, cap, temperature, weight, beta, loss_scale;
    enum hd_distill_loss loss;
    bool tail;
};

static double map_one(const struct student *s, double z)
{
    return s->cap > 0 ? s->cap * tanh(s->scale * z / s->cap) : s->scale * z;
}

static bool is_kept(const struct student *s, int r, int v)
{
    for (int j = 0; j < KEPT; j++)
        if (s->ids[r][j] == v)
            return true;
    return false;
}

static double term(const struct student *s, double p, double q)
{
    const double m = (1 - s->beta) * p + s->beta * q;

    if (s->loss == HD_DISTILL_FORWARD)
        return q > 0 ? q * log(q / p) : 0;
    if (s->loss == HD_DISTILL_REVERSE)
        return p * log(p / q);
    return s->beta * q * log(q / m) + (1 - s->beta) * p * log(p / m);
}

/* Returns the divergence of row r by its definition, term by term. */
static double divergence(const struct student *s, int r)
{
    double z = 0, rest = 0, mass = 0, sum = 0;

    if (s->ids[r][0] < 0)
        return 0;
    for (int v = 0; v < REAL_IDS; v++)
        z += exp(map_one(s, s->logits[r][v]) / s->temperature);
    for (int v = 0; v < REAL_IDS; v++)
        rest += is_kept(s, r, v) ? 0 : exp(map_one(s, s->logits[r][v]) / s->temperature) / z;
    for (int j = 0; j < KEPT && s->ids[r][j] >= 0; j++) {
        const double q = exp(s->logq[r][j]);

        sum += term(s, exp(map_one(s, s->logits[r][s->ids[r][j]]) / s->temperature) / z, q);
        mass += q;
    }
    return sum + (s->tail ? term(s, rest, 1 - mass) : 0);
}

static double label_loss(const struct student *s, int r)
{
    double z = 0;

    for (int v = 0; v < ALL; v++)
        z += exp(map_one(s, s->logits[r][v]));
    return log(z) - map_one(s, s->logits[r][s->target[r]]);
}

/* Returns what row r adds to the loss that is minimised. */
static double mixed(const struct student *s, int r)
{
    const double w = s->ids[r][0] < 0 ? 0 : s->weight;

    if (s->target[r] < 0)
        return 0;
    return s->loss_scale * ((1 - w) * label_loss(s, r) + w * divergence(s, r));
}

/* Row 0: no target; 1: no record; 2: fewer ids than KEPT; 3: the target is kept; 4: it is padding of
 * the teacher. */
static struct student make_student(enum hd_dtype dtype)
{
    struct student s = {.scale = 1, .temperature = 1, .weight = 0.3, .beta = 0.5, .loss_scale = 2};
    struct tensor *logits = tensor_random(ROWS * ALL, dtype, 2, 5);

    for (int r = 0; r < ROWS; r++) {
        s.target[r] = (int32_t)(r == 0 ? -1 : r == 4 ? 65 : (11 * r + 3) % REAL_IDS);
        for (int v = 0; v < ALL; v++)
            s.logits[r][v] = logits->values[r * ALL + v];
        for (int j = 0; j < KEPT; j++) {
            s.ids[r][j] = (int32_t)((r * 13 + j * 17) % REAL_IDS);
            s.logq[r][j] = (float)log(0.45 / (1 << j));
        }
    }
    s.ids[1][0] = -1;
    s.ids[2][3] = s.ids[2][4] = -1;
    s.target[3] = s.ids[3][2];
    return s;
}

/* Runs the student in `shares` shares of its vocabulary; compares losses and gradients. */
static void check_student(struct device *device, struct student *s, enum hd_dtype dtype, int shares)
{
    const int64_t width = shares == 1 ? ALL : SHARE, Vp = (width + 31) / 32 * 32;
    struct tensor *stats = tensor_new(shares * ROWS * HD_DISTILL_WORDS(KEPT), HD_F32);
    struct tensor *target = tensor_int32(ROWS, 0, 0), *ids = tensor_int32(ROWS * KEPT, 0, 0);
    struct tensor *logq = tensor_new(ROWS * KEPT, HD_F32), *share[SHARES];
    double want[ROWS * ALL], sum = 0, distilled = 0;

    for (int r = 0; r < ROWS; r++) {
        tensor_put(target, r, s->target[r]);
        for (int j = 0; j < KEPT; j++) {
            tensor_put(ids, r * KEPT + j, s->ids[r][j]);
            tensor_put(logq, r * KEPT + j, s->logq[r][j]);
        }
        sum += s->target[r] < 0 ? 0 : label_loss(s, r);
        distilled += s->target[r] < 0 ? 0 : divergence(s, r);
        for (int v = 0; v < ALL; v++) { /* central differences, whose error is some 1e-9 */
            const double at = s->logits[r][v], h = 1e-5;
            double above;

            s->logits[r][v] = at + h;
            above = mixed(s, r);
            s->logits[r][v] = at - h;
            want[r * ALL + v] = (above - mixed(s, r)) / (2 * h);
            s->logits[r][v] = at;
        }
    }
    for (int p = 0; p < shares; p++) {
        const int64_t first = p * width, V = ALL - first < width ? ALL - first : width;
        const int64_t real = REAL_IDS - first < V ? REAL_IDS - first : V;

        share[p] = tensor_new(ROWS * Vp, dtype);
        for (int64_t i = 0; i < ROWS * Vp; i++)
            tensor_put(share[p], i, i % Vp < V ? s->logits[i / Vp][first + i % Vp] : NAN);
        device_launch(device, HD_K_distill_stats,
                      &(struct hd_distill_stats_args){
                          .stats = (float *)stats->data + p * ROWS * HD_DISTILL_WORDS(KEPT),
                          .logits = share[p]->data,
                          .target = target->data,
                          .ids = ids->data,
                          .R = ROWS,
                          .V = V,
                          .Vp = Vp,
                          .first = first,
                          .real = real,
                          .k = KEPT,
                          .temperature = (float)s->temperature,
                          .map = {.scale = (float)s->scale, .cap = (float)s->cap},
                          .dtype = dtype});
    }
    for (int p = 0; p < shares; p++) {
        const int64_t first = p * width, V = ALL - first < width ? ALL - first : width;
        const int64_t real = REAL_IDS - first < V ? REAL_IDS - first : V;
        struct hd_step_state block = {.loss_scale = (float)s->loss_scale, .loss_sum = 5};
        double *columns = doubles(ROWS * Vp);

        device_launch(
            device, HD_K_distill,
            &(struct hd_distill_args){.dlogits = share[p]->data,
                                      .block = &block,
                                      .logits = share[p]->data,
                                      .stats = stats->data,
                                      .target = target->data,
                                      .ids = ids->data,
                                      .logq = logq->data,
                                      .R = ROWS,
                                      .V = V,
                                      .Vp = Vp,
                                      .P = shares,
                                      .first = first,
                                      .real = real,
                                      .k = KEPT,
                                      .temperature = (float)s->temperature,
                                      .weight = (float)s->weight,
                                      .beta = (float)s->beta,
                                      .loss = s->loss,
                                      .tail = s->tail,
                                      .map = {.scale = (float)s->scale, .cap = (float)s->cap},
                                      .dtype = dtype});
        assert_close_at("label loss", p, block.loss_sum, 5 + sum, 1e-5 * sum);
        assert_close_at("divergence", p, block.distill_sum, distilled, 1e-5 * (1 + distilled));
        assert_true(block.target_count == ROWS - 1 && block.distill_rows == ROWS - 2);
        assert_int_equal(block.overflow, 0);
        for (int64_t i = 0; i < ROWS * Vp; i++)
            columns[i] = i % Vp < V ? want[i / Vp * ALL + first + i % Vp] : 0;
        assert_close_terms("dlogits", share[p], columns, 64, s->loss_scale * s->scale);
    }
    tensors_free();
}

static void check_students(struct device *device)
{
    static const struct {
        double scale, cap, temperature;
    } maps[] = {{1, 0, 1}, {0.5, 0, 2}, {1, 3, 1.5}};

    for (int i = 0; i < 18; i++) {
        const enum hd_dtype dtype = types[i % 3];
        struct student s = make_student(dtype);

        s.loss = (enum hd_distill_loss)((i + i / 3) % 3);
        s.scale = maps[i / 6].scale;
        s.cap = maps[i / 6].cap;
        s.temperature = maps[i / 6].temperature;
        s.tail = i % 4 < 2;
        s.beta = 0.75;
        check_student(device, &s, dtype, 1);
        check_student(device, &s, dtype, SHARES);
    }
}

static void losses_and_gradients_are_the_definition_in_any_shares(void **state)
{
    everywhere(check_students);
}

RUN_CASES()
