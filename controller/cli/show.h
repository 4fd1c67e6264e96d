/* show: messages of the controller as JSON, a form that does not change.
 *
 * An envelope is {"api_version":"heddle/v1","kind":KIND,"items":[...]}; a line of jsonl is an item
 * whose first member is "type". Times are RFC 3339 in UTC, or null if unknown; names of durations
 * and sizes end with their unit; states are the words of job.proto in lower case.
 *
 * Used by: the commands.   Uses: base, cli.h.   Threads: one.
 */
#ifndef HD_CLI_SHOW_H
#define HD_CLI_SHOW_H

#include "base/json.h"
#include "controller/cli/cli.h"

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

/* Members of the open object. */
void show_job(struct hd_json_writer *writer, const Heddle__V1__JobStatus *job, bool with_details);
/* On standard output: "job 7 tiny queued: REASON", or as JSON; the answer to a change of one job.
 */
void show_one_job(const struct cli *cli, const Heddle__V1__JobStatus *job, bool with_name);
void show_node(struct hd_json_writer *writer, const Heddle__V1__NodeStatus *node);
void show_event(struct hd_json_writer *writer, const Heddle__V1__Event *event);
void show_checkpoint(struct hd_json_writer *writer, const Heddle__V1__CheckpointInfo *checkpoint);
void show_known(struct hd_json_writer *writer, const char *key, bool known,
                double value); /* or null */
void show_time(struct hd_json_writer *writer, const char *key, int64_t unix_ms);

/* One message of a job's history as an object; false for a kind of a newer controller. */
bool show_history(struct hd_json_writer *writer, uint64_t job,
                  const Heddle__V1__WatchJobResponse *entry);

#endif
