/* tokenizer: text to token ids and back.
 *
 * "bytes" has one token per byte. A path of a tokenizer.json opens a byte-level BPE (the types of
 * GPT-2, Llama-3 and Qwen) and gives the ids that Hugging Face tokenizers gives for the same file
 * with add_special_tokens=False: special tokens are recognised where the text spells them, and none
 * is added. What the file asks for and is not built here is an error that names it, never passed
 * over. Two differences, both errors in place of silent loss: text that is not UTF-8, and a byte
 * for which the vocabulary has no token.
 *
 * Used by: train, worker.   Uses: base; PCRE2 and utf8proc where they are present.
 * Threads: a tokenizer is immutable; each thread that encodes has an encoder of its own.
 */
#ifndef HD_TOKENIZER_H
#define HD_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { HD_TOKENIZER_FILE_BYTES_MAX = 256 << 20 };

struct hd_tokenizer;
struct hd_encoder;

/* `name`: "bytes", or the path of a tokenizer.json (it has a '/' or ends in ".json"). HD_NOT_FOUND:
 * there is no such file; HD_INVALID, HD_UNSUPPORTED and HD_LIMIT name the file and the key. */
enum hd_status hd_tokenizer_open(const char *name, struct hd_tokenizer **ret_tokenizer);
void hd_tokenizer_close(struct hd_tokenizer *tokenizer); /* NULL is fine */

const char *hd_tokenizer_name(const struct hd_tokenizer *tokenizer); /* as it was opened */
int32_t hd_tokenizer_vocab(const struct hd_tokenizer *tokenizer);    /* the largest id + 1 */

/* The id that ends a document, or -1. It is the first that exists, as an added token, of
 * <|endoftext|>, <|end_of_text|> and </s>: GPT-2's and Qwen's, Llama-3's, and what others use.
 * <|eot_id|> and <|im_end|> end a turn of a conversation, not a document. */
int32_t hd_tokenizer_end_of_text(const struct hd_tokenizer *tokenizer);

/* The id of a token by its content as tokenizer.json spells it, or -1; and back, or NULL. "bytes"
 * spells none. */
int32_t hd_tokenizer_find(const struct hd_tokenizer *tokenizer, const char *content);
const char *hd_tokenizer_content(const struct hd_tokenizer *tokenizer, int32_t id);

/* Adds the bytes of the ids, which may be cut inside a character. Special tokens give their
 * content. HD_INVALID names an id that is no token. */
enum hd_status hd_tokenizer_decode(const struct hd_tokenizer *tokenizer, const int32_t *ids,
                                   size_t count, struct hd_text *ret_bytes);

/* A list that grows. Start with {0}. */
struct hd_id_list {
    int32_t *ids;
    size_t count, room;
};

/* Room for so many more. */
enum hd_status hd_id_list_reserve(struct hd_id_list *list, size_t more);
void hd_id_list_free(struct hd_id_list *list); /* empty again, memory gone */

/* The scratch of one thread, at most some tens of MB besides what one text takes. The tokenizer
 * must outlive it. */
enum hd_status hd_encoder_new(const struct hd_tokenizer *tokenizer,
                              struct hd_encoder **ret_encoder);
void hd_encoder_free(struct hd_encoder *encoder); /* NULL is fine */

/* Adds the ids of `text` to the list. HD_INVALID: ill-formed UTF-8 (not for "bytes") or a byte
 * without token, with its offset. HD_NO_MEMORY: what was added before stays. */
enum hd_status hd_encoder_add(struct hd_encoder *encoder, const void *text, size_t text_bytes,
                              struct hd_id_list *list);

/* The first place at or behind `from` (and behind 0) where `text`, or a text that goes on behind
 * text_bytes, may be cut so that the ids of both parts, one behind the other, are those of the
 * whole; 0: there is none, for many tokenizers nowhere in any text. tokenizer_cut.c says why. */
size_t hd_tokenizer_cut(const struct hd_tokenizer *tokenizer, const void *text, size_t text_bytes,
                        size_t from);

/* ---- printing ---- */

/* Turns a stream of raw bytes, in pieces of any size, into text that is safe to print: valid UTF-8,
 * ill-formed bytes as U+FFFD, control characters other than newline and tab as U+FFFD too, so that
 * what a model writes cannot drive a terminal. Start with {0}. */
struct hd_utf8_printer {
    unsigned char pending[4];
    size_t pending_count;
};

void hd_utf8_printer_add(struct hd_utf8_printer *printer, const void *bytes, size_t count,
                         struct hd_text *ret_text);
void hd_utf8_printer_end(struct hd_utf8_printer *printer, struct hd_text *ret_text);

#endif
