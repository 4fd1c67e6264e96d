/* program: records a model's forward function and compiles the recording into programs.
 *
 *     model forward --record--> ops --precision--> --derive--> F, B, W --fuse--> --shard-->
 *         --stream--> --place--> a chunk: programs with every tensor at a known offset
 *
 * The model's forward function does not compute. It records *ops* on *tensors* (recording.h, one
 * constructor per op). The compiler passes turn the recording into *programs*: lists of *nodes*
 * that work on *stores*. A node is one kernel launch or one collective; a store is a block of
 * memory with an offset in a region.
 *
 *   precision.c  gives every tensor its dtype by a table (op class -> encoding), inserts casts
 *   derive.c     emits the nodes of each op: forward, backward for inputs, backward for weights
 *                (ops_*.c); emits no gradient that is not needed
 *   recompute.c  used by derive: chooses the values that forward keeps; recomputes the others
 *   fuse.c       merges adjacent nodes that one kernel can compute in one pass over memory
 *   shard.c      inserts the reductions of each bucket's gradient after its last contribution
 *   emit_fp8.c   used by derive: products of linears with factors in fp8
 *   gather.c     inserts the gathers of weights ahead of the unit that needs them (ZeRO 3)
 *   stream.c     gives each node its stream, and the edges between streams
 *   place.c      computes lifetimes and offsets; asks the target's traits for sizes of scratch
 *
 * A *chunk* holds the programs that are compiled together for a range of units: F, B and W of
 * training, which share the tensors that F keeps for B and W; or E, or D; or S and U, which belong
 * to no unit (mesh/call.h). Addresses are bound later (run.h), once per slot of the regions
 * HD_REGION_SAVED and HD_REGION_DEFERRED, so one chunk serves many micro-batches in flight.
 * hd_chunk_list prints a chunk as text (list.c), dry.h counts its work; neither needs a device.
 *
 * A chunk that does not begin with the embedding reads hidden rows that another chunk wrote, and a
 * chunk that does not end with the head writes them; their gradients pass in the opposite direction
 * (enum hd_stage_io). No program owns this memory: it is the output of one chunk and the input of
 * the next, on this rank or after a transfer between ranks.
 *
 * Memory: recording and chunk live in one arena, which is given to hd_rec_new.
 * Failures: the first failure is kept in the recording, and hd_rec_status returns it; later calls
 * do nothing.
 * Used by: model (records), optim, pipeline, train, plan.
 * Uses: base, mesh, comm (kinds), kernels.
 * Threads: a recording belongs to one thread; a finished chunk is immutable.
 */
#ifndef HD_PROGRAM_PROGRAM_H
#define HD_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "comm/comm.h"
#include "mesh/call.h"
#include "mesh/mesh.h"
#include "mesh/zigzag.h"
#include "program/recording.h"

enum hd_region {
    HD_REGION_STATE,    /* weights, moments ... (registry.h); constants and caches of the chunk */
    HD_REGION_SAVED,    /* tensors that F keeps for B and W: one slot per micro-batch in flight */
    HD_REGION_DEFERRED, /* tensors that B keeps for W: one slot per postponed W */
    HD_REGION_WORK,     /* scratch and temporaries, shared by all calls */
    HD_REGION_STAGE_IO, /* slots of hidden rows between chunks, and of their gradients */
    HD_REGION_COUNT
};

/* Tensors that a chunk shares with the chunks before and after it, [rows, hidden] each. Each one
 * has a slot of region HD_REGION_STAGE_IO, of one size for all; F reads INPUT and writes OUTPUT, B
 * reads OUTPUT_GRAD and writes INPUT_GRAD, W may read INPUT and OUTPUT_GRAD. */
enum hd_stage_io {
    HD_STAGE_INPUT,
    HD_STAGE_OUTPUT,
    HD_STAGE_OUTPUT_GRAD,
    HD_STAGE_INPUT_GRAD,
    HD_STAGE_IO_COUNT
};

/* A rank's compute stream, then its streams of collectives in the order of comm.h. */
enum hd_stream_name {
    HD_STREAM_COMPUTE,
#define X(code, name) HD_STREAM_##code,
    HD_COMM_COLLECTIVE_STREAM_LIST(X)
#undef X
        HD_STREAM_COUNT
};

/* Contents of a store. */
enum hd_store_kind {
    HD_STORE_TEMPORARY,
    HD_STORE_BATCH,       /* written by the host before the program runs */
    HD_STORE_STAGE_IO,    /* hidden rows or gradient shared with another chunk */
    HD_STORE_OUTPUT,      /* read by the host after the program ran */
    HD_STORE_BUCKET,      /* one kind of state of a bucket             */
    HD_STORE_GRAD_BUCKET, /* a bucket's gradient in one program, not yet reduced (ZeRO 2, 3) */
    HD_STORE_GATHERED,    /* a bucket's weights, gathered for one program (ZeRO 3)           */
    HD_STORE_WIRE,        /* a bucket's gradient in the encoding in which ranks send it
                          (train.grad_reduce_dtype) */
    HD_STORE_GLOBAL,      /* values of a step, enum hd_global */
    HD_STORE_CONSTANT,    /* table filled once, by hd_constant_fill */
    HD_STORE_CACHE /* keys or values of one unit kept between calls of decode, or norms of its
                          weights */
};

enum hd_constant_kind {
    HD_CONSTANT_ROPE_TABLE,
    HD_CONSTANT_QUERY_FACTORS,
    HD_CONSTANT_POSITIONS,
    HD_CONSTANT_SLOPES
};

/* A block of memory of a chunk. */
struct hd_store {
    int id;
    enum hd_store_kind kind;
    const char *name;
    enum hd_dtype dtype;
    int64_t rows, columns; /* shape of the store in elements; columns 0: a vector of `rows`
                              elements */
    int64_t size_bytes;
    bool registered; /* true if a collective reads or writes the store: it is then in the registered
                        half of its region */
    enum hd_region region;
    int64_t offset; /* bytes from the begin of its half of the region (HD_REGION_SAVED and DEFERRED:
                       of its half of a slot) */
    int64_t align;  /* alignment in bytes of the store's address in HD_REGION_WORK; 0:
                       HD_TENSOR_ALIGN */
    /* members used by certain kinds of store */
    int bucket;                     /* index of the bucket; HD_STORE_BUCKET, GRAD_BUCKET, GATHERED,
                                       WIRE */
    enum hd_state_kind state;       /* HD_STORE_BUCKET */
    enum hd_global global;          /* HD_STORE_GLOBAL */
    enum hd_batch_field field;      /* HD_STORE_BATCH */
    enum hd_stage_io stage_io;      /* HD_STORE_STAGE_IO */
    enum hd_constant_kind constant; /* HD_STORE_CONSTANT */
    const struct hd_rope *rope;     /* HD_CONSTANT_ROPE_TABLE */
    struct hd_query_factor query_factor; /* HD_CONSTANT_QUERY_FACTORS */
    struct hd_zigzag zigzag;             /* HD_CONSTANT_POSITIONS */
    float slope_scale;                   /* HD_CONSTANT_SLOPES: factor of the slopes; 0: 1 */
    int64_t first_head, all_heads; /* HD_CONSTANT_SLOPES: slopes of `rows` heads from first_head
                                       on, of all_heads */
    int unit;                      /* HD_STORE_CACHE */
};

/* An address as a store and an offset in it. All zeros: absent; the kernel gets a null pointer. */
struct hd_operand {
    struct hd_store *store; /* store that has the operand's memory; NULL: the operand is absent */
    int64_t offset_bytes;
};

/* Operands of collectives: W written, R read, RW both. Only all_to_all_v uses the last three:
 * number of rows sent to each group member, number received from each (may be absent), and a flag
 * that is set to 1 when more rows than sent_max or received_max had to be moved. */
#define HD_COMM_OPERAND_LIST(R, W, RW) \
    W(received) R(sent) R(sent_counts) W(received_counts) RW(exceeded)

enum { HD_NODE_WAITS_MAX = 8 };

struct hd_node {
    bool is_comm;
    int unit;
    enum hd_stream_name stream;
    struct hd_operand *operands; /* [hd_node_operand_count]; operands.h has the struct that names
                                    each */

    /* members of a kernel node; hd_bind fills in the pointers in a copy of args */
    enum hd_kernel kernel;
    void *args;

    /* members of a collective node */
    enum hd_comm_kind comm;
    enum hd_group_name group;
    int64_t count; /* elements, counted as in the args of comm.h; all_to_all_v: the largest number
                      of rows received */
    enum hd_dtype dtype;
    bool keep_fp32;             /* reduce_scatter only: true if the sum of bf16 operands stays fp32
                                   (comm.h) */
    enum hd_comm_reduce reduce; /* all_reduce only: the reduction */
    struct hd_node_rows {
        int64_t sent_max, received_max; /* largest numbers of rows that this rank sends and
                                           receives */
        int64_t elements;               /* number of elements per row */
        int64_t even;                   /* rows sent or processed when routers are balanced; for
                                           cost estimates */
        int64_t moved;                  /* rows that all members together send to others, where that
                                           is known; 0: it depends on routers */
    } rows; /* row counts of an all_to_all_v; a kernel node has `even` only (0: its args tell the
               number of rows) */

    /* flags that hd_bind uses: it binds a program separately for the first, a middle and the last
     * micro-batch of a step */
    bool contribution;       /* true: the node contributes to a parameter's gradient */
    bool first_contribution; /* first contribution of a micro-batch to the gradient: overwrites the
                                gradient in the step's first micro-batch, adds to it in later
                                ones */
    bool overwrites;         /* true: the node is the first to write this part of a gradient bucket,
                                and overwrites it in every micro-batch */
    bool only_last;          /* true: the node runs only in the last micro-batch of a step */

    int waits[HD_NODE_WAITS_MAX]; /* indices of earlier nodes of this program, on other streams,
                                     that this node waits for */
    int wait_count;
};

/* Return the number of operands of a node, including absent ones, and whether the node reads or
 * writes operand k. */
int hd_node_operand_count(const struct hd_node *node);
enum hd_access hd_node_access(const struct hd_node *node, int k);
bool hd_node_touches(const struct hd_node *node, const struct hd_store *store);
bool hd_node_writes(const struct hd_node *node, const struct hd_store *store);

struct hd_program {
    enum hd_call call;
    struct hd_node **nodes;
    int count;
};

/* Sizes of a region's private and registered half in bytes (HD_REGION_SAVED and DEFERRED: of one
 * slot's halves). */
struct hd_extent {
    int64_t private_bytes, registered_bytes;
};

struct hd_chunk {
    const struct hd_registry *registry;
    struct hd_rec_shape shape;
    int group_size[HD_GROUP_COUNT]; /* group sizes for which the collectives were compiled */
    struct hd_traits traits;
    struct hd_store **stores; /* by id */
    int store_count;
    struct hd_program program[HD_CALL_COUNT]; /* by call; no nodes if the chunk lacks that call */
    struct hd_extent extent[HD_REGION_COUNT]; /* HD_REGION_STATE: the chunk's constants and caches
                                                 only */
};

/* Encodings in which each class of ops computes and stores its results. */
struct hd_precision {
    enum hd_dtype of_class[HD_OP_CLASS_COUNT];
};
struct hd_precision hd_precision_uniform(enum hd_dtype dtype);

/* Policies of recomputing values in backward instead of keeping them from forward (recompute.c). */
enum hd_recompute_policy { HD_RECOMPUTE_NONE, HD_RECOMPUTE_SELECTIVE, HD_RECOMPUTE_FULL };
struct hd_recompute {
    enum hd_recompute_policy policy;
    int units; /* HD_RECOMPUTE_FULL: number of units of a segment, of which only the input is kept;
                  0: 1 unit */
};

struct hd_compile_options {
    struct hd_precision precision;
    struct hd_recompute recompute;
    const struct hd_mesh *mesh; /* mesh that gives the sizes of the groups */
    struct hd_traits traits;    /* traits of the device that will run the programs */
    /* encoding in which gradients travel between data-parallel ranks: HD_F32 or HD_BF16
     * (train.grad_reduce_dtype) */
    enum hd_dtype wire;
    bool split_backward; /* true: W is a separate program (zero-bubble schedules); false: the nodes
                            of W are in B */
    /* for a tied weight that two chunks of this rank use; ends_elsewhere: this chunk has the head,
     * contributes to the gradient first, and leaves the sums over ranks to the other chunk;
     * began_elsewhere: this chunk has the embedding, and always adds to the gradient */
    bool tie_ends_elsewhere, tie_began_elsewhere;
    /* linears of blocks multiply in fp8 in training; all other ops follow `precision`, which is
     * then bf16. Scales come from the amax histories if the registry has buffers, else from the
     * current tensors (emit_fp8.c). */
    bool fp8;
    bool no_fuse; /* true: the fuse pass is skipped; for tests */
    /* for cost estimates: stores in the work region get no offsets, and the region's size is the
     * most bytes that are live at the same time */
    bool unplaced;
};

/* Runs all passes over the recording. The chunk lives in the recording's arena. Fails with the
 * first failure of the recording or of a pass. */
enum hd_status hd_compile(struct hd_rec *rec, const struct hd_compile_options *options,
                          struct hd_chunk **ret_chunk);

/* Returns the first offset from `bytes` on at which HD_REGION_WORK may begin: a multiple of
 * HD_SCRATCH_ALIGN, because offsets of scratch are multiples of it. */
int64_t hd_work_begin(int64_t bytes);

/* Appends a listing of all programs of the chunk: op, shapes, region and offset, bytes, stream,
 * group. */
void hd_chunk_list(const struct hd_chunk *chunk, struct hd_text *ret_text);

/* Return the store of a batch field, or the first store of a kind; NULL if the chunk has none. */
const struct hd_store *hd_chunk_find_batch(const struct hd_chunk *chunk, enum hd_batch_field field);
const struct hd_store *hd_chunk_find_kind(const struct hd_chunk *chunk, enum hd_store_kind kind);
/* Returns the store of the chunk's hidden rows or gradient that it shares with another chunk; NULL
 * if the chunk does not have it. */
const struct hd_store *hd_chunk_find_stage_io(const struct hd_chunk *chunk,
                                              enum hd_stage_io stage_io);

/* Returns the name of the node's kernel or collective; a GEMM's name includes its fused
 * epilogue. */
const char *hd_node_name(const struct hd_node *node);
const char *hd_region_name(enum hd_region region);
const char *hd_stream_text(enum hd_stream_name stream);
/* Returns the communication stream (comm.h) that runs the collectives of `stream`, which must not
 * be HD_STREAM_COMPUTE. */
enum hd_comm_stream_name hd_stream_comm(enum hd_stream_name stream);

#endif
