/* fuse: neighbours that one kernel does in one pass over memory become one node.
 *
 *   forward:   s = a + b;  h = norm(s)             ->  norm with residual (sum s, inp a, add b)
 *   backward:  g1 = norm_backward(...);  g = o + g1  ->  norm_backward with add o
 *
 * Each pair saves writing and reading one [R, C] tensor. The pairs stand next to each other as they
 * are recorded and derived; a pair that something stands between is left alone.
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

void hd_pass_fuse(struct hd_emit *e)
{
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        struct hd_node_list *list = &e->lists[c];
        int kept = 0;

        for (int i = 0; i < list->count; i++) {
            struct hd_node *node = list->nodes[i];
            struct hd_node *next = i + 1 < list->count ? list->nodes[i + 1] : NULL;

            if (next && fuse_forward(node, next))
                continue; /* the add is gone, the norm has it */
            list->nodes[kept++] = node;
            if (next && fuse_backward(e, node, next, i + 2))
                i++;
        }
        list->count = kept;
    }
}
