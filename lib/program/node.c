/* node: access to a node's operands by index, and moving nodes in a list. The passes use it; it
 * uses no pass. */
#include <string.h>

#include "program/emit.h"

#define READ(name)       HD_READ,
#define WRITE(name)      HD_WRITE,
#define READ_WRITE(name) HD_READ_WRITE,
static const enum hd_access comm_access[] = {HD_COMM_OPERAND_LIST(READ, WRITE, READ_WRITE)};

#define OPERAND_COUNT(name, list) \
    (int)(sizeof(struct hd_##name##_operands) / sizeof(struct hd_operand)),
static const int operand_counts[] = {HD_KERNEL_LIST(OPERAND_COUNT)};

int hd_node_operand_count(const struct hd_node *node)
{
    return node->is_comm ? (int)(sizeof comm_access / sizeof comm_access[0])
                         : operand_counts[node->kernel];
}

enum hd_access hd_node_access(const struct hd_node *node, int k)
{
    return node->is_comm ? comm_access[k] : hd_kernel_get_info(node->kernel)->operands[k].access;
}

bool hd_node_touches(const struct hd_node *node, const struct hd_store *store)
{
    const int count = hd_node_operand_count(node);

    for (int k = 0; k < count; k++)
        if (node->operands[k].store == store)
            return true;
    return false;
}

bool hd_node_writes(const struct hd_node *node, const struct hd_store *store)
{
    const int count = hd_node_operand_count(node);

    for (int k = 0; k < count; k++)
        if (node->operands[k].store == store && (hd_node_access(node, k) & HD_WRITE))
            return true;
    return false;
}

bool *hd_node_accumulate(const struct hd_node *node)
{
    switch (node->kernel) {
    case HD_K_gemm:
        return &((struct hd_gemm_args *)node->args)->accumulate;
    case HD_K_fp8_gemm:
        return &((struct hd_fp8_gemm_args *)node->args)->accumulate;
    case HD_K_bias_backward:
        return &((struct hd_bias_backward_args *)node->args)->accumulate;
    case HD_K_dora_backward:
        return &((struct hd_dora_backward_args *)node->args)->accumulate;
    case HD_K_embedding_backward:
        return &((struct hd_embedding_backward_args *)node->args)->accumulate;
    case HD_K_rmsnorm_backward: /* has the argument `accumulate` for dweight, if it computes it */
        return &((struct hd_rmsnorm_backward_args *)node->args)->accumulate;
    case HD_K_score_backward: /* has the argument `accumulate` for dweight, if it computes it */
        return &((struct hd_score_backward_args *)node->args)->accumulate;
    case HD_K_layernorm_backward:
        return &((struct hd_layernorm_backward_args *)node->args)->accumulate;
    case HD_K_rmsnorm_backward_weight:
        return &((struct hd_rmsnorm_backward_weight_args *)node->args)->accumulate;
    case HD_K_qk_norm_backward_weight:
        return &((struct hd_qk_norm_backward_weight_args *)node->args)->accumulate;
    case HD_K_head_norm_backward_weight:
        return &((struct hd_head_norm_backward_weight_args *)node->args)->accumulate;
    case HD_K_conv_backward_weight:
        return &((struct hd_conv_backward_weight_args *)node->args)->accumulate;
    case HD_K_gated_norm_backward_weight:
        return &((struct hd_gated_norm_backward_weight_args *)node->args)->accumulate;
    case HD_K_expert_bias_backward:
        return &((struct hd_expert_bias_backward_args *)node->args)->accumulate;
    case HD_K_grouped_gemm_weight:
        return &((struct hd_grouped_gemm_weight_args *)node->args)->accumulate;
    case HD_K_layernorm_backward_weight:
        return &((struct hd_layernorm_backward_weight_args *)node->args)->accumulate;
    default:
        return NULL;
    }
}

void hd_move_last_to(struct hd_node_list *list, int at)
{
    struct hd_node *node = list->nodes[list->count - 1];

    memmove(&list->nodes[at + 1], &list->nodes[at],
            (size_t)(list->count - 1 - at) * sizeof(struct hd_node *));
    list->nodes[at] = node;
}
