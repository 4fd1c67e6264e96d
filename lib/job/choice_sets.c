#include "job/choice_sets.h"

#include <stdio.h>
#include <string.h>

const char *hd_choice_set_key(enum hd_question_kind kind)
{
    return kind == HD_QUESTIONS_TASKS ? "validate.tasks.files" : "validate.choices";
}

/* Returns the text of a kind in the job. */
static const char *text_of_sets(const struct hd_job *job, enum hd_question_kind kind)
{
    return kind == HD_QUESTIONS_TASKS ? job->tasks : job->choices;
}

int64_t hd_choice_set_count(const struct hd_job *job, enum hd_question_kind kind)
{
    const char *const text = text_of_sets(job, kind);
    int64_t count = *text != '\0';

    for (const char *c = text; *c; c++)
        count += *c == '\t';
    return count;
}

/* Returns the text of set `index`; NULL: there are fewer. */
static const char *find_set(const char *text, int64_t index)
{
    const char *at = *text ? text : NULL;

    for (; at && index > 0; index--) {
        at = strchr(at, '\t');
        at += at != NULL;
    }
    return at;
}

enum hd_status hd_choice_set_read(const struct hd_job *job, enum hd_question_kind kind,
                                  int64_t index, struct hd_choice_set *ret_set)
{
    const char *at = find_set(text_of_sets(job, kind), index);
    long long size_bytes = 0;
    int path = 0;

    *ret_set = (struct hd_choice_set){.size_bytes = -1};
    if (!at ||
        sscanf(at, "%31s %lld %47s %n", ret_set->name, &size_bytes, ret_set->fingerprint, &path) !=
            3 ||
        !path)
        return hd_err(HD_INVALID, "%s: the job has no set of questions %lld",
                      hd_choice_set_key(kind), (long long)index);
    ret_set->size_bytes = size_bytes;
    if (strcmp(ret_set->fingerprint, "-") == 0)
        ret_set->fingerprint[0] = '\0';
    at += path;
    (void)snprintf(ret_set->path, sizeof ret_set->path, "%.*s", (int)strcspn(at, "\t"), at);
    return HD_OK;
}

enum hd_status hd_choice_set_add(const struct hd_choice_set *set, enum hd_question_kind kind,
                                 struct hd_job *job)
{
    const char **const text = kind == HD_QUESTIONS_TASKS ? &job->tasks : &job->choices;
    const char *const key = hd_choice_set_key(kind);
    enum hd_status st;

    if (strpbrk(set->path, "\t\n\r"))
        return hd_err(HD_INVALID, "%s.%s: a path may not contain a tab or a line break", key,
                      set->name);
    if (hd_choice_set_count(job, kind) == HD_CHOICE_SETS_MAX)
        return hd_err(HD_LIMIT, "%s: more than %d files of questions; join some", key,
                      HD_CHOICE_SETS_MAX);
    st = hd_job_print_text(job, text, "%s%s%s %lld %s %s", *text, **text ? "\t" : "", set->name,
                           (long long)set->size_bytes, *set->fingerprint ? set->fingerprint : "-",
                           set->path);
    return st != HD_LIMIT ? st
                          : hd_err(HD_LIMIT,
                                   "%s: names and paths of all files together have more than %d "
                                   "bytes; use shorter paths",
                                   key, HD_JOB_PATH_MAX - 1);
}
