/* rec: the members of a recording. Only for lib/program. */
#ifndef HD_PROGRAM_REC_H
#define HD_PROGRAM_REC_H

#include "program/program.h"

/* Parameters of each target of op_magnitude: magnitudes, weight, and the factors A and B of its
 * adapter; indices in hd_op.param are target * HD_MAGNITUDE_PARAMS + this. */
enum { HD_MAGNITUDE_M, HD_MAGNITUDE_W, HD_MAGNITUDE_A, HD_MAGNITUDE_B, HD_MAGNITUDE_PARAMS };

/* The ops of a recorded unit, which hd_rec_unit repeats for other units of its kind. */
struct hd_fragment {
    int unit, input, output; /* index of the unit; ids of its input and output tensor, -1: none */
    int first_op, op_count;
    int first_tensor, tensor_count;
};

struct hd_rec {
    const struct hd_registry *registry;
    struct hd_arena *arena;
    struct hd_rec_shape shape;
    struct hd_op *ops;
    struct hd_tensor **tensors;
    struct hd_fragment *fragments;
    int op_count, op_capacity, tensor_count, tensor_capacity, fragment_count, fragment_capacity;
    int unit; /* unit that is being recorded; -1: none */
    struct hd_tensor *batch[HD_BATCH_FIELD_COUNT];
    struct hd_tensor *input, *output; /* hidden rows that the chunk reads from, and writes for,
                                         another chunk; NULL: none */
    struct hd_tensor dummy;           /* tensor that constructors return after a failure */
    struct hd_error error;
};

/* Returns true if tp ranks split the rows outside of op_copy_to_tp and op_reduce_from_tp (sequence
 * parallelism). In decode they do not: a call may have one row. */
bool hd_rec_splits_rows(const struct hd_rec *rec);

/* Records status `st` and the current error message in the recording unless an earlier failure is
 * there; returns the dummy tensor. */
struct hd_tensor *hd_rec_fail(struct hd_rec *rec, enum hd_status st);

/* Returns a new result tensor [R, columns] (columns 0: a vector). The precision pass sets the dtype
 * of floats. */
struct hd_tensor *hd_rec_tensor(struct hd_rec *rec, const char *name, int64_t rows,
                                int64_t columns);

/* Appends a copy of op; returns NULL after a failure. Sets out->needs_grad from inputs and
 * parameters. */
struct hd_op *hd_rec_op(struct hd_rec *rec, const struct hd_op *op);

/* Appends the op with a new result [rows, columns]; returns the result, after a failure the dummy
 * tensor. */
struct hd_tensor *hd_rec_result(struct hd_rec *rec, struct hd_op op, const char *name, int64_t rows,
                                int64_t columns);

/* Records the failure that x has not the columns that op `op` expects; returns the dummy tensor. */
struct hd_tensor *hd_rec_wrong_width(struct hd_rec *rec, const char *op, const struct hd_tensor *x,
                                     int64_t expected);

/* Returns true if a parameter of span `which` of the op is trainable. */
bool hd_op_trains_param(const struct hd_registry *registry, const struct hd_op *op, int which);
enum hd_op_class hd_op_class_of(enum hd_op_kind kind);

/* Runs the precision pass (precision.c) over the recording. */
enum hd_status hd_pass_precision(struct hd_rec *rec, const struct hd_precision *precision);

#endif
