/* prometheus: metrics in the text format of Prometheus (version 0.0.4), and the list of all metrics
 * that Heddle's programs export.
 *
 *     hd_prom_begin(out, HD_PROM_jobs);                       writes HELP and TYPE
 *     hd_prom_add(out, HD_PROM_jobs, "state=\"queued\"", 3);  writes a sample; labels: no braces
 *
 * All samples of a family follow its beginning. An unknown value is left out, never written as 0:
 * then Prometheus shows a gap, and alert rules with absent() detect it.
 *
 * Used by: controller, daemon.   Uses: base.   Threads: any; no state.
 */
#ifndef HD_PROMETHEUS_PROMETHEUS_H
#define HD_PROMETHEUS_PROMETHEUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

#define HD_PROM_TYPE "text/plain; version=0.0.4; charset=utf-8"

#define F(id, program, kind, labels, help) HD_PROM_##id,
enum hd_prom_family {
#include "prometheus/families.def"
    HD_PROM_COUNT
};
#undef F

enum hd_prom_kind { HD_PROM_GAUGE, HD_PROM_COUNTER, HD_PROM_HISTOGRAM };
enum hd_prom_program { HD_PROM_CONTROLLER, HD_PROM_DAEMON, HD_PROM_BOTH };

struct hd_prom_row {
    const char *name; /* exported name, with heddle_ */
    enum hd_prom_kind kind;
    enum hd_prom_program program;
    const char *labels; /* names of the labels, with commas between; "": none */
    const char *help;
};
extern const struct hd_prom_row hd_prom_families[HD_PROM_COUNT];

void hd_prom_begin(struct hd_text *out, enum hd_prom_family family);
void hd_prom_add(struct hd_text *out, enum hd_prom_family family, const char *labels, double value);
/* Writes HELP, TYPE and the sample of a family with one sample. */
void hd_prom_add_one(struct hd_text *out, enum hd_prom_family family, double value);
/* Writes a sample with one label. */
void hd_prom_add_label(struct hd_text *out, enum hd_prom_family family, const char *name,
                       const char *label, double value);
/* A label of a sample. name NULL: it is left out. */
struct hd_prom_pair {
    const char *name, *value;
};
/* Writes a sample whose labels are `before`, in the form of hd_prom_add ("": none), and after them
 * `count` pairs. */
void hd_prom_add_labels(struct hd_text *out, enum hd_prom_family family, const char *before,
                        const struct hd_prom_pair *pairs, int count, double value);

/* ---- histograms ---- */

enum { HD_PROM_BOUNDS_MAX = 16 };

struct hd_prom_bounds {
    double upper[HD_PROM_BOUNDS_MAX]; /* ascending upper bounds */
    int count;
};
extern const struct hd_prom_bounds hd_prom_latencies; /* bounds from 0.1 ms to 10 s */
extern const struct hd_prom_bounds hd_prom_waits;     /* bounds from 1 s to 7 days */

/* A histogram; initialise it with {0} and the bounds. */
struct hd_prom_histogram {
    const struct hd_prom_bounds *bounds;
    /* observations per bound; the last: above all bounds */
    uint64_t counts[HD_PROM_BOUNDS_MAX + 1];
    double sum;
};

void hd_prom_observe(struct hd_prom_histogram *histogram, double value);
void hd_prom_add_histogram(struct hd_text *out, enum hd_prom_family family,
                           const struct hd_prom_histogram *histogram);

/* ---- metrics of every program about itself ---- */

/* Adds build_info and process_*. */
void hd_prom_add_process(struct hd_text *out, const char *program, const char *version);
/* Adds the metrics of an HTTP listener; `answered` as in struct hd_http_stats. */
void hd_prom_add_listener(struct hd_text *out, const uint64_t answered[6], uint64_t connections);

#endif
