/* stops: the tokens at which generation ends, and the chat of a model.
 *
 * They are those of eos_token_id in the model folder's generation_config.json, else config.json;
 * the tokenizer's end-of-text token; and in a chat eos_token and the token that the template writes
 * behind an answer.
 *
 * Used by: generator, speech.   Uses: chat, data, tokenizer.   Threads: any.
 */
#ifndef HD_GENERATE_STOPS_H
#define HD_GENERATE_STOPS_H

#include <stdbool.h>

#include "data/conversations.h"
#include "tokenizer/tokenizer.h"

enum { HD_STOPS_MAX = 32 };

struct hd_stops { /* initialise with {0} */
    int32_t ids[HD_STOPS_MAX];
    int count;
};

bool hd_stops_has(const struct hd_stops *stops, int32_t id);

/* dir: the model folder; NULL or "": none. Ids that the tokenizer does not have are left out. */
enum hd_status hd_stops_read(const char *dir, const struct hd_tokenizer *tokenizer,
                             struct hd_stops *stops);
/* Adds those of a chat. */
enum hd_status hd_stops_add_chat(struct hd_conversation_encoder *encoder,
                                 const struct hd_chat *chat, const struct hd_tokenizer *tokenizer,
                                 struct hd_stops *stops);

#endif
