/* watch: follows a job's history to its end and shows it.
 *
 * On a terminal a progress bar (progress.h) on stderr shows the steps; it is drawn at most ten
 * times a second, and when the terminal's size changes. Without a terminal there are lines of
 * steps. All other entries are lines in both cases (lines.h). With -o json or jsonl all entries are
 * JSON (show.h). When the connection breaks, the job is not affected: the watching continues behind
 * the last entry that it has shown, and gives up after WATCH_PATIENCE_MS without a controller.
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
    bool quiet;            /* only the end is shown; the history before it is not fetched */
    bool times;            /* lines of steps have rates and times, too */
    int64_t log_every;     /* steps between two lines; 0: hd_cli_log_step's choice */
    bool one_machine;      /* `heddle local`: nodes are not named */
    int64_t hold_ms;       /* a state that has not lasted so long is not shown */
    const char *directory; /* checkpoints are named by their path below it; NULL: below the job's */
    bool resumed;          /* what the job did before it was resumed is not shown; */
    int32_t resumed_attempt; /* with resumed: its newest attempt then */
    FILE *history;           /* gets the lines of -o jsonl, whatever the format is; may be NULL */
    /* Called on SIGINT, SIGTERM and SIGHUP, which is `number`, for the `count`-th time; true: go on
     * watching. NULL: stop, also when standard output takes nothing any more. */
    bool (*on_interrupt)(void *user, int number, int count);
    void *user;
    /* Called ten times a second: CLI_CONTINUE, or the exit code to give up with. May be NULL. */
    int (*on_tick)(void *user);
};

/* SIGHUP was ignored when the program was started (nohup): it stays so. */
bool cli_ignores_hangup(void);

/* The exit code of the job's end; cli_exit_of_signal; or of what went wrong, after its message. */
int cli_watch_job(struct cli *cli, const struct watch_options *options);

#endif
