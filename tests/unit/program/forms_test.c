/* forms: ops of models that are no Llama, in two small blocks: gradients against differences of the
 * loss, and two tensor-parallel ranks against one.
 *
 *   a  h = rmsnorm(x), 1 + weight;  q, k normalised over all heads;  RoPE of four channels of a
 *      head, from the second on;  a factor of queries;  x += layernorm(attention), without a bias
 *   b  the same norms of x;  RoPE of neighbours with another theta;  q, k normalised by head,
 *      without weights
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "comm/shm_control.h"
#include "program/run.h"
#include "tests/program/test.h"
#include "tests/unit/program/toy.h"

enum { B = 1, S = 6, R = B * S, C = 8, H = 4, D = 8, V = 32, BLOCKS = 2, PARAMS_MAX = 20 };

struct block_params {
    int norm1, q, q_norm, k_norm, out, norm2;
};

struct toy {
    struct hd_registry registry;
    int64_t Hl, Gl; /* this rank's heads */
    int embedding, head;
    struct block_params block[BLOCKS];
};

/* A rank of a layout, and what one micro-batch left on it. */
struct rank {
    int tp, index;
    int64_t G;
    bool split, recompute, sequence;
    int nudged; /* a parameter, whose values get a random direction times `by` added; -1: none */
    double by;
    const struct hd_shm_control *ctl;
    pthread_t thread;
    double loss;
    struct hd_param params[PARAMS_MAX];
    float *grad[PARAMS_MAX];
    int param_count, rope_tables, factor_tables;
    uint64_t tp_calls;
};

static int param(struct hd_registry *r, const char *name, int64_t rows, int64_t columns,
                 int tp_axis, int copies, bool fused)
{
    return hd_registry_param(r, &(struct hd_param_spec){.name = name,
                                                        .dim_count = columns ? 2 : 1,
                                                        .shape = {rows, columns},
                                                        .tp_axis = tp_axis,
                                                        .tp_copies = copies,
                                                        .partial = tp_axis < 0 && r->sequence,
                                                        .init = HD_INIT_NORMAL,
                                                        .init_std = 0.5,
                                                        .fused = fused});
}

static void declare_block(struct hd_registry *r, struct block_params *p, int64_t G, bool weights)
{
    const int copies = r->mesh.sizes.kv_replica;

    p->norm1 = param(r, weights ? "a.norm1" : "b.norm1", C, 0, -1, 0, false);
    p->q = param(r, weights ? "a.q" : "b.q", H * D, C, 0, 0, false);
    (void)param(r, weights ? "a.k" : "b.k", G * D, C, 0, copies, true);
    (void)param(r, weights ? "a.v" : "b.v", G * D, C, 0, copies, true);
    p->q_norm = weights ? param(r, "a.q_norm", H * D, 0, 0, 0, false) : -1;
    p->k_norm = weights ? param(r, "a.k_norm", G * D, 0, 0, copies, false) : -1;
    p->out = param(r, weights ? "a.out" : "b.out", C, H * D, 1, 0, false);
    p->norm2 = param(r, weights ? "a.norm2" : "b.norm2", C, 0, -1, 0, false);
}

static void declare(struct toy *toy, struct hd_arena *arena, const struct hd_mesh *mesh, int rank,
                    int64_t G, bool sequence, enum hd_dtype dtype)
{
    struct hd_registry *r = &toy->registry;

    hd_registry_init(r, arena, mesh, rank);
    r->sequence = sequence;
    toy->Hl = H / mesh->sizes.tp;
    toy->Gl = G * mesh->sizes.kv_replica / mesh->sizes.tp;
    (void)hd_registry_unit(r, "in", "in");
    toy->embedding = param(r, "in.weight", V, C, -1, 0, false);
    (void)hd_registry_unit(r, "a", "block a");
    declare_block(r, &toy->block[0], G, true);
    (void)hd_registry_unit(r, "b", "block b");
    declare_block(r, &toy->block[1], G, false);
    (void)hd_registry_unit(r, "out", "out");
    toy->head = param(r, "out.weight", V, C, sequence ? 0 : -1, 0, false);
    assert_int_equal(hd_registry_finish(r, dtype, true), HD_OK);
}

static struct hd_tensor *attend(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *qkv)
{
    const struct hd_attention_settings settings = {
        .heads = toy->Hl, .kv_heads = toy->Gl, .head_width = D, .causal = true};

    return op_attention(rec, qkv, &settings);
}

static struct hd_tensor *block_forward(struct hd_rec *rec, void *context, int unit,
                                       struct hd_tensor *x)
{
    static const struct hd_rope part = {.theta = 50, .rotated = 4, .first = 1};
    static const struct hd_rope neighbours = {.theta = 20, .interleaved = true};
    const struct toy *toy = context;
    const bool a = unit == 1;
    const struct block_params *p = &toy->block[a ? 0 : 1];
    const struct hd_head_norm_settings norm = {
        .heads = toy->Hl, .kv_heads = toy->Gl, .head_width = D, .eps = 1e-3, .whole = a};
    struct hd_tensor *positions = hd_rec_batch(rec, HD_BATCH_POSITIONS);
    struct hd_tensor *h = op_copy_to_tp(rec, op_rmsnorm(rec, x, p->norm1, 1e-5, true));
    struct hd_tensor *qkv = op_linear(rec, h, p->q, -1, 3);

    if (a)
        qkv = op_head_norm(rec, qkv, p->q_norm, p->k_norm, &norm);
    qkv = op_rope(rec, qkv, positions, toy->Hl + toy->Gl, D, a ? &part : &neighbours);
    if (a)
        qkv = op_query_factor(rec, qkv, positions, toy->Hl, D, 0.75, 2, 1);
    else
        qkv = op_head_norm(rec, qkv, -1, -1, &norm);
    h = op_reduce_from_tp(rec, op_linear(rec, attend(rec, toy, qkv), p->out, -1, 1));
    return op_add(rec, x, op_layernorm(rec, h, p->norm2, -1, 1e-3, false), 1);
}

static struct hd_tensor *in_forward(struct hd_rec *rec, void *context, int unit,
                                    struct hd_tensor *x)
{
    const struct toy *toy = context;

    x = hd_rec_batch(rec, HD_BATCH_TOKENS);
    if (toy->registry.sequence)
        x = op_tp_rows(rec, x);
    return op_embedding(rec, x, toy->embedding, NULL, -1, 1);
}

static struct hd_tensor *out_forward(struct hd_rec *rec, void *context, int unit,
                                     struct hd_tensor *x)
{
    const struct toy *toy = context;

    if (toy->registry.sequence) /* tp then splits the vocabulary */
        x = op_copy_to_tp(rec, x);
    op_head_loss(rec, x, toy->head, hd_rec_batch(rec, HD_BATCH_TARGETS),
                 (struct hd_head_settings){0});
    return NULL;
}

static struct hd_chunk *compile(struct toy *toy, struct hd_arena *arena, const struct hd_mesh *mesh,
                                enum hd_dtype dtype, bool split, bool recompute)
{
    const struct hd_rec_shape shape = {.mode = HD_RECORD_TRAIN, .B = B, .S = S, .context = S};
    struct hd_compile_options options = {
        .precision = hd_precision_uniform(dtype), .mesh = mesh, .split_backward = split};
    struct hd_rec *rec = hd_rec_new(&toy->registry, &shape, arena);
    struct hd_tensor *x = hd_rec_unit(rec, 0, in_forward, toy, NULL);
    struct hd_chunk *chunk;

    if (recompute)
        options.recompute.policy = HD_RECOMPUTE_FULL;
    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = 1, .force_plain = true},
                               &options.traits);
    for (int unit = 1; unit <= BLOCKS; unit++)
        x = hd_rec_unit(rec, unit, block_forward, toy, x);
    (void)hd_rec_unit(rec, BLOCKS + 1, out_forward, toy, x);
    if (hd_compile(rec, &options, &chunk))
        fail_msg("%s", hd_err_message());
    return chunk;
}

/* ---- running
 * ---------------------------------------------------------------------------------------- */

static float *state_of(const struct toy_memory *m, const struct toy *toy, int p,
                       enum hd_state_kind kind)
{
    const struct hd_param *of = &toy->registry.params[p];
    const struct hd_bucket *bucket = &toy->registry.buckets[of->bucket];

    return (float *)(m->base[hd_state_is_registered(bucket, kind)] + bucket->offset[kind]) +
           of->offset;
}

static void fill(const struct hd_chunk *c, const struct hd_bases *bases, struct rank *r)
{
    int32_t *tokens = hd_store_address(bases, hd_chunk_find_batch(c, HD_BATCH_TOKENS));
    int32_t *targets = hd_store_address(bases, hd_chunk_find_batch(c, HD_BATCH_TARGETS));
    int32_t *positions = hd_store_address(bases, hd_chunk_find_batch(c, HD_BATCH_POSITIONS));
    int32_t *index = hd_store_address(bases, hd_chunk_find_batch(c, HD_BATCH_INDEX));

    for (int i = 0; i < R; i++) {
        tokens[i] = (7 * i + 3) % V;
        targets[i] = (5 * i + 1) % V;
        positions[i] = index[i] = i;
    }
    for (int i = 0; i < c->store_count; i++)
        if (c->stores[i]->kind == HD_STORE_CONSTANT) {
            hd_constant_fill(c->stores[i], hd_store_address(bases, c->stores[i]));
            r->rope_tables += c->stores[i]->constant == HD_CONSTANT_ROPE_TABLE;
            r->factor_tables += c->stores[i]->constant == HD_CONSTANT_QUERY_FACTORS;
        }
}

static void init_params(const struct rank *r, const struct toy *toy, const struct toy_memory *m)
{
    for (int p = 0; p < toy->registry.param_count; p++) {
        const struct hd_param *of = &toy->registry.params[p];
        float *values = state_of(m, toy, p, HD_STATE_WEIGHT);

        hd_param_init_values(of, 1, 0, of->count, values);
        for (int64_t i = 0; p == r->nudged && i < of->count; i++)
            values[i] += (float)(r->by * (double)hd_random_normal(9, (uint64_t)i));
    }
}

static void run_step(const struct hd_chunk *chunk, const struct hd_step_plan *plan,
                     const struct toy_memory *m, struct hd_runner *runner, struct hd_arena *arena)
{
    for (int i = 0; i < plan->count; i++) {
        const struct hd_instruction *in = &plan->list[i];
        struct hd_bound *bound;

        if (in->kind == HD_DO_SYNCHRONIZE)
            assert_int_equal(hd_runner_synchronize(runner), HD_OK);
        if (in->kind != HD_DO_RUN)
            continue;
        assert_int_equal(hd_bind(runner, chunk, in->call, in->first, in->last,
                                 &m->slot[in->slot[HD_SLOT_SAVED]], arena, &bound),
                         HD_OK);
        if (hd_run(runner, bound))
            fail_msg("%s", hd_err_message());
    }
}

static void take_results(struct rank *r, const struct toy *toy, const struct toy_memory *m,
                         struct hd_comm *comm, const struct hd_mesh *mesh)
{
    struct hd_comm_group *group;
    struct hd_comm_count count;

    r->param_count = toy->registry.param_count;
    for (int p = 0; p < r->param_count; p++) {
        r->params[p] = toy->registry.params[p];
        r->grad[p] = malloc((size_t)r->params[p].count * sizeof(float));
        memcpy(r->grad[p], state_of(m, toy, p, HD_STATE_GRAD),
               (size_t)r->params[p].count * sizeof(float));
    }
    assert_int_equal(hd_comm_mesh_group(comm, mesh, HD_GROUP_TP, &group), HD_OK);
    hd_comm_count_get(group, HD_COMM_ALL_REDUCE, &count);
    r->tp_calls = count.calls;
}

static void *rank_main(void *argument)
{
    const struct hd_backend_options options = {.threads = 1, .force_plain = true};
    struct rank *r = argument;
    struct hd_backend *backend;
    struct hd_runner *runner;
    struct hd_step_state *block;
    struct hd_step_plan plan;
    struct hd_chunk *chunk;
    struct hd_arena arena;
    struct hd_comm *comm;
    struct hd_mesh mesh;
    struct toy_memory m;
    struct toy toy;

    hd_arena_init(&arena, 0);
    assert_int_equal(
        hd_mesh_init(&mesh,
                     &(struct hd_mesh_sizes){.tp = r->tp, .kv_replica = r->G < r->tp ? r->tp : 1}),
        HD_OK);
    declare(&toy, &arena, &mesh, r->index, r->G, r->sequence, HD_F32);
    chunk = compile(&toy, &arena, &mesh, HD_F32, r->split, r->recompute);
    plan = toy_plan(HD_SCHEDULE_GPIPE, 1, r->split, &arena);
    assert_int_equal(hd_comm_open_shm(hd_shm_control_fd(r->ctl), hd_shm_control_rank_fds(r->ctl),
                                      r->index, r->tp, 10000, &comm),
                     HD_OK);
    assert_int_equal(hd_backend_cpu()->open(&options, &backend), HD_OK);
    assert_int_equal(hd_runner_new(hd_backend_cpu(), backend, comm, &mesh, &runner), HD_OK);
    toy_lay_out(&m, chunk, &plan, comm);
    init_params(r, &toy, &m);
    fill(chunk, &m.slot[0], r);
    block = (struct hd_step_state *)(m.base[0] + toy.registry.global_offset[HD_GLOBAL_STEP_STATE]);
    block->loss_scale = 1;
    run_step(chunk, &plan, &m, runner, &arena);
    r->loss = block->loss_sum;
    take_results(r, &toy, &m, comm, &mesh);
    hd_runner_free(runner);
    hd_backend_cpu()->close(backend);
    hd_comm_free(comm);
    free(m.base[0]);
    hd_arena_done(&arena);
    return NULL;
}

/* Runs `tp` ranks, all like `like`. */
static void run_ranks(struct rank *ranks, int tp, const struct rank *like)
{
    struct hd_shm_control *ctl;

    assert_int_equal(hd_shm_control_new(tp, &ctl), HD_OK);
    for (int i = 0; i < tp; i++) {
        ranks[i] = *like;
        ranks[i].tp = tp;
        ranks[i].index = i;
        ranks[i].ctl = ctl;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < tp; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    hd_shm_control_free(ctl);
}

static void free_grads(struct rank *ranks, int tp)
{
    for (int i = 0; i < tp; i++)
        for (int p = 0; p < ranks[i].param_count; p++)
            free(ranks[i].grad[p]);
}

/* Goal: every gradient is that of the loss. Method: a central difference of the loss along a random
 * direction of each parameter. With h = 2^-7 it is wrong by h^2 / 6 of the third derivative, 1e-5
 * of it, and by the rounding of the loss, 14 * 2^-24 * 2^7 = 1e-4; slopes are some tenths. */
static void gradients_are_slopes_of_the_loss(void **state)
{
    const double h = 0x1p-7;
    struct rank one;

    run_ranks(&one, 1, &(struct rank){.G = 2, .nudged = -1});
    assert_int_equal(one.rope_tables, 2); /* of two thetas */
    assert_int_equal(one.factor_tables, 1);
    for (int p = 0; p < one.param_count; p++) {
        struct rank above, below;
        double slope = 0, difference;

        for (int64_t i = 0; i < one.params[p].count; i++)
            slope += (double)one.grad[p][i] * (double)hd_random_normal(9, (uint64_t)i);
        run_ranks(&above, 1, &(struct rank){.G = 2, .nudged = p, .by = h});
        run_ranks(&below, 1, &(struct rank){.G = 2, .nudged = p, .by = -h});
        difference = (above.loss - below.loss) / (2 * h);
        if (fabs(slope - difference) > 1e-3 + 5e-3 * fabs(slope))
            fail_msg("%s: slope %g, difference %g", one.params[p].name, slope, difference);
        assert_true(fabs(slope) > 1e-3); /* the parameter matters */
        free_grads(&above, 1);
        free_grads(&below, 1);
    }
    free_grads(&one, 1);
}

/* Compares a rank's gradients with its parts of those of one rank that has everything. */
static void check_parts(const struct rank *part, const struct rank *all)
{
    for (int p = 0; p < all->param_count; p++) {
        const struct hd_param *mine = &part->params[p];
        const int64_t columns = mine->dim_count > 1 ? mine->local[1] : 1;
        const int64_t stride = mine->dim_count > 1 ? mine->shape[1] : 1;
        const int64_t first_column = mine->dim_count > 1 ? mine->start[1] : 0;
        double difference = 0, norm = 0;

        for (int64_t i = 0; i < mine->local[0] * columns; i++) {
            const double want =
                (double)all
                    ->grad[p][(mine->start[0] + i / columns) * stride + first_column + i % columns];
            const double d = (double)part->grad[p][i] - want;

            difference += d * d;
            norm += want * want;
        }
        if (!(sqrt(difference / norm) < 1e-5))
            fail_msg("%s: gradients differ by %g", mine->name, sqrt(difference / norm));
    }
}

/* Goal: a layout is not another model. Method: two ranks with half of the heads each against one,
 * also with one key head that both have, with W apart from B, with everything recomputed, and with
 * the rows between attention shared. */
static void two_ranks_have_their_heads_parts_of_the_gradients(void **state)
{
    for (int64_t G = 1; G <= 2; G++)
        for (int way = 0; way < 4; way++) {
            const struct rank like = {.G = G,
                                      .split = way == 1,
                                      .recompute = way == 2,
                                      .sequence = way == 3,
                                      .nudged = -1};
            struct rank one, two[2];

            run_ranks(&one, 1, &(struct rank){.G = G, .nudged = -1});
            run_ranks(two, 2, &like);
            assert_true(fabs(two[0].loss / one.loss - 1) < 1e-6);
            for (int i = 0; i < 2; i++)
                check_parts(&two[i], &one);
            /* by block: leave forward, enter backward. Block a: the sums of its norms, forward and
             * backward; recomputed: that of forward again, and leave of a and b, of whose results
             * layernorm needs the input. */
            if (way < 3)
                assert_int_equal(two[0].tp_calls, 2 * 2 + 2 + (way == 2 ? 1 + 2 : 0));
            free_grads(&one, 1);
            free_grads(two, 2);
        }
}

/* Goal: no op is fixed to fp32. Method: the programs compile in the other encodings. */
static void the_ops_compile_in_every_encoding(void **state)
{
    static const enum hd_dtype dtypes[] = {HD_BF16, HD_F16};

    for (int i = 0; i < 2; i++) {
        struct hd_arena arena;
        struct hd_mesh mesh;
        struct toy toy;

        hd_arena_init(&arena, 0);
        assert_int_equal(hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.tp = 2}), HD_OK);
        declare(&toy, &arena, &mesh, 0, 2, false, dtypes[i]);
        (void)compile(&toy, &arena, &mesh, dtypes[i], false, false);
        hd_arena_done(&arena);
    }
}

RUN_CASES()
