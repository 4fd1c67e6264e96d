/* sim_internal: what the parts of the simulated cluster share: the shell around the core (sim.c),
 * daemons and ranks (sim_daemon.c), and what is durable (sim_durable.c: the store's rows and the disk
 * that all nodes share). See sim.h.
 */
#ifndef HD_TEST_CONTROLLER_SIM_INTERNAL_H
#define HD_TEST_CONTROLLER_SIM_INTERNAL_H

#include "sim.h"

struct sim_desired {
    uint64_t generation, stream;
    struct {
        uint64_t job;
        int32_t attempt, devices[SIM_DEVICES], device_count, rank;
        bool on[SIM_NODES];
        enum hd_wanted wanted;
        int64_t steps, base_step;
        char base[64], base_hash[24];
    } attempts[SIM_ATTEMPTS];
    size_t attempt_count;
    struct {
        struct hd_deletion names;
        char path[64], hash[24];
    } deletions[32];
    size_t deletion_count;
};

/* ---- daemons and ranks: sim_daemon.c ---- */

/* Breaks the stream of a node; reports are resent on the next one. */
void sim_close_stream(struct sim_node *node);
/* Applies a desired set that has arrived on the node. */
void sim_apply_desired(struct sim *sim, struct sim_node *node, const struct sim_desired *desired);
/* Lets the ranks of an attempt on a node live for a second. */
void sim_attempt_second(struct sim *sim, struct sim_node *node, struct sim_attempt *a);
/* Lets the daemon connect, report and say what it observes. */
void sim_talk(struct sim *sim, struct sim_node *node);

/* ---- what is durable: sim_durable.c ---- */

void sim_durable_init(struct sim *sim);
void sim_durable_done(struct sim *sim);

/* Takes one operation of a batch; asserts I8 and I9 as it goes. */
void sim_db_put(struct sim_db *db, const struct hd_batch_op *op);
/* Gives a new core all that is durable. */
void sim_restore(struct sim *sim);

/* The directory of a checkpoint. */
void sim_path_of(char ret_path[64], uint64_t job, int32_t attempt, int64_t step);
void sim_disk_write(struct sim *sim, const struct sim_attempt *a);
bool sim_disk_read(const struct sim *sim, const char *path, uint64_t *ret_value);
/* Returns the text that represents the manifest's hash; "": no checkpoint was ever written there.
 */
void sim_disk_hash(const struct sim *sim, const char *path, char ret_hash[24]);
void sim_disk_delete(struct sim *sim, const char *path);
void sim_disk_delete_job(struct sim *sim, uint64_t job);
/* The checkpoints that are there and asked for; their paths live as long as the disk. */
size_t sim_disk_list(const struct sim *sim, const struct hd_core_search *asked,
                     struct hd_checkpoint_record ret_list[HD_CTL_CHECKPOINTS_MAX]);

uint64_t sim_train(uint64_t value, int64_t step); /* the training state one step on */

#endif
