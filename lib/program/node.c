/* node: access to a node's operands by index, and moving nodes in a list. The passes use it; it
 * uses no pass. */
#include <string.h>

#include "program/emit.h"

#define READ(name)       HD_READ,
#define WRITE(name)      HD_WRITE,
#define READ_WRITE(name) HD_READ_WRITE,
static const enum hd_access comm_access[] = {HD_COMM_OPERAND_LIST(READ, WRITE, READ_WRITE)};

int hd_node_operand_count(const struct hd_node *node)
{
    return node->is_comm ? (int)(sizeof comm_access / sizeof comm_access[0])
                         : hd_kernel_get_info(node->kernel)->operand_count;
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
    const struct hd_kernel_info *info = hd_kernel_get_info(node->kernel);

    for (int k = 0; k < info->operand_count; k++)
        if (info->operands[k].accumulate)
            return (bool *)((char *)node->args + info->operands[k].accumulate);
    return NULL;
}

void hd_move_last_to(struct hd_node_list *list, int at)
{
    struct hd_node *node = list->nodes[list->count - 1];

    memmove(&list->nodes[at + 1], &list->nodes[at],
            (size_t)(list->count - 1 - at) * sizeof(struct hd_node *));
    list->nodes[at] = node;
}
