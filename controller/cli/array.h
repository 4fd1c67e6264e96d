/* array: the members of heddle submit --array and --sweep, jobs of their own of one job file.
 *
 *     --array 8, --array 3-10          NAME-1 .. NAME-8; %a in a --set is the number of a member
 *     --array 0-99%4                   likewise; at most 4 of them run at a time
 *     --sweep KEY=V1,V2 (repeated)     NAME-KEY1V1-KEY2V2 ..: the product of all values
 *
 * A member of a sweep whose name would be too long, or that of another one, is numbered, and then
 * all are.
 *
 * Used by: cmd_submit.c.   Uses: cli.h.   Threads: one; no state.
 */
#ifndef HD_CLI_ARRAY_H
#define HD_CLI_ARRAY_H

#include "base/arena.h"
#include "controller/cli/cli.h"
#include "job/job.h"

enum { ARRAY_MEMBERS_MAX = 1000, ARRAY_SWEEPS_MAX = 8 };

struct array_member {
    struct cli_list *set;         /* changes of the job file; the items live in the arena */
    char suffix[HD_JOB_WORD_MAX]; /* what its name has behind the job's, "-3"; "": no array */
};

struct array {
    struct array_member *members;
    size_t count;
    int64_t at_once; /* most members that run at a time; 0: any number */
    bool is_sweep;   /* members have names of their values, which may be replaced by numbers */
    bool is_one;     /* neither --array nor --sweep was given: the only member is the job itself */
};

/* Makes the members of a submission. text: value of --array; NULL: not given. set: the values of
 * --set. Returns CLI_CONTINUE, or CLI_USAGE after a message. */
int array_expand(const char *text, const struct cli_list *sweeps, const struct cli_list *set,
                 struct hd_arena *arena, struct array *ret_array);
/* Gives the jobs the limit of --array, if there is one, as members of the array that their job file
 * names, or of one that is named after the job and the id of the request. */
void array_limit(const struct array *array, const char *id, struct hd_job *const *jobs);
/* Puts the names of members in place of the job's own in `jobs` [array->count]. */
int array_name(const struct array *array, struct hd_job *const *jobs);

#endif
