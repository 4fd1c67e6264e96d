/* device_memory: what is in use of a device while ranks train on it, held against what the layout
 * said before.
 */
#ifndef HD_TESTS_TRAIN_DEVICE_MEMORY_H
#define HD_TESTS_TRAIN_DEVICE_MEMORY_H

#include <stdatomic.h>

#include "runs.h"

struct device_case {
    const char *family, *precision;
    int64_t layers, ffn, dp, cp, tp, ep;
    bool sequence;
    enum hd_schedule_kind schedule;
    bool offload;
};

/* Memory that was found; on one device that all ranks share. */
struct device_found {
    struct hd_rank_program_options layout;
    atomic_int_least64_t predicted_bytes; /* sum over the ranks */
    int64_t in_use_bytes;                 /* while all ranks had trained and none was gone */
};

struct hd_job device_job(const struct harness *h, const struct device_case *c);

/* Trains two steps and validates; each rank's reservations must be its prediction, which is made
 * without a device. */
enum hd_status device_train(const struct hd_job *job, struct device_found *found);

/* Returns the memory of the device that harness_backend() has, by a backend opened for the
 * question. */
struct hd_device_memory device_memory_now(void);

#endif
