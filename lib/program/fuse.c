/* fuse: what one kernel does in one pass over memory becomes one node.
 *
 *   forward:   s = a + b;  h = norm(s)               ->  norm with residual (sum s, inp a, add b)
 *              p = x W;  h = gelu(p)                 ->  product with GELU behind it (c h, pre p)
 *   backward:  g1 = norm_backward(...);  g = o + g1  ->  norm_backward with add o
 *              g1 = dy W;  g = gelu_backward(g1, p)  ->  product with GELU's gradient behind it
 *              dW += dy' x;  db += sum_r dy          ->  product with the bias's gradient beside it
 *
 * Each pair saves writing and reading one [R, C] tensor; forward GELU in training, where p is
 * written for backward, and the gradient of a bias save reading one. A sum and its norm, and the
 * gradients of a weight and its bias, stand next to each other as they are recorded and derived; a
 * pair that something stands between is left alone. GELU is looked for behind the product whose
 * result it reads: in backward a weight's gradient may stand between. Products get more to do only
 * where the device does it in the product's own pass over memory (hd_gemm_takes_epilogue).
 */
#include <assert.h>
#include <string.h>

#include "program/emit.h"

/* Where an operand of a kernel stands in its row. */
static int find_operand(enum hd_kernel kernel, const char *name)
{
    const struct hd_kernel_info *info = hd_kernel_info(kernel);

    for (int i = 0; i < info->operand_count; i++)
        if (strcmp(info->operands[i].name, name) == 0)
            return i;
    assert(!"no such operand");
    return -1;
}

static struct hd_operand *operand(struct hd_node *node, const char *name)
{
    return &node->operand[find_operand(node->kernel, name)];
}

static bool same(struct hd_operand a, struct hd_operand b)
{
    return a.store >= 0 && a.store == b.store && a.offset_bytes == b.offset_bytes;
}

static bool is_kernel(const struct hd_node *node, enum hd_kernel kernel)
{
    return !node->is_comm && node->kernel == kernel;
}

static bool fuse_forward(struct hd_node *add, struct hd_node *norm)
{
    if (!is_kernel(add, HD_K_add) ||
        !(is_kernel(norm, HD_K_rmsnorm_forward) || is_kernel(norm, HD_K_layernorm_forward)) ||
        operand(norm, "add")->store >= 0 || !same(*operand(norm, "inp"), *operand(add, "out")))
        return false;
    *operand(norm, "sum") = *operand(add, "out");
    *operand(norm, "inp") = *operand(add, "a");
    *operand(norm, "add") = *operand(add, "b");
    return true;
}

static bool used_later(const struct hd_node_list *list, int from, int store)
{
    for (int i = from; i < list->count; i++)
        for (int k = 0; k < HD_KERNEL_OPERANDS_MAX; k++)
            if (list->nodes[i]->operand[k].store == store)
                return true;
    return false;
}

/* The sum's other term takes the place of `add`; its gradient alone (g1) must not be wanted
 * elsewhere. */
static bool fuse_backward(const struct hd_emit *e, struct hd_node *norm, struct hd_node *add,
                          int next_index)
{
    struct hd_operand part;

    if (!is_kernel(add, HD_K_add) ||
        !(is_kernel(norm, HD_K_rmsnorm_backward) || is_kernel(norm, HD_K_layernorm_backward)) ||
        operand(norm, "add")->store >= 0)
        return false;
    part = *operand(norm, "dinp");
    if (!same(part, *operand(add, "b")) || same(part, *operand(add, "a")) ||
        used_later(&e->lists[HD_CALL_B], next_index, part.store) ||
        used_later(&e->lists[HD_CALL_W], 0, part.store))
        return false;
    *operand(norm, "dinp") = *operand(add, "out");
    *operand(norm, "add") = *operand(add, "a");
    return true;
}

/* ---- GELU behind a product ---- */

static bool touches(const struct hd_node *node, int store, bool writing)
{
    for (int k = 0; k < hd_node_operand_count(node); k++)
        if (node->operand[k].store == store &&
            (!writing || (hd_node_access(node, k) & HD_WRITE) != 0))
            return true;
    return false;
}

/* Between nodes `from` and `to`, neither counted. */
static bool touched_between(const struct hd_node_list *list, int from, int to, int store,
                            bool writing)
{
    for (int i = from + 1; i < to; i++)
        if (touches(list->nodes[i], store, writing))
            return true;
    return false;
}

/* In any program, or from outside. */
static bool used_beside(const struct hd_emit *e, const struct hd_node *a, const struct hd_node *b,
                        int store)
{
    if (e->stores[store].kind != HD_STORE_TEMPORARY)
        return true;
    for (int c = 0; c < HD_CALL_COUNT; c++)
        for (int i = 0; i < e->lists[c].count; i++)
            if (e->lists[c].nodes[i] != a && e->lists[c].nodes[i] != b &&
                touches(e->lists[c].nodes[i], store, false))
                return true;
    return false;
}

/* The product whose result node `at` reads as `inp`; -1: something else wrote it last. */
static int find_product(const struct hd_node_list *list, int at, struct hd_operand inp)
{
    int i = at - 1;

    while (i >= 0 && !touches(list->nodes[i], inp.store, true))
        i--;
    if (i < 0 || !is_kernel(list->nodes[i], HD_K_gemm) || !same(*operand(list->nodes[i], "c"), inp))
        return -1;
    return i;
}

/* Whether the device takes GELU over all N elements of the product's result behind it. */
static bool takes_gelu(const struct hd_emit *e, struct hd_node *product,
                       enum hd_gemm_epilogue epilogue, int64_t N, enum hd_dtype dtype)
{
    struct hd_gemm_args args = *(const struct hd_gemm_args *)product->args;

    if (args.accumulate || args.epilogue || args.ldc != args.N || args.M * args.N != N ||
        args.c_dtype != dtype)
        return false;
    args.bias = operand(product, "bias")->store >= 0 ? product->args : NULL; /* given or not */
    args.epilogue = epilogue;
    return hd_gemm_takes_epilogue(&args, &e->options->traits);
}

static void set_epilogue(struct hd_node *product, enum hd_gemm_epilogue epilogue)
{
    ((struct hd_gemm_args *)product->args)->epilogue = epilogue;
}

/* What GELU reads is written only where somebody else reads it too: its backward. */
static bool fuse_gelu(const struct hd_emit *e, const struct hd_node_list *list, int at)
{
    struct hd_node *gelu = list->nodes[at], *product;
    const struct hd_operand inp = *operand(gelu, "inp"), out = *operand(gelu, "out");
    const struct hd_gelu_forward_args *args = gelu->args;
    const int i = find_product(list, at, inp);

    if (i < 0 || operand(gelu, "counts")->store >= 0 || inp.store == out.store)
        return false;
    product = list->nodes[i];
    if (!takes_gelu(e, product, HD_EPILOGUE_GELU, args->N, args->dtype) ||
        touched_between(list, i, at, out.store, false))
        return false;
    if (used_beside(e, product, gelu, inp.store))
        *operand(product, "pre") = inp;
    *operand(product, "c") = out;
    set_epilogue(product, HD_EPILOGUE_GELU);
    return true;
}

/* The gradient in front of GELU's is made no more: nobody else may want it. */
static bool fuse_gelu_backward(const struct hd_emit *e, const struct hd_node_list *list, int at)
{
    struct hd_node *gelu = list->nodes[at], *product;
    const struct hd_operand dout = *operand(gelu, "dout"), dinp = *operand(gelu, "dinp");
    const struct hd_operand inp = *operand(gelu, "inp");
    const struct hd_gelu_backward_args *args = gelu->args;
    const int i = find_product(list, at, dout);

    if (i < 0 || operand(gelu, "counts")->store >= 0 || dinp.store == dout.store ||
        dinp.store == inp.store)
        return false;
    product = list->nodes[i];
    if (operand(product, "bias")->store >= 0 ||
        !takes_gelu(e, product, HD_EPILOGUE_GELU_BACKWARD, args->N, args->dtype) ||
        used_beside(e, product, gelu, dout.store) ||
        touched_between(list, i, at, dinp.store, false) ||
        touched_between(list, i, at, inp.store, true))
        return false;
    *operand(product, "c") = dinp;
    *operand(product, "gelu_inp") = inp;
    set_epilogue(product, HD_EPILOGUE_GELU_BACKWARD);
    return true;
}

/* ---- The gradient of a bias beside that of its weight ---- */

static bool fuse_bias(const struct hd_emit *e, struct hd_node *product, struct hd_node *bias)
{
    const struct hd_bias_backward_args *b = bias->args;
    struct hd_gemm_args args;

    if (!is_kernel(product, HD_K_gemm) || !is_kernel(bias, HD_K_bias_backward) ||
        !product->contribution || product->first_contribution != bias->first_contribution ||
        !same(*operand(product, "a"), *operand(bias, "dout")))
        return false;
    args = *(const struct hd_gemm_args *)product->args;
    if (!args.trans_a || args.M != b->N || args.K != b->R || args.lda != b->ldd ||
        args.c_dtype != HD_F32)
        return false;
    args.dbias = bias->args; /* given: all that counts */
    if (!hd_gemm_takes_epilogue(&args, &e->options->traits))
        return false;
    *operand(product, "dbias") = *operand(bias, "dbias");
    return true;
}

/* ---- The pass ---- */

static void fuse_neighbours(struct hd_emit *e, struct hd_node_list *list)
{
    int kept = 0;

    for (int i = 0; i < list->count; i++) {
        struct hd_node *node = list->nodes[i];
        struct hd_node *next = i + 1 < list->count ? list->nodes[i + 1] : NULL;

        if (next && fuse_forward(node, next))
            continue; /* the add is gone, the norm has it */
        list->nodes[kept++] = node;
        if (next && (fuse_backward(e, node, next, i + 2) || fuse_bias(e, node, next)))
            i++;
    }
    list->count = kept;
}

static bool has_become_part(const struct hd_emit *e, const struct hd_node_list *list, int at)
{
    const struct hd_node *node = list->nodes[at];

    return (is_kernel(node, HD_K_gelu_forward) && fuse_gelu(e, list, at)) ||
           (is_kernel(node, HD_K_gelu_backward) && fuse_gelu_backward(e, list, at));
}

static void fuse_products(const struct hd_emit *e, struct hd_node_list *list)
{
    for (int i = 0; i < list->count; i++) {
        if (!has_become_part(e, list, i))
            continue;
        list->count--;
        memmove(&list->nodes[i], &list->nodes[i + 1],
                (size_t)(list->count - i) * sizeof *list->nodes);
        i--;
    }
}

void hd_pass_fuse(struct hd_emit *e)
{
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        fuse_neighbours(e, &e->lists[c]);
        fuse_products(e, &e->lists[c]);
    }
}
