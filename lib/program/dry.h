/* dry: folds over programs. What a call would compute and move, without a device.
 *
 * Used by: plan, train (FLOPs for MFU), tests.   Uses: program.   Threads: pure.
 */
#ifndef HD_PROGRAM_DRY_H
#define HD_PROGRAM_DRY_H

#include "program/program.h"

struct hd_dry {
    /* Asked, or NULL: rows that change rank in an all_to_all_v, of all members of its group
     * together. How many is data; without it routers are taken to send every rank as much as every
     * other. */
    int64_t (*moved_rows)(void *context, const struct hd_node *node);
    void *context;

    /* Found */
    struct hd_costs costs; /* kernels of this rank */
    double gemm_flops;     /* of which in GEMMs and attention: what MFU counts */
    int64_t calls[HD_GROUP_COUNT][HD_COMM_KIND_COUNT];
    /* Moved by all members of the group together, as comm.h counts it. */
    int64_t group_bytes[HD_GROUP_COUNT][HD_COMM_KIND_COUNT];
};

/* Adds one run of a call's program; first and last: the micro-batch's place in the step. */
void hd_dry_add(struct hd_dry *dry, const struct hd_chunk *chunk, enum hd_call call, bool first,
                bool last);

/* Adds what a kernel costs; where routers decide how many rows it has, at even loads. */
void hd_dry_node_costs(struct hd_costs *costs, const struct hd_node *node);

/* Bytes that the members of a collective's group move together; where routers decide, at even
 * loads.
 */
int64_t hd_dry_node_bytes(const struct hd_chunk *chunk, const struct hd_node *node);

/* Bytes that the members of a group of P move for one collective of `count` elements (comm.h). */
int64_t hd_dry_comm_bytes(enum hd_comm_kind kind, int P, int64_t count, enum hd_dtype dtype);

#endif
