/* show: JSON output of the commands. controller/show defines the form of the objects.
 *
 * Used by: the commands.   Uses: controller/show, cli.h.   Threads: one.
 */
#ifndef HD_CLI_SHOW_H
#define HD_CLI_SHOW_H

#include "controller/cli/cli.h"
#include "controller/show/show.h"

/* A list of items in the command's format: one envelope, or one line per item (`type` names its
 * kind). */
struct show_list {
    struct hd_text *out;
    struct hd_json_writer writer;
    bool lines; /* output is jsonl: one line per item */
    const char *type;
};

void show_list_begin(struct show_list *list, struct hd_text *out, enum cli_format format,
                     const char *kind, const char *type);
/* Begin and end an item of the list, whose members are written to list->writer in between. */
void show_item_begin(struct show_list *list);
void show_item_end(struct show_list *list);
void show_list_end(struct show_list *list);

/* Writes a job as an item of a list. */
void show_job_item(struct show_list *list, const Heddle__V1__JobStatus *job);
/* Appends "job 7 tiny queued: REASON" and a line break. */
void show_job_line(struct hd_text *out, const Heddle__V1__JobStatus *job, bool with_name);
/* Prints a job as show_job_line does, or as JSON; the answer to a change of one job. */
void show_one_job(const struct cli *cli, const Heddle__V1__JobStatus *job, bool with_name);

#endif
