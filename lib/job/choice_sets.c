#include "job/choice_sets.h"

#include <stdio.h>
#include <string.h>

int64_t hd_job_choice_set_count(const struct hd_job *job)
{
    int64_t count = *job->choices != '\0';

    for (const char *c = job->choices; *c; c++)
        count += *c == '\t';
    return count;
}

/* Returns the text of set `index`; NULL: there are fewer. */
static const char *find_set(const struct hd_job *job, int64_t index)
{
    const char *at = *job->choices ? job->choices : NULL;

    for (; at && index > 0; index--) {
        at = strchr(at, '\t');
        at += at != NULL;
    }
    return at;
}

enum hd_status hd_choice_set_read(const struct hd_job *job, int64_t index,
                                  struct hd_choice_set *ret_set)
{
    const char *at = find_set(job, index);
    long long size_bytes = 0;
    int path = 0;

    *ret_set = (struct hd_choice_set){.size_bytes = -1};
    if (!at ||
        sscanf(at, "%31s %lld %47s %n", ret_set->name, &size_bytes, ret_set->fingerprint, &path) !=
            3 ||
        !path)
        return hd_err(HD_INVALID, "validate.choices: the job has no set of questions %lld",
                      (long long)index);
    ret_set->size_bytes = size_bytes;
    if (strcmp(ret_set->fingerprint, "-") == 0)
        ret_set->fingerprint[0] = '\0';
    at += path;
    (void)snprintf(ret_set->path, sizeof ret_set->path, "%.*s", (int)strcspn(at, "\t"), at);
    return HD_OK;
}

enum hd_status hd_choice_set_add(const struct hd_choice_set *set, struct hd_job *job)
{
    enum hd_status st;

    if (strpbrk(set->path, "\t\n\r"))
        return hd_err(HD_INVALID,
                      "validate.choices.%s: a path may not contain a tab or a line break",
                      set->name);
    if (hd_job_choice_set_count(job) == HD_CHOICE_SETS_MAX)
        return hd_err(HD_LIMIT, "validate.choices: more than %d files of questions; join some",
                      HD_CHOICE_SETS_MAX);
    st = hd_job_print_text(job, &job->choices, "%s%s%s %lld %s %s", job->choices,
                           *job->choices ? "\t" : "", set->name, (long long)set->size_bytes,
                           *set->fingerprint ? set->fingerprint : "-", set->path);
    return st != HD_LIMIT ? st
                          : hd_err(HD_LIMIT,
                                   "validate.choices: names and paths of all files together have "
                                   "more than %d bytes; use shorter paths",
                                   HD_JOB_PATH_MAX - 1);
}
