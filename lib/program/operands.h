/* operands: the operands of kernel nodes and of collectives, by name.
 *
 * Generated from kernels/kernels.def: for a row K(add, .., W(out, ..) R(a, ..) R(b, ..))
 *
 *     struct hd_add_operands { struct hd_operand out, a, b; };
 *     struct hd_add_operands *hd_add_operands_of(node);
 *
 * An operand that an emitter (emit.h) leaves out is absent: the kernel gets a null pointer. Scratch
 * is always left out; place.c adds it. Passes access operands by index with hd_node_access.
 *
 * Used by: program and optim (emit), tests.   Uses: program.h.   Threads: any; no state.
 */
#ifndef HD_PROGRAM_OPERANDS_H
#define HD_PROGRAM_OPERANDS_H

#include <assert.h>

#include "program/program.h"

#define OPERAND(access, absent, member, ...) struct hd_operand member;
#define K(name, operations, list) \
    struct hd_##name##_operands { \
        list                      \
    };
#include "kernels/kernels.def"
#define HD_OPERAND_MEMBER(name) struct hd_operand name;
struct hd_comm_operands {
    HD_COMM_OPERAND_LIST(HD_OPERAND_MEMBER, HD_OPERAND_MEMBER, HD_OPERAND_MEMBER)
};
#undef HD_OPERAND_MEMBER

/* Returns the operands of a node of this kernel. */
#define K(name, ...)                                                                               \
    static inline struct hd_##name##_operands *hd_##name##_operands_of(const struct hd_node *node) \
    {                                                                                              \
        assert(!node->is_comm && node->kernel == HD_K_##name);                                     \
        return (struct hd_##name##_operands *)node->operands;                                      \
    }
#include "kernels/kernels.def"
static inline struct hd_comm_operands *hd_comm_operands_of(const struct hd_node *node)
{
    assert(node->is_comm);
    return (struct hd_comm_operands *)node->operands;
}

#endif
