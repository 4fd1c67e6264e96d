/* watch: follows a job's history to its end and shows it.
 *
 * On a terminal a progress bar (progress.h) on stderr shows the steps; it is drawn at most ten
 * times a second, and when the terminal's size changes. Without a terminal steps are printed as
 * lines. All other entries are lines in both cases (lines.h). With -o json or jsonl all entries are
 * JSON (show.h). A lost connection does not affect the job: watch reconnects and continues after
 * the last entry shown, and gives up after WATCH_PATIENCE_MS without a controller.
 *
 * Used by: the commands.   Uses: cli.h, eta, lines, progress, show.   Threads: one.
 */
#ifndef HD_CLI_WATCH_H
#define HD_CLI_WATCH_H

#include <stdio.h>

#include "controller/cli/cli.h"

enum {
    WATCH_PATIENCE_MS = 120000,
    WATCH_RUN_PATIENCE_MS = 3000 /* a run's own controller does not come back */
};

/* Returns for how long a command that follows a job waits for a controller that went away, ms. */
static inline int64_t watch_patience_ms(const struct cli *cli)
{
    return cli->run ? WATCH_RUN_PATIENCE_MS : WATCH_PATIENCE_MS;
}

struct watch_options {
    uint64_t job;
    bool quiet; /* shows only the job's end; does not fetch its earlier history */
    bool times; /* lines of steps have rates and times */
    /* steps between two lines about a step; 0: chosen by hd_cli_log_step */
    int64_t log_every;
    bool one_machine; /* for `heddle local`: lines have no node names */
    int64_t hold_ms;  /* a state of the job that ends within this time is not shown, ms */
    /* prefix removed from checkpoint paths in lines; NULL: the job's folder */
    const char *directory;
    bool resumed;            /* hides entries of the job's history from before the resume */
    int32_t resumed_attempt; /* newest attempt before the resume; used with `resumed` */
    /* file that gets all entries of the history as jsonl, whatever the output format; NULL: none */
    FILE *history;
    /* Called on SIGINT, SIGTERM and SIGHUP. number: the signal's; count: how many signals came so
     * far. Returns true to keep watching. NULL: watching stops at the first signal, and when
     * standard output cannot be written any more. */
    bool (*on_interrupt)(void *user, int number, int count);
    void *user;
    /* Called ten times a second. Returns CLI_CONTINUE, or the exit code to stop watching with. May
     * be NULL. */
    int (*on_tick)(void *user);
};

/* Returns whether SIGHUP was ignored at the program's start (nohup); it then stays ignored. */
bool cli_ignores_hangup(void);

/* Watches a job until it ends. Returns the exit code for the job's end; that of a signal
 * (cli_exit_of_signal); or that of a failure, after its message. */
int cli_watch_job(struct cli *cli, const struct watch_options *options);

#endif
