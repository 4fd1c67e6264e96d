/* plot_text: panels as characters for a terminal.
 *
 * With braille each character has 2 x 4 dots (U+2800 and bits for its dots), else one place, drawn
 * as '*', validations as 'o'. Each column of dots has the newest smoothed value of its steps; dots
 * between two neighbouring columns are filled, so that a steep line stays one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/cli/plot.h"

enum {
    ROWS = 14,         /* rows of characters in a panel */
    LABEL_COLUMNS = 8, /* columns for the labels of the vertical axis */
    COLUMNS_MIN = 24,
    COLUMNS_MAX = 160,
};

struct grid {
    int columns, per_x, per_y; /* characters in a row; dots of a character */
    /* each by character: bits of its braille dots, else 0 or 1; index of the run drawn last;
     * whether a validation is drawn */
    unsigned char dots[ROWS][COLUMNS_MAX], run[ROWS][COLUMNS_MAX];
    bool validation[ROWS][COLUMNS_MAX];
};

static void set_dot(struct grid *g, int x, int y, int run)
{
    static const unsigned char bits[4][2] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};
    const int column = x / g->per_x, row = y / g->per_y;

    if (x < 0 || y < 0 || column >= g->columns || row >= ROWS)
        return;
    g->dots[row][column] |= g->per_x == 2 ? bits[y % 4][x % 2] : 1;
    g->run[row][column] = (unsigned char)run;
}

static int dot_x(const struct grid *g, const struct plot_panel *p, double x)
{
    return (int)((x - p->x_min) / (p->x_max - p->x_min) * (g->columns * g->per_x - 1) + 0.5);
}

static int dot_y(const struct grid *g, const struct plot_panel *p, double y)
{
    return (int)((1 - plot_share(p, y)) * (ROWS * g->per_y - 1) + 0.5);
}

static void draw_line(struct grid *g, const struct plot_panel *p, const struct plot_line *line)
{
    int last_x = -1, last_y = 0;

    for (size_t i = 0; i < line->count; i++) {
        const struct plot_point *point = &line->points[i];
        int x, y;

        if (!isfinite(point->smooth))
            continue;
        x = dot_x(g, p, point->x);
        y = dot_y(g, p, point->smooth);
        if (i + 1 < line->count && isfinite(line->points[i + 1].smooth) &&
            dot_x(g, p, line->points[i + 1].x) == x)
            continue; /* a newer step of this column follows */
        set_dot(g, x, y, line->colour);
        for (int between = last_x + 1; last_x >= 0 && between < x; between++)
            set_dot(g, between, last_y + (y - last_y) * (between - last_x) / (x - last_x),
                    line->colour);
        for (int down = last_y; last_x >= 0 && x - last_x == 1 && down != y;
             down += y > down ? 1 : -1)
            set_dot(g, x, down, line->colour);
        last_x = x;
        last_y = y;
    }
}

static void draw_dots(struct grid *g, const struct plot_panel *p, const struct plot_line *line)
{
    for (size_t i = 0; i < line->count; i++)
        if (isfinite(line->points[i].y)) {
            const int column = dot_x(g, p, line->points[i].x) / g->per_x;
            const int row = dot_y(g, p, line->points[i].y) / g->per_y;

            if (column >= 0 && column < g->columns && row < ROWS) {
                g->validation[row][column] = true;
                g->run[row][column] = (unsigned char)line->colour;
            }
        }
}

static const char *colour_of(int run)
{
    static const char *const colours[] = {"36", "33", "34", "31", "35", "32", "96", "95"};

    return colours[run % 8];
}

static void add_character(const struct grid *g, int row, int column, bool colour,
                          struct hd_text *out)
{
    const unsigned char dots = g->dots[row][column];
    char text[8] = " ";

    if (g->validation[row][column])
        (void)snprintf(text, sizeof text, "o");
    else if (dots && g->per_x == 2) /* U+2800 + dots in UTF-8 */
        (void)snprintf(text, sizeof text, "\xe2%c%c", 0xA0 + (dots >> 6), 0x80 + (dots & 63));
    else if (dots)
        (void)snprintf(text, sizeof text, "*");
    cli_add_coloured(out, colour && text[0] != ' ' ? colour_of(g->run[row][column]) : NULL, text);
}

/* Appends the row of labels below a panel. */
static void add_x_labels(const struct grid *g, const struct plot_panel *p,
                         const struct plot_options *options, struct hd_text *out)
{
    char row[COLUMNS_MAX + 32], text[32];
    double ticks[PLOT_TICKS_MAX];
    const int count = plot_ticks(p->x_min, p->x_max, false, g->columns / 16 + 1, ticks);
    int end = 0;

    memset(row, ' ', sizeof row);
    for (int i = 0; i < count; i++) {
        int at, len;

        plot_format(ticks[i], text);
        len = (int)strlen(text);
        at = dot_x(g, p, ticks[i]) / g->per_x - len / 2;
        at = at < 0 ? 0 : at + len > g->columns ? g->columns - len : at;
        if (at < end + (end > 0))
            continue;
        memcpy(row + at, text, (size_t)len);
        end = at + len;
    }
    hd_text_add(out, "%*s  %.*s\n%*s  %*s\n", LABEL_COLUMNS, "", end, row, LABEL_COLUMNS, "",
                (g->columns + (int)strlen(plot_axis_name(options->axis))) / 2,
                plot_axis_name(options->axis));
}

static void add_panel(const struct plot_panel *p, const struct plot_options *options, int columns,
                      bool braille, bool colour, struct hd_text *out)
{
    struct grid g = {.columns = columns, .per_x = braille ? 2 : 1, .per_y = braille ? 4 : 1};
    double ticks[PLOT_TICKS_MAX];
    const int count = plot_ticks(p->y_min, p->y_max, p->log, 4, ticks);

    for (size_t l = 0; l < p->line_count; l++)
        if (!p->lines[l].dots)
            draw_line(&g, p, &p->lines[l]);
    for (size_t l = 0; l < p->line_count; l++)
        if (p->lines[l].dots)
            draw_dots(&g, p, &p->lines[l]);
    plot_add_title(p, out);
    hd_text_add(out, "\n");
    for (int row = 0; row < ROWS; row++) {
        char label[32] = "";
        int end = columns;

        for (int i = 0; i < count; i++)
            if (dot_y(&g, p, ticks[i]) / g.per_y == row)
                plot_format(ticks[i], label);
        while (end && !g.dots[row][end - 1] && !g.validation[row][end - 1])
            end--;
        hd_text_add(out, "%*s%s", LABEL_COLUMNS, label, end ? " |" : " |\n");
        for (int column = 0; column < end; column++)
            add_character(&g, row, column, colour, out);
        if (end)
            hd_text_add(out, "\n");
    }
    add_x_labels(&g, p, options, out);
}

/* Appends the losses of the newest validation, one for each set. */
static void add_validations(const struct plot_run *run, struct hd_text *out)
{
    const int64_t newest = run->validations[run->validation_count - 1].step;

    hd_text_add(out, ", validation");
    for (size_t i = 0; i < run->validation_count; i++) {
        const struct plot_validation *v = &run->validations[i];

        if (v->step != newest)
            continue;
        hd_text_add(out, " ");
        cli_add_clean(out, v->set);
        hd_text_add(out, "%s%.4g", *v->set ? " " : "", v->loss);
    }
    hd_text_add(out, " (o)");
}

void plot_text(const struct plot_panel *panels, const struct plot_run *runs, size_t run_count,
               const struct plot_options *options, int columns, bool braille, bool colour,
               struct hd_text *out)
{
    bool has_loss = false;

    columns -= LABEL_COLUMNS + 2;
    columns = columns < COLUMNS_MIN ? COLUMNS_MIN : columns > COLUMNS_MAX ? COLUMNS_MAX : columns;
    for (int k = 0; k < options->metric_count; k++)
        add_panel(&panels[k], options, columns, braille, colour, out);
    for (int k = 0; k < options->metric_count; k++)
        has_loss |= options->metrics[k] == HD_METRIC_INDEX_loss;
    for (size_t r = 0; r < run_count; r++) {
        const struct plot_run *run = &runs[r];
        struct hd_text name = {0};

        cli_add_clean(&name, run->name);
        cli_add_coloured(out, colour ? colour_of((int)r) : NULL, name.failed ? "?" : name.data);
        hd_text_free(&name);
        hd_text_add(out, ": %zu steps", run->step_count);
        for (int k = 0; k < options->metric_count && run->step_count; k++) {
            const double value = run->steps[run->step_count - 1].values[k];

            if (isfinite(value))
                hd_text_add(out, ", %s %.4g", panels[k].title, value);
        }
        if (run->validation_count && has_loss)
            add_validations(run, out);
        hd_text_add(out, "\n");
    }
}
