/* kind: what a data file is, by its name and its first bytes.
 *
 * A file is text, lines (.jsonl), or tokens (.npy, .bin). What is none of these, such as a
 * compressed file or a picture, is refused by its kind with what to do about it: training on its
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

/* The kind by the name, in letters of either case; a .json is opened. Of a file that
 * hd_data_check_kind refuses it tells nothing. */
enum hd_data_kind hd_data_kind_of(const char *path);
bool hd_data_is_lines(const char *path);
bool hd_data_is_tokens(const char *path);

/* head: the first bytes of the file, HD_DATA_HEAD_BYTES where it has as many. Only text and lines
 * are looked at, and token files that have no such head. HD_INVALID: it is neither; the message
 * begins with the path. */
enum hd_status hd_data_check_kind(const char *path, const void *head, size_t bytes);
/* Reads the head of text or lines, and checks it; a NUL byte is refused as well, which no text has.
 * HD_NOT_FOUND, HD_IO, HD_INVALID. */
enum hd_status hd_data_look(const char *path);
/* What a token file of that name is if it is none, as "a gzip file"; NULL: not known. */
const char *hd_data_foreign_kind(const void *head, size_t bytes, const char *path);

#endif
