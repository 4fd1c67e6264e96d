/* rollout_file: the answers of a step on disk, so that an attempt that ends in the middle of a
 * rollout is repeated with the same bits, even where a reward is not a function of the answer.
 *
 *     JOB/rollouts/STEP.RANK:  header, then records, each with its length and hash:
 *         answers of a group: index of the group, and of each answer its end, ids and
 *         log-probabilities
 *         rewards of a group: index of the group, and a double per answer and reward
 *
 * Invariants:
 *  1. A record is on the disk (fsync) before its function returns. A record that a crash cut has a
 *     wrong hash, and reading ends there.
 *  2. A file is used only by a rank whose weights are those with which it was written: the header
 *     has loss and gradient norm of the step before, bit for bit, and its learning rate and the like (or
 *     the attempt begins with the checkpoint of that step), and the job's settings of the rollout.
 *  3. Whoever begins a step's file anew removes those of later steps: they are of other weights.
 *
 * Used by: worker, tests.   Uses: base.   Threads: one owner.
 */
#ifndef HD_TRAIN_ROLLOUT_FILE_H
#define HD_TRAIN_ROLLOUT_FILE_H

#include "train/rollout.h"

struct hd_rollout_header {
    int64_t step;
    int64_t group, max_tokens, rewards; /* answers of a group; of one answer; rewards of one */
    uint64_t settings;                  /* hash of everything else that answers depend on */
    double loss, grad_norm;             /* of the step before; 0: none */
    uint64_t update;                    /* hash of what made its update of its gradient; 0: none */
};

/* A group that is read; its memory is the file's. */
struct hd_rollout_group {
    int64_t index;
    struct hd_rollout_sequence *answers; /* [group], without prompt and seed */
    const double *rewards;               /* [group, rewards]; NULL: not rated yet */
};

struct hd_rollout_file;

/* Begins the file of a step on this rank, under a name of its own. HD_STORAGE, HD_IO: it cannot be written. */
enum hd_status hd_rollout_file_create(const char *dir, int64_t rank,
                                      const struct hd_rollout_header *header,
                                      struct hd_rollout_file **ret_file);
/* Gives the file its name, in place of one that an earlier attempt left; until then it is no file of
 * the step. */
enum hd_status hd_rollout_file_publish(struct hd_rollout_file *file);
/* Appends the answers, or the rewards, of a group. */
enum hd_status hd_rollout_file_add(struct hd_rollout_file *file, int64_t index,
                                   const struct hd_rollout_sequence *answers);
enum hd_status hd_rollout_file_rate(struct hd_rollout_file *file, int64_t index,
                                    const double *rewards);
void hd_rollout_file_close(struct hd_rollout_file *file); /* NULL is fine */

/* Reads the groups of a step that the files of all ranks have. any_weights: accepts a header with
 * other loss, gradient norm and update. *ret_count 0: there are none. ret_groups: sorted by index, in
 * `arena`; of two records of a group the first. */
enum hd_status hd_rollout_files_read(const char *dir, const struct hd_rollout_header *header,
                                     bool any_weights, struct hd_arena *arena,
                                     struct hd_rollout_group **ret_groups, int64_t *ret_count);
/* Removes the files of steps before `first` and behind `last`. */
void hd_rollout_files_remove(const char *dir, int64_t first, int64_t last);

#endif
