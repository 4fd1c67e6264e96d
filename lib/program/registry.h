/* registry: every parameter of a model, declared once.
 *
 * A parameter has a global name and shape, the axis that tensor parallelism cuts, how it starts,
 * and whether it decays and trains. Init, optimizer, sharding, checkpoints and planning read only
 * this. A rank holds a box of the global tensor; where an axis does not divide (the vocabulary) its
 * share is padded, and padding is nobody's: it starts as zeros, gets no gradient and is not saved.
 *
 * Parameters belong to *units* (embedding, a block, the head). Those of a unit that train alike
 * form a *part*: one flat buffer per kind of state, the grain of reduction and update. Within a
 * part tensor parallelism makes *segments*: what is cut is this rank's alone; what several tp ranks
 * hold alike is counted by one of them in the gradient norm, and is summed over them first where
 * each finds only a part of its gradient:
 *
 *     cut                                  no sum                counted by all
 *     cut, but copied (key/value heads)    sum over kv_replica   counted by the first copy
 *     copied, each sees a part             sum over tp           counted by tp index 0
 *     copied, each sees all                no sum, equal bits    counted by tp index 0
 *
 * Experts are a part of their own: their gradients are summed over expert_dp. Of the ranks that
 * hold the same after all sums, the first in dp and cp tells the others; all work alike.
 *
 * The registry
 * also lays out the *state* region: for every part its weights, moments, gradient and compute copy,
 * and the few values a step needs besides. Offsets are bytes from the region's start; what is
 * communicated lies in the comm-visible half, everything else in the private half.
 *
 * Used by: program, model, optim, train, checkpoint code, plan.   Uses: base, mesh, kernels.
 * Threads: built by one thread, immutable after hd_registry_finish.
 */
#ifndef HD_PROGRAM_REGISTRY_H
#define HD_PROGRAM_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "mesh/mesh.h"

enum {
    HD_PARAM_NAME_MAX = 96,
    HD_PARAM_DIMS_MAX = 3,
    HD_PARAM_PAD = 32,   /* a padded share is a multiple of this, where that leaves no rank bare */
    HD_PARAM_ALIGN = 16, /* elements: a parameter starts on a 64-byte bound of its fp32 part */
    HD_PARTS_PER_UNIT = 4
};

enum hd_init_kind { HD_INIT_ZEROS, HD_INIT_ONES, HD_INIT_NORMAL };

/* What the model says about a parameter. */
struct hd_param_spec {
    const char *name; /* global: blocks.3.attention.q.weight */
    int dim_count;
    int64_t shape[HD_PARAM_DIMS_MAX]; /* global */
    int tp_axis;                      /* the axis cut by tensor parallelism; -1: replicated */
    int tp_copies; /* cut: so many neighbours in tp hold one share (kv_replica); 0: each its own */
    bool padded;   /* cut on axis 0: shares may reach past the end */
    bool partial;  /* replicated: a tp rank finds a part of the gradient, the sum is all of it */
    bool experts;  /* axis 0 is experts, shared out over ep; tp cuts another axis */
    enum hd_init_kind init;
    double init_std; /* HD_INIT_NORMAL */
    bool decay;      /* weight decay applies: matrices */
    bool frozen;     /* gets no gradient and no update */
    bool joined;     /* directly behind the unit's previous parameter: one GEMM serves both */
};

struct hd_param {
    char name[HD_PARAM_NAME_MAX];
    int dim_count;
    int64_t shape[HD_PARAM_DIMS_MAX]; /* global                           */
    int64_t local[HD_PARAM_DIMS_MAX]; /* this rank's share, with padding  */
    int64_t start[HD_PARAM_DIMS_MAX]; /* where it begins in the whole     */
    int64_t real[HD_PARAM_DIMS_MAX];  /* of local, without padding        */
    int tp_axis;
    int shares;               /* of different content: over tp, times over ep */
    int tp_shares, tp_copies; /* each share over tp is held by so many neighbours */
    bool partial, experts;
    enum hd_init_kind init;
    double init_std;
    bool decay, trainable, joined;
    int unit, part;
    int64_t offset, count; /* elements, within the part */
};

struct hd_unit {
    const char *name; /* "block.3", for listings */
    const char *kind; /* "block": units of one kind have the same forward function and shapes */
    int first_param, param_count;
    int parts[HD_PARTS_PER_UNIT], part_count;
};

enum hd_state_kind {
    HD_STATE_WEIGHT,  /* fp32 master                                                     */
    HD_STATE_COPY,    /* the compute encoding; the same memory as WEIGHT when that is fp32 */
    HD_STATE_GRAD,    /* fp32, comm-visible                                              */
    HD_STATE_MOMENT1, /* fp32 */
    HD_STATE_MOMENT2, /* fp32 */
    HD_STATE_RANGES,  /* struct hd_update_range[]                                        */
    HD_STATE_KIND_COUNT
};

/* A run of a part that tensor parallelism treats alike; see above. Segments cover the part. */
struct hd_segment {
    int64_t begin, end;
    enum hd_group_name sum_group; /* before the data reduction; HD_GROUP_COUNT: none */
    bool counted;        /* in the gradient norm, by this rank among those of its tp group */
    int64_t first_chunk; /* counted: of its gradient in the rank's array of chunk sums */
};

struct hd_part {
    int unit;
    bool trainable;
    int64_t count;                   /* elements, padding included */
    enum hd_group_name reduce_group; /* over which gradients are summed */
    struct hd_segment *segments;
    int segment_count;
    struct hd_update_range *ranges;
    int64_t range_count;
    int64_t offset[HD_STATE_KIND_COUNT]; /* bytes in the state region; -1: not there */
};

/* Values besides the parts. */
enum hd_global {
    HD_GLOBAL_BLOCK,   /* struct hd_step_block                        */
    HD_GLOBAL_SUMS,    /* double[chunks of all segments that this rank counts] */
    HD_GLOBAL_RECORD,  /* double[HD_EXCHANGE_WORDS], visible          */
    HD_GLOBAL_RECORDS, /* double[ranks, HD_EXCHANGE_WORDS], visible   */
    HD_GLOBAL_ROUTES,  /* double[routers, HD_ROUTE_WORDS + experts], visible: what routers did */
    HD_GLOBAL_COUNT
};

struct hd_registry {
    struct hd_arena *arena;
    struct hd_mesh mesh;        /* of the ranks that train together */
    struct hd_mesh_coord coord; /* this rank's place in it */
    int rank;
    bool sequence; /* sequence parallelism: norms and residuals on 1/tp of the rows; set by the
                      owner before anything is declared */
    struct hd_param *params;
    struct hd_unit *units;
    struct hd_part *parts;
    int param_count, unit_count, part_count;
    int param_room, unit_room, part_room;
    enum hd_status status; /* the first failure; sticks */
    char error[HD_ERR_MAX];

    /* set by hd_registry_finish */
    enum hd_dtype compute_dtype;
    bool trains;
    int64_t chunk_count;      /* of the gradient norm, that this rank sums up */
    int64_t own_chunk_count;  /* the first of them, which it alone gives to the exchange */
    int64_t routers, experts; /* set by hd_registry_routers */
    int64_t global_offset[HD_GLOBAL_COUNT];
    int64_t private_bytes, visible_bytes; /* size of the state region's halves */
};

/* Everything lives in `arena`. For `rank` of `mesh`; NULL: for one rank alone. */
void hd_registry_init(struct hd_registry *registry, struct hd_arena *arena,
                      const struct hd_mesh *mesh, int rank);

/* Begins a unit; parameters declared next belong to it. Returns its number. */
int hd_registry_unit(struct hd_registry *registry, const char *kind, const char *name);

/* Declares a parameter and returns its number. A failure sticks (hd_registry_finish reports it). */
int hd_registry_param(struct hd_registry *registry, const struct hd_param_spec *spec);

/* The model has so many routers, each of so many experts. Before hd_registry_finish. */
void hd_registry_routers(struct hd_registry *registry, int64_t routers, int64_t experts);

/* Lays out the parts and the state. `trains`: with gradients and moments; else weights only. */
enum hd_status hd_registry_finish(struct hd_registry *registry, enum hd_dtype compute_dtype,
                                  bool trains);

/* Elements of all parameters (global, each once). */
int64_t hd_registry_global_count(const struct hd_registry *registry);

/* Which of its shares a rank holds, and the box of a share: where it begins and how much of it is
 * real. */
int hd_param_share_of(const struct hd_param *param, const struct hd_mesh *mesh, int rank);
void hd_param_box(const struct hd_param *param, int share, int64_t ret_start[HD_PARAM_DIMS_MAX],
                  int64_t ret_real[HD_PARAM_DIMS_MAX]);

/* The row-major index, in the whole tensor, of element i of this rank's share; -1 in padding. */
int64_t hd_param_global_index(const struct hd_param *param, int64_t i);

/* Elements [first, first+count) of this rank's share, in row-major order of the share, by the init
 * rule: keyed by (seed, name), counted by *global* index, so that any layout gets the same numbers.
 */
void hd_param_init_values(const struct hd_param *param, uint64_t seed, int64_t first, int64_t count,
                          float *ret_values);

/* Bytes of one kind of state of a part. */
int64_t hd_part_state_bytes(const struct hd_registry *registry, const struct hd_part *part,
                            enum hd_state_kind kind);

int64_t hd_global_bytes(const struct hd_registry *registry, enum hd_global global);

bool hd_state_is_visible(enum hd_state_kind kind);
bool hd_global_is_visible(enum hd_global global);

#endif
