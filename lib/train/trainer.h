/* trainer: the trainer as its own files see it. Only for lib/train.
 */
#ifndef HD_TRAIN_TRAINER_H
#define HD_TRAIN_TRAINER_H

#include "optim/optim.h"
#include "train/job_data.h"
#include "train/reach.h"
#include "train/reserve.h"
#include "train/train.h"

struct hd_profile;

struct hd_trainer {
    struct hd_arena arena;
    struct hd_layout layout;
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_backend *own_backend; /* NULL: another's */
    struct hd_traits traits;
    struct hd_comm *comm;
    struct hd_comm_group *world;
    struct hd_runner *runner;
    double peak; /* measured operations per second of this rank */

    char *private_base, *visible_base; /* of tensors: addresses of the device where there is one */
    char *host_base;                   /* of what is the host's even then (layout.h) */
    struct hd_private reserved;        /* where host_base lies, and without a device private_base */
    struct hd_reservation reservation;
    struct hd_reach reach;

    struct hd_bases *bases; /* one per kept slot */
    struct hd_bases eval_bases, update_bases;
    struct hd_bound **bound; /* [slot][call F, B, W][first][last] */
    struct hd_bound *eval, *update;

    /* The host's copies of what it reads when a step has ended. Nothing but the host's words
     * changes between two steps, so the block's copy is written back whole. */
    struct hd_step_block block;
    double *records, *routes; /* HD_GLOBAL_RECORDS, HD_GLOBAL_ROUTES */
    char *messages;           /* of all ranks: [world, HD_EXCHANGE_SLOT_BYTES] */
    int64_t *router_load;     /* of the step before, by expert */

    struct hd_job_data data;
    struct hd_lr_schedule schedule;

    struct hd_profile *profile; /* NULL: none was asked for */

    int64_t steps_done;
};

/* Where a value of the step's lies, and this rank's share of a parameter's state. */
void *hd_trainer_global(const struct hd_trainer *t, enum hd_global global);
char *hd_trainer_tensor(const struct hd_trainer *t, int param, enum hd_state_kind kind);

/* What every rank wrote into `slot` bytes, by rank, after all have called. Until the next call. */
enum hd_status hd_trainer_exchange(struct hd_trainer *t, const void *mine, size_t size_bytes,
                                   const char **ret_all);

#endif
