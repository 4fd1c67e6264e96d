/* metrics: the numbers of one step as a struct, as a table, and packed.
 *
 * Each metric is declared once, in metrics.def. Packed, a step is {id: 2 bytes, value: a double, 8
 * bytes} per metric, little-endian, in any order: a reader leaves out ids that it does not know,
 * and absent metrics are 0.
 *
 * Used by: link, worker, heddled, controller, the heddle command.   Uses: base.   Threads: values.
 */
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
    const char *name; /* the member's: "grad_norm" */
    bool is_int;
    size_t offset;   /* in struct hd_step_metrics */
    const char *tag; /* in TensorBoard; "": not shown there */
    const char *help;
};
extern const struct hd_metric hd_metrics[HD_METRIC_COUNT];

/* A metric as a double, which holds every count up to 2^53. */
double hd_metric_get(const struct hd_step_metrics *metrics, int index);
/* False, and nothing is changed: the metric is a count, and the value no whole number up to 2^53.
 */
bool hd_metric_set(struct hd_step_metrics *metrics, int index, double value);
bool hd_metric_is_of_router(int index); /* reported by models with experts only */
int hd_metric_find(int id);             /* its index; -1: unknown to this build */

enum { HD_METRICS_BYTES_MAX = HD_METRIC_COUNT * 10 };
/* Returns the number of bytes, at most HD_METRICS_BYTES_MAX. */
size_t hd_metrics_pack(const struct hd_step_metrics *metrics,
                       uint8_t ret_bytes[HD_METRICS_BYTES_MAX]);
/* HD_CORRUPT: bytes that hd_metrics_pack did not make. */
enum hd_status hd_metrics_unpack(const void *bytes, size_t size_bytes,
                                 struct hd_step_metrics *ret_metrics);

#endif
