/* calibration: what a probe measured of the devices of one machine, and how a time is read from it.
 *
 * A probe (`heddle-worker probe`) runs the engine's own kernels and collectives on all devices of
 * a machine at once, since ranks share memory bandwidth. It stores seconds, not formulas:
 *
 *   kernels       per kernel and *variant* a list of samples: sizes -> seconds of one launch
 *   collectives   per kind and number of members a curve: bytes -> seconds, of one engine
 *   each          per device: the products and the memory's bytes that it does in a second
 *   pairs         per two devices: latency and bandwidth of a message from one to the other
 *   launch_s      from the end of one launch to the begin of the next
 *   step_s        what a step takes on the host beside its launches
 *   wait_share    how long ranks wait for one another beyond what their collectives take, per
 *                 second of kernels: no two of them are held up at the same times
 *   wait_s        and per collective: its members come to it at different moments
 *
 * A variant is what changes a kernel's code path at equal sizes:
 *
 *   gemm                  "f32.nt": type of the factors, transposes (n: no) of a and b; then what
 *                         is computed in the same pass: ".gelu", ".dgelu", ".dbias"
 *                                                             sizes: M, N, K
 *   attention_*           "f32"                               sizes: FLOPs, bytes, head width
 *   grouped_gemm*         "f32.n": b is transposed or not     sizes: FLOPs, bytes
 *   all others            ""                                  sizes: FLOPs, bytes (kernels.h);
 * their ratio tells types and options apart
 *
 * Between samples the seconds per unit of work (FLOPs of products and attention, else bytes) are
 * interpolated: the mean of the nearest samples in the logarithms of the sizes, weighted by the
 * inverse square of the distance (Shepard 1968, "A two-dimensional interpolation function for
 * irregularly-spaced data"). So a size that was measured gets its measured time, and far outside
 * the rate of the nearest sizes holds. Nothing is fitted to the times of steps.
 *
 * A calibration holds for the number of threads of a CPU device and for the instruction set and the
 * library of products that it was measured with, that of GPUs for their kind:
 * hd_calibration_check, hd_calibration_check_gpu.
 *
 * Used by: rates, links, worker (fills it), the heddle command.   Uses: base, kernels, comm
 * (kinds). Threads: any; a calibration that is complete is only read.
 */
#ifndef HD_PLAN_CALIBRATION_H
#define HD_PLAN_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/comm.h"
#include "kernels/kernels.h"

enum {
    HD_CALIBRATION_VERSION = 1,
    HD_CALIBRATION_WORD_MAX = 64,
    HD_CALIBRATION_VARIANT_MAX = 32,
    HD_CALIBRATION_SIZES = 3,
    HD_CALIBRATION_CLASSES_MAX = 1024, /* (kernel, variant) */
    HD_CALIBRATION_SAMPLES_MAX = 512,  /* of one class */
    HD_CALIBRATION_CURVES_MAX = 256,   /* (collective, members) */
    HD_CALIBRATION_POINTS_MAX = 64,    /* of one curve */
    HD_CALIBRATION_DEVICES_MAX = 64,   /* of one machine */
    HD_CALIBRATION_PAIRS_MAX = HD_CALIBRATION_DEVICES_MAX * (HD_CALIBRATION_DEVICES_MAX - 1) / 2,
    HD_CALIBRATION_BYTES_MAX = 1 << 20 /* of the text form */
};

/* One launch in the terms of a calibration. */
struct hd_calibration_key {
    enum hd_kernel kernel;
    char variant[HD_CALIBRATION_VARIANT_MAX];
    double size[HD_CALIBRATION_SIZES]; /* >= 1; what the kernel does not have is 1 */
    double work;                       /* >= 1: FLOPs or bytes */
};

struct hd_calibration_sample {
    double size[HD_CALIBRATION_SIZES];
    double seconds;
};

struct hd_calibration_class {
    enum hd_kernel kernel;
    char variant[HD_CALIBRATION_VARIANT_MAX];
    struct hd_calibration_sample *samples; /* [count] */
    int count, capacity;
};

struct hd_calibration_point {
    double bytes, seconds;
};

struct hd_calibration_curve {
    enum hd_comm_kind kind;
    int64_t members;
    struct hd_calibration_point *points; /* [count] by bytes, ascending */
    int count, capacity;
};

/* All devices compute at the same time, so these are rates beside busy neighbours. */
struct hd_calibration_device {
    double single_flops,
        half_flops;            /* of its fastest product, by type of the factors; 0: not known */
    double memory_bytes_per_s; /* of a sum of arrays that no cache holds; 0: not known */
};

struct hd_calibration_pair {
    int64_t a, b;     /* devices, a < b */
    double latency_s; /* of a short message */
    double bytes_per_s;
};

struct hd_calibration {
    char device[HD_CALIBRATION_WORD_MAX];  /* "cpu", or the name that the driver reports */
    char isa[HD_CALIBRATION_WORD_MAX];     /* of struct hd_traits */
    char library[HD_CALIBRATION_WORD_MAX]; /* the same */
    char build[HD_CALIBRATION_WORD_MAX];   /* hd_calibration_build of the program that measured */
    char engine[HD_CALIBRATION_WORD_MAX];  /* of the collectives: "shm"; "" with one device */
    int64_t made_unix_s;                   /* when */
    int64_t threads, devices;              /* threads of a device; devices measured at once */
    double launch_s, step_s;
    double wait_share, wait_s;            /* 0: not measured, as with one device */
    double checkpoint_bytes_per_s;        /* written and flushed by one rank; 0: not measured */
    struct hd_calibration_class *classes; /* [class_count] */
    struct hd_calibration_curve *curves;  /* [curve_count] */
    struct hd_calibration_device *each;   /* [each_count]: `devices`, or 0: not measured */
    struct hd_calibration_pair *pairs;    /* [pair_count], by a, then b */
    int each_count, pair_count;
    int class_count, class_capacity, curve_count, curve_capacity;
};

/* The build that this program is: kernels are comparable only within one. */
void hd_calibration_build(char ret_build[HD_CALIBRATION_WORD_MAX]);

/* costs: of this launch (hd_dry_node_costs). */
void hd_calibration_key_of(enum hd_kernel kernel, const void *args, const struct hd_costs *costs,
                           struct hd_calibration_key *ret_key);

/* Adds a sample; of two of equal sizes the mean is kept. Memory is taken from `arena`. HD_LIMIT:
 * too many classes or samples. */
enum hd_status hd_calibration_add(struct hd_calibration *cal, struct hd_arena *arena,
                                  const struct hd_calibration_key *key, double seconds);

/* Adds a point of a curve; points come by ascending bytes. */
enum hd_status hd_calibration_add_collective(struct hd_calibration *cal, struct hd_arena *arena,
                                             enum hd_comm_kind kind, int64_t members, double bytes,
                                             double seconds);

/* Sets what each device, and each pair, was measured to do. Arrays are copied to `arena`. */
enum hd_status hd_calibration_set_devices(struct hd_calibration *cal, struct hd_arena *arena,
                                          const struct hd_calibration_device *each, int each_count,
                                          const struct hd_calibration_pair *pairs, int pair_count);

/* Waits as some models' steps had them, two ranks each. */
struct hd_calibration_waits {
    double share; /* waited beyond what the collectives take alone, per second of kernels */
    double each;  /* collectives per second of kernels */
};

/* Sets wait_share and wait_s: the line share = wait_share + wait_s x each with the least squares of
 * its distances to the models; neither is below 0. Nothing is set where count is 0. */
void hd_calibration_set_waits(struct hd_calibration *cal, const struct hd_calibration_waits *waits,
                              int count);

/* Seconds of one launch, without launch_s; false: this kernel was not measured. A product whose
 * variant was not measured takes the time of the plain one with the same types and transposes. */
bool hd_calibration_seconds(const struct hd_calibration *cal, const struct hd_calibration_key *key,
                            double *ret_seconds);

/* Seconds of a collective of `bytes` (as links.h counts them) among `members` devices of one node:
 * linear between the points, beyond the largest with the slope of the last two. *ret_members: the
 * number of members whose curve was taken, the nearest that was measured. False: not measured. */
bool hd_calibration_collective(const struct hd_calibration *cal, enum hd_comm_kind kind,
                               int64_t members, double bytes, double *ret_seconds,
                               int64_t *ret_members);

/* The most units of work per second of any sample of a kernel; 0: not measured. And the most FLOPs
 * of all that counts FLOPs; of attention twice, since a model's FLOPs count what a causal kernel
 * leaves out. */
double hd_calibration_most_rate(const struct hd_calibration *cal, enum hd_kernel kernel);
double hd_calibration_most_flops(const struct hd_calibration *cal);

/* HD_CONFLICT, saying what differs: the calibration is of other devices than these, with
 * `threads` threads each, of another build, or of no kernel. A library of traits that is not known,
 * "", is not compared. */
enum hd_status hd_calibration_check(const struct hd_calibration *cal,
                                    const struct hd_traits *traits, int64_t threads);

/* The same of GPUs that are known by their kind. */
enum hd_status hd_calibration_check_gpu(const struct hd_calibration *cal,
                                        const struct hd_gpu_kind *kind);

/* ---- text ---- */

/* Appends the form of files: one JSON object, {"kind":"Calibration","version":1,..}. */
void hd_calibration_write(const struct hd_calibration *cal, struct hd_text *ret_text);

/* Reads it; everything lives in `arena`. HD_INVALID: damaged, the message says where;
 * HD_UNSUPPORTED: another version; HD_LIMIT: too large. Kernels that this build does not have are
 * skipped. */
enum hd_status hd_calibration_read(const char *text, size_t text_bytes, struct hd_arena *arena,
                                   struct hd_calibration *ret_cal);
enum hd_status hd_calibration_read_file(const char *path, struct hd_arena *arena,
                                        struct hd_calibration *ret_cal);

#endif
