/* health: checks the GPUs regularly, and updates what this node offers.
 *
 *     start --answer, or 30 s without one--> waiting --due, SIGHUP, a job failed--> checking
 *                                              ^                                        |
 *                                              +----answer, or 30 s without one---------+
 *
 * A check is one run of `heddle-worker gpus` (ask.h), without blocking heddled's loop. The next
 * check follows after HD_HEALTH_EVERY_MS, sooner while a GPU has a problem or if the last check had
 * no answer. A check without an answer gives every GPU of the node that problem.
 *
 * When an attempt has failed on a node with GPUs, its end is reported to the controller only after
 * a check that began later (hd_health_check_soon, hd_health_has_checked). Otherwise a GPU that
 * broke would get the next job at once, then the one after it, and fail the whole queue.
 *
 * With --devices auto, a node on which no GPU works at the start offers its cores, and does not
 * check again until heddled is restarted, because jobs may use the cores.
 *
 * Used by: agent.   Uses: base.   Threads: the loop's; only hd_health_open blocks.
 */
#ifndef HD_DAEMON_DEVICES_HEALTH_H
#define HD_DAEMON_DEVICES_HEALTH_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/devices/ask.h"
#include "daemon/devices/devices.h"

enum {
    HD_HEALTH_EVERY_MS = 300000,  /* pause between two checks while every GPU works, ms */
    HD_HEALTH_PROBLEM_MS = 60000, /* pause between two checks while a GPU has a problem, ms */
    HD_HEALTH_RETRY_MS = 10000,   /* pause before the next check after one without an answer, ms */
};

struct hd_health {
    /* set by the caller before hd_health_open */
    struct hd_device_selection selection;
    char worker[PATH_MAX + 16];

    /* results, read by the caller */
    struct hd_devices devices;     /* devices that the node offers */
    struct hd_processor cpu;       /* isa "": `heddle-worker device` did not answer */
    struct hd_inventory inventory; /* links between GPUs, and network adapters; without GPUs only
                                      the adapters */

    /* private to health.c */
    struct hd_numbers numbers;
    struct hd_worker_run ask;
    bool is_checking, looks_for_gpus;
    int64_t begun;  /* number of checks begun so far; it is also the number of the newest check */
    int64_t needed; /* number of a check that must begin at once; not above `begun`: none must */
    int64_t due_ms; /* time of the next check, by hd_clock_now_ms */
};

/* Runs the first check of the GPUs; blocks for at most 2 * HD_ASK_MS. Fails like hd_devices_choose.
 */
enum hd_status hd_health_open(struct hd_health *health, const char *state_dir, const char *boot_id);
void hd_health_close(struct hd_health *health);
/* Starts and ends checks of the GPUs; must be called several times per second. Returns true if
 * `devices` or `inventory` has changed. */
bool hd_health_step(struct hd_health *health);

/* Requests a check of the GPUs that begins after this call; returns the check's number. */
int64_t hd_health_check_soon(struct hd_health *health);
/* Returns whether the GPU check of this number is over, or this node needs no checks. */
bool hd_health_has_checked(const struct hd_health *health, int64_t number);
/* Offers GPUs again that were withdrawn for an error in the kernel's log; for SIGHUP, after a
 * repair. Starts a new check at once, and abandons one that is running. */
void hd_health_repaired(struct hd_health *health);

#endif
