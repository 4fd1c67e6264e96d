/* json: a strict reader with limits, and a small writer, of JSON (RFC 8259). Uses libc only.
 *
 * For files that Heddle writes and reads back and that may be damaged or hostile. The caller sets
 * every limit. Invalid UTF-8 is an error, and so is a duplicate member name, except in
 * hd_json_parse_repeated. A number is kept as its text until hd_json_to_int64 converts it. Job
 * files, which people write, are YAML (spec).
 *
 * Used by: checkpoint, spec, the heddle command.   Uses: arena, status, text.
 * Threads: values are immutable once parsed. */
#ifndef HD_BASE_JSON_H
#define HD_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

/* ---- reading ---- */

enum hd_json_kind {
    HD_JSON_NULL,
    HD_JSON_FALSE,
    HD_JSON_TRUE,
    HD_JSON_NUMBER,
    HD_JSON_STRING,
    HD_JSON_ARRAY,
    HD_JSON_OBJECT,
};

struct hd_json {
    enum hd_json_kind kind;
    const char *key;             /* name of a member of an object; NULL in arrays and at the root */
    const char *text;            /* string: decoded, contains no NUL; number: as written */
    size_t count;                /* array, object: number of direct children */
    const struct hd_json *first; /* array, object: the first child, NULL when empty */
    const struct hd_json *next;  /* the next child of the same parent, NULL for the last */
    bool overrode; /* true: hd_json_parse_repeated has dropped an earlier member of the object with
                      this name */
};

struct hd_json_limits {
    size_t values_max; /* most values of any kind in the whole text */
    int depth_max;     /* greatest nesting depth of arrays and objects */
};

/* Parses a text. The values and their strings are allocated in the arena; `text` may be freed
 * afterwards. HD_INVALID: a syntax error, with its byte offset. HD_LIMIT: the text exceeds
 * `limits`. HD_NO_MEMORY: the arena is full. */
enum hd_status hd_json_parse(struct hd_arena *arena, const char *text, size_t text_bytes,
                             const struct hd_json_limits *limits, const struct hd_json **ret_root);

/* Returns a hint, "; it is ..", if a file that should be another one begins as a pointer of Git LFS,
 * a page of HTML, an archive or the like; else "". */
const char *hd_json_explain_foreign(const char *text, size_t text_bytes);

/* Parses like hd_json_parse, but accepts a member name that an object has twice: the last member
 * counts, as in Python's json. For files that Python writes and reads. */
enum hd_status hd_json_parse_repeated(struct hd_arena *arena, const char *text, size_t text_bytes,
                                      const struct hd_json_limits *limits,
                                      const struct hd_json **ret_root);

/* Parses a line of a .jsonl file, which must be an object. Returns HD_INVALID, not HD_LIMIT, also
 * when the line exceeds `limits`: the line is wrong, not the machine. */
enum hd_status hd_json_parse_line(struct hd_arena *arena, const char *line, size_t line_bytes,
                                  const struct hd_json_limits *limits,
                                  const struct hd_json **ret_root);

/* Finds a member of an object by name; NULL: no such member. */
const struct hd_json *hd_json_member(const struct hd_json *object, const char *key);
/* Returns the text of the string `key`; NULL: there is none, or `object` is NULL or no object. */
const char *hd_json_text(const struct hd_json *object, const char *key);

/* Finds the member `key` of the given kind. HD_INVALID, naming the key: the member is missing or of
 * another kind, or `object` is not an object. */
enum hd_status hd_json_need(const struct hd_json *object, const char *key, enum hd_json_kind kind,
                            const struct hd_json **ret_member);
enum hd_status hd_json_need_int64(const struct hd_json *object, const char *key, int64_t min,
                                  int64_t max, int64_t *ret_value);
enum hd_status hd_json_need_string(const struct hd_json *object, const char *key,
                                   const char **ret_text);
/* Copies the string member `key`, truncated to size_bytes; fails like hd_json_need. */
enum hd_status hd_json_copy_string(const struct hd_json *object, const char *key, char *ret_text,
                                   size_t size_bytes);

/* Sets *ret_value to a parsed number that has no fraction and no exponent. HD_INVALID: `value` is
 * not such a number, or is outside [min, max]. */
enum hd_status hd_json_to_int64(const struct hd_json *value, int64_t min, int64_t max,
                                int64_t *ret_value);

/* ---- writing ---- */

/* A writer; initialise it with {.out = text}. The writer inserts commas. `key` is the member's name
 * inside an object, and NULL inside an array or at the top level. A failed allocation sets
 * out->failed. */
struct hd_json_writer {
    struct hd_text *out;
    bool needs_comma;
};

void hd_json_begin(struct hd_json_writer *writer, const char *key, char bracket); /* '{' or '[' */
void hd_json_end(struct hd_json_writer *writer, char bracket);                    /* '}' or ']' */
void hd_json_add_string(struct hd_json_writer *writer, const char *key, const char *text);
void hd_json_add_int64(struct hd_json_writer *writer, const char *key, int64_t value);
/* Adds a number as the shortest text of 6 to 17 digits that reads back to the same bits; adds null
 * when the value is not finite. */
void hd_json_add_real(struct hd_json_writer *writer, const char *key, double value);
/* Adds the text of a number that was parsed (struct hd_json). */
void hd_json_add_number(struct hd_json_writer *writer, const char *key, const char *text);
void hd_json_add_bool(struct hd_json_writer *writer, const char *key, bool value);
void hd_json_add_null(struct hd_json_writer *writer, const char *key);
/* Adds a parsed value; its members keep their order, and its numbers their text. */
void hd_json_add_value(struct hd_json_writer *writer, const char *key, const struct hd_json *value);
void hd_json_add_line(struct hd_json_writer *writer); /* begins a new line of the text before the
                                                         next value */

#endif
