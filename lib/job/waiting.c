/* waiting: parses the texts of after, time_limit, hang and queue. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "job/job.h"

#define TIME_LIMIT_MAX_MS ((int64_t)10 * 365 * 86400 * 1000)

enum hd_status hd_after_read(const char *text, uint64_t ret_jobs[HD_JOB_AFTER_MAX], int *ret_count)
{
    const char *at = text;
    char *end;
    int known;

    *ret_count = 0;
    if (strcmp(text, "none") == 0)
        return HD_OK;
    do {
        at += *ret_count > 0; /* skips the comma */
        if (*at < '1' || *at > '9' || strspn(at, "0123456789") > 18 ||
            *ret_count == HD_JOB_AFTER_MAX)
            return hd_err(HD_INVALID, "'%s' is no list of jobs", text);
        ret_jobs[*ret_count] = strtoull(at, &end, 10);
        at = end;
        for (known = 0; ret_jobs[known] != ret_jobs[*ret_count];)
            known++;
        *ret_count += known == *ret_count; /* a job that is named twice counts once */
    } while (*at == ',');
    return *at ? hd_err(HD_INVALID, "'%s' is no list of jobs", text) : HD_OK;
}

bool hd_after_is_possible(const char *text)
{
    uint64_t number[HD_JOB_AFTER_MAX];
    char item[HD_JOB_WORD_MAX];
    int count = 0, one;

    for (const char *at = text; count < HD_JOB_AFTER_MAX; count++) {
        const size_t length = strcspn(at, ",");

        if (length >= sizeof item)
            return false;
        memcpy(item, at, length);
        item[length] = '\0';
        if (item[strspn(item, "0123456789")] ? !hd_queue_name_is_possible(item) /* a job's rule */
                                             : hd_after_read(item, number, &one) != HD_OK)
            return false;
        at += length;
        if (!*at)
            return true;
        at++;
    }
    return false;
}

enum hd_status hd_time_limit_read(const char *text, int64_t *ret_limit_ms)
{
    *ret_limit_ms = 0;
    if (strcmp(text, "none") == 0)
        return HD_OK;
    return hd_clock_read_span(text, 1000, TIME_LIMIT_MAX_MS, ret_limit_ms);
}

enum hd_status hd_hang_limit_read(const char *text, int64_t *ret_limit_ms)
{
    *ret_limit_ms = 0;
    if (strcmp(text, "auto") == 0)
        return HD_OK;
    return hd_clock_read_span(text, 1000, TIME_LIMIT_MAX_MS, ret_limit_ms);
}

bool hd_queue_name_is_possible(const char *name)
{
    const size_t length = strlen(name);

    return length >= 1 && length < HD_JOB_WORD_MAX && *name != '-' && *name != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
               length;
}
