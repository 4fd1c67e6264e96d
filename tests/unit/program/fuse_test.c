/* fuse: which products get more to do, and which are left alone because somebody else reads what
 * would no longer be there, or because the device gains nothing.
 *
 *   p = x W1^T + b1,  h = gelu(p),  and then what a case makes of them
 */
#include <stdlib.h>
#include <string.h>

#include "program/dry.h"
#include "program/emit.h"
#include "program/operands.h"
#include "program/program.h"
#include "tests/program/test.h"

enum { R = 4, C = 8, F = 16, V = 32 };

struct toy {
    struct hd_registry registry;
    int w1, b1, w2, w3, w4, gain, shift, head;
    struct hd_tensor *(*make)(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p);
};

struct built {
    struct hd_arena arena;
    struct hd_mesh mesh;
    struct toy toy;
    struct hd_chunk *chunk;
};

/* Devices as plans know them: by their traits alone. */
static const struct hd_traits own = {.threads = 1};
static const struct hd_traits cpu_library = {.threads = 1, .gemm_scratch_bytes = 64};
static const struct hd_traits gpu = {.multiprocessors = 132, .gemm_scratch_bytes = 64};
static const struct hd_traits hopper = {
    .multiprocessors = 132, .gemm_scratch_bytes = 64, .isa = "sm_90_glu"};

static int param(struct hd_registry *r, const char *name, int64_t rows, int64_t columns)
{
    return hd_registry_param(r, &(struct hd_param_spec){.name = name,
                                                        .dim_count = columns ? 2 : 1,
                                                        .shape = {rows, columns},
                                                        .tp_axis = -1,
                                                        .init = HD_INIT_NORMAL,
                                                        .init_std = 0.5});
}

static struct hd_tensor *forward(struct hd_rec *rec, void *context, int unit, struct hd_tensor *x)
{
    const struct toy *toy = context;

    return toy->make(rec, toy, op_linear(rec, x, toy->w1, toy->b1, 1));
}

/* The gated MLP behind p, without biases; bf16. */
static struct hd_tensor *gated(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    struct hd_tensor *h = op_glu(rec, op_linear(rec, p, toy->w2, -1, 1), HD_ACT_SILU, 0, 0);

    return op_linear(rec, h, toy->w4, -1, 1);
}

/* The result of a case is [R, F]; it ends in logits, or in a loss. */
static void
build(struct built *b, const struct hd_traits *traits, enum hd_record_mode mode, bool split,
      struct hd_tensor *(*make)(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p))
{
    const struct hd_rec_shape shape = {.mode = mode, .B = 1, .S = R, .context = R};
    const enum hd_dtype dtype = make == gated ? HD_BF16 : HD_F32;
    const struct hd_compile_options options = {.precision = hd_precision_uniform(dtype),
                                               .mesh = &b->mesh,
                                               .traits = *traits,
                                               .split_backward = split};
    struct hd_registry *r = &b->toy.registry;
    struct hd_tensor *x;
    struct hd_rec *rec;

    hd_arena_init(&b->arena, 0);
    assert_int_equal(hd_mesh_init(&b->mesh, &(struct hd_mesh_sizes){.tp = 1}), HD_OK);
    hd_registry_init(r, &b->arena, &b->mesh, 0);
    (void)hd_registry_unit(r, "pair", "pair");
    b->toy.w1 = param(r, "pair.w1", F, C);
    b->toy.b1 = param(r, "pair.b1", F, 0);
    b->toy.w2 = param(r, "pair.w2", F, F);
    b->toy.w3 = param(r, "pair.w3", F, F);
    b->toy.w4 = param(r, "pair.w4", F, F / 2);
    b->toy.gain = param(r, "pair.gain", F, 0);
    b->toy.shift = param(r, "pair.shift", F, 0);
    (void)hd_registry_unit(r, "out", "out");
    b->toy.head = param(r, "out.weight", V, F);
    assert_int_equal(hd_registry_finish(r, dtype, true), HD_OK);
    b->toy.make = make;
    rec = hd_rec_new(r, &shape, &b->arena);
    x = hd_rec_input(rec, "x", R, C, mode == HD_RECORD_TRAIN);
    x = hd_rec_unit(rec, 0, forward, &b->toy, x);
    if (mode == HD_RECORD_TRAIN)
        op_head_loss(rec, x, b->toy.head, hd_rec_batch(rec, HD_BATCH_TARGETS),
                     (struct hd_head_settings){0});
    else
        op_logits(rec, x, b->toy.head, (struct hd_head_settings){0});
    if (hd_compile(rec, &options, &b->chunk))
        fail_msg("%s", hd_err_message());
}

static int count_kernel(const struct built *b, enum hd_call call, enum hd_kernel kernel)
{
    const struct hd_program *p = &b->chunk->program[call];
    int count = 0;

    for (int i = 0; i < p->count; i++)
        count += !p->nodes[i]->is_comm && p->nodes[i]->kernel == kernel;
    return count;
}

enum operand { ANY, PRE, GELU_INP, BIAS, ADD };

static bool has(const struct hd_node *node, enum operand which)
{
    const struct hd_gemm_operands *o = hd_gemm_operands_of(node);

    return which == ANY || (which == PRE && o->pre.store) ||
           (which == GELU_INP && o->gelu_inp.store) || (which == BIAS && o->bias.store) ||
           (which == ADD && o->add.store);
}

/* Products of a program with this epilogue and this operand. */
static int count_products(const struct built *b, enum hd_call call, enum hd_gemm_epilogue epilogue,
                          enum operand which)
{
    const struct hd_program *p = &b->chunk->program[call];
    int count = 0;

    for (int i = 0; i < p->count; i++)
        if (!p->nodes[i]->is_comm && p->nodes[i]->kernel == HD_K_gemm) {
            const struct hd_gemm_args *args = p->nodes[i]->args;

            count += args->epilogue == epilogue && has(p->nodes[i], which);
        }
    return count;
}

/* ---- what is asked for ---- */

static struct hd_tensor *pair(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    return op_linear(rec, op_activation(rec, p, HD_ACT_GELU_TANH), toy->w2, -1, 1);
}

/* Forward alone p is not written; in training it is, for backward, where GELU's derivative stands
 * behind the product of the next weight, with W parted from B or not. */
static void gelu_stands_behind_its_products(void **state)
{
    static const struct hd_traits *const devices[] = {&own, &gpu};

    for (int i = 0; i < 4; i++) {
        struct built b;

        build(&b, devices[i % 2], HD_RECORD_EVAL, false, pair);
        assert_int_equal(count_kernel(&b, HD_CALL_E, HD_K_activation_forward), 0);
        assert_int_equal(count_products(&b, HD_CALL_E, HD_EPILOGUE_GELU, ANY), 1);
        assert_int_equal(count_products(&b, HD_CALL_E, HD_EPILOGUE_GELU, PRE), 0);
        hd_arena_done(&b.arena);

        build(&b, devices[i % 2], HD_RECORD_TRAIN, i / 2, pair);
        assert_int_equal(count_kernel(&b, HD_CALL_F, HD_K_activation_forward), 0);
        assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_GELU, PRE), 1);
        assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_activation_backward), 0);
        assert_int_equal(count_products(&b, HD_CALL_B, HD_EPILOGUE_GELU_BACKWARD, GELU_INP), 1);
        hd_arena_done(&b.arena);
    }
}

/* The bias is added in front of GELU. */
static void the_bias_goes_along(void **state)
{
    struct built b;

    build(&b, &gpu, HD_RECORD_TRAIN, false, pair);
    assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_GELU, BIAS), 1);
    hd_arena_done(&b.arena);
}

/* Method: the products stay equal; bytes that elements move, in bytes of fp32: forward p is not
 * read again, backward neither is the gradient in front of GELU's written and read. And no more
 * memory is kept. */
static void a_pass_over_memory_is_saved(void **state)
{
    struct hd_dry dry[2][2] = {{{0}}};
    struct built b[2];

    build(&b[0], &cpu_library, HD_RECORD_TRAIN, false, pair);
    build(&b[1], &own, HD_RECORD_TRAIN, false, pair);
    for (int i = 0; i < 2; i++) {
        hd_dry_add(&dry[i][0], b[i].chunk, HD_CALL_F, true);
        hd_dry_add(&dry[i][1], b[i].chunk, HD_CALL_B, true);
    }
    for (int call = 0; call < 2; call++) {
        assert_true(dry[0][call].gemm_flops == dry[1][call].gemm_flops);
        assert_true(dry[0][call].costs.flops == dry[1][call].costs.flops);
        assert_int_equal(dry[0][call].costs.read_bytes - dry[1][call].costs.read_bytes, 4 * R * F);
        assert_int_equal(dry[0][call].costs.write_bytes - dry[1][call].costs.write_bytes,
                         call * 4 * R * F);
    }
    assert_int_equal(b[0].chunk->extent[HD_REGION_SAVED].private_bytes,
                     b[1].chunk->extent[HD_REGION_SAVED].private_bytes);
    hd_arena_done(&b[0].arena);
    hd_arena_done(&b[1].arena);
}

/* ---- products and residuals ---- */

/* Records a part of a block: a product adds to the residual p, a norm reads the sum, and so does
 * the next sum. */
static struct hd_tensor *residual(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    struct hd_tensor *sum =
        op_add(rec, p, op_linear(rec, op_activation(rec, p, HD_ACT_GELU_TANH), toy->w2, -1, 1), 1);
    struct hd_tensor *normed = op_rmsnorm(rec, sum, toy->gain, 1e-5, false);

    return op_add(rec, sum, op_linear(rec, normed, toy->w3, toy->b1, 1), 1);
}

/* Goal: where the device can, a product adds its residual, whichever device code multiplies, also
 * with a bias, in evaluation, and in front of a chunk's end. Method: two sums, of which the norm
 * takes the first on a CPU. Of [R, F] in fp32 a CPU's product writes the result, and the norm reads
 * it and the residual, and writes the sum and its own result: 5. On a GPU the product reads the
 * residual and writes the sum, the norm reads the sum and writes its result: 4. The last sum is a
 * kernel on a CPU, which reads two and writes one beside the result that it adds: 4. On a GPU the
 * product reads one and writes one: 2. */
static void a_residual_is_added_by_its_product(void **state)
{
    static const struct hd_traits own_gpu = {.multiprocessors = 132};
    static const struct hd_traits *const devices[] = {&gpu, &own_gpu};
    struct hd_dry cpu_dry = {0};
    struct built cpu;

    build(&cpu, &own, HD_RECORD_TRAIN, false, residual);
    assert_int_equal(count_kernel(&cpu, HD_CALL_F, HD_K_add), 1);
    assert_int_equal(count_products(&cpu, HD_CALL_F, HD_EPILOGUE_NONE, ADD), 0);
    hd_dry_add(&cpu_dry, cpu.chunk, HD_CALL_F, true);
    for (int i = 0; i < 2; i++) {
        struct hd_dry dry = {0};
        struct built b;

        build(&b, devices[i], HD_RECORD_TRAIN, false, residual);
        assert_int_equal(count_kernel(&b, HD_CALL_F, HD_K_add), 0);
        assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_NONE, ADD), 2);
        assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_GELU, PRE), 1);
        hd_dry_add(&dry, b.chunk, HD_CALL_F, true);
        assert_true(dry.gemm_flops == cpu_dry.gemm_flops);
        /* of the first sum both read two; of the second a GPU reads one less */
        assert_int_equal(cpu_dry.costs.read_bytes - dry.costs.read_bytes, 4 * R * F);
        assert_int_equal(cpu_dry.costs.write_bytes - dry.costs.write_bytes, 4 * 2 * R * F);
        hd_arena_done(&b.arena);
        build(&b, devices[i], HD_RECORD_EVAL, false, residual);
        assert_int_equal(count_kernel(&b, HD_CALL_E, HD_K_add), 0);
        assert_int_equal(count_products(&b, HD_CALL_E, HD_EPILOGUE_NONE, ADD), 2);
        hd_arena_done(&b.arena);
    }
    hd_arena_done(&cpu.arena);
}

/* A sum, a norm of it and another sum: a block whose branches have a factor. */
static struct hd_tensor *scaled_residual(struct hd_rec *rec, const struct toy *toy,
                                         struct hd_tensor *p)
{
    struct hd_tensor *sum = op_add(rec, p, op_linear(rec, p, toy->w2, -1, 1), 0.5);
    struct hd_tensor *normed = op_rmsnorm(rec, sum, toy->gain, 1e-5, false);

    return op_add(rec, sum, op_linear(rec, normed, toy->w3, -1, 1), 0.5);
}

/* Goal: a factor of a residual is lost in no fusion. Method: a device on which products add
 * residuals without a factor; the norm takes the first sum with its factor, the last stays a
 * kernel. Backward multiplies the gradient of each branch once. */
static void a_residual_with_a_factor_is_added_by_a_norm(void **state)
{
    const struct hd_program *p;
    int norms = 0;
    struct built b;

    build(&b, &gpu, HD_RECORD_TRAIN, false, scaled_residual);
    assert_int_equal(count_kernel(&b, HD_CALL_F, HD_K_add), 1);
    assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_NONE, ADD), 0);
    assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_copy_columns), 2);
    p = &b.chunk->program[HD_CALL_F];
    for (int i = 0; i < p->count; i++)
        if (p->nodes[i]->kernel == HD_K_rmsnorm_forward) {
            const struct hd_rmsnorm_forward_args *args = p->nodes[i]->args;

            norms++;
            assert_true(args->factor == 0.5f);
            assert_non_null(hd_rmsnorm_forward_operands_of(p->nodes[i])->add.store);
        }
    assert_int_equal(norms, 1);
    hd_arena_done(&b.arena);
}

/* Method: products and kernels by hand. Bytes, bf16: forward [R, F] of gate and up are not read again; backward the
 * gradient [R, F / 2] of the result is neither written nor read. No more is kept. */
static void gates_stand_behind_their_products(void **state)
{
    struct hd_dry dry[2] = {{0}};
    struct built b[2];

    build(&b[0], &hopper, HD_RECORD_EVAL, false, gated);
    assert_int_equal(count_kernel(&b[0], HD_CALL_E, HD_K_glu_forward), 0);
    assert_int_equal(count_products(&b[0], HD_CALL_E, HD_EPILOGUE_GLU, ANY), 1);
    assert_int_equal(count_products(&b[0], HD_CALL_E, HD_EPILOGUE_GLU, PRE), 0);
    hd_arena_done(&b[0].arena);
    for (int split = 0; split < 2; split++) {
        for (int i = 0; i < 2; i++) {
            build(&b[i], i ? &hopper : &gpu, HD_RECORD_TRAIN, split, gated);
            assert_int_equal(count_kernel(&b[i], HD_CALL_F, HD_K_glu_forward), !i);
            assert_int_equal(count_products(&b[i], HD_CALL_F, HD_EPILOGUE_GLU, PRE), i);
            assert_int_equal(count_kernel(&b[i], HD_CALL_B, HD_K_glu_backward), !i);
            assert_int_equal(count_products(&b[i], HD_CALL_B, HD_EPILOGUE_GLU_BACKWARD, GELU_INP),
                             i);
            dry[i] = (struct hd_dry){0};
            hd_dry_add(&dry[i], b[i].chunk, HD_CALL_F, true);
            hd_dry_add(&dry[i], b[i].chunk, HD_CALL_B, true);
        }
        assert_true(dry[0].costs.flops == dry[1].costs.flops);
        assert_true(dry[0].gemm_flops == dry[1].gemm_flops);
        assert_int_equal(dry[0].costs.read_bytes - dry[1].costs.read_bytes,
                         2 * (R * F + R * F / 2));
        assert_int_equal(dry[0].costs.write_bytes - dry[1].costs.write_bytes, 2 * R * F / 2);
        for (int i = 0; i < 2; i++)
            hd_arena_done(&b[i].arena);
    }
}

/* Goal: only the tanh form of GELU has an epilogue. */
static struct hd_tensor *exact_gelu(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    return op_linear(rec, op_activation(rec, p, HD_ACT_GELU_ERF), toy->w2, -1, 1);
}

static void another_activation_stays_behind_its_product(void **state)
{
    struct built b;

    build(&b, &gpu, HD_RECORD_TRAIN, false, exact_gelu);
    assert_int_equal(count_kernel(&b, HD_CALL_F, HD_K_activation_forward), 1);
    assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_activation_backward), 1);
    assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_GELU, ANY), 0);
    hd_arena_done(&b.arena);
}

static struct hd_tensor *result_again(struct hd_rec *rec, const struct toy *toy,
                                      struct hd_tensor *p)
{
    struct hd_tensor *result = op_linear(rec, p, toy->w2, -1, 1);

    return op_add(rec, op_add(rec, p, result, 1), op_activation(rec, result, HD_ACT_GELU_TANH), 1);
}

static struct hd_tensor *result_twice(struct hd_rec *rec, const struct toy *toy,
                                      struct hd_tensor *p)
{
    struct hd_tensor *result = op_linear(rec, p, toy->w2, -1, 1);

    return op_add(rec, result, result, 1);
}

/* The residual is ready only behind the product of the other term. */
static struct hd_tensor *late_residual(struct hd_rec *rec, const struct toy *toy,
                                       struct hd_tensor *p)
{
    struct hd_tensor *result = op_linear(rec, p, toy->w2, -1, 1);

    return op_add(rec, op_activation(rec, p, HD_ACT_GELU_TANH), result, 1);
}

static void a_result_that_something_else_reads_is_not_added_to(void **state)
{
    static struct hd_tensor *(*const cases[])(struct hd_rec *, const struct toy *,
                                              struct hd_tensor *) = {result_again, result_twice,
                                                                     late_residual};

    for (int i = 0; i < 3; i++) {
        struct built b;

        build(&b, &gpu, HD_RECORD_EVAL, false, cases[i]);
        assert_int_equal(count_kernel(&b, HD_CALL_E, HD_K_add), i == 0 ? 2 : 1);
        assert_int_equal(count_products(&b, HD_CALL_E, HD_EPILOGUE_NONE, ADD), 0);
        hd_arena_done(&b.arena);
    }
}

/* ---- norms and their weights ---- */

static struct hd_tensor *normed(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    return op_linear(rec, op_rmsnorm(rec, p, toy->gain, 1e-5, false), toy->w2, -1, 1);
}

static struct hd_tensor *centred(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    return op_linear(rec, op_layernorm(rec, p, toy->gain, toy->shift, 1e-5, false), toy->w2, -1, 1);
}

static const struct hd_node *find_kernel(const struct built *b, enum hd_kernel kernel)
{
    const struct hd_program *p = &b->chunk->program[HD_CALL_B];

    for (int i = 0; i < p->count; i++)
        if (!p->nodes[i]->is_comm && p->nodes[i]->kernel == kernel)
            return p->nodes[i];
    fail_msg("B has no %s", hd_kernel_get_info(kernel)->name);
    return NULL;
}

/* The one node is the contribution to the gradient that the other one was; it reads dout and the
 * rows of the norm once, where two nodes read them twice. */
static void a_norm_makes_the_gradients_of_its_weights(void **state)
{
    struct hd_costs one = {0}, two = {0};
    struct built b, apart;
    const struct hd_node *node;

    build(&b, &gpu, HD_RECORD_TRAIN, false, normed);
    node = find_kernel(&b, HD_K_rmsnorm_backward);
    assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_rmsnorm_backward_weight), 0);
    assert_non_null(hd_rmsnorm_backward_operands_of(node)->dweight.store);
    assert_true(node->contribution && node->first_contribution);
    assert_ptr_equal(hd_node_accumulate(node),
                     &((struct hd_rmsnorm_backward_args *)node->args)->accumulate);
    build(&apart, &cpu_library, HD_RECORD_TRAIN, false, normed);
    assert_int_equal(count_kernel(&apart, HD_CALL_B, HD_K_rmsnorm_backward_weight), 1);
    hd_dry_node_costs(&one, node);
    hd_dry_node_costs(&two, find_kernel(&apart, HD_K_rmsnorm_backward));
    hd_dry_node_costs(&two, find_kernel(&apart, HD_K_rmsnorm_backward_weight));
    /* dout and inp, and rstd */
    assert_int_equal(two.read_bytes - one.read_bytes, 4 * (2 * R * F + R));
    /* and writes the sums for the bias of p */
    assert_int_equal(one.write_bytes - two.write_bytes, 4 * hd_row_sums_count(&gpu, R) * F);
    hd_arena_done(&apart.arena);
    hd_arena_done(&b.arena);

    build(&b, &gpu, HD_RECORD_TRAIN, false, centred);
    node = find_kernel(&b, HD_K_layernorm_backward);
    assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_layernorm_backward_weight), 0);
    assert_non_null(hd_layernorm_backward_operands_of(node)->dweight.store);
    assert_non_null(hd_layernorm_backward_operands_of(node)->dbias.store);
    assert_true(node->contribution && node->first_contribution);
    hd_arena_done(&b.arena);
}

/* Weights that are put off to W need their own pass; so do rows that a block does not hold. */
static void weights_that_are_put_off_have_a_pass_of_their_own(void **state)
{
    struct built b;

    build(&b, &gpu, HD_RECORD_TRAIN, true, normed);
    assert_int_equal(count_kernel(&b, HD_CALL_W, HD_K_rmsnorm_backward_weight), 1);
    assert_null(
        hd_rmsnorm_backward_operands_of(find_kernel(&b, HD_K_rmsnorm_backward))->dweight.store);
    hd_arena_done(&b.arena);
    assert_true(hd_norm_takes_weights(&gpu, 8192, HD_BF16)); /* 16 KiB */
    assert_false(hd_norm_takes_weights(&gpu, 8200, HD_BF16));
    assert_false(hd_norm_takes_weights(&gpu, 1001, HD_BF16)); /* not whole packs */
    assert_false(hd_norm_takes_weights(&cpu_library, 8192, HD_BF16));
}

/* ---- biases and the sums of rows ---- */

/* Returns the operands of the one gradient of a bias in B, that of b1. */
static const struct hd_bias_backward_operands *bias_of(const struct built *b)
{
    assert_int_equal(count_kernel(b, HD_CALL_B, HD_K_bias_backward), 1);
    return hd_bias_backward_operands_of(find_kernel(b, HD_K_bias_backward));
}

/* Goal: the gradient of a bias reads no rows that another node has just written. Method: p is what a
 * norm or an activation reads, whose backward writes p's gradient and its sums: P pieces of R rows,
 * which are fewer here than a piece has. The node stays: it alone contributes to the bias. The pair
 * reads and writes the sums in place of reading the rows. */
static void a_bias_is_summed_where_its_rows_are_written(void **state)
{
    static struct hd_tensor *(*const cases[])(struct hd_rec *, const struct toy *,
                                              struct hd_tensor *) = {normed, centred, exact_gelu};
    static const enum hd_kernel writers[] = {HD_K_rmsnorm_backward, HD_K_layernorm_backward,
                                             HD_K_activation_backward};
    const int64_t P = hd_row_sums_count(&gpu, R);

    assert_int_equal(P, 1);
    for (int i = 0; i < 3; i++) {
        struct hd_costs one = {0}, two = {0};
        const struct hd_bias_backward_operands *o;
        const struct hd_bias_backward_args *args;
        const struct hd_node *node, *writer;
        struct built b, cpu;

        build(&b, &gpu, HD_RECORD_TRAIN, false, cases[i]);
        build(&cpu, &cpu_library, HD_RECORD_TRAIN, false, cases[i]);
        o = bias_of(&b);
        node = find_kernel(&b, HD_K_bias_backward);
        writer = find_kernel(&b, writers[i]);
        args = node->args;
        assert_null(o->dout.store);
        assert_non_null(o->sums.store);
        assert_true(hd_node_writes(writer, o->sums.store));
        assert_true(node->contribution && node->first_contribution);
        assert_int_equal(args->P, P);
        assert_int_equal(o->sums.store->size_bytes, P * F * (int64_t)sizeof(float));
        assert_null(bias_of(&cpu)->sums.store);
        hd_dry_node_costs(&one, node);
        hd_dry_node_costs(&two, find_kernel(&cpu, HD_K_bias_backward));
        assert_int_equal(two.read_bytes - one.read_bytes, 4 * (R - P) * F);
        hd_arena_done(&cpu.arena);
        hd_arena_done(&b.arena);
    }
}

/* The gradient of p is that of a norm, to which a product of another reader of p adds later. */
static struct hd_tensor *late_product(struct hd_rec *rec, const struct toy *toy,
                                      struct hd_tensor *p)
{
    struct hd_tensor *other = op_linear(rec, p, toy->w3, -1, 1);

    return op_add(rec, normed(rec, toy, p), other, 1);
}

/* GELU's derivative is a product's epilogue; something is added later. */
static void rows_that_nobody_sums_in_passing_are_read(void **state)
{
    static struct hd_tensor *(*const cases[])(struct hd_rec *, const struct toy *,
                                              struct hd_tensor *) = {pair, late_product};

    for (int i = 0; i < 2; i++) {
        struct built b;

        build(&b, &gpu, HD_RECORD_TRAIN, false, cases[i]);
        assert_non_null(bias_of(&b)->dout.store);
        assert_null(bias_of(&b)->sums.store);
        hd_arena_done(&b.arena);
    }
}

/* ---- what is left alone ---- */

static void a_device_that_gains_nothing_is_not_asked(void **state)
{
    struct built b;

    build(&b, &cpu_library, HD_RECORD_TRAIN, false, pair);
    assert_int_equal(count_kernel(&b, HD_CALL_F, HD_K_activation_forward), 1);
    assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_activation_backward), 1);
    assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_bias_backward), 1);
    assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_GELU, ANY), 0);
    hd_arena_done(&b.arena);
}

static struct hd_tensor *p_again(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    return op_add(rec, op_activation(rec, p, HD_ACT_GELU_TANH), p, 1);
}

/* Forward alone, too, p is written for whoever else reads it. Its gradient comes to GELU's backward
 * from an add, not from a product. */
static void what_somebody_else_reads_is_written(void **state)
{
    struct built b;

    build(&b, &own, HD_RECORD_EVAL, false, p_again);
    assert_int_equal(count_products(&b, HD_CALL_E, HD_EPILOGUE_GELU, PRE), 1);
    assert_int_equal(count_kernel(&b, HD_CALL_E, HD_K_activation_forward), 0);
    hd_arena_done(&b.arena);
}

static struct hd_tensor *h_again(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    struct hd_tensor *h = op_activation(rec, p, HD_ACT_GELU_TANH);

    return op_add(rec, op_linear(rec, h, toy->w2, -1, 1), h, 1);
}

static struct hd_tensor *h_twice(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    struct hd_tensor *h = op_activation(rec, p, HD_ACT_GELU_TANH);

    return op_add(rec, op_linear(rec, h, toy->w2, -1, 1), op_linear(rec, h, toy->w3, -1, 1), 1);
}

/* The gradient of h is a sum: of a product and what comes another way, or of two products, the
 * second of which adds to the first. GELU's derivative is of the whole. */
static void a_gradient_that_is_a_sum_is_not_fused(void **state)
{
    static struct hd_tensor *(*const cases[])(struct hd_rec *, const struct toy *,
                                              struct hd_tensor *) = {h_again, h_twice};

    for (int i = 0; i < 2; i++) {
        struct built b;

        build(&b, i ? &gpu : &own, HD_RECORD_TRAIN, false, cases[i]);
        assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_activation_backward), 1);
        assert_int_equal(count_products(&b, HD_CALL_B, HD_EPILOGUE_GELU_BACKWARD, ANY), 0);
        assert_int_equal(count_products(&b, HD_CALL_F, HD_EPILOGUE_GELU, PRE), 1);
        hd_arena_done(&b.arena);
    }
}

static struct hd_tensor *summed(struct hd_rec *rec, const struct toy *toy, struct hd_tensor *p)
{
    struct hd_tensor *h =
        op_add(rec, op_activation(rec, p, HD_ACT_GELU_TANH), op_linear(rec, p, toy->w3, -1, 1), 1);

    return op_linear(rec, h, toy->w2, -1, 1);
}

/* The gradient in front of GELU is that of the other term, too: W3's backward reads it. */
static void a_gradient_that_somebody_else_reads_is_not_fused(void **state)
{
    struct built b;

    build(&b, &own, HD_RECORD_TRAIN, false, summed);
    assert_int_equal(count_kernel(&b, HD_CALL_B, HD_K_activation_backward), 1);
    assert_int_equal(count_products(&b, HD_CALL_B, HD_EPILOGUE_GELU_BACKWARD, ANY), 0);
    hd_arena_done(&b.arena);
}

/* ---- how it reads ---- */

static void a_listing_names_what_is_fused(void **state)
{
    struct hd_text text = {0};
    struct built b;

    build(&b, &gpu, HD_RECORD_TRAIN, false, pair);
    hd_chunk_list(b.chunk, &text);
    assert_non_null(strstr(text.data, " gemm_gelu "));
    assert_non_null(strstr(text.data, " gemm_gelu_backward "));
    hd_text_free(&text);
    hd_arena_done(&b.arena);
    text = (struct hd_text){0};
    build(&b, &gpu, HD_RECORD_TRAIN, false, residual);
    hd_chunk_list(b.chunk, &text);
    assert_non_null(strstr(text.data, " gemm_add "));
    hd_text_free(&text);
    hd_arena_done(&b.arena);
}

RUN_CASES()
