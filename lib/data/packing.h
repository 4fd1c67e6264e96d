/* packing: puts whole conversations into windows of `context` tokens.
 *
 * Best-fit decreasing: conversations are taken by length, longest first, and each goes into the
 * window with the fewest free rows that suffice (Johnson 1973: at most 11/9 of the fewest windows,
 * and two more). Conversations of equal length are taken in the order of a keyed permutation.
 * Windows are numbered by the first conversation in them. So the result is a function of the
 * lengths and the seed, and every rank computes the same windows.
 *
 * A conversation of n tokens takes n rows. A pair of answers (hd_corpus_set_pairs) is placed as one
 * conversation: both answers are in one window. Memory: 24 bytes per conversation, 8 per window.
 *
 * Used by: train, sampler.   Uses: base, data.   Threads: immutable after hd_packing_new.
 */
#ifndef HD_DATA_PACKING_H
#define HD_DATA_PACKING_H

#include "data/data.h"

enum hd_too_long {
    HD_TOO_LONG_ERROR,
    HD_TOO_LONG_DROP, /* a conversation longer than the context is left out */
    /* a conversation longer than the context ends after the last answer that fits entirely; if none
     * fits, it is left out. A conversation in which all tokens count is cut at the window's end. */
    HD_TOO_LONG_CUT,
};

struct hd_packing_facts {
    int64_t context, windows;
    int64_t conversations; /* conversations in the windows; for pairs, the number of pairs */
    bool pairs;
    /* of unpaired answers (hd_corpus_set_unpaired): number of desirable and of undesirable ones, and of
     * windows with one pair alone, whose prompts have no other answer */
    int64_t desirable, undesirable, lone;
    int64_t tokens;  /* tokens of conversations in all windows; the other rows are padding */
    int64_t targets; /* tokens in all windows that are targets */
    /* number of conversations longer than context; of those left out; of those shortened */
    int64_t too_long, dropped, cut;
    /* number of conversations without a token that counts for the loss; they are left out */
    int64_t silent;
    /* first conversation longer than context, if too_long > 0 */
    struct hd_conversation_place first_long;
    int64_t longest; /* tokens of the longest conversation in the range */
};

struct hd_packing;

/* Packs the conversations of the range. HD_INVALID: a conversation is longer than `context` and
 * too_long is HD_TOO_LONG_ERROR (the message says how many, and names the first), or no
 * conversation remains. HD_LIMIT: more than 2^31 - 1 conversations. */
enum hd_status hd_packing_new(struct hd_data_range range, int64_t context,
                              enum hd_too_long too_long, uint64_t seed,
                              struct hd_packing **ret_packing);
void hd_packing_free(struct hd_packing *packing); /* NULL is fine */

const struct hd_packing_facts *hd_packing_get_facts(const struct hd_packing *packing);

struct hd_packed {  /* one conversation, or the two of a pair */
    int64_t first;  /* index of its first token in the corpus */
    int32_t count;  /* number of its tokens that are in the window */
    int32_t chosen; /* number of tokens of a pair's chosen answer; 0: no pair */
};

/* Returns the number of conversations in a window; sets *ret_packed to the conversations, in
 * order. */
int64_t hd_packing_window(const struct hd_packing *packing, int64_t window,
                          const struct hd_packed **ret_packed);

#endif
