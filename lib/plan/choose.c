#include "plan/choose.h"

#include <string.h>

#include "base/text.h"
#include "comm/comm.h"

enum { MICRO_BATCH_MAX = 1 << 20 }; /* of the job file */

static int64_t or_one(int64_t size)
{
    return size ? size : 1;
}

int32_t hd_plan_unit(const struct hd_plan_request *request)
{
    return (int32_t)or_one(request->sizes.tp);
}

struct hd_plan_shape hd_plan_shape(const struct hd_plan_request *request)
{
    return (struct hd_plan_shape){.tp = or_one(request->sizes.tp),
                                  .cp = or_one(request->sizes.cp),
                                  .ep = or_one(request->sizes.ep),
                                  .dp = request->sizes.dp,
                                  .micro_batch = request->sizes.micro_batch,
                                  .global_batch = request->global_batch};
}

/* The largest divisor, up to HD_MICRO_BATCH_AUTO_MAX, of a rank's sequences per step. */
static int64_t auto_micro_batch(int64_t share)
{
    for (int64_t size = HD_MICRO_BATCH_AUTO_MAX; size > 1; size--)
        if (share % size == 0)
            return size;
    return 1;
}

/* ---- the rules ---- */

static enum hd_plan_obstacle check_built(const struct hd_layout_sizes *w)
{
    if (w->pp > 1)
        return HD_PLAN_PP_NOT_BUILT;
    return w->zero > 0 ? HD_PLAN_ZERO_NOT_BUILT : HD_PLAN_FITS;
}

static enum hd_plan_obstacle check_tp(const struct hd_plan_request *w, int64_t tp)
{
    if (w->heads % tp)
        return HD_PLAN_TP_HEADS;
    if (w->kv_heads % tp && tp % w->kv_heads)
        return HD_PLAN_TP_KV_HEADS;
    if (w->ffn_hidden % tp)
        return HD_PLAN_TP_FFN;
    if (w->shared_ffn_hidden % tp)
        return HD_PLAN_TP_SHARED_FFN;
    return w->vocab > 0 && (w->vocab + tp - 1) / tp * (tp - 1) >= w->vocab ? HD_PLAN_TP_VOCAB
                                                                           : HD_PLAN_FITS;
}

static enum hd_plan_obstacle check_model(const struct hd_plan_request *w,
                                         const struct hd_layout_sizes *s)
{
    const enum hd_plan_obstacle tp = check_tp(w, s->tp);

    if (tp)
        return tp;
    if (s->cp > 1 && w->context % (2 * s->cp))
        return HD_PLAN_CP_CONTEXT;
    if (s->ep > 1 && (!w->experts || w->experts % s->ep))
        return w->experts ? HD_PLAN_EP_EXPERTS : HD_PLAN_EP_DENSE;
    if (s->sequence && s->tp == 1)
        return HD_PLAN_SEQUENCE_ALONE;
    return s->sequence && w->context / s->cp % s->tp ? HD_PLAN_SEQUENCE_ROWS : HD_PLAN_FITS;
}

static void decide_word(char word[HD_JOB_WORD_MAX], const char *automatic)
{
    if (strcmp(word, "auto") == 0)
        memcpy(word, automatic, strlen(automatic) + 1);
}

void hd_plan_decide_device(const char *device, bool bf16_fast, int64_t threads,
                           struct hd_layout_sizes *sizes)
{
    memcpy(sizes->device, device, strlen(device) + 1);
    decide_word(sizes->precision, bf16_fast ? "bf16" : "fp32");
    if (!sizes->threads)
        sizes->threads = threads > 0 ? threads : 1;
}

enum hd_plan_obstacle hd_plan_size(const struct hd_plan_request *request, int32_t devices,
                                   struct hd_layout_sizes *ret_sizes)
{
    struct hd_layout_sizes s = request->sizes;
    enum hd_plan_obstacle why = check_built(&s);
    int64_t replica, share;

    s.pp = 1;
    s.cp = or_one(s.cp);
    s.tp = or_one(s.tp);
    s.ep = or_one(s.ep);
    s.zero = 0;
    if (s.sequence < 0)
        s.sequence = s.tp > 1;
    decide_word(s.cp_exchange, "ring");
    decide_word(s.schedule, "none");
    decide_word(s.recompute, "none");
    replica = s.cp * s.tp;
    if (!why)
        why = check_model(request, &s);
    if (why)
        return why;
    if (devices > hd_plan_ranks_max(request->sizes.device, NULL))
        return HD_PLAN_TOO_MANY;
    if (devices < 1 || devices % replica)
        return HD_PLAN_DEVICES;
    s.dp = devices / replica;
    if (request->sizes.dp && request->sizes.dp != s.dp)
        return HD_PLAN_DP;
    if (s.dp * s.cp % s.ep)
        return HD_PLAN_EP_RANKS;
    if (request->global_batch < 1 || request->global_batch % s.dp)
        return HD_PLAN_BATCH;
    share = request->global_batch / s.dp;
    if (!s.micro_batch)
        s.micro_batch = auto_micro_batch(share);
    if (share % s.micro_batch)
        return HD_PLAN_MICRO_BATCH;
    *ret_sizes = s;
    return HD_PLAN_FITS;
}

int32_t hd_plan_ranks_max(const char *device, const char **ret_engine)
{
    const bool cuda = strcmp(device, "cuda") == 0;

    if (ret_engine)
        *ret_engine = cuda ? "nccl" : "gloo";
    return cuda ? HD_COMM_NCCL_RANKS_MAX : HD_COMM_GLOO_RANKS_MAX;
}

int32_t hd_plan_most(const struct hd_plan_request *request, int32_t devices_min,
                     int32_t devices_max)
{
    const int32_t connected = hd_plan_ranks_max(request->sizes.device, NULL);
    const int32_t most = devices_max < connected ? devices_max : connected;
    struct hd_layout_sizes sizes;

    for (int32_t count = most; count >= devices_min && count > 0; count--)
        if (hd_plan_size(request, count, &sizes) == HD_PLAN_FITS)
            return count;
    return 0;
}

/* ---- the messages ---- */

static bool is_possible_tp(const void *about, int64_t value)
{
    return check_tp(about, value) == HD_PLAN_FITS;
}

static bool is_possible_cp(const void *about, int64_t value)
{
    const struct hd_plan_request *w = about;

    return value == 1 || w->context % (2 * value) == 0;
}

/* A number of devices: a multiple of a replica's, whose replicas divide the batch evenly. */
static bool is_possible_count(const void *about, int64_t value)
{
    const struct hd_plan_request *w = about;
    const int64_t replica = or_one(w->sizes.tp) * or_one(w->sizes.cp);

    return value % replica == 0 && w->global_batch % (value / replica) == 0 &&
           value / or_one(w->sizes.tp) % or_one(w->sizes.ep) == 0;
}

struct expert_ranks {
    int64_t experts, ranks; /* ranks: dp x cp, which share the experts */
};

static bool is_possible_ep(const void *about, int64_t value)
{
    const struct expert_ranks *e = about;

    return e->experts % value == 0 && e->ranks % value == 0;
}

static bool divides(const void *about, int64_t value)
{
    return *(const int64_t *)about % value == 0;
}

static enum hd_status refuse_tp(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                int32_t devices)
{
    char list[HD_TEXT_LIST_MAX];

    hd_text_list_near(is_possible_tp, w, devices, w->sizes.tp, list);
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
    return hd_err(HD_INVALID, "parallel.tp: %d does not divide model.%s = %lld; use %s",
                  (int)w->sizes.tp,
                  why == HD_PLAN_TP_HEADS ? "heads"
                  : why == HD_PLAN_TP_FFN ? "ffn_hidden"
                                          : "shared_ffn_hidden",
                  (long long)(why == HD_PLAN_TP_HEADS ? w->heads
                              : why == HD_PLAN_TP_FFN ? w->ffn_hidden
                                                      : w->shared_ffn_hidden),
                  list);
}

/* The message for an obstacle that holds for every number of devices. */
static enum hd_status refuse_always(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                    int32_t devices)
{
    static const char unsupported[] = "parallel.%s: %s is not supported yet; use auto or 1";
    char list[HD_TEXT_LIST_MAX];

    switch (why) {
    case HD_PLAN_PP_NOT_BUILT:
        return hd_err(HD_UNSUPPORTED, unsupported, "pp", "pipeline parallelism");
    case HD_PLAN_ZERO_NOT_BUILT:
        return hd_err(HD_UNSUPPORTED,
                      "parallel.zero: ZeRO stage %d is not supported yet; use auto or 0",
                      (int)w->sizes.zero);
    case HD_PLAN_CP_CONTEXT:
        hd_text_list_near(is_possible_cp, w, devices, w->sizes.cp, list);
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
        hd_text_list_near(divides, &w->experts, w->experts, w->sizes.ep, list);
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
                      (int)w->sizes.tp, (long long)(w->context / or_one(w->sizes.cp)));
    default:
        return refuse_tp(w, why, devices);
    }
}

static enum hd_status refuse_dp(const struct hd_plan_request *w, int32_t devices)
{
    const int64_t replica = or_one(w->sizes.tp) * or_one(w->sizes.cp);

    if (replica == 1)
        return hd_err(HD_INVALID,
                      "parallel.dp: %d is not resources.devices = %d; write auto, or the same "
                      "number in both",
                      (int)w->sizes.dp, devices);
    return hd_err(HD_INVALID,
                  "parallel.dp: %d replicas of tp x cp = %lld devices are %lld, not "
                  "resources.devices = %d; write auto, or let them agree",
                  (int)w->sizes.dp, (long long)replica, (long long)(w->sizes.dp * replica),
                  devices);
}

static enum hd_status refuse_count(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                   int32_t devices)
{
    const int64_t replica = or_one(w->sizes.tp) * or_one(w->sizes.cp);
    const int64_t share = why == HD_PLAN_MICRO_BATCH ? w->global_batch / (devices / replica) : 0;
    struct expert_ranks ep = {.experts = w->experts};
    char list[HD_TEXT_LIST_MAX];

    hd_text_list_near(is_possible_count, w, hd_plan_ranks_max(w->sizes.device, NULL), devices,
                      list);
    switch (why) {
    case HD_PLAN_DEVICES:
        return hd_err(HD_INVALID,
                      "resources.devices: %d is no multiple of parallel.tp x parallel.cp = %lld; "
                      "%s%s",
                      devices, (long long)replica, *list ? "use " : "lower tp or cp", list);
    case HD_PLAN_DP:
        return refuse_dp(w, devices);
    case HD_PLAN_EP_RANKS:
        ep.ranks = devices / or_one(w->sizes.tp);
        hd_text_list_near(is_possible_ep, &ep, ep.experts, w->sizes.ep, list);
        return hd_err(HD_INVALID,
                      "parallel.ep: %d does not divide the %lld ranks of dp x cp "
                      "(resources.devices / parallel.tp); use %s",
                      (int)w->sizes.ep, (long long)ep.ranks, list);
    case HD_PLAN_BATCH:
        if (replica == 1)
            return hd_err(HD_INVALID,
                          "resources.devices: %d does not divide train.global_batch = %lld; use %s",
                          devices, (long long)w->global_batch, list);
        return hd_err(HD_INVALID,
                      "resources.devices: %d are %lld replicas of tp x cp = %lld, which do not "
                      "divide train.global_batch = %lld; use %s",
                      devices, (long long)(devices / replica), (long long)replica,
                      (long long)w->global_batch, list);
    default:
        hd_text_list_near(divides, &share, MICRO_BATCH_MAX, w->sizes.micro_batch, list);
        return hd_err(HD_INVALID,
                      "parallel.micro_batch: %d does not divide the %lld sequences of a rank "
                      "(train.global_batch / %s); use %s",
                      (int)w->sizes.micro_batch, (long long)share,
                      replica == 1 ? "resources.devices" : "the replicas", list);
    }
}

/* The message when no number of devices from min to max is possible. */
static enum hd_status refuse_range(const struct hd_plan_request *w, int32_t min, int32_t max)
{
    const int64_t replica = or_one(w->sizes.tp) * or_one(w->sizes.cp);
    const int64_t wanted = w->sizes.dp * replica;

    if (w->sizes.dp && (wanted < min || wanted > max))
        return refuse_dp(w, wanted < min ? min : max);
    if (max / replica * replica < min)
        return hd_err(HD_INVALID,
                      "resources.devices: no number from %d to %d is a multiple of parallel.tp x "
                      "parallel.cp = %lld; change one of them",
                      min, max, (long long)replica);
    return hd_err(HD_INVALID,
                  "resources.devices: no number from %d to %d shares train.global_batch = %lld "
                  "evenly%s%s; change one of them",
                  min, max, (long long)w->global_batch,
                  w->sizes.micro_batch ? " in whole micro-batches" : "",
                  w->sizes.ep > 1 ? " among whole blocks of parallel.ep" : "");
}

enum hd_status hd_plan_check(const struct hd_plan_request *request, int32_t devices_min,
                             int32_t devices_max)
{
    const char *engine;
    const int32_t connected = hd_plan_ranks_max(request->sizes.device, &engine);
    const int32_t most = devices_max < connected ? devices_max : connected;
    struct hd_layout_sizes sizes;
    enum hd_plan_obstacle why;

    if (hd_plan_most(request, devices_min, devices_max))
        return HD_OK;
    why = hd_plan_size(request, most, &sizes);
    if (why && why < HD_PLAN_TOO_MANY)
        return refuse_always(request, why, most);
    if (devices_min > connected)
        return hd_err(HD_UNSUPPORTED,
                      "resources.devices: %d are not supported yet; the engine %s connects at most "
                      "%d",
                      devices_min, engine, connected);
    if (devices_min != devices_max)
        return refuse_range(request, devices_min, most);
    return refuse_count(request, why, most);
}

enum hd_status hd_plan_decide(const struct hd_plan_request *request, int32_t devices,
                              struct hd_layout_sizes *ret_sizes)
{
    if (hd_plan_size(request, devices, ret_sizes) == HD_PLAN_FITS)
        return HD_OK;
    return hd_plan_check(request, devices, devices);
}
