/* health: keeps what this node offers in step with the state of its GPUs.
 *
 *     start --answer, or 30 s without one--> waiting --due, SIGHUP, a job failed--> checking
 *                                              ^                                        |
 *                                              +----answer, or 30 s without one---------+
 *
 * A check is one run of `heddle-worker gpus` (ask.h) beside heddled's loop. The next one follows
 * after HD_HEALTH_EVERY_MS, sooner while a GPU has a problem or the last check had no answer.
 * Without an answer every GPU of the node gets that as its problem.
 *
 * When an attempt has failed on a node with GPUs, its end is told to the controller only after a
 * check that began later (hd_health_check_soon, hd_health_has_checked): otherwise the GPU that
 * broke would be given to the next job at once, and so on through the queue.
 *
 * With --devices auto a node on which no GPU works at the start offers its cores and checks no
 * more until heddled is started again, because jobs may use the cores.
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
    HD_HEALTH_EVERY_MS = 300000,  /* between two checks, while every GPU works */
    HD_HEALTH_PROBLEM_MS = 60000, /* while a GPU has a problem */
    HD_HEALTH_RETRY_MS = 10000,   /* when the last check had no answer */
};

struct hd_health {
    /* set by the caller before hd_health_open */
    struct hd_device_selection selection;
    char worker[PATH_MAX + 16];

    /* to be read */
    struct hd_devices devices;     /* what the node offers */
    struct hd_processor cpu;       /* isa "": `heddle-worker device` did not answer */
    struct hd_inventory inventory; /* links and adapters; of a machine without GPUs the latter */

    /* health.c */
    struct hd_numbers numbers;
    struct hd_worker_run ask;
    bool is_checking, looks_for_gpus;
    int64_t begun;  /* checks that were begun; the number of the newest */
    int64_t needed; /* the check of this number begins at once */
    int64_t due_ms; /* of the next check, by hd_clock_now_ms */
};

/* Runs the first check, for at most 2 * HD_ASK_MS. HD_UNSUPPORTED as hd_devices_choose. */
enum hd_status hd_health_open(struct hd_health *health, const char *state_dir, const char *boot_id);
void hd_health_close(struct hd_health *health);
/* Called a few times a second. True: `devices` has changed. */
bool hd_health_step(struct hd_health *health);

/* Asks for a check that begins from now on, and returns its number. */
int64_t hd_health_check_soon(struct hd_health *health);
/* Whether the check of this number is over, or none is needed. */
bool hd_health_has_checked(const struct hd_health *health, int64_t number);
/* SIGHUP: the GPUs that the kernel's log has withdrawn were repaired. Checks at once; a check that
 * is under way is given up. */
void hd_health_repaired(struct hd_health *health);

#endif
