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

/* A growing string; initialise it with {0}. `data` is NULL until something is added, then
 * NUL-terminated, and is freed by hd_text_free. A failed allocation sets `failed`; later additions
 * do nothing. Check it once. */
struct hd_text {
    char *data;
    size_t len_bytes, size_bytes; /* bytes of the text, without its NUL; bytes allocated */
    bool failed;
};

void hd_text_add(struct hd_text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void hd_text_add_bytes(struct hd_text *text, const void *bytes, size_t count);
void hd_text_clear(struct hd_text *text); /* empties the text and keeps its memory */
void hd_text_free(struct hd_text *text);  /* frees the memory; the text may be used again */

/* Parse a text that is a number and nothing else. HD_INVALID: the text has anything besides a
 * number, or the number is outside [min, max]. */
enum hd_status hd_text_to_int64(const char *text, int64_t min, int64_t max, int64_t *ret_value);
/* Parses a size in bytes: digits, then K, M, G or T for 2^10, 2^20, 2^30, 2^40 bytes, also as KiB,
 * MiB, GiB or TiB, or nothing. */
enum hd_status hd_text_to_bytes(const char *text, int64_t min, int64_t *ret_bytes);
enum hd_status hd_text_to_double(const char *text, double min, double max, double *ret_value);

bool hd_text_is_utf8(const void *bytes, size_t count); /* true: the bytes are UTF-8 (RFC 3629) and
                                                          contain no NUL */

/* Returns the offset of the first byte that is not UTF-8, or of the first NUL; `count`: none. */
size_t hd_text_find_not_utf8(const void *bytes, size_t count);
/* Returns "; ...", the end of a message about a byte at `at` that is not UTF-8: the likely encoding
 * or kind of file, by the bytes around it, and the remedy. */
const char *hd_text_explain_not_utf8(const void *bytes, size_t count, size_t at);

/* Returns the length in bytes of the character that begins at `at`; reads at most `count` bytes, at
 * least 1. *ret_harmless: true if the character may be written inside a line to a terminal or a
 * log: it is not a control character, does not reorder or hide text (marks and overrides of
 * direction, zero-width characters, line and paragraph separators, tags), and is valid UTF-8. */
size_t hd_text_character(const char *at, size_t count, bool *ret_harmless);

bool hd_text_starts(const char *text, const char *prefix);
bool hd_text_ends(const char *text, const char *suffix);

bool hd_text_is_space(uint32_t code); /* true for the characters that Python's str.isspace
                                         accepts */
/* Returns the length of a UTF-8 text without the white space at its end, as Python's str.rstrip. */
size_t hd_text_trim_end(const char *text, size_t bytes);

enum { HD_TEXT_LIST_MAX = 160 };

/* Writes "1, 2, 4 or 8": the numbers from 1 to `max` for which fits(about, number) is true. Lists
 * at most eight, those nearest to `nearest_to`, and adds ", among others" if more fit; writes "" if
 * no number fits. For messages that list valid values. */
void hd_text_list_near(bool (*fits)(const void *about, int64_t number), const void *about,
                       int64_t max, int64_t nearest_to, char ret_list[HD_TEXT_LIST_MAX]);

/* Formats a number of bytes for people: 1536 -> "1.5 KiB". */
void hd_text_format_bytes(int64_t count, char ret_text[32]);

/* Returns the one of the `count` known words that is nearest to the mistyped `word` by edit
 * distance; if none is near, one that begins with `word` or with which `word` begins; NULL: none is
 * similar. For the hint "did you mean" about unknown keys, commands and flags. */
const char *hd_text_nearest(const char *word, const char *const *words, size_t count);

#endif
