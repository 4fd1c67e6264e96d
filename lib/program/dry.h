/* dry: counts the work and the communicated bytes of programs without running them.
 *
 * Used by: plan, train (FLOPs for MFU), tests.   Uses: program.   Threads: any; no state. */
#ifndef HD_PROGRAM_DRY_H
#define HD_PROGRAM_DRY_H

#include "program/program.h"

struct hd_dry {
    /* input: callback that returns the number of rows that an all_to_all_v node moves between
     * ranks, for all members of its group together, which depends on the data. NULL: balanced
     * routers are assumed. */
    int64_t (*moved_rows)(void *context, const struct hd_node *node);
    void *context;

    /* output: sums over the programs added; the caller zeroes the struct first */
    struct hd_costs costs; /* costs of this rank's kernels */
    double gemm_flops;     /* FLOPs of GEMMs and attention, which MFU counts; included in `costs` */
    double fp8_flops;      /* FLOPs with factors in fp8; included in gemm_flops */
    int64_t calls[HD_GROUP_COUNT][HD_COMM_KIND_COUNT];
    /* bytes moved by all members of the group together, as comm.h counts them */
    int64_t group_bytes[HD_GROUP_COUNT][HD_COMM_KIND_COUNT];
};

/* Adds the work and bytes of one run of a program to *dry. last: true if the program runs in the
 * last micro-batch of a step. */
void hd_dry_add(struct hd_dry *dry, const struct hd_chunk *chunk, enum hd_call call, bool last);

/* Adds the costs of one run of the kernel `node` to *costs; the rows of experts are those of
 * balanced routers. */
void hd_dry_node_costs(struct hd_costs *costs, const struct hd_node *node);

/* Returns the bytes that all members of the collective's group move together; all_to_all_v: with
 * balanced routers. */
int64_t hd_dry_node_bytes(const struct hd_chunk *chunk, const struct hd_node *node);

/* Returns the bytes that the members of a group of P move for one collective of `count` elements
 * (comm.h). */
int64_t hd_dry_comm_bytes(enum hd_comm_kind kind, int P, int64_t count, enum hd_dtype dtype);

#endif
