/* plot: panels of smoothed lines from the histories of runs; their axes. */
#include "controller/cli/plot.h"
#include "base/order.h"
#include "job/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAR_TIMES = 3, /* values beyond this many times the usual range are left out of an axis */
};
static const double usual_share =
    0.02; /* share of values that may lie outside of the usual range */

/* ---- lines ---- */

static double x_of(const struct plot_step *step, double tokens, double ms, enum plot_axis axis)
{
    return axis == PLOT_STEPS ? (double)step->step : axis == PLOT_TOKENS ? tokens : ms / 3600e3;
}

/* Smooths the line. A value outside of the panel's range counts as the range's border, so that one
 * spike does not lift those behind it. */
static void smooth(const struct plot_panel *panel, struct plot_line *line, double weight)
{
    double sum = 0, total = 0;

    for (size_t i = 0; i < line->count; i++) {
        struct plot_point *p = &line->points[i];

        p->smooth = NAN;
        if (!isfinite(p->y))
            continue;
        sum = weight * sum + (1 - weight) * fmin(fmax(p->y, panel->y_min), panel->y_max);
        total = weight * total + (1 - weight);
        p->smooth = sum / total;
    }
}

/* Makes the lines of one run in a panel: its steps and, of the loss, its validations; of scores only
 * these. */
static bool make_lines(const struct plot_run *run, int index, const struct plot_options *options,
                       int key, struct plot_panel *panel)
{
    const bool scores = options->metrics[key] == PLOT_SCORES;
    const bool has_dots = scores || options->metrics[key] == HD_METRIC_INDEX_loss;
    struct plot_line *line = &panel->lines[panel->line_count++], *dots;
    double tokens = 0, ms = 0;
    size_t next = 0;

    *line = (struct plot_line){.name = run->name, .colour = index};
    line->points = calloc(run->step_count + 1, sizeof *line->points);
    dots = &panel->lines[panel->line_count++];
    *dots = (struct plot_line){.name = run->name, .colour = index, .dots = true};
    dots->points = calloc(run->validation_count + 1, sizeof *dots->points);
    if (!line->points || !dots->points)
        return false;
    for (size_t i = 0; i < run->step_count; i++) {
        const struct plot_step *step = &run->steps[i];

        tokens += step->tokens;
        ms += step->ms;
        line->points[line->count++] = (struct plot_point){
            .x = x_of(step, tokens, ms, options->axis), .y = scores ? NAN : step->values[key]};
        for (;
             has_dots && next < run->validation_count && run->validations[next].step <= step->step;
             next++)
            if (hd_job_val_report_is_score(run->validations[next].set) == scores)
                dots->points[dots->count++] =
                    (struct plot_point){.x = line->points[line->count - 1].x,
                                        .y = run->validations[next].loss,
                                        .set = run->validations[next].set};
    }
    return true;
}

/* ---- ranges ---- */

/* Sets the range of the vertical axis from sorted values. */
static void set_range(struct plot_panel *panel, const double *values, size_t count)
{
    const size_t cut = count < 10 ? 0 : 1 + (size_t)((double)count * usual_share);
    double low, high, margin;

    if (!count) {
        panel->y_min = panel->log ? 0.1 : 0;
        panel->y_max = 1;
        return;
    }
    low = values[cut];
    high = values[count - 1 - cut];
    panel->y_min = values[0];
    panel->y_max = values[count - 1];
    /* with a constant, nothing is far: any other value is shown */
    for (size_t i = count; high > low && panel->y_max > high + FAR_TIMES * (high - low);)
        panel->y_max = values[--i];
    for (size_t i = 0; high > low && panel->y_min < low - FAR_TIMES * (high - low);)
        panel->y_min = values[i++];
    for (size_t i = 0; i < count; i++)
        panel->outside += values[i] < panel->y_min || values[i] > panel->y_max;
    margin = panel->log ? 0 : 0.04 * (panel->y_max - panel->y_min);
    if (panel->y_max == panel->y_min)
        margin = panel->y_max != 0 ? fabs(panel->y_max) * 0.1 : 1;
    panel->y_max += margin;
    if (!panel->log || panel->y_min - margin > 0)
        panel->y_min -= margin;
}

static bool make_ranges(struct plot_panel *panel)
{
    double *values;
    size_t count = 0, most = 0;
    bool first = true;

    for (size_t l = 0; l < panel->line_count; l++)
        most += panel->lines[l].count;
    values = malloc((most + 1) * sizeof *values);
    if (!values)
        return false;
    panel->x_max = 1;
    for (size_t l = 0; l < panel->line_count; l++)
        for (size_t i = 0; i < panel->lines[l].count; i++) {
            struct plot_point *p = &panel->lines[l].points[i];

            if (panel->log && p->y <= 0) /* a logarithmic axis has no place for it */
                p->y = NAN;
            if (isfinite(p->y))
                values[count++] = p->y;
            panel->x_min = first || p->x < panel->x_min ? p->x : panel->x_min;
            panel->x_max = first || p->x > panel->x_max ? p->x : panel->x_max;
            first = false;
        }
    if (panel->x_max <= panel->x_min)
        panel->x_max = panel->x_min + 1;
    qsort(values, count, sizeof *values, hd_order_numbers);
    set_range(panel, values, count);
    free(values);
    return true;
}

enum hd_status plot_make(const struct plot_run *runs, size_t run_count,
                         const struct plot_options *options,
                         struct plot_panel ret_panels[PLOT_KEYS_MAX])
{
    memset(ret_panels, 0, PLOT_KEYS_MAX * sizeof *ret_panels);
    for (int k = 0; k < options->metric_count; k++) {
        struct plot_panel *panel = &ret_panels[k];

        panel->title = plot_metric_name(options->metrics[k]);
        panel->log = options->log;
        for (size_t r = 0; r < run_count; r++)
            if (!make_lines(&runs[r], (int)r, options, k, panel))
                return hd_err(HD_NO_MEMORY, "no memory for the lines of a plot");
        if (!make_ranges(panel))
            return hd_err(HD_NO_MEMORY, "no memory for the axes of a plot");
        for (size_t l = 0; l < panel->line_count; l++)
            smooth(panel, &panel->lines[l], panel->lines[l].dots ? 0 : options->smooth);
    }
    return HD_OK;
}

void plot_free_panels(struct plot_panel panels[PLOT_KEYS_MAX])
{
    for (int k = 0; k < PLOT_KEYS_MAX; k++)
        for (size_t l = 0; l < panels[k].line_count; l++)
            free(panels[k].lines[l].points);
}

/* ---- axes ---- */

/* Sets ticks at 1, 2 and 5 times the powers of ten; with more than three decades at the powers. */
static int log_ticks(double min, double max, double ret_ticks[PLOT_TICKS_MAX])
{
    static const double steps[] = {1, 2, 5};
    const bool powers = log10(max / min) > 3;
    int count = 0;

    for (int e = (int)floor(log10(min)); e <= (int)ceil(log10(max)); e++)
        for (int s = 0; s < (powers ? 1 : 3); s++) {
            const double tick = steps[s] * pow(10, e);

            if (tick >= min && tick <= max && count < PLOT_TICKS_MAX)
                ret_ticks[count++] = tick;
        }
    return count;
}

int plot_ticks(double min, double max, bool log, int wish, double ret_ticks[PLOT_TICKS_MAX])
{
    double unit, step;
    int count = log ? log_ticks(min, max, ret_ticks) : 0;

    if (count >= 2)
        return count;
    unit = pow(10, floor(log10((max - min) / wish)));
    step = (max - min) / wish / unit;
    step = unit * (step <= 1 ? 1 : step <= 2 ? 2 : step <= 5 ? 5 : 10);
    count = 0;
    for (double i = ceil(min / step); i * step <= max + step * 1e-9 && count < PLOT_TICKS_MAX; i++)
        ret_ticks[count++] = i * step;
    return count;
}

void plot_format(double value, char ret_text[32])
{
    static const struct {
        double factor;
        const char *letter;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    const double size = fabs(value);

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (size >= units[i].factor * 0.99999) {
            (void)snprintf(ret_text, 32, "%.4g%s", value / units[i].factor, units[i].letter);
            return;
        }
    if (size < 1e-12)
        (void)snprintf(ret_text, 32, "0");
    else
        (void)snprintf(ret_text, 32, size < 1e-3 ? "%.3g" : "%.4g", value);
}

const char *plot_axis_name(enum plot_axis axis)
{
    return axis == PLOT_STEPS ? "step" : axis == PLOT_TOKENS ? "tokens" : "hours of training";
}

double plot_share(const struct plot_panel *p, double y)
{
    const double share = p->log ? log(y / p->y_min) / log(p->y_max / p->y_min)
                                : (y - p->y_min) / (p->y_max - p->y_min);

    return fmin(fmax(share, 0), 1);
}

void plot_add_title(const struct plot_panel *p, struct hd_text *out)
{
    hd_text_add(out, "%s", p->title);
    if (p->outside)
        hd_text_add(out, " (%zu value%s outside)", p->outside, p->outside == 1 ? "" : "s");
}
