/* choose_refuse: makes the error message of a request that has no layout: the broken rule, and the
 * values that are possible. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/quant.h"
#include "base/text.h"
#include "plan/choose_internal.h"

enum { MICRO_BATCH_MAX = 1 << 20 }; /* limit of parallel.micro_batch in job files */

/* Returns the axes of a model replica as text for messages: "tp x cp" or "tp x cp x pp". */
static const char *replica_words(const struct hd_plan_request *w)
{
    return w->sizes.pp > 1 ? "tp x cp x pp" : "tp x cp";
}

static const char *replica_keys(const struct hd_plan_request *w)
{
    return w->sizes.pp > 1 ? "parallel.tp x parallel.cp x parallel.pp"
                           : "parallel.tp x parallel.cp";
}

static bool is_possible_tp(const void *about, int64_t value)
{
    return choose_check_tp(about, value) == HD_PLAN_FITS;
}

static bool is_possible_cp(const void *about, int64_t value)
{
    const struct hd_plan_request *w = about;

    return value == 1 ||
           (w->context % (2 * value) == 0 && w->context / (2 * value) >= w->delta_conv_width - 1);
}

struct expert_rank_counts {
    /* experts: experts of a block; ranks: dp x cp, over which the experts are split */
    int64_t experts, ranks;
};

static bool is_possible_ep(const void *about, int64_t value)
{
    const struct expert_rank_counts *e = about;

    return e->experts % value == 0 && e->ranks % value == 0;
}

static bool divides(const void *about, int64_t value)
{
    return *(const int64_t *)about % value == 0;
}

/* Returns whether a layout exists on this number of devices. */
static bool is_possible_count(const void *about, int64_t value)
{
    struct hd_layout_sizes sizes;

    return hd_plan_size(about, (int32_t)value, &sizes) == HD_PLAN_FITS;
}

/* A request in which one size is replaced by other values to find possible ones. */
struct trial {
    struct hd_plan_request request;
    size_t offset; /* offset of the size in struct hd_layout_sizes */
    int32_t devices_min, devices_max;
    int64_t whole; /* number that every value of the size must divide; 0: unknown */
};

static bool makes_it_fit(const void *about, int64_t value)
{
    struct trial t = *(const struct trial *)about;

    if (t.whole && value && t.whole % value)
        return false;
    *(int64_t *)((char *)&t.request.sizes + t.offset) = value;
    return hd_plan_most(&t.request, t.devices_min, t.devices_max) > 0;
}

/* Lists the values of a size, up to `max`, with which a layout exists. If there is none, because
 * another size is wrong as well: the values that obey the broken rule; 1 always does. */
static void list_values(struct trial *t, int64_t max, bool (*obeys)(const void *, int64_t),
                        const void *about, char list[HD_TEXT_LIST_MAX])
{
    const int64_t requested = *(const int64_t *)((const char *)&t->request.sizes + t->offset);

    hd_text_list_near(makes_it_fit, t, max, requested, list);
    if (!*list)
        hd_text_list_near(obeys, about, max, requested, list);
}

static enum hd_status refuse_tp(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                int32_t min, int32_t max)
{
    struct trial t = {*w, offsetof(struct hd_layout_sizes, tp), min, max, 0};
    char list[HD_TEXT_LIST_MAX];

    list_values(&t, max, is_possible_tp, w, list);
    if (why == HD_PLAN_TP_KV_HEADS)
        return hd_err(HD_INVALID,
                      "parallel.tp: %d neither divides model.kv_heads = %lld nor is a multiple of "
                      "it; use %s",
                      (int)w->sizes.tp, (long long)w->kv_heads, list);
    if (why == HD_PLAN_TP_VOCAB)
        return hd_err(HD_INVALID,
                      "parallel.tp: %d shares of model.vocab = %lld leave a rank without a token; "
                      "use %s",
                      (int)w->sizes.tp, (long long)w->vocab, list);
    if (why == HD_PLAN_TP_CODES)
        return hd_err(HD_INVALID,
                      "parallel.tp: %d cuts through a block of %d weights of the matrices of "
                      "blocks; with model.quantization: nf4 use %s, or take int8",
                      (int)w->sizes.tp, (int)HD_NF4_BLOCK, list);
    return hd_err(HD_INVALID, "parallel.tp: %d does not divide model.%s = %lld; use %s",
                  (int)w->sizes.tp,
                  why == HD_PLAN_TP_HEADS       ? "heads"
                  : why == HD_PLAN_TP_FFN       ? "ffn_hidden"
                  : why == HD_PLAN_TP_DENSE_FFN ? "dense_ffn_hidden"
                  : why == HD_PLAN_TP_DELTA     ? "delta.key_heads"
                                                : "shared_ffn_hidden",
                  (long long)(why == HD_PLAN_TP_HEADS       ? w->heads
                              : why == HD_PLAN_TP_FFN       ? w->ffn_hidden
                              : why == HD_PLAN_TP_DENSE_FFN ? w->dense_ffn_hidden
                              : why == HD_PLAN_TP_DELTA     ? w->delta_heads
                                                            : w->shared_ffn_hidden),
                  list);
}

/* Makes the error message of a layout with more pipeline chunks than the model has units. s: the
 * requested sizes, or those that were tried (pp of two stages). If virtual_stages and pp are too
 * large only together, names the one that can be changed alone. */
static enum hd_status refuse_chunks(const struct hd_plan_request *w,
                                    const struct hd_layout_sizes *s, int32_t min, int32_t max)
{
    const int64_t most = choose_most_chunks(w);
    struct trial pp = {*w, offsetof(struct hd_layout_sizes, pp), min, max, 0};
    struct trial each = {*w, offsetof(struct hd_layout_sizes, virtual_stages), min, max, 0};
    bool of_stage = !w->sizes.pp;
    char list[HD_TEXT_LIST_MAX] = "";

    if (!of_stage)
        hd_text_list_near(makes_it_fit, &pp, most / s->virtual_stages, s->pp, list);
    if (!*list && w->sizes.virtual_stages) {
        hd_text_list_near(makes_it_fit, &each, most / s->pp, s->virtual_stages, list);
        of_stage |= *list != '\0';
    }
    if (!*list) /* no value of this size alone gives a layout: other sizes are wrong as well */
        (void)snprintf(list, sizeof list, "so few that their product is at most %lld",
                       (long long)most);
    return hd_err(HD_INVALID,
                  "parallel.%s: %lld stages x %lld virtual_stages are more chunks than the %lld "
                  "units of the model (embedding, %lld layers, head); use %s",
                  of_stage ? "virtual_stages" : "pp", (long long)s->pp,
                  (long long)s->virtual_stages, (long long)most, (long long)w->layers, list);
}

/* Makes the error message of an obstacle of the pipeline (schedule, virtual_stages, stages). If pp
 * is auto and searched, several stages were tried as well, and the rule that two stages break
 * explains more than that one stage is too few. */
static enum hd_status refuse_pipeline(const struct hd_plan_request *w, int32_t min, int32_t max)
{
    const bool any = w->searched && !w->sizes.pp;
    struct hd_layout_sizes sizes = w->sizes;
    enum hd_status st;

    sizes.pp = any ? 2 : choose_or_one(sizes.pp);
    choose_pipeline(&sizes);
    if (choose_too_many_chunks(w, &sizes))
        return refuse_chunks(w, &sizes, min, max);
    st = choose_check_pipeline(w, &sizes);
    if (st || !any)
        return st;
    sizes = w->sizes;
    sizes.pp = 1;
    choose_pipeline(&sizes);
    return choose_check_pipeline(w, &sizes);
}

/* Makes the error message of an obstacle that holds for every number of devices. */
static enum hd_status refuse_always(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                    int32_t min, int32_t max)
{
    struct trial cp = {*w, offsetof(struct hd_layout_sizes, cp), min, max, 0};
    struct trial ep = {*w, offsetof(struct hd_layout_sizes, ep), min, max, 0};
    char list[HD_TEXT_LIST_MAX];

    switch (why) {
    case HD_PLAN_PIPELINE:
        return refuse_pipeline(w, min, max);
    case HD_PLAN_CP_DELTA:
        list_values(&cp, max, is_possible_cp, w, list);
        return hd_err(
            HD_INVALID,
            "parallel.cp: %d ranks take chunks of %lld tokens of model.context = %lld, "
            "fewer than the %lld before a token that model.delta.conv_width = %lld needs; "
            "use %s",
            (int)w->sizes.cp, (long long)(w->context / (2 * w->sizes.cp)), (long long)w->context,
            (long long)w->delta_conv_width - 1, (long long)w->delta_conv_width, list);
    case HD_PLAN_CP_CONTEXT:
        list_values(&cp, max, is_possible_cp, w, list);
        return hd_err(HD_INVALID,
                      "parallel.cp: %d ranks take two chunks each of model.context = %lld, which "
                      "%lld does not divide; use %s",
                      (int)w->sizes.cp, (long long)w->context, 2 * (long long)w->sizes.cp, list);
    case HD_PLAN_EP_DENSE:
        return hd_err(HD_INVALID,
                      "parallel.ep: %d ranks would share the experts of a block, and the model has "
                      "none; write auto or 1",
                      (int)w->sizes.ep);
    case HD_PLAN_EP_EXPERTS:
        list_values(&ep, w->experts, divides, &w->experts, list);
        return hd_err(HD_INVALID, "parallel.ep: %d does not divide model.experts = %lld; use %s",
                      (int)w->sizes.ep, (long long)w->experts, list);
    case HD_PLAN_SEQUENCE_ALONE:
        return hd_err(HD_INVALID, "parallel.sequence: true shares rows among the ranks of "
                                  "parallel.tp, which is 1; write auto or false, or raise tp");
    case HD_PLAN_SEQUENCE_ROWS:
        return hd_err(HD_INVALID,
                      "parallel.sequence: parallel.tp = %d does not divide the %lld tokens of a "
                      "sequence on a rank (model.context / parallel.cp); write false, or change "
                      "model.context",
                      (int)w->sizes.tp, (long long)(w->context / choose_or_one(w->sizes.cp)));
    case HD_PLAN_SHARD_OF_NOTHING:
        return hd_err(HD_INVALID,
                      "parallel.zero_shard: %lld ranks would share what parallel.zero "
                      "names, and zero is 0; write zero: 1, 2 or 3, or remove zero_shard",
                      (long long)w->sizes.zero_shard);
    case HD_PLAN_SHARD_EP:
        return hd_err(HD_INVALID,
                      "parallel.zero_shard: a block of %lld ranks would hold a part of the experts "
                      "that parallel.ep = %lld ranks share; write a multiple of ep",
                      (long long)w->sizes.zero_shard, (long long)w->sizes.ep);
    default:
        return refuse_tp(w, why, min, max);
    }
}

static enum hd_status refuse_dp(const struct hd_plan_request *w, int32_t devices)
{
    const int64_t replica = choose_replica(w);

    if (replica == 1)
        return hd_err(HD_INVALID,
                      "parallel.dp: %d is not resources.devices = %d; write auto, or the same "
                      "number in both",
                      (int)w->sizes.dp, devices);
    return hd_err(HD_INVALID,
                  "parallel.dp: %d replicas of %s = %lld devices are %lld, not "
                  "resources.devices = %d; write auto, or let them agree",
                  (int)w->sizes.dp, replica_words(w), (long long)replica,
                  (long long)(w->sizes.dp * replica), devices);
}

/* Returns the words for hd_plan_batch_unit in messages. */
static const char *batch_words(const struct hd_plan_request *w)
{
    return w->batch_divisor ? "the greatest common divisor of train.batch_schedule"
                            : "train.global_batch";
}

/* Makes the error message of a global batch that dp does not divide; it names possible numbers of
 * devices or another batch. */
static enum hd_status refuse_batch(const struct hd_plan_request *w, int32_t devices,
                                   const char *list)
{
    const int64_t replica = choose_replica(w), dp = devices / replica;
    char instead[HD_TEXT_LIST_MAX + 64];

    if (*list)
        (void)snprintf(instead, sizeof instead, "use %s", list);
    else
        (void)snprintf(instead, sizeof instead, "make %s a multiple of %lld", batch_words(w),
                       (long long)(dp * choose_or_one(w->sizes.micro_batch)));
    if (replica == 1)
        return hd_err(HD_INVALID, "resources.devices: %d does not divide %s = %lld; %s", devices,
                      batch_words(w), (long long)hd_plan_batch_unit(w), instead);
    return hd_err(HD_INVALID,
                  "resources.devices: %d are %lld replicas of %s = %lld, which do not divide %s = "
                  "%lld; %s",
                  devices, (long long)dp, replica_words(w), (long long)replica, batch_words(w),
                  (long long)hd_plan_batch_unit(w), instead);
}

/* Makes the error message of a schedule from a file whose number of micro-batches is not that of a
 * replica. */
static enum hd_status refuse_order(const struct hd_plan_request *w, int64_t share)
{
    const long long M = w->sizes.order_micro_batches, size = w->sizes.micro_batch;
    char list[HD_TEXT_LIST_MAX];

    if (size)
        return hd_err(HD_INVALID,
                      "parallel.schedule: the order has %lld micro-batches, and the %lld sequences "
                      "of a replica are %lld of parallel.micro_batch = %lld; give an order with "
                      "%lld, or write micro_batch: auto",
                      M, (long long)share, (long long)share / size, size, (long long)share / size);
    hd_text_list_near(divides, &share, share, M, list);
    return hd_err(HD_INVALID,
                  "parallel.schedule: the order has %lld micro-batches, which do not divide the "
                  "%lld sequences of a replica (train.global_batch / parallel.dp); give an order "
                  "with %s, or change the batch",
                  M, (long long)share, list);
}

/* Makes the error message of an obstacle on exactly this number of devices. */
static enum hd_status refuse_count(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                   int32_t devices)
{
    const int64_t replica = choose_replica(w);
    const int64_t share =
        why >= HD_PLAN_MICRO_BATCH ? hd_plan_batch_unit(w) / (devices / replica) : 0;
    struct expert_rank_counts ranks = {.experts = w->experts};
    struct trial ep = {*w, offsetof(struct hd_layout_sizes, ep), devices, devices, 0};
    struct trial shard = {*w, offsetof(struct hd_layout_sizes, zero_shard), devices, devices, 0};
    char list[HD_TEXT_LIST_MAX];

    hd_text_list_near(is_possible_count, w, choose_most_ranks(w), devices, list);
    switch (why) {
    case HD_PLAN_DEVICES:
        return hd_err(HD_INVALID, "resources.devices: %d is no multiple of %s = %lld; %s%s%s",
                      devices, replica_keys(w), (long long)replica, *list ? "use " : "change ",
                      *list             ? list
                      : w->sizes.pp > 1 ? "tp, cp or pp"
                                        : "tp or cp",
                      *list ? "" : " so that their product divides it");
    case HD_PLAN_DP:
        return refuse_dp(w, devices);
    case HD_PLAN_EP_RANKS:
        ranks.ranks = devices / choose_or_one(w->sizes.tp) / choose_or_one(w->sizes.pp);
        list_values(&ep, w->experts, is_possible_ep, &ranks, list);
        return hd_err(HD_INVALID,
                      "parallel.ep: %d does not divide the %lld ranks of dp x cp "
                      "(resources.devices / parallel.tp / parallel.pp); use %s",
                      (int)w->sizes.ep, (long long)ranks.ranks, list);
    case HD_PLAN_SHARD:
        ranks.ranks = devices / choose_or_one(w->sizes.tp) / choose_or_one(w->sizes.pp);
        list_values(&shard, ranks.ranks, divides, &ranks.ranks, list);
        return hd_err(HD_INVALID,
                      "parallel.zero_shard: %lld does not divide the %lld ranks of dp x cp "
                      "(resources.devices / parallel.tp / parallel.pp); use %s",
                      (long long)w->sizes.zero_shard, (long long)ranks.ranks, list);
    case HD_PLAN_BATCH:
        return refuse_batch(w, devices, list);
    case HD_PLAN_ORDER:
        return refuse_order(w, w->global_batch / (devices / replica));
    default: /* all earlier checks have passed, so each divisor is possible */
        hd_text_list_near(divides, &share, MICRO_BATCH_MAX, w->sizes.micro_batch, list);
        return hd_err(HD_INVALID,
                      "parallel.micro_batch: %d does not divide the %lld sequences of a rank "
                      "(%s / %s); use %s",
                      (int)w->sizes.micro_batch, (long long)share, batch_words(w),
                      replica == 1 ? "resources.devices" : "the replicas", list);
    }
}

/* Returns whether the search may choose a size of the replica (tp, cp or pp). */
static bool is_open(const struct hd_plan_request *w)
{
    return w->searched && !(w->sizes.tp && w->sizes.pp && w->sizes.cp);
}

/* Returns whether the obstacle exists only with pp 1 or tp 1, so that a search that tries other
 * values may have none. */
static bool is_of_one(const struct hd_plan_request *w, enum hd_plan_obstacle why)
{
    return w->searched && ((why == HD_PLAN_PIPELINE && !w->sizes.pp) ||
                           (why == HD_PLAN_SEQUENCE_ALONE && !w->sizes.tp));
}

/* Makes the error message of a request with `searched`: the first size given by the job that alone
 * prevents a layout, with its possible values. HD_OK: no single size does. */
static enum hd_status refuse_given(const struct hd_plan_request *w, int32_t devices)
{
    const struct {
        size_t offset;
        const char *key;
        int64_t whole; /* number that every possible value of the size divides */
    } sizes[] = {
        {offsetof(struct hd_layout_sizes, micro_batch), "micro_batch", hd_plan_batch_unit(w)},
        {offsetof(struct hd_layout_sizes, zero_shard), "zero_shard", devices},
        {offsetof(struct hd_layout_sizes, dp), "dp", devices},
        {offsetof(struct hd_layout_sizes, pp), "pp", devices},
        {offsetof(struct hd_layout_sizes, cp), "cp", devices},
        {offsetof(struct hd_layout_sizes, tp), "tp", devices},
        {offsetof(struct hd_layout_sizes, ep), "ep", w->experts},
    };

    for (size_t i = 0; is_open(w) && i < sizeof sizes / sizeof sizes[0]; i++) {
        struct trial t = {*w, sizes[i].offset, devices, devices, sizes[i].whole};
        const int64_t given = *(const int64_t *)((const char *)&w->sizes + t.offset);
        char list[HD_TEXT_LIST_MAX];

        if (given < 1 || sizes[i].whole < 1 || !makes_it_fit(&t, 0))
            continue;
        hd_text_list_near(makes_it_fit, &t, sizes[i].whole, given, list);
        return hd_err(HD_INVALID,
                      "parallel.%s: %lld is in no layout of this model and batch on "
                      "resources.devices = %d; use %s",
                      sizes[i].key, (long long)given, devices, *list ? list : "auto");
    }
    return HD_OK;
}

/* Makes the error message of a request that has no layout on any number of devices from min to
 * max. */
static enum hd_status refuse_range(const struct hd_plan_request *w, int32_t min, int32_t max)
{
    const int64_t replica = choose_replica(w);
    const int64_t wanted = w->sizes.dp * replica;

    if (w->sizes.dp && (wanted < min || wanted > max))
        return refuse_dp(w, wanted < min ? min : max);
    if (max / replica * replica < min)
        return hd_err(HD_INVALID,
                      "resources.devices: no number from %d to %d is a multiple of %s = %lld; "
                      "change one of them",
                      min, max, replica_keys(w), (long long)replica);
    return hd_err(HD_INVALID,
                  "resources.devices: no number from %d to %d shares %s = %lld evenly%s%s; change "
                  "one of them",
                  min, max, batch_words(w), (long long)hd_plan_batch_unit(w),
                  w->sizes.micro_batch ? " in whole micro-batches" : "",
                  w->sizes.zero_shard ? " among whole blocks of parallel.zero_shard"
                  : w->sizes.ep > 1   ? " among whole blocks of parallel.ep"
                                      : "");
}

enum hd_status hd_plan_check(const struct hd_plan_request *request, int32_t devices_min,
                             int32_t devices_max)
{
    const int32_t connected = choose_most_ranks(request);
    const int32_t most = devices_max < connected ? devices_max : connected;
    struct hd_layout_sizes sizes;
    enum hd_plan_obstacle why;

    if (hd_plan_most(request, devices_min, devices_max))
        return HD_OK;
    why = hd_plan_size(request, most, &sizes);
    if (is_of_one(request, why) && devices_min == devices_max && refuse_given(request, most))
        return HD_INVALID;
    if (why && why < HD_PLAN_TOO_MANY)
        return refuse_always(request, why, devices_min, most);
    if (devices_min > connected)
        return hd_plan_check_devices("resources.devices", request->sizes.device,
                                     request->only_planned, devices_min);
    if (devices_min == devices_max && why != HD_PLAN_ORDER && refuse_given(request, most))
        return HD_INVALID;
    if (devices_min != devices_max)
        return refuse_range(request, devices_min, most);
    return refuse_count(request, why, most);
}
