#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "controller/cli/cli.h"

int cli_exit_of(enum hd_status st)
{
    switch (st) {
    case HD_OK:
        return CLI_OK;
    case HD_INVALID:
    case HD_UNSUPPORTED:
        return CLI_USAGE;
    case HD_UNAVAILABLE:
    case HD_TIMEOUT:
        return CLI_UNREACHABLE;
    case HD_NOT_FOUND:
        return CLI_NOT_FOUND;
    case HD_DENIED:
        return CLI_DENIED;
    default:
        return CLI_FAILED;
    }
}

int cli_exit_of_signal(int number)
{
    return number == SIGTERM ? CLI_TERMINATED : CLI_INTERRUPTED;
}

bool cli_is_interrupted(int code)
{
    return code == CLI_INTERRUPTED || code == CLI_TERMINATED;
}

int cli_exit_of_state(Heddle__V1__JobState state)
{
    return state == HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED ? CLI_OK : CLI_JOB_FAILED;
}

/* Value of --color, process-wide because errors are printed where no struct cli is available.
 * Written once, when flags are parsed. */
static enum cli_colour_when colour_when = CLI_COLOUR_AUTO;

void cli_set_colour(enum cli_colour_when when)
{
    colour_when = when;
}

bool cli_has_colour(int fd)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

    if (colour_when != CLI_COLOUR_AUTO)
        return colour_when == CLI_COLOUR_ALWAYS;
    return isatty(fd) && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
}

volatile sig_atomic_t cli_stopped_by;

static void on_stop(int number)
{
    cli_stopped_by = number;
}

void cli_catch_stop(int number, struct sigaction *ret_before)
{
    const struct sigaction action = {.sa_handler = on_stop};

    (void)sigaction(number, &action, ret_before);
}

static void print_line(const char *prefix, const char *text)
{
    struct hd_text line = {0};

    if (*prefix)
        cli_add_coloured(&line, cli_has_colour(STDERR_FILENO) ? "31" : NULL, prefix);
    hd_text_add(&line, "%s", *prefix ? " " : "");
    cli_add_clean(&line, text);
    hd_text_add(&line, "\n");
    if (!line.failed)
        (void)fwrite(line.data, 1, line.len_bytes, stderr); /* a failure cannot be reported */
    hd_text_free(&line);
}

int cli_fail(enum hd_status st)
{
    print_line("heddle:", hd_err_message());
    return cli_exit_of(st);
}

int cli_usage(const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line("heddle:", text);
    return CLI_USAGE;
}

void cli_note(const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line("", text);
}

void cli_warn(const char *text)
{
    if (*text)
        cli_note("heddle: %s", text);
}

void cli_note_text(struct hd_text *text)
{
    if (!text->failed)
        print_line("", text->data ? text->data : "");
    hd_text_free(text);
}

int cli_confirm(const char *question, const char *left, const char *remedy)
{
    char line[16];

    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return cli_usage("%s; %s", left, remedy);
    (void)fprintf(stderr, "%s [y/N] ", question);
    if (fgets(line, sizeof line, stdin) && (line[0] == 'y' || line[0] == 'Y'))
        return CLI_CONTINUE;
    cli_note("heddle: %s", left);
    return CLI_OK;
}

/* errno of the first failed write to standard output, process-wide; 0: none. Kept because fflush
 * reports an error only once; a second call succeeds. */
static int out_error;

static void flush_out(void)
{
    errno = 0;
    if ((fflush(stdout) || ferror(stdout)) && !out_error)
        out_error = errno ? errno : EIO;
}

bool cli_out(struct hd_text *text)
{
    errno = 0;
    if (text->failed)
        out_error = ENOMEM;
    else if (text->len_bytes && fwrite(text->data, 1, text->len_bytes, stdout) != text->len_bytes &&
             !out_error)
        out_error = errno ? errno : EIO;
    hd_text_clear(text);
    flush_out();
    return !out_error;
}

int cli_out_end(int code)
{
    static bool said; /* a list ends its output, and the command after it */

    flush_out();
    if (!out_error)
        return code;
    if (out_error == EPIPE)
        /* the pipe's reader needs no more output, as `head`: no failure */
        return code == CLI_CONTINUE ? CLI_OK : code;
    if (!said)
        cli_note("heddle: cannot write to standard output: %s", hd_file_error_text(out_error));
    said = true;
    return CLI_FAILED;
}

int cli_print(struct hd_text *text, int code)
{
    (void)cli_out(text);
    hd_text_free(text);
    return cli_out_end(code);
}
