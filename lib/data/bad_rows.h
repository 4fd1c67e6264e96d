/* bad_rows: records that cannot be used: whether a job leaves them out, and which they are.
 *
 * data.bad_rows is `error`, `skip` (at most 1 in 100 records of a file, rounded up) or `skip:COUNT`
 * (at most COUNT). What is bad is one record: no JSON, no text, no conversation of the file's form,
 * refused by the chat template. A file that is damaged as a whole is an error in any case.
 *
 * Used by: jsonl, tokenize, survey, train, spec, worker.   Uses: base.   Threads: one owner.
 */
#ifndef HD_DATA_BAD_ROWS_H
#define HD_DATA_BAD_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { HD_BAD_ROWS_SHOWN = 20 };

struct hd_bad_rule {
    bool skips;        /* false: a bad record is an error */
    int64_t count_max; /* bad records of a file that are left out; -1: 1 in 100 */
};

/* Reads the text of data.bad_rows; NULL: error. HD_INVALID: it is none of the above. */
enum hd_status hd_bad_rule_read(const char *text, struct hd_bad_rule *ret_rule);

struct hd_bad_rows { /* initialise with zeros */
    int64_t records; /* records looked at, bad ones included */
    int64_t count;   /* bad ones */
    /* a line "FILE:ROW: REASON" for each of the first HD_BAD_ROWS_SHOWN bad ones; a reason ends
     * without its advice, the part from "; " on, where the line before has the same advice */
    struct hd_text reasons;
    struct hd_text advice; /* advice of the last line of `reasons` */
};

/* Notes a bad record with this thread's error message, which names file and row. */
void hd_bad_rows_add(struct hd_bad_rows *rows);
/* Adds the counts and lines of `more`, whose records follow those of `rows`. */
void hd_bad_rows_join(struct hd_bad_rows *rows, const struct hd_bad_rows *more);
void hd_bad_rows_free(struct hd_bad_rows *rows);

/* Returns HD_INVALID if the rule does not allow as many bad records as `rows` has. where: name of
 * the file or files, for the message. */
enum hd_status hd_bad_rows_judge(const struct hd_bad_rows *rows, const struct hd_bad_rule *rule,
                                 const char *where);
/* Returns the first reason without its end of line, in the caller's buffer. */
const char *hd_bad_rows_first(const struct hd_bad_rows *rows, char *ret_text, size_t size_bytes);

#endif
