/* language: what makes ids of texts for a model, and texts of its ids: its tokenizer, its chat
 * template, and the tokens with which it ends.
 *
 * Tokenizer, template and generation_config.json are those beside the model folder, or those of the
 * checkpoint's job (and of the folder with which it began).
 *
 * Used by: choices, worker, serve.   Uses: train (decoder, job_chat), data, chat, tokenizer.
 * Threads: one at a time; the tokenizer alone may be used by others, too.
 */
#ifndef HD_GENERATE_LANGUAGE_H
#define HD_GENERATE_LANGUAGE_H

#include <stdbool.h>

#include "generate/stops.h"
#include "tokenizer/tokenizer.h"
#include "train/decoder.h"

struct hd_language;

/* dir: from which the decoder was opened. HD_UNSUPPORTED, HD_INVALID: no tokenizer is named. */
enum hd_status hd_language_open(const struct hd_decoder *decoder, const char *dir,
                                struct hd_language **ret_language);
void hd_language_close(struct hd_language *language); /* NULL is fine */

const struct hd_tokenizer *hd_language_tokenizer(const struct hd_language *language);
/* The tokens that end a text; behind hd_language_open_chat hd_language_chat_stops has those that
 * end an answer. */
const struct hd_stops *hd_language_stops(const struct hd_language *language);
const struct hd_stops *hd_language_chat_stops(const struct hd_language *language);

/* Appends the ids of a text, without a token in front. HD_INVALID: the text cannot be encoded, or
 * the model does not have one of its tokens. */
enum hd_status hd_language_encode(struct hd_language *language, const char *text, size_t text_bytes,
                                  struct hd_id_list *ids);
/* Encodes like hd_language_encode, and adds the tokens that the tokenizer puts around a text where
 * special tokens are asked for, as transformers does by default. Adds none where the text begins
 * with hd_language_begin, as lm-evaluation-harness does. */
enum hd_status hd_language_encode_whole(struct hd_language *language, const char *text,
                                        size_t text_bytes, struct hd_id_list *ids);
/* Returns the token with which a text without a prompt begins: the model's bos_token, else the one
 * that ends its documents; -1: it has neither. */
int32_t hd_language_begin(const struct hd_language *language);
/* Returns the special tokens of the model, with notes for people. */
const struct hd_special *hd_language_special(const struct hd_language *language);

/* template_path: NULL: the job's, or the folder's. date: what the template gets by strftime_now
 * (chat/date.h); "": the day of each text; NULL: the job's, else the day of each text. HD_INVALID:
 * there is none; HD_UNSUPPORTED ..: it cannot be used, and the message says why. */
enum hd_status hd_language_open_chat(struct hd_language *language, const char *template_path,
                                     const char *date);
/* Appends the ids of a prompt for an answer to messages, a JSON array of {role, content}. Needs
 * hd_language_open_chat. */
enum hd_status hd_language_encode_chat(struct hd_language *language, const char *messages,
                                       size_t messages_bytes, struct hd_id_list *ids);

#endif
