/* submit: reading and submitting a job file, for submit, local, plan and validate.
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

/* Reads and checks a job file; the message of a mistake is on stderr. CLI_CONTINUE or a code. The
 * job lives in `arena`. */
int cli_read_spec(const char *path, const struct cli_list *overrides, struct hd_arena *arena,
                  struct hd_job **ret_job);
/* The same of a job whose layout and devices the caller replaces, and then checks. */
int cli_read_spec_to_lay_out(const char *path, const struct cli_list *overrides,
                             struct hd_arena *arena, struct hd_job **ret_job);
/* The same; ret_epoch: of data_check_epoch, where that was asked because of train.epochs; else
 * NULL. */
int cli_read_spec_and_epoch(const char *path, const struct cli_list *overrides,
                            struct hd_arena *arena, struct hd_job **ret_job,
                            const struct hd_json **ret_epoch);
/* The same of a job that is only planned. missing_data: of struct hd_spec_source. */
int cli_read_spec_to_plan(const char *path, const struct cli_list *overrides,
                          struct hd_text *missing_data, struct hd_arena *arena,
                          struct hd_job **ret_job, const struct hd_json **ret_epoch);

/* What data_check.h has found wrong, with the line of the job file, on stderr. Frees
 * the text. */
void cli_print_problem(const char *path, const struct cli_list *overrides, bool only_planned,
                       struct hd_text *problem);

/* A job's own spec as a job file, read again with the changes: they are checked, and completed, as
 * those of a new job. */
enum hd_status cli_change_spec(const Heddle__V1__JobStatus *status,
                               const struct cli_list *overrides, struct hd_arena *arena,
                               struct hd_job *ret_job);
/* Says how a job that failed or was cancelled goes on, as the last line: the command. `code`: what
 * its watching ended with. */
void cli_print_next_commands(struct cli *cli, uint64_t job, int code);
/* The same by another command: `resume` is "heddle local --resume DIR". job 0: the controller need
 * not be asked how the job ended. */
void cli_print_next_commands_by(struct cli *cli, uint64_t job, const char *resume);

/* Submits the job. As long as no answer comes, it tries again with the same request id (made here
 * if NULL), so that a lost answer makes no second job. CLI_CONTINUE, or the exit code when it gave
 * up. */
int cli_submit_spec(struct cli *cli, const struct hd_job *job, const char *request_id,
                    Heddle__V1__SubmitJobResponse **ret_response);

#endif
