/* kind: tells the kind of a data file by its name and its first bytes.
 *
 * A file is text, lines (.jsonl), or tokens (.npy, .bin). Any other file, such as a compressed file
 * or a picture, is refused; the message names its kind and what to do about it. Training on its
 * bytes as if they were text would go wrong in silence.
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
    HD_DATA_LINES, /* .jsonl, .ndjson; .json with an object a line */
    HD_DATA_NPY,   /* .npy */
    HD_DATA_BIN    /* .bin: of llm.c, or of Megatron with an .idx beside it */
};

enum { HD_DATA_HEAD_BYTES = 4096 }; /* of a file, that tell its kind */

/* Returns the kind by the name, in either case of letters; opens a .json. The kind of a file that
 * hd_data_check_kind refuses has no meaning. */
enum hd_data_kind hd_data_kind_of(const char *path);
bool hd_data_is_lines(const char *path);
bool hd_data_is_tokens(const char *path);

/* Refuses a file that is not what its name says. head: its first bytes, HD_DATA_HEAD_BYTES if it
 * has as many. Only text, lines, and token files without such a head are looked at. HD_INVALID:
 * the message begins with the path. */
enum hd_status hd_data_check_kind(const char *path, const void *head, size_t bytes);
/* Reads the head of text or lines, and checks it. A NUL byte, which no text has, is refused too.
 * HD_NOT_FOUND, HD_IO, HD_INVALID. */
enum hd_status hd_data_look(const char *path);
/* Returns the kind that the first bytes of a damaged token file show, as "a gzip file", and what to
 * do about it; NULL: unknown. */
const char *hd_data_foreign_kind(const void *head, size_t bytes, const char *path,
                                 const char **ret_remedy);

#endif
