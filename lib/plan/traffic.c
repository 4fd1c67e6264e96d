/* traffic: estimates the traffic of a layout's groups in a step; see hd_traffic_of in
 * rank_map.h. */
#include "plan/choose_internal.h"
#include "plan/rank_map.h"

enum {
    VALUE_BYTES = 2,    /* bytes of an activation or its gradient */
    GRADIENT_BYTES = 4, /* bytes of a weight's gradient */
    /* sums over tp per block: after attention and feed-forward, forward and backward */
    TP_SUMS = 4,
    /* rounds over cp per block: of keys and values forward; of keys and values, and of their
     * gradients, backward */
    CP_TURNS = 3,
    /* gathers over cp per gated delta layer: of its segments' matrices, forward and backward */
    CP_GATHERS = 2,
    CP_SEGMENTS = 2, /* segments of a sequence on a rank */
    MATRIX_BYTES = 4,
    /* exchanges over ep per block: rows to the experts and back, forward and backward */
    EP_EXCHANGES = 4
};

static void add_item(struct hd_traffic *t, enum hd_group_name group, enum hd_comm_kind kind,
                     double bytes, double times)
{
    if (bytes > 0 && times > 0)
        t->items[t->count++] =
            (struct hd_traffic_item){.group = group, .kind = kind, .bytes = bytes, .times = times};
}

/* Returns the share of blocks that have experts, in a model with experts. */
static double expert_share(const struct hd_plan_request *m)
{
    return m->dense_layers ? 1 - (double)m->dense_layers / (double)m->layers : 1;
}

static double weights_of(const struct choose_matrix *list, int count)
{
    double weights = 0;

    for (int i = 0; i < count; i++)
        weights += (double)list[i].rows * (double)list[i].columns;
    return weights;
}

/* Returns the mean number of a block's weights on one rank: the products of attention, of a gated
 * delta layer or of a short convolution, and three of the feed-forward part. */
static double block_weights(const struct hd_layout_sizes *s, const struct hd_plan_request *m)
{
    struct choose_matrix list[CHOOSE_MATRICES_MAX];
    const double attention = weights_of(list, choose_attention(m, list)),
                 delta = weights_of(list, choose_delta(m, list)),
                 conv = weights_of(list, choose_conv(m, list)),
                 deltas = (double)m->delta_layers / (double)m->layers,
                 convs = (double)m->conv_layers / (double)m->layers;
    const double hidden = (double)m->hidden, ffn = 3 * hidden * (double)m->ffn_hidden,
                 shared = 3 * hidden * (double)m->shared_ffn_hidden, share = expert_share(m),
                 experts = m->experts > 0 ? (double)m->experts / (double)s->ep : 1,
                 dense = 3 * hidden * (double)m->dense_ffn_hidden;

    return ((1 - deltas - convs) * attention + deltas * delta + convs * conv +
            share * (experts * ffn + shared) + (1 - share) * dense) /
           (double)s->tp;
}

/* Returns the channels of a token's keys and values in one block. */
static double kv_channels(const struct hd_plan_request *m)
{
    const double key = m->head_width ? (double)m->head_width : (double)m->hidden / (double)m->heads;

    return (double)m->kv_heads * (key + (m->mla_value ? (double)m->mla_value : key));
}

/* Returns the bytes of the matrices that a gated delta layer gathers from one rank of cp. */
static double delta_bytes(const struct hd_layout_sizes *s, const struct hd_plan_request *m)
{
    return (double)(CP_SEGMENTS * MATRIX_BYTES * s->micro_batch * m->delta_value_heads *
                    m->delta_key_width * (m->delta_key_width + m->delta_value_width)) /
           (double)s->tp;
}

void hd_traffic_of(const struct hd_layout_sizes *s, const struct hd_plan_request *m,
                   struct hd_traffic *ret_traffic)
{
    struct hd_traffic *t = ret_traffic;
    const double micro_batches = (double)hd_layout_micro_batches(s, m->global_batch);
    const double rows = (double)s->micro_batch * (double)m->context / (double)s->cp;
    const double hidden_bytes = rows * (double)m->hidden * VALUE_BYTES;
    const double kv_bytes = rows * kv_channels(m) * VALUE_BYTES;
    const double blocks = (double)m->layers / (double)s->pp * micro_batches;
    const double deltas = (double)m->delta_layers / (double)m->layers,
                 convs = (double)m->conv_layers / (double)m->layers;

    *t = (struct hd_traffic){.count = 0};
    if (s->tp > 1)
        add_item(t, HD_GROUP_TP, HD_COMM_ALL_REDUCE, hidden_bytes, TP_SUMS * blocks);
    if (s->cp > 1) {
        add_item(t, HD_GROUP_CP, HD_COMM_SHIFT, kv_bytes / (double)s->tp,
                 CP_TURNS * (double)(s->cp - 1) * blocks * (1 - deltas - convs));
        add_item(t, HD_GROUP_CP, HD_COMM_ALL_GATHER, delta_bytes(s, m),
                 CP_GATHERS * blocks * deltas);
    }
    if (s->ep > 1)
        add_item(t, HD_GROUP_EP, HD_COMM_ALL_TO_ALL_V,
                 hidden_bytes * (double)(s->ep - 1) / (double)s->ep,
                 EP_EXCHANGES * blocks * expert_share(m));
    if (s->pp > 1)
        add_item(t, HD_GROUP_PP, HD_COMM_SHIFT, hidden_bytes, 2 * micro_batches);
    if (s->dp * s->cp > 1)
        add_item(t, HD_GROUP_DP_CP, HD_COMM_ALL_REDUCE,
                 block_weights(s, m) * (double)m->layers / (double)s->pp * GRADIENT_BYTES, 1);
}
