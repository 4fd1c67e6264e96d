/* found: finds the complete checkpoints of a job or in a folder.
 *
 * A JOB is looked up at the controller. A DIR may be a checkpoint, an attempt's folder, a job's
 * folder, or the folder of a `heddle local` run; only manifests are read, no tensors. A Hugging
 * Face model folder is no checkpoint: commands test for one first (found_model).
 *
 * Used by: checkpoint, eval, generate, show.   Uses: cli.h, checkpoint, hf.   Threads: one.
 */
#ifndef HD_CLI_FOUND_H
#define HD_CLI_FOUND_H

#include "base/arena.h"
#include "controller/cli/cli.h"

struct found {
    struct hd_arena arena;             /* owns the strings of `items` */
    Heddle__V1__CheckpointInfo *items; /* checkpoints found, oldest first */
    size_t count, capacity;
    bool damaged_too;
    char model[PATH_MAX]; /* folder of a model that was downloaded */
};

/* Finds the checkpoints of a job or a folder. `name` is a job's number or name unless it has a '/',
 * or a file has that name; `./7` is always a folder. damaged_too true: unreadable checkpoints in a
 * folder are listed with path and step only; false: they are a failure. Returns CLI_CONTINUE, or
 * the exit code after printing a message; call found_done in both cases. */
int found_open(struct cli *cli, const char *name, bool damaged_too, struct found *f);
void found_done(struct found *f);

/* Values of --step besides a step number: "best", and not given. */
enum { FOUND_NEWEST = 0, FOUND_BEST = -1 };
/* Sets *ret_step to the value of the flag --step; text NULL: the flag was not given. Returns
 * CLI_CONTINUE, or the exit code after printing a message. */
int found_parse_step(const char *verb, const char *text, int64_t *ret_step);
/* Keeps only the requested checkpoint; if several attempts saved the step, the newest attempt's.
 * HD_NOT_FOUND: no such checkpoint; `name` (JOB or DIR) is for the message. */
enum hd_status found_keep(struct found *f, const char *name, int64_t step);

/* Finds the model that the first argument of a command names: a model folder, hf://ORG/NAME, or the
 * checkpoint of a job or a folder (step_text: value of --step; NULL: not given). Ends the connection
 * to the controller. *ret_path lives as long as `f`. Returns CLI_CONTINUE, or the exit code after
 * printing a message; call found_done in both cases. */
int found_model(struct cli *cli, const char *step_text, struct found *f, const char **ret_path);

/* Replaces this process by a program with the model that the first argument names and the flags that
 * pass (cli_pass_flags). verb: its first word; NULL: none. Returns only on failure, with an exit code
 * after printing a message. */
int found_become(struct cli *cli, const char *program, const char *verb, const char *step_text);

/* Returns whether the folder is a transformers model, or one that `heddle checkpoint export` wrote
 * and that was damaged since. */
bool found_is_export(const char *dir);

#endif
