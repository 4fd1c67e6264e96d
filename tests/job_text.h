/* job_text: texts for the jobs that tests write down, which live as long as the program.
 *
 * Used by: tests.   Uses: job.   Threads: one.
 */
#ifndef HD_TESTS_JOB_TEXT_H
#define HD_TESTS_JOB_TEXT_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "job/job.h"

/* Returns the arena of the jobs that a test file makes. */
static inline struct hd_arena *job_arena(void)
{
    static struct hd_arena arena;

    return &arena;
}

/* Returns a job of zeros, which the caller frees. */
static inline struct hd_job *job_new(void)
{
    struct hd_job *job = malloc(sizeof *job);

    if (!job)
        abort();
    hd_job_init(job, job_arena());
    return job;
}

/* Returns the path of the first key in which two jobs differ; NULL: they are equal. */
static inline const char *job_difference(const struct hd_job *a, const struct hd_job *b)
{
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (!hd_job_members_equal(&hd_job_keys[i], a, b))
            return hd_job_keys[i].path;
    return NULL;
}

/* Sets a NAME or PATH by its key. */
static inline void job_set(const struct hd_key *key, const char *text, struct hd_job *job)
{
    job->arena = job_arena();
    if (hd_job_store_text(key, text, job))
        abort();
}

__attribute__((format(printf, 1, 2))) static inline const char *job_text(const char *fmt, ...)
{
    char text[HD_JOB_PATH_MAX];
    const char *copy;
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    copy = hd_arena_strdup(job_arena(), text);
    if (!copy)
        abort();
    return copy;
}

#endif
