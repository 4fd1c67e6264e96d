#include "train/scale.h"

#include <math.h>
#include <string.h>

void hd_loss_scale_init(const struct hd_job *job, struct hd_loss_scale *ret_scale)
{
    *ret_scale = (struct hd_loss_scale){.used = job->precision == HD_JOB_PRECISION_FP16,
                                        .scale = job->loss_scale_initial,
                                        .interval = job->loss_scale_interval,
                                        .floor = job->loss_scale_floor};
}

float hd_loss_scale_factor(const struct hd_loss_scale *s, int64_t tokens)
{
    int log2_tokens = 0;

    if (!s->used)
        return 1;
    while (log2_tokens < 62 && (int64_t)1 << log2_tokens < tokens)
        log2_tokens++;
    return (float)ldexp((double)s->scale, -log2_tokens);
}

bool hd_loss_scale_after(struct hd_loss_scale *s, bool overflowed)
{
    if (!s->used)
        return true;
    if (overflowed) {
        s->good = 0;
        if (s->scale / 2 < s->floor)
            return false;
        s->scale /= 2;
        return true;
    }
    s->good++;
    if (s->good < s->interval)
        return true;
    s->good = 0;
    if (s->scale < (int64_t)1 << HD_LOSS_SCALE_LOG2_MAX)
        s->scale *= 2;
    return true;
}
