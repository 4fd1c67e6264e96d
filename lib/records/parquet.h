/* parquet: rows of a Parquet file, as lines of JSON.
 *
 *     footer (parquet_footer.c)  schema, and where each column of each row group lies
 *     pages  (parquet_page.c)    one column, page by page: levels and values
 *     rows   (parquet.c)         the columns' entries put together to rows
 *
 * The file is mapped. Memory: for each column that is read its dictionary and one page, unpacked.
 * Every size and offset in the file is checked before it is used; statistics and indexes are not
 * read. Dates, decimals and the like are refused where a row needs them.
 *
 * Used by: source, and by each other.   Uses: base, thrift, unpack.
 */
#ifndef HD_RECORDS_PARQUET_H
#define HD_RECORDS_PARQUET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/text.h"
#include "records_internal.h"

/* ---- footer ---- */

enum parquet_type { /* numbers of the format */
                    PARQUET_BOOLEAN,
                    PARQUET_INT32,
                    PARQUET_INT64,
                    PARQUET_INT96,
                    PARQUET_FLOAT,
                    PARQUET_DOUBLE,
                    PARQUET_BYTES,
                    PARQUET_FIXED,
                    PARQUET_TYPES
};

/* Meanings of the values of a column, or of a group. */
enum parquet_meaning {
    PARQUET_PLAIN, /* numbers, truth values, strings */
    PARQUET_UNSIGNED,
    PARQUET_JSON, /* text that is itself JSON */
    PARQUET_LIST,
    PARQUET_MAP,
    PARQUET_OTHER /* dates, decimals ..: refused if a row needs them */
};

struct parquet_element { /* one element of the schema */
    const char *name;
    size_t name_bytes;
    int type; /* enum parquet_type; -1: a group */
    int repetition;
    int64_t children;
    enum parquet_meaning meaning;
};

enum { PARQUET_REQUIRED, PARQUET_OPTIONAL, PARQUET_REPEATED };

struct parquet_chunk { /* a column in a row group */
    int type, codec;
    int64_t values;
    int64_t at; /* offset in the file of its first page */
    bool encrypted, elsewhere, given;
};

struct parquet_group {
    int64_t rows;
    const struct parquet_chunk *chunks; /* [leaves of the schema] */
};

struct parquet_footer {
    const unsigned char *file;
    int64_t file_bytes;
    int64_t end; /* offset of the footer: pages lie before it */
    struct parquet_element *elements;
    size_t element_count, leaf_count;
    struct parquet_group *groups;
    size_t group_count;
    int64_t rows;
};

/* Reads the footer of a file in memory; arrays live in the arena. HD_INVALID: damaged or
 * encrypted. */
enum hd_status parquet_read_footer(const unsigned char *file, int64_t file_bytes,
                                   struct hd_arena *arena, struct parquet_footer *ret_footer);

/* ---- pages ---- */

/* Numbers of few bits each, as runs of equal ones or packed: RLE/bit-packed hybrid. */
struct parquet_hybrid {
    const unsigned char *at, *end;
    int width;                /* bits of a number, 0 to 32 */
    uint64_t left;            /* numbers left in the run */
    bool packed;              /* whether the run is packed */
    uint32_t value;           /* the number of a run of equal ones */
    uint64_t bit;             /* packed run: the next bit, counted from `run` */
    const unsigned char *run; /* packed run: its first byte */
    bool failed;
};

struct parquet_delta { /* DELTA_BINARY_PACKED */
    const unsigned char *at, *end;
    uint64_t left;         /* numbers left */
    uint64_t value, least; /* the last number; the least difference of the block */
    uint64_t block, minis; /* numbers of a block; its parts */
    const unsigned char *widths;
    uint64_t mini, in_mini; /* index of the part; numbers left in it */
    uint64_t bit;
    bool began, failed;
};

struct parquet_bytes {
    const unsigned char *at;
    size_t count;
};

struct parquet_column { /* one leaf of the schema while a row group is read */
    const struct parquet_footer *footer;
    struct records_use *use;
    const struct parquet_element *element;
    int def_max, rep_max;
    struct parquet_chunk chunk;
    int64_t at;          /* offset in the file of the next page */
    int64_t values_left; /* entries of the chunk in later pages */
    /* dictionary */
    unsigned char *dictionary; /* its unpacked page; NULL: not unpacked, or none */
    const unsigned char *dictionary_at;
    size_t dictionary_bytes;
    struct parquet_bytes *words; /* [word_count] of byte strings; NULL: numbers */
    size_t word_count;
    /* page */
    unsigned char *page; /* unpacked; NULL: read where it lies */
    int64_t page_left;   /* entries left in the page */
    struct parquet_hybrid reps, defs, codes;
    int encoding;
    const unsigned char *values, *values_end;
    uint64_t split_count, split_index; /* BYTE_STREAM_SPLIT: values of the page; the next one */
    uint64_t bit;                      /* PLAIN of truth values: the next bit */
    struct parquet_delta prefixes, deltas;
    struct hd_text last;     /* DELTA_BYTE_ARRAY: the last string */
    unsigned char number[8]; /* the last number that does not lie in a page */
    /* the current entry */
    bool has;
    int rep, def;
};

/* Begins to read a chunk, and reads its first entry. */
enum hd_status parquet_begin(struct parquet_column *column, const struct parquet_chunk *chunk);
void parquet_end(struct parquet_column *column); /* frees memory; may be called at any time */
/* Moves to the next entry; column->has is false behind the last one. */
enum hd_status parquet_advance(struct parquet_column *column);
/* Reads the value of the current entry, which has def == def_max; once for each entry. The bytes
 * are good until the next call for the column: a string, or a number, lowest byte first. */
enum hd_status parquet_value(struct parquet_column *column, struct parquet_bytes *ret_value);

#endif
