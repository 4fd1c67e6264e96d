/* prober: decides when the speed of this machine's devices is measured, and keeps the result. It
 * measures the GPUs or, on a node that offers none, the CPU devices.
 *
 *     --probe first    if there is no result for this machine, driver and build: once per start of
 *                      heddled, when the devices have been idle for HD_PROBER_QUIET_MS and other
 *                      programs leave the processors free
 *     --probe anyway   like first, but even while other programs use the processors
 *     --probe never    only when the controller asks
 *
 *            wanted, idle                  ended, failed, or HD_PROBER_MS are over
 *     waiting ----------> heddle-worker probe ------------------------------------> waiting
 *        ^                        |
 *        +--- an attempt starts --+   its process is killed, nothing is stored
 *
 * Before it measures GPUs, `heddle-worker gpu-sample` tells whether other programs use one. The helper
 * measures all devices at once (worker/probe.h); it is killed after HD_PROBER_MS. A
 * result that was measured while other programs were busy is dropped and measured again later:
 * results of a busy machine lead to layouts that are slow on an idle one. If the controller asked for
 * it, or with --probe anyway, it is kept and says so, until it is measured again on the idle machine.
 *
 * The result is a calibration (plan/calibration.h), which is not parsed here. It is saved in
 * STATE_DIR/probe with a *key*, a text that names machine, driver and build. A saved result with
 * another key is dropped. A probe that fails keeps an older result with the same key.
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
    HD_PROBER_SECONDS = 55,    /* time limit that the helper (heddle-worker probe) gets, seconds */
    HD_PROBER_MS = 60000,      /* time after which the helper is killed, ms */
    HD_PROBER_QUIET_MS = 5000, /* time that devices must be idle before a probe that the controller
                                  did not ask for */
    HD_PROBER_RESULT_MAX = 1 << 20,
    HD_PROBER_KEY_MAX = 512,
    HD_PROBER_DEVICES_MAX = 4096, /* limit of the bytes of `devices`; enough for 64 UUIDs */
};

struct hd_prober {
    /* set by the caller before hd_prober_open; to change them call hd_prober_close, set them, and
     * call hd_prober_open again */
    char worker[PATH_MAX + 16];
    char key[HD_PROBER_KEY_MAX];         /* one line that names machine, driver and build */
    char devices[HD_PROBER_DEVICES_MAX]; /* value of `heddle-worker probe --devices`: "cpu:2:3", or
                                            "cuda:UUID,UUID.." */
    bool at_first, beside_others;        /* at_first: --probe first or anyway; beside_others:
                                            --probe anyway */
    const char *stat_path;               /* for tests; NULL: /proc/stat */
    int seconds, timeout_ms;             /* for tests; 0: HD_PROBER_SECONDS, HD_PROBER_MS */

    /* results, read by the caller */
    int64_t ended_ms;           /* wall clock time (ms) at which the newest probe ended; 0: none */
    char problem[HD_ERR_MAX];   /* reason why the newest probe measured nothing; "": it measured */
    struct hd_text calibration; /* result of the newest successful probe; "": none */
    /* what other programs used of the processors during that probe, and, of the GPU that they used
     * most, before it; percent */
    int processors_percent, gpu_percent;
    uint64_t asked, answered; /* numbers of the controller's newest request, and of the newest
                                   answered one */
    bool is_running;

    /* private to prober.c */
    char path[PATH_MAX + 16], dir[PATH_MAX + 16];
    struct hd_worker_run run;
    bool looks;          /* the running helper is heddle-worker gpu-sample */
    int gpu_now_percent; /* what it told; 0 also if it is not known */
    bool has_failed; /* a probe has failed since hd_prober_open; not retried until the controller
                        asks */
    int64_t idle_since_ms;
    struct hd_load since;   /* reading at the time when the devices became idle or the probe
                               began */
    bool has_reported_busy; /* whether the warning about busy processors was logged */
};

/* Reads the saved result of a probe from the state directory; a damaged file is logged and counts
 * as none. */
void hd_prober_open(struct hd_prober *prober, const char *state_dir);
void hd_prober_close(struct hd_prober *prober); /* kills a running helper (heddle-worker probe) */

/* Requests a probe that ends after this call. question: number of the controller's request, never
 * 0; a number that was given before changes nothing. */
void hd_prober_ask(struct hd_prober *prober, uint64_t question);

/* Starts and ends probes; must be called several times per second. idle: no attempt has a device or
 * is about to get one. Returns true if the probe's result or its problem has changed. */
bool hd_prober_step(struct hd_prober *prober, bool idle);

/* Appends the conditions under which the result holds: the key, and if other programs were busy
 * meanwhile, how busy. */
void hd_prober_conditions(const struct hd_prober *prober, struct hd_text *text);

/* Ends a running helper within 0.2 s, because an attempt has the devices or is about to get them.
 * why: the answer to an open request of the controller. */
void hd_prober_yield(struct hd_prober *prober, const char *why);

#endif
