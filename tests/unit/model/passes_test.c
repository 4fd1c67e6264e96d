/* The passes over whole models: what each promises, looked at from outside. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "model/model.h"
#include "program/operands.h"
#include "tests/program/test.h"

enum { L = 3, C = 32, H = 4, D = 8, V = 64, S = 8, B = 2 };

struct built {
    struct hd_arena arena;
    struct hd_registry registry;
    struct hd_model model;
    struct hd_mesh mesh;
    struct hd_chunk *chunk;
};

struct wish {
    const char *family;
    int G, tp, dp;
    bool tied, no_fuse, split;
    bool gpu; /* the traits of one, with a library */
    bool fp8, history, dropout;
    bool tiled; /* sequences and heads as attention's tensor cores want them */
    enum hd_record_mode mode;
    struct hd_precision precision;
};

static struct hd_model_config config_of(const struct wish *w)
{
    struct hd_model_config c = {.L = L,
                                .C = C,
                                .H = H,
                                .G = w->G,
                                .D = D,
                                .F = 48,
                                .V = V,
                                .context = S,
                                .rope = {.theta = 10000},
                                .norm_eps = 1e-5,
                                .tied = w->tied,
                                .dropout_residual = w->dropout ? 0.1 : 0};

    if (w->tiled) {
        c.C = 128;
        c.H = c.G = 2;
        c.D = 64;
        c.context = HD_ATTENTION_SUM_ROWS;
    }
    c.family = hd_family_named(w->family);
    assert_non_null(c.family);
    if (w->tiled && c.family->learned)
        c.positions = HD_POSITIONS_LEARNED;
    c.qkv_bias = c.out_bias = c.mlp_bias = c.family->learned; /* gpt2 */
    return c;
}

static void build(struct built *b, const struct wish *w)
{
    const struct hd_model_config config = config_of(w);
    const struct hd_rec_shape shape = {
        .mode = w->mode, .B = B, .S = config.context, .context = config.context};
    struct hd_compile_options options = {.precision = w->precision,
                                         .mesh = &b->mesh,
                                         .split_backward = w->split,
                                         .no_fuse = w->no_fuse,
                                         .fp8 = w->fp8};
    struct hd_rec *rec;

    hd_arena_init(&b->arena, 0);
    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = 2}, &options.traits);
    if (w->gpu)
        options.traits = (struct hd_traits){.multiprocessors = 132, .gemm_scratch_bytes = 1 << 20};
    assert_int_equal(hd_mesh_init(&b->mesh, &(struct hd_mesh_sizes){.tp = w->tp, .dp = w->dp}),
                     HD_OK);
    hd_registry_init(&b->registry, &b->arena, &b->mesh, 0);
    b->registry.amax_history = w->history ? 16 : 0;
    assert_int_equal(hd_model_declare(&config, &b->registry, &b->arena, &b->model), HD_OK);
    assert_int_equal(hd_registry_finish(&b->registry, w->precision.of_class[HD_CLASS_LINEAR], true),
                     HD_OK);
    rec = hd_rec_new(&b->registry, &shape, &b->arena);
    hd_model_record(&b->model, hd_model_units(&b->model), rec);
    if (hd_compile(rec, &options, &b->chunk))
        fail_msg("%s", hd_err_message());
}

static int count_kernel(const struct hd_chunk *c, enum hd_call call, enum hd_kernel kernel)
{
    int count = 0;

    for (int i = 0; i < c->program[call].count; i++)
        count += !c->program[call].nodes[i]->is_comm && c->program[call].nodes[i]->kernel == kernel;
    return count;
}

/* ---- place
 * ------------------------------------------------------------------------------------------ */

/* First and last node of a program that touch a store, found by looking. A store that a collective
 * touches may be in use until the program's end. */
static bool life(const struct hd_program *p, const struct hd_store *s, int *first, int *last)
{
    *first = -1;
    for (int i = 0; i < p->count; i++)
        if (hd_node_touches(p->nodes[i], s)) {
            *first = *first < 0 ? i : *first;
            *last = i;
        }
    if (*first >= 0 && s->kind == HD_STORE_BATCH)
        *first = 0;
    if (*first >= 0 && s->kind == HD_STORE_OUTPUT)
        *last = p->count;
    return *first >= 0;
}

static bool overlap(const struct hd_store *a, const struct hd_store *b)
{
    return a->offset >= 0 && b->offset >= 0 && a->region == b->region &&
           a->registered == b->registered && a->offset < b->offset + b->size_bytes &&
           b->offset < a->offset + a->size_bytes;
}

static void check_no_two_meet(const struct hd_chunk *c, const struct hd_program *p)
{
    for (int i = 0; i < c->store_count; i++)
        for (int k = i + 1; k < c->store_count; k++) {
            const struct hd_store *a = c->stores[i], *b = c->stores[k];
            int a0, a1, b0, b1;

            if (a->region == HD_REGION_STATE || b->region == HD_REGION_STATE || !overlap(a, b))
                continue;
            if (a->region != HD_REGION_WORK)
                fail_msg("%s.%d and %s.%d share %s memory", a->name, i, b->name, k,
                         hd_region_name(a->region));
            if (life(p, a, &a0, &a1) && life(p, b, &b0, &b1) && a0 <= b1 && b0 <= a1)
                fail_msg("%s: %s.%d [%d,%d] and %s.%d [%d,%d] share memory", hd_call_name(p->call),
                         a->name, i, a0, a1, b->name, k, b0, b1);
        }
}

static void check_inside(const struct hd_chunk *c)
{
    for (int i = 0; i < c->store_count; i++) {
        const struct hd_store *s = c->stores[i];
        const struct hd_extent *x = &c->extent[s->region];

        if (s->offset < 0) /* fused away: no node touches it */
            continue;
        assert_true(s->offset % HD_TENSOR_ALIGN == 0);
        assert_true(strcmp(s->name, "scratch") != 0 || s->offset % HD_SCRATCH_ALIGN == 0);
        if (s->region != HD_REGION_STATE)
            assert_true(s->offset + s->size_bytes <=
                        (s->registered ? x->registered_bytes : x->private_bytes));
    }
}

/* Goal: nothing overwrites what is still needed. Method: brute force over all pairs of stores of
 * all programs, for both families, training (joined and split), evaluation and decode, with tp. */
static void no_two_live_stores_share_memory(void **state)
{
    static const char *const families[] = {"llama", "gpt2"};

    for (int i = 0; i < 24; i++) {
        const struct wish w = {.family = families[i % 2],
                               .G = i % 2 ? 4 : 2,
                               .tp = 1 + i / 12,
                               .dp = 2,
                               .tied = i % 3 == 0,
                               .split = i % 4 < 2,
                               .gpu = i % 8 >= 4,
                               .mode = (enum hd_record_mode)(i / 2 % 3),
                               .precision = hd_precision_uniform(i % 5 < 3 ? HD_F32 : HD_BF16)};
        struct built b;

        build(&b, &w);
        check_inside(b.chunk);
        for (int c = 0; c < HD_CALL_COUNT; c++)
            check_no_two_meet(b.chunk, &b.chunk->program[c]);
        hd_arena_done(&b.arena);
    }
}

/* ---- fuse
 * ------------------------------------------------------------------------------------------- */

static struct wish llama(void)
{
    return (struct wish){.family = "llama",
                         .G = 2,
                         .tp = 1,
                         .dp = 1,
                         .mode = HD_RECORD_TRAIN,
                         .precision = hd_precision_uniform(HD_F32)};
}

/* Unfused, each block adds twice forward and sums two gradients backward; a norm stands behind
 * every add (the next block's, or the head's), and in front of every sum. */
static void every_add_of_a_model_is_fused(void **state)
{
    struct wish w = llama();
    struct built fused, plain;

    build(&fused, &w);
    w.no_fuse = true;
    build(&plain, &w);
    assert_int_equal(count_kernel(plain.chunk, HD_CALL_F, HD_K_add), 2 * L);
    assert_int_equal(count_kernel(plain.chunk, HD_CALL_B, HD_K_add), 2 * L);
    assert_int_equal(count_kernel(fused.chunk, HD_CALL_F, HD_K_add), 0);
    assert_int_equal(count_kernel(fused.chunk, HD_CALL_B, HD_K_add), 0);
    assert_int_equal(fused.chunk->program[HD_CALL_F].count,
                     plain.chunk->program[HD_CALL_F].count - 2 * L);
    hd_arena_done(&fused.arena);
    hd_arena_done(&plain.arena);
}

/* Fused nodes of GPT-2 on a GPU: one GELU a block, and of the biases of four linears the two before
 * a residual, whose gradients norms write, also behind the sum of ranks where tp cuts
 * their weights. Forward alone nothing is kept of GELU. */
static void every_gelu_and_the_residual_biases_of_a_model_are_fused(void **state)
{
    for (int i = 0; i < 4; i++) {
        const struct wish w = {.family = "gpt2",
                               .G = 4,
                               .tp = 1 + i % 2,
                               .dp = 1,
                               .gpu = true,
                               .mode = i < 2 ? HD_RECORD_TRAIN : HD_RECORD_EVAL,
                               .precision = hd_precision_uniform(HD_BF16)};
        const enum hd_call forward = i < 2 ? HD_CALL_F : HD_CALL_E;
        struct built b;
        int gelus[2] = {0}, kept = 0, summed = 0;

        build(&b, &w);
        assert_int_equal(count_kernel(b.chunk, forward, HD_K_activation_forward), 0);
        assert_int_equal(count_kernel(b.chunk, HD_CALL_B, HD_K_activation_backward), 0);
        assert_int_equal(count_kernel(b.chunk, HD_CALL_B, HD_K_bias_backward), i < 2 ? 4 * L : 0);
        for (int c = 0; c < HD_CALL_COUNT; c++)
            for (int n = 0; n < b.chunk->program[c].count; n++) {
                const struct hd_node *node = b.chunk->program[c].nodes[n];
                const struct hd_gemm_args *args = node->args;

                if (!node->is_comm && node->kernel == HD_K_bias_backward)
                    summed += hd_bias_backward_operands_of(node)->sums.store != NULL;
                if (node->is_comm || node->kernel != HD_K_gemm)
                    continue;
                gelus[0] += args->epilogue == HD_EPILOGUE_GELU;
                gelus[1] += args->epilogue == HD_EPILOGUE_GELU_BACKWARD;
                kept += args->pre != NULL;
            }
        assert_int_equal(gelus[0], L);
        assert_int_equal(gelus[1], i < 2 ? L : 0);
        assert_int_equal(kept, i < 2 ? L : 0);
        assert_int_equal(summed, i < 2 ? 2 * L : 0);
        hd_arena_done(&b.arena);
    }
}

/* Goal: the bias of queries, keys and values is summed where attention writes their gradients, too, if
 * nothing is between: with positions in the embedding, not with rotary ones. Method: the biases
 * before the residuals are summed in any case. */
static void attention_sums_the_bias_of_its_rows(void **state)
{
    for (int rotary = 0; rotary < 2; rotary++) {
        const struct wish w = {.family = rotary ? "gpt_neox" : "gpt2",
                               .G = 2,
                               .tp = 1,
                               .dp = 1,
                               .gpu = true,
                               .tiled = true,
                               .mode = HD_RECORD_TRAIN,
                               .precision = hd_precision_uniform(HD_BF16)};
        int attentions = 0;
        struct built b;

        build(&b, &w);
        for (int n = 0; n < b.chunk->program[HD_CALL_B].count; n++) {
            const struct hd_node *node = b.chunk->program[HD_CALL_B].nodes[n];

            attentions += !node->is_comm && node->kernel == HD_K_attention_backward &&
                          hd_attention_backward_operands_of(node)->sums.store;
        }
        assert_int_equal(attentions, rotary ? 0 : L);
        hd_arena_done(&b.arena);
    }
}

/* Returns the node that wrote the store last, of the program of the call before index `at`, or of the
 * calls before it. */
static const struct hd_node *writer_of(const struct hd_chunk *chunk, int call, int at,
                                       const struct hd_store *store)
{
    const struct hd_program *p = &chunk->program[call];

    while (--at >= 0 && !hd_node_writes(p->nodes[at], store))
        continue;
    if (at >= 0)
        return p->nodes[at];
    assert_true(call > 0);
    return writer_of(chunk, call - 1, chunk->program[call - 1].count, store);
}

/* Checks a factor of a product in fp8: codes of its shape, and the factor of the node that made them,
 * which an encoding has in the order of the product. */
static void check_factor(const struct hd_chunk *chunk, int call, int at, struct hd_operand codes,
                         struct hd_operand factor, int64_t rows, int64_t columns,
                         enum hd_fp8 format)
{
    const struct hd_node *node = writer_of(chunk, call, at, codes.store);
    const struct hd_fp8_encode_args *args = node->args;

    assert_true(hd_node_writes(node, factor.store));
    assert_int_equal(codes.store->rows, rows);
    assert_int_equal(codes.store->columns, columns);
    if (node->kernel == HD_K_fp8_encode) {
        const bool turned = hd_fp8_encode_operands_of(node)->transposed.store == codes.store;

        assert_int_equal(args->format, format);
        assert_int_equal(turned ? args->C : args->R, rows);
        assert_int_equal(turned ? args->R : args->C, columns);
    }
}

/* Checks the factors of all products in fp8 of a chunk; returns their number. */
static int check_products(const struct hd_chunk *chunk)
{
    int products = 0;

    for (int c = 0; c < HD_CALL_COUNT; c++) {
        const struct hd_program *p = &chunk->program[c];

        for (int n = 0; n < p->count; n++) {
            const struct hd_fp8_gemm_args *a = p->nodes[n]->args;
            const struct hd_fp8_gemm_operands *o;

            if (p->nodes[n]->is_comm || p->nodes[n]->kernel != HD_K_fp8_gemm)
                continue;
            products++;
            o = hd_fp8_gemm_operands_of(p->nodes[n]);
            check_factor(chunk, c, n, o->a, o->a_factor, a->M, a->K, a->a_format);
            check_factor(chunk, c, n, o->b, o->b_factor, a->N, a->K, a->b_format);
        }
    }
    return products;
}

static int count_everywhere(const struct hd_chunk *chunk, enum hd_kernel kernel)
{
    int count = 0;

    for (int c = 0; c < HD_CALL_COUNT; c++)
        count += count_kernel(chunk, c, kernel);
    return count;
}

/* Goal: values and gradients are read once for both products of fp8 that they are factors of, and each
 * product has the codes of its own order. Method: of a linear's three products weights are encoded
 * twice, the value once, and the gradient once; where W is apart from B, twice, because W's products
 * would else keep its codes. */
static void a_tensor_is_encoded_once_for_both_products(void **state)
{
    for (int split = 0; split < 2; split++) {
        const struct wish w = {.family = "llama",
                               .G = 4,
                               .tp = 1,
                               .dp = 1,
                               .gpu = true,
                               .fp8 = true,
                               .split = split,
                               .mode = HD_RECORD_TRAIN,
                               .precision = hd_precision_uniform(HD_BF16)};
        struct built b;

        build(&b, &w);
        assert_int_equal(check_products(b.chunk), 3 * 4 * L);
        assert_int_equal(count_everywhere(b.chunk, HD_K_fp8_encode), (split ? 5 : 4) * 4 * L);
        hd_arena_done(&b.arena);
    }
}

/* Goal: with a history of maxima, a tensor that a product in fp8 reads is encoded by the node that
 * computes it, if that can; not where W is apart from B, whose products have the codes in an order of
 * their own. Method: of 4 encodings of each of a block's 4 linears these are gone: the values that
 * both norms and SwiGLU compute, and the gradient that SwiGLU computes. Nothing else reads the values,
 * so that forward neither writes nor keeps them in bf16. */
static void codes_are_made_where_a_tensor_is_computed(void **state)
{
    for (int split = 0; split < 2; split++) {
        const struct wish w = {.family = "llama",
                               .G = 4,
                               .tp = 1,
                               .dp = 1,
                               .gpu = true,
                               .fp8 = true,
                               .history = true,
                               .split = split,
                               .mode = HD_RECORD_TRAIN,
                               .precision = hd_precision_uniform(HD_BF16)};
        struct built b;
        int encodings, norms = 0;

        build(&b, &w);
        assert_int_equal(check_products(b.chunk), 3 * 4 * L);
        encodings = count_everywhere(b.chunk, HD_K_fp8_encode);
        assert_int_equal(encodings, ((split ? 5 : 4) * 4 - 4) * L);
        assert_int_equal(count_everywhere(b.chunk, HD_K_fp8_amax), encodings);
        for (int n = 0; n < b.chunk->program[HD_CALL_F].count; n++) {
            const struct hd_node *node = b.chunk->program[HD_CALL_F].nodes[n];

            if (!node->is_comm && node->kernel == HD_K_rmsnorm_forward &&
                hd_rmsnorm_forward_operands_of(node)->code.store) {
                assert_true(((const struct hd_rmsnorm_forward_args *)node->args)->codes_only);
                assert_int_equal(hd_rmsnorm_forward_operands_of(node)->out.store->region,
                                 HD_REGION_WORK);
                norms++;
            }
        }
        assert_int_equal(norms, 2 * L);
        for (int n = 0; n < b.chunk->program[HD_CALL_B].count; n++) {
            const struct hd_node *node = b.chunk->program[HD_CALL_B].nodes[n];

            if (!node->is_comm &&
                node->kernel == HD_K_glu_backward) /* W reads it, if it is apart */
                assert_int_equal(((const struct hd_glu_backward_args *)node->args)->codes_only,
                                 !split);
        }
        hd_arena_done(&b.arena);
    }
}

/* Goal: a block's two residuals are added by its products on a GPU, in fp8, too; not where a sum
 * over tp or dropout is between, and not on a CPU, where a norm adds them. */
static void every_residual_of_a_model_is_added_by_a_product(void **state)
{
    static const struct {
        int tp;
        bool gpu, fp8, dropout;
        int sums;
    } cases[] = {{1, true, false, false, 2 * L},
                 {1, true, true, false, 2 * L},
                 {2, true, false, false, 0},
                 {1, true, false, true, 0},
                 {1, false, false, false, 0}};

    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const struct wish w = {.family = i % 2 ? "gpt2" : "llama",
                               .G = i % 2 ? 4 : 2,
                               .tp = cases[i / 2].tp,
                               .dp = 1,
                               .gpu = cases[i / 2].gpu,
                               .fp8 = cases[i / 2].fp8,
                               .dropout = cases[i / 2].dropout,
                               .mode = HD_RECORD_TRAIN,
                               .precision = hd_precision_uniform(HD_BF16)};
        const struct hd_program *f;
        struct built b;
        int sums[2] = {0};

        build(&b, &w);
        f = &b.chunk->program[HD_CALL_F];
        for (int n = 0; n < f->count; n++)
            if (f->nodes[n]->kernel == HD_K_gemm && !f->nodes[n]->is_comm)
                sums[0] += hd_gemm_operands_of(f->nodes[n])->add.store != NULL;
            else if (f->nodes[n]->kernel == HD_K_fp8_gemm && !f->nodes[n]->is_comm)
                sums[1] += hd_fp8_gemm_operands_of(f->nodes[n])->add.store != NULL;
        assert_int_equal(sums[w.fp8], cases[i / 2].sums);
        assert_int_equal(sums[!w.fp8], 0);
        assert_int_equal(count_kernel(b.chunk, HD_CALL_F, HD_K_add), 0);
        hd_arena_done(&b.arena);
    }
}

/* ---- precision
 * -------------------------------------------------------------------------------------- */

/* With a residual stream in fp32 and everything else in bf16, each norm reads a cast of the
 * residual and each add reads a cast of a projection: 2 L + 1 norms and 2 L adds, and the
 * embedding's result once. */
static void casts_stand_where_the_table_asks(void **state)
{
    struct wish w = llama();
    struct built b;

    w.mode = HD_RECORD_EVAL;
    w.precision = hd_precision_uniform(HD_BF16);
    w.precision.of_class[HD_CLASS_RESIDUAL] = HD_F32;
    build(&b, &w);
    assert_int_equal(count_kernel(b.chunk, HD_CALL_E, HD_K_cast), 2 * L + 2 * L + 1);
    hd_arena_done(&b.arena);

    w.precision = hd_precision_uniform(HD_BF16);
    build(&b, &w);
    assert_int_equal(count_kernel(b.chunk, HD_CALL_E, HD_K_cast), 0);
    hd_arena_done(&b.arena);
}

/* ---- shard
 * ------------------------------------------------------------------------------------------ */

/* Each trainable part is summed once, in the last micro-batch only, behind its last contribution.
 */
static void each_bucket_is_reduced_once_behind_its_last_contribution(void **state)
{
    struct wish w = llama();
    struct built b;
    int sums = 0;

    w.dp = 2;
    w.tied = true;
    build(&b, &w);
    for (int c = HD_CALL_F; c <= HD_CALL_B; c++) {
        const struct hd_program *p = &b.chunk->program[c];

        for (int i = 0; i < p->count; i++) {
            const struct hd_store *grad;

            if (!p->nodes[i]->is_comm)
                continue;
            grad = hd_comm_operands_of(p->nodes[i])->received.store;
            sums++;
            assert_true(p->nodes[i]->only_last && p->nodes[i]->stream == HD_STREAM_REDUCE);
            for (int k = i + 1; k < p->count; k++)
                assert_false(hd_node_writes(p->nodes[k], grad));
        }
    }
    assert_int_equal(sums, 1 + L + 1); /* embedding, blocks, head */
    hd_arena_done(&b.arena);
}

/* ---- registry
 * --------------------------------------------------------------------------------------- */

/* Goal: the same model whatever the layout. Method: each of two shares against the slice of the
 * whole. */
static void a_share_starts_as_a_slice_of_the_whole(void **state)
{
    static const struct hd_param_spec specs[] = {
        {.name = "rows", .dim_count = 2, .shape = {8, 6}, .tp_axis = 0},
        {.name = "columns", .dim_count = 2, .shape = {5, 8}, .tp_axis = 1},
        {.name = "vector", .dim_count = 1, .shape = {10}, .tp_axis = 0},
    };

    struct hd_mesh two;

    assert_int_equal(hd_mesh_init(&two, &(struct hd_mesh_sizes){.tp = 2}), HD_OK);
    for (size_t s = 0; s < sizeof specs / sizeof specs[0]; s++) {
        struct hd_param_spec spec = specs[s];
        float whole[64], share[64];
        struct hd_arena arena;

        spec.init = HD_INIT_NORMAL;
        spec.init_std = 1;
        hd_arena_init(&arena, 0);
        for (int bucket = -1; bucket < 2; bucket++) { /* -1: the whole */
            struct hd_registry r;
            const struct hd_param *p;
            int number;

            hd_registry_init(&r, &arena, bucket < 0 ? NULL : &two, bucket < 0 ? 0 : bucket);
            (void)hd_registry_unit(&r, "u", "u");
            number = hd_registry_param(&r, &spec);
            p = &r.params[number];
            hd_param_init_values(p, 9, 0, p->count, bucket < 0 ? whole : share);
            for (int64_t i = 0; bucket >= 0 && i < p->count; i++) {
                int64_t columns = p->dim_count == 2 ? p->shape[1] : 1;
                int64_t local = p->dim_count == 2 ? p->local[1] : 1;
                int64_t row = i / local + (spec.tp_axis == 0 ? bucket * p->local[0] : 0);
                int64_t column = i % local + (spec.tp_axis == 1 ? bucket * p->local[1] : 0);

                assert_true(share[i] == whole[row * columns + column]);
            }
        }
        hd_arena_done(&arena);
    }
}

/* Returns the standard deviation of the initial values of a parameter. */
static double std_of(const struct hd_registry *r, const char *name)
{
    for (int i = 0; i < r->param_count; i++)
        if (strcmp(r->params[i].name, name) == 0)
            return r->params[i].init_std;
    fail_msg("no parameter %s", name);
    return 0;
}

/* Projections into the residual stream: 0.02 / sqrt(2 L) by default, with L = 3; plain, as wide as
 * all others. */
static void new_weights_are_as_wide_as_the_job_says(void **state)
{
    struct wish w = llama();
    struct hd_model_config c = config_of(&w);

    for (int i = 0; i < 3; i++) {
        const double std = i ? 0.006 : 0.02, residual = i == 2 ? std : std / sqrt(6);
        struct hd_registry r;
        struct hd_model model;
        struct hd_arena arena;

        c.init_std = i ? std : 0;
        c.init_plain = i == 2;
        hd_arena_init(&arena, 0);
        hd_registry_init(&r, &arena, NULL, 0);
        assert_int_equal(hd_model_declare(&c, &r, &arena, &model), HD_OK);
        assert_true(std_of(&r, "embedding.weight") == std);
        assert_true(std_of(&r, "blocks.1.attention.k.weight") == std);
        assert_true(std_of(&r, "blocks.1.attention.out.weight") == residual);
        assert_true(std_of(&r, "blocks.1.mlp.down.weight") == residual);
        hd_arena_done(&arena);
    }
}

static void decay_is_for_matrices_and_ranges_cover_the_bucket(void **state)
{
    struct wish w = llama();
    struct built b;

    build(&b, &w);
    for (int i = 0; i < b.registry.bucket_count; i++) {
        const struct hd_bucket *p = &b.registry.buckets[i];
        int64_t at = 0;

        for (int64_t r = 0; r < p->range_count; r++) {
            assert_int_equal(p->ranges[r].begin, at);
            at = p->ranges[r].end;
        }
        assert_int_equal(at, p->count);
    }
    for (int i = 0; i < b.registry.param_count; i++) {
        const struct hd_param *q = &b.registry.params[i];
        const struct hd_bucket *p = &b.registry.buckets[q->bucket];

        for (int64_t r = 0; r < p->range_count; r++)
            if (p->ranges[r].begin <= q->offset && q->offset < p->ranges[r].end)
                assert_true((p->ranges[r].decay == 1) == (q->dim_count == 2));
    }
    hd_arena_done(&b.arena);
}

/* By hand for L=3, C=32, H=4, G=2, D=8, F=48, V=64: a block's matrices are q,o 32*32 each, k,v
 * 16*32 each, gate, up, down 32*48 each; the head 64*32. Attention: 6 L H D (S+1). */
static void flops_per_token_are_six_per_weight_and_attention(void **state)
{
    struct wish w = llama();
    struct hd_model_config c = config_of(&w);
    const double block = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48;

    assert_true(hd_model_flops_per_token(&c) ==
                6 * (3 * block + 64 * 32) + 6.0 * 3 * 4 * 8 * (8 + 1));
    /* chunks of 3, 3 and 2 of S = 8 tokens: 6 + 6 + 3 visible pairs in place of 36 */
    c.chunk = 3;
    assert_true(hd_model_flops_per_token(&c) ==
                6 * (3 * block + 64 * 32) + 12.0 * 3 * 4 * 8 * 15 / 8);
}

RUN_CASES()
