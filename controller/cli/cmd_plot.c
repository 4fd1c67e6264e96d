/* plot: draws the curves of jobs and runs, as a picture or on the terminal. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "controller/cli/bar.h"
#include "controller/cli/plot.h"
#include "job/job.h"

static const struct plot_options defaults = {.metrics = {HD_METRIC_INDEX_loss},
                                             .metric_count = 1,
                                             .adds_scores = true,
                                             .smooth = 0.6,
                                             .width = 900};

static int read_keys(const char *text, struct plot_options *options)
{
    const char *names[HD_METRIC_COUNT + 1], *nearest;
    char word[64];

    for (int i = 0; i <= HD_METRIC_COUNT; i++)
        names[i] = plot_metric_name(i);
    options->metric_count = 0;
    options->adds_scores = false;
    while (*text) {
        const size_t len = strcspn(text, ",");
        int metric = 0;

        (void)snprintf(word, sizeof word, "%.*s", (int)len, text);
        while (metric <= HD_METRIC_COUNT && strcmp(names[metric], word) != 0)
            metric++;
        if (metric > HD_METRIC_COUNT) {
            nearest = hd_text_nearest(word, names, HD_METRIC_COUNT + 1);
            return nearest ? cli_usage("plot: --keys: there is no metric '%s'; did you mean %s?",
                                       word, nearest)
                           : cli_usage("plot: --keys: there is no metric '%s'; some are loss, "
                                       "grad_norm, lr, tokens_per_s, mfu and scores",
                                       word);
        }
        if (options->metric_count == PLOT_KEYS_MAX)
            return cli_usage("plot: --keys: more than %d metrics", PLOT_KEYS_MAX);
        options->metrics[options->metric_count++] = metric;
        text += len + (text[len] == ',');
    }
    return options->metric_count ? CLI_CONTINUE : cli_usage("plot: --keys names no metric");
}

static int read_options(const char *keys, const char *x, const char *smooth, int64_t width,
                        struct plot_options *options)
{
    char *end;

    if (strcmp(x, "steps") == 0)
        options->axis = PLOT_STEPS;
    else if (strcmp(x, "tokens") == 0)
        options->axis = PLOT_TOKENS;
    else if (strcmp(x, "time") == 0)
        options->axis = PLOT_TIME;
    else
        return cli_usage("plot: --x: %s is not steps, tokens or time", x);
    if (smooth) {
        options->smooth = strtod(smooth, &end);
        if (end == smooth || *end || !(options->smooth >= 0 && options->smooth < 1))
            return cli_usage("plot: --smooth: %s is not a number from 0 to below 1", smooth);
    }
    options->width = (int)width;
    return keys ? read_keys(keys, options) : CLI_CONTINUE;
}

/* Returns the error by which a path, that is no folder, is none. */
static int why_no_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) < 0 ? errno : ENOTDIR;
}

/* Reads the run that an argument names: a folder of that path comes before a job. */
static int read_run(struct cli *cli, const char *name, const struct plot_options *options,
                    struct plot_run *ret_run)
{
    enum hd_status st;
    uint64_t job;
    int code;

    if (hd_file_is_dir(name)) {
        char path[PATH_MAX];
        const char *real = realpath(name, path), *slash = real ? strrchr(real, '/') : NULL;

        (void)snprintf(ret_run->name, sizeof ret_run->name, "%s", slash ? slash + 1 : name);
        st = plot_read_folder(name, options, ret_run);
        return st ? cli_fail(st) : CLI_CONTINUE;
    }
    if (strchr(name, '/'))
        return cli_fail(hd_err(HD_NOT_FOUND,
                               "cannot open %s: %s; give the folder of a run, such as "
                               "heddle-runs/latest, or a job's number or name",
                               name, strerror(why_no_folder(name))));
    code = cli_find_job(cli, name, &job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    return code == CLI_CONTINUE ? plot_read_job(cli, job, options, ret_run) : code;
}

static enum hd_status write_file(const char *path, const struct plot_panel *panels,
                                 const struct plot_run *runs, size_t count,
                                 const struct plot_options *options)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (hd_text_ends(path, ".csv"))
        plot_csv(runs, count, options, &text);
    else
        plot_svg(panels, runs, count, options, &text);
    if (text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the picture %s", path);
    if (!st)
        st = hd_file_write_atomic(path, text.data, text.len_bytes, 0666);
    hd_text_free(&text);
    return st;
}

/* Returns the options with a panel for scores, if it is to be added and a run has any. */
static struct plot_options with_scores(const struct plot_options *options,
                                       const struct plot_run *runs, size_t count)
{
    struct plot_options o = *options;
    bool any = false;

    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < runs[r].validation_count; i++)
            any |= hd_job_val_report_is_score(runs[r].validations[i].set);
    if (any && o.adds_scores && o.metric_count < PLOT_KEYS_MAX)
        o.metrics[o.metric_count++] = PLOT_SCORES;
    return o;
}

/* Draws runs into the file `out`; NULL: on the terminal. */
static enum hd_status draw_runs(const char *out, const struct plot_run *runs, size_t count,
                                const struct plot_options *wish)
{
    const struct plot_options with = with_scores(wish, runs, count), *options = &with;
    struct plot_panel *panels = calloc(PLOT_KEYS_MAX, sizeof *panels);
    struct hd_text text = {0};
    enum hd_status st = panels ? plot_make(runs, count, options, panels)
                               : hd_err(HD_NO_MEMORY, "no memory for a plot");

    if (!st && out) {
        st = write_file(out, panels, runs, count, options);
    } else if (!st) {
        plot_text(panels, runs, count, options, bar_terminal_columns(), bar_has_blocks(),
                  cli_has_colour(STDOUT_FILENO), &text);
        (void)cli_out(&text);
        hd_text_free(&text);
    }
    if (panels)
        plot_free_panels(panels);
    free(panels);
    return st;
}

static int plot_all(struct cli *cli, const char *out, const struct plot_options *options)
{
    struct plot_run *runs = calloc(PLOT_RUNS_MAX, sizeof *runs);
    enum hd_status st = HD_OK;
    int code = runs ? CLI_CONTINUE : cli_fail(hd_err(HD_NO_MEMORY, "no memory for a plot"));

    for (int i = 0; i < cli->arg_count && code == CLI_CONTINUE; i++) {
        code = read_run(cli, cli->args[i], options, &runs[i]);
        if (code == CLI_CONTINUE && !runs[i].step_count)
            code = cli_fail(hd_err(HD_NOT_FOUND, "%s has no steps to draw; wait for its first step",
                                   cli->args[i]));
    }
    if (code == CLI_CONTINUE)
        st = draw_runs(out, runs, (size_t)cli->arg_count, options);
    if (code == CLI_CONTINUE)
        code = st ? cli_fail(st) : cli_out_end(CLI_OK);
    for (int i = 0; i < PLOT_RUNS_MAX && runs; i++)
        plot_free_run(&runs[i]);
    free(runs);
    return code;
}

static int cli_plot(struct cli *cli, int argc, char **argv)
{
    struct plot_options options = defaults;
    const char *keys = NULL, *out = NULL, *x = "steps", *smooth = NULL;
    int64_t width = defaults.width;
    const struct cli_flag flags[] = {
        {"out", 0, CLI_FLAG_TEXT, &out, "FILE",
         .help = "an .svg for pages and slides, or a .csv with every step"},
        {"keys", 0, CLI_FLAG_TEXT, &keys, "NAMES",
         .help = "metrics, such as loss,lr,scores; each gets axes of its own;\n"
                 "else loss, and scores of questions"},
        {"x", 0, CLI_FLAG_TEXT, &x, "AXIS",
         .help = "steps, tokens, or time (hours of training); else steps"},
        {"log", 0, CLI_FLAG_BOOL, &options.log, .help = "vertical axes are logarithmic"},
        {"smooth", 0, CLI_FLAG_TEXT, &smooth, "S",
         .help = "weight of the past in the moving average, from 0 (none) to\n"
                 "below 1; else 0.6"},
        {"width", 0, CLI_FLAG_INT, &width, "PIXELS", .min = 300, .max = 4000,
         .help = "of the picture; else 900"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, PLOT_RUNS_MAX);

    if (code == CLI_CONTINUE && out && !hd_text_ends(out, ".svg") && !hd_text_ends(out, ".csv"))
        code = cli_usage("plot: --out: %s ends neither in .svg nor in .csv", out);
    if (code == CLI_CONTINUE)
        code = read_options(keys, x, smooth, width, &options);
    return code == CLI_CONTINUE ? plot_all(cli, out, &options) : code;
}

const struct cli_body cli_body_plot = {
    .usage = "Usage: heddle plot JOB|RUN... [--out FILE.svg|FILE.csv] [--keys NAMES]\n"
             "                   [--x AXIS] [--log] [--smooth S] [--width PIXELS]\n",
    .about = "Draws the loss of jobs, or of runs of heddle local, over one another: on the\n"
             "terminal, or into a picture. RUN is the folder of a run. Dots are validations.\n"
             "Values far from all others are left out of the axis; the title counts them.\n"
             "heddle local writes loss.svg into the run's folder at its end.\n",
    .examples = "heddle plot 7 8 --keys loss,grad_norm --out runs.svg",
    .run = cli_plot,
};

void plot_write_loss(const char *run, const char *name)
{
    struct plot_run history = {0};
    char path[PATH_MAX];

    (void)snprintf(history.name, sizeof history.name, "%s", name);
    if (snprintf(path, sizeof path, "%s/loss.svg", run) < (int)sizeof path &&
        plot_read_folder(run, &defaults, &history) == HD_OK && history.step_count > 1)
        (void)draw_runs(path, &history, 1, &defaults);
    plot_free_run(&history);
}
