/* profile: where the time of some steps went, op by op. Only for lib/train.
 *
 * Each launch, wait and poll of the steps `train.profile.steps` leaves one record in memory that
 * was reserved with everything else (hd_memory.profile); steps are not slowed by more than two
 * looks at the clock per launch. Afterwards two files are written to ATTEMPT_DIR/profile/:
 *
 *   rank-R.json   a trace for ui.perfetto.dev or chrome://tracing: process = rank, one track per
 *                 stream; steps contain programs, programs contain launches, waits and polls (a
 *                 device's launches and waits are on a track of their own, as it ran them, by
 *                 events that are read when the step has ended);
 *                 collectives are asynchronous slices from launch to completion
 *   rank-R.txt    time by op, and by op and shape, beside its floor: the longer of operations over
 *                 the measured peak and bytes over the measured bandwidth
 *
 * Threads: the rank's.
 */
#ifndef HD_TRAIN_PROFILE_H
#define HD_TRAIN_PROFILE_H

#include "train/trainer.h"

struct hd_profile;

/* NULL in ret_profile when the job asks for none. Measures the bandwidth, so call it before memory
 * is reserved; hd_profile_attach gives it its records. */
enum hd_status hd_profile_new(const struct hd_layout *layout, const struct hd_backend_table *table,
                              struct hd_backend *backend, struct hd_profile **ret_profile);
void hd_profile_free(struct hd_profile *profile); /* NULL is fine, as for all below */
void hd_profile_attach(struct hd_profile *profile, void *records);

/* Around step `step`, on its runner; and what comes within. */
void hd_profile_step_begin(struct hd_profile *profile, struct hd_runner *runner, int64_t step);
/* failed: the device may not have come to its events; they are not asked. */
void hd_profile_step_end(struct hd_profile *profile, struct hd_runner *runner, bool failed);
void hd_profile_program_begin(struct hd_profile *profile, const struct hd_instruction *in);
void hd_profile_program_end(struct hd_profile *profile);
void hd_profile_batch_done(struct hd_profile *profile); /* since program_begin: the input */

/* True once all steps are recorded, or, at the end of a run, some, and nothing was written yet. */
bool hd_profile_is_due(const struct hd_profile *profile, bool ended);
/* peak: of this rank in the compute precision. */
enum hd_status hd_profile_write(struct hd_profile *profile, double peak, struct hd_text *ret_note);

#endif
