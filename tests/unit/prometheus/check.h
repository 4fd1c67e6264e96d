/* check: a reader of Prometheus' text format, written from its description alone, so that pages can
 * be checked where promtool is not installed. It knows names, labels, escapes, numbers, the order
 * of families, and what belongs to a histogram; and it holds a page against the list of families.
 *
 * Used by: tests.   Uses: prometheus (the list).   Threads: plain values.
 */
#ifndef HD_TESTS_PROMETHEUS_CHECK_H
#define HD_TESTS_PROMETHEUS_CHECK_H

#include <stdbool.h>

#include "prometheus/prometheus.h"

/* False: the page is wrong; ret_problem says which line and why. program: whose page it is. */
bool prom_check(const char *page, enum hd_prom_program program, char ret_problem[512]);

/* The value of the sample with these labels, written as on the page; NAN: there is none. */
double prom_find(const char *page, const char *name, const char *labels);

#endif
