/* letters: a tokenizer.json that is small enough to look at: a byte-level BPE without merges. */
#ifndef HD_TEST_LETTERS_H
#define HD_TEST_LETTERS_H

#include "base/json.h"
#include "base/text.h"

/* Three special tokens behind the letters: 256 <|endoftext|>, 257 <|im_start|>, 258 <|im_end|>. */
#define LETTERS_THREE                                               \
    "[{\"id\":256,\"content\":\"<|endoftext|>\",\"special\":true}," \
    "{\"id\":257,\"content\":\"<|im_start|>\",\"special\":true},"   \
    "{\"id\":258,\"content\":\"<|im_end|>\",\"special\":true}]"

/* Tokens 0 to 255 are the bytes, then come `words` (a JSON list, or NULL); with these added_tokens
 * and this post_processor. */
void letters_write(const char *added, const char *post, const struct hd_json *words,
                   struct hd_text *ret_json);

#endif
