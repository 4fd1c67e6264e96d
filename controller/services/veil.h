/* veil: removes from texts the numbers of jobs that the reader may not see.
 *
 * A reader with visibility "own" (identity.h) cannot query jobs of other users, but many texts name
 * them: why a job waits, what happened to a node, which job holds a device. Texts of core and
 * daemons name jobs only as "job 17" or "jobs 5, 6", and their files by a path below the jobs
 * directory, or that of a record in a node's state directory (attempts/17-1). In replies to such a
 * reader "job 17" becomes "another job", unless it is the reader's own. Events are stored with the
 * numbers, for readers who may see them.
 *
 * Used by: the files that make replies.   Uses: core.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_VEIL_H
#define HD_CONTROLLER_SERVICES_VEIL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/text.h"
#include "controller/identity/identity.h"

struct hd_core;

struct veil {
    const struct hd_core *core;
    const char *jobs_dir; /* path of the jobs directory; "": none */
    const char *reader;   /* owner whose jobs are shown; NULL: all jobs are shown */
};

/* Returns whether the reader may see the job. */
bool veil_shows(const struct veil *veil, uint64_t job);
/* Returns whether the text is about a job that the reader may not see: it begins with "job 17". */
bool veil_hides_subject(const struct veil *veil, const char *text);
/* Rewrites a text that may name jobs that the reader may not see. */
void veil_text(const struct veil *veil, struct hd_text *text);
/* Returns the text as the reader may see it: `text` itself, or a rewritten copy in the arena ("" if
 * out of memory). NULL counts as "". */
const char *veil_copy(const struct veil *veil, struct hd_arena *arena, const char *text);

#endif
