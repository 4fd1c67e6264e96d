/* dry: counts the work and the communicated bytes of programs without running them.
 *
 * Used by: plan, train (FLOPs for MFU), tests.   Uses: program.   Threads: any; no state. */
#ifndef HD_PROGRAM_DRY_H
#define HD_PROGRAM_DRY_H

#include "program/program.h"

struct hd_dry {
    /* input: returns the rows that an all_to_all_v sends to other ranks, for all members of its
     * group together, a number that depends on the data. NULL: assume balanced routers. */
    int64_t (*moved_rows)(void *context, const struct hd_node *node);
    void *context;

    /* output; starts as zeros */
    struct hd_costs costs; /* costs of this rank's kernels */
    double gemm_flops;     /* FLOPs of GEMMs and attention, which MFU counts; included in `costs` */
    double fp8_flops;      /* FLOPs with factors in fp8; included in gemm_flops */
    int64_t calls[HD_GROUP_COUNT][HD_COMM_KIND_COUNT];
    /* bytes moved by all members of the group together, as comm.h counts them */
    int64_t group_bytes[HD_GROUP_COUNT][HD_COMM_KIND_COUNT];
};

/* Adds one run of a program; last: in the last micro-batch of the step. */
void hd_dry_add(struct hd_dry *dry, const struct hd_chunk *chunk, enum hd_call call, bool last);

/* Adds the costs of a kernel; the rows of experts are those of balanced routers. */
void hd_dry_node_costs(struct hd_costs *costs, const struct hd_node *node);

/* Returns the bytes that all members of the collective's group move together; all_to_all_v: with
 * balanced routers. */
int64_t hd_dry_node_bytes(const struct hd_chunk *chunk, const struct hd_node *node);

/* Returns the bytes that the members of a group of P move for one collective of `count` elements
 * (comm.h). */
int64_t hd_dry_comm_bytes(enum hd_comm_kind kind, int P, int64_t count, enum hd_dtype dtype);

#endif
