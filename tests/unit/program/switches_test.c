/* Ops whose settings tell model families apart, in one toy on the CPU: activations, factors, the map
 * of logits and the gate of rows.
 *
 *   x  = e embedding(tokens)                          table cut by rows
 *   h  = rmsnorm(x)
 *   y  = glu(h [Wg | Wu]^T) W2^T, or act(h Wu^T) W2^T    Wg, Wu cut by rows, W2 by columns
 *        or two experts of the first kind, both chosen for every row
 *   z  = x + f (y * sigmoid(h w))
 *   loss of the mapped logits rmsnorm(z) Wh^T         Wh cut by rows
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "comm/shm_control.h"
#include "program/run.h"
#include "tests/program/test.h"

enum { B = 2, S = 5, R = B * S, C = 8, F = 12, V = 32, E = 2, TP_MAX = 2, VALUES = V * C };

enum {
    EMBEDDING,
    NORM,
    GATE,
    UP,
    DOWN,
    ROW_GATE,
    ROUTER,
    EXPERT_GATE,
    EXPERT_UP,
    EXPERT_DOWN,
    HEAD_NORM,
    HEAD,
    PARAMS
};
enum form { GATED, ALONE, EXPERTS };

static const double ALPHA = 1.702, LIMIT = 0.7; /* of HD_ACT_OSS */

struct toy {
    struct hd_registry registry;
    int param[PARAMS];
};

/* One choice of settings. */
struct choice {
    enum hd_activation act;
    enum form form;
    double embedding_scale, factor;
    struct hd_head_settings head;
};

static const struct choice choices[] = {
    {HD_ACT_SILU, GATED, 0, 0, {.logit_scale = 0}},
    {HD_ACT_SILU, GATED, 12, 0.22, {.logit_scale = 0.25}},
    {HD_ACT_GELU_TANH, GATED, 2.8, 1, {.cap = 2}},
    {HD_ACT_GELU_ERF, ALONE, 1, 1, {.logit_scale = 0}},
    {HD_ACT_RELU2, ALONE, 1, 0.5, {.logit_scale = 0.5, .cap = 1.5}},
    {HD_ACT_OSS, GATED, 1, 1, {.logit_scale = 0}},
    {HD_ACT_OSS, EXPERTS, 1, 1, {.logit_scale = 0}},
};
enum { CHOICES = sizeof choices / sizeof choices[0] };

static const struct {
    const char *name;
    int64_t dim[3]; /* 0: none */
    int tp_axis;
    bool fused, experts, partial;
} shapes[PARAMS] = {[EMBEDDING] = {"in.weight", {V, C}, 0, false, false, false},
                    [NORM] = {"block.norm", {C}, -1, false, false, false},
                    [GATE] = {"block.gate", {F, C}, 0, false, false, false},
                    [UP] = {"block.up", {F, C}, 0, true, false, false},
                    [DOWN] = {"block.down", {C, F}, 1, false, false, false},
                    [ROW_GATE] = {"block.row_gate", {1, C}, -1, false, false, false},
                    [ROUTER] = {"block.router", {E, C}, -1, false, false, true},
                    [EXPERT_GATE] = {"block.experts.gate", {E, F, C}, 1, false, true, false},
                    [EXPERT_UP] = {"block.experts.up", {E, F, C}, 1, false, true, false},
                    [EXPERT_DOWN] = {"block.experts.down", {E, C, F}, 2, false, true, false},
                    [HEAD_NORM] = {"out.norm", {C}, -1, false, false, false},
                    [HEAD] = {"out.weight", {V, C}, 0, false, false, false}};

static int dims_of(int p)
{
    return shapes[p].dim[2] ? 3 : shapes[p].dim[1] ? 2 : 1;
}

/* Returns the product of the dimensions first .. end - 1. */
static int product(int p, int first, int end)
{
    int n = 1;

    for (int d = first; d < end; d++)
        n *= (int)shapes[p].dim[d];
    return n;
}

static bool is_used(const struct choice *choice, int p)
{
    if (p == GATE)
        return choice->form == GATED;
    if (p == UP || p == DOWN)
        return choice->form != EXPERTS;
    return (p != ROUTER && !shapes[p].experts) || choice->form == EXPERTS;
}

static void declare(struct toy *toy, struct hd_arena *arena, const struct hd_mesh *mesh, int rank)
{
    struct hd_registry *r = &toy->registry;

    hd_registry_init(r, arena, mesh, rank);
    for (int p = 0; p < PARAMS; p++) {
        if (p == EMBEDDING || p == NORM || p == HEAD_NORM)
            (void)hd_registry_unit(r, p == EMBEDDING ? "in" : p == NORM ? "block" : "out", "unit");
        toy->param[p] = hd_registry_param(
            r,
            &(struct hd_param_spec){.name = shapes[p].name,
                                    .dim_count = dims_of(p),
                                    .shape = {shapes[p].dim[0], shapes[p].dim[1], shapes[p].dim[2]},
                                    .tp_axis = shapes[p].tp_axis,
                                    .fused = shapes[p].fused,
                                    .experts = shapes[p].experts,
                                    .partial = shapes[p].partial,
                                    .init = HD_INIT_NORMAL,
                                    .init_std = 0.5});
    }
    hd_registry_routers(r, 1, E);
    assert_int_equal(hd_registry_finish(r, HD_F32, true), HD_OK);
}

/* One rank's run, and its results. */
struct rank {
    const struct choice *choice;
    int tp, index;
    bool recompute, split, eval, logits; /* eval: E in place of F and B; logits: no loss */
    bool short_stores; /* first binds every program with stores that are too small */
    int moved;         /* parameter whose weights are moved by `step` times a direction; -1: none */
    double step;
    uint64_t direction;
    const struct hd_shm_control *ctl;
    pthread_t thread;
    double loss;
    float grad[PARAMS][VALUES], out[R * V];
};

struct context {
    const struct toy *toy;
    const struct rank *rank;
};

static struct hd_tensor *in_forward(struct hd_rec *rec, void *context, int unit,
                                    struct hd_tensor *x)
{
    const struct context *c = context;

    (void)unit, (void)x;
    return op_reduce_from_tp(rec, op_embedding(rec, hd_rec_batch(rec, HD_BATCH_TOKENS),
                                               c->toy->param[EMBEDDING], NULL, -1,
                                               c->rank->choice->embedding_scale));
}

/* Records the feed-forward layer, h [R, C] -> this rank's partial sum of [R, C]. */
static struct hd_tensor *feed_forward(struct hd_rec *rec, const struct choice *choice,
                                      const int *param, struct hd_tensor *h)
{
    const struct hd_router router = {.E = E, .K = E, .renormalize = true};
    const struct hd_expert_params experts = {.router = param[ROUTER],
                                             .noise = -1,
                                             .router_bias = -1,
                                             .select_bias = -1,
                                             .gate = param[EXPERT_GATE],
                                             .up = param[EXPERT_UP],
                                             .down = param[EXPERT_DOWN],
                                             .gate_bias = -1,
                                             .up_bias = -1,
                                             .down_bias = -1,
                                             .a = {-1, -1, -1},
                                             .b = {-1, -1, -1},
                                             .act = choice->act,
                                             .alpha = ALPHA,
                                             .limit = LIMIT};

    if (choice->form == EXPERTS)
        return op_experts(rec, h, &experts, &router);
    if (choice->form == GATED)
        h = op_glu(rec, op_linear(rec, h, param[GATE], -1, 2), choice->act, ALPHA, LIMIT);
    else
        h = op_activation(rec, op_linear(rec, h, param[UP], -1, 1), choice->act);
    return op_linear(rec, h, param[DOWN], -1, 1);
}

static struct hd_tensor *block_forward(struct hd_rec *rec, void *context, int unit,
                                       struct hd_tensor *x)
{
    const struct context *c = context;
    const struct choice *choice = c->rank->choice;
    const int *param = c->toy->param;
    struct hd_tensor *h = op_rmsnorm(rec, x, param[NORM], 1e-5, false);
    struct hd_tensor *g = op_linear(rec, h, param[ROW_GATE], -1, 1);

    (void)unit;
    h = op_reduce_from_tp(rec, feed_forward(rec, choice, param, op_copy_to_tp(rec, h)));
    return op_add(rec, x, op_row_gate(rec, h, g), choice->factor);
}

static struct hd_tensor *out_forward(struct hd_rec *rec, void *context, int unit,
                                     struct hd_tensor *x)
{
    const struct context *c = context;
    const int *param = c->toy->param;

    (void)unit;
    x = op_rmsnorm(rec, x, param[HEAD_NORM], 1e-5, false);
    if (c->rank->logits)
        op_logits(rec, x, param[HEAD], c->rank->choice->head);
    else
        op_head_loss(rec, op_copy_to_tp(rec, x), param[HEAD], hd_rec_batch(rec, HD_BATCH_TARGETS),
                     c->rank->choice->head);
    return NULL;
}

static struct hd_chunk *compile(const struct rank *r, const struct toy *toy, struct hd_arena *arena,
                                const struct hd_mesh *mesh)
{
    const struct hd_rec_shape shape = {
        .mode = r->eval ? HD_RECORD_EVAL : HD_RECORD_TRAIN, .B = B, .S = S, .context = S};
    struct hd_compile_options options = {
        .precision = hd_precision_uniform(HD_F32),
        .recompute = {.policy = r->recompute ? HD_RECOMPUTE_FULL : HD_RECOMPUTE_NONE},
        .mesh = mesh,
        .split_backward = r->split};
    struct context context = {toy, r};
    struct hd_rec *rec = hd_rec_new(&toy->registry, &shape, arena);
    struct hd_chunk *chunk;
    struct hd_tensor *x = hd_rec_unit(rec, 0, in_forward, &context, NULL);

    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = 1, .force_plain = true},
                               &options.traits);
    x = hd_rec_unit(rec, 1, block_forward, &context, x);
    (void)hd_rec_unit(rec, 2, out_forward, &context, x);
    if (hd_compile(rec, &options, &chunk))
        fail_msg("%s", hd_err_message());
    return chunk;
}

static int64_t pages(int64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* Allocates all regions of a chunk for one micro-batch: an allocation for each half. The caller
 * frees the first half, the communicator the other. */
static void allocate(const struct hd_chunk *c, struct hd_comm *comm, struct hd_bases *ret_bases,
                     void **ret_owned)
{
    const int64_t state[2] = {pages(c->registry->private_bytes),
                              pages(c->registry->registered_bytes)};
    int64_t bytes[2] = {state[0] + 4096, state[1] + 4096};
    void *half[2];

    for (int region = 0; region < HD_REGION_COUNT; region++) {
        bytes[0] += pages(c->extent[region].private_bytes);
        bytes[1] += pages(c->extent[region].registered_bytes);
    }
    assert_int_equal(posix_memalign(&half[0], 4096, (size_t)bytes[0]), 0);
    assert_int_equal(hd_comm_alloc_registered(comm, (size_t)bytes[1], &half[1]), HD_OK);
    *ret_owned = half[0];
    memset(ret_bases, 0, sizeof *ret_bases);
    for (int v = 0; v < 2; v++) {
        char *at = half[v];

        memset(at, 0, (size_t)bytes[v]);
        for (int region = 0; region < HD_REGION_COUNT; region++) {
            ret_bases->base[region][v] = at;
            at += region == HD_REGION_STATE ? state[v] : 0;
            if (region == HD_REGION_STATE && v == 0)
                ret_bases->chunk_state = at;
            at += pages(v ? c->extent[region].registered_bytes : c->extent[region].private_bytes);
        }
    }
}

static float *state_of(const struct hd_bases *bases, const struct toy *toy, int p,
                       enum hd_state_kind kind)
{
    const struct hd_param *param = &toy->registry.params[toy->param[p]];
    const struct hd_bucket *bucket = &toy->registry.buckets[param->bucket];

    return (float *)(bases->base[HD_REGION_STATE][hd_state_is_registered(bucket, kind)] +
                     bucket->offset[kind]) +
           param->offset;
}

/* The direction in which the weights of a parameter are moved. */
static double direction_at(uint64_t seed, int i)
{
    return (double)(hd_random_key(seed, (uint64_t)i) >> 40) * 0x1p-23 - 1;
}

static void fill(const struct rank *r, const struct toy *toy, const struct hd_chunk *chunk,
                 const struct hd_bases *bases)
{
    int32_t *tokens = hd_store_address(bases, hd_chunk_find_batch(chunk, HD_BATCH_TOKENS));
    const struct hd_store *targets = hd_chunk_find_batch(chunk, HD_BATCH_TARGETS);

    for (int p = 0; p < PARAMS; p++) {
        const struct hd_param *param = &toy->registry.params[toy->param[p]];
        float *w = state_of(bases, toy, p, HD_STATE_WEIGHT);

        hd_param_init_values(param, 1, 0, param->count, w);
        for (int i = 0; p == r->moved && i < param->count; i++)
            w[i] += (float)(r->step * direction_at(r->direction, i));
    }
    for (int i = 0; i < R; i++) {
        const struct hd_store *lengths = hd_chunk_find_batch(chunk, HD_BATCH_LENGTHS);

        tokens[i] = (7 * i) % V;
        if (targets)
            ((int32_t *)hd_store_address(bases, targets))[i] = (5 * i + 1) % V;
        if (lengths) /* every sequence is one document; it begins at 0 */
            ((int32_t *)hd_store_address(bases, lengths))[i] = S;
    }
}

/* Takes the last byte that a kernel touches from each store of a program, one after the other. */
static void bind_short_stores(struct hd_runner *runner, const struct hd_chunk *chunk,
                              enum hd_call call, const struct hd_bases *bases,
                              struct hd_arena *arena)
{
    const struct hd_program *p = &chunk->program[call];
    struct hd_operand_bytes bytes[HD_KERNEL_OPERANDS_MAX];
    struct hd_bound *bound;

    for (int i = 0; i < p->count; i++) {
        const int count = p->nodes[i]->is_comm ? 0 : hd_node_operand_count(p->nodes[i]);

        for (int k = 0; k < count; k++) {
            const struct hd_operand *o = &p->nodes[i]->operands[k];
            const int64_t whole = o->store ? o->store->size_bytes : 0;

            hd_kernel_operand_bytes(p->nodes[i]->kernel, p->nodes[i]->args, bytes);
            if (!o->store || !bytes[k].size_bytes)
                continue;
            o->store->size_bytes = o->offset_bytes + bytes[k].size_bytes - 1;
            assert_int_equal(hd_bind(runner, chunk, call, true, true, bases, arena, &bound),
                             HD_INTERNAL);
            o->store->size_bytes = whole;
        }
    }
}

static void run_call(struct hd_runner *runner, const struct hd_chunk *chunk, enum hd_call call,
                     const struct hd_bases *bases, struct hd_arena *arena)
{
    struct hd_bound *bound;

    if (!chunk->program[call].count)
        return;
    assert_int_equal(hd_bind(runner, chunk, call, true, true, bases, arena, &bound), HD_OK);
    if (hd_run(runner, bound))
        fail_msg("%s", hd_err_message());
}

static void *rank_main(void *argument)
{
    static const enum hd_call calls[] = {HD_CALL_F, HD_CALL_B, HD_CALL_W, HD_CALL_E};
    const struct hd_backend_options threads = {.threads = 1, .force_plain = true};
    struct rank *r = argument;
    void *owned;
    struct hd_step_state *block;
    struct hd_backend *backend;
    struct hd_runner *runner;
    struct hd_chunk *chunk;
    struct hd_arena arena;
    struct hd_bases bases;
    struct hd_comm *comm;
    struct hd_mesh mesh;
    struct toy toy;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.tp = r->tp}), HD_OK);
    declare(&toy, &arena, &mesh, r->index);
    chunk = compile(r, &toy, &arena, &mesh);
    assert_int_equal(hd_comm_open_shm(hd_shm_control_fd(r->ctl), hd_shm_control_rank_fds(r->ctl),
                                      r->index, r->tp, 10000, &comm),
                     HD_OK);
    assert_int_equal(hd_backend_cpu()->open(&threads, &backend), HD_OK);
    assert_int_equal(hd_runner_new(hd_backend_cpu(), backend, comm, &mesh, &runner), HD_OK);
    allocate(chunk, comm, &bases, &owned);
    fill(r, &toy, chunk, &bases);
    block = (struct hd_step_state *)(bases.base[HD_REGION_STATE][0] +
                                     toy.registry.global_offset[HD_GLOBAL_STEP_STATE]);
    block->loss_scale = 1;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (r->short_stores)
            bind_short_stores(runner, chunk, calls[i], &bases, &arena);
        run_call(runner, chunk, calls[i], &bases, &arena);
    }
    assert_int_equal(hd_runner_synchronize(runner), HD_OK);

    r->loss = block->loss_sum;
    if (r->logits)
        memcpy(r->out, hd_store_address(&bases, hd_chunk_find_kind(chunk, HD_STORE_OUTPUT)),
               sizeof r->out);
    for (int p = 0; !r->eval && p < PARAMS; p++)
        memcpy(r->grad[p], state_of(&bases, &toy, p, HD_STATE_GRAD),
               sizeof(float) * (size_t)toy.registry.params[toy.param[p]].count);
    hd_runner_free(runner);
    hd_backend_cpu()->close(backend);
    hd_comm_free(comm);
    free(owned);
    hd_arena_done(&arena);
    return NULL;
}

/* Runs r->tp ranks, all like *r; ranks[i] has the results. */
static void run_ranks(struct rank *ranks, struct rank like)
{
    struct hd_shm_control *ctl;

    assert_int_equal(hd_shm_control_new(like.tp, &ctl), HD_OK);
    for (int i = 0; i < like.tp; i++) {
        ranks[i] = like;
        ranks[i].index = i;
        ranks[i].ctl = ctl;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < like.tp; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    hd_shm_control_free(ctl);
}

static double loss_of(struct rank *scratch, const struct choice *choice, int moved, double step,
                      uint64_t direction)
{
    run_ranks(scratch,
              (struct rank){
                  .choice = choice, .tp = 1, .moved = moved, .step = step, .direction = direction});
    return scratch->loss;
}

/* Goal: the gradients of every op and setting. Method: the derivative of the loss along a direction
 * is the scalar product with the gradient; two directions for each parameter. A loss, of some 30,
 * has an error of some 1e-5, its difference divided by 4e-3 one of 3e-3; values that the step moves
 * across a limit of HD_ACT_OSS add as much. */
static void gradients_agree_with_differences(void **state)
{
    struct rank *base = calloc(1, sizeof *base), *moved = calloc(1, sizeof *moved);
    const double step = 2e-3;

    for (int k = 0; k < CHOICES; k++) {
        (void)loss_of(base, &choices[k], -1, 0, 0);
        for (int n = 0; n < 2 * PARAMS; n++) {
            const int p = n / 2, count = product(p, 0, dims_of(p));
            const uint64_t seed = (uint64_t)n + 1;
            double want = 0, got;

            if (!is_used(&choices[k], p))
                continue;
            for (int i = 0; i < count; i++)
                want += (double)base->grad[p][i] * direction_at(seed, i);
            got = (loss_of(moved, &choices[k], p, step, seed) -
                   loss_of(moved, &choices[k], p, -step, seed)) /
                  (2 * step);
            if (!(fabs(got - want) < 1e-2 * fabs(want) + 1e-2))
                fail_msg("choice %d, %s: gradient %g, difference %g", k, shapes[p].name, want, got);
        }
    }
    free(base);
    free(moved);
}

/* Goal: a program whose memory does not hold what its kernels touch never runs. */
static void stores_that_are_too_small_are_refused(void **state)
{
    struct rank *one = calloc(1, sizeof *one);

    for (int k = 0; k < CHOICES; k++)
        run_ranks(one,
                  (struct rank){.choice = &choices[k], .tp = 1, .moved = -1, .short_stores = true});
    free(one);
}

static double distance(const float *a, const float *b, int n)
{
    double difference = 0, norm = 0;

    for (int i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    assert_true(norm > 1e-9);
    return sqrt(difference / norm);
}

/* Sets ret_share to the share of one of two ranks in a parameter's gradient; returns its size. */
static int share_of(int p, int index, const float *whole, float *ret_share)
{
    const int axis = shapes[p].tp_axis, dims = dims_of(p), count = product(p, 0, dims);
    const int before = axis < 0 ? 1 : product(p, 0, axis), run = count / before / 2;

    if (axis < 0) {
        memcpy(ret_share, whole, sizeof *whole * (size_t)count);
        return count;
    }
    for (int i = 0; i < before; i++)
        memcpy(ret_share + i * run, whole + (2 * i + index) * run, sizeof *whole * (size_t)run);
    return count / 2;
}

/* Goal: the settings do not depend on the layout. Method: two ranks that split the vocabulary, the
 * activations and W2, with W apart from B and blocks recomputed, against one rank. */
static void two_ranks_agree_with_one(void **state)
{
    struct rank *one = calloc(1, sizeof *one), *two = calloc(TP_MAX, sizeof *two);
    float share[VALUES];

    for (int k = 0; k < CHOICES; k++) {
        run_ranks(one, (struct rank){.choice = &choices[k], .tp = 1, .moved = -1});
        run_ranks(
            two,
            (struct rank){
                .choice = &choices[k], .tp = 2, .moved = -1, .recompute = true, .split = true});
        assert_true(fabs(two[0].loss / one->loss - 1) < 1e-6);
        for (int p = 0; p < PARAMS; p++)
            for (int r = 0; r < 2 && is_used(&choices[k], p); r++) {
                const int count = share_of(p, r, one->grad[p], share);

                if (!(distance(two[r].grad[p], share, count) < 1e-5))
                    fail_msg("choice %d, rank %d: %s", k, r, shapes[p].name);
            }
    }
    free(one);
    free(two);
}

/* Goal: training, evaluation and what the host reads agree on the logits. Method: the loss of the
 * logits that are read, in double. */
static void every_use_of_the_head_maps_its_logits(void **state)
{
    struct rank *r = calloc(1, sizeof *r);

    for (int k = 0; k < CHOICES; k++) {
        const double trained = loss_of(r, &choices[k], -1, 0, 0);
        double read = 0;

        run_ranks(r, (struct rank){.choice = &choices[k], .tp = 1, .moved = -1, .eval = true});
        assert_true(fabs(r->loss / trained - 1) < 1e-6);
        run_ranks(r,
                  (struct rank){
                      .choice = &choices[k], .tp = 1, .moved = -1, .eval = true, .logits = true});
        for (int i = 0; i < R; i++) {
            double sum = 0;

            for (int v = 0; v < V; v++)
                sum += exp((double)r->out[i * V + v]);
            read += log(sum) - (double)r->out[i * V + (5 * i + 1) % V];
        }
        assert_true(fabs(read / trained - 1) < 1e-5);
    }
    free(r);
}

RUN_CASES()
