/* packing: puts whole conversations into windows of `context` tokens.
 *
 * Best-fit decreasing: conversations by length, longest first, each into the window with the least
 * room that is enough (Johnson 1973: at most 11/9 of the fewest windows, and two more). Of equal
 * length their order is a keyed permutation. Windows are numbered by the first conversation in
 * them. So the result is a function of the lengths and the seed, and every rank computes the same.
 *
 * A conversation of n tokens takes n rows. A pair of answers (hd_corpus_set_pairs) is one thing: it
 * takes the rows of both, in one window. Memory: 24 bytes per conversation, 8 per window.
 *
 * Used by: train, sampler.   Uses: base, data.   Threads: immutable after hd_packing_new.
 */
#ifndef HD_DATA_PACKING_H
#define HD_DATA_PACKING_H

#include "data/data.h"

enum hd_too_long {
    HD_TOO_LONG_ERROR,
    HD_TOO_LONG_DROP, /* the conversation is left out */
    HD_TOO_LONG_CUT,  /* it ends behind the last answer that fits whole; without one it is left out.
                         A  conversation of which all tokens count is cut at the window. */
};

struct hd_packing_facts {
    int64_t context, windows;
    int64_t conversations; /* in the windows; of pairs their number */
    bool pairs;
    int64_t tokens;                          /* in the windows; the rest of their rows is padding */
    int64_t targets;                         /* of these, those that count for the loss */
    int64_t too_long, dropped, cut;          /* longer than context; of these left out, and cut */
    int64_t silent;                          /* left out because no token of it counts */
    struct hd_conversation_place first_long; /* of too_long > 0 */
    int64_t longest;                         /* tokens of the longest conversation that was found */
};

struct hd_packing;

/* HD_INVALID: a conversation is longer than `context` and too_long is an error (the message has
 * their number and the place of the first), or no conversation is left. HD_LIMIT: more than 2^31.
 */
enum hd_status hd_packing_new(struct hd_data_range range, int64_t context,
                              enum hd_too_long too_long, uint64_t seed,
                              struct hd_packing **ret_packing);
void hd_packing_free(struct hd_packing *packing); /* NULL is fine */

const struct hd_packing_facts *hd_packing_get_facts(const struct hd_packing *packing);

struct hd_packed {  /* a conversation, or both of a pair */
    int64_t first;  /* of its tokens in the corpus */
    int32_t count;  /* of tokens that are used */
    int32_t chosen; /* of a pair: tokens of the first one; else 0 */
};

/* The conversations of a window, in order; returns how many. */
int64_t hd_packing_window(const struct hd_packing *packing, int64_t window,
                          const struct hd_packed **ret_packed);

#endif
