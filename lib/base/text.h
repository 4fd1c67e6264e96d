/* text: a string that grows, and the small readers that every parser of flags and files needs.
 *
 * Used by: everything.   Uses: status.   Threads: one owner at a time.
 */
#ifndef HD_BASE_TEXT_H
#define HD_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Start with {0}; `data` is NUL-terminated once anything was added. A failed allocation is
 * remembered in `failed` and later additions do nothing, so that a writer checks once. */
struct hd_text {
    char *data;
    size_t len_bytes, size_bytes;
    bool failed;
};

void hd_text_add(struct hd_text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void hd_text_add_bytes(struct hd_text *text, const void *bytes, size_t count);
void hd_text_clear(struct hd_text *text); /* empty again, memory kept */
void hd_text_free(struct hd_text *text);  /* empty again, memory gone */

/* Whole-string readers: the text must be the number and nothing else. */
enum hd_status hd_text_to_int64(const char *text, int64_t min, int64_t max, int64_t *ret_value);
enum hd_status hd_text_to_double(const char *text, double min, double max, double *ret_value);

bool hd_text_is_utf8(const void *bytes, size_t count); /* RFC 3629; NUL is not accepted */
bool hd_text_starts(const char *text, const char *prefix);
bool hd_text_ends(const char *text, const char *suffix);

enum { HD_TEXT_LIST_MAX = 160 };

/* "1, 2, 4 or 8": of the numbers from 1 to `max` that fit, the eight nearest to `wish`; "" when
 * there is none. `fits` gets `about`. */
void hd_text_list_near(bool (*fits)(const void *about, int64_t number), const void *about,
                       int64_t max, int64_t wish, char ret_list[HD_TEXT_LIST_MAX]);

/* 1536 -> "1.5 KiB": for people. */
void hd_text_format_bytes(int64_t count, char ret_text[32]);

#endif
