/* registry: every parameter of a model, declared once, and the layout of its state in memory.
 *
 * A parameter has a global name and shape, the axis that tensor parallelism (tp) splits, an
 * initialisation, and flags for weight decay and training. Initialisation, optimizer, sharding,
 * checkpoints and planning use only the registry. A rank holds a box of the global tensor, its
 * shard of the tensor. If the shards do not divide the axis (only the vocabulary), the last one is
 * padded: padding is zeros, gets no gradient and is not saved.
 *
 * Parameters belong to *units* (embedding, a block, the head). The trainable parameters of a unit
 * form a *bucket*, and so do its frozen ones, its experts, those of routers, which always compute
 * in fp32, the head's weight, whose gradient F computes and not B, and those that another rule
 * updates (optimizer.h): with Muon the matrices of linears. A bucket has one flat buffer
 * per kind of state; gradients are reduced and weights updated bucket by bucket. A bucket consists
 * of *segments*, which differ in how tp treats them: in the sum of gradients over tp ranks, and in
 * which ranks count the segment in the gradient norm:
 *
 *     split                                        no sum                 every rank counts
 *     split, held by several ranks (kv heads)      sum over kv_replica    first copy counts
 *     replicated, gradients of ranks are partial   sum over tp            tp index 0 counts
 *     replicated, gradients are equal              no sum                 tp index 0 counts
 *
 * Gradients are then summed over dp x cp, those of experts over expert_dp. All ranks of dp x cp, or
 * of expert_dp, then have equal gradients; only the first adds its chunk sums to the gradient norm.
 *
 * With pipeline stages a rank *holds* the buckets of its stage's units: only these have state on
 * it. All ranks list all buckets, in the same order. A tied parameter (the embedding, if the head's
 * unit uses it too) is a bucket by itself. If the head is on another stage, that stage holds the
 * bucket as well: the two stages sum its gradient over dp x cp, then with each other (group
 * embedding), and both update it; the stage of the embedding counts it in the norm and saves it.
 *
 * With ZeRO (Rajbhandari et al. 2020) the ranks of a bucket's shard group, which is its reduce
 * group or, with hybrid sharding, a subgroup of it, divide its optimizer state: shard i of P is
 * elements [i n, (i+1) n) of the bucket, with n a multiple of HD_GRAD_CHUNK, so the cuts depend on
 * the model and P alone and may lie within a tensor. Stage 1: rank i has moments and master weights
 * of shard i only. Gradients are scattered, each sum to the rank of its shard; the updated shards
 * are gathered into the copy in the compute encoding, which every rank has whole. In fp32 that copy
 * is the master itself, whole on every rank. Stage 2: a rank has the sums of gradients of its shard
 * only. A program writes its contributions to a *gradient bucket*, which is scattered and added
 * when the bucket is complete, in every micro-batch. Stage 3 (also FSDP, Zhao et al. 2023): a rank
 * has the copy of its shard only, too; a program gathers a unit's weights before it uses them and
 * frees them afterwards. Bytes per parameter with P ranks, without memory that lives within one
 * program:
 *
 *     stage    0        1           2           3
 *     bf16    18   6 + 12 / P  2 + 16 / P    18 / P
 *     fp32    16   8 +  8 / P  4 + 12 / P    16 / P
 *
 * That is with AdamW's two moments; a rule with one moment needs 4 bytes less, of the sharded ones.
 *
 * A parameter that does not train (train.trainable, or a program that only computes) has one copy,
 * whole on every rank that holds it, in the compute encoding: no master, no gradient, no moments.
 *
 * With `quant` (model.quantization) the matrices of linears of blocks that do not train are codes
 * (base/quant.h), in separate buckets, whose elements are bytes: a parameter begins at a byte and
 * is one record; a parameter of a mixture of experts is one record for each expert of this rank.
 * The codes depend on the global tensor alone. Two cases are refused: a tp split that cuts a block
 * of nf4, and a matrix of a linear that trains.
 *
 * With hybrid sharding the ranks that have the same shard (group zero_replicate) sum their
 * gradients in U, once a step.
 *
 * With moments_in_blocks all moments are 8-bit codes with a scale per block (base/encoding.h;
 * docs/decisions/precision.md). A block lies within a row, which is the last axis. Its size is the
 * largest power of two, up to HD_BLOCK_MAX, that divides every legal tp shard of a row, so it
 * depends on the global shape alone and no split cuts a block: tp cuts between blocks, a parameter
 * begins at a multiple of its block in the bucket, and so do shards. The moments of some parameters
 * stay fp32: of vectors (norms and biases), of tensors with fewer than HD_BLOCKS_FROM elements, of
 * tables (embedding and positions, whose rows get gradients in few steps), of parameters that
 * compute in fp32, and of those whose block would be smaller than HD_BLOCK_MIN. Bytes of both
 * moments per parameter: 2 + 8 / block instead of 8. The memory of a bucket's moments is a sequence
 * of ranges (ranges of struct hd_bucket), each in fp32 or in blocks.
 *
 * *State* parameters (a router's select bias) are frozen ones that U changes: fp32, equal on all
 * ranks that hold them, saved like weights, without moments.
 *
 * *Buffers* are numbers that training keeps beside the parameters: no gradient, saved in
 * checkpoints, changed only in U (the update program), and equal on all ranks, so each rank has all
 * of them and a job with any layout can read a checkpoint of any other. With amax_history > 0 every
 * linear of a block (HD_AMAX_COUNT tensors that are multiplied in fp8) has a buffer: the largest
 * magnitudes of its tensors in the newest steps, newest first (docs/decisions/precision.md). A step
 * collects its largest magnitudes in HD_GLOBAL_AMAX, of which U takes the maximum over all ranks.
 *
 * The registry also lays out the *state* region: weights, moments, gradients and compute copies of
 * every bucket, the buffers, and a few values per step. Offsets are bytes from the region's start.
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
#include "program/optimizer.h"

enum {
    HD_PARAM_NAME_MAX = 96,
    HD_PARAM_DIMS_MAX = 3,
    HD_PARAM_PAD = 64,     /* rows: a padded shard has a multiple of this number, unless a rank's
                              shard would then be empty */
    HD_PARAM_ALIGN = 16,   /* elements: a parameter is aligned to 64 bytes in its fp32 bucket */
    HD_BLOCKS_FROM = 4096, /* elements: the moments of smaller tensors stay fp32 */
    HD_BUCKETS_PER_UNIT = 12
};

/* Tensors of a linear that are multiplied in fp8: the rows of its amax buffer. */
enum hd_amax { HD_AMAX_INPUT, HD_AMAX_WEIGHT, HD_AMAX_GRAD, HD_AMAX_COUNT };

/* Initial values. NORMS: the norms of the rows of another parameter, which lib/train computes
 * (train/norms.h). LOG_UNIFORM: logarithms of numbers that are uniform in 0.01 to init_std. */
enum hd_init_kind {
    HD_INIT_ZEROS,
    HD_INIT_ONES,
    HD_INIT_NORMAL,
    HD_INIT_UNIFORM,
    HD_INIT_NORMS,
    HD_INIT_LOG_UNIFORM
};

/* Rows of a parameter that make attention scores, as queries or keys, for QK-clip (ops_update.h):
 * head_rows rows a head, of which it scales the first `split` by the part of queries or keys; of
 * queries it scales the others by all of the factor, because all heads share their keys. */
struct hd_score_rows {
    int64_t head_rows, split; /* 0: the parameter makes none */
    int64_t group;            /* query heads that read one key head */
    bool keys;
};

/* Settings of train.qk_clip. */
struct hd_qk_clip {
    float threshold; /* 0: none */
    float alpha;
    int64_t heads; /* query heads of a block */
};

/* Declaration of a parameter by the model. */
struct hd_param_spec {
    const char *name; /* name in the whole model: blocks.3.attention.q.weight */
    int dim_count;
    int64_t shape[HD_PARAM_DIMS_MAX]; /* extents of the whole tensor, by axis */
    int tp_axis;                      /* axis that tp splits; -1: every tp rank has the whole
                                         tensor */
    int tp_copies;    /* if tp splits it: number of adjacent tp ranks that hold the same shard; 0
                         means 1 */
    int64_t tp_grain; /* elements; if tp splits the last axis: every legal shard is a multiple of
                         this number */
    bool padded;      /* if tp splits axis 0: the last shard may be padded with rows of zeros */
    bool partial;     /* if tp does not split it: each tp rank computes a partial gradient, and the
                         gradient is their sum */
    bool experts;     /* axis 0 counts experts, which expert parallelism splits; tp may split
                         another axis */
    enum hd_init_kind init;
    double init_std; /* HD_INIT_NORMAL: standard deviation; HD_INIT_UNIFORM: values are within +-
                        this number */
    int norms_of;    /* HD_INIT_NORMS: index of the matrix whose row norms these are */
    bool decay;      /* true: weight decay applies to the parameter */
    double lr_scale; /* factor on the learning rate; 0 means 1 */
    bool frozen;     /* true: the parameter gets no gradient and no update */
    bool state; /* true: the parameter is a router's select bias, which gets no gradient; the update
                        program changes it (ops_moe.h, route_bias) */
    int router; /* if `state`: index of the router that has the select bias */
    double rate;    /* if `state`: amount by which an update changes the select bias; 0: none */
    bool fused;     /* true: the parameter follows the unit's previous one in memory without a gap,
                        because one GEMM uses both */
    bool tied;      /* true: the unit of the head uses the parameter too */
    bool head;      /* true: the parameter is the head's own weight */
    bool keep_fp32; /* true: kernels read the parameter in fp32, whatever the compute encoding */
    bool table;     /* true: the parameter is a table whose rows are looked up by index */
    bool adapter;   /* true: the parameter belongs to an adapter and is not in the base model's
                        files */
    bool newly_initialized; /* true: the files of a base model may lack the parameter, which is then
                               initialised from the seed */
    bool product;           /* true: the parameter is the first of the adjacent weights of one
                               linear of a block */
    bool linear;            /* true: the parameter is a weight matrix of a linear of a block, or one
                               for each expert, and may be quantised */
    struct hd_score_rows scores;
};

struct hd_param {
    char name[HD_PARAM_NAME_MAX];
    int dim_count;
    int64_t shape[HD_PARAM_DIMS_MAX]; /* extents of the whole tensor, by axis */
    int64_t local[HD_PARAM_DIMS_MAX]; /* extents of this rank's shard, with padding */
    int64_t start[HD_PARAM_DIMS_MAX]; /* index of the shard's first element, by axis */
    int64_t real[HD_PARAM_DIMS_MAX];  /* extents of this rank's shard, without padding */
    int tp_axis;
    int shards;               /* number of different shards, over tp and ep */
    int tp_shards, tp_copies; /* number of different shards over tp; number of tp ranks that hold
                                 each of them */
    bool partial, experts, tied, head, keep_fp32, adapter, newly_initialized, state;
    enum hd_init_kind init;
    double init_std;
    int norms_of, router;
    double rate;
    float lr_scale;
    struct hd_score_rows scores;
    bool decay, trainable, fused;
    enum hd_rule rule; /* rule of the update of a trainable parameter */
    int unit, bucket;
    int buffer;            /* index of the buffer with the linear's amax history, set in the
                              linear's first parameter; -1: none */
    int64_t block;         /* elements that share a scale in the parameter's 8-bit moments; 0:
                              moments are fp32 */
    enum hd_quant quant;   /* HD_QUANT_NONE: not quantised */
    int64_t record_bytes;  /* quantised: bytes from the begin of one matrix to the begin of the
                              next */
    int64_t offset, count; /* offset in the bucket and number, both in elements; quantised: the
                              offset is in bytes */
    int64_t real_count;    /* number of elements without padding, which comes last in `count` */
};

struct hd_buffer {
    char name[HD_PARAM_NAME_MAX]; /* name in the whole model: blocks.3.attention.q.weight.amax */
    int64_t rows, columns;
    int64_t first; /* index, in HD_GLOBAL_BUFFERS, of the buffer's first number */
};

struct hd_unit {
    const char *name; /* name of the unit for listings: "block.3" */
    const char *kind; /* kind of the unit: "block"; units of one kind have the same forward function
                         and shapes */
    int first_param, param_count;
    int buckets[HD_BUCKETS_PER_UNIT], bucket_count;
};

enum hd_state_kind {
    HD_STATE_WEIGHT,    /* fp32 master; of a frozen bucket the compute encoding, or codes */
    HD_STATE_COPY,      /* compute encoding; if not hd_bucket.copied: the memory of WEIGHT */
    HD_STATE_GRAD,      /* fp32 gradients, in registered memory */
    HD_STATE_MOMENT1,   /* first moment of the bucket's rule: fp32, or blocks of codes */
    HD_STATE_MOMENT2,   /* second moment, if the rule has one: fp32, or blocks of codes */
    HD_STATE_EMA,       /* fp32 moving average of the master weights, if the registry has `ema` */
    HD_STATE_REFERENCE, /* what programs read of the weights with which the run began, if the registry
                           has `reference`: encoding and elements of COPY, in private memory */
    HD_STATE_RANGES,    /* array of struct hd_update_range for this rank's shard */
    HD_STATE_KIND_COUNT
};

/* A range of a bucket whose parameters tp treats alike (a row of the table at the begin of this
 * file). The segments of a bucket cover it without gaps. */
struct hd_segment {
    int64_t begin, end;           /* first element, and element behind the last, in the bucket */
    enum hd_group_name sum_group; /* group over whose ranks the segment's gradient is summed first;
                                     HD_GROUP_COUNT: no sum */
    bool owns_norm;               /* true if this rank, of the ranks of its tp group, counts the
                                     segment in the gradient norm */
    int64_t first_chunk;          /* if owns_norm: index of the segment's first sum in the array of
                                     chunk sums */
};

struct hd_bucket {
    int unit;
    bool trainable;
    enum hd_rule rule;               /* rule of the update of a trainable bucket */
    bool tied;                       /* true: the bucket's one parameter (the embedding) is used by
                                        the unit of the head too: as its weight, or for further
                                        tokens */
    int32_t stage, tie_stage;        /* the pipeline stages that hold the bucket; equal: only one
                                        does */
    bool is_local;                   /* true: this rank holds the bucket */
    bool keep_fp32;                  /* true: kernels read the parameters in fp32, whatever the
                                        compute encoding */
    bool offloaded;                  /* true: master weights, moments and ranges are in host
                                        memory */
    bool copied;                     /* true: the copy in the compute encoding is in other memory
                                        than the master weights */
    enum hd_quant quant;             /* not NONE: the bucket has records; `stored` is HD_U8, `count`
                                        is in bytes */
    enum hd_dtype compute;           /* compute encoding; set by hd_registry_finish */
    enum hd_dtype stored;            /* encoding of HD_STATE_WEIGHT; set by hd_registry_finish */
    int64_t count;                   /* number of elements of the bucket, padding included */
    enum hd_group_name reduce_group; /* group over whose ranks the bucket's gradient is summed */
    enum hd_group_name shard_group;  /* if ZeRO splits the bucket: the group whose ranks have one
                                        shard each */
    struct hd_segment *segments;
    int segment_count;
    bool head;                      /* true: the bucket's one parameter is the head's own weight */
    int zero;                       /* stage of ZeRO for this bucket; 0: the bucket is not split */
    int64_t shard_count;            /* number of elements of a ZeRO shard; 0: the bucket is not
                                       split */
    int64_t shard_begin, shard_end; /* first element, and element behind the last, that this rank
                                       updates; not split: 0, count */
    struct hd_update_range *ranges; /* [range_count] ranges of those elements with equal decay,
                                       learning rate and block; offsets count from shard_begin */
    int64_t range_count;
    struct hd_update_range *whole_ranges; /* [whole_range_count] ranges of the whole bucket */
    int64_t whole_range_count;
    bool in_blocks;                      /* true if the moments of at least one range are 8-bit
                                            blocks */
    int64_t moment_bytes;                /* bytes of each moment of this rank's elements */
    int64_t offset[HD_STATE_KIND_COUNT]; /* by kind of state: bytes from the begin of its half of
                                            the state region, or of the memory for offloaded state;
                                            -1: this rank does not have this state */
};

/* Values of a step that belong to no bucket. */
enum hd_global {
    HD_GLOBAL_STEP_STATE, /* struct hd_step_state                        */
    HD_GLOBAL_SUMS,       /* double[chunks of all segments that this rank counts], registered */
    HD_GLOBAL_RECORD,     /* double[HD_EXCHANGE_WORDS], registered */
    HD_GLOBAL_RECORDS,    /* double[ranks, HD_EXCHANGE_WORDS], registered */
    HD_GLOBAL_ROUTES,     /* double[routers, HD_ROUTE_WORDS + experts], registered: routers'
                             records */
    HD_GLOBAL_BUFFERS,    /* float[] of all buffers, in the order of their declaration */
    HD_GLOBAL_AMAX, /* float[buffers, HD_AMAX_COUNT], registered: largest magnitudes of this step so
                       far */
    HD_GLOBAL_FURTHER,  /* double[further, HD_FURTHER_WORDS], registered: records of the losses of
                          further tokens, which the host sets before each step */
    HD_GLOBAL_MATRICES, /* tables of the exchange of matrices (matrices.h) */
    HD_GLOBAL_SCORES,   /* float[units, query heads], registered: largest attention scores of this
                           step so far, with qk_clip */
    HD_GLOBAL_COUNT
};

struct hd_matrix_plan;

struct hd_registry {
    struct hd_arena *arena;
    struct hd_mesh mesh;        /* mesh of the job's ranks */
    struct hd_mesh_coord coord; /* coordinates of this rank */
    int rank;
    bool sequence; /* sequence parallelism: norms and residuals use 1/tp of the rows; the owner sets
                      it before the first declaration */
    float ema_rate; /* part of the way to the new weights that their moving average goes in an
                       update; 0: no average is kept. Set before hd_registry_finish */
    struct hd_qk_clip qk_clip; /* set before hd_registry_finish */
    bool
        reference; /* true: a copy of the trained weights with which the run began is kept; set before
                       hd_registry_finish */
    bool moments_in_blocks; /* true: moments are blocks of 8-bit codes; the owner sets it before
                                  the first declaration */
    struct hd_optimizer optimizer; /* set before the first declaration */
    enum hd_quant quant;       /* encoding of the frozen matrices of blocks; set before the first
                                  declaration */
    bool only_computes;        /* true: no parameter will train, so `quant` applies to all matrices
                                  of blocks; set before the first declaration */
    int64_t amax_history;      /* fp8: steps in an amax history; 0: no buffers; set before the first
                                  declaration */
    const int32_t *unit_stage; /* pipeline stage by unit; NULL: all units on stage 0 */
    int32_t head_stage;
    struct hd_param *params;
    struct hd_unit *units;
    struct hd_bucket *buckets;
    struct hd_buffer *buffers;
    int param_count, unit_count, bucket_count, buffer_count;
    int param_capacity, unit_capacity, bucket_capacity, buffer_capacity;
    enum hd_status status; /* status of the first failure */
    char error[HD_ERR_MAX];

    int zero;          /* stage of ZeRO, 0 to 3; the owner of the registry sets it before
                          hd_registry_finish */
    bool offload;      /* the optimizer's state is in host memory beside a device's; set before
                          hd_registry_finish */
    bool omits_frozen; /* true: checkpoints leave out frozen parameters; set before
                          hd_registry_finish */

    /* members that hd_registry_finish sets */
    enum hd_dtype compute_dtype;
    bool trains;
    int64_t chunk_count; /* number of chunks (HD_GRAD_CHUNK elements) into which the gradient norm
                            divides all buckets that this rank holds; equal on all ranks of a
                            pipeline stage that have the same tp index */
    int64_t routers, experts;        /* numbers of routers, and of experts of each; set by
                                 hd_registry_routers */
    int64_t further;                 /* number of further tokens that the model predicts; set before
                        hd_registry_finish */
    struct hd_matrix_plan *matrices; /* exchange of the matrices of this rank's stage (matrices.h);
                                        NULL: no rule needs whole matrices */
    int64_t global_offset[HD_GLOBAL_COUNT];
    int64_t private_bytes, registered_bytes; /* bytes of the two halves of the state region */
    int64_t host_bytes;                      /* bytes of offloaded state, which no program uses */
};

/* Begins an empty registry for `rank` of `mesh`; mesh NULL: a job of one rank. All memory of the
 * registry is from `arena`. */
void hd_registry_init(struct hd_registry *registry, struct hd_arena *arena,
                      const struct hd_mesh *mesh, int rank);

/* Sets the pipeline stage of each unit, in the order of their declaration, and the stage of the
 * head. The array is borrowed. To be called before the first unit. */
void hd_registry_stages(struct hd_registry *registry, const int32_t *unit_stage,
                        int32_t head_stage);

/* Begins a unit; later declared parameters belong to it. Returns its index. */
int hd_registry_unit(struct hd_registry *registry, const char *kind, const char *name);

/* Declares a parameter and returns its index. After a failure it returns 0, and hd_registry_finish
 * returns the failure. */
int hd_registry_param(struct hd_registry *registry, const struct hd_param_spec *spec);

/* Returns the number of floats in all buffers together. */
int64_t hd_registry_buffers_count(const struct hd_registry *registry);

/* Sets the number of routers and of experts of each. Call it before hd_registry_finish. */
void hd_registry_routers(struct hd_registry *registry, int64_t routers, int64_t experts);

/* Lays out buckets and state. `trains`: with gradients and moments; else only weights. Returns the
 * first failure of any declaration. */
enum hd_status hd_registry_finish(struct hd_registry *registry, enum hd_dtype compute_dtype,
                                  bool trains);

/* Makes the registry that of another rank with the same tp index, for a planner that compares
 * ranks: its boxes of parameters, which buckets it holds, and its shards of them. Does not
 * compute the offsets of state again: they stay those of the previous rank. */
void hd_registry_move(struct hd_registry *registry, int rank);

/* Returns the number of elements of all parameters (global, each once). */
int64_t hd_registry_global_count(const struct hd_registry *registry);
/* Returns the number of elements of the trainable parameters. */
int64_t hd_registry_trained_count(const struct hd_registry *registry);

/* Returns whether `rank` holds the bucket; for this rank: bucket.is_local. */
bool hd_bucket_is_held_by(const struct hd_registry *registry, const struct hd_bucket *bucket,
                          int rank);
/* Returns whether this rank holds the bucket of a parameter. */
bool hd_param_is_local(const struct hd_registry *registry, int param);

/* hd_param_shard_index returns the index of the shard that `rank` holds; hd_param_box sets the box
 * of a shard in the global tensor: its first index, and its extents without padding, by axis. */
int hd_param_shard_index(const struct hd_param *param, const struct hd_mesh *mesh, int rank);
void hd_param_box(const struct hd_param *param, int shard_index,
                  int64_t ret_start[HD_PARAM_DIMS_MAX], int64_t ret_real[HD_PARAM_DIMS_MAX]);

/* Return, for a quantised parameter, its number of matrices (1, or this rank's experts); the box of
 * one matrix, which is equal for all of its matrices; and the factor of a product made of
 * `fused_count` parameters from `param` on, whose memory begins at the offset of the first. */
int64_t hd_param_matrices(const struct hd_param *param);
struct hd_quant_box hd_param_quant_box(const struct hd_param *param);
struct hd_quant_factor hd_registry_factor(const struct hd_registry *registry, int param,
                                          int fused_count);

/* Returns the row-major index, in the whole tensor, of element i of this rank's shard; -1 in
 * padding. */
int64_t hd_param_global_index(const struct hd_param *param, int64_t i);

/* Sets ret_values to the initial values of elements [first, first+count) of this rank's shard, in
 * the shard's row-major order. The random numbers depend on seed, name and *global* index, so they
 * are equal in every layout. Not for HD_INIT_NORMS. */
void hd_param_init_values(const struct hd_param *param, uint64_t seed, int64_t first, int64_t count,
                          float *ret_values);

/* Returns the elements of all shards of a bucket together, including those beyond the bucket's
 * end. */
int64_t hd_bucket_shards_count(const struct hd_registry *registry, const struct hd_bucket *bucket);

/* Elements of a bucket whose state of one kind `rank`, which holds the bucket, has between two
 * steps; for gradients: the elements whose sums over all ranks it has. */
struct hd_range {
    int64_t begin, end;
};
struct hd_range hd_bucket_range(const struct hd_registry *registry, const struct hd_bucket *bucket,
                                enum hd_state_kind kind, int rank);

/* Returns true if a rank has this kind of state of the bucket for its ZeRO shard only. */
bool hd_bucket_is_of_shard(const struct hd_bucket *bucket, enum hd_state_kind kind);

/* Returns the index, in the bucket, of the first element for which this rank has memory for this
 * kind of state. */
int64_t hd_bucket_base(const struct hd_bucket *bucket, enum hd_state_kind kind);

/* The position of one element's optimizer moment, in bytes from the begin of the moment's memory on
 * this rank. block: elements that share a scale; 0: the moment is fp32. at: the fp32 value, or the
 * element's 8-bit code. scale_at: the scale of the code's block. The layout is uniform from the
 * element to the end of its parameter or of the shard. */
struct hd_moment_place {
    int64_t block, at, scale_at;
};
struct hd_moment_place hd_bucket_moment_place(const struct hd_bucket *bucket, int64_t element);

/* Returns true if this rank counts the bucket in the norm, for all ranks that have the same
 * gradient. */
bool hd_bucket_owns_norm(const struct hd_registry *registry, const struct hd_bucket *bucket);

/* Returns the index, in the array of chunk sums, of the chunk that begins with element `at` of a
 * counted segment. Chunks are [i HD_GRAD_CHUNK, (i+1) HD_GRAD_CHUNK) of the bucket, cut to the
 * segment. */
int64_t hd_segment_chunk(const struct hd_segment *segment, int64_t at);

/* Returns the bytes of memory of one kind of state of a bucket, on this rank if it has that
 * state. */
int64_t hd_bucket_state_bytes(const struct hd_registry *registry, const struct hd_bucket *bucket,
                              enum hd_state_kind kind);

int64_t hd_global_bytes(const struct hd_registry *registry, enum hd_global global);

bool hd_state_is_registered(const struct hd_bucket *bucket, enum hd_state_kind kind);
bool hd_state_is_on_host(const struct hd_bucket *bucket, enum hd_state_kind kind);
bool hd_global_is_registered(enum hd_global global);

#endif
