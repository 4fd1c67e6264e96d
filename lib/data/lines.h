/* lines: reads a file line by line, or record by record as lines of JSON (records/source.h), with a
 * limit per line, so that a file without line ends is refused before it fills the memory.
 *
 * Used by: jsonl, generate.   Uses: base, records.   Threads: one owner.
 */
#ifndef HD_DATA_LINES_H
#define HD_DATA_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "records/source.h"

struct hd_lines {
    const char *path;
    int64_t number;      /* number of the current line, from 1 */
    struct hd_text line; /* the current line, without its newline */
    size_t bytes_max;
    /* private to lines.c */
    struct hd_records *source;
    char *bytes;
    size_t from, until; /* offsets in `bytes`: the buffered bytes that are not read yet */
};

/* Opens a file to read it line by line; borrows the path. columns: see hd_records_open. Fails with
 * HD_NOT_FOUND, HD_IO or HD_INVALID. The caller must call hd_lines_close, also after a failure. */
enum hd_status hd_lines_open(struct hd_lines *lines, const char *path, const char *columns,
                             size_t bytes_max);
void hd_lines_close(struct hd_lines *lines);

/* Reads the next line into lines->line; sets *ret_there to false if the file has no more lines.
 * HD_INVALID, naming file and line: the line is longer than bytes_max, or the file is damaged. */
enum hd_status hd_lines_next(struct hd_lines *lines, bool *ret_there);

/* Returns whether lines->line has only white space. */
bool hd_lines_is_blank(const struct hd_lines *lines);
/* Returns the word in front of a line's number in messages, as hd_records_unit. */
const char *hd_lines_unit(const struct hd_lines *lines);

#endif
