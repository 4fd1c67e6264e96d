/* alibi: how fast each head's attention falls with the distance. */
#include <math.h>

#include "program/program.h"

void hd_alibi_slopes(int64_t H, int64_t first, int64_t count, float *ret_slopes)
{
    int64_t base = 1;

    while (2 * base <= H)
        base *= 2;
    for (int64_t h = first; h < first + count; h++) {
        /* behind `base` heads stand odd powers of the next power of two's factor */
        const double power = h < base ? 2.0 * (double)(h + 1) : 2.0 * (double)(h - base) + 1;

        ret_slopes[h - first] = (float)exp2(-4 * power / (double)base);
    }
}
