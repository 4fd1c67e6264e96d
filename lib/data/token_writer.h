/* token_writer: token ids, as they come, into a token file (token_file.h) of one of three formats.
 *
 * The file is written under a name of its own beside the final one, flushed and renamed: it is
 * whole and durable, or as it was before. Of Megatron's two the .idx comes last and an old one goes
 * first, so that where it is, both are whole and belong together.
 *
 * Used by: tokenize.   Uses: base.   Threads: one owner.
 */
#ifndef HD_DATA_TOKEN_WRITER_H
#define HD_DATA_TOKEN_WRITER_H

#include <stdint.h>

#include "base/status.h"

enum hd_token_format {
    HD_TOKEN_FORMAT_NPY,      /* one dimension, uint16 or uint32 */
    HD_TOKEN_FORMAT_LLMC,     /* llm.c's .bin */
    HD_TOKEN_FORMAT_MEGATRON, /* .bin and .idx: a sequence for each document */
};

struct hd_token_writer;

/* `out`: the file; for Megatron's format the path without .bin and .idx. id_bytes: 2 or 4.
 * HD_INVALID: something that is no file stands there, or, beside llm.c's, an index of Megatron's.
 */
enum hd_status hd_token_writer_open(const char *out, enum hd_token_format format, int id_bytes,
                                    struct hd_token_writer **ret_writer);

/* More ids of the present document. */
enum hd_status hd_token_writer_add(struct hd_token_writer *writer, const int32_t *ids,
                                   int64_t count);
enum hd_status hd_token_writer_end_document(struct hd_token_writer *writer);

int64_t hd_token_writer_count(const struct hd_token_writer *writer); /* of ids */

/* Frees the writer, also on failure. */
enum hd_status hd_token_writer_finish(struct hd_token_writer *writer);
void hd_token_writer_drop(struct hd_token_writer *writer); /* nothing stays; NULL is fine */

#endif
