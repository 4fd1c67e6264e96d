/* samples: reads and checks validate.samples, the prompts that a job continues: a list of texts, or
 * a file of them. */
#include <stdio.h>
#include <string.h>

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
