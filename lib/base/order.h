/* order: what qsort and bsearch compare with, and medians.
 *
 * Used by: everything.   Uses: libc.   Threads: any; no state.
 */
#ifndef HD_BASE_ORDER_H
#define HD_BASE_ORDER_H

#include <stdlib.h>
#include <string.h>

/* Compares two numbers (double), ascending. */
static inline int hd_order_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Compares two texts (char *) by their bytes. */
static inline int hd_order_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts the values, and returns their median; count >= 1. */
static inline double hd_order_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, hd_order_numbers);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

#endif
