#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static int64_t read_ns(clockid_t id)
{
    struct timespec ts;

    (void)clock_gettime(id, &ts); /* cannot fail for the two clocks used here */
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t hd_clock_now_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t hd_clock_now_ms(void)
{
    return read_ns(CLOCK_MONOTONIC) / 1000000;
}

int64_t hd_clock_wall_ms(void)
{
    return read_ns(CLOCK_REALTIME) / 1000000;
}

void hd_clock_format_utc(int64_t wall_ms, char ret_text[HD_CLOCK_TEXT_MAX])
{
    char seconds[HD_CLOCK_TEXT_MAX];
    time_t s = (time_t)(wall_ms / 1000);
    struct tm tm;

    (void)gmtime_r(&s, &tm);
    (void)strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(ret_text, HD_CLOCK_TEXT_MAX, "%.19s.%03dZ", seconds, (int)(wall_ms % 1000));
}

void hd_clock_format_span(int64_t span_ms, char ret_text[HD_CLOCK_TEXT_MAX])
{
    int64_t s = span_ms / 1000;

    if (span_ms < 1000)
        (void)snprintf(ret_text, HD_CLOCK_TEXT_MAX, "%dms", (int)span_ms);
    else if (s < 60)
        (void)snprintf(ret_text, HD_CLOCK_TEXT_MAX, "%.1fs", (double)span_ms / 1e3);
    else if (s < 3600)
        (void)snprintf(ret_text, HD_CLOCK_TEXT_MAX, "%dm%02ds", (int)(s / 60), (int)(s % 60));
    else if (s < 86400)
        (void)snprintf(ret_text, HD_CLOCK_TEXT_MAX, "%dh%02dm", (int)(s / 3600),
                       (int)(s / 60 % 60));
    else
        (void)snprintf(ret_text, HD_CLOCK_TEXT_MAX, "%lldd%02dh", (long long)(s / 86400),
                       (int)(s / 3600 % 24));
}
