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
    HD_TOO_LONG_DROP, /* leaves the conversation out */
    HD_TOO_LONG_CUT,  /* ends the conversation after the last answer that fits entirely; without
                         one, leaves it out. A conversation in which all tokens count is cut at the
                         window's end. */
};

struct hd_packing_facts {
    int64_t context, windows;
    int64_t conversations; /* conversations in the windows; for pairs, the number of pairs */
    bool pairs;
    int64_t tokens;                          /* tokens in the windows; the other rows are padding */
    int64_t targets;                         /* tokens in the windows that are targets */
    int64_t too_long, dropped, cut;          /* conversations longer than context; dropped; cut */
    int64_t silent;                          /* conversations without a token that counts */
    struct hd_conversation_place first_long; /* first longer than context, if too_long > 0 */
    int64_t longest;                         /* tokens of the longest conversation in the range */
};

struct hd_packing;

/* Packs the conversations of the range. HD_INVALID: a conversation is longer than `context` and
 * too_long is HD_TOO_LONG_ERROR (the message says how many, and names the first), or no
 * conversation is left. HD_LIMIT: more than 2^31 - 1 conversations. */
enum hd_status hd_packing_new(struct hd_data_range range, int64_t context,
                              enum hd_too_long too_long, uint64_t seed,
                              struct hd_packing **ret_packing);
void hd_packing_free(struct hd_packing *packing); /* NULL is fine */

const struct hd_packing_facts *hd_packing_get_facts(const struct hd_packing *packing);

struct hd_packed {  /* one conversation, or the two of a pair */
    int64_t first;  /* index of its first token in the corpus */
    int32_t count;  /* its tokens that are in the window */
    int32_t chosen; /* tokens of the chosen answer of a pair; 0: no pair */
};

/* Returns the number of conversations in a window; *ret_packed: the conversations, in order. */
int64_t hd_packing_window(const struct hd_packing *packing, int64_t window,
                          const struct hd_packed **ret_packed);

#endif
