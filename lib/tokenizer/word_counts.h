/* word_counts: how often each word occurs in a corpus, in bounded memory.
 *
 * Words come from a tokenizer of hd_tokenizer_open_words, as the ids that its encoder makes. Once
 * the table is full, the rarest words are forgotten; the result then depends on the order of the
 * texts, and on nothing else.
 *
 * Used by: train, worker.   Uses: base.   Threads: one.
 */
#ifndef HD_TOKENIZER_WORD_COUNTS_H
#define HD_TOKENIZER_WORD_COUNTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Id that ends a word in the ids of a tokenizer of hd_tokenizer_open_words; smaller ids are bytes.
 */
enum { HD_WORD_END = 256 };

struct hd_word_counts {
    struct hd_word_count {
        uint64_t hash;
        uint64_t at; /* offset of the word in `bytes` */
        uint32_t len_bytes;
        int64_t count; /* occurrences; 0: free row */
    } * rows;          /* [mask + 1], a hash table; NULL: no word yet */
    uint64_t mask;
    int64_t used;         /* words in the table */
    unsigned char *bytes; /* all words one after another */
    uint64_t len_bytes, capacity_bytes;
    uint64_t bytes_max; /* most bytes of rows and words together; 0: no limit */
    int64_t forgotten;  /* occurrences of words that were dropped, because the table was full */
};

/* Adds the words in `ids`, which must end with HD_WORD_END. HD_NO_MEMORY; HD_LIMIT: a word has more
 * than 2^31 bytes. */
enum hd_status hd_word_counts_add(struct hd_word_counts *counts, const int32_t *ids, size_t count);
void hd_word_counts_free(struct hd_word_counts *counts);

#endif
