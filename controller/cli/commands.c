/* commands: the table of commands (commands.def), and the text of heddle --help. */
#include <string.h>

#include "controller/cli/cli.h"

#define TRAIN   "Train"
#define SEE     "See how jobs fare"
#define CHANGE  "Change jobs"
#define USE     "Use models and data"
#define NODES   "Operate nodes"
#define PEOPLE  "People and their rights"
#define PROGRAM "This program"

#define CLI_COMMAND(group, id, name, summary, nouns) extern const struct cli_body cli_body_##id;
#include "controller/cli/commands.def"
#undef CLI_COMMAND

const struct cli_command cli_commands[] = {
#define CLI_COMMAND(group, id, name, summary, nouns) {group, name, summary, nouns, &cli_body_##id},
#include "controller/cli/commands.def"
#undef CLI_COMMAND
};
const size_t cli_command_count = sizeof cli_commands / sizeof cli_commands[0];

void cli_overview(struct hd_text *out)
{
    hd_text_add(out, "Usage: heddle COMMAND [ARGUMENTS]\n"
                     "\n"
                     "Trains language models: hands jobs to a controller and shows how they fare.\n"
                     "\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        if (!i || strcmp(cli_commands[i].group, cli_commands[i - 1].group) != 0)
            hd_text_add(out, "%s%s:\n", i ? "\n" : "", cli_commands[i].group);
        hd_text_add(out, "  %-11s %s\n", cli_commands[i].name, cli_commands[i].summary);
    }
    hd_text_add(
        out, "\n"
             "A noun and a verb work, too: heddle job list, job show JOB, node drain NODE ...\n"
             "JOB is a job's number, or the name of one job alone. RUN is the folder of a run\n"
             "of heddle local.\n"
             "\n"
             "Flags of every command:\n"
             "  --controller ADDR  unix:PATH or HOST:PORT; else HEDDLE_CONTROLLER, else that of\n"
             "                     the context, else the user's and the system's socket\n"
             "  --context NAME     of the configuration file; else HEDDLE_CONTEXT\n"
             "  --token-file FILE  your token for HOST:PORT; else HEDDLE_TOKEN_FILE\n"
             "  --tls-ca FILE      the authority of a HOST:PORT elsewhere; else HEDDLE_TLS_CA\n"
             "  --tls-cert FILE    your certificate and key; else HEDDLE_TLS_CERT\n"
             "  -o FORMAT          table, wide, json or jsonl (not where raw text is printed)\n"
             "  --color WHEN       auto, always or never; NO_COLOR is honoured\n"
             "  -h, --help         what a command does, with an example\n"
             "\n"
             "Exit codes: 0 success, 1 the job failed or was cancelled, 2 usage or bad input,\n"
             "3 controller not reachable, 4 not found, 5 not permitted, 6 the command itself\n"
             "failed, 7 the cluster can never run it (submit --must-fit), 130 Ctrl-C,\n"
             "143 SIGTERM.\n"
             "\n"
             "Example:\n"
             "  heddle local job.yaml\n");
}
