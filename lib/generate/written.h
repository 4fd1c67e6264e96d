/* written: the text that a sequence of drawn tokens becomes, up to a stop text.
 *
 * Bytes are kept back while they may still be the beginning of a stop text, or of a character: what
 * is `safe` does not change any more and can be sent.
 *
 * Used by: worker, serve.   Uses: base, tokenizer.   Threads: one owner at a time.
 */
#ifndef HD_GENERATE_WRITTEN_H
#define HD_GENERATE_WRITTEN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"
#include "tokenizer/tokenizer.h"

enum { HD_STOP_TEXTS_MAX = 16, HD_STOP_TEXT_BYTES_MAX = 1024 };

struct hd_written {           /* initialise with {.stops = .., .stop_count = ..} */
    const char *const *stops; /* not empty; the caller's */
    int stop_count;
    struct hd_text bytes; /* as the tokens give them, without a stop text */
    size_t safe;          /* bytes */
    bool stopped;         /* at a stop text; further tokens are ignored */
};

/* HD_INVALID: the tokenizer does not have the id. */
enum hd_status hd_written_add(struct hd_written *w, const struct hd_tokenizer *tokenizer,
                              int32_t id);
void hd_written_end(struct hd_written *w); /* no token follows: all is safe */
void hd_written_free(struct hd_written *w);

/* Appends bytes as UTF-8 for JSON: what is no UTF-8, and NUL, becomes U+FFFD. */
void hd_written_to_utf8(const char *bytes, size_t count, struct hd_text *ret_text);

#endif
