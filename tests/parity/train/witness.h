/* witness: whether a rank lives in the memory that was predicted for it, and asks for no more.
 *
 * Two witnesses: a reservation of exactly the predicted size, whose last byte lives, whose tail up
 * to the page's end is never written and behind which the first byte faults; and a count of every
 * call for memory during a step (a program that counts is linked with interpose.c).
 */
#ifndef HD_TESTS_TRAIN_WITNESS_H
#define HD_TESTS_TRAIN_WITNESS_H

#include "interpose.h"
#include "runs.h"

/* Predicts a rank's memory from its layout, before any device is opened. */
struct hd_memory witness_predict(const struct hd_job *job,
                                 const struct hd_rank_program_options *options, int rank);

/* Trains and validates on threads, each rank in exactly what was predicted for it less so many
 * bytes, and looks at the edges, and at the pages that the system says are in use. HD_OK or a
 * story.
 */
struct witness_cut {
    struct hd_rank_program_options layout;
    int64_t less_private, less_visible;
    const struct hd_memory *predicted; /* [world]; NULL: what witness_predict says */
};
enum hd_status witness_edges(const struct hd_job *job, const struct witness_cut *cut);

/* Trains in processes and counts; fails the test when a step asks for memory. In processes, so that
 * what is counted is one rank's, all its threads included: the parent must not have started OpenMP
 * when it forks. */
void witness_quiet(const struct hd_job *job, const struct hd_rank_program_options *options);

/* Two steps and a validation. */
enum hd_status witness_use_everything(struct hd_trainer *trainer);

int64_t witness_page_bytes(void);

#endif
