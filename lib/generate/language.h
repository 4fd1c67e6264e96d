/* language: converts between texts and token ids for a model: its tokenizer, its chat template, and
 * its stop tokens.
 *
 * Tokenizer, template and generation_config.json come from the model folder, or from the
 * checkpoint's job (and from the folder of its base model).
 *
 * Used by: choices, worker, serve.   Uses: train (decoder, job_chat), data, chat, tokenizer.
 * Threads: one at a time; the tokenizer alone may be used by other threads, too. */
#ifndef HD_GENERATE_LANGUAGE_H
#define HD_GENERATE_LANGUAGE_H

#include <stdbool.h>

#include "chat/calls.h"
#include "tokenizer/tokenizer.h"
#include "train/decoder.h"
#include "train/questions.h"
#include "train/stops.h"

struct hd_language;

/* Sets *ret_language to the tokenizer, stop tokens and chat template of a model. dir: the folder or
 * checkpoint from which the decoder was opened. HD_UNSUPPORTED, HD_INVALID: no tokenizer is
 * named. */
enum hd_status hd_language_open(const struct hd_decoder *decoder, const char *dir,
                                struct hd_language **ret_language);
void hd_language_close(struct hd_language *language); /* NULL is fine */

const struct hd_tokenizer *hd_language_tokenizer(const struct hd_language *language);
/* Return the tokens that end a text, and, after hd_language_open_chat, those that end an answer. */
const struct hd_stops *hd_language_stops(const struct hd_language *language);
const struct hd_stops *hd_language_chat_stops(const struct hd_language *language);

/* Appends the token ids of a text to `ids`, without a special token in front. HD_INVALID: the text
 * cannot be encoded, or one of its tokens is outside the model's vocabulary. */
enum hd_status hd_language_encode(struct hd_language *language, const char *text, size_t text_bytes,
                                  struct hd_id_list *ids);
/* Returns the encoder of the model's texts. */
const struct hd_whole_encoder *hd_language_encoder(const struct hd_language *language);
/* Returns the token with which a text without a prompt begins: the model's bos_token, else the
 * token that ends its documents; -1: the model has neither. */
int32_t hd_language_begin(const struct hd_language *language);
/* Returns the special tokens of the model (tokenizer/special.h), with notes about them for a
 * user. */
const struct hd_special *hd_language_special(const struct hd_language *language);

/* Opens the chat template. template_path NULL: that of the job or the folder. date: given to the
 * template by strftime_now (chat/date.h); "": the current day at each text; NULL: the job's, else
 * the current day at each text. HD_INVALID: there is no template; HD_UNSUPPORTED and others: it
 * cannot be used, and the message says why. */
enum hd_status hd_language_open_chat(struct hd_language *language, const char *template_path,
                                     const char *date);
/* Appends the ids of a prompt for an answer to messages, a JSON array of {role, content}, or an
 * object with members messages and tools. Needs hd_language_open_chat. */
enum hd_status hd_language_encode_chat(struct hd_language *language, const char *messages,
                                       size_t messages_bytes, struct hd_id_list *ids);

/* Sets *ret_form to the form in which the model writes tool calls. Needs hd_language_open_chat.
 * HD_UNSUPPORTED: its chat template takes no tools, or has calls in another form. */
enum hd_status hd_language_call_form(struct hd_language *language, enum hd_call_form *ret_form);

#endif
