/* profile_internal: the records of a profile; profile.c makes them, profile_write.c writes the
 * files. */
#ifndef HD_TRAIN_PROFILE_INTERNAL_H
#define HD_TRAIN_PROFILE_INTERNAL_H

#include "program/dry.h"
#include "train/profile.h"

/* Kind of a record; spans lie inside the times of the first three kinds. */
enum record_kind { RECORD_STEP, RECORD_PROGRAM, RECORD_BATCH, RECORD_SPAN };

struct record {
    const struct hd_node *node; /* node of a span; NULL: none */
    int64_t begin_ns, end_ns;   /* host clock */
    /* time at which the host saw a collective complete; 0: not seen */
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
    int32_t micro_batch; /* -1: none */
    uint8_t kind, span, call;
    bool on_device; /* true: has two events; its device times are set after the step */
    int32_t event;  /* index of the first of its two events */
};
_Static_assert(sizeof(struct record) <= HD_PROFILE_RECORD_BYTES, "the layout reserves this");

/* Device events of one step: two for each launch and wait on the compute stream, and the base
 * event, from which times are measured. */
struct profile_events {
    const struct hd_device_table *device; /* NULL: tensors are in host memory, no events */
    struct hd_event **list, *base;
    int32_t count, capacity;
    int64_t base_ns;       /* time of the base event on the host's clock */
    enum hd_status failed; /* the first failure; training continues */
};

struct hd_profile {
    const struct hd_rank_program *rank_program;
    struct profile_events events;
    struct hd_stream *stream; /* compute stream of the current step */
    double bandwidth;         /* bytes read and written per second, by all threads of the rank */
    struct record *records;
    int64_t count, capacity;
    int32_t first_open; /* first of the list of incomplete collectives; -1: empty */
    int64_t step, steps_recorded;
    int64_t open_step, open_program; /* indices of the current records; -1: none */
    int64_t begin_ns;                /* begin of the current instruction */
    int32_t micro_batch;
    enum hd_call call;
    bool active, written;
};

/* Returns the duration of a span for the table; the device's, if the span was timed there. */
int64_t profile_span_ns(const struct hd_profile *profile, const struct record *record);

/* Returns a chunk that has the program of a call; all chunks have the same registry, groups and
 * traits. */
const struct hd_chunk *profile_chunk(const struct hd_profile *profile, enum hd_call call);

enum hd_status profile_write_trace(const struct hd_profile *profile, const char *path);
enum hd_status profile_write_table(const struct hd_profile *profile, double peak, const char *path);

/* Shape of a launch as text, such as "bf16[512,384] over 1024", and the costs of a launch. */
enum { PROFILE_SHAPE_MAX = 96 };
void profile_op_shape(const struct hd_node *node, char ret_shape[PROFILE_SHAPE_MAX]);
struct hd_costs profile_op_costs(const struct hd_chunk *chunk, const struct hd_node *node);

#endif
