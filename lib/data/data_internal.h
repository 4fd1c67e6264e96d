/* data_internal: what the files of this folder share. */
#ifndef HD_DATA_DATA_INTERNAL_H
#define HD_DATA_DATA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "data/data.h"

/* A walk over the tokens of a corpus that says where documents end. Start it at a token, then give
 * it each token in turn. */
struct hd_document_walk {
    const struct hd_corpus *corpus;
    int64_t place; /* of the token to come */
    int64_t next;  /* the first later token that begins a document by file or index */
};

struct hd_document_walk hd_document_walk(const struct hd_corpus *corpus, int64_t first);
/* Is `token`, the walk's next one, the last of its document? Never, unless documents are bounded.
 */
bool hd_document_walk_ends(struct hd_document_walk *walk, int32_t token);

/* How many whole windows of `context` tokens, each with one more for its last target, a range
 * holds. */
static inline int64_t hd_data_window_count(int64_t token_count, int64_t context)
{
    return token_count > 0 ? (token_count - 1) / context : 0;
}

/* ---- .jsonl: a document in each line (jsonl.c) ---- */

enum { HD_JSONL_LINE_BYTES_MAX = 256 << 20 };

/* Such a line is no document. It is given without its newline. */
bool hd_jsonl_is_blank(const char *line, size_t bytes);
/* The text of a line, in `arena`: the string under `key`. The caller names file and line. */
enum hd_status hd_jsonl_text(struct hd_arena *arena, const char *line, size_t bytes,
                             const char *key, const char **ret_text);

#endif
