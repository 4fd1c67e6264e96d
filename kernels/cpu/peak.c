#include "base/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Returns the rate of independent chains of fused multiply-adds, enough chains to hide the latency
 * on two units. The fastest of many slices of about a millisecond counts, because other load slows
 * only some of them. */
double KERNEL(fma_rate)(double seconds)
{
    enum { CHAINS = 12, ROUNDS = 100000 };
    const int64_t begin_ns = hd_clock_now_ns();
    const vf factor = vf_set(0.999f), term = vf_set(0.001f);
    vf sums[CHAINS] = {{0}}, total = {0};
    int64_t best_ns = INT64_MAX;

    while ((double)(hd_clock_now_ns() - begin_ns) < seconds * 1e9) {
        const int64_t start_ns = hd_clock_now_ns();
        int64_t ns;

        for (int r = 0; r < ROUNDS; r++) {
            UNROLL
            for (int c = 0; c < CHAINS; c++)
                sums[c] = sums[c] * factor + term;
        }
        ns = hd_clock_now_ns() - start_ns;
        if (ns < best_ns)
            best_ns = ns;
    }
    for (int c = 0; c < CHAINS; c++)
        total += sums[c];
    /* Always true: the sums approach 1 from below. Reading them keeps the compiler from removing
     * the loop. */
    return total[0] >= 0 ? (double)ROUNDS * CHAINS * VL * 2 / ((double)best_ns * 1e-9) : 0;
}
