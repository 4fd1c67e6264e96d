/* metrics: the controller's page for Prometheus.
 *
 * Used by: the HTTP listener, the benchmark.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_METRICS_H
#define HD_CONTROLLER_SERVICES_METRICS_H

#include "base/text.h"
#include "http/http.h"

struct controller;

/* limit of live jobs with metric series of their own; when more are live, those submitted first
 * have them */
enum { METRICS_JOBS_MAX = 20000 };

/* Appends the page of metrics. Reads memory alone, except for the sizes of the store's files. http:
 * HTTP listener whose counters the page includes; NULL: none. */
void metrics_add(struct controller *c, struct hd_http *http, struct hd_text *out);

#endif
