/* The seams of the engine in one toy: a linear pair over two tensor-parallel ranks, a frozen part,
 * two micro-batches in flight, and B parted from W. It runs on the CPU, folds dry, and its text is
 * pinned.
 *
 *   x0 = embedding(tokens)          frozen
 *   h  = rmsnorm(x0) * frozen norm
 *   y  = gelu(h W1^T) W2^T          W1 cut by rows, W2 by columns; summed over tp
 *   loss of (x0 + y) Wh^T           Wh trained, the same on both ranks
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "comm/shm_control.h"
#include "program/dry.h"
#include "program/run.h"
#include "tests/program/test.h"
#include "tests/unit/program/toy.h"

enum { B = 1, S = 4, R = B * S, C = 8, F = 16, V = 32, MICRO = 2, TP_MAX = 2 };

struct toy {
    struct hd_registry registry;
    int embedding, norm, w1, w2, head;
};

static int param(struct hd_registry *r, const char *name, int64_t rows, int64_t columns,
                 int tp_axis, bool frozen)
{
    return hd_registry_param(r, &(struct hd_param_spec){.name = name,
                                                        .dim_count = columns ? 2 : 1,
                                                        .shape = {rows, columns},
                                                        .tp_axis = tp_axis,
                                                        .init = HD_INIT_NORMAL,
                                                        .init_std = 0.5,
                                                        .frozen = frozen});
}

static void declare(struct toy *toy, struct hd_arena *arena, const struct hd_mesh *mesh, int rank)
{
    struct hd_registry *r = &toy->registry;

    hd_registry_init(r, arena, mesh, rank);
    (void)hd_registry_unit(r, "in", "in");
    toy->embedding = param(r, "in.weight", V, C, -1, true);
    (void)hd_registry_unit(r, "pair", "pair");
    toy->norm = param(r, "pair.norm", C, 0, -1, true);
    toy->w1 = param(r, "pair.w1", F, C, 0, false);
    toy->w2 = param(r, "pair.w2", C, F, 1, false);
    (void)hd_registry_unit(r, "out", "out");
    toy->head = param(r, "out.weight", V, C, -1, false);
    assert_int_equal(hd_registry_finish(r, HD_F32, true), HD_OK);
}

static struct hd_tensor *in_forward(struct hd_rec *rec, void *context, int unit,
                                    struct hd_tensor *x)
{
    const struct toy *toy = context;

    return op_embedding(rec, hd_rec_batch(rec, HD_BATCH_TOKENS), toy->embedding, NULL, -1, 1);
}

static struct hd_tensor *pair_forward(struct hd_rec *rec, void *context, int unit,
                                      struct hd_tensor *x)
{
    const struct toy *toy = context;
    struct hd_tensor *h = op_copy_to_tp(rec, op_rmsnorm(rec, x, toy->norm, 1e-5, false));

    h = op_activation(rec, op_linear(rec, h, toy->w1, -1, 1), HD_ACT_GELU_TANH);
    return op_add(rec, x, op_reduce_from_tp(rec, op_linear(rec, h, toy->w2, -1, 1)), 1);
}

static struct hd_tensor *out_forward(struct hd_rec *rec, void *context, int unit,
                                     struct hd_tensor *x)
{
    const struct toy *toy = context;

    op_head_loss(rec, x, toy->head, hd_rec_batch(rec, HD_BATCH_TARGETS),
                 (struct hd_head_settings){0});
    return NULL;
}

static struct hd_traits cpu_traits(void)
{
    struct hd_traits traits;

    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = 1, .force_plain = true},
                               &traits);
    return traits;
}

static struct hd_chunk *compile(struct toy *toy, struct hd_arena *arena, const struct hd_mesh *mesh,
                                bool split, bool no_fuse)
{
    const struct hd_rec_shape shape = {.mode = HD_RECORD_TRAIN, .B = B, .S = S, .context = S};
    const struct hd_compile_options options = {.precision = hd_precision_uniform(HD_F32),
                                               .mesh = mesh,
                                               .traits = cpu_traits(),
                                               .split_backward = split,
                                               .no_fuse = no_fuse};
    struct hd_rec *rec = hd_rec_new(&toy->registry, &shape, arena);
    struct hd_chunk *chunk;
    struct hd_tensor *x = hd_rec_unit(rec, 0, in_forward, toy, NULL);

    x = hd_rec_unit(rec, 1, pair_forward, toy, x);
    (void)hd_rec_unit(rec, 2, out_forward, toy, x);
    if (hd_compile(rec, &options, &chunk))
        fail_msg("%s", hd_err_message());
    return chunk;
}

/* ---- running
 * ---------------------------------------------------------------------------------------- */

struct rank {
    int tp, index;
    bool split;
    enum hd_schedule_kind schedule;
    const struct hd_shm_control *ctl;
    pthread_t thread;
    double loss;
    float w1[F * C], w2[C * F], head[V * C]; /* gradients: this rank's shares */
    uint64_t tp_bytes;
};

static float *state_of(const struct toy_memory *m, const struct toy *toy, int p,
                       enum hd_state_kind kind)
{
    const struct hd_param *param_ = &toy->registry.params[p];

    return (float *)(m->base[hd_state_is_registered(&toy->registry.buckets[param_->bucket], kind)] +
                     toy->registry.buckets[param_->bucket].offset[kind]) +
           param_->offset;
}

static void fill_batch(const struct hd_chunk *c, const struct hd_bases *bases, int64_t micro)
{
    int32_t *tokens = hd_store_address(bases, hd_chunk_find_batch(c, HD_BATCH_TOKENS));
    int32_t *targets = hd_store_address(bases, hd_chunk_find_batch(c, HD_BATCH_TARGETS));

    for (int i = 0; i < R; i++) {
        tokens[i] = (int32_t)((7 * i + 11 * micro) % V);
        targets[i] = (int32_t)((5 * i + 3 * micro + 1) % V);
    }
}

static void run_step(const struct hd_chunk *chunk, const struct hd_step_plan *plan,
                     struct toy_memory *m, struct hd_runner *runner, struct hd_arena *arena)
{
    for (int i = 0; i < plan->count; i++) {
        const struct hd_instruction *in = &plan->list[i];
        struct hd_bound *bound;

        const struct hd_bases *slot = &m->slot[in->slot[HD_SLOT_SAVED]];

        if (in->kind == HD_DO_SYNCHRONIZE)
            assert_int_equal(hd_runner_synchronize(runner), HD_OK);
        if (in->kind == HD_DO_FEED)
            fill_batch(chunk, slot, in->micro_batch);
        if (in->kind != HD_DO_RUN)
            continue;
        assert_int_equal(hd_bind(runner, chunk, in->call, in->first, in->last, slot, arena, &bound),
                         HD_OK);
        if (hd_run(runner, bound))
            fail_msg("%s", hd_err_message());
    }
}

static void *rank_main(void *argument)
{
    struct rank *r = argument;
    struct hd_backend *backend;
    struct hd_runner *runner;
    struct hd_step_plan plan;
    struct hd_comm_group *group;
    struct hd_comm_count count;
    struct hd_chunk *chunk;
    struct hd_step_state *block;
    struct hd_arena arena;
    struct hd_comm *comm;
    struct hd_mesh mesh;
    struct toy_memory m;
    struct toy toy;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.tp = r->tp}), HD_OK);
    declare(&toy, &arena, &mesh, r->index);
    chunk = compile(&toy, &arena, &mesh, r->split, false);
    plan = toy_plan(r->schedule, MICRO, r->split, &arena);
    assert_int_equal(hd_comm_open_shm(hd_shm_control_fd(r->ctl), hd_shm_control_rank_fds(r->ctl),
                                      r->index, r->tp, 10000, &comm),
                     HD_OK);
    assert_int_equal(hd_backend_cpu()->open(
                         &(struct hd_backend_options){.threads = 1, .force_plain = true}, &backend),
                     HD_OK);
    assert_int_equal(hd_runner_new(hd_backend_cpu(), backend, comm, &mesh, &runner), HD_OK);
    toy_lay_out(&m, chunk, &plan, comm);
    for (int p = 0; p < toy.registry.param_count; p++)
        hd_param_init_values(&toy.registry.params[p], 1, 0, toy.registry.params[p].count,
                             state_of(&m, &toy, p, HD_STATE_WEIGHT));
    block = (struct hd_step_state *)(m.base[0] + toy.registry.global_offset[HD_GLOBAL_STEP_STATE]);
    block->loss_scale = 1;
    run_step(chunk, &plan, &m, runner, &arena);

    r->loss = block->loss_sum;
    memcpy(r->w1, state_of(&m, &toy, toy.w1, HD_STATE_GRAD), sizeof(float) * F * C / (size_t)r->tp);
    memcpy(r->w2, state_of(&m, &toy, toy.w2, HD_STATE_GRAD), sizeof(float) * F * C / (size_t)r->tp);
    memcpy(r->head, state_of(&m, &toy, toy.head, HD_STATE_GRAD), sizeof r->head);
    assert_int_equal(hd_comm_mesh_group(comm, &mesh, HD_GROUP_TP, &group), HD_OK);
    hd_comm_count_get(group, HD_COMM_ALL_REDUCE, &count);
    r->tp_bytes = count.moved_bytes;
    hd_runner_free(runner);
    hd_backend_cpu()->close(backend);
    hd_comm_free(comm);
    free(m.base[0]);
    hd_arena_done(&arena);
    return NULL;
}

static void run_ranks(struct rank *ranks, int tp, bool split, enum hd_schedule_kind schedule)
{
    struct hd_shm_control *ctl;

    assert_int_equal(hd_shm_control_new(tp, &ctl), HD_OK);
    for (int i = 0; i < tp; i++) {
        ranks[i] =
            (struct rank){.tp = tp, .index = i, .split = split, .schedule = schedule, .ctl = ctl};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < tp; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    hd_shm_control_free(ctl);
}

static double distance(const float *a, const float *b, int n)
{
    double difference = 0, norm = 0;

    for (int i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    assert_true(norm > 1e-6);
    return sqrt(difference / norm);
}

/* Goal: a layout is a choice of ops and passes, not another model. Method: two ranks with both
 * micro-batches in flight and W postponed against one rank that runs them one after the other. */
CASE_WITH(NULL, NULL)
static void two_ranks_in_flight_agree_with_one_rank_in_order(void **state)
{
    struct rank *one = calloc(1, sizeof *one), *two = calloc(2, sizeof *two);
    float w2[C * F];

    run_ranks(one, 1, false, HD_SCHEDULE_1F1B);
    run_ranks(two, 2, true, HD_SCHEDULE_GPIPE);
    assert_true(fabs(two[0].loss / one[0].loss - 1) < 1e-6);
    for (int r = 0; r < 2; r++) {
        assert_true(distance(two[r].w1, one[0].w1 + r * F / 2 * C, F / 2 * C) < 1e-5);
        assert_true(distance(two[r].head, one[0].head, V * C) < 1e-5);
        for (int c = 0; c < C; c++) /* columns of W2 */
            memcpy(&w2[c * F / 2], &one[0].w2[c * F + r * F / 2], sizeof(float) * F / 2);
        assert_true(distance(two[r].w2, w2, C * F / 2) < 1e-5);
    }
    /* Forward: one sum of [R, C] per micro-batch (leave). Backward: the input is frozen, so enter
     * sums nothing. Two members move 2 (P-1) n bytes together. */
    assert_int_equal(two[0].tp_bytes + two[1].tp_bytes,
                     MICRO * 2 * (2 - 1) * R * C * sizeof(float));
    free(one);
    free(two);
}

/* ---- the text
 * --------------------------------------------------------------------------------------- */

struct compiled {
    struct hd_arena arena;
    struct hd_mesh mesh;
    struct toy toy;
    struct hd_chunk *chunk;
};

static int compile_toy(void **state)
{
    struct compiled *c = calloc(1, sizeof *c);

    hd_arena_init(&c->arena, 0);
    assert_int_equal(hd_mesh_init(&c->mesh, &(struct hd_mesh_sizes){.tp = 2}), HD_OK);
    declare(&c->toy, &c->arena, &c->mesh, 0);
    c->chunk = compile(&c->toy, &c->arena, &c->mesh, true, false);
    *state = c;
    return 0;
}

static int free_toy(void **state)
{
    struct compiled *c = *state;

    hd_arena_done(&c->arena);
    free(c);
    return 0;
}

/* The listing without what the size of scratch decides (offsets in work): number, op and outputs of
 * each node, and its region where that is not work. */
static void cut_listing(const char *text, struct hd_text *ret_text)
{
    static const char *const regions[] = {"kept+", "deferred+", "state!+", "state+"};

    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        const char *end = strchr(line, '\n');
        int width = end - line < 76 ? (int)(end - line) : 76;

        while (width && line[width - 1] == ' ')
            width--;
        if (strncmp(line, "work", 4) == 0)
            continue;
        hd_text_add(ret_text, "%.*s", width, line);
        for (size_t r = 0; end - line > 100 && r < sizeof regions / sizeof regions[0]; r++) {
            const char *at = strstr(line + 100, regions[r]);

            if (at && at < end) {
                hd_text_add(ret_text, " | %.*s", (int)strcspn(at, " "), at);
                break;
            }
        }
        hd_text_add(ret_text, "\n");
    }
}

/* Goal: the program is what was meant, and stays so. Method: its text.
 *
 * Nothing is derived for the frozen norm and embedding: B ends with gelu, which stands behind W2's
 * product, enter sums nothing. The
 * residual is read by the head in F alone and is not kept; its gradient is, for W2's inputs and
 * weights. */
static void the_text_is_pinned(void **state)
{
    static const char expected[] =
        "F\n"
        "   0 embedding_forward            embedded.0 f32[4,8]\n"
        "   1 rmsnorm_forward              normed.4 f32[4,8], rstd.3 f32[4] | kept+0x000040\n"
        "   2 gemm_gelu                    activated.8 f32[4,8], linear.7 f32[4,8] | "
        "kept+0x000140\n"
        "   3 gemm                         linear.9 f32[4,8]\n"
        "   4 all_reduce                   summed.10 f32[4,8]\n"
        "   5 add                          residual.11 f32[4,8]\n"
        "   6 gemm                         logits.12 f32[4,32]\n"
        "   7 cross_entropy                logits.12 f32[4,32], block.16\n"
        "   8 gemm                         grad.13 f32[4,8] | kept+0x0001c0\n"
        "   9 gemm =+                      grad:out | state!+0x000200\n"
        "B\n"
        "   0 gemm_gelu_backward           grad.20 f32[4,8] | deferred+0x000000\n"
        "W\n"
        "   0 gemm =+                      grad:pair+256 | state!+0x000100\n"
        "   1 gemm =+                      grad:pair | state!+0x000000\n"
        "kept private 640 visible 0\n"
        "deferred private 128 visible 0\n";
    struct compiled *c = *state;
    struct hd_text text = {0}, cut = {0};

    hd_chunk_list(c->chunk, &text);
    cut_listing(text.data, &cut);
    assert_string_equal(cut.data, expected);
    hd_text_free(&text);
    hd_text_free(&cut);
}

/* Goal: two slots are two times what one micro-batch keeps, work is there once, and what W needs is
 * alive after B. Method: sizes by hand, regions by name. */
static void kept_is_per_slot_and_work_is_shared(void **state)
{
    const struct compiled *c = *state;
    const struct hd_extent *x = c->chunk->extent;
    const int64_t row_bytes = (int64_t)sizeof(float) * R;
    struct hd_arena arena;
    struct hd_step_plan plan;
    int in_w = 0;

    /* tokens and targets, 64 bytes each; h [R,C], its product [R,F/2], gelu's [R,F/2], gradient
     * [R,C] */
    assert_int_equal(x[HD_REGION_SAVED].private_bytes,
                     2 * 64 + row_bytes * (C + F / 2 + F / 2 + C));
    assert_int_equal(x[HD_REGION_DEFERRED].private_bytes, row_bytes * (F / 2));
    hd_arena_init(&arena, 0);
    plan = toy_plan(HD_SCHEDULE_GPIPE, MICRO, true, &arena);
    assert_int_equal(plan.saved_slots, MICRO);
    assert_int_equal(plan.deferred_slots, MICRO);
    hd_arena_done(&arena);
    for (int i = 0; i < c->chunk->program[HD_CALL_W].count; i++) {
        const struct hd_node *node = c->chunk->program[HD_CALL_W].nodes[i];

        for (int k = 0; k < hd_node_operand_count(node); k++) {
            const struct hd_store *s = node->operands[k].store;

            if (!s || strcmp(s->name, "scratch") == 0)
                continue;
            in_w++;
            assert_true(s->region == HD_REGION_SAVED || s->region == HD_REGION_DEFERRED ||
                        s->region == HD_REGION_STATE);
        }
    }
    assert_int_equal(in_w, 2 * 3);
}

/* Goal: the fold sees what the run does. Method: FLOPs and bytes by hand. */
static void dry_counts_every_product_and_every_byte_on_the_wire(void **state)
{
    const struct compiled *c = *state;
    struct hd_dry dry = {0};

    hd_dry_add(&dry, c->chunk, HD_CALL_F, true);
    hd_dry_add(&dry, c->chunk, HD_CALL_B, true);
    hd_dry_add(&dry, c->chunk, HD_CALL_W, true);
    /* W1 forward and weights; W2 forward, inputs and weights: 5 products of R, C, F/2; head: 3 of
     * R, C, V */
    assert_true(dry.gemm_flops == 2.0 * R * (5 * C * F / 2 + 3 * C * V));
    assert_int_equal(dry.calls[HD_GROUP_TP][HD_COMM_ALL_REDUCE], 1);
    assert_int_equal(dry.group_bytes[HD_GROUP_TP][HD_COMM_ALL_REDUCE],
                     2 * (2 - 1) * R * C * (int64_t)sizeof(float));
}

RUN_EACH_CASE_WITH(compile_toy, free_toy)
