/* submit: reads and submits a job file, for submit, local, plan and validate.
 *
 * Used by: the commands.   Uses: cli.h, spec.   Threads: one.
 */
#ifndef HD_CLI_SUBMIT_H
#define HD_CLI_SUBMIT_H

#include "base/arena.h"
#include "base/json.h"
#include "controller/cli/cli.h"
#include "job/job.h"

enum { CLI_REQUEST_ID_MAX = 33 };

/* Reads and checks a job file; the job lives in `arena`. Downloads what it names by hf://. Returns
 * CLI_CONTINUE, or an exit code after the message on stderr. */
int cli_read_spec(const char *path, const struct cli_list *overrides, struct hd_arena *arena,
                  struct hd_job **ret_job);
/* Reads a job file like cli_read_spec, without the checks of layout and memory: the caller replaces
 * layout and devices, and then checks the job. */
int cli_read_spec_to_lay_out(const char *path, const struct cli_list *overrides,
                             struct hd_arena *arena, struct hd_job **ret_job);
/* Reads a job file like cli_read_spec, but downloads nothing: hf:// names must be in the cache.
 * *ret_epoch: result of data_check_epoch if the job has train.epochs; else NULL. */
int cli_read_spec_and_epoch(const char *path, const struct cli_list *overrides,
                            struct hd_arena *arena, struct hd_job **ret_job,
                            const struct hd_json **ret_epoch);
/* Reads a job file like cli_read_spec_and_epoch for a job that is only planned. missing_data: the
 * job's data files may be missing on this machine (struct hd_spec_source). */
int cli_read_spec_to_plan(const char *path, const struct cli_list *overrides,
                          struct hd_text *missing_data, struct hd_arena *arena,
                          struct hd_job **ret_job, const struct hd_json **ret_epoch);

/* Reads a job of the controller into `arena`. */
enum hd_status cli_open_spec(const Heddle__V1__JobSpec *spec, struct hd_arena *arena,
                             struct hd_job **ret_job);
/* Sets *ret_spec to the job as a message, in `arena`. Returns CLI_CONTINUE, or an exit code after a
 * message. */
int cli_pack_spec(const struct hd_job *job, struct hd_arena *arena, Heddle__V1__JobSpec **ret_spec);

/* Prints a problem that data_check.h reported, with the line of the job file, on stderr. Frees the
 * text. */
void cli_print_problem(const char *path, const struct cli_list *overrides, bool only_planned,
                       struct hd_text *problem);

/* Makes a changed job: re-reads the job's own spec as a job file with the overrides, which are
 * checked and completed like a new job's. */
enum hd_status cli_change_spec(const Heddle__V1__JobStatus *status,
                               const struct cli_list *overrides, struct hd_arena *arena,
                               struct hd_job *ret_job);
/* Prints, as the last line, the command that continues a job that failed or was cancelled. `code`:
 * result of cli_watch_job. */
void cli_print_next_commands(struct cli *cli, uint64_t job, int code);
/* Prints the next command like cli_print_next_commands, with `resume` such as "heddle local
 * --resume DIR". job 0: do not ask the controller how the job ended. */
void cli_print_next_commands_by(struct cli *cli, uint64_t job, const char *resume);

/* Submits the job to the controller. Without an answer it retries with the same request id (made
 * here if NULL), so that a lost answer makes no second job. Returns CLI_CONTINUE, or the exit code
 * after it gave up. */
int cli_submit_spec(struct cli *cli, const struct hd_job *job, const char *request_id,
                    Heddle__V1__SubmitJobResponse **ret_response);

#endif
