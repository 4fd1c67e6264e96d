/* kernels: the list of device operations (one row per kernel) and the table of functions that each
 * backend (cpu, cuda) implements. ops.h and its siblings, ops_attention.h, ops_delta.h, ops_loss.h,
 * ops_moe.h and ops_update.h, define what each kernel computes.
 *
 * A kernel is a pure function of its arguments: tensors by address, sizes and switches by value. It
 * allocates nothing, keeps no state between launches and is deterministic for a given thread count,
 * instruction set and library versions. The caller provides its scratch memory. The scratch size is
 * a plain C function of the arguments and of the traits of the target device (kernels/costs), so a
 * machine without the device can plan the memory to the byte.
 *
 * Used by: program (records and runs), the backends (implement), plan (cost estimates). Uses: base.
 * Threads: pure declarations; only the thread that owns a stream launches on it.
 */
#ifndef HD_KERNELS_H
#define HD_KERNELS_H

#include "base/status.h"
#include "kernels/ops.h"
#include "kernels/ops_attention.h"
#include "kernels/ops_delta.h"
#include "kernels/ops_loss.h"
#include "kernels/ops_moe.h"
#include "kernels/ops_update.h"

enum {
    HD_KERNEL_ABI = 22 /* to be raised when the meaning of an argument struct or of a function of
                          the table changes */
};

/* ---- The table ----
 *
 * One row per kernel in kernels.def: its operations, and its operands with their sizes. From a row
 * follow hd_kernel_get_info, costs, sizes of scratch and of operands below, and the structs of named
 * operands in program/operands.h. A pointer of an argument struct that its row lacks, and a row or an
 * operand without its struct or member, do not compile (kernels.c). */
enum hd_kernel {
#define K(name, ...) HD_K_##name,
#include "kernels/kernels.def"
    HD_KERNEL_COUNT
};

enum hd_access { HD_READ = 1, HD_WRITE = 2, HD_READ_WRITE = 3, HD_SCRATCH = 4 };

/* Name, argument size and operands of a kernel, for the compiler passes of lib/program. The structs
 * are static. */
struct hd_kernel_operand {
    const char *name;
    size_t offset; /* bytes from the begin of the argument struct to the operand's pointer */
    enum hd_access access;
    size_t accumulate; /* offset of the flag with which the kernel adds to the operand instead of
                          storing it; 0: none */
};
struct hd_kernel_info {
    const char *name;
    size_t args_size_bytes;
    int operand_count;
    const struct hd_kernel_operand *operands; /* [operand_count], in the order of the kernel's row
                                                 in kernels.def */
};
const struct hd_kernel_info *hd_kernel_get_info(enum hd_kernel kernel);

/* Returns a hash of HD_KERNEL_ABI and of the names, argument sizes and operands of the whole list.
 * Two builds with equal hashes have equal tables. */
uint64_t hd_kernel_list_hash(void);

/* ---- Traits and costs: for planning ---- */

/* Ways in which Heddle's own CPU code multiplies bf16 factors. */
enum hd_bf16_products {
    HD_BF16_WIDENED, /* bf16 factors are widened to fp32, then multiplied */
    HD_BF16_PAIRS,   /* instruction vdpbf16ps: sums of products of two bf16 values that are
                        neighbours along K */
    HD_BF16_TILES    /* AMX tile instructions, or a software model of them */
};

struct hd_traits {
    char backend[16]; /* name of the backend: "cpu" or "cuda" */
    char isa[40];     /* instruction set: "avx512_bf16", "avx2", ...; results depend on it */
    char library[32]; /* GEMM library: "oneDNN-2.6.0", or "own"; results depend on it */
    int threads;      /* CPU threads per launch; 1 on a GPU */
    int vector_bytes; /* bytes of a vector register, or of a GPU thread's largest load */
    bool bf16_fast;   /* true: bf16 GEMMs are faster than fp32 GEMMs, so that precision `auto`
                         chooses bf16 */
    enum hd_bf16_products bf16_products;
    bool own_bf16;              /* true: Heddle's own code multiplies bf16 factors even if there is
                                   a GEMM library */
    int64_t page_bytes;         /* bytes; the device's memory is reserved in multiples of this
                                   size */
    int64_t gemm_scratch_bytes; /* bytes of scratch that the GEMM library may use per launch; 0: no
                                   library */
    /* traits of a GPU; all 0 on a CPU */
    int multiprocessors;
    int capability;       /* compute capability, major * 10 + minor: 80, 90, 100 */
    int64_t memory_bytes; /* bytes: total memory of the device */
    /* Bytes of device memory that are used on top of all reservations: per process (CUDA context,
     * kernels, libraries) and per NCCL communicator without its connections. Assumed values (HD_GPU_PROCESS_BYTES,
     * HD_GPU_COMMUNICATOR_BYTES) unless process_measured. */
    int64_t process_bytes, communicator_bytes;
    bool process_measured; /* true: process_bytes is measured; communicator_bytes is always
                              assumed */
    /* true: the library's GEMM is not fused with GELU, which is then a separate launch
     * (hd_gemm_takes_epilogue returns false). */
    bool gelu_separate;
    /* Number of rows whose logits the head computes at once, with at most 1 GiB of logits; 0: as
     * many rows as 64 MiB of logits hold, which suits a CPU's caches. Each chunk of rows reads and
     * writes the gradient of the head's whole weight (lib/program/ops_head.c). */
    int64_t head_rows;
};

static inline bool hd_traits_is_cuda(const struct hd_traits *traits)
{
    return traits->multiprocessors > 0;
}

/* Assumed sizes of the device memory that a plan cannot count exactly; not measured with Heddle.
 * Published reports give half a GiB per context; the process gets another half GiB for kernels that
 * are loaded late and for stacks. A communicator has tables per channel and peer; the buffers of its
 * connections are counted by lib/comm/nccl.h. */
enum {
    HD_GPU_PROCESS_BYTES = 1 << 30,
    HD_GPU_LATE_BYTES = 512 << 20, /* bytes for kernels that are loaded at their first launch;
                                      included in HD_GPU_PROCESS_BYTES */
    HD_GPU_COMMUNICATOR_BYTES = 64 << 20
};

/* Sets *ret_traits to the traits that follow from three properties of a GPU; the backend that opens
 * the GPU adds versions to isa and library. library: true if a GEMM library is used. */
void hd_traits_of_gpu(int multiprocessors, int capability, int64_t memory_bytes, bool library,
                      struct hd_traits *ret_traits);

/* A GPU model by its data sheet: for planning without the GPU, and for the peak rate that MFU is
 * relative to. Its memory is what nvidia-smi reports with ECC on, because the GB of product names
 * are neither 10^9 nor 2^30 bytes. Plans subtract HD_GPU_KEPT_BYTES, which the driver keeps:
 * programs get 0.5 (H100) to 1.1 GiB (GH200) less than nvidia-smi reports. */
enum { HD_GPU_KEPT_BYTES = 1280 << 20 };
enum { HD_GPU_FP8_FROM = 89 }; /* lowest compute capability that multiplies fp8 */
struct hd_gpu_kind {
    const char *word; /* name on the command line: "h100-pcie" */
    const char *name; /* words of the device name that the CUDA runtime reports. The first kind
                         whose words occur in the name is taken; kinds with equal `name` have equal
                         rates */
    const char *text; /* name for display: "H100 PCIe 80 GB" */
    int multiprocessors, capability, memory_mib; /* number of multiprocessors; compute capability
                                                    (major * 10 + minor); memory in units of 2^20
                                                    bytes */
    bool memory_guessed; /* true: no nvidia-smi report was found, so memory_mib is that of the
                            smallest board of this name */
    double memory_gb_per_s;
    double fp8, half, tf32, single; /* 10^12 operations per second: dense fp8 (0: none), bf16 and
                                       f16, and TF32, on tensor cores; fp32 without tensor cores */
};
const struct hd_gpu_kind *hd_gpu_kinds(size_t *ret_count);       /* returns the static array of all
                                                                    kinds */
const struct hd_gpu_kind *hd_gpu_kind_find(const char *word);    /* returns the kind with this name
                                                                    on the command line; NULL:
                                                                    unknown */
const struct hd_gpu_kind *hd_gpu_kind_of_name(const char *name); /* returns the kind of a device;
                                                                    name: from the CUDA runtime;
                                                                    NULL: unknown */
/* Returns the peak rate by the data sheet for GEMMs with factors of this type (u8: codes of fp8; 0:
 * the GPU does not multiply them), in operations per second. */
double hd_gpu_kind_rate(const struct hd_gpu_kind *kind, enum hd_dtype dtype, bool tf32);
void hd_gpu_kind_traits(const struct hd_gpu_kind *kind, struct hd_traits *ret_traits);

/* Write and read traits as one word of text, for a planning program that cannot open the device
 * itself. Writer and reader must be the same build: HD_INVALID if the word is from another build or
 * damaged. */
enum { HD_TRAITS_TEXT_MAX = 1024 };
void hd_traits_write(const struct hd_traits *traits, char ret_text[HD_TRAITS_TEXT_MAX]);
enum hd_status hd_traits_read(const char *text, struct hd_traits *ret_traits);

/* Returns the scratch bytes that a launch with these arguments needs on the device; 0 for most
 * kernels. Pointers in args are not dereferenced, only compared with NULL. */
int64_t hd_kernel_scratch_bytes(enum hd_kernel kernel, const void *args,
                                const struct hd_traits *traits);

/* Returns true if the device computes the epilogue (or add) of this GEMM in the GEMM's own
 * pass over memory; the fuse pass then fuses the two. If false, a fused launch is still
 * correct, but not faster than two launches. */
bool hd_gemm_takes_epilogue(const struct hd_gemm_args *args, const struct hd_traits *traits);

/* Returns true if the device computes the gradients of a norm's weights in the same pass over the
 * rows as the gradient of its input (rmsnorm_backward and layernorm_backward with dweight). */
bool hd_norm_takes_weights(const struct hd_traits *traits, int64_t C, enum hd_dtype dtype);

/* Returns the number of partial sums over R rows that bias_backward makes on the device, and that
 * other kernels write to `sums` (ops.h). */
int64_t hd_row_sums_count(const struct hd_traits *traits, int64_t R);

/* Returns true if the device adds up the rows that a norm's backward writes (sums) in the pass that
 * writes them; if false, a launch with sums is still correct, but reads the rows again. */
bool hd_norm_takes_sums(const struct hd_traits *traits, int64_t C, enum hd_dtype dtype);

/* Returns true if norms of rows of C channels in bf16 make the codes of their result (HD_FP8_RESULT). */
bool hd_norm_takes_codes(const struct hd_traits *traits, int64_t C);

/* Returns true if the device adds up the rows that attention_backward writes in the pass that writes
 * them, for arguments with which `sums` is allowed; as above. */
bool hd_attention_takes_sums(const struct hd_traits *traits,
                             const struct hd_attention_backward_args *args);

/* Bytes of one operand: what its memory has at least from the operand's address on, and what a launch
 * reads and writes of it. All 0 for scratch, and for an operand that may be absent and is. */
struct hd_operand_bytes {
    int64_t size_bytes, read_bytes, write_bytes;
};
enum { HD_KERNEL_OPERANDS_MAX = 20 };
/* Sets the first operand_count of `ret`. Pointers in args are only compared with NULL. */
void hd_kernel_operand_bytes(enum hd_kernel kernel, const void *args,
                             struct hd_operand_bytes ret[HD_KERNEL_OPERANDS_MAX]);

/* Costs of kernel launches: floating point operations, and bytes that must be read from and written
 * to memory at least once. */
struct hd_costs {
    double flops;
    int64_t read_bytes, write_bytes;
};
/* Adds the costs of one launch to *costs. */
void hd_kernel_cost_add(struct hd_costs *costs, enum hd_kernel kernel, const void *args);
/* Adds the costs of one launch to *costs; a kernel whose number of rows is only bounded by the
 * arguments (rows of experts) is counted with at most `rows` rows. Other kernels: as
 * hd_kernel_cost_add. */
void hd_kernel_cost_add_rows(struct hd_costs *costs, enum hd_kernel kernel, const void *args,
                             int64_t rows);

/* ---- Backends ---- */

struct hd_backend; /* one backend instance (CPU or CUDA) per rank */
struct hd_stream;  /* a queue of launches of one backend; kernels on one stream run in order */

/* Choice of the code that computes GEMMs; values other than HD_GEMM_BY_BEST are for tests and
 * measurements. */
enum hd_gemm_by {
    HD_GEMM_BY_BEST,      /* Heddle's own code or the GEMM library, whichever was measured to be
                             faster */
    HD_GEMM_BY_OWN,       /* Heddle's own code only */
    HD_GEMM_BY_LIBRARY,   /* the GEMM library wherever it supports the shape */
    HD_GEMM_BY_WIDENED,   /* Heddle's own code, bf16 factors always widened to fp32 */
    HD_GEMM_BY_TILE_MODEL /* Heddle's own code, bf16 factors by the software model of AMX tiles:
                             slow and exact */
};

struct hd_backend_options {
    int threads;      /* CPU threads, >= 1 */
    bool force_plain; /* true: portable code without a GEMM library and without wide vectors; for
                         tests */
    enum hd_gemm_by gemm_by;
    int device;         /* CUDA device index among the GPUs that this process sees */
    bool tf32;          /* true: fp32 GEMMs may round their factors to TF32 */
    bool deterministic; /* true: equal launches give equal bits, even if that is slower */
    /* CUDA: folder, as an absolute path that stays valid while the backend is open.
     * hd_backend_table.prepare then times the algorithms that the GEMM library offers for a product
     * and takes the fastest; a file in this folder, one per GPU, stores the choices. NULL, or with
     * `deterministic`: the library's first offer is used and nothing is timed.
     */
    const char *choices_dir;
    /* true: epilogues are not fused (gelu_separate of the traits is set); for measurements */
    bool epilogues_separate;
};

/* The algorithm chosen for one product among those that the GEMM library offers. */
struct hd_choice {
    uint64_t product; /* hash of shape, types, alignments and the limits under which the library
                         offers algorithms */
    int32_t offered;  /* number of algorithms offered */
    int32_t chosen;   /* index of the algorithm in use: 0 .. offered-1, in the library's order */
};

/* Arguments of `combine` and `exchange_rows` (hd_device_table), the two operations from which
 * lib/comm builds collectives between ranks that share a device. Both copy the argument struct
 * before they return. */
enum { HD_COMBINE_MAX = 64 };

/* out[o][i] = in[0][i] + in[1][i] + ... for every output o. Inputs are added from left to right, in
 * fp32 for f32, bf16 and f16, in f64 for f64, modulo 2^n for integers; the sum is rounded once.
 * With `max`, the maximum instead, NaN if any input is NaN. An output may be the same buffer as an
 * input; otherwise all buffers are disjoint.
 *
 * With in_stride_bytes > 0 input m is at in[0] + m * in_stride_bytes, and there may be more than
 * HD_COMBINE_MAX of them; an output may then be an input, too. */
struct hd_combine_args {
    void *out[HD_COMBINE_MAX];      /* [outs] outputs of [count] */
    const void *in[HD_COMBINE_MAX]; /* [ins] inputs of [count] */
    int outs, ins;                  /* number of outputs, and of inputs; >= 1 */
    int64_t in_stride_bytes;        /* bytes from one input to the next; 0: the inputs are in[0 ..
                                       ins-1] */
    int64_t count;                  /* elements per buffer; may be 0. Buffers may have any
                                       alignment */
    enum hd_dtype dtype;
    bool max;
    bool keep_fp32; /* sums of bf16 only: outputs are fp32, disjoint from the inputs, and not
                      rounded */
};

/* Arguments of the receiving side of an all_to_all_v, for member `index` of `members`. out gets the
 * rows that each member m sends to this one, in the order of members: send_counts[m][index] rows,
 * which follow the rows for members 0 .. index-1 in send[m]. If a count is negative, or a member
 * sends more than its send_rows_max in total, or any member would receive more than its
 * recv_rows_max, then no row is copied, recv_counts become 0 and *overflow becomes 1 (*overflow is
 * never set to 0). */
struct hd_exchange_rows_args {
    void *out;                                  /* [recv_rows_max[index]] rows */
    int32_t *recv_counts;                       /* [members] or NULL */
    int32_t *overflow;                          /* set to 1 if a count is negative or rows exceed a
                                                   bound */
    const void *send[HD_COMBINE_MAX];           /* [members] of rows */
    const int32_t *send_counts[HD_COMBINE_MAX]; /* [members] arrays of [members] */
    int64_t send_rows_max[HD_COMBINE_MAX], recv_rows_max[HD_COMBINE_MAX];
    int members, index;
    int64_t row_bytes;
};

/* Functions of a backend whose tensors are in device memory and whose launches are asynchronous.
 * The host cannot dereference addresses of tensors: write and read copy bytes in and out. Only the
 * rank's thread calls these functions, except that events may be used by the threads of several
 * ranks. One process may have backends on several devices: each function selects the device of its
 * backend, stream or event itself, on any thread. The functions of `nccl` do not: they use the
 * calling thread's current device (the process of a rank sees only one). */
struct hd_event; /* an event: a point in the order of a stream's launches */
struct hd_device_memory {
    int64_t total_bytes, free_bytes; /* total and free memory of the device; other processes may use
                                        it, too */
    int64_t reserved_bytes; /* bytes in whole pages that `reserve` of this backend has reserved on
                               the device and not released */
};
struct hd_nccl_table; /* defined in kernels/nccl.h */
struct hd_graph;      /* launches that were captured on a stream, to be enqueued as one */
struct hd_device_table {
    /* reserve sets *ret_base to zeroed device memory, rounded up to whole pages of
     * traits.page_bytes, aligned to at least 256 bytes; it belongs to the caller until release. A
     * rank reserves its plan once. host_reachable: the host may use the addresses, too, while no
     * launch runs (tests, debugging); the memory is then pinned host memory, which uses no device
     * memory and is slow for kernels. On HD_NO_MEMORY the message has the device's total and free
     * memory. release waits until all work on the device has finished; NULL is fine. */
    enum hd_status (*reserve)(struct hd_backend *backend, int64_t size_bytes, bool host_reachable,
                              void **ret_base);
    void (*release)(struct hd_backend *backend, void *base);
    /* Returns current memory use. Not to be called within a step. */
    enum hd_status (*memory)(struct hd_backend *backend, struct hd_device_memory *ret_memory);
    /* Copies in the stream's order. write may return before the device has the bytes, but the
     * caller may change `host` at once. read blocks until `host` holds the bytes as all earlier
     * launches of the stream left them. copy copies within the device, asynchronously. */
    enum hd_status (*write)(struct hd_stream *stream, void *device, const void *host,
                            int64_t size_bytes);
    enum hd_status (*read)(struct hd_stream *stream, void *host, const void *device,
                           int64_t size_bytes);
    enum hd_status (*copy)(struct hd_stream *stream, void *out, const void *inp,
                           int64_t size_bytes);
    /* Events order streams, also those of several ranks of one process on one device. An event that
     * was never recorded counts as done. event_wait: later launches on `stream` run after the
     * latest record of the event. event_done never blocks; event_finish blocks the host until the
     * event is done. event_elapsed: seconds between two done events that were created with
     * `timed`. */
    enum hd_status (*event_new)(struct hd_backend *backend, bool timed,
                                struct hd_event **ret_event);
    void (*event_free)(struct hd_event *event);
    enum hd_status (*event_record)(struct hd_event *event, struct hd_stream *stream);
    enum hd_status (*event_wait)(struct hd_stream *stream, struct hd_event *event);
    enum hd_status (*event_done)(struct hd_event *event, bool *ret_done);
    enum hd_status (*event_finish)(struct hd_event *event);
    enum hd_status (*event_elapsed)(struct hd_event *begin, struct hd_event *end,
                                    double *ret_seconds);
    /* takes_graphs: whether repeated launches are to be captured; the backend decides by its
     * setting. NULL: it has no graphs. Between capture_begin and capture_end, which the same thread
     * calls, launches on the stream do not run: they are recorded with their arguments, whose
     * values are final; nothing else of the device may be called. capture_end fails if one of them
     * failed. The graph belongs to the stream and ends with it. graph_launch enqueues it there. */
    bool (*takes_graphs)(const struct hd_backend *backend);
    enum hd_status (*capture_begin)(struct hd_stream *stream);
    enum hd_status (*capture_end)(struct hd_stream *stream, struct hd_graph **ret_graph);
    enum hd_status (*graph_launch)(struct hd_stream *stream, struct hd_graph *graph);
    enum hd_status (*combine)(struct hd_stream *stream, const struct hd_combine_args *args);
    enum hd_status (*exchange_rows)(struct hd_stream *stream,
                                    const struct hd_exchange_rows_args *args);
    /* Returns the functions of NCCL (kernels/nccl.h); the first call loads the NCCL library.
     * HD_UNSUPPORTED: the message says which file or function is missing. NULL: this backend was
     * built without NCCL. */
    enum hd_status (*nccl)(const struct hd_nccl_table **ret_table);
};

/* Purpose of a stream, which selects its priority if the device has priorities. Communication gets
 * the higher priority: its kernels have few thread blocks, and peers wait for them. */
enum hd_stream_purpose { HD_STREAM_FOR_COMPUTE, HD_STREAM_FOR_COMM };

struct hd_backend_table {
    uint32_t abi, table_bytes;
    uint64_t kernel_list_hash;
    const char *name;
    const struct hd_device_table *device; /* functions for device memory; NULL: tensors are in host
                                             memory and launches run synchronously */
    /* Sets *ret_traits to the traits that a backend opened with these options would have; opens
     * none. */
    void (*describe)(const struct hd_backend_options *options, struct hd_traits *ret_traits);
    enum hd_status (*open)(const struct hd_backend_options *options,
                           struct hd_backend **ret_backend);
    void (*close)(struct hd_backend *backend);
    enum hd_status (*stream_open)(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream);
    void (*stream_close)(struct hd_stream *stream);
    /* Enqueues a kernel; the CPU backend runs it before it returns. */
    enum hd_status (*launch)(struct hd_stream *stream, enum hd_kernel kernel, const void *args);
    /* Blocks until all launches on the stream have finished; reports a launch that failed. */
    enum hd_status (*synchronize)(struct hd_stream *stream);
    /* Creates the library objects for these arguments, so that later launches of the same shape
     * allocate nothing. Called once per op of a program before the first step. With
     * options.choices_dir it launches products to time them: it overwrites their inputs with random
     * numbers, and outputs and scratch with garbage, so no other launch may be using them and weights
     * are written afterwards. */
    enum hd_status (*prepare)(struct hd_backend *backend, enum hd_kernel kernel, const void *args);
    /* Returns the peak rate to which MFU is relative, in operations per second, for factors of this
     * type (u8: codes of fp8); 0: unknown. A CPU's is measured, in about 50 ms on this backend's
     * threads; a GPU's comes from its data sheet. */
    double (*measure_peak)(struct hd_backend *backend, enum hd_dtype dtype);
    /* Sets *ret_by, for tests and measurements, to traits.library if the library computes all of a
     * launch with these arguments, else to "own" (correct, but slow on a GPU). Chooses an algorithm
     * as prepare does. NULL: not supported by this backend. */
    enum hd_status (*computed_by)(struct hd_backend *backend, enum hd_kernel kernel,
                                  const void *args, const char **ret_by);
    /* With options.choices_dir: the algorithms that `prepare` has chosen by time, in this
     * process or an earlier one. Ranks that compute the same product must use the same
     * algorithm, or their copies of a tensor differ in the last bits: lib/train/choices.c makes
     * them agree, then lets each rank store its file. NULL: this backend chooses nothing by
     * time. choices: returns the choices, valid until the next call of prepare or choose; NULL
     * if the backend was opened without choices_dir or is deterministic, as all ranks of the job
     * then are. choose: uses these choices from now on for products that are prepared; choices
     * for other products, or among another number of algorithms, are ignored. keep_choices:
     * writes the file; a failure is only logged. */
    const struct hd_choice *(*choices)(struct hd_backend *backend, int *ret_count);
    void (*choose)(struct hd_backend *backend, const struct hd_choice *choices, int count);
    void (*keep_choices)(struct hd_backend *backend);
};

/* Returns the CPU backend: always linked in, and the default. */
const struct hd_backend_table *hd_backend_cpu(void);

/* Checks a table against this build. HD_UNSUPPORTED: it has another ABI or kernel list; the message
 * has both values. */
enum hd_status hd_backend_check(const struct hd_backend_table *table);

/* Launches the kernel with the launch function of the backend that owns the stream. */
enum hd_status hd_launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args);

#endif
