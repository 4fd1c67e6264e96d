/* profile_internal: the records of a profile; profile.c makes them, profile_write.c writes the
 * files. */
#ifndef HD_TRAIN_PROFILE_INTERNAL_H
#define HD_TRAIN_PROFILE_INTERNAL_H

#include "program/dry.h"
#include "train/profile.h"

/* Kind of a record. A span (launch, wait or poll) lies inside the time of a record of the first
 * three kinds. */
enum record_kind { RECORD_STEP, RECORD_PROGRAM, RECORD_BATCH, RECORD_SPAN };

struct record {
    const struct hd_node *node; /* node of the program that a span belongs to; NULL: no node */
    int64_t begin_ns, end_ns;   /* begin and end by the host's clock, ns */
    /* time at which the host saw a collective complete, ns by the host's clock; 0: not seen yet */
    int64_t done_ns;
    union {
        /* stream and ticket of a collective's launch; for a step, ticket is the step number */
        struct {
            const struct hd_comm_stream *stream;
            uint64_t ticket;
        };
        struct { /* begin and end on the device, of a kernel or of a wait for a collective */
            int64_t device_begin_ns, device_end_ns;
        };
    };
    /* next record in the list of incomplete collectives; -1: last of the list */
    int32_t next_open;
    int32_t micro_batch; /* micro-batch of a program's record; -1: none */
    uint8_t kind, span, call;
    /* true: the record has two device events, and its device times are set after the step */
    bool on_device;
    int32_t event; /* index of the first of the record's two device events */
};
_Static_assert(sizeof(struct record) <= HD_PROFILE_RECORD_BYTES, "the layout reserves this");

/* Device events of one step: two for each launch and wait on the compute stream, and the base
 * event, from which times are measured. */
struct profile_events {
    /* device whose events time launches; NULL: tensors are in host memory and there are no
     * events */
    const struct hd_device_table *device;
    struct hd_event **list, *base;
    int32_t count, capacity;
    int64_t base_ns; /* time of the base event by the host's clock, ns */
    /* first failure of a device event, HD_OK: none; training continues after it */
    enum hd_status failed;
};

struct hd_profile {
    const struct hd_rank_program *rank_program;
    struct profile_events events;
    struct hd_stream *stream; /* compute stream of the current step */
    /* measured memory bandwidth: bytes read and written per second, by all threads of the rank */
    double bandwidth;
    struct record *records;
    int64_t count, capacity;
    /* index of the first record in the list of incomplete collectives; -1: the list is empty */
    int32_t first_open;
    int64_t step, steps_recorded;
    /* indices of the records of the current step and program; -1: none */
    int64_t open_step, open_program;
    int64_t begin_ns; /* begin of the current instruction by the host's clock, ns */
    int32_t micro_batch;
    enum hd_call call;
    bool active, written;
};

/* Returns the duration in ns of a span for the table: on the device, if device events timed the
 * span; else on the host. */
int64_t profile_span_ns(const struct hd_profile *profile, const struct record *record);

/* Returns a chunk whose program serves `call`; any of them will do, because all chunks have the
 * same registry, groups and device traits. */
const struct hd_chunk *profile_chunk(const struct hd_profile *profile, enum hd_call call);

enum hd_status profile_write_trace(const struct hd_profile *profile, const char *path);
enum hd_status profile_write_table(const struct hd_profile *profile, double peak, const char *path);

/* Shape of a launch as text, such as "bf16[512,384] over 1024", and the costs of a launch. */
enum { PROFILE_SHAPE_MAX = 96 };
void profile_op_shape(const struct hd_node *node, char ret_shape[PROFILE_SHAPE_MAX]);
struct hd_costs profile_op_costs(const struct hd_chunk *chunk, const struct hd_node *node);

#endif
