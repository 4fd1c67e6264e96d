/* settings: the flags of heddled, which are also the keys of its configuration file.
 *
 * Used by: main.c, deploy/manual.   Uses: config.   Threads: constants.
 */
#ifndef HD_DAEMON_AGENT_SETTINGS_H
#define HD_DAEMON_AGENT_SETTINGS_H

#include "config/config.h"

enum heddled_setting {
    OPT_CONFIG = 1,
    OPT_CHECK_CONFIG,
    OPT_CONTROLLER,
    OPT_STATE_DIR,
    OPT_NODE_NAME,
    OPT_DEVICES,
    OPT_DEVICE_MEMORY,
    OPT_DATA_ADDRESS,
    OPT_CHOICES_DIR,
    OPT_PROBE,
    OPT_LOG_LIMIT,
    OPT_MIN_FREE,
    OPT_EPHEMERAL,
    OPT_IF_NEEDED,
    OPT_LEAVE_WITHIN,
    OPT_TOKEN_FILE,
    OPT_TLS_CA,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_SUPERVISOR_LOST,
    OPT_LAUNCHER,
    OPT_ISOLATION,
    OPT_CGROUP,
    OPT_DATA_ROOTS,
    OPT_JOB_CPUS,
    OPT_MEMORY_SLACK,
    OPT_WORKER,
    OPT_HTTP,
    OPT_HTTP_TOKEN_FILE,
    OPT_HTTP_HOST,
    OPT_UMASK,
    OPT_LOG_FORMAT,
    OPT_DOCTOR,
    OPT_JOBS_DIR,
    OPT_OUTPUT,
    OPT_HELP,
    OPT_VERSION,
};

extern const struct hd_program_table heddled_program;

#endif
