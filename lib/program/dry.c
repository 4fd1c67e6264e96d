#include "program/dry.h"

int64_t hd_dry_comm_bytes(enum hd_comm_kind kind, int P, int64_t count, enum hd_dtype dtype)
{
    const int64_t n = count * (int64_t)hd_dtype_size(dtype);

    switch (kind) {
    case HD_COMM_ALL_REDUCE:
        return 2 * (P - 1) * n;
    case HD_COMM_ALL_GATHER:
    case HD_COMM_REDUCE_SCATTER:
    case HD_COMM_ALL_TO_ALL:
    case HD_COMM_ALL_TO_ALL_V:
        return (int64_t)P * (P - 1) * n;
    case HD_COMM_BROADCAST:
        return (P - 1) * n;
    case HD_COMM_SHIFT: /* every member of the group receives n bytes */
        return P * n;
    case HD_COMM_RECV:
        return n;
    default: /* HD_COMM_SEND is counted at its receiver; a barrier moves no bytes */
        return 0;
    }
}

static bool is_matrix_work(enum hd_kernel kernel)
{
    return kernel == HD_K_grouped_gemm || kernel == HD_K_grouped_gemm_weight ||
           kernel == HD_K_attention_forward || kernel == HD_K_attention_backward;
}

/* Returns the FLOPs of a node's matrix products, without a GEMM's fused epilogue. */
static double matrix_flops(const struct hd_node *node, double flops)
{
    const struct hd_gemm_args *a = node->args;

    if (node->kernel == HD_K_gemm)
        return 2.0 * (double)a->M * (double)a->N * (double)a->K;
    if (node->kernel == HD_K_fp8_gemm)
        return flops;
    return is_matrix_work(node->kernel) ? flops : 0;
}

void hd_dry_node_costs(struct hd_costs *costs, const struct hd_node *node)
{
    if (node->rows.even)
        hd_kernel_cost_add_rows(costs, node->kernel, node->args, node->rows.even);
    else
        hd_kernel_cost_add(costs, node->kernel, node->args);
}

int64_t hd_dry_node_bytes(const struct hd_chunk *chunk, const struct hd_node *node)
{
    const int P = chunk->group_size[node->group];

    if (node->rows.moved)
        return node->rows.moved * node->rows.elements * (int64_t)hd_dtype_size(node->dtype);
    if (node->comm == HD_COMM_ALL_TO_ALL_V)
        return node->rows.even * (P - 1) * node->rows.elements *
               (int64_t)hd_dtype_size(node->dtype);
    return hd_dry_comm_bytes(node->comm, P, node->count, node->dtype);
}

static int64_t node_bytes(const struct hd_dry *dry, const struct hd_chunk *chunk,
                          const struct hd_node *node)
{
    if (node->comm != HD_COMM_ALL_TO_ALL_V || !dry->moved_rows || node->rows.moved)
        return hd_dry_node_bytes(chunk, node);
    return dry->moved_rows(dry->context, node) * node->rows.elements *
           (int64_t)hd_dtype_size(node->dtype);
}

void hd_dry_add(struct hd_dry *dry, const struct hd_chunk *chunk, enum hd_call call, bool last)
{
    const struct hd_program *p = &chunk->program[call];

    for (int i = 0; i < p->count; i++) {
        const struct hd_node *node = p->nodes[i];

        if (node->only_last && !last)
            continue;
        if (node->is_comm) {
            dry->calls[node->group][node->comm]++;
            dry->group_bytes[node->group][node->comm] += node_bytes(dry, chunk, node);
        } else {
            double before = dry->costs.flops;

            hd_dry_node_costs(&dry->costs, node);
            dry->gemm_flops += matrix_flops(node, dry->costs.flops - before);
            if (node->kernel == HD_K_fp8_gemm)
                dry->fp8_flops += dry->costs.flops - before;
        }
    }
}
