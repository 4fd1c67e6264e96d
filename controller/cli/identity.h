/* identity: commands about callers and their credentials, including heddle node invite and revoke.
 *
 * Used by: the files of the command.   Threads: one.
 */
#ifndef HD_CLI_IDENTITY_H
#define HD_CLI_IDENTITY_H

#include "controller/cli/cli.h"

int cli_whoami(struct cli *cli, int argc, char **argv);
int cli_token(struct cli *cli, int argc, char **argv);
int cli_audit(struct cli *cli, int argc, char **argv);
int cli_limits(struct cli *cli, int argc, char **argv);
/* Runs `heddle node invite`; args[1] is the node. address: HOST:PORT at which the node reaches the
 * controller; NULL: the controller's own answer. */
int cli_node_invite(struct cli *cli, const char *address, const char *ttl);
int cli_node_revoke(struct cli *cli);

#endif
