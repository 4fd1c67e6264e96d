/* show: messages of the controller as JSON, in a stable form.
 *
 * An envelope is {"api_version":"heddle/v1","kind":KIND,"items":[...]}; a line of jsonl is an item
 * whose first member is "type". Times are RFC 3339 in UTC, or null if unknown; names of durations
 * and sizes end with their unit; states are the words of job.proto in lower case.
 *
 * Used by: cli, services (by HTTP).   Uses: base, spec, proto.   Threads: one.
 */
#ifndef HD_CONTROLLER_SHOW_H
#define HD_CONTROLLER_SHOW_H

#include "base/json.h"
#include "controller/show/form.h"
#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/job.pb-c.h"

/* Opens an envelope; the caller adds its members and ends it with hd_json_end(writer, '}'). */
void show_envelope_begin(struct hd_json_writer *writer, const char *kind);

/* The members of a job in lists, and of others (form.h). */
extern const char show_job_form[], show_node_form[], show_event_form[], show_checkpoint_form[];
/* Adds the members of a job, a Heddle__V1__JobStatus, with its attempts and its spec to the JSON
 * object that is open in the writer. */
void show_whole_job(struct hd_json_writer *writer, const void *job);
/* Returns whether a job holds the device, even if the caller may not see that job. */
bool show_is_held(const Heddle__V1__DeviceInfo *device);

/* Writes one entry of a job's history as a JSON object. False: its kind is of a newer
 * controller. */
bool show_history(struct hd_json_writer *writer, uint64_t job,
                  const Heddle__V1__WatchJobResponse *entry);

#endif
