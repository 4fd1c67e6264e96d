#include "controller/cli/bar.h"

#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "controller/cli/cli.h"

bool bar_is_possible(void)
{
    const char *term = getenv("TERM");

    return isatty(STDERR_FILENO) && isatty(STDOUT_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

int bar_terminal_columns(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        return size.ws_col;
    return 80;
}

bool bar_has_blocks(void)
{
    const wchar_t full = 0x2588, empty = 0x2591;

    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0 && wcwidth(full) == 1 && wcwidth(empty) == 1;
}

void bar_clear(struct bar *bar)
{
    const int columns = bar_terminal_columns();
    const int rows = bar->columns > columns ? (bar->columns - 1) / columns : 0;

    if (!bar->columns)
        return;
    if (rows)
        (void)fprintf(stderr, "\033[%dA", rows);
    (void)fputs("\r\033[J", stderr);
    bar->columns = 0;
}

void bar_put(struct bar *bar, const char *text, int columns)
{
    bar_clear(bar);
    (void)fputs(text, stderr);
    bar->columns = columns;
}

void bar_put_cut(struct bar *bar, const char *text)
{
    const int columns = bar_terminal_columns() - 1;
    struct hd_text line = {0};

    cli_add_cut(&line, text, columns);
    bar_put(bar, line.failed ? "" : line.data, columns);
    hd_text_free(&line);
}
