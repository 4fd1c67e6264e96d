/* page: a manual page from the help text of a program or a command.
 *
 * A help text has this form:
 *
 *     Usage: heddle queue ls [-o FORMAT]              the forms of the command
 *            heddle queue set NAME [--weight W]
 *
 *     Paragraphs.
 *
 *       -w, --watch        then follow the job         a line that begins with two blanks and a
 *       --set KEY=VALUE    in place of the file's      dash: flags with their values, two blanks or
 *                                                      the line's end, text; deeper lines continue it
 *     Example:
 *       heddle queue ls
 *
 * Used by: deploy/manual, tests.   Uses: base.   Threads: any.
 */
#ifndef HD_CLI_PAGE_H
#define HD_CLI_PAGE_H

#include "base/text.h"

/* Appends a manual page (man macros of troff). name: name of the page, "heddle-queue"; summary: one
 * line about it. */
void page_manual(const char *name, int section, const char *summary, const char *help,
                 const char *see_also, const char *version, struct hd_text *out);

#endif
