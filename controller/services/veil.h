/* veil: takes out of answers what tells of jobs that the reader may not see.
 *
 * A reader whose sight is "own" (identity.h) finds no job of others, but many texts are about the
 * jobs of several people: why a job waits, what happened to a node, what holds a device. Texts name
 * a job as "job 17" or "jobs 5, 6", and files of it by a path below the jobs directory; that is the
 * one form that the core and the daemons use. In an answer to such a reader "job 17" is "another
 * job", unless it is the reader's own. Events are stored with the numbers, for those who may read
 * them.
 *
 * Used by: the files that make answers.   Uses: core.   Threads: the loop's.
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
    const char *jobs_dir; /* "": none */
    const char *reader;   /* the jobs of this owner are shown; NULL: those of all are */
};

/* Returns whether the reader may know of the job. */
bool veil_shows(const struct veil *veil, uint64_t job);
/* Rewrites a text that may name jobs which the reader may not know of. */
void veil_text(const struct veil *veil, struct hd_text *text);
/* Returns the text as the reader may see it: `text` itself, or a copy in the arena ("" if there is
 * no memory). NULL counts as "". */
const char *veil_copy(const struct veil *veil, struct hd_arena *arena, const char *text);

#endif
