/* profile: writes a trace and a table of the time of some steps, op by op. Only for lib/train.
 *
 * Each launch, wait and poll of the steps in train.profile.steps writes one record to memory that
 * is part of the rank's plan (hd_memory.profile). Then two files are written to
 * ATTEMPT_DIR/profile/:
 *
 *   rank-R.json   a trace for ui.perfetto.dev or chrome://tracing: process = rank, one track per
 *                 stream; steps contain programs, programs contain launches, waits and polls. With
 *                 a device the track "device" has launches and waits as the device ran them, by
 *                 events that are read after the step. Collectives are asynchronous slices from
 *                 launch to completion
 *   rank-R.txt    time by op, and by op and shape, and its floor: the larger of FLOPs / measured
 *                 peak and bytes / measured bandwidth
 *
 * Threads: the rank's.
 */
#ifndef HD_TRAIN_PROFILE_H
#define HD_TRAIN_PROFILE_H

#include "train/trainer.h"

struct hd_profile;

/* Makes the recorder of a profile and sets *ret_profile; NULL if the job has no
 * train.profile.steps. It measures the memory bandwidth with temporary memory, so call it before
 * the rank's memory is reserved. hd_profile_attach sets the memory for the records. */
enum hd_status hd_profile_new(const struct hd_rank_program *rank_program,
                              const struct hd_backend_table *table, struct hd_backend *backend,
                              struct hd_profile **ret_profile);
void hd_profile_free(struct hd_profile *profile); /* NULL is ignored, as in all functions below */
void hd_profile_attach(struct hd_profile *profile, void *records);

/* Record the begin and end of step `step`, and of each program in it. */
void hd_profile_step_begin(struct hd_profile *profile, struct hd_runner *runner, int64_t step);
/* Ends the record of the current step. failed: the step failed, so its device events may not be
 * complete and are not read. */
void hd_profile_step_end(struct hd_profile *profile, struct hd_runner *runner, bool failed);
void hd_profile_program_begin(struct hd_profile *profile, const struct hd_instruction *in);
void hd_profile_program_end(struct hd_profile *profile);
void hd_profile_batch_done(struct hd_profile *profile); /* ends the record of filling a batch */

/* Returns true if the profile's files are to be written now: they are not written yet, and all
 * steps are recorded, or with `ended` (the run is over) at least one step. */
bool hd_profile_is_due(const struct hd_profile *profile, bool ended);
/* Writes rank-R.json and rank-R.txt. peak: this rank's measured FLOP/s in the compute precision.
 * ret_note gets a sentence with the path. */
enum hd_status hd_profile_write(struct hd_profile *profile, double peak, struct hd_text *ret_note);

#endif
