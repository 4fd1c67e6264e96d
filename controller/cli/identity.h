/* identity: commands about callers and their credentials, including heddle node invite and revoke.
 *
 * Used by: the files of the command.   Threads: one.
 */
#ifndef HD_CLI_IDENTITY_H
#define HD_CLI_IDENTITY_H

#include "controller/cli/cli.h"

/* Runs `heddle node invite`; args[1] is the node. address: HOST:PORT at which the node reaches the
 * controller; NULL: the controller's own answer. ttl_ms: lifetime of the line; 0: an hour. */
int cli_node_invite(struct cli *cli, const char *address, int64_t ttl_ms);
int cli_node_revoke(struct cli *cli);

#endif
