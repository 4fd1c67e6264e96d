/* data_internal: what the files of this folder share. */
#ifndef HD_DATA_DATA_INTERNAL_H
#define HD_DATA_DATA_INTERNAL_H

#include "data/data.h"

/* The bytes from token `first` on that lie side by side in one file: at most count, at least 1. */
const unsigned char *hd_corpus_span(const struct hd_corpus *corpus, int64_t first, int64_t count,
                                    int64_t *ret_count);

/* How many whole windows of `context` tokens, each with one more for its last target, a range
 * holds. */
static inline int64_t hd_data_window_count(int64_t token_count, int64_t context)
{
    return token_count > 0 ? (token_count - 1) / context : 0;
}

#endif
