#include "base/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Independent chains of fused multiply-adds, enough to cover their latency on two units. */
double KERNEL(fma_rate)(double seconds)
{
    enum { CHAINS = 12, ROUNDS = 20000 };
    const int64_t begin_ns = hd_clock_now_ns();
    const vf factor = vf_set(0.999f), term = vf_set(0.001f);
    vf sums[CHAINS] = {{0}};
    int64_t rounds = 0, elapsed_ns;
    vf total = {0};

    do {
        for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
            for (int c = 0; c < CHAINS; c++)
                sums[c] = sums[c] * factor + term;
        rounds += ROUNDS;
        elapsed_ns = hd_clock_now_ns() - begin_ns;
    } while ((double)elapsed_ns < seconds * 1e9);

    for (int c = 0; c < CHAINS; c++)
        total += sums[c];
    /* The sums reach 1 and stay there; reading them keeps the loop. */
    return total[0] >= 0 ? (double)rounds * CHAINS * VL * 2 / ((double)elapsed_ns * 1e-9) : 0;
}
