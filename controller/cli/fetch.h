/* fetch: models and data sets of the hub for commands, with progress on stderr.
 *
 * Used by: fetch, local, submit, validate, plan, show, generate, eval, serve.   Uses: hub, bar, out.
 * Threads: one; the download's own threads have ended when a function returns.
 */
#ifndef HD_CLI_FETCH_H
#define HD_CLI_FETCH_H

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "hub/hub.h"
#include "job/job.h"

struct cli;

/* Gets what the request wants (hd_hub_get), with progress, and a line about what was downloaded.
 * Ctrl-C and SIGTERM end it with HD_ABORTED: what has arrived stays for the next time. */
enum hd_status fetch_get(struct hd_hub_request *request, struct hd_arena *arena,
                         struct hd_hub_result *ret_result);
/* Returns the exit code of a failure of fetch_get: cli_exit_of, or that of the signal. */
int fetch_exit_of(enum hd_status st);

/* Names of a job file and the paths that they mean. Initialise with {.arena = .., .downloads = ..}.
 */
struct fetch_names {
    struct hd_arena *arena;
    bool downloads; /* false: only the cache is read */
    /* settings, read at the first name */
    bool is_ready;
    struct hd_hub_settings settings;
    struct fetch_known *known; /* names that were looked up; a second reading gets the same */
};

/* Sets ret_path to the folder of a model, or to the path or pattern of data files, that an hf://
 * name means (hd_spec_source.locate). user: struct fetch_names. */
enum hd_status fetch_locate(void *user, const char *name, bool is_data, struct hd_text *ret_path);

/* Replaces the first argument of a command, if it is an hf:// name, by the folder of the model, and
 * downloads what the cache lacks. path: memory of the new argument. Returns CLI_CONTINUE, or an exit
 * code after the message. */
int fetch_argument(struct cli *cli, char path[PATH_MAX]);

/* Appends "model.from: hf://ORG/NAME@COMMIT" and the like, a line for each repository that the job
 * reads from the hub's cache. */
void fetch_describe(const struct hd_job *job, struct hd_text *out);

#endif
