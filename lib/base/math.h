/* math: rounding and comparing whole numbers and reals.
 *
 * Used by: everything.   Uses: libc.
 */
#ifndef HD_BASE_MATH_H
#define HD_BASE_MATH_H

#include <stdint.h>

/* Returns n / by, rounded up; n >= 0, by > 0. */
static inline int64_t hd_divide_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Returns the smallest multiple of `unit` that is at least n; n >= 0, unit > 0. */
static inline int64_t hd_round_up(int64_t n, int64_t unit)
{
    return hd_divide_up(n, unit) * unit;
}

static inline int64_t hd_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t hd_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Return the smaller and the larger of two reals; b, if one of them is NaN. */
static inline double hd_min_real(double a, double b)
{
    return a < b ? a : b;
}

static inline double hd_max_real(double a, double b)
{
    return a > b ? a : b;
}

#endif
