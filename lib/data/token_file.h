/* token_file: parsers of token files. Pure functions over mapped memory.
 *
 *   .npy              a one-dimensional array (NumPy's format, versions 1.0 to 3.0), little-endian,
 *                     u1, u2, u4, i4 or i8
 *   .bin, llm.c       256 x int32: 20240520, 1, count (16-bit ids) or 20240801, 7, count (32-bit)
 *   .bin with .idx    Megatron's indexed dataset. .bin: only ids. .idx: "MMIDIDX\0\0", version 1
 *                     (u64), type (u8), sequences (u64), documents + 1 (u64), lengths (i32 each),
 *                     pointers (i64 each, in bytes), document index (i64 each, in sequences), and
 *                     for multimodal data one byte per sequence. Version 2, Heddle's own: each
 *                     document is a conversation, and the index ends with one bit per token,
 *                     lowest bit first: whether the token counts for the loss. Megatron refuses
 *                     version 2, so no program trains on it without these bits
 *
 * Opening checks every number that later reads depend on, so later reads of an accepted file stay
 * inside the mapped memory.
 *
 * Used by: data, worker, the fuzz target.   Uses: base.   Threads: pure functions.
 */
#ifndef HD_DATA_TOKEN_FILE_H
#define HD_DATA_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum hd_token_type {
    HD_TOKEN_U8,
    HD_TOKEN_I16,
    HD_TOKEN_U16,
    HD_TOKEN_I32,
    HD_TOKEN_U32,
    HD_TOKEN_I64,
    HD_TOKEN_TYPE_COUNT
};

/* The tokens of one file, in the caller's mapped memory. */
struct hd_token_view {
    const char *kind; /* name for messages: "text", "npy", "llm.c", "megatron" or "conversations" */
    enum hd_token_type type;
    const unsigned char *tokens; /* token ids as stored; may be unaligned */
    int64_t count;
    /* Megatron's tables of sequences and documents; NULL: the file has none */
    const unsigned char *pointers, *documents;
    int64_t sequence_count, document_count;
    const unsigned char *counts; /* one bit per token: whether it counts for the loss; NULL: all
                                    count */
};

int hd_token_type_bytes(enum hd_token_type type);

/* Sets ret_name to the path of the .idx beside a .bin; "" if the path does not end in .bin. */
enum hd_status hd_token_index_name(const char *path, struct hd_text *ret_name);

/* Returns a view of text, with one token per byte. */
struct hd_token_view hd_token_view_text(const void *bytes, int64_t size_bytes);

enum { HD_NPY_HEAD_BYTES = 128 };
/* Formats the head of an .npy array in C order. descr: type of the elements, "<f4"; shape: lengths as in
 * a tuple of Python, "3, 4" or "3,". */
void hd_npy_format_head(const char *descr, const char *shape, char ret_head[HD_NPY_HEAD_BYTES]);

/* Parse a token file; the view points into `bytes`. HD_INVALID: damaged. HD_UNSUPPORTED: valid, but
 * of a version or type that is not read. The message does not name the file; the caller adds the
 * name. */
enum hd_status hd_token_view_npy(const void *bytes, int64_t size_bytes,
                                 struct hd_token_view *ret_view);
enum hd_status hd_token_view_llmc(const void *bytes, int64_t size_bytes,
                                  struct hd_token_view *ret_view);
/* Parses a file of Megatron; the view points into `bytes` and `index`, the .idx file. Its sequences
 * must be contiguous and cover `bytes`. Fails like hd_token_view_npy. */
enum hd_status hd_token_view_megatron(const void *bytes, int64_t size_bytes, const void *index,
                                      int64_t index_bytes, struct hd_token_view *ret_view);

/* Returns the value of token number `place` as stored in the file, perhaps no valid id. */
int64_t hd_token_at(const struct hd_token_view *view, int64_t place);

/* Reads tokens [first, first + count) as ids; values outside 0 .. INT32_MAX become -1. Returns the
 * largest id as unsigned, so that one comparison with the vocabulary detects any invalid id. */
uint32_t hd_token_read(const struct hd_token_view *view, int64_t first, int64_t count,
                       int32_t *ret_ids);

/* Returns whether token number `place` counts for the loss. */
static inline bool hd_token_counts(const struct hd_token_view *view, int64_t place)
{
    return !view->counts || (view->counts[place / 8] >> (place % 8) & 1);
}

/* Returns the index of the first token of document d; view->count for d = document_count. */
int64_t hd_token_document_start(const struct hd_token_view *view, int64_t d);

/* Returns the index of the first token after `place` that begins a document; view->count: none. */
int64_t hd_token_next_document(const struct hd_token_view *view, int64_t place);

#endif
