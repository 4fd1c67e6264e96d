/* fetch: models and data of the hub and of object stores for commands, with progress on stderr.
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
#include "hub/s3.h"
#include "job/job.h"

struct cli;

/* Gets what the request wants, by hd_hub_get, or if `chooses` by hd_hub_get_set. Shows progress,
 * and then a line about what was downloaded. Ctrl-C and SIGTERM end it with HD_ABORTED: what has
 * arrived stays for the next time. */
enum hd_status fetch_get(struct hd_hub_request *request, bool chooses, struct hd_arena *arena,
                         struct hd_hub_result *ret_result);
/* Gets objects in the same way (hd_s3_get). */
enum hd_status fetch_get_s3(struct hd_s3_request *request, struct hd_arena *arena,
                            struct hd_s3_result *ret_result);
/* Returns the exit code of a failure of fetch_get and fetch_get_s3: cli_exit_of, or the code of the
 * signal that ended it. */
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

/* Sets ret_path to the folder of a model, or to paths or patterns of data files, that an hf:// or s3://
 * name means (hd_spec_source.locate). user: struct fetch_names. */
enum hd_status fetch_locate(void *user, const char *name, bool is_data, struct hd_text *ret_path);

/* Replaces the first argument of a command, if it is an hf:// or s3:// name, by the folder of the
 * model, and downloads what the cache lacks. path: memory of the new argument. Returns
 * CLI_CONTINUE, or an exit code after printing a message. */
int fetch_argument(struct cli *cli, char path[PATH_MAX]);

/* Appends "model.from: hf://ORG/NAME@COMMIT", "data.train: s3://BUCKET/KEY" and the like, a line
 * for each repository and object that the job reads from a cache. */
void fetch_describe(const struct hd_job *job, struct hd_text *out);

#endif
