/* probe: measures what a plan needs to know of this machine's devices, CPU devices or GPUs
 * (plan/calibration.h).
 *
 * One process per device measures, all at the same time, because they share memory bandwidth: first
 * collectives (probe_collectives.c), messages between each two devices and the bandwidth of memory
 * (probe_devices.c), then training steps of small models, launch by launch (probe_models.c),
 * products of a grid of sizes (probe_products.c), and writing a file like a checkpoint's. Before
 * each piece of work the processes agree whether time is left, so they stay in step. The parent
 * process starts them, waits, and takes the mean of their measurements. When the parent ends, they
 * are killed.
 *
 * The process of a GPU sees that GPU only, as a rank does, and loads the plug-in itself: a driver
 * that was started does not survive a fork. probe_where.c has what differs between CPU and GPU:
 * memory, time, and how processes connect.
 *
 * Used by: main.c.   Uses: train, comm, kernels, plugin, plan's calibration.
 * Threads: each process has one, and those of its backend.
 */
#ifndef HD_WORKER_PROBE_H
#define HD_WORKER_PROBE_H

#include "comm/shm_control.h"
#include "plan/calibration.h"
#include "train/opened_rank.h"

enum {
    PROBE_DEVICES_MAX = 64,
    PROBE_GPU_MAX = 48,  /* bytes of a GPU's UUID as text */
    PROBE_WHY_MAX = 512, /* bytes of a process's message */
    PROBE_SECONDS = 60,
    PROBE_RECORDS_MAX = 32768, /* most measurements (records) of one process */
    /* shared memory controls (for communication) per pair of processes, one for each model that
     * takes two ranks */
    PROBE_CONTROLS = 16,
    PROBE_VISIBLE_MIB = 40,    /* registered memory for the collectives, MiB */
    PROBE_DEADLINE_MS = 20000, /* limit of a wait for another process */
    /* bytes after the PROBE_VISIBLE_MIB: row counts and other small numbers */
    PROBE_COUNTS_BYTES = 64 << 10,
    PROBE_DIR_MAX = 512
};

enum probe_what {
    PROBE_NOTHING, /* placeholder: another process has a measurement at this index */
    PROBE_KERNEL,
    PROBE_COLLECTIVE,
    PROBE_LAUNCH,
    PROBE_STEP,
    PROBE_WAIT,
    PROBE_WRITE,
    PROBE_MEMORY,
    PROBE_PAIR
};

/* One measurement of one process, in memory shared with the parent. */
struct probe_record {
    enum probe_what what;
    struct hd_calibration_key key; /* kernel and sizes that a PROBE_KERNEL measured */
    /* collective that a PROBE_COLLECTIVE measured, with `members` and `bytes` */
    enum hd_comm_kind kind;
    /* PROBE_COLLECTIVE: ranks of the group; PROBE_PAIR: the other device, which has the higher
     * number */
    int64_t members;
    double bytes;
    /* measured seconds; PROBE_WRITE, PROBE_MEMORY: bytes per second; PROBE_PAIR: latency in
     * seconds; PROBE_WAIT: seconds that ranks wait for each other per second of kernels */
    double seconds;
    /* PROBE_PAIR: bytes per second; PROBE_WAIT: collectives per second of kernels */
    double bandwidth;
};

/* Names of a device, its instruction set and its libraries. */
struct probe_name {
    char device[HD_CALIBRATION_WORD_MAX], isa[HD_CALIBRATION_WORD_MAX],
        library[HD_CALIBRATION_WORD_MAX];
};

/* State of one measuring process. */
struct probe {
    int rank, world;         /* this device, and the number of devices */
    int64_t threads;         /* threads per device */
    int64_t end_ns;          /* time after which no measurement begins, ns by hd_clock_now_ns */
    bool quick;              /* true: smallest sizes, one step; for tests */
    char dir[PROBE_DIR_MAX]; /* folder of temporary files; has the file "corpus" */
    bool is_gpu;
    char (*gpus)[PROBE_GPU_MAX]; /* [world], UUIDs or indices; NULL: CPU devices */
    /* CPU backend; for a GPU its own backend, from probe_open on */
    const struct hd_backend_table *table;
    /* members from here on are valid between probe_open and probe_close; `opened` counts nested
     * calls: */
    int opened;
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_event *events[2];
    int64_t begin_ns;
    int64_t memory_bytes; /* bytes of the device's memory */

    /* shared memory through which all processes communicate; NULL with one device */
    struct hd_shm_control *all;
    struct hd_shm_control
        /* shared memory through which ranks 2k and 2k + 1 communicate; NULL for an odd last rank */
        *pairs[PROBE_CONTROLS];
    struct hd_opened_rank peers; /* communicator of all processes; none with one device */
    struct hd_comm_group *group;
    int32_t *counts; /* row counts of all_to_all_v, at an address in `registered` */
    /* registered memory for collectives: PROBE_VISIBLE_MIB, then PROBE_COUNTS_BYTES; for a GPU in
     * the GPU's memory */
    char *registered;
    struct probe_record *records; /* [PROBE_RECORDS_MAX], memory shared with the parent */
    int *record_count;
    /* names, in memory shared with the parent; set by device 0 before it measures */
    struct probe_name *name;
    char *why; /* [PROBE_WHY_MAX], shared with the parent: why this process failed */
};

enum { PROBE_CORPUS_BYTES = 1 << 20 };

/* Adds one measurement; those beyond PROBE_RECORDS_MAX are dropped. */
void probe_keep(struct probe *p, const struct probe_record *record);

/* Waits for all processes. Sets *ret_goes_on to true if time is left for more measurements; the
 * value is equal in all processes. Also pads the records of processes that have fewer, so that the
 * same measurement has the same index in all processes that made it. */
enum hd_status probe_agree(struct probe *p, bool *ret_goes_on);

/* ---- probe_where.c: differences between CPU devices and GPUs ---- */

struct hd_backend_options probe_options(const struct probe *p);

/* Opens the device and a stream on it, for the functions below. Calls may be nested, each with its
 * probe_close. Call probe_close also when this failed. */
enum hd_status probe_open(struct probe *p);
void probe_close(struct probe *p);

/* probe_reserve allocates memory of the device, probe_release frees it; probe_release ignores
 * NULL. */
enum hd_status probe_reserve(struct probe *p, int64_t bytes, void **ret_memory);
void probe_release(struct probe *p, void *memory);
/* Fills memory of the device with fp32 numbers. */
enum hd_status probe_fill(struct probe *p, void *memory, int64_t bytes);

/* Measure how long the device takes for everything launched between probe_begin and probe_end. */
enum hd_status probe_begin(struct probe *p);
enum hd_status probe_end(struct probe *p, double *ret_seconds);

/* Opens communication with the other processes through `control`, as rank `rank` of `world`, or, with
 * NULL, that of this process alone; the device must be open. */
enum hd_status probe_meet(struct probe *p, struct hd_shm_control *control, int rank, int world,
                          struct hd_opened_rank *ret_opened);
/* Replaces each values[i] by the largest value that any process gives at index i. */
enum hd_status probe_most(struct probe *p, float *values, int count);
/* Waits until all work launched on the communication stream is complete, on a GPU also on the
 * device. */
enum hd_status probe_wait(struct probe *p, struct hd_comm_stream *stream);

/* ---- measurements ---- */

/* Each of these returns early, with HD_OK, when the time is over. */
enum hd_status probe_models(struct probe *p, bool half);   /* half: bf16; else fp32 */
enum hd_status probe_products(struct probe *p, bool half); /* half: bf16; else fp32 */
enum hd_status probe_collectives(struct probe *p);
/* Measures the memory bandwidth, by a sum of large arrays. */
enum hd_status probe_memory(struct probe *p);
/* Measures latency and bandwidth of messages between each two devices. */
enum hd_status probe_pairs(struct probe *p);
enum hd_status probe_write(struct probe *p);

/* Returns the mean of `values` without the slowest tenth, which other programs may have delayed;
 * sorts the values. It is a mean, not a median, because the times of launches must add up to the
 * time of a program. count >= 1. */
double probe_mean(double *values, int count);

/* Returns the value that a quarter of `values` do not exceed; sorts them. count >= 1. */
double probe_lower_quartile(double *values, int count);

#endif
