/* lazy_device: the cpu as a device that is as unhelpful as a device may be.
 *
 * Its kernels are those of the cpu, so its numbers are; but
 *  - the host cannot touch its memory, unless it was reserved for that: addresses of tensors are
 *    those of pages that nobody may use, the bytes lie elsewhere, and only write, read, copy and
 *    kernels know where;
 *  - nothing runs when it is launched. Launches wait in their streams until somebody waits for
 *    them; then the heads of all streams run in an order drawn by chance, held back by events
 *    alone, now as little as is asked for and now as much as can be.
 * So a host that looks where it may not ends by a signal, and an edge that is missing ends in other
 * numbers. One device per process; ranks may be threads.
 */
#ifndef HD_TESTS_LAZY_DEVICE_H
#define HD_TESTS_LAZY_DEVICE_H

#include "kernels/kernels.h"

const struct hd_backend_table *lazy_device(void);

/* The order in which streams are taken from now on. */
void lazy_device_seed(uint64_t seed);

/* Launches, writes and copies that ran so far, and how often the host waited for a stream. */
struct lazy_counts {
    long run, waits;
};
struct lazy_counts lazy_device_counts(void);

#endif
