/* calibration: the times that a probe measured on the devices of one machine, and how the time of a
 * kernel or collective is read from them.
 *
 * A probe (`heddle-worker probe`) runs the engine's own kernels and collectives on all devices of a
 * machine at once, since ranks share memory bandwidth. A calibration stores seconds, not formulas:
 *
 *   kernels       per kernel and *variant* a list of samples: sizes -> seconds of one launch
 *   collectives   per kind and number of members a curve: bytes -> seconds, of one engine
 *   each          per device: FLOP/s of matrix products, and bytes/s of memory
 *   pairs         per pair of devices: latency and bandwidth of a message between them
 *   launch_s      seconds from the end of one launch to the start of the next
 *   step_s        host time of a step besides its launches
 *   wait_share    seconds that ranks wait for one another beyond the time of their collectives,
 *                 per second of kernels: each rank is delayed at other moments
 *   wait_s        the same wait per collective, whose members arrive at different moments
 *
 * A variant names a kernel's code path, which may differ at equal sizes:
 *
 *   gemm                  "f32.nt": type of the factors, transposes of a and b (n: none); then
 *                         operations fused into the product: ".gelu", ".dgelu"
 *                                                             sizes: M, N, K
 *   attention_*           "f32"                               sizes: FLOPs, bytes, head width
 *   grouped_gemm*         "f32.n": whether b is transposed    sizes: FLOPs, bytes
 *   all others            ""                                  sizes: FLOPs, bytes (kernels.h);
 *                         the ratio of the two tells types and options apart
 *
 * Between samples, the seconds per unit of work (FLOPs of products and attention, else bytes) are
 * interpolated: the mean of the nearest samples in the logarithms of the sizes, weighted by the
 * inverse square of the distance (Shepard 1968, "A two-dimensional interpolation function for
 * irregularly-spaced data"). A size that was measured thus gets its measured time, and far outside
 * the samples the rate of the nearest ones applies. Nothing is fitted to the times of steps.
 *
 * A calibration of CPU devices is valid only for the number of threads, the instruction set and the
 * matrix library that it was measured with; one of GPUs only for their kind: hd_calibration_check,
 * hd_calibration_check_gpu.
 *
 * Used by: rates, links, worker (fills it), the heddle command.   Uses: base, kernels, comm
 * (kinds).
 * Threads: any; a complete calibration is only read.
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
    HD_CALIBRATION_CLASSES_MAX = 1024, /* classes of a calibration: one per kernel and variant */
    HD_CALIBRATION_SAMPLES_MAX = 512,  /* measured launches of one kernel and variant */
    /* curves of a calibration: one per kind of collective and number of members */
    HD_CALIBRATION_CURVES_MAX = 256,
    HD_CALIBRATION_POINTS_MAX = 64,  /* measured sizes of one curve */
    HD_CALIBRATION_DEVICES_MAX = 64, /* most devices of one measured machine */
    HD_CALIBRATION_PAIRS_MAX = HD_CALIBRATION_DEVICES_MAX * (HD_CALIBRATION_DEVICES_MAX - 1) / 2,
    HD_CALIBRATION_BYTES_MAX = 1 << 20 /* bytes of a calibration's text form */
};

/* The key by which a calibration looks up the time of one kernel launch. */
struct hd_calibration_key {
    enum hd_kernel kernel;
    char variant[HD_CALIBRATION_VARIANT_MAX];
    /* sizes of the launch: M, N, K of a matrix product; of other kernels FLOPs, bytes and, for
     * attention, head width; each >= 1, unused ones 1 */
    double size[HD_CALIBRATION_SIZES];
    double work; /* FLOPs or bytes of the launch, >= 1 */
};

struct hd_calibration_sample {
    double size[HD_CALIBRATION_SIZES];
    double seconds;
};

struct hd_calibration_class {
    enum hd_kernel kernel;
    char variant[HD_CALIBRATION_VARIANT_MAX];
    struct hd_calibration_sample *samples; /* [count] measured launches */
    int count, capacity;
};

struct hd_calibration_point {
    double bytes, seconds;
};

struct hd_calibration_curve {
    enum hd_comm_kind kind;
    int64_t members;
    /* [count] measured sizes of the collective, by ascending bytes */
    struct hd_calibration_point *points;
    int count, capacity;
};

/* Rates of one device while all devices of the machine compute. */
struct hd_calibration_device {
    double single_flops,
        /* FLOP/s of the fastest matrix product with 32-bit and 16-bit factors; 0: not measured */
        half_flops;
    double memory_bytes_per_s; /* rate of adding arrays larger than every cache; 0: not measured */
};

struct hd_calibration_pair {
    int64_t a, b;     /* numbers of the two devices, a < b */
    double latency_s; /* seconds that a short message between the two devices takes */
    double bytes_per_s;
};

struct hd_calibration {
    char device[HD_CALIBRATION_WORD_MAX];  /* "cpu", or the GPU name that the driver reports */
    char isa[HD_CALIBRATION_WORD_MAX];     /* instruction set, as in struct hd_traits */
    char library[HD_CALIBRATION_WORD_MAX]; /* matrix library, as in struct hd_traits */
    char build[HD_CALIBRATION_WORD_MAX];   /* hd_calibration_build of the program that measured */
    /* communication engine that ran the measured collectives, "shm"; "" if only one device was
     * measured */
    char engine[HD_CALIBRATION_WORD_MAX];
    int64_t made_unix_s;      /* time of the measurement, seconds since 1970 */
    int64_t threads, devices; /* threads per device; devices measured at the same time */
    double launch_s, step_s;
    /* seconds that ranks wait for one another, per second of kernels and per collective; 0: not
     * measured, as with one device */
    double wait_share, wait_s;
    /* bytes/s at which one rank writes and flushes a checkpoint; 0: not measured */
    double checkpoint_bytes_per_s;
    /* [class_count] measured launches, by kernel and variant */
    struct hd_calibration_class *classes;
    /* [curve_count] measured collectives, by kind and number of members */
    struct hd_calibration_curve *curves;
    /* [each_count] rates by device; each_count is `devices`, or 0: not measured */
    struct hd_calibration_device *each;
    /* [pair_count] links between two devices, ordered by a, then b */
    struct hd_calibration_pair *pairs;
    int each_count, pair_count;
    int class_count, class_capacity, curve_count, curve_capacity;
};

/* Sets ret_build to the identity of this program's build. Kernel times are comparable only within
 * one build. */
void hd_calibration_build(char ret_build[HD_CALIBRATION_WORD_MAX]);

/* Sets *ret_key to the key of one kernel launch. costs: the FLOPs and bytes of this launch
 * (hd_dry_node_costs). */
void hd_calibration_key_of(enum hd_kernel kernel, const void *args, const struct hd_costs *costs,
                           struct hd_calibration_key *ret_key);

/* Adds the measured seconds of one kernel launch; of two launches with equal key and sizes the mean
 * is kept. Allocates from `arena`. HD_LIMIT: too many classes or samples. */
enum hd_status hd_calibration_add(struct hd_calibration *cal, struct hd_arena *arena,
                                  const struct hd_calibration_key *key, double seconds);

/* Adds the measured seconds of one collective of `bytes` among `members` devices; calls for one
 * kind and number of members must come by ascending bytes. */
enum hd_status hd_calibration_add_collective(struct hd_calibration *cal, struct hd_arena *arena,
                                             enum hd_comm_kind kind, int64_t members, double bytes,
                                             double seconds);

/* Sets the measured rates of each device and of each pair of devices. Copies the arrays to
 * `arena`. */
enum hd_status hd_calibration_set_devices(struct hd_calibration *cal, struct hd_arena *arena,
                                          const struct hd_calibration_device *each, int each_count,
                                          const struct hd_calibration_pair *pairs, int pair_count);

/* Waiting that was measured while the ranks of one machine trained one model. */
struct hd_calibration_waits {
    double share; /* seconds of waiting beyond the collectives' own time, per second of kernels */
    double each;  /* number of collectives per second of kernels */
};

/* Fits wait_share and wait_s to the measured models: the line share = wait_share + wait_s x each,
 * by least squares, with both values at least 0. Sets nothing if count is 0. */
void hd_calibration_set_waits(struct hd_calibration *cal, const struct hd_calibration_waits *waits,
                              int count);

/* Sets *ret_seconds to the seconds of one kernel launch, without launch_s; false: this kernel was
 * not measured. A product whose variant was not measured gets the time of the variant without fused
 * operations that has the same types and transposes. */
bool hd_calibration_seconds(const struct hd_calibration *cal, const struct hd_calibration_key *key,
                            double *ret_seconds);

/* Sets *ret_seconds to the seconds of a collective of `bytes` (counted as in links.h) among
 * `members` devices of one node: linear between the points, and beyond the largest with the slope
 * of the last two. If no curve has this number of members, uses the curve of the nearest number,
 * and sets *ret_members to it. False: this kind of collective was not measured. */
bool hd_calibration_collective(const struct hd_calibration *cal, enum hd_comm_kind kind,
                               int64_t members, double bytes, double *ret_seconds,
                               int64_t *ret_members);

/* Returns the highest FLOP/s of any measured launch of all kernels whose work is counted in FLOPs; 0: not
 * measured. Those of attention count twice, since a model's FLOPs include what a causal kernel skips. */
double hd_calibration_most_flops(const struct hd_calibration *cal);

/* Checks that the calibration is valid for devices with these traits and `threads` threads each.
 * HD_CONFLICT, with a message that says what differs: it was measured on other devices or by
 * another build, or it has no measured kernel. If the library in `traits` is "" (unknown), it is
 * not compared. */
enum hd_status hd_calibration_check(const struct hd_calibration *cal,
                                    const struct hd_traits *traits, int64_t threads);

/* Checks that the calibration is valid for GPUs of this kind; fails as hd_calibration_check
 * does. */
enum hd_status hd_calibration_check_gpu(const struct hd_calibration *cal,
                                        const struct hd_gpu_kind *kind);

/* ---- text ---- */

/* Appends the file form: one JSON object, {"kind":"Calibration","version":1,..}. */
void hd_calibration_write(const struct hd_calibration *cal, struct hd_text *ret_text);

/* Reads the file form into `arena`. HD_INVALID: damaged, the message says where; HD_UNSUPPORTED:
 * another version; HD_LIMIT: too large. Kernels that this build lacks are skipped. */
enum hd_status hd_calibration_read(const char *text, size_t text_bytes, struct hd_arena *arena,
                                   struct hd_calibration *ret_cal);
enum hd_status hd_calibration_read_file(const char *path, struct hd_arena *arena,
                                        struct hd_calibration *ret_cal);

#endif
