/* runs: a whole training run as one call, and what it left behind, for comparisons.
 */
#ifndef HD_TESTS_TRAIN_RUNS_H
#define HD_TESTS_TRAIN_RUNS_H

#include "harness.h"

enum { RUN_ELEMENTS_MAX = 192 * 1024, RUN_STEPS_MAX = 64, RUN_EXPERTS_MAX = 16 };

/* The routers' figures of the first step (hd_router_result). */
struct run_routers {
    double balance, z;
    int64_t dropped, load[RUN_EXPERTS_MAX];
};

/* The orders and the results of a run: one block that threads and processes can share alike: what
 * it points to was there before they began. Elements are those of all parameters, each whole as if
 * one rank held it, in the registry's order: the ranks put their shares together. */
struct run {
    /* asked */
    int steps;
    struct hd_rank_program_options layout;
    float
        noise; /* spread of what is added to every initial weight, the same in every layout: biases
                  and norms begin as zeros and ones, which would fit anywhere. fp32 alone */
    const struct hd_backend_table *backend;                             /* NULL: the CPU's */
    void (*before_step)(struct hd_trainer *t, int step, void *context); /* on every rank; or NULL */
    void *context;
    const float *last_at; /* the masters that the last step is taken at; NULL: its own */
    struct traffic
        *traffic; /* of the second step and the validation, on traffic_backend(); NULL: is
                                not counted */

    /* found */
    int64_t count;
    double loss[RUN_STEPS_MAX], grad_norm[RUN_STEPS_MAX];
    int64_t targets[RUN_STEPS_MAX], tokens[RUN_STEPS_MAX];
    struct run_routers routers;
    double validation_loss; /* in the end */
    int64_t validation_targets;
    float initial[RUN_ELEMENTS_MAX];
    float before_last[RUN_ELEMENTS_MAX]; /* its own masters before the last step */
    float weights[RUN_ELEMENTS_MAX];     /* masters in the end */
    float first_grad[RUN_ELEMENTS_MAX], last_grad[RUN_ELEMENTS_MAX]; /* sums over all targets */
    float moments[2][RUN_ELEMENTS_MAX];
    uint64_t state_hash[HARNESS_WORLD_MAX]; /* of a rank's gradients, weights and moments */
    int64_t disagree[HARNESS_WORLD_MAX];    /* elements of a rank's share that differ in a bit from
                                               what another rank put for the same share */
};

/* In shared, zeroed memory. */
struct run *run_new(int steps);
void run_free(struct run *run);

/* Runs it on the ranks of `job`, whose dp it sets; the test fails with the story of a failure. */
void run_threads(struct hd_job job, int dp, struct run *run);
void run_processes(struct hd_job job, int dp, struct run *run);

/* The layout of rank 0, without running anything. */
void run_layout(const struct hd_job *job, const struct hd_rank_program_options *options,
                struct hd_arena *arena, struct hd_rank_program *ret_layout);
void run_layout_of(const struct hd_job *job, int rank,
                   const struct hd_rank_program_options *options, struct hd_arena *arena,
                   struct hd_rank_program *ret_layout);

/* Calls `visit` for each parameter of the job on one rank, with the index of its first element in the
 * arrays of a run. */
void run_for_params(const struct hd_job *job,
                    void (*visit)(const struct hd_param *p, int64_t first, void *context),
                    void *context);

/* Runs, and returns the failure as a status: for tables of runs. */
enum hd_status run_on_threads(const struct hd_job *job, struct run *run);

enum hd_status run_on_processes(const struct hd_job *job, struct run *run);
enum hd_status run_on_gloo(const struct hd_job *job, struct run *run); /* processes */

/* In threads on tests/lazy_device, for a test that is built with it. */
enum hd_status run_on_lazy_device(const struct hd_job *job, struct run *run);

/* In threads: trains `steps` steps and saves, or loads what was saved. Puts weights and moments
 * into `run`, then takes run->steps more steps, whose losses are in `run`, too. */
void run_save(const struct hd_job *job, int steps, struct run *run, struct hd_saved *ret_saved);
void run_load(const struct hd_job *job, const struct hd_saved *saved, struct run *run);
/* Loads, and saves what it loaded, in the folder of `job`. */
void run_load_and_save(const struct hd_job *job, const struct hd_saved *saved, struct run *run,
                       struct hd_saved *ret_saved);
void run_compare_state(const struct run *a, const struct run *b); /* weights, moments: equal bits */

int run_world(const struct hd_job *job);

int64_t param_elements(const struct hd_param *param); /* of the whole tensor */

/* Writes this rank's elements of one kind of state into the whole, unless another rank of a lower
 * number has the same share; returns how many elements the whole has. */
int64_t run_copy_state(struct hd_trainer *trainer, enum hd_state_kind kind, float *ret_values);
/* Writes the whole's elements of one kind of state to this rank's share. */
void run_put_state(struct hd_trainer *trainer, enum hd_state_kind kind, float *values);
void run_copy_saved(struct hd_trainer *trainer, struct run *run); /* weights and moments */
/* Returns a hash of the given kinds of this rank's state; run_hash_state: gradients, weights and
 * moments. */
uint64_t run_hash_kinds(struct hd_trainer *trainer, const enum hd_state_kind *kinds, int count);
uint64_t run_hash_state(struct hd_trainer *trainer);

#endif
