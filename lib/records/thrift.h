/* thrift: reads the compact encoding of Thrift, in which Parquet writes its footer and the heads of
 * pages. Fields that a reader does not ask for are skipped. A failure is sticky: later reads give
 * zeros, so that a reader checks once. */
#ifndef HD_RECORDS_THRIFT_H
#define HD_RECORDS_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct thrift {
    const unsigned char *at, *end;
    bool failed; /* the bytes end too early, or are no such encoding */
};

enum thrift_type {
    THRIFT_STOP,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_I8,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BYTES,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT
};

struct thrift_field { /* initialise with {0} before the first field of a struct */
    int id;
    enum thrift_type type;
};

/* Reads the head of the next field; returns false at the end of the struct or after a failure. */
bool thrift_next(struct thrift *t, struct thrift_field *field);
void thrift_skip(struct thrift *t, struct thrift_field field);

uint64_t thrift_varint(struct thrift *t);
/* Each reads the value of a field, or skips it and returns 0 if it has another type. */
int64_t thrift_int(struct thrift *t, struct thrift_field field);
bool thrift_bool(struct thrift *t, struct thrift_field field);
const char *thrift_bytes(struct thrift *t, struct thrift_field field, size_t *ret_count);
/* Reads the head of a list; returns its length, at most one element per byte that is left. */
size_t thrift_list(struct thrift *t, struct thrift_field field, enum thrift_type *ret_type);

#endif
