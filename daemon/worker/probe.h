/* probe: measures what a plan needs to know of this machine's devices (plan/calibration.h), which
 * are CPU devices, or GPUs.
 *
 * One process per device measures, all at the same time, because they share memory bandwidth: first
 * collectives (probe_collectives.c), messages between each two devices and the bandwidth of memory
 * (probe_devices.c), then training steps of small models, launch by launch (probe_models.c),
 * products of a grid of sizes (probe_products.c), and a file like a checkpoint's. The processes
 * agree before each piece of work whether time is left, so they stay in step. The first process
 * starts them, waits, and takes the mean of what they measured. When it ends, they end.
 *
 * The process of a GPU sees that one only, as a rank does, and loads the plug-in itself: a driver
 * that was started does not survive a fork. probe_where.c has what differs: memory, time, and how
 * processes meet.
 *
 * Used by: main.c.   Uses: train, comm, kernels, plugin, plan's calibration.
 * Threads: each process has one, and those of its backend.
 */
#ifndef HD_WORKER_PROBE_H
#define HD_WORKER_PROBE_H

#include "comm/shm_control.h"
#include "plan/calibration.h"

enum {
    PROBE_DEVICES_MAX = 64,
    PROBE_GPU_MAX = 48,  /* of a GPU's UUID */
    PROBE_WHY_MAX = 512, /* of a process's message */
    PROBE_SECONDS = 60,
    PROBE_RECORDS_MAX = 32768,     /* of one process */
    PROBE_CONTROLS = 16,           /* of pairs, one for each model that takes two ranks */
    PROBE_VISIBLE_MIB = 40,        /* of the collectives */
    PROBE_DEADLINE_MS = 20000,     /* of a wait for another process */
    PROBE_COUNTS_BYTES = 64 << 10, /* behind them: counts of rows and other small numbers */
    PROBE_DIR_MAX = 512
};

enum probe_what {
    PROBE_NOTHING, /* in its place another process has a measurement of its own */
    PROBE_KERNEL,
    PROBE_COLLECTIVE,
    PROBE_LAUNCH,
    PROBE_STEP,
    PROBE_WAIT,
    PROBE_WRITE,
    PROBE_MEMORY,
    PROBE_PAIR
};

/* One measurement, as a process hands it to the first one. */
struct probe_record {
    enum probe_what what;
    struct hd_calibration_key key; /* PROBE_KERNEL */
    enum hd_comm_kind kind;        /* PROBE_COLLECTIVE, and the next two */
    int64_t members;               /* PROBE_PAIR: the other device, which has the higher number */
    double bytes;
    double seconds;   /* PROBE_WRITE, PROBE_MEMORY: bytes per second; PROBE_PAIR: the latency;
                         PROBE_WAIT: of a second of kernels, the share that ranks wait */
    double bandwidth; /* PROBE_PAIR: bytes per second; PROBE_WAIT: collectives per second of
                         kernels */
};

/* What a device is. */
struct probe_name {
    char device[HD_CALIBRATION_WORD_MAX], isa[HD_CALIBRATION_WORD_MAX],
        library[HD_CALIBRATION_WORD_MAX];
};

/* One of the measuring processes. */
struct probe {
    int rank, world;         /* of all devices */
    int64_t threads;         /* of a device */
    int64_t end_ns;          /* on hd_clock_now_ns: no work begins after it */
    bool quick;              /* for tests: the smallest sizes, one step */
    char dir[PROBE_DIR_MAX]; /* for temporary files; has the file "corpus" */
    bool is_gpu;
    char (*gpus)[PROBE_GPU_MAX];          /* [world] UUIDs, or numbers; NULL: CPU devices */
    const struct hd_backend_table *table; /* of a GPU: in the measuring process, while opened */
    /* while it is opened (probe_open): */
    int opened;
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_event *events[2];
    int64_t begin_ns;
    int64_t memory_bytes; /* of the device */

    struct hd_shm_control *all; /* of all; NULL with one device */
    struct hd_shm_control
        *pairs[PROBE_CONTROLS]; /* of ranks 2k and 2k + 1; NULL for a last odd one */
    struct hd_comm *comm;       /* of all; NULL with one device */
    struct hd_comm_group *group;
    int32_t *counts;  /* of rows, in `registered` */
    char *registered; /* [PROBE_VISIBLE_MIB], then PROBE_COUNTS_BYTES; on a GPU its own memory */
    struct probe_record *records; /* [PROBE_RECORDS_MAX], memory that the first process reads */
    int *record_count;
    struct probe_name *name; /* likewise, of device 0, which sets it before it measures */
    char *why;               /* [PROBE_WHY_MAX], likewise: why this process failed */
};

enum { PROBE_CORPUS_BYTES = 1 << 20 };

/* Keeps one measurement; those beyond PROBE_RECORDS_MAX are dropped. */
void probe_keep(struct probe *p, const struct probe_record *record);

/* All processes wait for one another. *ret_goes_on: whether time is left, the same on all. Also
 * fills up the records of those that have fewer, so that the same measurement has the same place on
 * all processes that have made it. */
enum hd_status probe_agree(struct probe *p, bool *ret_goes_on);

/* ---- probe_where.c: what differs between CPU devices and GPUs ---- */

struct hd_backend_options probe_options(const struct probe *p);

/* The device and a stream of it, for the next functions. May be nested. Call probe_close also when
 * this failed. */
enum hd_status probe_open(struct probe *p);
void probe_close(struct probe *p);

/* Memory of the device. NULL is fine for release. */
enum hd_status probe_reserve(struct probe *p, int64_t bytes, void **ret_memory);
void probe_release(struct probe *p, void *memory);
enum hd_status probe_fill(struct probe *p, void *memory, int64_t bytes); /* with fp32 numbers */

/* How long the device takes for what is launched between the two. */
enum hd_status probe_begin(struct probe *p);
enum hd_status probe_end(struct probe *p, double *ret_seconds);

/* An endpoint of this process, which is `rank` of `world`; the device must be open. */
enum hd_status probe_meet(struct probe *p, struct hd_shm_control *control, int rank, int world,
                          struct hd_comm **ret_comm);
/* values[i] = the largest of all processes'. */
enum hd_status probe_most(struct probe *p, float *values, int count);
/* Until everything launched on the stream is done, also on a device. */
enum hd_status probe_wait(struct probe *p, struct hd_comm_stream *stream);

/* ---- what is measured ---- */

/* Each returns early, with HD_OK, when the time is over. */
enum hd_status probe_models(struct probe *p, bool half);   /* half: in bf16, else in fp32 */
enum hd_status probe_products(struct probe *p, bool half); /* the same */
enum hd_status probe_collectives(struct probe *p);
enum hd_status probe_memory(struct probe *p); /* bytes that a sum of large arrays moves */
enum hd_status probe_pairs(struct probe *p);  /* each two devices */
enum hd_status probe_write(struct probe *p);

/* The mean without the slowest tenth, which other programs may have held up; sorts the values. Of
 * launches it is the mean that adds up to the time of a program. count >= 1. */
double probe_mean(double *values, int count);

/* The value that a quarter of `values` do not exceed; sorts them. count >= 1. */
double probe_lower_quartile(double *values, int count);

#endif
