/* commands_help: help texts that are not in commands.c, whose table names them.
 *
 * Used by: commands.c.   Uses: nothing.   Threads: constants.
 */
#ifndef HD_CLI_COMMANDS_HELP_H
#define HD_CLI_COMMANDS_HELP_H

extern const char cli_generate_help[];
extern const char cli_chat_help[];
extern const char cli_serve_help[];
extern const char cli_eval_help[];
extern const char cli_checkpoint_help[];
extern const char cli_data_help[];
extern const char cli_fetch_help[];

#endif
