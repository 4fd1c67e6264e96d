/* tensorboard: writes a run's scalars to event files that TensorBoard reads.
 *
 * One directory per job, one file per attempt. A file is a sequence of TFRecords (length and
 * content with masked CRC-32C checksums); each record is an `Event` of TensorFlow's event.proto in
 * protobuf's wire format. The first events contain the format version and the step at which this
 * attempt starts (SessionLog START), so that TensorBoard discards later steps of an earlier
 * attempt.
 *
 * Each call is one write of whole records, without buffering: a killed rank loses nothing that was
 * added. Nothing is allocated after opening. A failed write leaves no partial record in the file,
 * and the next call may succeed: an error here need not stop a run.
 *
 * Used by: worker.   Uses: base, libc.   Threads: one at a time per struct hd_tensorboard.
 */
#ifndef HD_METRICS_TENSORBOARD_H
#define HD_METRICS_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_TENSORBOARD_TAG_MAX = 64,     /* bytes of a tag */
    HD_TENSORBOARD_SCALARS_MAX = 16, /* scalars in one call */
};

struct hd_tensorboard;

struct hd_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored as float */
};

/* Opens the event file of an attempt; the first hd_tensorboard_add creates `dir` and the file.
 * steps_done: steps of the checkpoint from which this attempt resumes. HD_NO_MEMORY, or HD_INVALID:
 * the path is too long. */
enum hd_status hd_tensorboard_open(const char *dir, int64_t attempt, int64_t steps_done,
                                   struct hd_tensorboard **ret_board);

/* Writes the scalars of a step with the current time. HD_IO (for example a full disk): none of them
 * was written. */
enum hd_status hd_tensorboard_add(struct hd_tensorboard *board, int64_t step,
                                  const struct hd_scalar *scalars, size_t count);

void hd_tensorboard_close(struct hd_tensorboard *board); /* NULL is fine */

#endif
