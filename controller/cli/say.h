/* say: members of a message of the protocol as text for people, by a text with places for them.
 *
 *     cli_say(cli, out, job, "job {job} {name} {state}[: {reason}]\n");
 *
 * A place {FIELD} or {MESSAGE.FIELD} is a text, a number, the word of an enum, texts with commas, or the
 * number of messages in a list; of an absent message a text is empty and a number 0. {FIELD:FORM} writes a text as
 * `people` (cli_add_people), a number as `utc`, `when` (cli_format_when), `count`, `percent` or with
 * `4` decimals; {FIELD|FIELD} is the first that is not empty. What is in [brackets] is left out if a
 * field in it is empty, 0 or negative; with {FIELD?} in it, which writes nothing, if that field is.
 * Texts are cleaned for a terminal.
 *
 * Used by: the commands.   Uses: cli.h, show.   Threads: one.
 */
#ifndef HD_CLI_SAY_H
#define HD_CLI_SAY_H

#include "controller/cli/cli.h"

void cli_say(const struct cli *cli, struct hd_text *out, const void *message, const char *form);

#endif
