/* registry: every parameter of a model, declared once, and the layout of its state in memory.
 *
 * A parameter has a global name and shape, the axis that tensor parallelism (tp) splits, an
 * initialisation, and flags for weight decay and training. Initialisation, optimizer, sharding,
 * checkpoints and planning use only the registry. A rank holds a box of the global tensor, its
 * share. If shares do not divide the axis (only the vocabulary), a share is padded: padding is
 * zeros, gets no gradient and is not saved.
 *
 * Parameters belong to *units* (embedding, a block, the head). The trainable parameters of a unit
 * form a *part*, and so do its frozen ones, its experts, those that compute in fp32 always (of
 * routers), and the head's weight, whose gradient F computes and not B. A part has one flat buffer
 * per kind of state; gradients are reduced and weights updated part by part. A part consists of
 * *segments*, which differ in how tp treats them: in the sum of gradients over tp ranks, and in
 * which ranks count the segment in the gradient norm:
 *
 *     split                                        no sum                 every rank counts
 *     split, held by several ranks (kv heads)      sum over kv_replica    first copy counts
 *     replicated, gradients of ranks are partial   sum over tp            tp index 0 counts
 *     replicated, gradients are equal              no sum                 tp index 0 counts
 *
 * Gradients are then summed over dp x cp, those of experts over expert_dp. All ranks of such a
 * group then have equal gradients; only the first adds its chunk sums to the gradient norm.
 *
 * With pipeline stages a rank *holds* the parts of its stage's units: only these have state on it.
 * All ranks list all parts, in the same order. A tied parameter (the embedding, which is the head's
 * weight too) is a part of its own. If the head is on another stage, that stage holds the part as
 * well: both sum its gradient over dp x cp, then with one another (group embedding), and both
 * update it; the stage of the embedding counts it in the norm and saves it.
 *
 * With ZeRO (Rajbhandari et al. 2020) the ranks of a part's shard group, which is its reduce group
 * or, with hybrid sharding, a part of that, share its optimizer: shard i of P is elements [i n,
 * (i+1) n) of the part, with n a multiple of HD_GRAD_CHUNK, so the cuts depend on the model and P
 * alone and may lie within a tensor. Stage 1: rank i has moments and master weights of shard i
 * only. Gradients are scattered, each sum to its shard; the update of the shard is gathered into
 * the copy in the compute encoding, which every rank has whole. In fp32 that copy is the master
 * itself, whole on every rank. Stage 2: the sums of gradients are of the shard only. A program
 * writes its contributions to a *gradient bucket*, which is scattered and added when the part is
 * complete,
 * in every micro-batch. Stage 3 (also FSDP, Zhao et al. 2023): the copies are of the shard only,
 * too, and a program gathers a unit's weights before it uses them and then forgets them. Bytes per
 * parameter with P ranks, without what lives within a program:
 *
 *     stage    0        1           2           3
 *     bf16    18   6 + 12 / P  2 + 16 / P    18 / P
 *     fp32    16   8 +  8 / P  4 + 12 / P    16 / P
 *
 * What does not train (train.only, or a program that only computes) has one copy, whole on every
 * rank that holds it, in the encoding that computes: no master, no gradient, no moments.
 *
 * With `quant` (model.weights) the matrices of linears of blocks that do not train are codes
 * (base/quant.h), in a part of their own, whose elements are bytes: a parameter begins at a byte
 * and is a record, of a mixture of experts one record for each expert of this rank. The codes
 * depend on the global tensor alone. A cut by tp through a block of nf4 is refused, and so is a
 * matrix of a linear that trains.
 *
 * With hybrid sharding the ranks that have the same shard (group zero_replicate) add their
 * gradients in U, once a step.
 *
 * With moments_in_blocks both moments are 8-bit codes with a scale per block (base/encoding.h;
 * docs/decisions/precision.md). A block lies within a row, which is the last axis. Its size is the
 * largest power of two, up to HD_BLOCK_MAX, that divides whatever tp may leave of a row, so it
 * depends on the global shape alone and no cut is within a block: tp cuts between blocks, a
 * parameter begins at a multiple of its block in the part, and so do shards. fp32 stay the moments
 * of vectors (norms and biases), of tensors with fewer than HD_BLOCKS_FROM elements, of tables
 * (embedding and positions, whose rows get gradients in few steps), of parameters that compute in
 * fp32, and of those whose block would be smaller than HD_BLOCK_MIN. Bytes of both moments per
 * parameter: 2 + 8 / block instead of 8. A part's moments lie range by range (ranges of struct
 * hd_bucket), fp32 or blocks.
 *
 * *Buffers* are numbers that training keeps beside the parameters: no gradient, saved in
 * checkpoints, changed only in U, and equal on all ranks, so each rank has all of them and any
 * layout reads what another one saved. With amax_history > 0 every product of a block
 * (HD_AMAX_COUNT tensors that are multiplied in fp8) has one: the largest magnitudes of its tensors
 * in the newest steps, newest first (docs/decisions/precision.md). What a step finds is gathered in
 * HD_GLOBAL_AMAX, of which U takes the maximum over all ranks.
 *
 * The registry also lays out the *state* region: weights, moments, gradient and compute copy of
 * every part, the buffers, and a few values per step. Offsets are bytes from the region's start.
 * Memory that collectives access is in the registered half, everything else in the private half.
 *
 * Used by: program, model, optim, train, plan.   Uses: base, mesh, kernels.
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
    HD_PARAM_PAD = 64,   /* rows: a padded share is a multiple, if then no rank's share is empty */
    HD_PARAM_ALIGN = 16, /* elements: a parameter is aligned to 64 bytes in its fp32 part */
    HD_BLOCKS_FROM = 4096, /* elements: of smaller tensors the moments stay fp32 */
    HD_BUCKETS_PER_UNIT = 8
};

/* The tensors of a linear that are multiplied in fp8: the rows of its buffer. */
enum hd_amax { HD_AMAX_INPUT, HD_AMAX_WEIGHT, HD_AMAX_GRAD, HD_AMAX_COUNT };

/* NORMS: the norms of the rows of another parameter, which lib/train computes (train/norms.h). */
enum hd_init_kind { HD_INIT_ZEROS, HD_INIT_ONES, HD_INIT_NORMAL, HD_INIT_UNIFORM, HD_INIT_NORMS };

/* The declaration of a parameter by the model. */
struct hd_param_spec {
    const char *name; /* global: blocks.3.attention.q.weight */
    int dim_count;
    int64_t shape[HD_PARAM_DIMS_MAX]; /* global */
    int tp_axis;                      /* the axis that tp splits; -1: replicated */
    int tp_copies;    /* split: number of adjacent tp ranks that hold the same share; 0 means 1 */
    int64_t tp_grain; /* split on the last axis: every legal share is a multiple of it */
    bool padded;      /* split on axis 0: the last share may be padded */
    bool partial; /* replicated: each tp rank computes a partial gradient, their sum is needed */
    bool experts; /* axis 0 is experts, split over ep; tp splits another axis */
    enum hd_init_kind init;
    double init_std; /* HD_INIT_NORMAL; HD_INIT_UNIFORM: values are within +- this */
    int norms_of;    /* HD_INIT_NORMS: index of the matrix */
    bool decay;      /* weight decay applies */
    double lr_scale; /* multiplies the learning rate; 0: 1 */
    bool frozen;     /* gets no gradient and no update */
    bool fused;      /* adjacent in memory to the unit's previous parameter: one GEMM uses both */
    bool tied;       /* the head uses it too */
    bool head;       /* the head's own weight */
    bool keep_fp32;  /* computes in fp32, whatever the compute encoding */
    bool table;      /* rows are looked up by an index */
    bool adapter;    /* stands beside weights of the model; is not in the model's own folder */
    bool newly_initialized; /* weights to begin with may lack it: it then begins by the seed */
    bool product;           /* the first of the parameters that a linear of a block multiplies by */
    bool linear;            /* a matrix of a linear of a block, of each expert: may be encoded */
};

struct hd_param {
    char name[HD_PARAM_NAME_MAX];
    int dim_count;
    int64_t shape[HD_PARAM_DIMS_MAX]; /* global                           */
    int64_t local[HD_PARAM_DIMS_MAX]; /* this rank's share, with padding  */
    int64_t start[HD_PARAM_DIMS_MAX]; /* of the share, in the global shape */
    int64_t real[HD_PARAM_DIMS_MAX];  /* of local, without padding        */
    int tp_axis;
    int shards;               /* number of different shares, over tp and ep */
    int tp_shards, tp_copies; /* different shares over tp; ranks that hold each of them */
    bool partial, experts, tied, head, keep_fp32, adapter, newly_initialized;
    enum hd_init_kind init;
    double init_std;
    int norms_of;
    float lr_scale;
    bool decay, trainable, fused;
    int unit, bucket;
    int buffer;            /* amax history of the linear that it is the first of; -1: none */
    int64_t block;         /* of its moments; 0: they are fp32 */
    enum hd_quant quant;   /* NONE: plain */
    int64_t record_bytes;  /* encoded: from the begin of one matrix to that of the next */
    int64_t offset, count; /* elements, within the part; encoded: the offset is in bytes */
    int64_t real_count;    /* of count, without padding, which is the end */
};

struct hd_buffer {
    char name[HD_PARAM_NAME_MAX]; /* global: blocks.3.attention.q.weight.amax */
    int64_t rows, columns;
    int64_t first; /* index of its first number in HD_GLOBAL_BUFFERS */
};

struct hd_unit {
    const char *name; /* "block.3", for listings */
    const char *kind; /* "block": units of one kind have the same forward function and shapes */
    int first_param, param_count;
    int buckets[HD_BUCKETS_PER_UNIT], bucket_count;
};

enum hd_state_kind {
    HD_STATE_WEIGHT,  /* fp32 master; of what does not train the encoding that computes, or codes */
    HD_STATE_COPY,    /* the compute encoding; without hd_bucket.copied the memory of WEIGHT */
    HD_STATE_GRAD,    /* fp32, registered                                              */
    HD_STATE_MOMENT1, /* fp32, or blocks of codes by the signed map                      */
    HD_STATE_MOMENT2, /* fp32, or blocks of codes by the unsigned map                    */
    HD_STATE_RANGES,  /* struct hd_update_range[]                                        */
    HD_STATE_KIND_COUNT
};

/* A range of a part with one treatment by tp, see above. Segments cover the part. */
struct hd_segment {
    int64_t begin, end;           /* elements in the part */
    enum hd_group_name sum_group; /* gradients are first summed over it; HD_GROUP_COUNT: no sum */
    bool owns_norm;               /* this rank of the tp group counts it in the gradient norm */
    int64_t first_chunk;          /* counted: index of its sums in the array of chunk sums */
};

struct hd_bucket {
    int unit;
    bool trainable;
    bool tied;                       /* its one parameter is the head's weight too */
    int32_t stage, tie_stage;        /* that hold it; equal: one stage */
    bool is_local;                   /* this rank holds it */
    bool keep_fp32;                  /* computes in fp32 */
    bool offloaded;                  /* masters, moments and ranges are in host memory */
    bool copied;                     /* what computes is apart from the masters */
    enum hd_quant quant;             /* not NONE: records; stored is HD_U8, and count bytes */
    enum hd_dtype compute;           /* encoding that computes; set by hd_registry_finish */
    enum hd_dtype stored;            /* likewise; of HD_STATE_WEIGHT */
    int64_t count;                   /* elements, padding included */
    enum hd_group_name reduce_group; /* gradients are summed over it */
    enum hd_group_name shard_group;  /* over which shards are spread, if it is cut */
    struct hd_segment *segments;
    int segment_count;
    bool head;                      /* its one parameter is the head's own weight */
    int zero;                       /* the stage of ZeRO; 0: the part is not cut */
    int64_t shard_count;            /* elements of a shard; 0: the part is not cut */
    int64_t shard_begin, shard_end; /* what this rank updates, within count; all: 0, count */
    struct hd_update_range *ranges; /* of that, counted from shard_begin */
    int64_t range_count;
    bool in_blocks;                      /* the moments of some range are */
    int64_t moment_bytes;                /* of each of the two moments of that */
    int64_t offset[HD_STATE_KIND_COUNT]; /* bytes in the state region; -1: not there, not held */
};

/* Values of a step that belong to no part. */
enum hd_global {
    HD_GLOBAL_STEP_STATE, /* struct hd_step_state                        */
    HD_GLOBAL_SUMS,       /* double[chunks of all segments that this rank counts], visible */
    HD_GLOBAL_RECORD,     /* double[HD_EXCHANGE_WORDS], visible          */
    HD_GLOBAL_RECORDS,    /* double[ranks, HD_EXCHANGE_WORDS], visible   */
    HD_GLOBAL_ROUTES,     /* double[routers, HD_ROUTE_WORDS + experts], visible: routers' records */
    HD_GLOBAL_BUFFERS,    /* float[] of all buffers, in the order of their declaration */
    HD_GLOBAL_AMAX, /* float[buffers, HD_AMAX_COUNT], visible: the largest of this step so far */
    HD_GLOBAL_COUNT
};

struct hd_registry {
    struct hd_arena *arena;
    struct hd_mesh mesh;        /* of the job's ranks */
    struct hd_mesh_coord coord; /* of this rank */
    int rank;
    bool sequence; /* sequence parallelism: norms and residuals on 1/tp of the rows; the owner sets
                      it before the first declaration */
    bool moments_in_blocks;    /* likewise */
    enum hd_quant quant;       /* likewise: of matrices of blocks that do not train */
    bool only_computes;        /* likewise: nothing will train, so codes are of all matrices */
    int64_t amax_history;      /* likewise; fp8: steps in a buffer; 0: no buffers */
    const int32_t *unit_stage; /* NULL: all on stage 0 */
    int32_t head_stage;
    struct hd_param *params;
    struct hd_unit *units;
    struct hd_bucket *buckets;
    struct hd_buffer *buffers;
    int param_count, unit_count, bucket_count, buffer_count;
    int param_capacity, unit_capacity, bucket_capacity, buffer_capacity;
    enum hd_status status; /* the first failure */
    char error[HD_ERR_MAX];

    int zero;          /* stage of ZeRO, 0 to 3; the owner sets it before hd_registry_finish */
    bool offload;      /* likewise: the optimizer's state is in host memory beside a device's */
    bool omits_frozen; /* likewise: checkpoints leave out what does not train */

    /* set by hd_registry_finish */
    enum hd_dtype compute_dtype;
    bool trains;
    int64_t chunk_count; /* chunks of the gradient norm of all parts that this rank holds; the same
                            on all ranks of a stage that have the same tp index */
    int64_t routers, experts; /* set by hd_registry_routers */
    int64_t global_offset[HD_GLOBAL_COUNT];
    int64_t private_bytes, registered_bytes; /* size of the state region's halves */
    int64_t host_bytes;                      /* of offloaded state, which no program uses */
};

/* Everything lives in `arena`. For `rank` of `mesh`; mesh NULL: a job of one rank. */
void hd_registry_init(struct hd_registry *registry, struct hd_arena *arena,
                      const struct hd_mesh *mesh, int rank);

/* The pipeline stage of each unit, in the order of their declaration, and of the head. The array is
 * borrowed. Call it before the first unit. */
void hd_registry_stages(struct hd_registry *registry, const int32_t *unit_stage,
                        int32_t head_stage);

/* Begins a unit; later declared parameters belong to it. Returns its index. */
int hd_registry_unit(struct hd_registry *registry, const char *kind, const char *name);

/* Declares a parameter and returns its index. After a failure it returns 0, and hd_registry_finish
 * returns the failure. */
int hd_registry_param(struct hd_registry *registry, const struct hd_param_spec *spec);

/* Numbers in all buffers together. */
int64_t hd_registry_buffers_count(const struct hd_registry *registry);

/* Sets the number of routers and of experts of each. Call it before hd_registry_finish. */
void hd_registry_routers(struct hd_registry *registry, int64_t routers, int64_t experts);

/* Lays out parts and state. `trains`: with gradients and moments; else only weights. Returns the
 * first failure of any declaration. */
enum hd_status hd_registry_finish(struct hd_registry *registry, enum hd_dtype compute_dtype,
                                  bool trains);

/* Elements of all parameters (global, each once). */
int64_t hd_registry_global_count(const struct hd_registry *registry);
/* Of those that train. */
int64_t hd_registry_trained_count(const struct hd_registry *registry);

/* Whether a rank holds the part; for this rank: part.held. */
bool hd_bucket_is_held_by(const struct hd_registry *registry, const struct hd_bucket *bucket,
                          int rank);

/* The index of the share that a rank holds; the box of a share: its start, and its extent without
 * padding. */
int hd_param_shard_index(const struct hd_param *param, const struct hd_mesh *mesh, int rank);
void hd_param_box(const struct hd_param *param, int shard_index,
                  int64_t ret_start[HD_PARAM_DIMS_MAX], int64_t ret_real[HD_PARAM_DIMS_MAX]);

/* An encoded parameter: its matrices (1, or this rank's experts), the box of one, which is the same
 * for all of them, and the factor that `fused_count` parameters from `param` on are, whose memory
 * begins
 * at the first one's offset. */
int64_t hd_param_matrices(const struct hd_param *param);
struct hd_quant_box hd_param_quant_box(const struct hd_param *param);
struct hd_quant_factor hd_registry_factor(const struct hd_registry *registry, int param,
                                          int fused_count);

/* The row-major index, in the whole tensor, of element i of this rank's share; -1 in padding. */
int64_t hd_param_global_index(const struct hd_param *param, int64_t i);

/* Initial values of elements [first, first+count) of this rank's share, in its row-major order. The
 * random numbers depend on seed, name and *global* index, so they are equal in every layout. Not of
 * HD_INIT_NORMS. */
void hd_param_init_values(const struct hd_param *param, uint64_t seed, int64_t first, int64_t count,
                          float *ret_values);

/* Elements of all shards of a part together, room beyond its end included. */
int64_t hd_bucket_shards_count(const struct hd_registry *registry, const struct hd_bucket *bucket);

/* The elements of a part of which rank `rank`, which holds it, has this kind of state between two
 * steps; of gradients: the sums over all ranks. */
struct hd_range {
    int64_t begin, end;
};
struct hd_range hd_bucket_range(const struct hd_registry *registry, const struct hd_bucket *bucket,
                                enum hd_state_kind kind, int rank);

/* The element of the part at which the memory of this rank's state begins. */
int64_t hd_bucket_base(const struct hd_bucket *bucket, enum hd_state_kind kind);

/* Where a moment of an element of this rank's shard is, in bytes from the begin of the moment's
 * memory: the element in fp32 (block 0); or its code, and the scale of its block. The memory from
 * there to the end of the element's parameter, or shard, continues alike. */
struct hd_moment_place {
    int64_t block, at, scale_at;
};
struct hd_moment_place hd_bucket_moment_place(const struct hd_bucket *bucket, int64_t element);

/* True if this rank counts the part in the norm, for all ranks that have the same gradient. */
bool hd_bucket_owns_norm(const struct hd_registry *registry, const struct hd_bucket *bucket);

/* The index, in the array of chunk sums, of the chunk that begins with element `at` of a counted
 * segment. Chunks are [i HD_GRAD_CHUNK, (i+1) HD_GRAD_CHUNK) of the part, cut to the segment. */
int64_t hd_segment_chunk(const struct hd_segment *segment, int64_t at);

/* Bytes of one kind of state of a part. */
int64_t hd_bucket_state_bytes(const struct hd_registry *registry, const struct hd_bucket *bucket,
                              enum hd_state_kind kind);

int64_t hd_global_bytes(const struct hd_registry *registry, enum hd_global global);

bool hd_state_is_registered(const struct hd_bucket *bucket, enum hd_state_kind kind);
bool hd_state_is_on_host(const struct hd_bucket *bucket, enum hd_state_kind kind);
bool hd_global_is_registered(enum hd_global global);

#endif
