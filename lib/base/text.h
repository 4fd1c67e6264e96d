/* text: a growing string, and parsers and formatters of numbers for flags and files.
 *
 * Used by: everything.   Uses: status.   Threads: one owner at a time.
 */
#ifndef HD_BASE_TEXT_H
#define HD_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Initialise with {0}. `data` is NULL until something is added, then NUL-terminated, and is freed
 * by hd_text_free. A failed allocation sets `failed`; later additions do nothing. Check it once. */
struct hd_text {
    char *data;
    size_t len_bytes, size_bytes; /* used, without the NUL; allocated */
    bool failed;
};

void hd_text_add(struct hd_text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void hd_text_add_bytes(struct hd_text *text, const void *bytes, size_t count);
void hd_text_clear(struct hd_text *text); /* empties it and keeps the memory */
void hd_text_free(struct hd_text *text);  /* frees the memory; the text may be used again */

/* The text must be a number and nothing else. HD_INVALID: it is not, or outside [min, max]. */
enum hd_status hd_text_to_int64(const char *text, int64_t min, int64_t max, int64_t *ret_value);
/* A size in bytes: digits, then K, M, G or T for 2^10, 2^20, 2^30, 2^40 bytes, also as KiB, MiB,
 * GiB or TiB, or nothing. */
enum hd_status hd_text_to_bytes(const char *text, int64_t min, int64_t *ret_bytes);
enum hd_status hd_text_to_double(const char *text, double min, double max, double *ret_value);

bool hd_text_is_utf8(const void *bytes, size_t count); /* RFC 3629; NUL is not accepted */

/* Returns the offset of the first byte that is not UTF-8, or of the first NUL; `count`: none. */
size_t hd_text_find_not_utf8(const void *bytes, size_t count);
/* Returns "; ...", the end of a message about such a byte at `at`: what the text is instead, by the
 * bytes around it, and what to do. */
const char *hd_text_explain_not_utf8(const void *bytes, size_t count, size_t at);

/* Returns the length in bytes of the character that begins at `at`; at most `count` > 0 bytes are
 * read. *ret_harmless: whether a terminal or a log may get the character inside a line: it is no
 * control character, no character that reorders or hides text (marks and overrides of direction,
 * zero-width characters, line and paragraph separators, tags), and no byte that is not UTF-8. */
size_t hd_text_character(const char *at, size_t count, bool *ret_harmless);

bool hd_text_starts(const char *text, const char *prefix);
bool hd_text_ends(const char *text, const char *suffix);

bool hd_text_is_space(uint32_t code); /* whether Python's str.isspace is true for the character */
/* Returns how many bytes of a UTF-8 text are left without the white space at its end, as by
 * Python's str.rstrip. */
size_t hd_text_trim_end(const char *text, size_t bytes);

enum { HD_TEXT_LIST_MAX = 160 };

/* "1, 2, 4 or 8": the numbers from 1 to `max` for which fits(about, number) is true; at most eight,
 * the nearest to `nearest_to`, and ", among others" if that leaves some out. "" if there are none.
 * For
 * messages that list valid values. */
void hd_text_list_near(bool (*fits)(const void *about, int64_t number), const void *about,
                       int64_t max, int64_t nearest_to, char ret_list[HD_TEXT_LIST_MAX]);

/* 1536 -> "1.5 KiB": for people. */
void hd_text_format_bytes(int64_t count, char ret_text[32]);

/* The nearest of `count` words to `word` by edit distance, or else one that begins with it or that
 * it begins with; NULL: none is similar. For the hint "did you mean" of unknown keys, commands and
 * flags. */
const char *hd_text_nearest(const char *word, const char *const *words, size_t count);

#endif
