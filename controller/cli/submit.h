/* submit: what submit and local share.   Used by: the verbs.   Uses: cli.h, spec.   Threads: one.
 */
#ifndef HD_CLI_SUBMIT_H
#define HD_CLI_SUBMIT_H

#include "controller/cli/cli.h"

enum { CLI_REQUEST_ID_MAX = 33 };

/* Reads and checks a job file; the message of a mistake is on stderr. CLI_CONTINUE or a code. */
int cli_read_spec(const char *path, const struct cli_list *overrides,
                  Heddle__V1__JobSpec **ret_spec);

/* Sends the job, again and again under one request id (made here when NULL) until the controller
 * has answered or is away for too long. CLI_CONTINUE or a code. */
int cli_submit_spec(struct cli *cli, Heddle__V1__JobSpec *spec, const char *request_id,
                    Heddle__V1__SubmitJobResponse **ret_response);

#endif
