/* identity: commands about callers and their credentials, and those of heddle node that make and
 * end them.
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
/* args[1] is the node. address: HOST:PORT by which it reaches the controller; NULL: as that says.
 */
int cli_node_invite(struct cli *cli, const char *address, const char *ttl);
int cli_node_revoke(struct cli *cli);

#endif
