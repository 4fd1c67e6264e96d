/* rows: a list that a command prints: a table or lines for people, JSON for programs.
 *
 *     static const struct rows_column columns[] = {
 *         {"QUEUE", ROWS_OF(Heddle__V1__QueueStatus, name)},
 *         {"MAX", .cell = add_max_cell, .right = true},
 *         {"STEP", .text = "{step}/{steps}", .right = true},
 *     };
 *     static const struct rows_kind queues = {"QueueList", "queue", ROWS_COLUMNS(columns),
 *                                             .json = "name weight", or .show = a function};
 *     return rows_print(cli, &queues, (const void *const *)response->queues, response->n_queues);
 *
 * A kind of list is written down once: what its columns show, its JSON members, its names. The
 * flags -o and --color choose the form. What `text` and `json` show of messages of the protocol is
 * written as in say.h and show/form.h.
 *
 * Used by: the commands.   Uses: controller/show, cli.h, table.   Threads: one.
 */
#ifndef HD_CLI_ROWS_H
#define HD_CLI_ROWS_H

#include <stddef.h>

#include "controller/cli/cli.h"
#include "controller/cli/table.h"
#include "controller/show/show.h"

struct cli_rows;

enum rows_type { ROWS_NONE, ROWS_TEXT, ROWS_INT32, ROWS_INT64, ROWS_UINT64, ROWS_BOOL };

/* The member of an item that a column shows, with its type. */
#define ROWS_OF(item, member) \
    .offset = offsetof(item, member), .type = _Generic(((item *)0)->member, \
                                                       char *: ROWS_TEXT,  \
                                                       const char *: ROWS_TEXT, \
                                                       int32_t: ROWS_INT32,     \
                                                       int64_t: ROWS_INT64,     \
                                                       uint64_t: ROWS_UINT64,   \
                                                       bool: ROWS_BOOL)

enum rows_form {
    ROWS_PLAIN,
    ROWS_SOME,      /* a number of which 0 is shown as "-" */
    ROWS_TIME,      /* a time (Unix, ms), shown in UTC; 0: "-" */
    ROWS_WHEN,      /* a time (Unix, ms), shown by its age, with -o wide in UTC; 0: "-" */
    ROWS_BYTES,     /* a size, shown as "1.2 MB" */
    ROWS_SOME_BYTES /* a size of which 0 is shown as "-" */
};

enum rows_width { ROWS_ALWAYS, ROWS_NARROW_ONLY, ROWS_WIDE_ONLY, ROWS_WIDE_OR_TOP };

struct rows_column {
    const char *title;        /* title of the column; NULL: in JSON alone */
    size_t offset;            /* member of the item, set by ROWS_OF */
    enum rows_type type;      /* type of the member; ROWS_NONE: `cell` fills the column */
    enum rows_form form;      /* form of the member in a table */
    enum rows_width in_width; /* formats that have the column */
    bool right;               /* right-aligned; numbers, ages and sizes always are */
    const char *json;         /* name of the JSON member; NULL: in no JSON, or the kind writes it */
    const char *text; /* text of the cell by say.h, of items that are messages; NULL: none */
    /* Fills one cell by one call of rows_cell. */
    void (*cell)(struct cli_rows *rows, const void *item);
};

struct rows_kind {
    const char *kind, *type; /* names of the envelope and of an item, "QueueList" and "queue" */
    const struct rows_column *columns;
    size_t column_count;
    /* The JSON members of an item: by a form (show/form.h), or by a function; both NULL: by the
     * columns' `json`. */
    const char *json;
    void (*show)(struct hd_json_writer *writer, const void *item);
    /* The text of an item in place of a table: by a text with places (say.h), and behind it by a
     * function. The last one ends the line. */
    const char *text;
    void (*line)(const struct cli *cli, struct hd_text *out, const void *item);
    bool is_uncut; /* the last column is not cut at the terminal's width */
    bool is_top;   /* the columns are those of heddle top, whatever the format */
};
#define ROWS_COLUMNS(rows) .columns = rows, .column_count = sizeof rows / sizeof rows[0]

struct cli_rows {
    const struct cli *cli;
    const struct rows_kind *kind;
    struct hd_text out;           /* output that is not printed yet */
    struct hd_json_writer writer; /* members of the item that is open */
    struct table table;
    struct table_column titles[TABLE_COLUMNS_MAX];
};

void rows_begin(struct cli_rows *rows, const struct cli *cli, const struct rows_kind *kind);
/* Adds an item; with JSON or `line`, rows_flush may print it at once. */
void rows_add(struct cli_rows *rows, const void *item);
bool rows_flush(struct cli_rows *rows);
/* Prints the list if `code` is CLI_CONTINUE; frees it in any case. Returns the exit code. */
int rows_end(struct cli_rows *rows, int code);
/* Appends the list to `out` in place of printing it, and frees it. */
void rows_end_in(struct cli_rows *rows, struct hd_text *out);

/* Print a whole list: of pointers, of an array with items of item_bytes, or one item as a list. Return
 * the exit code. */
int rows_print(const struct cli *cli, const struct rows_kind *kind, const void *const *items,
               size_t count);
int rows_print_array(const struct cli *cli, const struct rows_kind *kind, const void *items,
                     size_t count, size_t item_bytes);
int rows_print_one(const struct cli *cli, const struct rows_kind *kind, const void *item);

/* Makes a call and prints its answer as a list; prints the answer's warning. member: member of the
 * response that has the items or the item; NULL: the response is the item. Returns the exit code. */
int rows_ask(struct cli *cli, const char *method, const ProtobufCMessage *request,
             const char *member, const struct rows_kind *kind);

/* Fills the next cell of a table; empty text shows as "-". */
void rows_cell(struct cli_rows *rows, const char *colour, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fills the next cell with a text that was put together, and frees it. */
void rows_text_cell(struct cli_rows *rows, const char *colour, struct hd_text *text);

/* ---- jobs ---- */

extern const struct rows_kind rows_job_named; /* lines "job 7 tiny queued: REASON" */
extern const struct rows_kind rows_job_state; /* lines "job 7 queued: REASON" */
extern const struct rows_kind rows_top;       /* the table of heddle top */

#endif
