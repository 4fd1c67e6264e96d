#include "controller/cli/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "controller/cli/cli.h"

enum { CELL_BYTES_MAX = 1024, GAP = 2 };

struct table_cell {
    const char *text, *colour;
    int width;
};

struct table_row {
    struct table_row *next;
    struct table_cell cells[TABLE_COLUMNS_MAX];
};

void table_init(struct table *table, const struct table_column *columns, size_t column_count)
{
    *table = (struct table){.columns = columns, .column_count = column_count};
    hd_arena_init(&table->arena, 0);
}

void table_begin_row(struct table *table)
{
    struct table_row *row = hd_arena_alloc(&table->arena, sizeof *row);

    table->cell = 0;
    if (!row)
        return;
    if (table->last)
        table->last->next = row;
    else
        table->first = row;
    table->last = row;
}

void table_add_args(struct table *table, const char *colour, const char *fmt, va_list ap)
{
    struct hd_text clean = {0};
    char text[CELL_BYTES_MAX];
    struct table_cell *cell;

    if (!table->last || table->cell == table->column_count)
        return;
    cell = &table->last->cells[table->cell++];
    (void)vsnprintf(text, sizeof text, fmt, ap);
    cli_add_clean(&clean, text[0] ? text : "-");
    cell->text = clean.failed ? NULL : hd_arena_strdup(&table->arena, clean.data);
    if (!cell->text)
        cell->text = "-";
    cell->width = cli_text_width(cell->text);
    cell->colour = colour;
    hd_text_free(&clean);
}

void table_add(struct table *table, const char *colour, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    table_add_args(table, colour, fmt, ap);
    va_end(ap);
}

void table_add_row(struct table *table, const char *fmt, ...)
{
    char text[4 * CELL_BYTES_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    table_begin_row(table);
    for (char *rest = text, *cell; (cell = strsep(&rest, "\t"));)
        table_add(table, NULL, "%s", cell);
}

static void add_cell(struct hd_text *out, const struct table_column *column, const char *text,
                     const char *colour, int width, int columns, bool last)
{
    int pad = columns - width > 0 ? columns - width : 0;

    hd_text_add(out, "%*s%s%s%s", column->right ? pad : 0, "", colour ? "\033[" : "",
                colour ? colour : "", colour ? "m" : "");
    if (last && columns > 0)
        cli_add_cut(out, text, columns);
    else
        hd_text_add(out, "%s", text);
    hd_text_add(out, "%s%*s", colour ? "\033[0m" : "", last || column->right ? 0 : pad, "");
    hd_text_add(out, "%*s", last ? 0 : GAP, "");
}

void table_end(struct table *table, bool colour, int columns, struct hd_text *out)
{
    int widths[TABLE_COLUMNS_MAX] = {0}, left = columns;
    size_t n = table->column_count, last = n - 1;

    for (size_t i = 0; i < n; i++)
        widths[i] = cli_text_width(table->columns[i].title);
    for (const struct table_row *row = table->first; row; row = row->next)
        for (size_t i = 0; i < n; i++)
            if (row->cells[i].text && row->cells[i].width > widths[i])
                widths[i] = row->cells[i].width;
    for (size_t i = 0; i < last; i++)
        left -= widths[i] + GAP;
    if (columns > 0 && widths[last] > left) /* the last column keeps a minimum width */
        widths[last] = left > 12 ? left : 12;
    for (size_t i = 0; i < n; i++)
        add_cell(out, &table->columns[i], table->columns[i].title, colour ? "1" : NULL,
                 cli_text_width(table->columns[i].title), widths[i], i == last);
    hd_text_add(out, "\n");
    for (const struct table_row *row = table->first; row; row = row->next) {
        for (size_t i = 0; i < n; i++)
            add_cell(out, &table->columns[i], row->cells[i].text ? row->cells[i].text : "-",
                     colour ? row->cells[i].colour : NULL,
                     row->cells[i].text ? row->cells[i].width : 1, widths[i], i == last);
        hd_text_add(out, "\n");
    }
    hd_arena_done(&table->arena);
}

int table_terminal_columns(void)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        return size.ws_col;
    return 0;
}
