/* kernels: the table of device operations. One row per kernel, the same in every backend; what each
 * computes say ops.h and ops_moe.h.
 *
 * A kernel is a pure function of its arguments: tensors by address, sizes and switches by value. It
 * allocates nothing, keeps no state between launches and is deterministic for given thread count,
 * instruction set and library versions. What it needs besides (scratch) is sized here, in plain C,
 * as a function of its arguments and the traits of the target device (kernels/costs), so that a
 * machine without the device can plan it to the byte.
 *
 * Used by: program (records and runs), the backends (implement), plan (prices).   Uses: base.
 * Threads: pure declarations; a backend's launch belongs to the thread that owns the stream.
 */
#ifndef HD_KERNELS_H
#define HD_KERNELS_H

#include "base/status.h"
#include "kernels/ops.h"
#include "kernels/ops_moe.h"

enum {
    HD_KERNEL_ABI = 6 /* raised when an argument struct or a function of the table changes its
                         meaning */
};

/* ---- The table ----
 *
 * One row per kernel: its name (argument struct hd_NAME_args) and its tensors: R read, W written,
 * RW both, S scratch. What is needed per operand is generated from this list: hd_kernel_info
 * here, and the structs that emitters fill in by name in program/operands.h. The order of rows and
 * operands is part of the ABI hash.
 *
 * HD_KERNEL_LIST(K) gives K(name, operands) per row, with operands that K leaves out;
 * HD_KERNEL_OPERAND_LIST gives them through the macros R, W, RW and S of the caller. */
#define HD_KERNEL_LIST(K) HD_KERNEL_OPERAND_LIST(K, R, W, RW, S)
#define HD_KERNEL_OPERAND_LIST(K, R, W, RW, S)                                                    \
    K(gemm, W(c) W(pre) W(dbias) R(a) R(b) R(bias) R(gelu_inp) S(scratch))                        \
    K(bias_forward, W(out) R(inp) R(bias))                                                        \
    K(bias_backward, W(dbias) R(dout) S(scratch))                                                 \
    K(embedding_forward, W(out) R(index) R(weight) R(index2) R(weight2))                          \
    K(embedding_backward, W(dweight) R(index) R(dout) S(scratch))                                 \
    K(rmsnorm_forward, W(out) W(sum) W(rstd) R(inp) R(add) R(weight))                             \
    K(rmsnorm_backward, W(dinp) R(dout) R(inp) R(rstd) R(weight) R(add))                          \
    K(rmsnorm_backward_weight, W(dweight) R(dout) R(inp) R(rstd) S(scratch))                      \
    K(layernorm_forward, W(out) W(sum) W(mean) W(rstd) R(inp) R(add) R(weight) R(bias))           \
    K(layernorm_backward, W(dinp) R(dout) R(inp) R(mean) R(rstd) R(weight) R(add))                \
    K(layernorm_backward_weight, W(dweight) W(dbias) R(dout) R(inp) R(mean) R(rstd) S(scratch))   \
    K(head_norm_forward, W(out) W(rstd) R(inp) R(q_weight) R(k_weight))                           \
    K(head_norm_backward, W(dinp) R(dout) R(inp) R(rstd) R(q_weight) R(k_weight))                 \
    K(head_norm_backward_weight, W(dq_weight) W(dk_weight) R(dout) R(inp) R(rstd) S(scratch))     \
    K(rope, RW(x) R(position) R(table))                                                           \
    K(attention_forward, W(out) W(lse) R(q) R(k) R(v) R(q_index) R(kv_index) R(q_bound) R(slopes) \
                             R(kv_filled) R(sample) R(block) S(scratch))                          \
    K(attention_backward, W(dq) W(dk) W(dv) R(dout) R(q) R(k) R(v) R(out) R(lse) R(q_index)       \
                              R(kv_index) R(q_bound) R(slopes) R(sample) R(block) S(scratch))     \
    K(attention_merge, W(out) RW(acc) RW(lse) R(block_out) R(block_lse))                          \
    K(cache_append, RW(cache) RW(overflow) R(inp) R(filled))                                      \
    K(swiglu_forward, W(out) R(inp) R(counts))                                                    \
    K(swiglu_backward, W(dinp) R(dout) R(inp) R(counts))                                          \
    K(gelu_forward, W(out) R(inp) R(counts))                                                      \
    K(gelu_backward, W(dinp) R(dout) R(inp) R(counts))                                            \
    K(add, W(out) R(a) R(b))                                                                      \
    K(dropout, W(out) R(inp) R(sample) R(index) R(block))                                         \
    K(cast, W(out) R(inp))                                                                        \
    K(copy_columns, W(out) R(inp))                                                                \
    K(zero, W(out))                                                                               \
    K(cross_entropy, W(dlogits) RW(block) R(logits) R(target) S(scratch))                         \
    K(cross_entropy_stats, W(stats) R(logits) R(target))                                          \
    K(cross_entropy_shared, W(dlogits) RW(block) R(logits) R(stats) R(target) S(scratch))         \
    K(step_begin, RW(block))                                                                      \
    K(square_sums, W(sums) RW(block) R(grad))                                                     \
    K(step_record, W(record) R(block) R(sums))                                                    \
    K(step_finish, RW(block) R(records))                                                          \
    K(adamw, RW(weight) RW(m) RW(v) W(copy) R(grad) R(block) R(ranges))                           \
    K(route_noise, W(noise) R(sample) R(index) R(block))                                          \
    K(route_forward, W(probs) W(lse) W(chosen) W(gate) R(logits) R(noise_logits) R(noise))        \
    K(route_sums, W(counts) W(prob_sums) R(chosen) R(probs))                                      \
    K(route_totals, W(counts) W(prob_sums) W(taken) R(all_counts) R(all_prob_sums))               \
    K(route_record, RW(record) R(counts) R(prob_sums) R(run_counts) R(taken) R(lse))              \
    K(route_backward, W(dlogits) W(dnoise_logits) R(dgate) R(probs) R(lse) R(chosen) R(gate)      \
                          R(noise_logits) R(noise) R(counts) R(block))                            \
    K(assign, W(slot) W(counts) W(sent) RW(block) R(chosen) R(run_counts) R(taken) S(scratch))    \
    K(permute_forward, W(out) R(inp) R(slot))                                                     \
    K(permute_backward, W(dinp) R(dout) R(slot))                                                  \
    K(combine_forward, W(out) R(inp) R(gate) R(slot))                                             \
    K(combine_backward, W(dinp) W(dgate) R(dout) R(inp) R(gate) R(slot))                          \
    K(regroup, W(out) W(counts) RW(block) R(inp) R(all_counts) S(scratch))                        \
    K(grouped_gemm, W(c) R(a) R(b) R(counts) S(scratch))                                          \
    K(grouped_gemm_weight, W(c) R(a) R(b) R(counts) S(scratch))

enum hd_kernel {
#define K(name, operands) HD_K_##name,
    HD_KERNEL_LIST(K)
#undef K
        HD_KERNEL_COUNT
};

enum hd_access { HD_READ = 1, HD_WRITE = 2, HD_READ_WRITE = 3, HD_SCRATCH = 4 };

/* What the passes know of a kernel without knowing its mathematics. */
struct hd_kernel_operand {
    const char *name;
    size_t offset; /* of the pointer in the argument struct */
    enum hd_access access;
};
struct hd_kernel_info {
    const char *name;
    size_t args_size_bytes;
    int operand_count;
    const struct hd_kernel_operand *operands; /* [operand_count], in the order of the row */
};
const struct hd_kernel_info *hd_kernel_info(enum hd_kernel kernel);

/* Hash of names, argument sizes and operands of the whole list: two builds that agree on it agree
 * on the table. */
uint64_t hd_kernel_list_hash(void);

/* ---- Traits and costs: what planning needs of a device
 * ---------------------------------------------- */

/* How own code multiplies bf16 factors. */
enum hd_bf16_products {
    HD_BF16_WIDENED, /* as fp32 */
    HD_BF16_PAIRS,   /* vdpbf16ps: sums of products of pairs along the depth */
    HD_BF16_TILES    /* AMX, or its software model */
};

struct hd_traits {
    char backend[16]; /* "cpu" */
    char isa[32];     /* "avx512_bf16", "avx2", ...: part of the determinism facts */
    char library[32]; /* that multiplies: "oneDNN-2.6.0", or "own"; part of them too */
    int threads;      /* that share a launch */
    int vector_bytes;
    bool bf16_fast; /* bf16 GEMMs are faster than fp32: what precision `auto` asks */
    enum hd_bf16_products bf16_products;
    bool own_bf16;              /* own code multiplies bf16 factors although there is a library */
    int64_t page_bytes;         /* granule of a reservation */
    int64_t gemm_scratch_bytes; /* what a GEMM library may ask for per launch; 0: there is none */
    /* of a GPU; 0 on the CPU */
    int multiprocessors;
    int capability;       /* 80, 90, 100: major * 10 + minor */
    int64_t memory_bytes; /* of the device */
    /* of it, beside all that is reserved: by a process (context, kernels, libraries), and by each
     * communicator of NCCL. Assumed (HD_GPU_PROCESS_BYTES ..) unless somebody has measured them. */
    int64_t process_bytes, communicator_bytes;
    bool process_measured;
    /* GELU behind a product of its library, and the gradient of a bias beside one, are passes of
     * their own (hd_gemm_takes_epilogue says no). */
    bool gelu_apart, dbias_apart;
};

static inline bool hd_traits_is_cuda(const struct hd_traits *traits)
{
    return traits->multiprocessors > 0;
}

/* The stated constants: what the device's memory is used for that no plan knows to the byte.
 * Assumptions, not measured with Heddle on a GPU: half a GiB per context is what others report, and
 * as much again is left for kernels that are loaded late and for stacks; a communicator has buffers
 * of NCCL_BUFFSIZE (4 MiB) and two smaller ones per channel and peer, for some tens of these. */
enum {
    HD_GPU_PROCESS_BYTES = 1 << 30,
    HD_GPU_LATE_BYTES = 512 << 20, /* of a process's: what is loaded when it is first launched */
    HD_GPU_COMMUNICATOR_BYTES = 512 << 20
};

/* The traits of a GPU follow from these three; the backend that opens one adds versions to isa and
 * library. library: whether a library multiplies. */
void hd_traits_of_gpu(int multiprocessors, int capability, int64_t memory_bytes, bool library,
                      struct hd_traits *ret_traits);

/* A GPU as its maker's data sheet has it: to plan where there is none, and for the rate that MFU is
 * quoted against. Its memory is what boards report (nvidia-smi, ECC on), for the GB of their names
 * are neither 10^9 nor 2^30 bytes; plans have HD_GPU_KEPT_BYTES less: what programs are offered is
 * 0.5 (H100) to 1.1 GiB (GH200) less than that. */
enum { HD_GPU_KEPT_BYTES = 1280 << 20 };
struct hd_gpu_kind {
    const char *word; /* on the command line: "h100-pcie" */
    const char *name; /* words of the name that the runtime has for it; of several kinds with the
                         same ones the rates are equal, and else the first kind counts whose words
                         a name contains */
    const char *text; /* for people: "H100 PCIe 80 GB" */
    int multiprocessors, capability, memory_mib; /* 2^20 bytes */
    bool memory_guessed; /* no report was at hand: the least that boards of such a name have */
    double memory_gb_per_s;
    double half, tf32, single; /* 10^12 operations per second: bf16 and f16, and TF32, dense, on
                                  tensor cores; fp32 without them */
};
const struct hd_gpu_kind *hd_gpu_kinds(size_t *ret_count);
const struct hd_gpu_kind *hd_gpu_kind_find(const char *word); /* NULL: unknown */
/* What it is sold with for products of this encoding, in operations per second. */
double hd_gpu_kind_rate(const struct hd_gpu_kind *kind, enum hd_dtype dtype, bool tf32);
void hd_gpu_kind_traits(const struct hd_gpu_kind *kind, struct hd_traits *ret_traits);

/* Traits as one word, for the program that plans and cannot look at the device itself. Both sides
 * are one build: HD_INVALID for the word of another. */
enum { HD_TRAITS_TEXT_MAX = 1024 };
void hd_traits_write(const struct hd_traits *traits, char ret_text[HD_TRAITS_TEXT_MAX]);
enum hd_status hd_traits_read(const char *text, struct hd_traits *ret_traits);

/* Scratch that a launch with these arguments needs on such a device; 0 for most. Pointers in args
 * are not looked at, except for being NULL or not. */
int64_t hd_kernel_scratch_bytes(enum hd_kernel kernel, const void *args,
                                const struct hd_traits *traits);

/* Whether such a device does the epilogue of this product, or dbias, in the product's own pass over
 * memory: what the fuse pass asks before it joins the two. Elsewhere the launch is as right, and no
 * faster than two. */
bool hd_gemm_takes_epilogue(const struct hd_gemm_args *args, const struct hd_traits *traits);

/* Floating point operations and bytes that must cross memory at least once. */
struct hd_costs {
    double flops;
    int64_t read_bytes, write_bytes;
};
void hd_kernel_cost_add(struct hd_costs *costs, enum hd_kernel kernel, const void *args);
/* The same with `rows` rows of the buffers that have a bound T in use: what mixtures of experts
 * work with. Other kernels cost what they cost. */
void hd_kernel_cost_add_rows(struct hd_costs *costs, enum hd_kernel kernel, const void *args,
                             int64_t rows);

/* ---- Backends
 * ------------------------------------------------------------------------------------- */

struct hd_backend; /* one per rank */
struct hd_stream;  /* belongs to a backend instance */

/* Tests and measurements: who multiplies. */
enum hd_gemm_by {
    HD_GEMM_BY_BEST,      /* own code or the library, by what was measured to be faster */
    HD_GEMM_BY_OWN,       /* own code alone */
    HD_GEMM_BY_LIBRARY,   /* the library wherever it takes the shape */
    HD_GEMM_BY_WIDENED,   /* own code, bf16 factors widened to fp32 also where there is better */
    HD_GEMM_BY_TILE_MODEL /* own code, bf16 by the software model of a tile unit: slow and exact */
};

struct hd_backend_options {
    int threads;      /* >= 1; of the CPU */
    bool force_plain; /* tests: no library, no wide vectors; the portable paths */
    enum hd_gemm_by gemm_by;
    int device;         /* of the GPUs that this process sees */
    bool tf32;          /* fp32 products may round their factors to TF32 */
    bool deterministic; /* equal launches give equal bits, also where that is slower */
    /* Measurements: what traits call gelu_apart and dbias_apart, in launches too. */
    bool epilogues_apart;
};

/* What collectives between ranks on one device are made of (lib/comm); the arguments are copied. */
enum { HD_COMBINE_MAX = 64 };

/* out[o][i] = in[0][i] + in[1][i] + ... on every out: added from left to right, in fp32 for f32,
 * bf16 and f16, in f64 for f64, modulo 2^n for integers, and rounded once; or the maximum, NaN when
 * any of them is. An out may be one of the ins, else all are disjoint. */
struct hd_combine_args {
    void *out[HD_COMBINE_MAX];      /* [outs] of [count] */
    const void *in[HD_COMBINE_MAX]; /* [ins] of [count] */
    int outs, ins;                  /* >= 1 */
    int64_t count;                  /* elements, 0 is fine; nothing is known of their alignment */
    enum hd_dtype dtype;
    bool max;
};

/* What member `index` of `members` receives of an all_to_all_v: from each member the rows that it
 * counts for this one, in the order of members; they stand there behind what it counts for the
 * members before this one. When any member counts a negative number, more than its send_rows_max in
 * all, or members count more than recv_rows_max for any member, no row moves, recv_counts become 0
 * and *overflow becomes 1 (it is never set to 0). */
struct hd_exchange_rows_args {
    void *out;            /* [recv_rows_max[index]] rows */
    int32_t *recv_counts; /* [members] or NULL */
    int32_t *overflow;
    const void *send[HD_COMBINE_MAX];           /* [members] of rows */
    const int32_t *send_counts[HD_COMBINE_MAX]; /* [members] of [members] */
    int64_t send_rows_max[HD_COMBINE_MAX], recv_rows_max[HD_COMBINE_MAX];
    int members, index;
    int64_t row_bytes;
};

/* What a backend has whose tensors are not host memory and whose launches return before they have
 * run. Addresses of tensors mean nothing to the host then: bytes go in and out by write and read.
 * All functions but those of events and streams of different ranks belong to the thread of the
 * rank. Backends on several devices may be in one process: a function minds which device its
 * backend, stream or event is of, whichever thread calls it and whatever it used before; those of
 * `nccl` go to the calling thread's device, of a rank's process the only one that it sees. */
struct hd_event; /* a point in the order of a stream */
struct hd_device_memory {
    int64_t total_bytes, free_bytes; /* of the device, which other processes may use, too */
    int64_t reserved_bytes; /* by `reserve` of this backend and not released: whole pages */
};
struct hd_nccl_table; /* kernels/nccl.h */
struct hd_device_table {
    /* Device memory of zeros, whole pages of traits.page_bytes at a bound of 256 bytes at least. A
     * rank reserves its plan once.
     * host_reachable: the host may use the addresses too while nothing runs (tests, debugging).
     * HD_NO_MEMORY says how much the device has and how much of it is free. release waits until
     * nothing runs on the device any more. */
    enum hd_status (*reserve)(struct hd_backend *backend, int64_t size_bytes, bool host_reachable,
                              void **ret_base);
    void (*release)(struct hd_backend *backend, void *base);
    /* As it is now; not within a step. */
    enum hd_status (*memory)(struct hd_backend *backend, struct hd_device_memory *ret_memory);
    /* In the stream's order. `host` may change when write returns; after read it holds the bytes as
     * they were behind everything launched so far. copy stays on the device. */
    enum hd_status (*write)(struct hd_stream *stream, void *device, const void *host,
                            int64_t size_bytes);
    enum hd_status (*read)(struct hd_stream *stream, void *host, const void *device,
                           int64_t size_bytes);
    enum hd_status (*copy)(struct hd_stream *stream, void *out, const void *inp,
                           int64_t size_bytes);
    /* Events order streams, also of several ranks of one process on one device. An event that was
     * never recorded is done. wait: what is launched on `stream` from now on runs behind the event
     * as it was last recorded. done never blocks; finish blocks the host. elapsed: between two
     * recorded and done ones that were made with `timed`. */
    enum hd_status (*event_new)(struct hd_backend *backend, bool timed,
                                struct hd_event **ret_event);
    void (*event_free)(struct hd_event *event);
    enum hd_status (*event_record)(struct hd_event *event, struct hd_stream *stream);
    enum hd_status (*event_wait)(struct hd_stream *stream, struct hd_event *event);
    enum hd_status (*event_done)(struct hd_event *event, bool *ret_done);
    enum hd_status (*event_finish)(struct hd_event *event);
    enum hd_status (*event_elapsed)(struct hd_event *begin, struct hd_event *end,
                                    double *ret_seconds);
    enum hd_status (*combine)(struct hd_stream *stream, const struct hd_combine_args *args);
    enum hd_status (*exchange_rows)(struct hd_stream *stream,
                                    const struct hd_exchange_rows_args *args);
    /* The calls of NCCL (kernels/nccl.h), whose library is loaded when this is first asked.
     * HD_UNSUPPORTED says what is missing. NULL: this backend was built without. */
    enum hd_status (*nccl)(const struct hd_nccl_table **ret_table);
};

/* What a stream is for. Where a device knows priorities, blocks of a stream that moves bytes for
 * others go first: they are few, and peers wait for them, while a layer's are many. */
enum hd_stream_purpose { HD_STREAM_FOR_COMPUTE, HD_STREAM_FOR_COMM };

struct hd_backend_table {
    uint32_t abi, table_bytes;
    uint64_t kernel_list_hash;
    const char *name;
    const struct hd_device_table *device; /* NULL: tensors are host memory, and a launch has run
                                             when it returns */
    /* Traits without opening anything: how a machine of this kind would run with these options. */
    void (*describe)(const struct hd_backend_options *options, struct hd_traits *ret_traits);
    enum hd_status (*open)(const struct hd_backend_options *options,
                           struct hd_backend **ret_backend);
    void (*close)(struct hd_backend *backend);
    enum hd_status (*stream_open)(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream);
    void (*stream_close)(struct hd_stream *stream);
    /* Enqueues; on the CPU the compute stream runs at once. */
    enum hd_status (*launch)(struct hd_stream *stream, enum hd_kernel kernel, const void *args);
    enum hd_status (*synchronize)(struct hd_stream *stream);
    /* Prepares library objects for these arguments, so that later launches of the same shape
     * allocate nothing. Called once per op of a program before the first step. */
    enum hd_status (*prepare)(struct hd_backend *backend, enum hd_kernel kernel, const void *args);
    /* Achievable multiply-add rate in operations per second, measured in about 50 ms on this
     * backend's threads, or what a GPU is sold with: the peak that MFU is quoted against. */
    double (*measure_peak)(struct hd_backend *backend, enum hd_dtype dtype);
    /* Who computes such a launch: traits.library (all of it) or "own", for tests and measurements:
     * own code that serves where a library refuses is right, and slow. Chooses as prepare does.
     * NULL: this backend cannot tell. */
    enum hd_status (*computed_by)(struct hd_backend *backend, enum hd_kernel kernel,
                                  const void *args, const char **ret_by);
};

/* The embedded default. */
const struct hd_backend_table *hd_backend_cpu(void);

/* HD_UNSUPPORTED, naming both sides, when a table was built from another list. */
enum hd_status hd_backend_check(const struct hd_backend_table *table);

/* hd_launch(stream, op, &args): through the table the stream belongs to. */
enum hd_status hd_launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args);

#endif
