/* sorted: measurements in order, and their median.
 *
 * Used by: bench, sim, reference.   Uses: libc.
 */
#ifndef HD_TESTS_SORTED_H
#define HD_TESTS_SORTED_H

#include <stdlib.h>

static inline int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

/* Puts the values in ascending order. */
static inline void sort_doubles(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
}

/* Puts the values in order, and returns the upper one of those in the middle. */
static inline double sorted_median(double *values, int count)
{
    sort_doubles(values, (size_t)count);
    return values[count / 2];
}

#endif
