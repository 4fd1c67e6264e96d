#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

void hd_clock_settled_begin(struct hd_clock_settled *clock, int64_t known_ms, int64_t wall_ms,
                            int64_t mono_ms)
{
    const bool leaps = known_ms && wall_ms > known_ms + HD_CLOCK_LEAP_MS;

    *clock = (struct hd_clock_settled){.wall_ms = leaps ? known_ms : wall_ms,
                                       .mono_ms = mono_ms,
                                       .ahead_mono_ms = leaps ? mono_ms : 0};
}

int64_t hd_clock_settle(struct hd_clock_settled *clock, int64_t wall_ms, int64_t mono_ms)
{
    enum {
        STEP_MS = 2000
    }; /* a smaller difference comes from gradual adjustment, not from a
                                step */
    const int64_t expected_ms = clock->wall_ms + (mono_ms - clock->mono_ms);

    clock->mono_ms = mono_ms;
    if (wall_ms > expected_ms + STEP_MS && !clock->ahead_mono_ms)
        clock->ahead_mono_ms = mono_ms;
    if (wall_ms <= expected_ms + STEP_MS || mono_ms - clock->ahead_mono_ms >= HD_CLOCK_HOLD_MS) {
        clock->wall_ms = wall_ms;
        clock->ahead_mono_ms = 0;
    } else {
        clock->wall_ms = expected_ms;
    }
    return clock->wall_ms;
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

enum hd_status hd_clock_read_span(const char *text, int64_t min_ms, int64_t max_ms,
                                  int64_t *ret_span_ms)
{
    static const struct {
        char letter;
        int64_t ms;
    } units[] = {{'d', 86400000}, {'h', 3600000}, {'m', 60000}, {'s', 1000}};
    const char *at = text;
    int64_t span_ms = 0;

    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        const size_t digits = strspn(at, "0123456789");

        if (!digits || digits > 9 || at[digits] != units[u].letter)
            continue;
        span_ms += strtoll(at, NULL, 10) * units[u].ms;
        at += digits + 1;
    }
    if (*at || at == text)
        return hd_err(HD_INVALID, "'%s' is no duration; write 30s, 90m, 12h, 2d or 1h30m", text);
    if (span_ms < min_ms || span_ms > max_ms)
        return hd_err(HD_INVALID, "%s is not possible; write a duration from %lld s to %lld s",
                      text, (long long)(min_ms / 1000), (long long)(max_ms / 1000));
    *ret_span_ms = span_ms;
    return HD_OK;
}
