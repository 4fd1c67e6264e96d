#include "chat/date.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Returns the number of `digits` digits at *text, and advances *text; -1: fewer digits are
 * there. */
static int take_number(const char **text, int digits)
{
    int number = 0;

    for (int i = 0; i < digits; i++, (*text)++) {
        if (**text < '0' || **text > '9')
            return -1;
        number = 10 * number + (**text - '0');
    }
    return number;
}

/* Reads a part of a date: a number after the separator `before` ("": none); returns false if the
 * number is not in [min, max]. */
static bool take_part(const char **text, const char *before, int digits, int min, int max, int *ret)
{
    if (*before && *(*text)++ != *before)
        return false;
    *ret = take_number(text, digits);
    return *ret >= min && *ret <= max;
}

enum hd_status hd_chat_date_read(const char *text, int64_t *ret_seconds)
{
    const char *at = text;
    struct tm tm = {.tm_isdst = 0}, back;
    time_t seconds;
    bool good = take_part(&at, "", 4, 1, 9999, &tm.tm_year) &&
                take_part(&at, "-", 2, 1, 12, &tm.tm_mon) &&
                take_part(&at, "-", 2, 1, 31, &tm.tm_mday);

    if (good && *at)
        good = take_part(&at, "T", 2, 0, 23, &tm.tm_hour) &&
               take_part(&at, ":", 2, 0, 59, &tm.tm_min) &&
               take_part(&at, ":", 2, 0, 59, &tm.tm_sec) && !*at;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    back = tm;
    seconds = good ? timegm(&back) : 0;
    /* refuses dates that do not exist: timegm turns 30 February into 2 March */
    if (!good || back.tm_mday != tm.tm_mday || back.tm_mon != tm.tm_mon)
        return hd_err(HD_INVALID, "'%.40s' is no date; write it as 2026-03-01", text);
    *ret_seconds = (int64_t)seconds;
    return HD_OK;
}

void hd_chat_date_today(char ret_text[HD_CHAT_DATE_MAX])
{
    const time_t now = time(NULL);
    struct tm tm = {.tm_mday = 1, .tm_year = 70};

    (void)localtime_r(&now, &tm);
    if (!strftime(ret_text, HD_CHAT_DATE_MAX, "%Y-%m-%d", &tm))
        (void)snprintf(ret_text, HD_CHAT_DATE_MAX, "1970-01-01");
}
