/* layout: everything about a rank that is known before anything runs: parameters, compiled
 * programs, the step plan, and the memory of each region to the byte. The same call serves the rank
 * that will run it and a planner that only asks what it would take.
 *
 * Used by: train, generation, plan.   Uses: model, optim, pipeline, program, data.
 * Threads: immutable after it is built.
 */
#ifndef HD_TRAIN_LAYOUT_H
#define HD_TRAIN_LAYOUT_H

#include "base/arena.h"
#include "job/job.h"
#include "model/model.h"
#include "pipeline/pipeline.h"
#include "program/program.h"

enum { HD_EXCHANGE_SLOT_BYTES = 1024 }; /* what one rank says in an exchange between hosts */
enum { HD_SAMPLE_FIELDS = 5 };          /* of a sample: numbers per row */
enum { HD_BATCH_FIELDS = HD_SAMPLE_FIELDS + 1 }; /* and of a batch which sample it is */
enum {
    HD_PROFILE_RECORD_BYTES = 64,   /* of one launch, wait or poll of a profiled step */
    HD_PROFILE_BYTES_MAX = 1 << 30, /* of all of them; HD_INVALID beyond */
};

/* Bytes of one rank, by purpose. */
#define HD_MEMORY_LIST(X)                                                             \
    X(weights, "fp32 master weights")                                                 \
    X(copies, "weights in the compute encoding")                                      \
    X(gradients, "fp32 gradient sums (comm-visible)")                                 \
    X(moments, "both moments of AdamW")                                               \
    X(step_state, "step block, chunk sums, exchange records, update ranges")          \
    X(constants, "tables of angles, slopes and indices, caches")                      \
    X(kept, "activations that forward leaves for backward, all slots")                \
    X(deferred, "what backward leaves for postponed weight gradients, all slots")     \
    X(work, "temporaries and scratch")                                                \
    X(sample, "samples on their way: to be cut for context parallelism, to a device") \
    X(profile, "records of the steps that train.profile names")                       \
    X(exchange, "messages between hosts (comm-visible)")

struct hd_memory {
#define X(name, meaning) int64_t name;
    HD_MEMORY_LIST(X)
#undef X
    int64_t private_bytes, visible_bytes; /* the two reservations */
    int64_t host_bytes; /* for a device: samples and profile, which are in the host's memory then.
                           The three together are the sum of all parts */
};

/* Bytes of a device's memory that the two reservations take there: whole pages each. */
int64_t hd_memory_on_device(const struct hd_memory *memory, const struct hd_traits *traits);

/* What is in use of a rank's GPU beside its plan, as traits have it: assumed, or measured. */
struct hd_beside {
    int64_t process_bytes;
    int communicators;           /* of NCCL, which a world of one rank does without */
    int64_t communicators_bytes; /* theirs, and what the engine collects in */
};
struct hd_beside hd_layout_beside(const struct hd_mesh *mesh, const struct hd_traits *traits);

struct hd_layout_options {
    enum hd_schedule schedule;
    bool split_backward;
};

struct hd_layout {
    struct hd_job job;
    struct hd_mesh mesh;
    int rank;
    struct hd_mesh_coord coord;
    struct hd_model model;
    struct hd_registry registry;
    struct hd_chunk *train, *eval, *update;
    struct hd_step_plan plan;
    int64_t micro_batches; /* per rank and step */
    struct hd_memory memory;

    /* where things start in the two reservations */
    int64_t train_state, eval_state;        /* private: the chunks' own constants */
    int64_t kept[2], deferred[2], work[2];  /* [visible] */
    int64_t kept_slot[2], deferred_slot[2]; /* size of a slot */
    int64_t profile;                        /* private, or the host's: the records */
    int64_t sample;                         /* the same: [HD_SAMPLE_FIELDS, context] int32 */
    int64_t batch;    /* the host's: [HD_BATCH_FIELDS, rows of a micro-batch] int32, for a device */
    int64_t exchange; /* visible: [world + 1, HD_EXCHANGE_SLOT_BYTES] */
};

/* Declares, records, compiles and adds up for `rank` of the job's mesh on a device with these
 * traits. Everything lives in `arena`. */
enum hd_status hd_layout_build(const struct hd_job *job, int rank, const struct hd_traits *traits,
                               const struct hd_layout_options *options, struct hd_arena *arena,
                               struct hd_layout *ret_layout);

/* Tensors are in memory of the device's own, not in the host's. */
static inline bool hd_layout_has_device(const struct hd_layout *layout)
{
    return layout->train->traits.memory_bytes > 0;
}

enum hd_dtype hd_layout_compute_dtype(const struct hd_job *job);

#endif
