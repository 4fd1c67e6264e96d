/* order: what qsort and bsearch compare with.
 *
 * Used by: everything.   Uses: libc.   Threads: any; no state.
 */
#ifndef HD_BASE_ORDER_H
#define HD_BASE_ORDER_H

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

#endif
