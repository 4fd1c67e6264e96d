/* found: the complete checkpoints of a job or in a folder.
 *
 * A JOB is asked of the controller. A DIR may be a checkpoint, an attempt's folder, a job's folder,
 * or the folder of a `heddle local` run; only manifests are read, no tensors. A model folder of
 * Hugging Face's transformers is no checkpoint: the verbs ask for it first.
 *
 * Used by: checkpoint, eval, generate, show.   Uses: cli.h, checkpoint, hf.   Threads: one.
 */
#ifndef HD_CLI_FOUND_H
#define HD_CLI_FOUND_H

#include "base/arena.h"
#include "controller/cli/cli.h"

struct found {
    struct hd_arena arena;             /* owns the strings of items */
    Heddle__V1__CheckpointInfo *items; /* oldest first: the newest is the last */
    size_t count, capacity;
    bool damaged_too;
};

/* Finds the checkpoints of JOB or DIR: digits are a job unless there is such a folder; `./7` is
 * always a folder. `damaged_too`: those in a folder that cannot be opened are listed as well, with
 * path and step alone; else they are the failure. CLI_CONTINUE, or the exit code after the message
 * was printed; found_done in both cases. */
int found_open(struct cli *cli, const char *name, bool damaged_too, struct found *f);
void found_done(struct found *f);

/* What --step asks for: the number of a step, FOUND_BEST ("best"), or FOUND_NEWEST (not given). */
enum { FOUND_NEWEST = 0, FOUND_BEST = -1 };
/* CLI_CONTINUE, or the exit code after the message was printed. text NULL: not given. */
int found_parse_step(const char *verb, const char *text, int64_t *ret_step);
/* Keeps only that checkpoint, of a step the newest attempt's. HD_NOT_FOUND: it is not there; `name`
 * is JOB or DIR. */
enum hd_status found_keep(struct found *f, const char *name, int64_t step);

/* A folder as transformers makes it, and no checkpoint of Heddle. */
bool found_is_model(const char *dir);
/* The same, or a folder that `heddle checkpoint export` wrote and that was damaged since. */
bool found_is_export(const char *dir);

#endif
