#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { LINE_MAX_BYTES = 2048 };

static const char *const level_names[] = {"error", "warn", "info", "debug"};

/* Written once by hd_log_init before threads start; only read afterwards. */
static char program_name[32] = "heddle";
static enum hd_log_level most_detailed = HD_LOG_INFO;

void hd_log_init(const char *program, enum hd_log_level level)
{
    const char *env = getenv("HEDDLE_LOG");

    (void)snprintf(program_name, sizeof program_name, "%s", program);
    most_detailed = level;
    for (int i = 0; env && i <= HD_LOG_DEBUG; i++)
        if (strcmp(env, level_names[i]) == 0)
            most_detailed = (enum hd_log_level)i;
}

void hd_log(enum hd_log_level level, const char *fmt, ...)
{
    char line[LINE_MAX_BYTES], time[HD_CLOCK_TEXT_MAX];
    va_list ap;
    int n, m;

    if (level > most_detailed)
        return;
    hd_clock_format_utc(hd_clock_wall_ms(), time);
    n = snprintf(line, sizeof line - 1, "%s %-5s %s: ", time, level_names[level], program_name);
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof line - 1 - (size_t)n, fmt, ap);
    va_end(ap);
    n = m < 0 ? n : n + m;
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* stderr is not writable: the line is lost */
}
