/* alibi: the slopes of ALiBi. */
#include <math.h>

#include "program/angles.h"

void hd_alibi_slopes(int64_t H, int64_t first, int64_t count, float *ret_slopes)
{
    int64_t base = 1;

    while (2 * base <= H)
        base *= 2;
    for (int64_t h = first; h < first + count; h++) {
        /* heads from `base` on have the odd powers of the factor for 2 * base heads */
        const double power = h < base ? 2.0 * (double)(h + 1) : 2.0 * (double)(h - base) + 1;

        ret_slopes[h - first] = (float)exp2(-4 * power / (double)base);
    }
}
