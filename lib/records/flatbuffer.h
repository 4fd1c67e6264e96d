/* flatbuffer: reads FlatBuffers, in which Arrow writes its messages, with every offset checked.
 *
 * A place is an offset in the buffer; 0 is none. A failure is sticky: later reads give zeros. */
#ifndef HD_RECORDS_FLATBUFFER_H
#define HD_RECORDS_FLATBUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct flatbuffer {
    const unsigned char *bytes;
    size_t count;
    bool failed;
};

size_t flatbuffer_root(struct flatbuffer *b); /* the place of the root table */
/* Returns the place of field number `field` of a table; 0: it is not there. */
size_t flatbuffer_field(struct flatbuffer *b, size_t table, int field);
/* Returns the place of the table, string or list that a field of a table refers to; 0: none. */
size_t flatbuffer_ref(struct flatbuffer *b, size_t table, int field);
/* Returns the number of `bytes` bytes, 1, 2, 4 or 8, in a field; `absent` if it is not there. */
int64_t flatbuffer_number(struct flatbuffer *b, size_t table, int field, int bytes, int64_t absent);
int64_t flatbuffer_read(struct flatbuffer *b, size_t place, int bytes);
/* Returns the first element of a list, of item_bytes each; sets *ret_count. */
size_t flatbuffer_list(struct flatbuffer *b, size_t list, size_t item_bytes, size_t *ret_count);
/* Returns the table that element `index` of a list of tables refers to. */
size_t flatbuffer_table(struct flatbuffer *b, size_t first, size_t index);
const char *flatbuffer_string(struct flatbuffer *b, size_t table, int field, size_t *ret_count);

#endif
