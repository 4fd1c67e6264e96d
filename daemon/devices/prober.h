/* prober: what the devices of this machine were measured to do, and when they are measured: its
 * GPUs, or its CPU devices where it offers no GPU.
 *
 *     --probe first    no result for this machine, driver and build: as soon as the devices have
 *                      been idle for HD_PROBER_QUIET_MS, and other programs have left the
 *                      processors free, once per start of heddled
 *     --probe anyway   the same, also while other programs use the processors
 *     --probe never    only when the controller asks
 *
 *            wanted, idle                  ended, failed, or HD_PROBER_MS are over
 *     waiting ----------> heddle-worker probe ------------------------------------> waiting
 *        ^                        |
 *        +--- an attempt starts --+   its process is killed, nothing is stored
 *
 * The helper measures all devices at once (worker/probe.h) for at most HD_PROBER_MS and is then
 * killed. A result that was measured while other programs were busy is dropped, unless it was asked
 * for, and is measured again when they are quiet: figures of a busy machine lead to layouts that
 * are slow on an idle one. Its result is a calibration (plan/calibration.h), which is not read
 * here. It is kept in STATE_DIR/probe with a *key*: a text of all that it holds for. With another
 * key it is dropped. A probe that fails leaves an older result of the same key as it is.
 *
 * Used by: agent.   Uses: base.   Threads: the loop's; nothing blocks but writing 60 KB.
 */
#ifndef HD_DAEMON_DEVICES_PROBER_H
#define HD_DAEMON_DEVICES_PROBER_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/devices/ask.h"
#include "daemon/devices/load.h"

enum {
    HD_PROBER_SECONDS = 55,    /* that the helper takes for itself */
    HD_PROBER_MS = 60000,      /* then it is killed */
    HD_PROBER_QUIET_MS = 5000, /* of idle devices, before a probe that nobody asked for */
    HD_PROBER_RESULT_MAX = 1 << 20,
    HD_PROBER_KEY_MAX = 512,
    HD_PROBER_DEVICES_MAX = 4096, /* 64 UUIDs */
};

struct hd_prober {
    /* set by the caller before hd_prober_open, and for other devices between hd_prober_close and
     * another hd_prober_open */
    char worker[PATH_MAX + 16];
    char key[HD_PROBER_KEY_MAX];         /* one line */
    char devices[HD_PROBER_DEVICES_MAX]; /* as `heddle-worker probe --devices` takes them:
                                            "cpu:2:3", or "cuda:UUID,UUID.." */
    bool at_first, beside_others;        /* at_first: --probe first or anyway; beside_others:
                                          * --probe anyway */
    const char *stat_path;               /* for tests; NULL: /proc/stat */
    int seconds, timeout_ms;             /* for tests; 0: HD_PROBER_SECONDS, HD_PROBER_MS */

    /* to be read */
    int64_t ended_ms;           /* wall clock, when the newest probe ended; 0: none has */
    char problem[HD_ERR_MAX];   /* why it measured nothing; "": it did */
    struct hd_text calibration; /* of the newest that measured; "": there is none */
    uint64_t asked, answered;   /* numbers of the controller's newest question, and answer */
    bool is_running;

    /* prober.c */
    char path[PATH_MAX + 16], dir[PATH_MAX + 16];
    struct hd_worker_run run;
    bool has_failed; /* since the start: not tried again by itself */
    int64_t idle_since_ms;
    struct hd_load since;   /* reading when the devices became idle, or the probe began */
    bool has_reported_busy; /* since the start */
};

/* Reads the result in the state directory; a damaged file counts as none, and is logged. */
void hd_prober_open(struct hd_prober *prober, const char *state_dir);
void hd_prober_close(struct hd_prober *prober); /* kills a helper that runs */

/* The controller wants a probe that ends after this; `question` is its number, never 0. The same
 * number again changes nothing. */
void hd_prober_ask(struct hd_prober *prober, uint64_t question);

/* Called a few times a second. idle: no attempt has, or is to get, a device. True: something that
 * is to be read has changed. */
bool hd_prober_step(struct hd_prober *prober, bool idle);

/* An attempt has the devices, or is about to: ends the helper, if it runs, within 0.2 s. `why` is
 * the answer to the controller's question, if there is one. */
void hd_prober_yield(struct hd_prober *prober, const char *why);

#endif
