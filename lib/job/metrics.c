#include "job/metrics.h"

#include <string.h>

#include "base/status.h"

enum { ENTRY_BYTES = HD_METRICS_BYTES_EACH };

#define IS_INT_INT  true
#define IS_INT_REAL false
const struct hd_metric hd_metrics[HD_METRIC_COUNT] = {
#define M(metric_id, kind, member, metric_tag, metric_help)                           \
    {metric_id,  #member,    IS_INT_##kind, offsetof(struct hd_step_metrics, member), \
     metric_tag, metric_help},
#include "job/metrics.def"
#undef M
};

double hd_metric_get(const struct hd_step_metrics *metrics, int index)
{
    const char *member = (const char *)metrics + hd_metrics[index].offset;

    return hd_metrics[index].is_int ? (double)*(const int64_t *)member : *(const double *)member;
}

bool hd_metric_set(struct hd_step_metrics *metrics, int index, double value)
{
    char *member = (char *)metrics + hd_metrics[index].offset;
    double whole;

    if (!hd_metrics[index].is_int) {
        *(double *)member = value;
        return true;
    }
    if (!(value >= -0x1p53 && value <= 0x1p53))
        return false;
    whole = (double)(int64_t)value;
    /* compares bits, so that -0 is refused, which would become 0 as an int64_t */
    if (memcmp(&whole, &value, sizeof whole) != 0)
        return false;
    *(int64_t *)member = (int64_t)value;
    return true;
}

/* Returns whether the loss of a further token is in the metrics: depth 0 is that of mtp_loss_1. */
static bool has_further(const struct hd_step_metrics *metrics, int depth)
{
    return hd_metric_get(metrics, HD_METRIC_INDEX_mtp_loss_1 + depth) != 0;
}

/* Returns whether answers that nothing rates (gkd) have the metric of answers, too. */
static bool has_without_reward(int index)
{
    return index == HD_METRIC_INDEX_completions || index == HD_METRIC_INDEX_rollout_ms ||
           index == HD_METRIC_INDEX_rollout_tokens_per_s ||
           (index >= HD_METRIC_INDEX_length_mean && index <= HD_METRIC_INDEX_clipped);
}

bool hd_metric_is_present(const struct hd_step_metrics *metrics, int index, bool experts)
{
    if (index >= HD_METRIC_INDEX_mtp_loss_1 && index <= HD_METRIC_INDEX_mtp_loss_4)
        return has_further(metrics, index - HD_METRIC_INDEX_mtp_loss_1);
    if (index >= HD_METRIC_INDEX_mtp_hits_1 && index <= HD_METRIC_INDEX_mtp_hits_4)
        return has_further(metrics, index - HD_METRIC_INDEX_mtp_hits_1);
    if (index == HD_METRIC_INDEX_loss_scale)
        return metrics->loss_scale > 0;
    if (index == HD_METRIC_INDEX_targets) /* steps that older builds reported lack this metric */
        return metrics->targets > 0;
    if (index == HD_METRIC_INDEX_margin || index == HD_METRIC_INDEX_reward)
        return metrics->pairs > 0 || metrics->answers > 0 ||
               (metrics->completions > 0 && metrics->distill_loss == 0 &&
                index == HD_METRIC_INDEX_reward);
    if (index == HD_METRIC_INDEX_pairs || index == HD_METRIC_INDEX_accuracy)
        return metrics->pairs > 0;
    if (index == HD_METRIC_INDEX_kl && metrics->completions > 0)
        return metrics->kl != 0;
    if (index >= HD_METRIC_INDEX_answers && index <= HD_METRIC_INDEX_kl)
        return metrics->answers > 0;
    if (index >= HD_METRIC_INDEX_completions && index <= HD_METRIC_INDEX_rollout_tokens_per_s)
        return metrics->completions > 0 &&
               (metrics->distill_loss == 0 || has_without_reward(index));
    if (index == HD_METRIC_INDEX_z_loss)
        return metrics->z_loss != 0;
    if (index == HD_METRIC_INDEX_distill_loss)
        return metrics->distill_loss != 0;
    if (index == HD_METRIC_INDEX_max_attention_logit || index == HD_METRIC_INDEX_clipped_heads)
        return metrics->max_attention_logit > 0;
    return experts || strncmp(hd_metrics[index].name, "router_", 7) != 0;
}

int hd_metric_find(int id)
{
    for (int i = 0; i < HD_METRIC_COUNT; i++)
        if (hd_metrics[i].id == id)
            return i;
    return -1;
}

size_t hd_metrics_pack(const struct hd_step_metrics *metrics,
                       uint8_t ret_bytes[HD_METRICS_BYTES_MAX])
{
    uint8_t *p = ret_bytes;

    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        const double value = hd_metric_get(metrics, i);
        uint64_t bits;

        memcpy(&bits, &value, sizeof bits);
        *p++ = (uint8_t)hd_metrics[i].id;
        *p++ = (uint8_t)(hd_metrics[i].id >> 8);
        for (int b = 0; b < 8; b++)
            *p++ = (uint8_t)(bits >> (8 * b));
    }
    return (size_t)(p - ret_bytes);
}

enum hd_status hd_metrics_unpack(const void *bytes, size_t size_bytes,
                                 struct hd_step_metrics *ret_metrics)
{
    const uint8_t *p = bytes;

    *ret_metrics = (struct hd_step_metrics){0};
    if (size_bytes == 0 || size_bytes % ENTRY_BYTES != 0)
        return hd_err(HD_CORRUPT, "the metrics are %zu bytes long, no multiple of %d", size_bytes,
                      ENTRY_BYTES);
    for (; size_bytes >= ENTRY_BYTES; size_bytes -= ENTRY_BYTES, p += ENTRY_BYTES) {
        const int index = hd_metric_find(p[0] | p[1] << 8);
        uint64_t bits = 0;
        double value;

        for (int b = 7; b >= 0; b--)
            bits = bits << 8 | p[2 + b];
        memcpy(&value, &bits, sizeof value);
        if (index >= 0 && !hd_metric_set(ret_metrics, index, value))
            return hd_err(HD_CORRUPT, "metric \"%s\" is %.17g, no whole number",
                          hd_metrics[index].name, value);
    }
    return HD_OK;
}
