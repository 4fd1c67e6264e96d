/* watch: follows a job's history to its end and shows it, through breaks of the connection.
 *
 * On a terminal there is a progress bar on stderr and a line on stdout for what else happens; else
 * plain lines, or JSON. A break is not a failure of the job: the history goes on at the last
 * sequence that was seen, for WATCH_PATIENCE_MS.
 *
 * Used by: the verbs.   Uses: cli.h, progress, show.   Threads: one.
 */
#ifndef HD_CLI_WATCH_H
#define HD_CLI_WATCH_H

#include <stdio.h>

#include "controller/cli/cli.h"

enum { WATCH_PATIENCE_MS = 120000 };

struct watch_options {
    uint64_t job;
    bool quiet;    /* only the end is shown, and only the end is asked for */
    FILE *history; /* gets what -o jsonl would print, whatever is shown; may be NULL */
    /* SIGINT, SIGTERM or SIGHUP, for the `count`-th time; true: go on watching. NULL: stop. */
    bool (*on_interrupt)(void *user, int signal, int count);
    void *user;
    /* asked often while waiting: CLI_CONTINUE, or the exit code to give up with. May be NULL. */
    int (*on_tick)(void *user);
};

/* The exit code of the job's end; CLI_INTERRUPTED; or of what went wrong, after its message. */
int cli_watch_job(struct cli *cli, const struct watch_options *options);

/* An entry as a line for people, without line break; nothing for what they need not see. */
void watch_add_line(struct hd_text *out, uint64_t job, int64_t steps,
                    const Heddle__V1__WatchJobResponse *entry);

#endif
