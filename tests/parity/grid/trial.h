/* trial: one layout of a model, held against its run on one rank.
 */
#ifndef HD_TESTS_GRID_TRIAL_H
#define HD_TESTS_GRID_TRIAL_H

#include "axes.h"
#include "compare.h"
#include "traffic.h"

/* A model with the one-rank run of GRID_STEPS steps that all its layouts are held against. */
struct grid_bench {
    const struct grid_model *model;
    struct harness harness;
    struct run *reference;
};
void grid_bench_open(struct grid_bench *bench,
                     const char *model); /* fails the test when it cannot */
void grid_bench_close(struct grid_bench *bench);

/* Trains on threads over shm: gradients, losses and weights as compare.h says, every rank like its
 * copies, and the bytes that were moved as dry says. ret_worst: the largest distance of gradients.
 */
enum hd_status grid_try(const struct grid_bench *bench, const struct grid_layout *layout,
                        double *ret_worst);

#endif
