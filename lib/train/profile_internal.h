/* profile_internal: the records, for profile.c (makes them) and profile_write.c (writes them).
 */
#ifndef HD_TRAIN_PROFILE_INTERNAL_H
#define HD_TRAIN_PROFILE_INTERNAL_H

#include "program/dry.h"
#include "train/profile.h"

/* What a record is; the first three contain others. */
enum record_kind { RECORD_STEP, RECORD_PROGRAM, RECORD_BATCH, RECORD_SPAN };

struct record {
    const struct hd_node *node; /* of a span; NULL: none */
    int64_t begin_ns, end_ns;   /* on the host */
    int64_t done_ns;            /* a collective's launch: when it was seen complete; 0: not seen */
    union {
        struct { /* of a collective's launch; of a step its number */
            const struct hd_comm_stream *stream;
            uint64_t ticket;
        };
        struct { /* when a device ran a kernel or waited for a collective */
            int64_t device_begin_ns, device_end_ns;
        };
    };
    int32_t next_open;   /* collectives that are under way; -1: the last */
    int32_t micro_batch; /* -1: of none */
    uint8_t kind, span, call;
    bool on_device; /* its device times are set; of a profile in the making: its events are recorded
                     */
    int32_t event;  /* the first of its two */
};
_Static_assert(sizeof(struct record) <= HD_PROFILE_RECORD_BYTES, "the layout counts by this");

/* Pairs of events of one step, around each launch and wait of the compute stream, and the one that
 * they are counted from. */
struct profile_events {
    const struct hd_device_table *device; /* NULL: launches have run when they return */
    struct hd_event **list, *base;
    int32_t count, room;
    int64_t base_ns;       /* on the host's clock */
    enum hd_status failed; /* the first failure, its story lost: a profile is no reason to stop */
};

struct hd_profile {
    const struct hd_layout *layout;
    struct profile_events events;
    struct hd_stream *stream; /* of the step that is being recorded */
    double bandwidth;         /* bytes per second, read and written, of all the rank's threads */
    struct record *records;
    int64_t count, room;
    int32_t first_open; /* collectives under way; -1: none */
    int64_t step, steps_recorded;
    int64_t open_step, open_program; /* records that contain what comes; -1: none */
    int32_t micro_batch;
    enum hd_call call;
    bool active, written;
};

/* How long a span took, as the table counts it: on the device where it was timed there. */
int64_t profile_span_ns(const struct hd_profile *profile, const struct record *record);

/* The chunk whose program a call is in. */
const struct hd_chunk *profile_chunk(const struct hd_profile *profile, enum hd_call call);

enum hd_status profile_write_trace(const struct hd_profile *profile, const char *path);
enum hd_status profile_write_table(const struct hd_profile *profile, double peak, const char *path);

/* What a launch works on in words, such as "bf16[512,384] over 1024"; its costs. */
enum { PROFILE_SHAPE_MAX = 96 };
void profile_op_shape(const struct hd_node *node, char ret_shape[PROFILE_SHAPE_MAX]);
struct hd_costs profile_op_costs(const struct hd_chunk *chunk, const struct hd_node *node);

#endif
