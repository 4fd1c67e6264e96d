/* limits: how long a rank may give no sign of life in each phase before it counts as hanging.
 *
 * A limit comes from the job file (`hang`), or is learned from the silences of this job, also of
 * its former attempts: 8 times the 99th percentile, at least twice the longest, at least a minute.
 * It is learned when there are 16 silences of each rank here. Until then it is half an hour.
 *
 * Silences are counted in bins of an eighth of an octave, so a percentile is at most 9% too long,
 * and memory does not grow. The supervisor of rank 0 saves them in JOBS_DIR/JOB/silences; every
 * supervisor of the next attempt reads them. Saved counts are scaled down, so that a new layout is
 * learned soon.
 *
 * Used by: supervisor.   Uses: base, job, link (phases).   Threads: one owner.
 */
#ifndef HD_DAEMON_SUPERVISOR_LIMITS_H
#define HD_DAEMON_SUPERVISOR_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "job/job.h"
#include "link/report.h"

enum {
    SUP_LIMIT_BINS = 8 * 30,      /* bins for silences up to 2^30 ms, twelve days */
    SUP_LIMIT_COUNT_MIN = 16,     /* silences per rank from which on a limit is learned */
    SUP_LIMIT_KEPT_MAX = 256,     /* most silences of former attempts that count, per phase */
    SUP_LIMIT_MIN_MS = 60 * 1000, /* smallest limit that is learned, ms */
    SUP_LIMIT_UNLEARNED_MS = 30 * 60 * 1000,
};

struct sup_limits {
    int rank_count;    /* ranks of this node, whose silences are learned */
    bool reports_only; /* true for hang.action: tell, which only reports hangs */
    /* ms, limit of each phase, set by the job file, or for all phases by an option; 0: learned */
    int64_t set_ms[HD_LINK_PHASE_COUNT];
    int64_t count[HD_LINK_PHASE_COUNT]; /* number of silences in each phase */
    int64_t bins[HD_LINK_PHASE_COUNT][SUP_LIMIT_BINS];
};

/* Initialises the limits from the job. all_ms: one limit for every phase, in ms; 0: the limits in
 * the job file. HD_INVALID: the job was not checked. */
enum hd_status sup_limits_init(struct sup_limits *limits, const struct hd_job *job, int rank_count,
                               int64_t all_ms);

/* Adds a silence that has ended to those from which the phase's limit is learned. */
void sup_limits_learn(struct sup_limits *limits, enum hd_link_phase phase, int64_t silence_ms);

/* Limits of one phase: a silence this long is reported, or is a hang that ends the attempt;
 * SUP_LIMIT_NEVER: never. Outside of training a learned limit only reports before
 * SUP_LIMIT_UNLEARNED_MS: a slow disk must not end a job because it was fast before. */
#define SUP_LIMIT_NEVER INT64_MAX
struct sup_limit {
    int64_t reported_ms, ends_ms;
};
struct sup_limit sup_limits_of(const struct sup_limits *limits, enum hd_link_phase phase);

/* Returns how long a rank may wait before it gives up by itself, which is later than the supervisor
 * acts; SUP_LIMIT_NEVER / 2 for hang.action: tell; 0: the limit is neither learned nor set. */
int64_t sup_wait_limit_ms(const struct sup_limits *limits);

/* sup_limits_write saves the learned silences to a file; sup_limits_read reads them; a file that is
 * missing or damaged counts as empty. */
enum hd_status sup_limits_write(const struct sup_limits *limits, const char *path);
void sup_limits_read(struct sup_limits *limits, const char *path);

#endif
