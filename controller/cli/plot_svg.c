/* plot_svg: panels as one SVG picture, and their values as CSV.
 *
 * A line has at most one point for each pixel column: the newest smoothed value. With a single run
 * a band behind it spans the lowest and the highest unsmoothed value of the column. Colours change
 * with the page's colour scheme. Coordinates have one decimal. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/cli/plot.h"
#include "job/job.h"

enum {
    LEFT = 64, /* pixels around a panel's plotting area, with labels and title */
    RIGHT = 20,
    TOP = 40,
    BOTTOM = 44,
    AREA_HEIGHT = 260,
    LEGEND_ROW = 20,
};

static const char style[] =
    "svg{background:#fbfbf9;font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',"
    "sans-serif}text{fill:#626866}.t{fill:#1c1f1e;font-weight:600}.g{stroke:#e3e4df}"
    "path{fill:none;stroke-width:1.6;stroke-linejoin:round}.b{opacity:.18}.k{stroke-width:3}";
static const char dark_style[] =
    "@media(prefers-color-scheme:dark){svg{background:#121415}text{fill:#9da4a1}"
    ".t{fill:#e7e9e7}.g{stroke:#2a2e2f}";

/* Colours of lines, on light and on dark pages. Classes, since many viewers know no variables. */
static const struct {
    const char *light, *dark;
} colours[] = {{"#12716b", "#66c7be"}, {"#b45309", "#f0ab5a"}, {"#3b5bdb", "#91a7ff"},
               {"#b3261e", "#ff8f85"}, {"#6d3fb0", "#c4a1f5"}, {"#4d7c0f", "#a3d955"},
               {"#0e7490", "#67d0e6"}, {"#9d174d", "#f48fb9"}};
enum { COLOURS = sizeof colours / sizeof colours[0] };

static void add_style(struct hd_text *out)
{
    hd_text_add(out, "<style>%s", style);
    for (int i = 0; i < COLOURS; i++)
        hd_text_add(out, ".c%d{stroke:%s}.f%d{fill:%s}", i, colours[i].light, i, colours[i].light);
    hd_text_add(out, "%s", dark_style);
    for (int i = 0; i < COLOURS; i++)
        hd_text_add(out, ".c%d{stroke:%s}.f%d{fill:%s}", i, colours[i].dark, i, colours[i].dark);
    hd_text_add(out, "}</style>\n");
}

struct area {
    const struct plot_panel *panel;
    double left, top, width, height; /* position and size of the plotting area, pixels */
    int column_count;
};

static double pixel_x(const struct area *a, double x)
{
    return a->left + a->width * (x - a->panel->x_min) / (a->panel->x_max - a->panel->x_min);
}

/* Returns the row of a value; one outside of the axis is on its border. */
static double pixel_y(const struct area *a, double y)
{
    return a->top + a->height * (1 - plot_share(a->panel, y));
}

/* Appends text with the characters that XML reserves as entities; control characters, which XML
 * does not have, become '?'. */
static void add_escaped(struct hd_text *out, const char *text)
{
    struct hd_text clean = {0};

    cli_add_clean(&clean, text);
    for (const char *c = clean.failed ? "?" : clean.data ? clean.data : ""; *c; c++)
        if (*c == '&')
            hd_text_add(out, "&amp;");
        else if (*c == '<')
            hd_text_add(out, "&lt;");
        else if (*c == '>')
            hd_text_add(out, "&gt;");
        else
            hd_text_add(out, "%c", *c);
    hd_text_free(&clean);
}

static void add_ticks(const struct area *a, const struct plot_options *options, struct hd_text *out)
{
    const struct plot_panel *p = a->panel;
    double ticks[PLOT_TICKS_MAX];
    char text[32];
    int count = plot_ticks(p->y_min, p->y_max, p->log, 5, ticks);

    for (int i = 0; i < count; i++) {
        const double y = pixel_y(a, ticks[i]);

        plot_format(ticks[i], text);
        hd_text_add(out,
                    "<line class=\"g\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                    "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                    a->left, y, a->left + a->width, y, a->left - 8, y + 4, text);
    }
    count = plot_ticks(p->x_min, p->x_max, false, a->width > 500 ? 8 : 4, ticks);
    for (int i = 0; i < count; i++) {
        plot_format(ticks[i], text);
        hd_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                    pixel_x(a, ticks[i]), a->top + a->height + 18, text);
    }
    hd_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                a->left + a->width / 2, a->top + a->height + 36, plot_axis_name(options->axis));
    hd_text_add(out, "<text class=\"t\" x=\"%.1f\" y=\"%.1f\">", a->left, a->top - 14);
    plot_add_title(p, out);
    hd_text_add(out, "</text>\n");
}

static int column_of(const struct area *a, double x)
{
    const int column = (int)((pixel_x(a, x) - a->left) / a->width * (a->column_count - 1) + 0.5);

    return column < 0 ? 0 : column >= a->column_count ? a->column_count - 1 : column;
}

struct column {
    bool present;
    double x, last, low, high; /* position; newest smoothed value; bounds of unsmoothed values */
};

static void add_band(const struct area *a, const struct column *columns, int colour,
                     struct hd_text *out)
{
    const char *move = "M";

    hd_text_add(out, "<path class=\"b f%d\" d=\"", colour);
    for (int i = 0; i < a->column_count; i++)
        if (columns[i].present) {
            hd_text_add(out, "%s%.1f %.1f", move, columns[i].x, pixel_y(a, columns[i].high));
            move = "L";
        }
    for (int i = a->column_count - 1; i >= 0; i--)
        if (columns[i].present)
            hd_text_add(out, "L%.1f %.1f", columns[i].x, pixel_y(a, columns[i].low));
    hd_text_add(out, "Z\"/>\n");
}

static void add_curve(const struct area *a, const struct plot_line *line, bool band,
                      struct column *columns, struct hd_text *out)
{
    const int colour = line->colour % COLOURS;
    const char *move = "M";
    bool any = false;

    memset(columns, 0, (size_t)a->column_count * sizeof *columns);
    for (size_t i = 0; i < line->count; i++) {
        const struct plot_point *p = &line->points[i];
        struct column *c = &columns[column_of(a, p->x)];

        if (!isfinite(p->smooth))
            continue;
        c->low = c->present ? fmin(c->low, p->y) : p->y;
        c->high = c->present ? fmax(c->high, p->y) : p->y;
        c->x = pixel_x(a, p->x);
        c->last = p->smooth;
        c->present = any = true;
    }
    if (!any)
        return;
    if (band)
        add_band(a, columns, colour, out);
    hd_text_add(out, "<path class=\"c%d\" d=\"", colour);
    for (int i = 0; i < a->column_count; i++)
        if (columns[i].present) {
            hd_text_add(out, "%s%.1f %.1f", move, columns[i].x, pixel_y(a, columns[i].last));
            move = "L";
        }
    hd_text_add(out, "\"><title>");
    add_escaped(out, line->name);
    hd_text_add(out, "</title></path>\n");
}

enum { SETS_MAX = HD_JOB_VAL_REPORTS_MAX };

/* Finds the names of all validation sets of the runs; returns their number. */
static size_t find_sets(const struct plot_run *runs, size_t run_count, const char *ret[SETS_MAX])
{
    size_t count = 0;

    for (size_t r = 0; r < run_count; r++)
        for (size_t i = 0; i < runs[r].validation_count; i++) {
            const char *set = runs[r].validations[i].set;
            size_t k = 0;

            while (k < count && strcmp(ret[k], set) != 0)
                k++;
            if (k == count && count < SETS_MAX)
                ret[count++] = set;
        }
    return count;
}

static int index_of(const char *set, const char *const *sets, size_t count)
{
    size_t i = 0;

    while (i < count && strcmp(sets[i], set) != 0)
        i++;
    return (int)i;
}

/* Validation sets: with a single run each has a colour of its own. */
struct sets {
    const char *names[SETS_MAX];
    size_t count;
    bool coloured;
};

static int class_of(const struct plot_line *line, const char *set, const struct sets *sets)
{
    const int colour = sets->coloured ? 1 + index_of(set, sets->names, sets->count) : line->colour;

    return colour % COLOURS;
}

static void add_dots(const struct area *a, const struct plot_line *line, const struct sets *sets,
                     struct hd_text *out)
{
    for (size_t i = 0; i < line->count; i++)
        if (isfinite(line->points[i].y)) {
            hd_text_add(out,
                        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" class=\"f%d\"><title>validation ",
                        pixel_x(a, line->points[i].x), pixel_y(a, line->points[i].y),
                        class_of(line, line->points[i].set, sets));
            add_escaped(out, line->points[i].set);
            hd_text_add(out, " %.4g</title></circle>\n", line->points[i].y);
        }
}

/* Returns the number of rows of the legend: one for each run, then those of validations. */
static size_t legend_rows(size_t run_count, const struct sets *sets)
{
    return run_count + (sets->coloured ? sets->count : sets->count > 0);
}

static void add_legend(const struct plot_run *runs, size_t run_count, const struct sets *sets,
                       double top, struct hd_text *out)
{
    const size_t rows = legend_rows(run_count, sets);

    for (size_t r = 0; r < rows; r++) {
        const double y = top + (double)r * LEGEND_ROW;

        if (r < run_count) {
            hd_text_add(out,
                        "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" "
                        "class=\"k c%zu\"/><text class=\"t\" x=\"%d\" y=\"%.1f\">",
                        LEFT, y - 4, LEFT + 20, y - 4, r % COLOURS, LEFT + 28, y);
            add_escaped(out, runs[r].name);
        } else {
            hd_text_add(out,
                        "<circle cx=\"%d\" cy=\"%.1f\" r=\"3\" class=\"f%zu\"/>"
                        "<text x=\"%d\" y=\"%.1f\">validation ",
                        LEFT + 10, y - 4, sets->coloured ? (1 + r - run_count) % COLOURS : 0,
                        LEFT + 28, y);
            if (sets->coloured)
                add_escaped(out, sets->names[r - run_count]);
        }
        hd_text_add(out, "</text>\n");
    }
}

void plot_svg(const struct plot_panel *panels, const struct plot_run *runs, size_t run_count,
              const struct plot_options *options, struct hd_text *out)
{
    const int panel_height = TOP + AREA_HEIGHT + BOTTOM;
    struct sets sets = {.coloured = run_count == 1};
    struct area area = {.left = LEFT, .height = AREA_HEIGHT};
    struct column *columns;
    int legend, height;

    for (int k = 0; k < options->metric_count; k++)
        if (options->metrics[k] == HD_METRIC_INDEX_loss)
            sets.count = find_sets(runs, run_count, sets.names);
    legend = ((int)legend_rows(run_count, &sets)) * LEGEND_ROW + 12;
    height = legend + options->metric_count * panel_height;

    area.width = options->width - LEFT - RIGHT;
    area.column_count = (int)area.width;
    columns = calloc((size_t)area.column_count, sizeof *columns);
    if (!columns) {
        out->failed = true;
        return;
    }
    hd_text_add(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                "height=\"%d\" role=\"img\">\n<title>",
                options->width, height, options->width, height);
    for (int k = 0; k < options->metric_count; k++)
        hd_text_add(out, "%s%s", k ? ", " : "", panels[k].title);
    for (size_t r = 0; r < run_count; r++) {
        hd_text_add(out, "%s", r ? ", " : " of ");
        add_escaped(out, runs[r].name);
    }
    hd_text_add(out, "</title>\n");
    add_style(out);
    add_legend(runs, run_count, &sets, 24, out);
    for (int k = 0; k < options->metric_count; k++) {
        area.panel = &panels[k];
        area.top = legend + k * panel_height + TOP;
        add_ticks(&area, options, out);
        for (size_t l = 0; l < panels[k].line_count; l++) {
            const struct plot_line *line = &panels[k].lines[l];

            if (!line->dots)
                add_curve(&area, line, run_count == 1 && options->smooth > 0, columns, out);
            else
                add_dots(&area, line, &sets, out);
        }
    }
    hd_text_add(out, "</svg>\n");
    free(columns);
}

/* ---- CSV ---- */

static void add_value_cell(struct hd_text *out, double value)
{
    if (isfinite(value))
        hd_text_add(out, ",%.9g", value);
    else
        hd_text_add(out, ",");
}

/* Appends a name in quotes, with quotes inside doubled (RFC 4180). */
static void add_name(struct hd_text *out, const char *name)
{
    hd_text_add(out, "\"");
    for (; *name; name++)
        hd_text_add(out, *name == '"' ? "\"\"" : "%c", *name);
    hd_text_add(out, "\"");
}

static void add_row(const struct plot_run *run, const struct plot_step *step,
                    const struct plot_options *options, double tokens, double ms,
                    struct hd_text *out)
{
    add_name(out, run->name);
    hd_text_add(out, ",%lld,%.0f,%.3f", (long long)step->step, tokens, ms / 1e3);
    for (int k = 0; k < options->metric_count; k++)
        if (options->metrics[k] != PLOT_SCORES)
            add_value_cell(out, step->values[k]);
}

void plot_csv(const struct plot_run *runs, size_t run_count, const struct plot_options *options,
              struct hd_text *out)
{
    const char *sets[SETS_MAX];
    const size_t set_count = find_sets(runs, run_count, sets);

    hd_text_add(out, "run,step,tokens,seconds");
    for (int k = 0; k < options->metric_count; k++)
        if (options->metrics[k] != PLOT_SCORES) /* scores are in columns of their own */
            hd_text_add(out, ",%s", plot_metric_name(options->metrics[k]));
    for (size_t k = 0; k < set_count; k++)
        hd_text_add(out, ",%s%s%s",
                    hd_job_val_report_is_score(sets[k]) ? "score" : "validation_loss",
                    *sets[k] ? "/" : "", sets[k]);
    hd_text_add(out, "\n");
    for (size_t r = 0; r < run_count; r++) {
        const struct plot_run *run = &runs[r];
        double tokens = 0, ms = 0;
        size_t next = 0;

        for (size_t i = 0; i < run->step_count; i++) {
            double losses[SETS_MAX];

            for (size_t k = 0; k < set_count; k++)
                losses[k] = NAN;
            for (;
                 next < run->validation_count && run->validations[next].step <= run->steps[i].step;
                 next++)
                for (size_t k = 0; k < set_count; k++)
                    if (strcmp(sets[k], run->validations[next].set) == 0)
                        losses[k] = run->validations[next].loss;
            tokens += run->steps[i].tokens;
            ms += run->steps[i].ms;
            add_row(run, &run->steps[i], options, tokens, ms, out);
            for (size_t k = 0; k < set_count; k++)
                add_value_cell(out, losses[k]);
            hd_text_add(out, "\n");
        }
    }
}
