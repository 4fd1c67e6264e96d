/* bar: one line at the bottom of the terminal on stderr, which is drawn again in its place.
 *
 * The terminal's width is asked at each drawing. A line that was drawn when the terminal was wider
 * may cover several rows now; bar_clear empties all of them. Other output to the terminal comes
 * between bar_clear and bar_put.
 *
 * Used by: watch.c, cmd_plan.c.   Uses: libc.   Threads: one.
 */
#ifndef HD_CLI_BAR_H
#define HD_CLI_BAR_H

#include <stdbool.h>

struct bar {
    int columns; /* that the line's text may have; 0: there is no line on the terminal */
};

/* stdout and stderr are terminals that know cursor movements. */
bool bar_is_possible(void);
int bar_terminal_columns(void); /* 80 if the terminal does not know */
/* The locale has block characters and counts each as one column: in some East Asian locales they
 * take two. */
bool bar_has_blocks(void);

void bar_clear(struct bar *bar);
/* Clears the line and writes this text of at most `columns` columns, fewer than the terminal had
 * when the text was made. The terminal may have become narrower since. */
void bar_put(struct bar *bar, const char *text, int columns);

#endif
