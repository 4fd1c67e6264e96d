/* pair_factors: reads the lists of LongRoPE and chooses one by the context. */
#include "job/pair_factors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static const double factor_min = 1e-6, factor_max = 1e6;

int64_t hd_job_rotated(const struct hd_job *job)
{
    if (job->mla_kv_rank)
        return job->mla_rope;
    return llround(job->rope_fraction * (double)job->head_width);
}

enum hd_status hd_pair_factors_parse(const struct hd_job *job, const char *text,
                                     double ret_factors[HD_PAIR_FACTORS_MAX])
{
    const int64_t need = hd_job_rotated(job) / 2;
    int64_t count = 0;

    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        const size_t len = strcspn(at, " ");
        char word[64];

        (void)snprintf(word, sizeof word, "%.*s", (int)(len < sizeof word ? len : sizeof word), at);
        if (len >= sizeof word || count == HD_PAIR_FACTORS_MAX ||
            hd_text_to_double(word, factor_min, factor_max, &ret_factors[count]))
            return hd_err(HD_INVALID,
                          "'%s' is not possible as factor %lld; write numbers from %g to %g with "
                          "blanks between them, one for each pair of rotated channels",
                          word, (long long)count + 1, factor_min, factor_max);
        count++;
        at += len;
    }
    if (count != need)
        return hd_err(HD_INVALID,
                      "has %lld factors; write %lld, one for each pair of rotated channels",
                      (long long)count, (long long)need);
    return HD_OK;
}

const char *hd_pair_factors_of(const struct hd_job *job)
{
    return hd_job_first_position(job) + job->context > job->rope_original_context
               ? job->rope_long_factor
               : job->rope_short_factor;
}
