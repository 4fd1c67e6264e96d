/* table: rows of text in aligned columns, for people.
 *
 * Used by: the verbs.   Uses: base, cli.h.   Threads: one owner.
 */
#ifndef HD_CLI_TABLE_H
#define HD_CLI_TABLE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/text.h"

enum { TABLE_COLUMNS_MAX = 20 };

struct table_column {
    const char *title;
    bool right; /* the column's text is right-aligned, as numbers are */
};

struct table {
    struct hd_arena arena;
    const struct table_column *columns;
    size_t column_count;
    struct table_row *first, *last;
    size_t cell; /* column of the last row that table_add fills next */
};

/* Prepares an empty table; the columns must outlive it. */
void table_init(struct table *table, const struct table_column *columns, size_t column_count);

/* Adds a row. Its cells are the text, separated by tabs. */
void table_add_row(struct table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void table_begin_row(struct table *table);
/* Fills the next cell of the last row; empty text shows as "-". Control characters become '?'.
 * colour: SGR code such as "32", or NULL. */
void table_add(struct table *table, const char *colour, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void table_add_args(struct table *table, const char *colour, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* Appends title line and rows, and frees the table. columns > 0: the last column is cut so that no line
 * is wider. */
void table_end(struct table *table, bool colour, int columns, struct hd_text *out);

/* Returns the columns of the terminal on stdout; 0: stdout is no terminal. */
int table_terminal_columns(void);

#endif
