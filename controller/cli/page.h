/* page: parses the help text of a command, for manual pages and shell completion.
 *
 * A help text is the one description of a command. Its form:
 *
 *     Usage: heddle queue ls [-o FORMAT]              the forms of the command; a lower-case word
 *            heddle queue set NAME [--weight W]       behind the name is a subcommand
 *
 *     Paragraphs.
 *
 *       -w, --watch        then follow the job         a line that begins with two blanks and a
 * dash:
 *       --set KEY=VALUE    in place of the file's      flags with their values, two blanks or the
 *                                                      line's end, text; deeper lines continue it
 *     Example:
 *       heddle queue ls
 *
 * cli_test compares the flags of each text with those that the command takes.
 * Used by: completion, deploy/manual, tests.   Uses: base.   Threads: any.
 */
#ifndef HD_CLI_PAGE_H
#define HD_CLI_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

enum { PAGE_FLAGS_MAX = 64, PAGE_SUBCOMMANDS_MAX = 8, PAGE_TEXT_MAX = 512 };

struct page_flag {
    char letter;   /* one-letter form of the flag; 0: none */
    char name[32]; /* name of the flag; "": it has only a letter */
    /* name of the flag's value, "KEY=VALUE"; "": the flag is a switch without value */
    char value[48];
    char text[PAGE_TEXT_MAX]; /* description of the flag, on one line */
};

struct page {
    const char *help;
    char subcommands[PAGE_SUBCOMMANDS_MAX][24];
    size_t subcommand_count;
    struct page_flag flags[PAGE_FLAGS_MAX];
    size_t flag_count;
};

/* Parses a help text. `name` is the command as its usage shows it: "heddle queue", "heddled". */
void page_read(const char *name, const char *help, struct page *ret_page);

/* Appends a manual page (man macros of troff). name: name of the page, "heddle-queue"; summary: one
 * line about it. */
void page_manual(const char *name, int section, const char *summary, const char *help,
                 const char *see_also, const char *version, struct hd_text *out);

#endif
