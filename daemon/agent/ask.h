/* ask: runs a program of ours for what it prints, with a deadline.
 *
 * The program talks to drivers, which may hang in the kernel, where nothing can be killed, even
 * when it has said all and is on its way out. So nothing here waits for its end without a bound:
 * what cannot be ended is left behind, and agent_ask_is_left says so until it is gone.
 *
 * Used by: agent.   Uses: base.   Threads: one at a time for each question.
 */
#ifndef HD_DAEMON_AGENT_ASK_H
#define HD_DAEMON_AGENT_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/text.h"

enum {
    AGENT_ASK_MS = 30000,
    AGENT_ASK_END_MS = 2000, /* from the last word to the end of the process */
};

/* A question under way. Start with {0}; agent_ask_done in the end. */
struct agent_ask {
    char program[256]; /* for stories */
    pid_t pid;         /* that runs, or was left behind; 0: none */
    int fd;            /* what it says */
    bool open;         /* it may say more */
    size_t bytes_max;
    int timeout_ms;
    int64_t give_up_ms; /* moves nearer when it has said all */
    struct hd_text answer;
};

/* Starts argv[0], a path, and takes what it writes to its standard output, at most `bytes_max`
 * bytes. HD_IO: it cannot be started; HD_CONFLICT: the one before is left behind and still there.
 */
enum hd_status agent_ask_begin(struct agent_ask *ask, char *const argv[], size_t bytes_max,
                               int timeout_ms);
/* Takes what it has said, without waiting. True: that is all, and *ret_status is HD_OK, or
 * HD_TIMEOUT: it did not answer in time; HD_IO: it ended with another status than 0; HD_LIMIT: it
 * says too much. One that has answered and does not end is HD_OK: its answer is whole. */
bool agent_ask_step(struct agent_ask *ask, enum hd_status *ret_status);
/* The same, blocking, for at most `wait_ms`. */
bool agent_ask_wait(struct agent_ask *ask, int wait_ms, enum hd_status *ret_status);
/* Whether the process of a question that is over is still there. */
bool agent_ask_is_left(struct agent_ask *ask);
/* Kills what runs and frees the answer; {0} again but for one that is left behind. */
void agent_ask_done(struct agent_ask *ask);

#endif
