/* written: the text of a sequence of sampled tokens, up to a stop text.
 *
 * Bytes are held back while they may be the beginning of a stop text, or of a character: the first
 * `safe` bytes do not change any more and can be sent.
 *
 * Used by: worker, serve.   Uses: base, tokenizer.   Threads: one owner at a time. */
#ifndef HD_GENERATE_WRITTEN_H
#define HD_GENERATE_WRITTEN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"
#include "tokenizer/tokenizer.h"

enum { HD_STOP_TEXTS_MAX = 16, HD_STOP_TEXT_BYTES_MAX = 1024 };

struct hd_written {           /* Text so far; to be initialised with {.stops = .., .stop_count =
                                 ..}. */
    const char *const *stops; /* stop texts, none empty; owned by the caller */
    int stop_count;
    struct hd_text bytes; /* text of the tokens, without the stop text */
    size_t safe;          /* number of bytes that can be sent */
    bool stopped;         /* true: a stop text was found; further tokens are ignored */
};

/* Appends the text of token `id` to w->bytes. HD_INVALID: the tokenizer does not have the id. */
enum hd_status hd_written_add(struct hd_written *w, const struct hd_tokenizer *tokenizer,
                              int32_t id);
void hd_written_end(struct hd_written *w); /* to be called after the last token: all bytes then are
                                              safe */
void hd_written_free(struct hd_written *w);

/* Appends `bytes` to *ret_text as UTF-8 for JSON: invalid UTF-8, and NUL, become U+FFFD. */
void hd_written_to_utf8(const char *bytes, size_t count, struct hd_text *ret_text);

#endif
