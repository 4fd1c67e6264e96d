/* metrics: the controller's page for Prometheus.
 *
 * Used by: the HTTP listener, the benchmark.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_METRICS_H
#define HD_CONTROLLER_SERVICES_METRICS_H

#include "base/text.h"
#include "http/http.h"

struct controller;

/* Live jobs with series of their own; the oldest ones, when there are more. */
enum { METRICS_JOBS_MAX = 20000 };

/* Reads memory alone, but for the sizes of the store's files. http: NULL, or the listener it is
 * for. */
void metrics_add(struct controller *c, struct hd_http *http, struct hd_text *out);

#endif
