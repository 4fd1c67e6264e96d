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

enum { WATCH_PATIENCE_MS = 120000 };

struct watch_options {
    uint64_t job;
    bool quiet;              /* shows only the end; earlier history is not fetched */
    bool times;              /* adds rates and times to the lines of steps */
    int64_t log_every;       /* steps between two lines; 0: chosen by hd_cli_log_step */
    bool one_machine;        /* `heddle local`: leave out node names */
    int64_t hold_ms;         /* ms; a state that ends sooner is not shown */
    const char *directory;   /* prefix removed from checkpoint paths; NULL: the job's folder */
    bool resumed;            /* hides entries from before the resume */
    int32_t resumed_attempt; /* newest attempt before the resume; used with `resumed` */
    FILE *history;           /* gets all entries as jsonl, whatever the format; may be NULL */
    /* Called on SIGINT, SIGTERM and SIGHUP (`number`), for the `count`-th signal; true: keep
     * watching. NULL: stop at the first signal, and when standard output cannot be written any
     * more. */
    bool (*on_interrupt)(void *user, int number, int count);
    void *user;
    /* Called ten times a second. Returns CLI_CONTINUE, or the exit code to stop with. May be NULL.
     */
    int (*on_tick)(void *user);
};

/* Returns whether SIGHUP was ignored at the program's start (nohup); it then stays ignored. */
bool cli_ignores_hangup(void);

/* Watches a job. Returns the exit code of the job's end; that of a signal (cli_exit_of_signal); or
 * that of a failure, after its message. */
int cli_watch_job(struct cli *cli, const struct watch_options *options);

#endif
