/* val_sets: the named validation sets of data.val, {web: [a.txt], code: [b.txt]}. */
#include <stdio.h>
#include <string.h>

#include "job/job.h"

int64_t hd_job_val_set_count(const struct hd_job *job)
{
    int64_t count = 1;

    for (const char *c = job->val_sets; *c; c++)
        count += *c == ',';
    return count;
}

void hd_job_val_set_name(const struct hd_job *job, int64_t index,
                         char ret_name[HD_JOB_VAL_NAME_MAX])
{
    const char *at = job->val_sets;

    for (; index > 0 && (at = strchr(at, ',')) != NULL; index--)
        at++;
    if (!at)
        at = "";
    (void)snprintf(ret_name, HD_JOB_VAL_NAME_MAX, "%.*s", (int)strcspn(at, ","), at);
}

int64_t hd_job_val_set_find(const struct hd_job *job, const char *wish)
{
    char name[HD_JOB_VAL_NAME_MAX];

    for (int64_t i = 0; i < hd_job_val_set_count(job); i++) {
        hd_job_val_set_name(job, i, name);
        if (strcmp(name, wish) == 0)
            return i;
    }
    return -1;
}

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool hd_job_val_name_is_possible(const char *name)
{
    if (!is_alphanumeric(*name) || strlen(name) >= HD_JOB_VAL_NAME_MAX ||
        strcmp(name, "true") == 0 || strcmp(name, "false") == 0)
        return false;
    for (; *name; name++)
        if (!is_alphanumeric(*name) && !strchr("_-", *name))
            return false;
    return true;
}
