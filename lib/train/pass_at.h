/* pass_at: the estimate of pass@k, the probability that one of k answers to a task is right.
 *
 * Used by: worker, tests.   Uses: nothing.   Threads: any; pure. */
#ifndef HD_TRAIN_PASS_AT_H
#define HD_TRAIN_PASS_AT_H

#include <stdint.h>

/* Returns 1 - C(n - right, k) / C(n, k), the share of the k-subsets of n answers that have a right one, whose
 * mean over draws of n answers is pass@k for any n >= k (Chen et al. 2021, "Evaluating Large Language Models
 * Trained on Code"). 0 <= right <= n. */
static inline double hd_pass_at(int64_t n, int64_t right, int64_t k)
{
    double none = 1;

    if (n - right < k)
        return 1;
    for (int64_t i = n - right + 1; i <= n; i++) /* a product, as the binomials overflow */
        none *= 1 - (double)k / (double)i;
    return 1 - none;
}

#endif
