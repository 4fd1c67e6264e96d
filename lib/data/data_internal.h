/* data_internal: declarations shared by the files of this folder. */
#ifndef HD_DATA_DATA_INTERNAL_H
#define HD_DATA_DATA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "data/data.h"

/* Finds the ends of documents: start at a token, then pass each token in turn. */
struct hd_document_walk {
    const struct hd_corpus *corpus;
    int64_t place; /* of the next token */
    int64_t next;  /* the first later token that begins a document by file or index */
};

struct hd_document_walk hd_document_walk_run(const struct hd_corpus *corpus, int64_t first);
/* Whether `token`, the walk's next one, is the last of its document. False without bounds. */
bool hd_document_walk_ends(struct hd_document_walk *walk, int32_t token);

/* Returns whether an id ends documents; else their ends are known without reading tokens. */
bool hd_corpus_ends_by_token(const struct hd_corpus *corpus);

/* Returns how many of a conversation's tokens are targets: no token predicts the first one. */
int64_t hd_conversation_targets(const struct hd_corpus *corpus, int64_t first, int64_t count);

/* hd_corpus_set_reference; NULL: none. */
const float *hd_corpus_reference(const struct hd_corpus *corpus);

/* Number of whole windows; the last one needs one token more, for its last target. */
static inline int64_t hd_data_window_count(int64_t token_count, int64_t context)
{
    return token_count > 0 ? (token_count - 1) / context : 0;
}

/* ---- jsonl.c: one document per line ---- */

enum { HD_JSONL_LINE_BYTES_MAX = 256 << 20 };

/* A blank line is not a document. `line` is without its newline. */
bool hd_jsonl_is_blank(const char *line, size_t bytes);
/* Checks that the lines within the first bytes of a file are conversations, or pairs, of a form,
 * but for what a chat template makes of them. */
enum hd_status hd_jsonl_check(const char *path, enum hd_chat_form form, int64_t bytes);
/* Counts the lines that are not blank. */
enum hd_status hd_jsonl_count(const char *path, int64_t *ret_documents);
/* The number of the line, from 1, with document `document`, from 0. */
enum hd_status hd_jsonl_find_line(const char *path, int64_t document, int64_t *ret_line);
/* The text of a line: its string `key`, allocated in `arena`. The message of an error does not name
 * file and line: the caller does. */
enum hd_status hd_jsonl_text(struct hd_arena *arena, const char *line, size_t bytes,
                             const char *key, const char **ret_text);

#endif
