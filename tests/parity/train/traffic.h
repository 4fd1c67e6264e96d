/* traffic: the bytes that the ranks of a job move in one step, counted where they are moved, and
 * what the dry fold says of it. Where rows go is decided by routers; the fold is fed what they did.
 */
#ifndef HD_TESTS_TRAIN_TRAFFIC_H
#define HD_TESTS_TRAIN_TRAFFIC_H

#include "program/dry.h"
#include "runs.h"

struct counted {
    struct hd_comm_count of[HD_GROUP_COUNT][HD_COMM_KIND_COUNT];
};

struct traffic {
    struct hd_rank_program_options layout; /* asked */
    struct counted step[HARNESS_WORLD_MAX], validation[HARNESS_WORLD_MAX];
    struct hd_dry dry[HARNESS_WORLD_MAX]; /* of each rank's step */
};

/* A run that counts is on this backend, the CPU's, which notes what routers did; one thread makes it anew.
 * Its second step is between traffic_begin and traffic_end_step, a validation between traffic_begin
 * and traffic_end_validation. */
const struct hd_backend_table *traffic_backend(void);
void traffic_begin(struct harness_rank *r, struct hd_trainer *t);
enum hd_status traffic_end_step(struct harness_rank *r, struct hd_trainer *t,
                                struct traffic *traffic);
enum hd_status traffic_end_validation(struct harness_rank *r, struct hd_trainer *t,
                                      struct traffic *traffic);

/* Runs two steps and a validation of `job` on threads and counts the second one. */
enum hd_status traffic_try(const struct hd_job *job, struct traffic *traffic);
/* Runs in processes over gloo; `shared` is memory that they share. Before any thread is made. */
enum hd_status traffic_try_on_gloo(const struct hd_job *job, struct traffic *shared);
void traffic_count(const struct hd_job *job, struct traffic *traffic); /* must succeed */

/* Bytes that all ranks moved together in the step. */
int64_t traffic_moved(const struct traffic *traffic, int world, enum hd_group_name group,
                      enum hd_comm_kind kind);

/* Compares, for every group and kind: as often on each rank as its program says, and as many bytes
 * as the programs of all ranks say. */
enum hd_status traffic_compare_dry(const struct traffic *traffic, const struct hd_job *job);
void traffic_check_dry(const struct traffic *traffic, const struct hd_job *job);

#endif
