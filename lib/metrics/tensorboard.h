/* metrics: a run's numbers in event files that TensorBoard reads.
 *
 * One directory per job, one file per attempt. A file is a sequence of records, each with checksums
 * over its length and its content (TFRecord: CRC-32C, masked), each record an `Event` of
 * TensorFlow's event.proto in protobuf's wire format, which is simple enough to write by hand. The
 * first events say the format's version and where this attempt starts (SessionLog START), so that
 * TensorBoard drops what an earlier attempt wrote from that step on.
 *
 * Each call writes whole records in one write, at once: a killed rank loses nothing that was
 * added. Nothing is allocated after opening. A failed write leaves no torn record behind, and the
 * next call tries again: metrics never stop a run.
 *
 * Used by: worker.   Uses: base, libc.   Threads: one owner.
 */
#ifndef HD_METRICS_TENSORBOARD_H
#define HD_METRICS_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_TENSORBOARD_TAG_MAX = 64,     /* bytes of a tag */
    HD_TENSORBOARD_SCALARS_MAX = 16, /* in one call */
};

struct hd_tensorboard;

struct hd_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored as float, which is what TensorBoard has */
};

/* Files go to `dir`, which is made when the first numbers come. steps_done: of the checkpoint that
 * this attempt goes on from. HD_NO_MEMORY, or HD_INVALID for a path that is too long. */
enum hd_status hd_tensorboard_open(const char *dir, int64_t attempt, int64_t steps_done,
                                   struct hd_tensorboard **ret_board);

/* The numbers of a step, with the time of now. HD_IO (disk full ...): none of them were written. */
enum hd_status hd_tensorboard_add(struct hd_tensorboard *board, int64_t step,
                                  const struct hd_scalar *scalars, size_t count);

void hd_tensorboard_close(struct hd_tensorboard *board); /* NULL is fine */

#endif
