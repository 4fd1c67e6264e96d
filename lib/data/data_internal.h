/* data_internal: what the files of this folder share. */
#ifndef HD_DATA_DATA_INTERNAL_H
#define HD_DATA_DATA_INTERNAL_H

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

#endif
