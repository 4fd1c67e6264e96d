/* kind: tells the kind of a data file by its first bytes, then by its name.
 *
 * A file is text, records, or tokens (.npy, .bin). Text and records may be compressed by gzip or
 * Zstandard. Any other file, such as a picture or an archive, is refused; the message names its
 * kind and what to do about it. Training on its bytes as if they were text would waste the run
 * without an error.
 *
 * Used by: data, spec, train, worker.   Uses: base.   Threads: any.
 */
#ifndef HD_RECORDS_KIND_H
#define HD_RECORDS_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum hd_data_kind {
    HD_DATA_TEXT,
    /* files of records, first to last */
    HD_DATA_LINES, /* a JSON object per line: .jsonl, .ndjson, and such .json */
    HD_DATA_JSON,  /* an array of JSON objects, or objects over several lines */
    HD_DATA_CSV,   /* a table with commas, its names in the first row */
    HD_DATA_TSV,   /* a table with tabs */
    HD_DATA_PARQUET,
    HD_DATA_ARROW, /* Arrow IPC, as a file or a stream */
    /* files of tokens */
    HD_DATA_NPY, /* .npy: NumPy array of token ids */
    HD_DATA_BIN  /* .bin: llm.c's, or Megatron's if an .idx is beside it */
};

enum { HD_DATA_HEAD_BYTES = 4096 }; /* bytes at the start of a file that tell its kind */

enum hd_data_packing { HD_DATA_UNPACKED, HD_DATA_GZIP, HD_DATA_ZSTD };

/* Facts that the first bytes and the name of a data file tell. A caller that needs them more than
 * once keeps them, as each look opens the file. */
struct hd_data_facts {
    enum hd_data_kind kind; /* of the bytes behind decompression */
    enum hd_data_packing packing;
};

/* Returns the kind that the name of a file tells, without .gz or .zst; reads nothing. */
enum hd_data_kind hd_data_name_kind(const char *path);
/* returns whether the name is one of a token file; reads nothing */
bool hd_data_is_tokens(const char *path);
bool hd_data_kind_has_records(enum hd_data_kind kind);

/* Returns the kind of a data file, by its first bytes and its name without a .gz or .zst; by its
 * name alone if it cannot be read. Meaningless for a file that hd_data_look refuses. */
enum hd_data_kind hd_data_kind_of(const char *path);
bool hd_data_has_records(const char *path);
/* Returns whether the file is text whose bytes are read as they are: neither tokens, nor records,
 * nor compressed. */
bool hd_data_is_plain(const char *path);

/* Returns the name of a kind, for people: "jsonl", "parquet", "csv". */
const char *hd_data_kind_name(enum hd_data_kind kind);

/* Reads the first bytes of a file and refuses it if it is of a kind that is not read, if its bytes
 * contradict its name, or if there are NUL bytes in text. Token files (.npy, .bin) always pass.
 * Fails with HD_NOT_FOUND, HD_IO or HD_INVALID; the message of the latter begins with the path. */
enum hd_status hd_data_look(const char *path, struct hd_data_facts *ret_facts);
/* Checks the first bytes of a text that is not compressed as hd_data_look does, but for NUL.
 * head: the first HD_DATA_HEAD_BYTES bytes of the file, or all if it has fewer. */
enum hd_status hd_data_check_kind(const char *path, const void *head, size_t bytes);

/* Does what hd_data_look does, and refuses text of which more than one byte in a hundred belongs to
 * no UTF-8 character, in samples spread over the file: it is in another encoding, or no text. */
enum hd_status hd_data_check_text(const char *path, struct hd_data_facts *ret_facts);

/* Returns the kind that the first bytes of a damaged token file show, such as "a gzip file"; sets
 * *ret_remedy to advice for the user. NULL: the bytes show no known kind. */
const char *hd_data_foreign_kind(const void *head, size_t bytes, const char *path,
                                 const char **ret_remedy);

#endif
