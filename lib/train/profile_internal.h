/* profile_internal: the records of a profile; profile.c makes them, profile_write.c writes files.
 */
#ifndef HD_TRAIN_PROFILE_INTERNAL_H
#define HD_TRAIN_PROFILE_INTERNAL_H

#include "program/dry.h"
#include "train/profile.h"

/* The kind of a record; the first three contain other records in time. */
enum record_kind { RECORD_STEP, RECORD_PROGRAM, RECORD_BATCH, RECORD_SPAN };

struct record {
    const struct hd_node *node; /* of a span; NULL: none */
    int64_t begin_ns, end_ns;   /* on the host */
    int64_t done_ns;            /* launch of a collective: seen complete; 0: not seen */
    union {
        struct { /* launch of a collective; of a step, ticket is its number */
            const struct hd_comm_stream *stream;
            uint64_t ticket;
        };
        struct { /* when the device ran a kernel or waited for a collective */
            int64_t device_begin_ns, device_end_ns;
        };
    };
    int32_t next_open;   /* list of collectives that are not complete; -1: end of the list */
    int32_t micro_batch; /* -1: none */
    uint8_t kind, span, call;
    bool on_device; /* has two events; after the step its device times are set */
    int32_t event;  /* index of the first of its two events */
};
_Static_assert(sizeof(struct record) <= HD_PROFILE_RECORD_BYTES, "the layout reserves this");

/* The events of one step: two for each launch and wait on the compute stream, and the base event,
 * from which times are measured. */
struct profile_events {
    const struct hd_device_table *device; /* NULL: no events, tensors are in host memory */
    struct hd_event **list, *base;
    int32_t count, capacity;
    int64_t base_ns;       /* time of the base event on the host's clock */
    enum hd_status failed; /* the first failure; it does not stop the training */
};

struct hd_profile {
    const struct hd_rank_program *rank_program;
    struct profile_events events;
    struct hd_stream *stream; /* the compute stream of the current step */
    double bandwidth;         /* bytes read and written per second, by all of the rank's threads */
    struct record *records;
    int64_t count, capacity;
    int32_t first_open; /* list of collectives that are not complete; -1: empty */
    int64_t step, steps_recorded;
    int64_t open_step, open_program; /* indices of the current records; -1: none */
    int64_t begin_ns;                /* of the current instruction */
    int32_t micro_batch;
    enum hd_call call;
    bool active, written;
};

/* The duration of a span for the table: on the device if it was timed there. */
int64_t profile_span_ns(const struct hd_profile *profile, const struct record *record);

/* A chunk with the program of a call; all chunks have the same registry, groups and traits. */
const struct hd_chunk *profile_chunk(const struct hd_profile *profile, enum hd_call call);

enum hd_status profile_write_trace(const struct hd_profile *profile, const char *path);
enum hd_status profile_write_table(const struct hd_profile *profile, double peak, const char *path);

/* The shape of a launch as text, such as "bf16[512,384] over 1024"; its costs. */
enum { PROFILE_SHAPE_MAX = 96 };
void profile_op_shape(const struct hd_node *node, char ret_shape[PROFILE_SHAPE_MAX]);
struct hd_costs profile_op_costs(const struct hd_chunk *chunk, const struct hd_node *node);

#endif
