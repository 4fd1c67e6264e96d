/* tokenizer: text to token ids and back.
 *
 * "bytes" has one token per byte. The path of a tokenizer.json opens a BPE: byte-level (as of
 * GPT-2, Llama-3 and Qwen), with byte fallback (Llama-2, Mistral, Gemma) or of characters. It gives
 * the same ids as transformers' AutoTokenizer with add_special_tokens=False: special tokens in the
 * text are recognised (not with split_special_tokens: true in tokenizer_config.json), and none are
 * added. Tokens that only the files beside it name (companions.h)
 * are tokens, too. A setting of the file that is not supported is an error that names it. Two
 * differences, both errors here instead of silent loss: text that is not UTF-8, and a character
 * without a token where the file has no unk_token.
 *
 * Used by: data, train, worker.   Uses: base; PCRE2 and utf8proc if found at build time.
 * Threads: a tokenizer is immutable; each thread that encodes needs its own encoder.
 */
#ifndef HD_TOKENIZER_H
#define HD_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { HD_TOKENIZER_FILE_BYTES_MAX = 256 << 20 };

struct hd_tokenizer;
struct hd_encoder;

/* `name`: "bytes", or the path of a tokenizer.json (with a '/', or ending in ".json").
 * HD_NOT_FOUND: no such file. HD_INVALID, HD_UNSUPPORTED and HD_LIMIT name the file and the key. */
enum hd_status hd_tokenizer_open(const char *name, struct hd_tokenizer **ret_tokenizer);
void hd_tokenizer_close(struct hd_tokenizer *tokenizer); /* NULL is fine */

const char *hd_tokenizer_name(const struct hd_tokenizer *tokenizer); /* as it was opened */
int32_t hd_tokenizer_vocab(const struct hd_tokenizer *tokenizer);    /* the largest id + 1 */

/* Returns the files beside its tokenizer.json; NULL: it is "bytes". special.h decides what follows
 * from them. */
struct hd_companions;
const struct hd_companions *hd_tokenizer_companions(const struct hd_tokenizer *tokenizer);
/* Returns whether an id is a special token, which the text of a message never becomes. */
bool hd_tokenizer_is_special(const struct hd_tokenizer *tokenizer, int32_t id);
/* Return the ids that tokenizer.json's post_processor puts in front of and behind one text where
 * special tokens are asked for; transformers ignores add_bos_token if there is a tokenizer.json.
 * The encoder below never adds them. */
const int32_t *hd_tokenizer_before(const struct hd_tokenizer *tokenizer, int *ret_count);
const int32_t *hd_tokenizer_behind(const struct hd_tokenizer *tokenizer, int *ret_count);

/* The id of a token by its content as written in tokenizer.json, or -1; and the reverse, or NULL.
 * For "bytes" always -1 and NULL. */
int32_t hd_tokenizer_find(const struct hd_tokenizer *tokenizer, const char *content);
const char *hd_tokenizer_content(const struct hd_tokenizer *tokenizer, int32_t id);

/* Appends the text of the ids as the reference decodes it with skip_special_tokens=False: broken
 * characters become U+FFFD, and a space that the tokenizer puts in front of a text is left out. The
 * ids of "bytes" give their bytes. HD_INVALID names an id that is not a token. */
enum hd_status hd_tokenizer_decode(const struct hd_tokenizer *tokenizer, const int32_t *ids,
                                   size_t count, struct hd_text *ret_text);

/* Appends the bytes of an id that follows others, for text that is written token by token. They may
 * end inside a UTF-8 character. */
enum hd_status hd_tokenizer_decode_next(const struct hd_tokenizer *tokenizer, int32_t id,
                                        struct hd_text *ret_bytes);

/* A growing array of ids. Initialise with {0}. */
struct hd_id_list {
    int32_t *ids;
    size_t count, capacity; /* used; allocated */
};

/* Allocates space for `more` further ids. */
enum hd_status hd_id_list_reserve(struct hd_id_list *list, size_t more);
void hd_id_list_free(struct hd_id_list *list); /* frees the memory; the list may be used again */

/* The working memory of one thread: at most some tens of MB, and more in proportion to one text.
 * The tokenizer must outlive it. */
enum hd_status hd_encoder_new(const struct hd_tokenizer *tokenizer,
                              struct hd_encoder **ret_encoder);
void hd_encoder_free(struct hd_encoder *encoder); /* NULL is fine */

/* Appends the ids of `text` to the list. HD_INVALID, with the byte offset: invalid UTF-8 (not for
 * "bytes"), or a byte without a token. After a failure the list may have some of the ids. */
enum hd_status hd_encoder_add(struct hd_encoder *encoder, const void *text, size_t text_bytes,
                              struct hd_id_list *list);

/* Places in a text that are followed through its encoding. Offsets are in bytes, ascending. */
struct hd_encoder_mark {
    size_t at;    /* less than the size of the text */
    bool is_end;  /* of a span; else its beginning: a space that the tokenizer puts in front belongs
                     to  the first character */
    size_t token; /* set: index in the list of the token that holds this byte; where none does, as
                     in white space that an added token takes up, of the next one */
};

struct hd_encoder_places {
    const size_t *guards; /* no special token may begin at one or reach over it */
    size_t guard_count;
    struct hd_encoder_mark *marks;
    size_t mark_count;
};

/* As hd_encoder_add, and follows the places. Where characters of the text become one, or one
 * becomes several, all of the text belong to all that they became. */
enum hd_status hd_encoder_add_places(struct hd_encoder *encoder, const void *text,
                                     size_t text_bytes, struct hd_encoder_places *places,
                                     struct hd_id_list *list);

/* Finds the first offset >= *at at which the text spells a special token, or the beginning of one
 * up to the end of the text. Special: "special" in tokenizer.json. False: there is none, or no text
 * becomes a special token (split_special_tokens). */
bool hd_tokenizer_find_special(const struct hd_tokenizer *tokenizer, const char *text,
                               size_t text_bytes, size_t *at);

/* The first offset >= max(from, 1) at which a text that begins with `text` may be cut so that the
 * ids of both parts, concatenated, are those of the whole text. 0: none; many tokenizers allow no
 * cut at all. cut.c explains why. */
size_t hd_tokenizer_cut(const struct hd_tokenizer *tokenizer, const void *text, size_t text_bytes,
                        size_t from);

/* ---- printing ---- */

/* Converts a stream of bytes, in pieces of any size, to UTF-8 that is safe to print: invalid bytes
 * and control characters other than newline and tab become U+FFFD, so that the output of a model
 * cannot control a terminal. Initialise with {0}. */
struct hd_utf8_printer {
    unsigned char pending[4];
    size_t pending_count;
};

void hd_utf8_printer_add(struct hd_utf8_printer *printer, const void *bytes, size_t count,
                         struct hd_text *ret_text);
void hd_utf8_printer_end(struct hd_utf8_printer *printer, struct hd_text *ret_text);

#endif
