/* stops: the tokens at which generation ends.
 *
 * The stop tokens of tokenizer/special.h: eos_token_id of the model's files, else the tokenizer's
 * eos_token; for a checkpoint also the token with which its job ended documents; in a chat also
 * eos_token and the token that the template writes behind an answer.
 *
 * Used by: generator, speech.   Uses: chat, data, tokenizer.   Threads: any. */
#ifndef HD_TRAIN_STOPS_H
#define HD_TRAIN_STOPS_H

#include <stdbool.h>

#include "data/conversations.h"
#include "tokenizer/special.h"

enum { HD_STOPS_MAX = HD_SPECIAL_STOPS_MAX + 4 };

struct hd_stops { /* A set of stop tokens; to be initialised with {0}. */
    int32_t ids[HD_STOPS_MAX];
    int count;
};

bool hd_stops_has(const struct hd_stops *stops, int32_t id);
void hd_stops_add(struct hd_stops *stops, int32_t id); /* adds a stop token to the set; id -1 is
                                                          ignored */

/* Adds to *stops the tokens that end an answer in a chat with this template. */
enum hd_status hd_stops_add_chat(struct hd_conversation_encoder *encoder,
                                 const struct hd_chat *chat, const struct hd_tokenizer *tokenizer,
                                 struct hd_stops *stops);

#endif
