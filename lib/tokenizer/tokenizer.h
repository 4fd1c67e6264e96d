/* tokenizer: encodes text to token ids and decodes ids to text.
 *
 * "bytes" has one token per byte. The path of a tokenizer.json opens a BPE: byte-level (as of
 * GPT-2, Llama-3 and Qwen), with byte fallback (Llama-2, Mistral, Gemma) or of characters, or a
 * model of type Unigram (T5, XLM-R). It gives the same ids as transformers' AutoTokenizer with
 * add_special_tokens=False: special tokens in the text are recognised (not with
 * split_special_tokens: true in tokenizer_config.json), and none are added. Tokens that only the
 * files beside it name (companions.h) are tokens, too. The path of a tokenizer.model opens a
 * SentencePiece model (sentencepiece.h), with the ids of that library. A setting of the file that
 * is not supported is an error that names the setting. Two cases in which the reference silently
 * loses text are errors here: text that is not UTF-8, and a character without a token if the file
 * has no unk_token.
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

/* Opens a tokenizer. name: "bytes", or the path of a tokenizer.json or tokenizer.model (with a '/',
 * or ending in ".json" or ".model"). HD_NOT_FOUND: no such file. HD_INVALID, HD_UNSUPPORTED and
 * HD_LIMIT: the message names file and key. */
enum hd_status hd_tokenizer_open(const char *name, struct hd_tokenizer **ret_tokenizer);
void hd_tokenizer_close(struct hd_tokenizer *tokenizer); /* NULL is fine */

/* returns the name given to hd_tokenizer_open */
const char *hd_tokenizer_name(const struct hd_tokenizer *tokenizer);
/* returns the largest token id + 1 */
int32_t hd_tokenizer_vocab(const struct hd_tokenizer *tokenizer);

/* Returns the contents of the files beside the tokenizer's file; NULL: the tokenizer is
 * "bytes". special.h derives the special tokens from them. */
struct hd_companions;
const struct hd_companions *hd_tokenizer_companions(const struct hd_tokenizer *tokenizer);
/* Returns whether an id is a special token; the text of a message never becomes one. */
bool hd_tokenizer_is_special(const struct hd_tokenizer *tokenizer, int32_t id);
/* Returns whether the tokenizer is a SentencePiece model that changes texts by rules of its own, or
 * removes spaces, which the LlamaTokenizer of transformers does not do. */
bool hd_tokenizer_has_rules(const struct hd_tokenizer *tokenizer);
/* Return the ids that the post_processor of tokenizer.json puts before and after a text for
 * add_special_tokens=True. transformers ignores add_bos_token if there is a tokenizer.json. The
 * encoder below never adds these ids. */
const int32_t *hd_tokenizer_before(const struct hd_tokenizer *tokenizer, int *ret_count);
const int32_t *hd_tokenizer_behind(const struct hd_tokenizer *tokenizer, int *ret_count);

/* Return the id of a token by its content as written in tokenizer.json (-1: none), and the content
 * of an id (NULL: none). For "bytes" always -1 and NULL. */
int32_t hd_tokenizer_find(const struct hd_tokenizer *tokenizer, const char *content);
const char *hd_tokenizer_content(const struct hd_tokenizer *tokenizer, int32_t id);

/* Appends the text of the ids as the reference decodes it with skip_special_tokens=False: broken
 * characters become U+FFFD, and a space that the tokenizer puts in front of a text is left out. For
 * "bytes" appends their bytes. HD_INVALID: an id is no token; the message names it. */
enum hd_status hd_tokenizer_decode(const struct hd_tokenizer *tokenizer, const int32_t *ids,
                                   size_t count, struct hd_text *ret_text);

/* Appends the bytes of an id that follows other ids, for text that is printed token by token. The
 * bytes may end inside a UTF-8 character. */
enum hd_status hd_tokenizer_decode_next(const struct hd_tokenizer *tokenizer, int32_t id,
                                        struct hd_text *ret_bytes);

/* A growing array of token ids. Initialise with {0}. */
struct hd_id_list {
    int32_t *ids;
    size_t count, capacity; /* ids used; ids allocated */
};

/* Allocates space for `more` further ids. */
enum hd_status hd_id_list_reserve(struct hd_id_list *list, size_t more);
void hd_id_list_free(struct hd_id_list *list); /* frees the ids; the list may be used again */

/* Allocates the working memory in which one thread encodes: some tens of MB at most, plus an amount
 * in proportion to the longest text. The tokenizer must outlive the encoder. */
enum hd_status hd_encoder_new(const struct hd_tokenizer *tokenizer,
                              struct hd_encoder **ret_encoder);
void hd_encoder_free(struct hd_encoder *encoder); /* NULL is fine */

/* Appends the ids of `text` to the list. HD_INVALID, with the byte offset: invalid UTF-8 (not for
 * "bytes"), or a character without a token. After a failure the list may have some of the ids. */
enum hd_status hd_encoder_add(struct hd_encoder *encoder, const void *text, size_t text_bytes,
                              struct hd_id_list *list);

/* Offset in a text, in bytes, for which encoding finds the token. */
struct hd_encoder_mark {
    size_t at; /* offset in bytes, less than the size of the text */
    /* true: the byte is the last one of a span; false: the first one, to which a space that the
     * tokenizer puts in front belongs */
    bool is_end;
    size_t token; /* result: index in the list of the token that covers this byte; if none does, as
                     in white space that an added token strips, of the next token */
};

struct hd_encoder_places {
    /* ascending offsets in the text, bytes; no special token may begin at one or reach across it */
    const size_t *guards;
    size_t guard_count;
    struct hd_encoder_mark *marks;
    size_t mark_count;
};

/* Encodes like hd_encoder_add, and sets the token of each mark. If a step turns several characters
 * into one or one into several, each result covers all of its source characters. */
enum hd_status hd_encoder_add_places(struct hd_encoder *encoder, const void *text,
                                     size_t text_bytes, struct hd_encoder_places *places,
                                     struct hd_id_list *list);

/* Sets *at to the first offset >= *at where the text of a special token begins, or the beginning of
 * one that the end of `text` cuts off. A token is special by "special" in tokenizer.json. Returns
 * false if there is no such offset, or if split_special_tokens is set, when no text becomes a
 * special token. */
bool hd_tokenizer_find_special(const struct hd_tokenizer *tokenizer, const char *text,
                               size_t text_bytes, size_t *at);

/* Returns the first offset >= max(from, 1) at which a text that begins with `text` may be cut so
 * that the ids of both parts, concatenated, are those of the whole text; 0: none. Many tokenizers
 * allow no cuts; cut.c explains why. */
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
