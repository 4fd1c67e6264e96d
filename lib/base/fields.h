/* fields: members of a JSON object, one row of a table each. The same row reads a member into a struct
 * and writes it, so the two directions of a format cannot differ. The first failure ends a reading; its
 * message names the member.
 *
 *     static const struct hd_json_field point_fields[] = {
 *         HD_JSON_FIELD("bytes", REAL, struct point, bytes, .least = 0, .most = 1e15),
 *         HD_JSON_FIELD("kind", WORD, struct point, kind),
 *     };
 *
 * Used by: formats of files and messages with many members.   Uses: arena, json.
 * Threads: any. */
#ifndef HD_BASE_FIELDS_H
#define HD_BASE_FIELDS_H

#include <stddef.h>

#include "base/json.h"

enum hd_json_field_kind {
    HD_JSON_FIELD_INT, /* integer of 1, 4 or 8 bytes, from `min` to `max`; of 4 bytes unsigned if min is 0 */
    HD_JSON_FIELD_REAL, /* double, from `least` to `most` */
    HD_JSON_FIELD_WHOLE, /* double from `least` to `most`, in the file a whole number; 0: none of these */
    HD_JSON_FIELD_TEXT, /* const char *; the text is that of the JSON tree */
    HD_JSON_FIELD_WORD, /* char array; a longer text is an error, and '?' is written for what is not printable
                       ASCII */
    HD_JSON_FIELD_ROWS, /* list, of which each value is a struct that has `fields` */
};

struct hd_json_field {
    const char *key;
    enum hd_json_field_kind kind;
    bool optional; /* true: an absent member leaves the struct's as it is */
    size_t offset, size_bytes;
    int64_t min, max;
    double least, most;
    /* HD_JSON_FIELD_ROWS: the rows of a value, and their number; the size of its struct; the most values; the
     * offset of the int that counts them */
    const struct hd_json_field *fields;
    int field_count, values_max;
    size_t value_bytes, count_offset;
    bool positional; /* true: a value is a list, [member, ..]; false: an object */
    bool
        allocated; /* true: the member points to the structs, in the arena; false: it is an array of them */
};

/* A row of a table: key in the file, kind, struct and its member, then what else the kind needs. */
#define HD_JSON_FIELD(key_, kind_, type, member, ...)                                   \
    {                                                                                   \
        .key = (key_), .kind = HD_JSON_FIELD_##kind_, .offset = offsetof(type, member), \
        .size_bytes = sizeof(((type *)NULL)->member), ##__VA_ARGS__                     \
    }
/* A row for values that the table `rows` describes: structs `value` in a member that `count` counts. */
#define HD_JSON_FIELD_LIST(key_, type, member, count, value, rows, most_, ...)         \
    HD_JSON_FIELD(key_, ROWS, type, member, .fields = (rows),                          \
                  .field_count = HD_JSON_FIELD_COUNT(rows), .values_max = (most_),     \
                  .value_bytes = sizeof(value), .count_offset = offsetof(type, count), \
                  ##__VA_ARGS__)
#define HD_JSON_FIELD_COUNT(fields) ((int)(sizeof(fields) / sizeof(fields)[0]))

/* Reads the member of each row into the struct at `ret_struct`. Other members of the object are ignored.
 * HD_INVALID: a member is missing, of another kind, or out of its range. HD_LIMIT: a word is too long, a
 * list has too many values. */
enum hd_status hd_fields_read(const struct hd_json *object, const struct hd_json_field *fields,
                              int count, struct hd_arena *arena, void *ret_struct);

/* Writes the members of the struct at `from`, in the order of the rows, into an open object. */
void hd_fields_write(struct hd_json_writer *writer, const struct hd_json_field *fields, int count,
                     const void *from);

#endif
