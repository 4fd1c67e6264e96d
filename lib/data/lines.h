/* lines: reads a file line by line, each within a limit, so that a file without ends of lines is
 * refused before it fills the memory.
 *
 * Used by: jsonl, generate.   Uses: base.   Threads: one owner.
 */
#ifndef HD_DATA_LINES_H
#define HD_DATA_LINES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "base/text.h"

struct hd_lines {
    const char *path;
    int64_t number;      /* of the line, from 1 */
    struct hd_text line; /* without its end */
    size_t bytes_max;
    /* private */
    FILE *file;
    char *bytes;
    size_t from, until; /* of those, not taken yet */
};

/* Borrows the path. HD_NOT_FOUND, HD_IO. Close it in any case. */
enum hd_status hd_lines_open(struct hd_lines *lines, const char *path, size_t bytes_max);
void hd_lines_close(struct hd_lines *lines);

/* *ret_there false: the file has no further line. HD_INVALID, with file and line: one of more than
 * bytes_max. */
enum hd_status hd_lines_next(struct hd_lines *lines, bool *ret_there);

/* Whether lines->line has nothing but white space. */
bool hd_lines_is_blank(const struct hd_lines *lines);

#endif
