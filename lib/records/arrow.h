/* arrow: rows of an Arrow IPC file or stream, as lines of JSON.
 *
 *     messages (arrow_message.c)  the schema, batches of rows, dictionaries
 *     rows     (arrow.c)          one row of the batch's arrays as an object
 *
 * The file is mapped and arrays are read where they lie; those of a compressed batch are unpacked
 * in memory, for the columns that are read. Every offset is checked where it is used. Dates,
 * decimals, unions and the like are refused where a row needs them.
 *
 * Used by: source, and by each other.   Uses: base, flatbuffer, unpack.
 */
#ifndef HD_RECORDS_ARROW_H
#define HD_RECORDS_ARROW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "flatbuffer.h"
#include "records_internal.h"

enum arrow_kind {
    ARROW_NULL,
    ARROW_INT,
    ARROW_REAL,
    ARROW_BOOL,
    ARROW_STRING, /* text or bytes; offsets of `width` bits */
    ARROW_VIEW,   /* strings of 16 bytes, which hold short ones */
    ARROW_LIST,   /* offsets of `width` bits */
    ARROW_FIXED_LIST,
    ARROW_STRUCT,
    ARROW_MAP,
    ARROW_OTHER /* refused if a row needs it */
};

enum { ARROW_DEPTH_MAX = 24, ARROW_FIELDS_MAX = 100000 };

struct arrow_field {
    const char *name;
    size_t name_bytes;
    enum arrow_kind kind;
    int width;          /* bits of a number or of offsets */
    bool is_signed;     /* whether a number, or an index, has a sign */
    bool is_json;       /* text that is itself JSON */
    int64_t size;       /* elements of a fixed list */
    int own_buffers;    /* buffers in a batch, without those of children */
    bool is_variadic;   /* whether more buffers follow, as many as the batch says */
    int64_t dictionary; /* number of its dictionary; -1: none */
    int index_width;    /* bits of an index into the dictionary */
    struct arrow_field **children;
    size_t child_count;
    bool wanted; /* whether the column is read */
};

struct arrow_buffer {
    const unsigned char *at;
    size_t count;
};

enum { ARROW_BUFFERS_MAX = 4 };

struct arrow_array {
    const struct arrow_field *field;
    bool is_dictionary; /* values of the field's dictionary, not indices into it */
    int64_t length;
    struct arrow_buffer buffers[ARROW_BUFFERS_MAX]; /* the first is the validity, one bit a value */
    struct arrow_buffer *more;                      /* [more_count] of views */
    size_t more_count;
    struct arrow_array **children;
};

struct arrow_chunk { /* a part of a dictionary */
    struct arrow_chunk *next;
    struct arrow_array *array;
};

struct arrow_dictionary {
    struct arrow_dictionary *next;
    int64_t number;
    struct arrow_chunk *first;
};

struct arrow_file {
    const unsigned char *bytes;
    int64_t count;
    struct hd_arena arena; /* the schema, dictionaries */
    struct hd_arena batch; /* the arrays of the current batch */
    unsigned char **owned; /* [owned_count] unpacked buffers of the current batch */
    size_t owned_count, owned_room;
    unsigned char **kept; /* [kept_count] those of dictionaries */
    size_t kept_count, kept_room;
    struct arrow_field *root; /* the columns, as a struct */
    struct arrow_dictionary *dictionaries;
    bool is_stream;
    struct records_use use;
    int64_t at;    /* stream: offset of the next message */
    size_t blocks; /* file: place in the footer of the blocks of batches */
    size_t block_count, block;
    struct flatbuffer footer;
    /* the current batch */
    int64_t rows_left, row;
    struct arrow_array *columns;
};

/* Reads the schema of a file in memory, and marks the columns that are wanted. */
enum hd_status arrow_begin(struct arrow_file *file, const struct records_columns *columns);
/* Reads messages up to the next batch of rows; sets *ret_there to false behind the last. */
enum hd_status arrow_next_batch(struct arrow_file *file, bool *ret_there);
void arrow_done(struct arrow_file *file);
/* Finds the dictionary of a field; NULL: there is none. */
const struct arrow_dictionary *arrow_find_dictionary(const struct arrow_file *file,
                                                     const struct arrow_field *field);
enum hd_status arrow_damaged(void);
enum hd_status arrow_no_memory(void);

#endif
