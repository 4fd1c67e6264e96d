#ifndef HD_DATA_DATA_INTERNAL_H
#define HD_DATA_DATA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "data/bad_rows.h"
#include "data/data.h"

/* Iterator that finds the ends of documents in a corpus: it starts at a token, and
 * hd_document_walk_ends gets each later token in turn. */
struct hd_document_walk {
    const struct hd_corpus *corpus;
    int64_t place; /* index in the corpus of the next token */
    int64_t next;  /* index of the next later token that begins a document by file or Megatron's
                      index */
};

struct hd_document_walk hd_document_walk_run(const struct hd_corpus *corpus, int64_t first);
/* Returns whether `token`, the next token of the walk, is the last of its document, and moves on.
 * Always false without document bounds. */
bool hd_document_walk_ends(struct hd_document_walk *walk, int32_t token);

/* Returns whether an end-of-text id ends documents; if not, documents end with files and by
 * Megatron's indexes, so no token must be read. */
bool hd_corpus_ends_by_token(const struct hd_corpus *corpus);

/* Returns the number of targets among `count` tokens of a conversation; its first token is no
 * target, since no token predicts it. */
int64_t hd_conversation_targets(const struct hd_corpus *corpus, int64_t first, int64_t count);

/* Returns the log-probabilities that hd_corpus_set_mismatched_reference set; NULL: none. */
const float *hd_corpus_mismatched_reference(const struct hd_corpus *corpus);
/* Returns the log-probabilities that hd_corpus_set_reference set; NULL: none. */
const float *hd_corpus_reference(const struct hd_corpus *corpus);

/* Returns the number of whole windows of `context` tokens in token_count tokens. The last window
 * needs one token more, for its last target. */
static inline int64_t hd_data_window_count(int64_t token_count, int64_t context)
{
    return token_count > 0 ? (token_count - 1) / context : 0;
}

/* ---- jsonl.c: one document per line, or per record of a container as a line ---- */

/* Most bytes of a record as a line, so that several copies of it, as text and as parsed values, fit
 * in 256 MiB. */
enum { HD_JSONL_LINE_BYTES_MAX = 64 << 20 };
#define HD_JSONL_LINE_TEXT "64 MiB"

/* Returns whether the line, given without its newline, is blank; a blank line is no document. */
bool hd_jsonl_is_blank(const char *line, size_t bytes);
/* The records of a file that are checked. */
struct hd_jsonl_sample {
    int64_t bytes; /* only records in the first `bytes` */
    int64_t every; /* one in `every` of these, at least 1; always the first and the file's last */
};

/* Checks that records are conversations (or pairs, or texts) of the form. Renders no chat template,
 * so it does not find what a template would refuse. Sets *ret_documents to the number of records of
 * the whole file. Notes at most HD_BAD_ROWS_SHOWN bad records in `bad`, and then only counts; bad
 * NULL: the first bad record is an error. */
enum hd_status hd_jsonl_check(const char *path, const struct hd_row_rules *rows,
                              enum hd_chat_form form, struct hd_jsonl_sample sample,
                              struct hd_bad_rows *bad, int64_t *ret_documents);
/* Sets *ret_line to the number, from 1, of the line or record that is document number `document`,
 * from 0, of a file, and *ret_unit to the word in front of it (hd_records_unit). */
enum hd_status hd_jsonl_find_line(const char *path, int64_t document, const char **ret_unit,
                                  int64_t *ret_line);
/* Parses a line of a .jsonl file and sets *ret_text to the string in its member `text`, allocated in
 * `arena`. The error message does not name file and line; the caller adds them. */
enum hd_status hd_jsonl_text(struct hd_arena *arena, const char *line, size_t bytes,
                             const char **ret_text);

#endif
