#include <ctype.h>
#include <string.h>

#include "base/text.h"

enum { WORD_MAX = 48 };

static int lower(char c)
{
    return tolower((unsigned char)c);
}

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

/* Returns the edit distance (optimal string alignment; Damerau 1964), ignoring case: the number of
 * letters to change, insert, delete or swap with the next to get from a to b. Both words have at
 * most WORD_MAX letters. */
static size_t distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t rows[3][WORD_MAX + 1], *before = rows[0], *last = rows[1], *row = rows[2];

    for (size_t j = 0; j <= b_len; j++)
        last[j] = before[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t *free_row = before;

        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            bool same = lower(a[i - 1]) == lower(b[j - 1]);

            row[j] = min3(last[j] + 1, row[j - 1] + 1, last[j - 1] + !same);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]) && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        before = last;
        last = row;
        row = free_row;
    }
    return last[b_len];
}

static bool word_begins_with(const char *word, const char *beginning)
{
    while (*beginning && lower(*word) == lower(*beginning))
        word++, beginning++;
    return !*beginning;
}

/* Returns the word of which `word` is the beginning, or which is the beginning of `word`; among
 * several, the nearest in length. NULL: none. */
static const char *find_longer_or_shorter(const char *word, const char *const *words, size_t count)
{
    enum { LETTERS_MIN = 3 };
    const size_t len = strlen(word);
    const char *nearest = NULL;
    size_t best = WORD_MAX;

    for (size_t i = 0; i < count; i++) {
        const size_t other = strlen(words[i]), off = len > other ? len - other : other - len;
        const char *shorter = len < other ? word : words[i];

        if (strlen(shorter) < LETTERS_MIN || off >= best ||
            !word_begins_with(len < other ? words[i] : word, shorter))
            continue;
        best = off;
        nearest = words[i];
    }
    return nearest;
}

const char *hd_text_nearest(const char *word, const char *const *words, size_t count)
{
    /* A word of n letters is near if at most (n + 1) / 4 differ, so one of 3 to 6: few users mistype
     * more, and "models", which is 2 from "nodes", is not a mistyped "nodes". */
    size_t len = strlen(word), best = (len + 1) / 4 + 1;
    const char *nearest = NULL;

    if (!len || len > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(words[i]), d;

        if (other > WORD_MAX)
            continue;
        d = distance(word, len, words[i], other);
        if (d < best) {
            best = d;
            nearest = words[i];
        }
    }
    return nearest ? nearest : find_longer_or_shorter(word, words, count);
}
