/* kind: tells the kind of a data file by its name and its first bytes.
 *
 * A file is text, lines (.jsonl), or tokens (.npy, .bin). Any other file, such as a compressed file
 * or a picture, is refused; the message names its kind and what to do about it. Training on its
 * bytes as if they were text would waste the run without an error.
 *
 * Used by: data, spec, train, worker.   Uses: base.   Threads: any.
 */
#ifndef HD_DATA_KIND_H
#define HD_DATA_KIND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum hd_data_kind {
    HD_DATA_TEXT,
    HD_DATA_LINES, /* .jsonl, .ndjson; .json with one object per line */
    HD_DATA_NPY,   /* .npy: NumPy array of token ids */
    HD_DATA_BIN    /* .bin: llm.c's, or Megatron's if an .idx is beside it */
};

enum { HD_DATA_HEAD_BYTES = 4096 }; /* bytes at the start of a file that tell its kind */

/* Returns the kind of a data file by its name, ignoring case; for .json, also by its first bytes.
 * Meaningless for a file that hd_data_check_kind refuses. */
enum hd_data_kind hd_data_kind_of(const char *path);
bool hd_data_is_lines(const char *path);
bool hd_data_is_tokens(const char *path);

/* Refuses text and .jsonl files that are of another kind than their name says. head: the first
 * HD_DATA_HEAD_BYTES bytes of the file, or all if it has fewer. Token files (.npy, .bin) always
 * pass. HD_INVALID: the message begins with the path. */
enum hd_status hd_data_check_kind(const char *path, const void *head, size_t bytes);
/* Checks the first bytes of a text or .jsonl file as hd_data_check_kind does; also refuses NUL
 * bytes, which no text has. Fails with HD_NOT_FOUND, HD_IO or HD_INVALID. */
enum hd_status hd_data_look(const char *path);
/* Returns the kind that the first bytes of a damaged token file show, such as "a gzip file"; sets
 * *ret_remedy to advice for the user. NULL: the bytes show no known kind. */
const char *hd_data_foreign_kind(const void *head, size_t bytes, const char *path,
                                 const char **ret_remedy);

#endif
