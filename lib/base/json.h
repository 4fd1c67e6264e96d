/* json: a strict, bounded reader and a small writer of JSON (RFC 8259), with libc alone.
 *
 * For files that Heddle itself writes and reads back, possibly damaged or hostile: every limit is
 * the caller's, duplicate member names and ill-formed UTF-8 are refused, numbers stay as written
 * until somebody asks for an int64. What people send is YAML (spec).
 *
 * Used by: checkpoint, spec, the heddle command.   Uses: arena, status, text.   Threads: values are
 * immutable once parsed.
 */
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
    const char *key;             /* as a member of an object: its name; else NULL */
    const char *text;            /* string: decoded, without any NUL inside; number: as written */
    size_t count;                /* array, object: its values */
    const struct hd_json *first; /* array, object: the first of them, NULL when empty */
    const struct hd_json *next;  /* the next one beside this */
};

struct hd_json_limits {
    size_t values_max; /* of any kind, in the whole text */
    int depth_max;     /* of arrays and objects in each other */
};

/* Values live in the arena. HD_INVALID says at which byte what is wrong; HD_LIMIT names the limit;
 * HD_NO_MEMORY when the arena is used up. */
enum hd_status hd_json_parse(struct hd_arena *arena, const char *text, size_t text_bytes,
                             const struct hd_json_limits *limits, const struct hd_json **ret_root);

const struct hd_json *hd_json_member(const struct hd_json *object, const char *key); /* or NULL */

/* The member of that name and kind, or HD_INVALID naming it. `object` may be of any kind. */
enum hd_status hd_json_need(const struct hd_json *object, const char *key, enum hd_json_kind kind,
                            const struct hd_json **ret_member);
enum hd_status hd_json_need_int64(const struct hd_json *object, const char *key, int64_t min,
                                  int64_t max, int64_t *ret_value);
enum hd_status hd_json_need_string(const struct hd_json *object, const char *key,
                                   const char **ret_text);

/* A number without fraction or exponent. */
enum hd_status hd_json_to_int64(const struct hd_json *value, int64_t min, int64_t max,
                                int64_t *ret_value);

/* ---- writing ---- */

/* Start with {.out = text}. Commas are set by themselves; `key` is the member's name inside an
 * object and NULL inside an array or at the top. A failed allocation stays in out->failed. */
struct hd_json_writer {
    struct hd_text *out;
    bool needs_comma;
};

void hd_json_begin(struct hd_json_writer *writer, const char *key, char bracket); /* '{' or '[' */
void hd_json_end(struct hd_json_writer *writer, char bracket);                    /* '}' or ']' */
void hd_json_add_string(struct hd_json_writer *writer, const char *key, const char *text);
void hd_json_add_int64(struct hd_json_writer *writer, const char *key, int64_t value);
/* The shortest form that reads back to the same bits; null when it is not finite. */
void hd_json_add_real(struct hd_json_writer *writer, const char *key, double value);
void hd_json_add_bool(struct hd_json_writer *writer, const char *key, bool value);
void hd_json_add_null(struct hd_json_writer *writer, const char *key);
void hd_json_add_line(struct hd_json_writer *writer); /* the next value starts a line */

#endif
