/* say: members of a message of the protocol as text for people, by a text with places for them.
 *
 *     cli_say(out, job, "job {job} {name} {state}[: {reason}]\n");
 *
 *     {FIELD}           the text, the number without decimals, or the word (show_word) in a field;
 *                       of a list of texts all, with commas; of a list of messages their number
 *     {MESSAGE.FIELD}   FIELD of the message in field MESSAGE; if there is none, nothing for a text
 *                       or word, and 0 for a number
 *     {FIELD:people}    a text as cli_add_people writes it
 *     {FIELD:utc}       a number as a time (Unix, ms); likewise :count (cli_format_count),
 *                       :percent of a fraction, and :4, with four decimals
 *     {FIELD|FIELD}     the first field that is not empty
 *     [TEXT]            TEXT, or nothing if a field in it is empty, 0 or negative; not nested
 *     {FIELD?}          in brackets: writes nothing, and only such fields decide about the brackets
 *
 * Texts are cleaned for a terminal. A field of a oneof that has another value writes nothing.
 * A name that the message does not have is a mistake of the programmer.
 *
 * Used by: the commands.   Uses: cli.h, show.   Threads: one.
 */
#ifndef HD_CLI_SAY_H
#define HD_CLI_SAY_H

#include "controller/cli/cli.h"

void cli_say(struct hd_text *out, const void *message, const char *form);

/* Appends lines "NAME  TEXT", the name in `width` columns, without those whose text is empty. facts:
 * name and form of each; CLI_FACTS gives them with their number. */
void cli_say_facts(struct hd_text *out, int width, const void *message,
                   const char *const facts[][2], size_t count);
#define CLI_FACTS(facts) facts, sizeof facts / sizeof facts[0]

#endif
