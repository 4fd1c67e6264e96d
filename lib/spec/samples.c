/* samples: reads and checks validate.samples, the prompts that a job continues: a list of texts, or
 * a file of them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "data/fingerprint.h"
#include "job/sample_prompts.h"
#include "spec_internal.h"

/* ---- reading ---- */

enum hd_status spec_read_samples(struct spec_reader *r, const struct yaml_node *node)
{
    struct hd_sample_file file = {.size_bytes = -1};
    enum hd_status st = HD_OK;
    int64_t index = 0;

    *spec_given(&r->draft, "validate.samples.list") = true;
    if (node->kind != YAML_KIND_LIST) {
        st = spec_need_scalar(r, node, "a list of prompts, or the path of a file of them");
        if (!st && (!*node->text || strlen(node->text) >= sizeof file.path))
            st = hd_err(HD_INVALID, "%s: expected a list of prompts, or the path of a file",
                        r->path);
        if (st)
            return st;
        (void)snprintf(file.path, sizeof file.path, "%s", node->text);
        return hd_job_set_sample_file(&file, r->draft.job);
    }
    for (const struct yaml_node *c = node->first; c && !st; c = c->next, index++) {
        const size_t len = strlen(r->path);

        (void)snprintf(r->path + len, sizeof r->path - len, "[%lld]", (long long)index);
        r->here = c;
        st = spec_need_scalar(r, c, "a text (messages are lines of a file)");
        if (!st)
            st = hd_job_add_sample_prompt(c->text, r->draft.job);
        spec_path_pop(r, len);
    }
    if (!st && !index)
        st = hd_err(HD_INVALID,
                    "%s: has no prompt; write [\"Once upon a time\"], or remove the line", r->path);
    return st;
}

/* ---- the file ---- */

/* Looks the file up: it must be a regular file that can be read. */
static enum hd_status look_up_prompts(struct hd_sample_file *file)
{
    char hint[SPEC_PATH_TEXT_MAX];
    struct stat info;
    int64_t places;

    if (stat(file->path, &info) < 0)
        return hd_err(HD_INVALID,
                      "validate.samples: cannot find %s: %s; a text is a prompt only in a list, "
                      "[..]; the path of a file is relative to the job file's folder%s",
                      file->path, strerror(errno), spec_explain_name(file->path, true, hint));
    if (!S_ISREG(info.st_mode))
        return hd_err(HD_INVALID,
                      "validate.samples: %s is not a regular file; give one with a "
                      "prompt in each line",
                      file->path);
    if (access(file->path, R_OK) < 0)
        return hd_err(HD_INVALID, "validate.samples: cannot read %s: %s; change its permissions",
                      file->path, strerror(errno));
    if (!info.st_size)
        return hd_err(HD_INVALID, "validate.samples: %s is empty; write a prompt into each line",
                      file->path);
    file->size_bytes = info.st_size;
    places = (info.st_size + HD_FINGERPRINT_PLACE_BYTES - 1) / HD_FINGERPRINT_PLACE_BYTES;
    if (places > HD_FINGERPRINT_PLACES_MAX)
        places = HD_FINGERPRINT_SHARE_MAX;
    return hd_fingerprint(file->path, places, file->fingerprint)
               ? hd_err_prefix(HD_INVALID, "validate.samples")
               : HD_OK;
}

enum hd_status spec_find_samples(struct spec_draft *draft, const char *folder, bool look)
{
    struct hd_sample_file file;
    struct hd_text path = {0};
    enum hd_status st;

    if (!hd_job_samples_in_file(draft->job))
        return HD_OK;
    st = hd_job_read_sample_file(draft->job, &file);
    if (st)
        return st;
    hd_file_join(&path, folder, file.path);
    if (path.failed || path.len_bytes >= sizeof file.path)
        st = hd_err(HD_INVALID, "validate.samples: the path is longer than %zu bytes",
                    sizeof file.path - 1);
    else if (spec_has_control(path.data))
        st = hd_err(HD_INVALID,
                    "validate.samples: the path has a control character; rename the file");
    else
        (void)snprintf(file.path, sizeof file.path, "%s", path.data);
    hd_text_free(&path);
    if (!st && look)
        st = look_up_prompts(&file);
    return st ? st : hd_job_set_sample_file(&file, draft->job);
}

/* ---- rules ---- */

/* Refuses settings of samples that the job does not have. */
static enum hd_status check_unused_samples(const struct hd_job *job)
{
    const char *const given = job->samples_every              ? "every"
                              : job->samples_temperature != 0 ? "temperature"
                              : job->samples_seed             ? "seed"
                              : job->samples_tokens != 64     ? "tokens"
                              : job->samples_top_p != 1       ? "top_p"
                                                              : NULL;

    return given ? hd_err(HD_INVALID,
                          "validate.samples.%s: there are no prompts; give "
                          "validate.samples.prompts, or remove the line",
                          given)
                 : HD_OK;
}

enum hd_status spec_check_samples(const struct hd_job *job)
{
    if (!*job->samples)
        return check_unused_samples(job);
    if (strcmp(job->tokenizer, "none") == 0)
        return hd_err(HD_INVALID, "validate.samples: prompts are text, and the job has only token "
                                  "files; give data.tokenizer");
    if (hd_job_is_reward(job))
        return hd_err(HD_INVALID,
                      "validate.samples: a reward model writes no text; remove the line");
    if (job->samples_tokens < 1)
        return hd_err(HD_INVALID,
                      "validate.samples.tokens: 0 tokens are no sample; give at least 1");
    if (job->samples_top_p <= 0)
        return hd_err(HD_INVALID,
                      "validate.samples.top_p: 0 leaves no token to draw; give a number "
                      "above 0, 1 for all tokens");
    if (job->samples_temperature == 0 && job->samples_top_p < 1)
        return hd_err(HD_INVALID,
                      "validate.samples.top_p: without a temperature the likeliest token "
                      "is taken, so it would change nothing; give "
                      "validate.samples.temperature, or remove it");
    return HD_OK;
}
