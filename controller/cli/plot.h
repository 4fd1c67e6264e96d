/* plot: curves of runs as a picture (SVG), as text for a terminal, and as CSV.
 *
 *   history of jobs or runs -> struct plot_run (plot_read.c) -> panels of lines (plot.c)
 *       -> SVG (plot_svg.c) | characters (plot_text.c) | CSV
 *
 * Each metric has a panel. A line of steps is smoothed by an exponential moving average that is
 * corrected for its start, as in Adam (Kingma and Ba 2015, section 3). The range of the vertical
 * axis leaves out single values that lie far from all others; the picture says how many.
 *
 * Used by: cmd_plot, cmd_local.   Uses: cli.h, json, metrics.   Threads: one.
 */
#ifndef HD_CLI_PLOT_H
#define HD_CLI_PLOT_H

#include <string.h>

#include "controller/cli/cli.h"
#include "job/job.h"
#include "job/metrics.h"

enum {
    PLOT_RUNS_MAX = 16,
    PLOT_KEYS_MAX = 6,
    PLOT_NAME_MAX = 128,
    /* in place of an index in hd_metrics: the scores of questions (validate.choices) */
    PLOT_SCORES = HD_METRIC_COUNT,
};

enum plot_axis { PLOT_STEPS, PLOT_TOKENS, PLOT_TIME };

struct plot_options {
    int metrics[PLOT_KEYS_MAX]; /* indices in hd_metrics, or PLOT_SCORES, one for each panel */
    int metric_count;
    bool adds_scores; /* true: scores get a panel, too, if there are any */
    enum plot_axis axis;
    bool log;      /* the vertical axes are logarithmic */
    double smooth; /* weight of the past in the moving average, 0 to below 1; 0: none */
    int width;     /* width of the SVG, pixels */
};

/* A training step. A step that is repeated after a restart replaces the recorded step and all steps
 * after it. */
struct plot_step {
    int64_t step;
    double tokens, ms;            /* tokens that this step trained on; its wall time, ms */
    double values[PLOT_KEYS_MAX]; /* values of plot_options.metrics; NaN: absent */
};

struct plot_validation {
    int64_t step;
    double loss; /* or a score */
    /* name of the validation set, "": the job has one list; or of a score, NAME/acc */
    char set[HD_JOB_VAL_REPORT_MAX];
};

/* Returns the name of a panel's metric. */
static inline const char *plot_metric_name(int metric)
{
    return metric == PLOT_SCORES ? "scores" : hd_metrics[metric].name;
}

struct plot_run {
    char name[PLOT_NAME_MAX];
    struct plot_step *steps;
    struct plot_validation *validations;
    size_t step_count, step_capacity, validation_count, validation_capacity;
    bool failed; /* out of memory */
};

/* ---- reading (plot_read.c) ---- */

/* Appends a step or a validation of the run's history. */
void plot_add_step(struct plot_run *run, const struct plot_step *step);
void plot_add_validation(struct plot_run *run, const struct plot_validation *validation);
/* Reads a run's folder (history.jsonl in it, or in the folder above if `path` is the job's folder in
 * a run). HD_NOT_FOUND: there is no history. A line that is cut or damaged, as the last one of a
 * killed run, is left out. */
enum hd_status plot_read_folder(const char *path, const struct plot_options *options,
                                struct plot_run *ret_run);
/* Reads the history of a job, up to now, from the controller, to which the command is connected.
 * Returns CLI_CONTINUE, or the exit code after printing a message. */
int plot_read_job(struct cli *cli, uint64_t job, const struct plot_options *options,
                  struct plot_run *ret_run);
void plot_free_run(struct plot_run *run);

/* ---- panels (plot.c) ---- */

struct plot_point {
    double x, y;     /* y: NaN: no value */
    double smooth;   /* y after smoothing; NaN where y is */
    const char *set; /* validation: name of its set, or ""; NULL: the point is a step */
};

struct plot_line {
    const char *name; /* name of the run */
    int colour;       /* index of the run */
    bool dots;        /* values of validations, each shown as a dot, and never smoothed */
    struct plot_point *points;
    size_t count;
};

struct plot_panel {
    const char *title; /* name of the metric */
    struct plot_line lines[2 * PLOT_RUNS_MAX];
    size_t line_count;
    double x_min, x_max, y_min, y_max; /* ranges of the axes; without any value 0 to 1 */
    size_t outside;                    /* points that lie outside of y_min to y_max */
    bool log;
};

/* Makes one panel for each metric of `options`. HD_NO_MEMORY. Free with plot_free_panels. */
enum hd_status plot_make(const struct plot_run *runs, size_t run_count,
                         const struct plot_options *options,
                         struct plot_panel ret_panels[PLOT_KEYS_MAX]);
void plot_free_panels(struct plot_panel panels[PLOT_KEYS_MAX]);

enum { PLOT_TICKS_MAX = 16 };
/* Sets the positions of the ticks of an axis, at most PLOT_TICKS_MAX: multiples of 1, 2 or 5 times a
 * power of ten, about `wish` of them. Returns their number. */
int plot_ticks(double min, double max, bool log, int wish, double ret_ticks[PLOT_TICKS_MAX]);
/* Writes a tick's number as short as it is exact: 20k, 1.5M, 3e-04, 0.25. */
void plot_format(double value, char ret_text[32]);
/* Returns how far above the bottom of the panel a value is, 0 to 1; one outside is on its border. */
double plot_share(const struct plot_panel *panel, double y);
/* Appends the title of a panel, with the number of values that lie outside of it. */
void plot_add_title(const struct plot_panel *panel, struct hd_text *out);
/* Returns the name of the horizontal axis. */
const char *plot_axis_name(enum plot_axis axis);

/* ---- output ---- */

/* Appends a picture with all panels below one another, for light and dark pages. */
void plot_svg(const struct plot_panel *panels, const struct plot_run *runs, size_t run_count,
              const struct plot_options *options, struct hd_text *out);
/* Appends lines of at most `columns` columns for a terminal; braille: 2 x 4 dots in a character,
 * else one. */
void plot_text(const struct plot_panel *panels, const struct plot_run *runs, size_t run_count,
               const struct plot_options *options, int columns, bool braille, bool colour,
               struct hd_text *out);
/* Appends "run,step,tokens,seconds,NAME.." and one row for each step; the losses of validations, one
 * column for each set, are in the row of their step. */
void plot_csv(const struct plot_run *runs, size_t run_count, const struct plot_options *options,
              struct hd_text *out);

/* Draws the loss of a run into loss.svg in its folder, if it has at least two steps. A failure is
 * not reported, since heddle plot can draw the history later. */
void plot_write_loss(const char *run, const char *name);

#endif
