/* tensorboard: writes a run's scalars and texts to event files that TensorBoard reads.
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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_TENSORBOARD_TAG_MAX = 64,     /* bytes of a tag */
    HD_TENSORBOARD_SCALARS_MAX = 64, /* scalars in one call */
    HD_TENSORBOARD_HPARAMS_MAX = 64, /* hyper-parameters of a run */
    HD_TENSORBOARD_TEXT_MAX = 120,   /* bytes of a hyper-parameter that is a text */
    /* bytes of a sample's text; of a longer one its beginning is written */
    HD_TENSORBOARD_SAMPLE_MAX = 16384,
};

struct hd_tensorboard;

struct hd_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored as float */
};

/* One hyper-parameter of a run, for TensorBoard's tab HPARAMS. */
struct hd_hparam {
    const char *key;  /* "train.lr.peak"; at most HD_TENSORBOARD_TAG_MAX bytes */
    const char *text; /* its value, cut to HD_TENSORBOARD_TEXT_MAX bytes; NULL: `number` */
    double number;
    bool is_bool; /* `number` is 0 or 1, and means false or true */
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

/* Writes that a session with these hyper-parameters has begun. TensorBoard keeps those of a
 * directory's first file, so a later attempt adds nothing. Fails as hd_tensorboard_add. */
enum hd_status hd_tensorboard_begin_session(struct hd_tensorboard *board,
                                            const struct hd_hparam *hparams, size_t count);
/* Writes that the session has ended with success; an attempt that is retried ends none. Fails as
 * hd_tensorboard_add. */
enum hd_status hd_tensorboard_end_session(struct hd_tensorboard *board);
/* Writes a text (UTF-8, Markdown) for the text plugin, as hd_tensorboard_add does. */
enum hd_status hd_tensorboard_add_text(struct hd_tensorboard *board, int64_t step, const char *tag,
                                       const char *text);

void hd_tensorboard_close(struct hd_tensorboard *board); /* NULL is fine */

#endif
