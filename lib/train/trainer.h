/* trainer: the trainer as its own files see it. Only for lib/train.
 */
#ifndef HD_TRAIN_TRAINER_H
#define HD_TRAIN_TRAINER_H

#include "optim/optim.h"
#include "train/job_data.h"
#include "train/reserve.h"
#include "train/train.h"

struct hd_profile;

struct hd_trainer {
    struct hd_arena arena;
    struct hd_layout layout;
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_traits traits;
    struct hd_comm *comm;
    struct hd_comm_group *world;
    struct hd_runner *runner;
    double peak; /* measured operations per second of this rank */

    char *private_base, *visible_base;
    struct hd_private reserved; /* where private_base lies */
    struct hd_reservation reservation;

    struct hd_bases *bases; /* one per kept slot */
    struct hd_bases eval_bases, update_bases;
    struct hd_bound **bound; /* [slot][call F, B, W][first][last] */
    struct hd_bound *eval, *update;
    struct hd_step_block *block;
    int64_t *router_load; /* of the step before, by expert */

    struct hd_job_data data;
    struct hd_lr_schedule schedule;

    struct hd_profile *profile; /* NULL: none was asked for */

    int64_t steps_done;
};

/* What every rank wrote into `slot` bytes, by rank, after all have called. */
enum hd_status hd_trainer_exchange(struct hd_trainer *t, const void *mine, size_t size_bytes,
                                   const char **ret_all);

#endif
