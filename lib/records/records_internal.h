#ifndef HD_RECORDS_INTERNAL_H
#define HD_RECORDS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "records/kind.h"
#include "records/source.h"

/* ---- foreign.c: kinds of files by their magic ---- */

/* A kind of file that is no plain text. The first row whose magic or name matches decides. */
struct records_foreign {
    const char *kind;   /* name of the kind, with its article */
    const char *names;  /* file name endings, with a blank before and after each; "": none */
    const char *remedy; /* advice to the user; NULL: the kind is read */
    size_t at;          /* offset of the magic, bytes */
    size_t magic_bytes; /* bytes of the magic; 0: only the name tells the kind */
    const char *magic;
    enum hd_data_packing packing; /* a kind that is read; HD_DATA_UNPACKED: `reads` says which */
    enum hd_data_kind reads;      /* with a remedy: a kind of tokens, read by its name alone */
};

/* Returns the row whose magic the bytes have; NULL: none. */
const struct records_foreign *records_by_magic(const char *head, size_t bytes);
/* Returns the row with the ending of the name; NULL: none. */
const struct records_foreign *records_by_name(const char *path);
/* Returns whether the file's name ends in one of `names`, the endings in a row of the table. */
bool records_is_named(const char *path, const char *names);

/* ---- stream.c: the bytes of a file, decompressed ---- */

struct records_stream;

/* Opens a file, whose bytes are read as they are. */
enum hd_status records_stream_open(const char *path, struct records_stream **ret_stream);
void records_stream_close(struct records_stream *stream); /* NULL is fine */
/* Reads until the buffer is full or the file ends: *ret_count < bytes only at the end. HD_INVALID,
 * naming the file: the compressed data are damaged. */
enum hd_status records_stream_read(struct records_stream *stream, char *ret_bytes, size_t bytes,
                                   size_t *ret_count);
/* Moves to the first byte, to decompress from there. HD_INVALID: this build lacks the library that
 * unpacks the file. */
enum hd_status records_stream_restart(struct records_stream *stream, enum hd_data_packing packing);
/* Moves to byte `at` of a file that is not compressed. */
enum hd_status records_stream_seek(struct records_stream *stream, int64_t at);
/* Returns the bytes of the file that were read so far, before decompression. */
int64_t records_stream_place(const struct records_stream *stream);

/* ---- kind.c ---- */

/* Opens a file that is not named as tokens, finds its kind, and moves to its first byte, to
 * decompress from there; fails as hd_data_look. ret_stream NULL: the caller needs the kind alone. */
enum hd_status records_classify(const char *path, struct hd_data_facts *ret_file,
                                struct records_stream **ret_stream);

struct records_columns;

/* ---- readers of records: each appends JSON objects to `out`, one per line ---- */

struct records_reader {
    /* Appends at least one record, or sets *ret_there to false at the end. */
    enum hd_status (*next)(void *reader, struct hd_text *out, bool *ret_there);
    void (*close)(void *reader);
    /* returns bytes of the file read so far; NULL: those of the stream */
    int64_t (*place)(const void *reader);
};

enum { RECORDS_BYTES_MAX = 64 << 20 }; /* bytes of a record as JSON */
#define RECORDS_MAX_TEXT "64 MiB"

/* Appends, in place of a row that cannot become a record, a line that hd_records_check_row refuses
 * with this reason. */
void records_add_refused(struct hd_text *out, const char *reason);

/* Each opens a reader of a stream, which the caller keeps open and closes. */
enum hd_status records_json_open(const char *path, struct records_stream *stream,
                                 void **ret_reader);
enum hd_status records_csv_open(const char *path, struct records_stream *stream, char separator,
                                void **ret_reader);
/* Returns the number of blanks of JSON at the beginning of a text. */
size_t records_count_blanks(const char *text, size_t bytes);
/* Returns the offset of the first element of an array that is the first member of an object, under
 * a name such as "data": {"data": [..]}; 0: the text does not begin so. */
size_t records_find_wrapped(const char *text, size_t bytes);
/* Each opens a reader of a whole file in memory, which must outlive the reader. path: for messages;
 * copied. */
enum hd_status records_parquet_open(const char *path, const unsigned char *bytes, int64_t count,
                                    const struct records_columns *columns, void **ret_reader);
enum hd_status records_arrow_open(const char *path, const unsigned char *bytes, int64_t count,
                                  const struct records_columns *columns, void **ret_reader);
extern const struct records_reader records_json, records_csv, records_parquet, records_arrow;

/* ---- columns.c ---- */

enum { RECORDS_COLUMNS_MAX = 16 };

/* Members of a record by the columns that hold them, parsed from data.columns. */
struct records_columns {
    struct {
        const char *name, *column; /* a name of data.columns, and the column that has it */
        const char *member;        /* the member of a record that the column becomes */
    } pairs[RECORDS_COLUMNS_MAX];
    int count;
    char *text; /* memory of the names */
};

/* HD_INVALID: the text is not NAME=COLUMN, separated by commas, or has an unknown name. */
enum hd_status records_columns_parse(const char *text, struct records_columns *ret_columns);
void records_columns_done(struct records_columns *columns);
/* Returns the member that a column becomes; NULL: the column is not named. */
const char *records_columns_name(const struct records_columns *columns, const char *column,
                                 size_t bytes);
/* Returns whether a column is read: a named one or, if none is named, one with a meaning. */
bool records_columns_want(const struct records_columns *columns, const char *name, size_t bytes);
/* Refuses a column of pictures, films or sounds, unless data.columns names the columns to read. */
enum hd_status records_columns_refuse_media(const struct records_columns *columns, const char *name,
                                            size_t bytes);

/* Checks that the first record of a file has the named columns; the message lists those it has. */
enum hd_status records_check_first(const struct records_columns *columns, const char *line,
                                   size_t bytes);
/* Appends a record, given as a line of JSON, with the named columns alone, as their members. */
void records_select(const struct records_columns *columns, const char *line, size_t bytes,
                    struct hd_text *out);

/* ---- unpack.c ---- */

/* Bytes of a columnar file that were read so far, over all its columns. They reveal a file that was
 * made to take long or to fill the memory: its columns share bytes, so that more is read than the
 * file has; or its blocks unpack to far more than the blocks of any real text. */
struct records_use {
    int64_t file_bytes;       /* size of the file */
    int64_t read;             /* bytes of pages or batches */
    int64_t packed, unpacked; /* bytes that were packed, before and behind unpacking */
};

/* Counts bytes that are read of the file. HD_INVALID: more than it has. */
enum hd_status records_use_read(struct records_use *use, int64_t bytes);
/* Counts a block before it is unpacked. HD_INVALID: all hold far too much for their size. */
enum hd_status records_use_packed(struct records_use *use, int64_t packed, int64_t unpacked);

/* ---- map.c ---- */

/* Maps a file into memory. */
enum hd_status records_map(const char *path, const unsigned char **ret_bytes, int64_t *ret_count);
void records_unmap(const unsigned char *bytes, int64_t count);

/* ---- write.c: JSON text ---- */

/* Appends a string in quotes. Bytes that are not UTF-8 are appended as they are, for the reader of
 * the record to refuse. */
void records_add_string(struct hd_text *out, const char *bytes, size_t count);
/* Appends a number of 64 bits; a real number that is not finite becomes null. */
void records_add_int(struct hd_text *out, int64_t value);
void records_add_unsigned(struct hd_text *out, uint64_t value);
void records_add_real(struct hd_text *out, double value);
/* Appends text that is JSON itself, in one line. */
void records_add_json(struct hd_text *out, const char *bytes, size_t count);

#endif
