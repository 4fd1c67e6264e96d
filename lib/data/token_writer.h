/* token_writer: writes token ids to a token file (token_file.h) in one of four formats.
 *
 * Atomic and durable: the file is written under a temporary name, flushed and renamed; after a
 * failure the old file is unchanged. Megatron's format has two files: an old .idx is removed
 * first and the new one is renamed last, each durably before the next step, so an .idx always
 * belongs to the .bin beside it, also after a power cut.
 *
 * Used by: tokenize.   Uses: base.   Threads: one owner.
 */
#ifndef HD_DATA_TOKEN_WRITER_H
#define HD_DATA_TOKEN_WRITER_H

#include <stdint.h>

#include "base/status.h"

enum hd_token_format {
    HD_TOKEN_FORMAT_NPY,      /* NumPy array of one dimension, uint16 or uint32 */
    HD_TOKEN_FORMAT_LLMC,     /* llm.c's .bin with 16-bit or 32-bit ids */
    HD_TOKEN_FORMAT_MEGATRON, /* .bin and .idx: one sequence per document */
    HD_TOKEN_FORMAT_COUNTS,   /* .bin and .idx of version 2: also which tokens count for the loss */
};

struct hd_token_writer;

/* Opens a writer. out: the path of the file; with an index, the path without .bin and .idx.
 * id_bytes: 2 or 4. HD_INVALID: `out` exists and is not a regular file; or the format is llm.c and
 * an .idx of Megatron is beside it. */
enum hd_status hd_token_writer_open(const char *out, enum hd_token_format format, int id_bytes,
                                    struct hd_token_writer **ret_writer);

/* Adds token ids to the current document of the file. */
enum hd_status hd_token_writer_add(struct hd_token_writer *writer, const int32_t *ids,
                                   int64_t count);
enum hd_status hd_token_writer_end_document(struct hd_token_writer *writer);

/* Adds a whole document of at most INT32_MAX ids, and for each id whether it counts for the loss (0
 * or 1). Only for HD_TOKEN_FORMAT_COUNTS. HD_LIMIT: the document is longer. */
enum hd_status hd_token_writer_add_document(struct hd_token_writer *writer, const int32_t *ids,
                                            const char *counts, int64_t count);

/* Completes the file, flushes it and renames it to its final name. Frees the writer, also on
 * failure. */
enum hd_status hd_token_writer_finish(struct hd_token_writer *writer);
/* Removes the temporary files and frees the writer; NULL is fine. */
void hd_token_writer_drop(struct hd_token_writer *writer);

#endif
