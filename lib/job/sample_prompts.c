#include "job/sample_prompts.h"

#include <stdio.h>
#include <string.h>

static const char of_file[] = "file ", of_texts[] = "text";

bool hd_job_samples_in_file(const struct hd_job *job)
{
    return strncmp(job->samples, of_file, strlen(of_file)) == 0;
}

enum hd_status hd_job_read_sample_file(const struct hd_job *job, struct hd_sample_file *ret_file)
{
    long long size_bytes = 0;
    int path = 0;

    *ret_file = (struct hd_sample_file){.size_bytes = -1};
    if (sscanf(job->samples, "file %lld %47s %n", &size_bytes, ret_file->fingerprint, &path) != 2 ||
        !path)
        return hd_err(HD_INVALID, "validate.samples: the job names no file of prompts");
    ret_file->size_bytes = size_bytes;
    if (strcmp(ret_file->fingerprint, "-") == 0)
        ret_file->fingerprint[0] = '\0';
    (void)snprintf(ret_file->path, sizeof ret_file->path, "%s", job->samples + path);
    return HD_OK;
}

enum hd_status hd_job_set_sample_file(const struct hd_sample_file *file, struct hd_job *job)
{
    enum hd_status st;

    if (strpbrk(file->path, "\t\n\r"))
        return hd_err(HD_INVALID, "validate.samples: a path may not contain a tab or a line break");
    st = hd_job_print_text(job, &job->samples, "%s%lld %s %s", of_file, (long long)file->size_bytes,
                           *file->fingerprint ? file->fingerprint : "-", file->path);
    return st != HD_LIMIT
               ? st
               : hd_err(HD_INVALID, "validate.samples: the path is too long; use a shorter one");
}

/* Returns the number of prompts in the job's text. */
static int64_t count_prompts(const struct hd_job *job)
{
    int64_t count = 0;

    for (const char *c = job->samples; *c; c++)
        count += *c == '\t';
    return count;
}

enum hd_status hd_job_add_sample_prompt(const char *prompt, struct hd_job *job)
{
    struct hd_text text = {0};
    enum hd_status st;

    if (count_prompts(job) == HD_SAMPLE_PROMPTS_MAX)
        return hd_err(HD_LIMIT, "validate.samples: more than %d prompts; leave some out",
                      HD_SAMPLE_PROMPTS_MAX);
    hd_text_add(&text, "%s\t", *job->samples ? job->samples : of_texts);
    for (const char *c = prompt; *c; c++)
        if (*c == '\t' || *c == '\n' || *c == '\r' || *c == '\\')
            hd_text_add(&text, "\\%c",
                        *c == '\t'   ? 't'
                        : *c == '\n' ? 'n'
                        : *c == '\r' ? 'r'
                                     : '\\');
        else
            hd_text_add(&text, "%c", *c);
    st = hd_job_take_text(job, &job->samples, &text);
    return st != HD_LIMIT
               ? st
               : hd_err(HD_LIMIT,
                        "validate.samples: the prompts together have more than %zu bytes; put them "
                        "into a file, a line each, and give its path",
                        HD_JOB_PATH_MAX - sizeof of_texts - 1);
}

bool hd_job_sample_prompt(const struct hd_job *job, int64_t index, struct hd_text *ret_prompt)
{
    const char *at = job->samples;

    if (hd_job_samples_in_file(job))
        return false;
    for (int64_t i = 0; at && i <= index; i++) {
        at = strchr(at, '\t');
        at += at != NULL;
    }
    for (; at && *at && *at != '\t'; at++)
        if (*at == '\\' && at[1]) {
            at++;
            hd_text_add(ret_prompt, "%c",
                        *at == 't'   ? '\t'
                        : *at == 'n' ? '\n'
                        : *at == 'r' ? '\r'
                                     : *at);
        } else {
            hd_text_add(ret_prompt, "%c", *at);
        }
    return at != NULL;
}
