/* The attention op with its options for scores (scale, cap, chunks, sinks, a prefix) in one toy:
 * its gradients against finite differences of its loss, and its layouts against one rank.
 *
 *   x    = embedding(tokens)
 *   h    = attention(x [q | k | v]^T) Wo^T     heads split over tp, rows over cp
 *   loss of (x + h) Wh^T
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/shm_control.h"
#include "mesh/zigzag.h"
#include "program/run.h"
#include "tests/program/test.h"

enum { B = 2, S = 24, C = 16, H = 4, G = 2, D = 8, V = 32, PREFIX = 3, RANKS_MAX = 4 };
enum { SINKS, Q, K, OUT, PREFIX_K, EMBEDDING, WHICH_COUNT };

struct options {
    double scale, cap;
    int64_t chunk, window;
    bool has_sinks, prefix, only_sinks; /* only_sinks: nothing else trains */
    bool gather_keys, recompute, split_backward;
    int tp, cp;
};

struct toy {
    const struct options *o;
    struct hd_registry registry;
    int which[WHICH_COUNT], prefix_v, head;
};

static int param(struct toy *toy, const char *name, int64_t rows, int64_t columns, int tp_axis,
                 double std, bool fused)
{
    const bool frozen = toy->o->only_sinks && strcmp(name, "block.sinks") != 0;

    return hd_registry_param(&toy->registry, &(struct hd_param_spec){.name = name,
                                                                     .dim_count = columns ? 2 : 1,
                                                                     .shape = {rows, columns},
                                                                     .tp_axis = tp_axis,
                                                                     .init = HD_INIT_NORMAL,
                                                                     .init_std = std,
                                                                     .fused = fused,
                                                                     .frozen = frozen});
}

static void declare(struct toy *toy, struct hd_arena *arena, const struct hd_mesh *mesh, int rank)
{
    struct hd_registry *r = &toy->registry;

    hd_registry_init(r, arena, mesh, rank);
    (void)hd_registry_unit(r, "in", "in");
    toy->which[EMBEDDING] = param(toy, "in.weight", V, C, -1, 1, false);
    (void)hd_registry_unit(r, "block", "block");
    toy->which[Q] = param(toy, "block.q", H * D, C, 0, 0.25, false);
    toy->which[K] = param(toy, "block.k", G * D, C, 0, 0.25, true);
    (void)param(toy, "block.v", G * D, C, 0, 0.25, true);
    toy->which[OUT] = param(toy, "block.out", C, H * D, 1, 0.3, false);
    toy->which[SINKS] = param(toy, "block.sinks", H, 0, 0, 1, false);
    toy->which[PREFIX_K] = param(toy, "block.prefix_k", PREFIX, G * D, 1, 1, false);
    toy->prefix_v = param(toy, "block.prefix_v", PREFIX, G * D, 1, 1, false);
    (void)hd_registry_unit(r, "out", "out");
    toy->head = param(toy, "out.weight", V, C, -1, 0.5, false);
    assert_int_equal(hd_registry_finish(r, HD_F32, true), HD_OK);
}

static struct hd_tensor *in_forward(struct hd_rec *rec, void *context, int unit,
                                    struct hd_tensor *x)
{
    const struct toy *toy = context;

    return op_embedding(rec, hd_rec_batch(rec, HD_BATCH_TOKENS), toy->which[EMBEDDING], NULL, -1,
                        1);
}

static struct hd_attention_settings settings_of(const struct toy *toy)
{
    const struct options *o = toy->o;

    return (struct hd_attention_settings){.heads = H / o->tp,
                                          .kv_heads = G / o->tp,
                                          .head_width = D,
                                          .window = o->window,
                                          .chunk = o->chunk,
                                          .scale = o->scale,
                                          .cap = o->cap,
                                          .has_sinks = o->has_sinks,
                                          .sinks = toy->which[SINKS],
                                          .causal = true,
                                          .prefix = o->prefix ? PREFIX : 0,
                                          .prefix_k = toy->which[PREFIX_K],
                                          .prefix_v = toy->prefix_v};
}

static struct hd_tensor *block_forward(struct hd_rec *rec, void *context, int unit,
                                       struct hd_tensor *x)
{
    const struct toy *toy = context;
    const struct hd_attention_settings settings = settings_of(toy);
    struct hd_tensor *h = op_copy_to_tp(rec, x);

    h = op_attention(rec, op_linear(rec, h, toy->which[Q], -1, 3), &settings);
    return op_add(rec, x, op_reduce_from_tp(rec, op_linear(rec, h, toy->which[OUT], -1, 1)), 1);
}

static struct hd_tensor *out_forward(struct hd_rec *rec, void *context, int unit,
                                     struct hd_tensor *x)
{
    const struct toy *toy = context;

    op_head_loss(rec, x, toy->head, hd_rec_batch(rec, HD_BATCH_TARGETS),
                 (struct hd_head_settings){0});
    return NULL;
}

static enum hd_status compile(struct toy *toy, struct hd_arena *arena, const struct hd_mesh *mesh,
                              enum hd_record_mode mode, struct hd_chunk **ret_chunk)
{
    const struct options *o = toy->o;
    const struct hd_rec_shape shape = {.mode = mode,
                                       .B = B,
                                       .S = mode == HD_RECORD_DECODE ? 1 : S / o->cp,
                                       .context = S,
                                       .slots = mode == HD_RECORD_DECODE ? B : 0,
                                       .bounded = mode == HD_RECORD_TRAIN,
                                       .gather_keys = o->gather_keys};
    struct hd_compile_options options = {.precision = hd_precision_uniform(HD_F32),
                                         .mesh = mesh,
                                         .recompute.policy =
                                             o->recompute ? HD_RECOMPUTE_FULL : HD_RECOMPUTE_NONE,
                                         .split_backward = o->split_backward};
    struct hd_rec *rec = hd_rec_new(&toy->registry, &shape, arena);
    struct hd_tensor *x = hd_rec_unit(rec, 0, in_forward, toy, NULL);

    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = 1, .force_plain = true},
                               &options.traits);
    x = hd_rec_unit(rec, 1, block_forward, toy, x);
    if (mode != HD_RECORD_TRAIN)
        hd_rec_output(rec, x);
    else
        (void)hd_rec_unit(rec, 2, out_forward, toy, x);
    return hd_compile(rec, &options, ret_chunk);
}

/* ---- running one micro-batch ---- */

struct shift { /* added to every element of a parameter, times the direction at its index */
    int which;
    double by;
    const float *direction;
};

struct rank {
    const struct options *o;
    const struct shift *shift;
    const struct hd_shm_control *ctl;
    int index;
    pthread_t thread;
    double loss;
    struct hd_mesh_coord coord;
    int64_t count[WHICH_COUNT];     /* elements of this rank's shards */
    int64_t at[WHICH_COUNT][V * C]; /* their indices in the whole tensor */
    float grad[WHICH_COUNT][V * C]; /* their gradients */
};

struct memory {
    char *base[2];
    struct hd_bases bases;
};

static int64_t up(int64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* One allocation per half: state, then the other regions. */
static void lay_out(struct memory *m, const struct hd_chunk *c, struct hd_comm *comm)
{
    static const enum hd_region regions[] = {HD_REGION_SAVED, HD_REGION_DEFERRED, HD_REGION_WORK};

    for (int v = 0; v < 2; v++) {
        int64_t total =
            up(v ? c->registry->registered_bytes
                 : c->registry->private_bytes + c->extent[HD_REGION_STATE].private_bytes);
        int64_t offset[3];

        for (int i = 0; i < 3; i++) {
            const struct hd_extent *x = &c->extent[regions[i]];

            offset[i] = total;
            total += up(v ? x->registered_bytes : x->private_bytes);
        }
        if (v && comm)
            assert_int_equal(
                hd_comm_alloc_registered(comm, (size_t)total + 64, (void **)&m->base[1]), HD_OK);
        else
            assert_int_equal(posix_memalign((void **)&m->base[v], 4096, (size_t)total + 64), 0);
        memset(m->base[v], 0, (size_t)total);
        m->bases.base[HD_REGION_STATE][v] = m->base[v];
        for (int i = 0; i < 3; i++)
            m->bases.base[regions[i]][v] = m->base[v] + offset[i];
    }
    m->bases.chunk_state = m->base[0] + c->registry->private_bytes;
}

static float *state_of(const struct memory *m, const struct toy *toy, int p,
                       enum hd_state_kind kind)
{
    const struct hd_param *x = &toy->registry.params[p];
    const struct hd_bucket *bucket = &toy->registry.buckets[x->bucket];

    return (float *)(m->base[hd_state_is_registered(bucket, kind)] + bucket->offset[kind]) +
           x->offset;
}

/* Documents of 10, 9 and 5 tokens, and of 4 and 20. */
static int64_t bound_of(int64_t b, int64_t position)
{
    if (b)
        return position < 4 ? 0 : 4;
    return position < 10 ? 0 : position < 19 ? 10 : 19;
}

static void put(const struct hd_chunk *c, const struct hd_bases *bases, enum hd_batch_field field,
                int64_t row, int64_t value)
{
    const struct hd_store *store = hd_chunk_find_batch(c, field);

    if (store)
        ((int32_t *)hd_store_address(bases, store))[row] = (int32_t)value;
}

static int64_t token_of(int64_t number)
{
    return (7 * number + number * number) % V;
}

static void fill_batch(const struct rank *r, const struct hd_chunk *c, const struct hd_bases *bases)
{
    const struct hd_zigzag mine = {S, r->o->cp, r->coord.cp};
    const int64_t rows = hd_zigzag_rows(&mine);

    for (int64_t i = 0; i < B * rows; i++) {
        const int64_t b = i / rows, position = hd_zigzag_position(&mine, i % rows);
        const int64_t number = b * S + position;

        put(c, bases, HD_BATCH_TOKENS, i, token_of(number));
        put(c, bases, HD_BATCH_TARGETS, i, (5 * number + 1) % V);
        put(c, bases, HD_BATCH_INDEX, i, position);
        put(c, bases, HD_BATCH_BOUNDS, i, bound_of(b, position));
    }
}

static void fill_weights(const struct rank *r, const struct toy *toy, const struct memory *m)
{
    for (int p = 0; p < toy->registry.param_count; p++) {
        const struct hd_param *x = &toy->registry.params[p];
        float *weight = state_of(m, toy, p, HD_STATE_WEIGHT);

        hd_param_init_values(x, 1, 0, x->count, weight);
        for (int64_t i = 0; r->shift && p == toy->which[r->shift->which] && i < x->count; i++)
            weight[i] +=
                (float)(r->shift->by * (double)r->shift->direction[hd_param_global_index(x, i)]);
    }
}

static void fill_constants(const struct hd_chunk *chunk, const struct memory *m)
{
    for (int i = 0; i < chunk->store_count; i++)
        if (chunk->stores[i]->kind == HD_STORE_CONSTANT)
            hd_constant_fill(chunk->stores[i], hd_store_address(&m->bases, chunk->stores[i]));
}

static void run_calls(const struct rank *r, const struct hd_chunk *chunk, const struct memory *m,
                      struct hd_runner *runner, struct hd_arena *arena)
{
    static const enum hd_call calls[] = {HD_CALL_F, HD_CALL_B, HD_CALL_W};

    fill_batch(r, chunk, &m->bases);
    for (int i = 0; i < 3; i++) {
        struct hd_bound *bound;

        if (!chunk->program[calls[i]].count)
            continue;
        assert_int_equal(hd_bind(runner, chunk, calls[i], true, true, &m->bases, arena, &bound),
                         HD_OK);
        if (hd_run(runner, bound))
            fail_msg("%s", hd_err_message());
    }
    assert_int_equal(hd_runner_order(runner), HD_OK);
    assert_int_equal(hd_runner_synchronize(runner), HD_OK);
}

static void take_gradients(struct rank *r, const struct toy *toy, const struct memory *m)
{
    for (int w = 0; w < WHICH_COUNT; w++) {
        const struct hd_param *x = &toy->registry.params[toy->which[w]];

        if (!x->trainable)
            continue;
        r->count[w] = x->count;
        memcpy(r->grad[w], state_of(m, toy, toy->which[w], HD_STATE_GRAD),
               (size_t)x->count * sizeof(float));
        for (int64_t i = 0; i < x->count; i++)
            r->at[w][i] = hd_param_global_index(x, i);
    }
}

static void *rank_main(void *argument)
{
    const struct hd_backend_options options = {.threads = 1, .force_plain = true};
    struct rank *r = argument;
    struct toy toy = {.o = r->o};
    struct hd_step_state *state;
    struct hd_backend *backend;
    struct hd_runner *runner;
    struct hd_chunk *chunk;
    struct hd_arena arena;
    struct hd_comm *comm;
    struct hd_mesh mesh;
    struct memory m;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.tp = r->o->tp, .cp = r->o->cp}),
                     HD_OK);
    declare(&toy, &arena, &mesh, r->index);
    r->coord = toy.registry.coord;
    if (compile(&toy, &arena, &mesh, HD_RECORD_TRAIN, &chunk))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_comm_open_shm(hd_shm_control_fd(r->ctl), hd_shm_control_rank_fds(r->ctl),
                                      r->index, r->o->tp * r->o->cp, 10000, &comm),
                     HD_OK);
    assert_int_equal(hd_backend_cpu()->open(&options, &backend), HD_OK);
    assert_int_equal(hd_runner_new(hd_backend_cpu(), backend, comm, &mesh, &runner), HD_OK);
    lay_out(&m, chunk, comm);
    fill_weights(r, &toy, &m);
    fill_constants(chunk, &m);
    state = (struct hd_step_state *)(m.base[0] + toy.registry.global_offset[HD_GLOBAL_STEP_STATE]);
    state->loss_scale = 1;
    run_calls(r, chunk, &m, runner, &arena);
    r->loss = state->loss_sum;
    take_gradients(r, &toy, &m);
    hd_runner_free(runner);
    hd_backend_cpu()->close(backend);
    hd_comm_free(comm);
    free(m.base[0]);
    hd_arena_done(&arena);
    return NULL;
}

static double total_loss(const struct rank *ranks)
{
    double sum = 0;

    for (int i = 0; i < ranks->o->tp * ranks->o->cp; i++)
        sum += ranks[i].coord.tp == 0 ? ranks[i].loss : 0; /* tp ranks have equal losses */
    return sum;
}

/* Runs all ranks; returns the loss, and the gradients in ranks. */
static double run(struct rank *ranks, const struct options *o, const struct shift *shift)
{
    const int count = o->tp * o->cp;
    struct hd_shm_control *ctl;

    assert_int_equal(hd_shm_control_new(count, &ctl), HD_OK);
    memset(ranks, 0, (size_t)count * sizeof *ranks);
    for (int i = 0; i < count; i++) {
        ranks[i].o = o;
        ranks[i].shift = shift;
        ranks[i].ctl = ctl;
        ranks[i].index = i;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < count; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    hd_shm_control_free(ctl);
    return total_loss(ranks);
}

static struct rank *ranks_new(void)
{
    struct rank *ranks = calloc(RANKS_MAX, sizeof *ranks);

    assert_non_null(ranks);
    return ranks;
}

/* ---- gradients ---- */

static const struct options all = {.scale = 0.6,
                                   .cap = 1.1,
                                   .chunk = 7,
                                   .window = 5,
                                   .has_sinks = true,
                                   .prefix = true,
                                   .tp = 1,
                                   .cp = 1};

/* Goal: each gradient is the derivative of the loss. Method: the loss at two points along the
 * gradient, whose difference over their distance is its length (central difference: an error of the
 * square of the step). The loss, about 48 * 4 in fp32, errs by some 1e-5. */
static void check_gradients(const struct options *o)
{
    struct rank *at = ranks_new(), *moved = ranks_new();

    (void)run(at, o, NULL);
    for (int w = 0; w < WHICH_COUNT; w++) {
        double square = 0, step, difference;
        struct shift shift = {.which = w, .direction = at->grad[w]};

        for (int64_t i = 0; i < at->count[w]; i++)
            square += (double)at->grad[w][i] * (double)at->grad[w][i];
        if (!at->count[w] || (w == PREFIX_K && !o->prefix) || (w == SINKS && !o->has_sinks))
            continue;
        assert_true(square > 1e-4);
        step = 0.1 / square;
        shift.by = step;
        difference = run(moved, o, &shift);
        shift.by = -step;
        difference -= run(moved, o, &shift);
        if (!(fabs(difference / (2 * step * square) - 1) < 3e-3))
            fail_msg("parameter %d: slope %g, square of the gradient %g", w,
                     difference / (2 * step), square);
    }
    free(at);
    free(moved);
}

static void gradients_are_slopes_of_the_loss(void **state)
{
    struct options o = {.tp = 1, .cp = 1};

    check_gradients(&o);
    o.scale = 0.6;
    check_gradients(&o);
    o.cap = 0.8;
    check_gradients(&o);
    o.has_sinks = true;
    check_gradients(&o);
    check_gradients(&all);
}

static void sinks_train_alone(void **state)
{
    struct options o = all;

    o.only_sinks = true;
    check_gradients(&o);
}

/* ---- layouts ---- */

/* Compares losses and gradients with those of one rank: relative errors of a parameter. */
static void check_layout(const struct options *o)
{
    struct rank *one = ranks_new(), *many = ranks_new();
    struct options alone = *o;
    double want, got;

    alone.tp = alone.cp = 1;
    alone.gather_keys = alone.recompute = alone.split_backward = false;
    want = run(one, &alone, NULL);
    got = run(many, o, NULL);
    if (!(fabs(got / want - 1) < 1e-6))
        fail_msg("tp %d cp %d: a loss of %.9g instead of %.9g", o->tp, o->cp, got, want);
    for (int w = 0; w < WHICH_COUNT; w++) {
        double difference = 0, square = 0;

        for (int r = 0; r < o->tp * o->cp; r++)
            for (int64_t i = 0; i < many[r].count[w]; i++) {
                const double whole = (double)one->grad[w][many[r].at[w][i]];

                difference += pow((double)many[r].grad[w][i] - whole, 2);
                square += whole * whole;
            }
        assert_true(square > 1e-4);
        if (!(sqrt(difference / square) < 2e-6))
            fail_msg("parameter %d differs by %g of its size", w, sqrt(difference / square));
    }
    free(one);
    free(many);
}

static void layouts_agree_with_one_rank(void **state)
{
    struct options o = all;

    o.split_backward = true;
    check_layout(&o);
    o.recompute = true;
    check_layout(&o);
    o.split_backward = false;
    check_layout(&o);
    o.recompute = false;
    o.tp = 2;
    check_layout(&o);
    o.cp = 2;
    check_layout(&o);
    o.tp = 1;
    o.gather_keys = true;
    check_layout(&o);
    o.gather_keys = false;
    o.cp = 3; /* blocks of keys that no row of a rank sees */
    check_layout(&o);
}

/* ---- what changes nothing, and what is refused ---- */

/* Goal: a scale that is the default, and options that restrict nothing, give the same bits. */
static void the_default_scale_is_that_of_the_head_width(void **state)
{
    struct rank *a = ranks_new(), *b = ranks_new();
    const struct options none = {.tp = 1, .cp = 1};
    const struct options same = {.scale = 1 / sqrt((double)D), .chunk = S, .tp = 1, .cp = 1};

    assert_true(run(a, &none, NULL) == run(b, &same, NULL));
    assert_memory_equal(a->grad[Q], b->grad[Q], sizeof a->grad[Q]);
    free(a);
    free(b);
}

/* ---- decoding ---- */

/* The toy without its head on one rank, compiled for whole sequences or for one token each. */
struct forward {
    struct hd_arena arena;
    struct hd_mesh mesh;
    struct toy toy;
    struct hd_chunk *chunk;
    struct hd_backend *backend;
    struct hd_runner *runner;
    struct hd_bound *bound;
    struct memory m;
    float rows[B * S * C]; /* result: [B, 1 or S, C] */
};

static struct forward *forward_open(const struct options *o, enum hd_record_mode mode)
{
    const struct hd_backend_options options = {.threads = 1, .force_plain = true};
    const enum hd_call call = mode == HD_RECORD_DECODE ? HD_CALL_D : HD_CALL_E;
    struct forward *f = calloc(1, sizeof *f);
    const struct rank one = {.o = o};

    assert_non_null(f);
    hd_arena_init(&f->arena, 0);
    f->toy.o = o;
    assert_int_equal(hd_mesh_init(&f->mesh, &(struct hd_mesh_sizes){.tp = 1}), HD_OK);
    declare(&f->toy, &f->arena, &f->mesh, 0);
    assert_int_equal(compile(&f->toy, &f->arena, &f->mesh, mode, &f->chunk), HD_OK);
    assert_int_equal(hd_backend_cpu()->open(&options, &f->backend), HD_OK);
    assert_int_equal(hd_runner_new(hd_backend_cpu(), f->backend, NULL, &f->mesh, &f->runner),
                     HD_OK);
    lay_out(&f->m, f->chunk, NULL);
    f->m.bases.stage_io[HD_STAGE_OUTPUT] = (char *)f->rows;
    fill_weights(&one, &f->toy, &f->m);
    fill_constants(f->chunk, &f->m);
    assert_int_equal(
        hd_bind(f->runner, f->chunk, call, true, true, &f->m.bases, &f->arena, &f->bound), HD_OK);
    return f;
}

static void forward_run(struct forward *f)
{
    if (hd_run(f->runner, f->bound))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_runner_synchronize(f->runner), HD_OK);
}

static void forward_close(struct forward *f)
{
    hd_runner_free(f->runner);
    hd_backend_cpu()->close(f->backend);
    free(f->m.base[0]);
    free(f->m.base[1]);
    hd_arena_done(&f->arena);
    free(f);
}

/* Goal: decoding has the scale, the cap, the chunks and the sinks of training. Method: whole
 * sequences against one token at a time; sequence b has cache slot 1 - b. */
static void decoding_is_forward_one_token_at_a_time(void **state)
{
    const struct options o = {.scale = 0.6,
                              .cap = 0.8,
                              .chunk = 7,
                              .window = 5,
                              .has_sinks = true,
                              .prefix = true,
                              .tp = 1,
                              .cp = 1};
    const struct rank one = {.o = &o};
    struct forward *whole = forward_open(&o, HD_RECORD_EVAL);
    struct forward *step = forward_open(&o, HD_RECORD_DECODE);

    fill_batch(&one, whole->chunk, &whole->m.bases);
    forward_run(whole);
    for (int64_t i = 0; i < S; i++) {
        for (int64_t b = 0; b < B; b++) {
            const int64_t number = b * S + i, filled[3] = {i, i + 1, 1 - b};

            put(step->chunk, &step->m.bases, HD_BATCH_TOKENS, b, token_of(number));
            put(step->chunk, &step->m.bases, HD_BATCH_INDEX, b, i);
            for (int j = 0; j < 3; j++)
                put(step->chunk, &step->m.bases, HD_BATCH_FILLED, j * B + b, filled[j]);
        }
        forward_run(step);
        for (int64_t b = 0; b < B; b++)
            for (int64_t c = 0; c < C; c++) {
                const float want = whole->rows[(b * S + i) * C + c];

                assert_true(fabsf(step->rows[b * C + c] - want) < 1e-5f);
            }
    }
    assert_true(fabsf(whole->rows[0]) > 1e-3f);
    forward_close(whole);
    forward_close(step);
}

/* Goal: what the kernels do not compute is refused where it is recorded. */
static void a_cap_with_alibi_and_chunks_that_look_ahead_are_refused(void **state)
{
    const struct hd_attention_settings settings[] = {{.cap = 2, .alibi = true, .causal = true},
                                                     {.chunk = 4}};
    static const char *const messages[] = {"ALiBi", "causal"};
    const struct options o = {.tp = 1, .cp = 1};

    for (int i = 0; i < 2; i++) {
        const struct hd_rec_shape shape = {
            .mode = HD_RECORD_TRAIN, .B = B, .S = S, .context = S, .bounded = true};
        struct hd_attention_settings s = settings[i];
        struct toy toy = {.o = &o};
        struct hd_arena arena;
        struct hd_mesh mesh;
        struct hd_rec *rec;

        hd_arena_init(&arena, 0);
        assert_int_equal(hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.tp = 1}), HD_OK);
        declare(&toy, &arena, &mesh, 0);
        rec = hd_rec_new(&toy.registry, &shape, &arena);
        s.heads = H;
        s.kv_heads = G;
        s.head_width = D;
        (void)op_attention(rec, hd_rec_input(rec, "qkv", B * S, (H + 2 * G) * D, true), &s);
        assert_int_equal(hd_rec_status(rec), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), messages[i]));
        hd_arena_done(&arena);
    }
}

RUN_CASES()
