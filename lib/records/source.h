/* source: reads a data file as text, or as records, whatever container holds them.
 *
 *     file --stream (gzip, zstd)--> bytes --reader (array, table, columns)--> lines of JSON
 *
 * Text comes as it is. Records come as JSON objects, one per line, as in a .jsonl, so that the code
 * behind a source knows no containers. A null column of a table is no member of the object. A byte
 * order mark in front of text or records is dropped. Memory: two buffers of 256 KiB and one record;
 * for a columnar file also a page, or a batch, of each column that is read.
 *
 * Used by: data, spec, worker.   Uses: base.   Threads: one owner.
 */
#ifndef HD_RECORDS_SOURCE_H
#define HD_RECORDS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hd_records;

/* Checks the text of data.columns: NAME=COLUMN, separated by commas. HD_INVALID otherwise. */
enum hd_status hd_records_check_columns(const char *columns);

/* Opens a file; refuses what hd_data_look refuses. columns: text of data.columns; records then have
 * these columns alone, as members named after NAME: prompt=question makes "question" the member
 * "prompt". NULL or "": all columns that some form of a record reads, under their own names. */
enum hd_status hd_records_open(const char *path, const char *columns,
                               struct hd_records **ret_source);
void hd_records_close(struct hd_records *source); /* NULL is fine */

/* Reads the next bytes; *ret_count < bytes only at the end of the file. HD_INVALID, naming the file
 * and, where it is known, the row: the file is damaged. */
enum hd_status hd_records_read(struct hd_records *source, char *ret_bytes, size_t bytes,
                               size_t *ret_count);

/* Returns HD_INVALID if the source wrote this line in place of a row that cannot become a record,
 * such as a row of a table with too many fields; the message is the reason. Reading goes on with
 * the next row. */
enum hd_status hd_records_check_row(const char *line, size_t bytes);

/* Returns whether the source has records, so that its bytes are lines of JSON. */
bool hd_records_are_rows(const struct hd_records *source);
/* Returns the word in front of a record's number in messages: " row " if the file has no lines of
 * its own, else "". */
const char *hd_records_unit(const struct hd_records *source);
/* Returns the bytes of the file that were read so far, for progress; the file's size at its end. */
int64_t hd_records_place(const struct hd_records *source);

#endif
