/* trial: one layout of a model, held against its run on one rank.
 */
#ifndef HD_TESTS_GRID_TRIAL_H
#define HD_TESTS_GRID_TRIAL_H

#include "axes.h"
#include "compare.h"
#include "pairs.h"
#include "traffic.h"

/* A model, and its one-rank run of GRID_STEPS steps that all its layouts are held against. All of
 * this fails the test when it cannot be done. */
struct grid_bench {
    const struct grid_model *model;
    struct harness harness;
    char pairs[PAIRS_PATH_MAX];  /* of a tuned model: its corpus */
    struct run *reference;       /* zeroed before grid_bench_refer */
    struct grid_layout referred; /* whose adapter, objective and weights it has */
    bool has_reference;
};
void grid_bench_open(struct grid_bench *bench, const char *model); /* starts no thread */
void grid_bench_refer(struct grid_bench *bench);                   /* with all of those at rest */
void grid_bench_close(struct grid_bench *bench);

/* Layouts by name, for the dearer tests: "llama: tp=2 dp=2". What is not said is at rest. */
struct grid_pick {
    struct grid_bench *bench; /* of this model, from benches */
    struct grid_layout layout;
    char text[GRID_TEXT_MAX];
};
enum { GRID_BENCHES_MAX = 16 };
/* Opens a bench for each model of the names. Returns how many of them can be had today; prints the
 * others with the reason. */
int grid_pick(const char *const *names, int count, struct grid_bench benches[GRID_BENCHES_MAX],
              struct grid_pick *ret_picks);
void grid_benches_close(struct grid_bench benches[GRID_BENCHES_MAX]);

/* Refers to the layout's adapter, objective and weights, unless the bench does already. Trains on
 * threads: gradients, losses and weights as compare.h says, every rank like its copies,
 * and, over shm, the bytes that were moved as dry says. ret_worst: the largest distance of
 * gradients.
 */
enum hd_status grid_try(struct grid_bench *bench, const struct grid_layout *layout,
                        double *ret_worst);

#endif
