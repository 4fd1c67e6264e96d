/* bar: one line at the bottom of the terminal on stderr, which is redrawn in place.
 *
 * Each drawing reads the terminal's width anew. A line that was drawn when the terminal was wider
 * may now wrap over several rows; bar_clear empties all of them. Print other output to the terminal
 * only after bar_clear and before the next bar_put.
 *
 * Used by: watch.c, cmd_plan.c, fetch.c.   Uses: cli.h.   Threads: one.
 */
#ifndef HD_CLI_BAR_H
#define HD_CLI_BAR_H

#include <stdbool.h>

struct bar {
    int columns; /* width of the line that is on the terminal, columns; 0: no line is on it */
};

/* Returns whether stdout and stderr are terminals that support cursor movements. */
bool bar_is_possible(void);
int bar_terminal_columns(void); /* returns 80 if the width is unknown */
/* Returns whether the locale has block characters and counts each as one column; some East Asian
 * locales count two. */
bool bar_has_blocks(void);

void bar_clear(struct bar *bar);
/* Replaces the line by `text`, cut at the terminal's width. */
void bar_put_cut(struct bar *bar, const char *text);
/* Replaces the line by `text`, at most `columns` wide. `columns` is less than the terminal's width
 * when the text was made; the terminal may have become narrower since. */
void bar_put(struct bar *bar, const char *text, int columns);

#endif
