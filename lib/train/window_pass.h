/* window_pass: runs the programs of validation over windows, and hands on, row by row, the values that
 * they leave for the host: scores of questions (examine.c), the KL term of KTO (mismatched.c), values
 * of completions (policy_score.c), DPO's reference (reference.c), a teacher's records (teacher.c).
 * Only for lib/train.
 *
 * Of the ranks with equal values one takes them: tp index 0 on the stage of the head. A cp rank has
 * its own rows of each window.
 */
#ifndef HD_TRAIN_WINDOW_PASS_H
#define HD_TRAIN_WINDOW_PASS_H

#include "train/batch.h"

struct hd_window_pass {
    struct hd_batch_windows windows; /* must be first: the context of hd_batch_feed_windows */
    int64_t columns;                 /* values of a row */
    /* Prepares for the rows of a window. NULL: there is nothing to prepare. */
    enum hd_status (*prepare)(struct hd_trainer *trainer, void *user, int64_t window);
    /* Takes the values of the row at `position` of the window. */
    enum hd_status (*take)(void *user, int64_t window, int64_t position, const float *values);
    /* Called before and after each round of micro-batches, with the number of windows that all ranks
     * have done. NULL: not called. */
    enum hd_status (*before)(void *user, int64_t done);
    enum hd_status (*after)(struct hd_trainer *trainer, void *user, int64_t done);
    void *user;
    /* set by hd_window_pass_run: the number of windows; [rows of a micro-batch, columns] */
    int64_t count;
    float *values;
};

/* Runs the programs over windows `done` to count - 1. The caller resets and reads the step's sums. All
 * ranks call it. HD_NO_MEMORY: a micro-batch's values have none. */
enum hd_status hd_window_pass_run(struct hd_trainer *trainer, struct hd_window_pass *pass,
                                  int64_t done, int64_t count);
/* Returns true for a rank that takes values. */
bool hd_window_pass_takes(const struct hd_rank_program *rank_program, struct hd_mesh_coord coord);

#endif
