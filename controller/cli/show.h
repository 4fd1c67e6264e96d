/* show: what the commands show as JSON. The form of the objects is controller/show's.
 *
 * Used by: the commands.   Uses: controller/show, cli.h.   Threads: one.
 */
#ifndef HD_CLI_SHOW_H
#define HD_CLI_SHOW_H

#include "controller/cli/cli.h"
#include "controller/show/show.h"

/* A list of items in the format of the command: an envelope, or a line each (`type` names them). */
struct show_list {
    struct hd_text *out;
    struct hd_json_writer writer;
    bool lines; /* jsonl */
    const char *type;
};

void show_list_begin(struct show_list *list, struct hd_text *out, enum cli_format format,
                     const char *kind, const char *type);
/* Begin and end of an item; members in between go to list->writer. */
void show_item_begin(struct show_list *list);
void show_item_end(struct show_list *list);
void show_list_end(struct show_list *list);

/* A job of a list. */
void show_job_item(struct show_list *list, const Heddle__V1__JobStatus *job);
/* "job 7 tiny queued: REASON" and the end of the line. */
void show_job_line(struct hd_text *out, const Heddle__V1__JobStatus *job, bool with_name);
/* Such a line on standard output, or as JSON; the answer to a change of one job.
 */
void show_one_job(const struct cli *cli, const Heddle__V1__JobStatus *job, bool with_name);

#endif
