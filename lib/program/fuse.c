/* fuse: merges two nodes into one where a kernel can compute both in one pass over memory.
 *
 *   any:       y = x W;  s = r + y                   ->  GEMM with a residual (c s, add r)
 *   forward:   s = a + f b;  h = norm(s)             ->  norm with residual (sum s, inp a, add f b)
 *              p = x W;  h = gelu(p)                 ->  GEMM with epilogue GELU (c h, pre p)
 *   backward:  g1 = norm_backward(...);  g = o + g1  ->  norm_backward with add o
 *              g1 = dy W;  g = gelu_backward(g1, p)  ->  GEMM with epilogue GELU backward
 *   both:      glu and its backward                  ->  likewise, where the device has it
 *              norm_backward;  dw += sum_r ..        ->  norm_backward with the weights' gradients
 *              g = norm_backward(..);  db += sum_r g ->  norm_backward with partial sums of g, and
 *                                                        db += sum of these; also activation_backward
 *                                                        and attention_backward
 *   any:       h = norm(x);  codes = encode(h)        ->  norm with codes of its result; also
 *                                                        activations, gates and their backward
 *
 * Each fusion saves writing and reading one [R, C] tensor. Two save only the reading: forward GELU
 * in training, where p is written for backward, and the gradient of a bias. The gradients of a
 * norm's weights save reading two. Two pairs are merged only if they are adjacent: sum and norm, and
 * norm and its weights. Activations and the sum with a residual are merged with the GEMM whose result they
 * read, which need not be adjacent: in backward a weight's gradient may be between them. The
 * gradient of a bias stays a node, where it was: only it contributes to the bias's bucket, whichever
 * unit the rows' writer belongs to. A residual is merged with a product rather than with a norm:
 * product with residual plus norm move four tensors [R, C], product plus norm with residual move
 * five. Epilogues and residuals are given to a GEMM only if the device computes them in the GEMM's
 * own pass over memory (hd_gemm_takes_epilogue).
 */
#include <string.h>

#include "program/emit.h"

static bool same(struct hd_operand a, struct hd_operand b)
{
    return a.store && a.store == b.store && a.offset_bytes == b.offset_bytes;
}

static bool is_kernel(const struct hd_node *node, enum hd_kernel kernel)
{
    return !node->is_comm && node->kernel == kernel;
}

/* Returns true if the add node multiplies its second term by a factor. Products and gradients of
 * norms add residuals without a factor. */
static bool is_scaled(const struct hd_node *add)
{
    return hd_factor_of(((const struct hd_add_args *)add->args)->factor) != 1;
}

/* Adds the node's operands to the numbers of uses, times `change`. */
static void count_uses(const struct hd_emit *e, const struct hd_node *node, int change)
{
    const int count = hd_node_operand_count(node);

    for (int k = 0; k < count; k++)
        if (node->operands[k].store)
            e->uses[node->operands[k].store->id] += change;
}

static int operands_in(const struct hd_node *node, const struct hd_store *store)
{
    const int count = hd_node_operand_count(node);
    int uses = 0;

    for (int k = 0; k < count; k++)
        uses += node->operands[k].store == store;
    return uses;
}

/* Returns true if any node but `a` and `b`, in any program, uses the store. */
static bool other_nodes_use(const struct hd_emit *e, const struct hd_node *a,
                            const struct hd_node *b, const struct hd_store *store)
{
    return e->uses[store->id] > operands_in(a, store) + operands_in(b, store);
}

/* Begins the merging of two nodes, which changes operands of one and drops the other; end_merge,
 * with the one that is left, ends it. */
static void begin_merge(const struct hd_emit *e, const struct hd_node *a, const struct hd_node *b)
{
    count_uses(e, a, -1);
    count_uses(e, b, -1);
}

static bool end_merge(const struct hd_emit *e, const struct hd_node *left)
{
    count_uses(e, left, 1);
    return true;
}

static bool used_later(const struct hd_node_list *list, int from, const struct hd_store *store)
{
    for (int i = from; i < list->count; i++)
        if (hd_node_touches(list->nodes[i], store))
            return true;
    return false;
}

/* Returns true if a node of the list at an index between `from` and `to`, both excluded, uses the
 * store. */
static bool touched_between(const struct hd_node_list *list, int from, int to,
                            const struct hd_store *store)
{
    for (int i = from + 1; i < to; i++)
        if (hd_node_touches(list->nodes[i], store))
            return true;
    return false;
}

static bool written_between(const struct hd_node_list *list, int from, int to,
                            const struct hd_store *store)
{
    for (int i = from + 1; i < to; i++)
        if (hd_node_writes(list->nodes[i], store))
            return true;
    return false;
}

/* Returns true if any node but `a` and `b`, in any program, uses the store, or if code outside the
 * chunk reads it. */
static bool used_elsewhere(const struct hd_emit *e, const struct hd_node *a,
                           const struct hd_node *b, const struct hd_store *store)
{
    return store->kind != HD_STORE_TEMPORARY || other_nodes_use(e, a, b, store);
}

/* Returns the index, in the list, of the last node before index `at` that writes `store`; -1:
 * none. */
static int find_writer(const struct hd_node_list *list, int at, const struct hd_store *store)
{
    int i = at - 1;

    while (i >= 0 && !hd_node_writes(list->nodes[i], store))
        i--;
    return i;
}

/* ---- A product and a residual ---- */

/* Operands of a GEMM or fp8 product that change when it also adds a residual. */
struct fused_product {
    struct hd_operand *c, *add;
};

/* Returns true if the node is a GEMM or fp8 product with N result elements of this encoding, to
 * which the device can add a residual in the same pass. */
static bool takes_residual(const struct hd_emit *e, const struct hd_node *node, int64_t N,
                           enum hd_dtype dtype, struct fused_product *ret_product)
{
    struct hd_gemm_args args;

    if (is_kernel(node, HD_K_gemm)) {
        struct hd_gemm_operands *o = hd_gemm_operands_of(node);

        args = *(const struct hd_gemm_args *)node->args;
        *ret_product = (struct fused_product){&o->c, &o->add};
    } else if (is_kernel(node, HD_K_fp8_gemm)) {
        const struct hd_fp8_gemm_args *a = node->args;
        struct hd_fp8_gemm_operands *o = hd_fp8_gemm_operands_of(node);

        args = (struct hd_gemm_args){.M = a->M,
                                     .N = a->N,
                                     .K = a->K,
                                     .ldc = a->N,
                                     .accumulate = a->accumulate,
                                     .ab_dtype = HD_BF16,
                                     .c_dtype = a->c_dtype};
        *ret_product = (struct fused_product){&o->c, &o->add};
    } else {
        return false;
    }
    if (ret_product->add->store || args.accumulate || args.epilogue || args.ldc != args.N ||
        args.M * args.N != N || args.c_dtype != dtype)
        return false;
    args.add = node->args; /* any address: only NULL or not NULL matters to
                              hd_gemm_takes_epilogue */
    return hd_gemm_takes_epilogue(&args, &e->options->traits);
}

/* Merges the add node at index `at` into the product that wrote `result`, one of its two terms. The
 * product no longer writes `result`, so no other node may read it. The product reads the residual,
 * and writes the sum to the sum's memory, earlier than node `at` did. Returns false and changes
 * nothing if they cannot be merged. */
static bool fuse_terms(const struct hd_emit *e, const struct hd_node_list *list, int at,
                       struct hd_operand result, struct hd_operand residual)
{
    const struct hd_node *sum = list->nodes[at];
    const struct hd_add_args *args = sum->args;
    const struct hd_operand out = hd_add_operands_of(sum)->out;
    const int i = find_writer(list, at, result.store);
    struct fused_product product;

    if (i < 0 || !takes_residual(e, list->nodes[i], args->N, args->dtype, &product) ||
        !same(*product.c, result) || result.store == residual.store ||
        out.store == residual.store || hd_node_touches(list->nodes[i], out.store) ||
        used_elsewhere(e, list->nodes[i], sum, result.store) ||
        touched_between(list, i, at, out.store) || written_between(list, i, at, residual.store))
        return false;
    begin_merge(e, list->nodes[i], sum);
    *product.c = out;
    *product.add = residual;
    return end_merge(e, list->nodes[i]);
}

/* Merges the add node at index `at` into a product that wrote one of its two terms, trying the
 * second term first. Returns false if neither can be merged. */
static bool fuse_residual(const struct hd_emit *e, const struct hd_node_list *list, int at)
{
    const struct hd_add_operands *o;

    if (!is_kernel(list->nodes[at], HD_K_add) || is_scaled(list->nodes[at]))
        return false;
    o = hd_add_operands_of(list->nodes[at]);
    return fuse_terms(e, list, at, o->b, o->a) || fuse_terms(e, list, at, o->a, o->b);
}

/* ---- A sum and a norm ---- */

/* Operands of a norm that change when it is merged with an addition. */
struct norm_nodes {
    struct hd_operand *sum, *inp, *add;
    float *factor;
};
struct norm_backward {
    struct hd_operand *dinp, *add;
};

static bool find_norm(const struct hd_node *node, struct norm_nodes *ret_norm)
{
    if (is_kernel(node, HD_K_rmsnorm_forward)) {
        struct hd_rmsnorm_forward_operands *o = hd_rmsnorm_forward_operands_of(node);
        struct hd_rmsnorm_forward_args *args = node->args;

        *ret_norm = (struct norm_nodes){&o->sum, &o->inp, &o->add, &args->factor};
        return true;
    }
    if (is_kernel(node, HD_K_layernorm_forward)) {
        struct hd_layernorm_forward_operands *o = hd_layernorm_forward_operands_of(node);
        struct hd_layernorm_forward_args *args = node->args;

        *ret_norm = (struct norm_nodes){&o->sum, &o->inp, &o->add, &args->factor};
        return true;
    }
    return false;
}

static bool find_norm_backward(const struct hd_node *node, struct norm_backward *ret_norm)
{
    if (is_kernel(node, HD_K_rmsnorm_backward)) {
        struct hd_rmsnorm_backward_operands *o = hd_rmsnorm_backward_operands_of(node);

        *ret_norm = (struct norm_backward){&o->dinp, &o->add};
        return true;
    }
    if (is_kernel(node, HD_K_layernorm_backward)) {
        struct hd_layernorm_backward_operands *o = hd_layernorm_backward_operands_of(node);

        *ret_norm = (struct norm_backward){&o->dinp, &o->add};
        return true;
    }
    return false;
}

static bool fuse_forward(const struct hd_emit *e, const struct hd_node *add,
                         const struct hd_node *node)
{
    const struct hd_add_operands *a;
    struct norm_nodes norm;

    if (!is_kernel(add, HD_K_add) || !find_norm(node, &norm))
        return false;
    a = hd_add_operands_of(add);
    if (norm.add->store || !same(*norm.inp, a->out))
        return false;
    begin_merge(e, add, node);
    *norm.sum = a->out;
    *norm.inp = a->a;
    *norm.add = a->b;
    *norm.factor = ((const struct hd_add_args *)add->args)->factor;
    return end_merge(e, node);
}

/* Makes the norm_backward node add the other term of the following sum itself. The node then no
 * longer writes its own term (g1), so no other node may read g1. */
static bool fuse_backward(const struct hd_emit *e, const struct hd_node *node,
                          const struct hd_node *add, int next_index)
{
    const struct hd_add_operands *a;
    struct norm_backward norm;
    struct hd_operand bucket;

    if (!is_kernel(add, HD_K_add) || is_scaled(add) || !find_norm_backward(node, &norm) ||
        norm.add->store)
        return false;
    a = hd_add_operands_of(add);
    bucket = *norm.dinp;
    if (!same(bucket, a->b) || same(bucket, a->a) ||
        (other_nodes_use(e, node, add, bucket.store) && /* perhaps earlier ones */
         (used_later(&e->lists[HD_CALL_B], next_index, bucket.store) ||
          used_later(&e->lists[HD_CALL_W], 0, bucket.store))))
        return false;
    begin_merge(e, node, add);
    *norm.dinp = a->out;
    *norm.add = a->a;
    return end_merge(e, node);
}

/* ---- An activation as epilogue of a GEMM ---- */

/* An activation or its backward that reads a product's result. */
struct epilogue_pass {
    struct hd_operand from; /* result of the product */
    struct hd_operand inp;  /* backward: input of the activation; else absent */
    struct hd_operand to;   /* result of the activation or its backward */
    int64_t count;          /* elements of `from` */
    int64_t to_columns;     /* columns of `to`; 0: as many as the product has */
    enum hd_gemm_epilogue epilogue;
    enum hd_activation act;
    enum hd_dtype dtype;
};

/* Sets *ret_pass if the node is an activation over all rows that an epilogue may compute. */
static bool find_pass(const struct hd_node *node, struct epilogue_pass *ret_pass)
{
    const struct hd_operand none = hd_emit_none();

    if (is_kernel(node, HD_K_activation_forward)) {
        const struct hd_activation_forward_args *a = node->args;
        const struct hd_activation_forward_operands *o = hd_activation_forward_operands_of(node);

        *ret_pass = (struct epilogue_pass){o->inp,           none,   o->out,  a->N, 0,
                                           HD_EPILOGUE_GELU, a->act, a->dtype};
        return a->act == HD_ACT_GELU_TANH && !o->counts.store;
    }
    if (is_kernel(node, HD_K_activation_backward)) {
        const struct hd_activation_backward_args *a = node->args;
        const struct hd_activation_backward_operands *o = hd_activation_backward_operands_of(node);

        *ret_pass = (struct epilogue_pass){
            o->dout, o->inp, o->dinp, a->N, 0, HD_EPILOGUE_GELU_BACKWARD, a->act, a->dtype};
        return a->act == HD_ACT_GELU_TANH && !o->counts.store;
    }
    if (is_kernel(node, HD_K_glu_forward)) {
        const struct hd_glu_forward_args *a = node->args;
        const struct hd_glu_forward_operands *o = hd_glu_forward_operands_of(node);

        *ret_pass = (struct epilogue_pass){o->inp,          none,   o->out,  2 * a->R * a->F, a->F,
                                           HD_EPILOGUE_GLU, a->act, a->dtype};
        return !o->counts.store;
    }
    if (is_kernel(node, HD_K_glu_backward)) {
        const struct hd_glu_backward_args *a = node->args;
        const struct hd_glu_backward_operands *o = hd_glu_backward_operands_of(node);

        *ret_pass = (struct epilogue_pass){o->dout,     o->inp,   o->dinp,
                                           a->R * a->F, 2 * a->F, HD_EPILOGUE_GLU_BACKWARD,
                                           a->act,      a->dtype};
        return !o->counts.store;
    }
    return false;
}

/* Returns the index of the GEMM whose result the node at index `at` reads as `inp`; -1: no GEMM
 * wrote `inp` last. */
static int find_product(const struct hd_node_list *list, int at, struct hd_operand inp)
{
    const int i = find_writer(list, at, inp.store);

    if (i < 0 || !is_kernel(list->nodes[i], HD_K_gemm) ||
        !same(hd_gemm_operands_of(list->nodes[i])->c, inp))
        return -1;
    return i;
}

/* Sets *ret_args to those of the GEMM with the activation as its epilogue; returns true if the
 * device can run it over all elements of the GEMM's result. */
static bool takes_pass(const struct hd_emit *e, const struct hd_node *product,
                       const struct epilogue_pass *pass, struct hd_gemm_args *ret_args)
{
    const struct hd_gemm_operands *o = hd_gemm_operands_of(product);
    struct hd_gemm_args args = *(const struct hd_gemm_args *)product->args;

    if (args.accumulate || args.epilogue || o->add.store || args.ldc != args.N ||
        args.M * args.N != pass->count || args.c_dtype != pass->dtype)
        return false;
    args.epilogue = pass->epilogue;
    args.act = pass->act;
    if (pass->to_columns)
        args.ldc = pass->to_columns;
    *ret_args = args;
    /* any address: only NULL or not NULL matters to hd_gemm_takes_epilogue */
    args.bias = o->bias.store ? product->args : NULL;
    return hd_gemm_takes_epilogue(&args, &e->options->traits);
}

/* Merges the activation or its backward at index `at` into the GEMM that computes its input.
 * Forward, the GEMM writes that input to memory (pre) only if another node, the activation's
 * backward, reads it. Backward, it no longer writes dout, so no other node may read it. */
static bool fuse_epilogue(const struct hd_emit *e, const struct hd_node_list *list, int at)
{
    const struct hd_node *node = list->nodes[at];
    struct hd_gemm_operands *product;
    struct epilogue_pass pass;
    struct hd_gemm_args args;
    bool read_later;
    int i;

    if (!find_pass(node, &pass))
        return false;
    i = find_product(list, at, pass.from);
    if (i < 0 || pass.to.store == pass.from.store || pass.to.store == pass.inp.store ||
        !takes_pass(e, list->nodes[i], &pass, &args) || touched_between(list, i, at, pass.to.store))
        return false;
    product = hd_gemm_operands_of(list->nodes[i]);
    read_later = used_elsewhere(e, list->nodes[i], node, pass.from.store);
    if (pass.inp.store &&
        (product->bias.store || read_later || written_between(list, i, at, pass.inp.store)))
        return false;
    begin_merge(e, list->nodes[i], node);
    if (read_later)
        product->pre = pass.from;
    product->c = pass.to;
    product->gelu_inp = pass.inp;
    *(struct hd_gemm_args *)list->nodes[i]->args = args;
    return end_merge(e, list->nodes[i]);
}

/* ---- The gradients of a norm's input and weights in one pass ---- */

static void take_contribution(struct hd_node *node, const struct hd_node *from)
{
    node->contribution = from->contribution;
    node->first_contribution = from->first_contribution;
    node->overwrites = from->overwrites;
    *hd_node_accumulate(node) = *hd_node_accumulate(from);
}

static bool fuse_rmsnorm_weight(const struct hd_emit *e, const struct hd_node *norm,
                                const struct hd_node *weight)
{
    const struct hd_rmsnorm_backward_args *args = norm->args;
    struct hd_rmsnorm_backward_operands *n;
    const struct hd_rmsnorm_backward_weight_operands *w;

    if (!is_kernel(norm, HD_K_rmsnorm_backward) ||
        !is_kernel(weight, HD_K_rmsnorm_backward_weight) ||
        !hd_norm_takes_weights(&e->options->traits, args->C, args->dtype))
        return false;
    n = hd_rmsnorm_backward_operands_of(norm);
    w = hd_rmsnorm_backward_weight_operands_of(weight);
    if (!same(n->dout, w->dout) || !same(n->inp, w->inp) || !same(n->rstd, w->rstd))
        return false;
    begin_merge(e, norm, weight);
    n->dweight = w->dweight;
    return end_merge(e, norm);
}

static bool fuse_layernorm_weight(const struct hd_emit *e, const struct hd_node *norm,
                                  const struct hd_node *weight)
{
    const struct hd_layernorm_backward_args *args = norm->args;
    struct hd_layernorm_backward_operands *n;
    const struct hd_layernorm_backward_weight_operands *w;

    if (!is_kernel(norm, HD_K_layernorm_backward) ||
        !is_kernel(weight, HD_K_layernorm_backward_weight) ||
        !hd_norm_takes_weights(&e->options->traits, args->C, args->dtype))
        return false;
    n = hd_layernorm_backward_operands_of(norm);
    w = hd_layernorm_backward_weight_operands_of(weight);
    if (!same(n->dout, w->dout) || !same(n->inp, w->inp) || !same(n->mean, w->mean) ||
        !same(n->rstd, w->rstd))
        return false;
    begin_merge(e, norm, weight);
    n->dweight = w->dweight;
    n->dbias = w->dbias;
    return end_merge(e, norm);
}

/* Merges a norm's backward with the gradients of its weights. To be called after fuse_neighbours,
 * which leaves no addition between the two. */
static void fuse_norm_weights(const struct hd_emit *e, struct hd_node_list *list)
{
    int left = 0;

    for (int i = 0; i < list->count; i++) {
        struct hd_node *node = list->nodes[i];
        const struct hd_node *next = i + 1 < list->count ? list->nodes[i + 1] : NULL;

        list->nodes[left++] = node;
        if (next && (fuse_rmsnorm_weight(e, node, next) || fuse_layernorm_weight(e, node, next))) {
            take_contribution(node, next);
            i++;
        }
    }
    list->count = left;
}

/* ---- The gradient of a bias from the sums of the node that writes the rows ---- */

/* A node that can write partial sums of the rows that it writes. */
struct row_writer {
    struct hd_operand rows;
    struct hd_operand *sums;
    int64_t count; /* of its partial sums */
};

/* Returns true if the node writes R rows of N values and the device adds them up in the pass that
 * writes them. */
static bool takes_sums(const struct hd_emit *e, const struct hd_node *node, int64_t R, int64_t N,
                       struct row_writer *ret_writer)
{
    const struct hd_traits *traits = &e->options->traits;
    const int64_t count = hd_row_sums_count(traits, R);

    if (is_kernel(node, HD_K_rmsnorm_backward)) {
        const struct hd_rmsnorm_backward_args *a = node->args;
        struct hd_rmsnorm_backward_operands *o = hd_rmsnorm_backward_operands_of(node);

        *ret_writer = (struct row_writer){o->dinp, &o->sums, count};
        return a->R == R && a->C == N && o->dweight.store &&
               hd_norm_takes_sums(traits, N, a->dtype);
    }
    if (is_kernel(node, HD_K_layernorm_backward)) {
        const struct hd_layernorm_backward_args *a = node->args;
        struct hd_layernorm_backward_operands *o = hd_layernorm_backward_operands_of(node);

        *ret_writer = (struct row_writer){o->dinp, &o->sums, count};
        return a->R == R && a->C == N && o->dweight.store &&
               hd_norm_takes_sums(traits, N, a->dtype);
    }
    if (is_kernel(node, HD_K_activation_backward)) {
        struct hd_activation_backward_args *a = node->args;
        struct hd_activation_backward_operands *o = hd_activation_backward_operands_of(node);

        if (a->N != R * N || o->counts.store || !hd_traits_is_cuda(traits))
            return false;
        *ret_writer = (struct row_writer){o->dinp, &o->sums, count};
        a->R = R;
        return true;
    }
    if (is_kernel(node, HD_K_attention_backward)) {
        const struct hd_attention_backward_args *a = node->args;
        struct hd_attention_backward_operands *o = hd_attention_backward_operands_of(node);

        *ret_writer = (struct row_writer){o->dq, &o->sums, R / HD_ATTENTION_SUM_ROWS};
        return a->B * a->q_len == R && (a->H + 2 * a->G) * a->D == N &&
               hd_attention_takes_sums(traits, a) &&
               same(o->dk, hd_emit_at(o->dq, a->H * a->D, a->dtype)) &&
               same(o->dv, hd_emit_at(o->dk, a->G * a->D, a->dtype));
    }
    return false;
}

/* Makes the nodes that write gradients of linears' results add them up for the gradients of biases,
 * which then read the sums in place of the rows. To be called after all merging: it adds stores, of
 * which `uses` knows nothing. */
static void sum_biases(struct hd_emit *e, struct hd_node_list *list)
{
    for (int i = 0; i < list->count; i++) {
        struct hd_bias_backward_operands *o;
        struct hd_bias_backward_args *args;
        struct row_writer writer;
        int at;

        if (!is_kernel(list->nodes[i], HD_K_bias_backward))
            continue;
        o = hd_bias_backward_operands_of(list->nodes[i]);
        args = list->nodes[i]->args;
        at = find_writer(list, i, o->dout.store);
        if (at < 0 || args->ldd != args->N ||
            !takes_sums(e, list->nodes[at], args->R, args->N, &writer) ||
            !same(writer.rows, o->dout))
            continue;
        args->P = writer.count;
        if (!writer.sums->store)
            *writer.sums = hd_emit_temp(e, "sums", HD_F32, args->P, args->N);
        o->dout = hd_emit_none();
        o->sums = *writer.sums;
    }
}

/* ---- Codes of fp8 from the node that computes the tensor ---- */

/* A node that can make codes of its result (HD_FP8_RESULT), of R rows of C columns. */
struct code_writer {
    struct hd_operand *result, *code, *transposed, *factor, *seen, *history;
    int64_t *rows, *history_len;
    bool *only;
    enum hd_fp8 format;
};

/* Sets *ret_writer if the node makes codes of R rows of C columns; else returns false. */
static bool takes_codes(const struct hd_emit *e, const struct hd_node *node, int64_t R, int64_t C,
                        struct code_writer *ret_writer)
{
#define WRITER(kernel, result, of, condition)                                  \
    case HD_K_##kernel: {                                                      \
        struct hd_##kernel##_args *a = node->args;                             \
        struct hd_##kernel##_operands *o = hd_##kernel##_operands_of(node);    \
                                                                               \
        *ret_writer = (struct code_writer){                                    \
            &o->result,  &o->code, &o->code_t,      &o->code_factor, &o->seen, \
            &o->history, &a->R,    &a->history_len, &a->codes_only,  of};      \
        return a->dtype == HD_BF16 && (condition);                             \
    }
    if (node->is_comm)
        return false;
    switch (node->kernel) {
        WRITER(rmsnorm_forward, out, HD_E4M3,
               a->R == R && a->C == C && hd_norm_takes_codes(&e->options->traits, C))
        WRITER(layernorm_forward, out, HD_E4M3,
               a->R == R && a->C == C && hd_norm_takes_codes(&e->options->traits, C))
        WRITER(glu_forward, out, HD_E4M3, a->R == R && a->F == C && !o->counts.store)
        WRITER(glu_backward, dinp, HD_E5M2,
               a->R == R && 2 * a->F == C && a->F % HD_FP8_SIDE == 0 && !o->counts.store)
        WRITER(activation_forward, out, HD_E4M3, a->N == R * C && !o->counts.store)
        WRITER(activation_backward, dinp, HD_E5M2,
               a->N == R * C && !o->counts.store && !o->sums.store)
    default:
        return false;
    }
#undef WRITER
}

/* Makes the node that computes a tensor write its codes, if the scale is known before: by a history of
 * maxima. The nodes at `at` - 1 and `at`, which find the scale and encode, can then be dropped. A
 * tensor that is scaled by its own maximum is encoded in a pass of its own. */
static bool fuse_codes(const struct hd_emit *e, const struct hd_node_list *list, int at)
{
    const struct hd_node *encode = list->nodes[at], *amax = at > 0 ? list->nodes[at - 1] : NULL;
    const struct hd_fp8_encode_args *args = encode->args;
    const struct hd_fp8_encode_operands *o;
    const struct hd_fp8_amax_operands *scale;
    struct code_writer w;
    int i;

    if (!amax || !is_kernel(encode, HD_K_fp8_encode) || !is_kernel(amax, HD_K_fp8_amax))
        return false;
    o = hd_fp8_encode_operands_of(encode);
    scale = hd_fp8_amax_operands_of(amax);
    i = find_writer(list, at - 1, o->inp.store);
    if (!same(o->amax, scale->amax) || !scale->history.store || i < 0 ||
        !takes_codes(e, list->nodes[i], args->R, args->C, &w) || !same(*w.result, o->inp) ||
        w.factor->store || args->format != w.format)
        return false;
    count_uses(e, amax, -1);
    begin_merge(e, list->nodes[i], encode);
    *w.code = o->code;
    *w.transposed = o->transposed;
    *w.factor = o->factor;
    *w.seen = o->seen;
    *w.history = scale->history;
    *w.history_len = ((const struct hd_fp8_amax_args *)amax->args)->history_len;
    (void)end_merge(e, list->nodes[i]);
    *w.rows = args->R;
    *w.only = o->inp.store->kind == HD_STORE_TEMPORARY &&
              e->uses[o->inp.store->id] == operands_in(list->nodes[i], o->inp.store);
    return true;
}

/* ---- The pass ---- */

static void fuse_neighbours(struct hd_emit *e, struct hd_node_list *list)
{
    int left = 0;

    for (int i = 0; i < list->count; i++) {
        struct hd_node *node = list->nodes[i];
        struct hd_node *next = i + 1 < list->count ? list->nodes[i + 1] : NULL;

        if (next && fuse_forward(e, node, next))
            continue; /* the add node is dropped: the norm node computes the sum */
        list->nodes[left++] = node;
        if (next && fuse_backward(e, node, next, i + 2))
            i++;
    }
    list->count = left;
}

/* Calls `fuse` for each node of the list and removes those that it merged into an earlier
 * product. */
static void fuse_products(const struct hd_emit *e, struct hd_node_list *list,
                          bool (*fuse)(const struct hd_emit *e, const struct hd_node_list *list,
                                       int at))
{
    for (int i = 0; i < list->count; i++) {
        if (!fuse(e, list, i))
            continue;
        list->count--;
        memmove(&list->nodes[i], &list->nodes[i + 1],
                (size_t)(list->count - i) * sizeof *list->nodes);
        i--;
    }
}

static void make_codes(const struct hd_emit *e, struct hd_node_list *list)
{
    for (int i = 1; i < list->count; i++) {
        if (!fuse_codes(e, list, i))
            continue;
        list->count -= 2;
        memmove(&list->nodes[i - 1], &list->nodes[i + 1],
                (size_t)(list->count - i + 1) * sizeof *list->nodes);
        i--;
    }
}

/* Residuals are merged with products first; norms then take the sums that remain. */
void hd_pass_fuse(struct hd_emit *e)
{
    e->uses = hd_arena_array(e->arena, (size_t)e->store_count + 1, sizeof *e->uses);
    if (!e->uses) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to merge nodes"));
        return;
    }
    for (int c = 0; c < HD_CALL_COUNT; c++)
        for (int i = 0; i < e->lists[c].count; i++)
            count_uses(e, e->lists[c].nodes[i], 1);
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        fuse_products(e, &e->lists[c], fuse_residual);
        fuse_neighbours(e, &e->lists[c]);
        fuse_norm_weights(e, &e->lists[c]);
        fuse_products(e, &e->lists[c], fuse_epilogue);
    }
    for (int c = 0; c < HD_CALL_COUNT; c++)
        sum_biases(e, &e->lists[c]);
    for (int c = 0; c < HD_CALL_COUNT; c++)
        make_codes(e, &e->lists[c]);
}
