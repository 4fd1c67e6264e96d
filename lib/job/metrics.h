/* metrics: the metrics of one training step, as a struct, as a table, and packed into bytes.
 *
 * Each metric is declared once, in metrics.def. The packed form has one entry per metric, in any
 * order, little-endian: id (2 bytes), value (8 bytes, a double). A reader ignores unknown ids; an
 * absent metric is 0.
 *
 * Used by: link, worker, heddled, controller, the heddle command.   Uses: base.   Threads: any; no
 * state. */
#ifndef HD_JOB_METRICS_H
#define HD_JOB_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HD_METRIC_MEMBER_INT(name)     int64_t name;
#define HD_METRIC_MEMBER_REAL(name)    double name;
#define M(id, kind, member, tag, help) HD_METRIC_MEMBER_##kind(member)
struct hd_step_metrics {
#include "job/metrics.def"
};
#undef M
enum {
#define M(id, kind, member, tag, help) HD_METRIC_INDEX_##member,
#include "job/metrics.def"
#undef M
    HD_METRIC_COUNT
};

struct hd_metric {
    int id;
    const char *name; /* name of the metric and of its member, such as "grad_norm" */
    bool is_int;
    size_t offset;   /* offset in struct hd_step_metrics, bytes */
    const char *tag; /* tag of the metric in TensorBoard; "": not exported */
    const char *help;
};
extern const struct hd_metric hd_metrics[HD_METRIC_COUNT];

/* Returns a metric as a double, which is exact for every integer up to 2^53. */
double hd_metric_get(const struct hd_step_metrics *metrics, int index);
/* Sets a metric. Returns false and sets nothing if the metric is INT and the value is not an
 * integer of magnitude up to 2^53. */
bool hd_metric_set(struct hd_step_metrics *metrics, int index, double value);
/* Returns whether a step of a job has the metric: router metrics only with experts, the loss scale
 * only with fp16, metrics of pairs only in steps of pairs, those of further tokens for as many as the
 * model predicts, the z-loss only where one is trained. */
bool hd_metric_is_present(const struct hd_step_metrics *metrics, int index, bool experts);
int hd_metric_find(int id); /* returns the index in hd_metrics; -1: unknown id */

enum { HD_METRICS_BYTES_EACH = 10, HD_METRICS_BYTES_MAX = HD_METRIC_COUNT * HD_METRICS_BYTES_EACH };
/* Packs the metrics of a step into bytes; returns the number of bytes written, at most
 * HD_METRICS_BYTES_MAX. */
size_t hd_metrics_pack(const struct hd_step_metrics *metrics,
                       uint8_t ret_bytes[HD_METRICS_BYTES_MAX]);
/* Unpacks metrics. HD_CORRUPT: the size is not a multiple of an entry's, or an INT metric has a
 * fraction. */
enum hd_status hd_metrics_unpack(const void *bytes, size_t size_bytes,
                                 struct hd_step_metrics *ret_metrics);

#endif
