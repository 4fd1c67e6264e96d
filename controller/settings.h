/* settings: the flags of heddle-controller, which are also the keys of its configuration file.
 *
 * Used by: main.c, deploy/manual.   Uses: config.   Threads: constants.
 */
#ifndef HD_CONTROLLER_SETTINGS_H
#define HD_CONTROLLER_SETTINGS_H

#include "config/config.h"

enum controller_setting {
    OPT_CONFIG = 1,
    OPT_CHECK_CONFIG,
    OPT_STATE_DIR,
    OPT_STATE_RESERVE,
    OPT_LISTEN,
    OPT_ALSO_LISTEN,
    OPT_SOCKET_GROUP,
    OPT_POLICY,
    OPT_HOST,
    OPT_IF_NEEDED,
    OPT_REVOKE,
    OPT_EMPTY,
    OPT_CERTIFICATE_LIFE,
    OPT_JOBS_DIR,
    OPT_CLUSTER,
    OPT_NODE_LOST,
    OPT_SPARE_NODES,
    OPT_TOKEN_FILE,
    OPT_NODE_TOKEN_FILE,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TLS_CA,
    OPT_HTTP,
    OPT_HTTP_HOST,
    OPT_UMASK,
    OPT_LOG_FORMAT,
    OPT_EPHEMERAL,
    OPT_END_JOBS,
    OPT_OUTPUT,
    OPT_HELP,
    OPT_VERSION,
};

extern const struct hd_program_table controller_program;

#endif
