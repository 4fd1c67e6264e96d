/* words: a list of words as one text, separated by blanks: tables of names are short to write.
 *
 * Used by: tables of names.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_WORDS_H
#define HD_BASE_WORDS_H

#include <stdbool.h>
#include <string.h>

/* Returns whether `word`, which has no blanks and is not empty, is one of `words`. */
static inline bool hd_words_have(const char *words, const char *word)
{
    const size_t len = strlen(word);

    while (*words) {
        const size_t this_len = strcspn(words, " ");

        if (len > 0 && this_len == len && memcmp(words, word, len) == 0)
            return true;
        words += this_len;
        words += strspn(words, " ");
    }
    return false;
}

#endif
