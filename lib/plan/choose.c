#include "plan/choose.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/quant.h"
#include "base/text.h"
#include "comm/comm.h"

enum { MICRO_BATCH_MAX = 1 << 20 }; /* of the job file */

static int64_t or_one(int64_t size)
{
    return size ? size : 1;
}

static int32_t most_ranks(const struct hd_plan_request *w)
{
    return w->only_planned ? HD_PLAN_DEVICES_MAX : hd_plan_ranks_max(w->sizes.device, NULL);
}

/* Devices of one replica of the model. */
static int64_t replica_of(const struct hd_plan_request *w)
{
    return or_one(w->sizes.tp) * or_one(w->sizes.cp) * or_one(w->sizes.pp);
}

int32_t hd_plan_unit(const struct hd_plan_request *request)
{
    return (int32_t)or_one(request->sizes.tp);
}

struct hd_plan_shape hd_plan_shape(const struct hd_plan_request *request)
{
    const bool codes = request->searched && request->nf4;

    return (struct hd_plan_shape){.pp = or_one(request->sizes.pp),
                                  .tp = or_one(request->sizes.tp),
                                  .cp = or_one(request->sizes.cp),
                                  .ep = or_one(request->sizes.ep),
                                  .dp = request->sizes.dp,
                                  .zero_shard = request->sizes.zero_shard,
                                  .micro_batch = request->sizes.micro_batch,
                                  .order_micro_batches = request->sizes.order_micro_batches,
                                  .global_batch = request->global_batch,
                                  .layers = request->searched ? request->layers : 0,
                                  .heads = request->searched ? request->heads : 0,
                                  .kv_heads = request->searched ? request->kv_heads : 0,
                                  .ffn_hidden = request->searched ? request->ffn_hidden : 0,
                                  .context = request->searched ? request->context : 0,
                                  .vocab = request->searched ? request->vocab : 0,
                                  .nf4_hidden = codes ? request->hidden : 0,
                                  .nf4_head_width = codes ? request->head_width : 0};
}

/* The largest divisor, up to HD_MICRO_BATCH_AUTO_MAX, of a rank's sequences per step; with pipeline
 * stages one that leaves at least four micro-batches per stage, so that the stages wait little. */
static int64_t auto_micro_batch(int64_t share, int64_t pp)
{
    for (int64_t size = HD_MICRO_BATCH_AUTO_MAX; size > 1; size--)
        if (share % size == 0 && (pp == 1 || share / size >= 4 * pp))
            return size;
    return 1;
}

/* ---- the rules ---- */

static void decide_word(char word[HD_JOB_WORD_MAX], const char *automatic)
{
    if (strcmp(word, "auto") == 0)
        memcpy(word, automatic, strlen(automatic) + 1);
}

/* ---- pipelines ---- */

static const char *const schedules[] = {"1f1b",  "gpipe", "interleaved",
                                        "zb-h1", "zb-v",  HD_SCHEDULE_FILE};

/* What a schedule replaces `auto` of virtual_stages by. */
static int64_t auto_virtual_stages(const char *schedule)
{
    return strcmp(schedule, "interleaved") == 0 || strcmp(schedule, "zb-v") == 0 ? 2 : 1;
}

/* Replaces auto; with one stage all schedules of one chunk per stage are the same, "none". */
static void decide_pipeline(struct hd_layout_sizes *s)
{
    if (!*s->stages)
        memcpy(s->stages, "auto", sizeof "auto");
    if (s->pp == 1) {
        decide_word(s->schedule, "none");
        if (strcmp(s->schedule, "1f1b") == 0 || strcmp(s->schedule, "gpipe") == 0 ||
            strcmp(s->schedule, "zb-h1") == 0)
            memcpy(s->schedule, "none", sizeof "none");
        s->virtual_stages = or_one(s->virtual_stages);
        return;
    }
    decide_word(s->schedule, s->virtual_stages > 1 ? "interleaved" : "1f1b");
    if (!s->virtual_stages)
        s->virtual_stages = auto_virtual_stages(s->schedule);
}

static bool is_schedule(const char *word)
{
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++)
        if (strcmp(word, schedules[i]) == 0)
            return true;
    return false;
}

static bool is_from_file(const struct hd_layout_sizes *s)
{
    return strcmp(s->schedule, HD_SCHEDULE_FILE) == 0;
}

/* The most chunks of a pipeline: one for each unit of the model. */
static int64_t most_chunks(const struct hd_plan_request *w)
{
    return w->layers + 2 < HD_PLAN_CHUNKS_MAX ? w->layers + 2 : HD_PLAN_CHUNKS_MAX;
}

static bool has_too_many_chunks(const struct hd_plan_request *w, const struct hd_layout_sizes *s)
{
    return s->pp > 1 && s->pp * s->virtual_stages > most_chunks(w);
}

/* s: decide_pipeline has replaced auto. */
static enum hd_status check_pipeline(const struct hd_plan_request *w,
                                     const struct hd_layout_sizes *s)
{
    const int64_t chunks = s->pp * s->virtual_stages;
    int64_t layers[HD_PLAN_CHUNKS_MAX];
    const bool folded = strcmp(s->schedule, "zb-v") == 0;

    if (s->pp == 1 && strcmp(s->schedule, "none") != 0)
        return hd_err(
            HD_INVALID,
            "parallel.schedule: '%s' is an order of pipeline stages, and parallel.pp is 1; "
            "write auto, or raise pp",
            s->schedule);
    if (s->pp == 1 && s->virtual_stages != 1)
        return hd_err(HD_INVALID,
                      "parallel.virtual_stages: %lld chunks per stage need stages, and parallel.pp "
                      "is 1; write auto, or raise pp",
                      (long long)s->virtual_stages);
    if (s->pp > 1 && !is_schedule(s->schedule))
        return hd_err(HD_INVALID,
                      "parallel.schedule: '%s' is no order of pipeline stages; use auto, 1f1b, "
                      "gpipe, interleaved, zb-h1 or zb-v",
                      s->schedule);
    if (strcmp(s->schedule, "interleaved") == 0 && s->virtual_stages == 1)
        return hd_err(HD_INVALID,
                      "parallel.schedule: interleaved needs several chunks per stage, and "
                      "parallel.virtual_stages is 1; raise it, or write 1f1b");
    if (folded && s->virtual_stages != 2)
        return hd_err(HD_INVALID,
                      "parallel.virtual_stages: %lld; zb-v has 2 chunks per stage; write 2 or auto",
                      (long long)s->virtual_stages);
    if (is_from_file(s) != (s->order_micro_batches > 0))
        return hd_err(HD_INVALID, "parallel.schedule: without an order; write {file: PATH}");
    if (s->virtual_stages > 1 && !folded && strcmp(s->schedule, "interleaved") != 0 &&
        !is_from_file(s))
        return hd_err(HD_INVALID,
                      "parallel.virtual_stages: %lld; %s has one chunk per stage; write 1 or auto, "
                      "or take the schedule interleaved",
                      (long long)s->virtual_stages, s->schedule);
    if (has_too_many_chunks(w, s))
        return hd_err(HD_INVALID, "parallel.pp: more chunks than units"); /* see refuse_chunks */
    if (strcmp(s->stages, "auto") == 0)
        return HD_OK;
    return hd_stages_read_chunks(s->stages, chunks, w->layers, layers);
}

/* Whether the second of `shares` shares of a matrix in nf4 consists of whole blocks: if it does,
 * all do. Other rules say which shares are even. */
static bool has_whole_blocks(int64_t rows, int64_t columns, bool by_columns, int64_t shares)
{
    struct hd_quant_box box = {.quant = HD_QUANT_NF4,
                               .rows = rows,
                               .columns = columns,
                               .box_rows = rows,
                               .box_columns = columns};

    if (shares == 1 || (by_columns ? columns : rows) % shares)
        return true;
    if (by_columns)
        box.first_column = box.box_columns = columns / shares;
    else
        box.first_row = box.box_rows = rows / shares;
    return hd_quant_box_fits(&box);
}

/* The matrices of blocks as lib/model declares them: those that lead into attention and the
 * feed-forward layers are shared by rows, those that lead out of them by columns. Also the registry
 * refuses it, when the first rank has been started. */
static bool cuts_codes(const struct hd_plan_request *w, int64_t tp)
{
    const int64_t C = w->hidden, Q = w->heads * w->head_width, KV = w->kv_heads * w->head_width,
                  ffn[] = {w->ffn_hidden, w->shared_ffn_hidden};

    if (!has_whole_blocks(Q, C, false, tp) || !has_whole_blocks(C, Q, true, tp) ||
        !has_whole_blocks(KV, C, false, tp < w->kv_heads ? tp : w->kv_heads))
        return true;
    for (size_t i = 0; i < sizeof ffn / sizeof ffn[0]; i++)
        if (ffn[i] &&
            (!has_whole_blocks(ffn[i], C, false, tp) || !has_whole_blocks(C, ffn[i], true, tp)))
            return true;
    return false;
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
    if (w->vocab > 0 && (w->vocab + tp - 1) / tp * (tp - 1) >= w->vocab)
        return HD_PLAN_TP_VOCAB;
    return w->nf4 && cuts_codes(w, tp) ? HD_PLAN_TP_CODES : HD_PLAN_FITS;
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
    if (s->sequence && w->context / s->cp % s->tp)
        return HD_PLAN_SEQUENCE_ROWS;
    if (s->zero_shard && !s->zero)
        return HD_PLAN_SHARD_OF_NOTHING;
    return s->zero_shard % s->ep ? HD_PLAN_SHARD_EP : HD_PLAN_FITS;
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
    enum hd_plan_obstacle why = HD_PLAN_FITS;
    int64_t replica, share;

    s.pp = or_one(s.pp);
    s.cp = or_one(s.cp);
    s.tp = or_one(s.tp);
    s.ep = or_one(s.ep);
    if (s.zero < 0) /* what zero_shard shares is there from stage 1 on */
        s.zero = s.zero_shard > 1;
    if (s.zero_shard == 1 && !s.zero)
        s.zero_shard = 0; /* as a plan without ZeRO says it */
    if (s.sequence < 0)
        s.sequence = s.tp > 1;
    decide_word(s.cp_exchange, "ring");
    decide_pipeline(&s);
    if (!why && check_pipeline(request, &s))
        why = HD_PLAN_PIPELINE;
    decide_word(s.recompute, "none");
    decide_word(s.offload, "none");
    replica = s.cp * s.tp * s.pp;
    if (!why)
        why = check_model(request, &s);
    if (why)
        return why;
    if (devices > most_ranks(request))
        return HD_PLAN_TOO_MANY;
    if (devices < 1 || devices % replica)
        return HD_PLAN_DEVICES;
    s.dp = devices / replica;
    if (request->sizes.dp && request->sizes.dp != s.dp)
        return HD_PLAN_DP;
    if (s.dp * s.cp % s.ep)
        return HD_PLAN_EP_RANKS;
    if (s.zero_shard && s.dp * s.cp % s.zero_shard)
        return HD_PLAN_SHARD;
    if (request->global_batch < 1 || request->global_batch % s.dp)
        return HD_PLAN_BATCH;
    share = request->global_batch / s.dp;
    if (!s.micro_batch && is_from_file(&s) && share % s.order_micro_batches == 0)
        s.micro_batch = share / s.order_micro_batches;
    if (!s.micro_batch)
        s.micro_batch = auto_micro_batch(share, s.pp);
    if (share % s.micro_batch)
        return HD_PLAN_MICRO_BATCH;
    if (is_from_file(&s) && share / s.micro_batch != s.order_micro_batches)
        return HD_PLAN_ORDER;
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

enum hd_status hd_plan_check_devices(const char *path, const char *device, bool only_planned,
                                     int64_t devices)
{
    const char *engine;
    const int32_t most = hd_plan_ranks_max(device, &engine);

    if (devices >= 1 && devices <= (only_planned ? HD_PLAN_DEVICES_MAX : most))
        return HD_OK;
    if (only_planned)
        return hd_err(devices < 1 ? HD_INVALID : HD_UNSUPPORTED,
                      "%s: %lld is not possible; give a whole number from 1 to %d", path,
                      (long long)devices, HD_PLAN_DEVICES_MAX);
    return hd_err(devices < 1 ? HD_INVALID : HD_UNSUPPORTED,
                  "%s: %lld is not possible; give a whole number from 1 to %d, which is what the "
                  "engine %s connects",
                  path, (long long)devices, most, engine);
}

/* An axis that is auto, and the largest value that the search gives it (search.h). */
struct open_axis {
    int64_t *size, most;
};

/* Sequence parallelism that is auto is left out where tp does not divide the rows. */
static bool size_searched(const struct hd_plan_request *request, int32_t devices,
                          struct hd_layout_sizes *ret_sizes)
{
    struct hd_plan_request r = *request;
    enum hd_plan_obstacle why = hd_plan_size(&r, devices, ret_sizes);

    if (why == HD_PLAN_SEQUENCE_ROWS && r.sizes.sequence < 0) {
        r.sizes.sequence = 0;
        why = hd_plan_size(&r, devices, ret_sizes);
    }
    return why == HD_PLAN_FITS;
}

/* Tries every value of an axis that is auto. */
static bool searched_fits(struct hd_plan_request *r, const struct open_axis *axes, int count,
                          int32_t devices, struct hd_layout_sizes *ret_sizes)
{
    const int64_t left = devices / replica_of(r);
    bool fits = false;

    if (count == 0)
        return size_searched(r, devices, ret_sizes);
    if (*axes->size)
        return searched_fits(r, axes + 1, count - 1, devices, ret_sizes);
    for (int64_t n = 1; !fits && n <= left && n <= axes->most; n++) {
        if (left % n)
            continue;
        *axes->size = n;
        fits = searched_fits(r, axes + 1, count - 1, devices, ret_sizes);
    }
    *axes->size = 0;
    return fits;
}

bool hd_plan_first(const struct hd_plan_request *request, int32_t devices,
                   struct hd_layout_sizes *ret_sizes)
{
    struct hd_plan_request r = *request;
    const int64_t rows = request->context / HD_PLAN_ROWS_MIN;
    const struct open_axis axes[] = {{&r.sizes.tp, request->heads},
                                     {&r.sizes.pp, request->layers + 2},
                                     {&r.sizes.cp, rows > 1 ? rows : 1}};

    return request->searched && devices > 0 && devices % replica_of(&r) == 0 &&
           searched_fits(&r, axes, 3, devices, ret_sizes);
}

int32_t hd_plan_most(const struct hd_plan_request *request, int32_t devices_min,
                     int32_t devices_max)
{
    const int32_t connected = most_ranks(request);
    const int32_t most = devices_max < connected ? devices_max : connected;
    struct hd_layout_sizes sizes;

    for (int32_t count = most; count >= devices_min && count > 0; count--) {
        const enum hd_plan_obstacle why = hd_plan_size(request, count, &sizes);

        if (why == HD_PLAN_FITS || hd_plan_first(request, count, &sizes))
            return count;
        if (why < HD_PLAN_TOO_MANY && !request->searched) /* on every number of devices */
            return 0;
    }
    return 0;
}

/* ---- the messages ---- */

/* The axes of a replica, for messages. */
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
    return check_tp(about, value) == HD_PLAN_FITS;
}

static bool is_possible_cp(const void *about, int64_t value)
{
    const struct hd_plan_request *w = about;

    return value == 1 || w->context % (2 * value) == 0;
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

/* A number of devices that has a layout. */
static bool is_possible_count(const void *about, int64_t value)
{
    struct hd_layout_sizes sizes;

    return hd_plan_size(about, (int32_t)value, &sizes) == HD_PLAN_FITS;
}

/* The request with another value of one of its sizes. */
struct trial {
    struct hd_plan_request request;
    size_t offset; /* of the size in struct hd_layout_sizes */
    int32_t devices_min, devices_max;
    int64_t whole; /* what a value divides; 0: not known */
};

static bool makes_it_fit(const void *about, int64_t value)
{
    struct trial t = *(const struct trial *)about;

    if (t.whole && value && t.whole % value)
        return false;
    *(int64_t *)((char *)&t.request.sizes + t.offset) = value;
    return hd_plan_most(&t.request, t.devices_min, t.devices_max) > 0;
}

/* Lists the values of a size up to `max` with which a layout exists. If there is none, because
 * another size is wrong as well: those that obey the rule that was broken; 1 always does. */
static void list_values(struct trial *t, int64_t max, bool (*obeys)(const void *, int64_t),
                        const void *about, char list[HD_TEXT_LIST_MAX])
{
    const int64_t wish = *(const int64_t *)((const char *)&t->request.sizes + t->offset);

    hd_text_list_near(makes_it_fit, t, max, wish, list);
    if (!*list)
        hd_text_list_near(obeys, about, max, wish, list);
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
                      "blocks; with model.weights: nf4 use %s, or take int8",
                      (int)w->sizes.tp, (int)HD_NF4_BLOCK, list);
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

/* s: sizes that are in the request, or that were tried: pp of two stages. Of the two that are too
 * large together that one is named which alone can be changed. */
static enum hd_status refuse_chunks(const struct hd_plan_request *w,
                                    const struct hd_layout_sizes *s, int32_t min, int32_t max)
{
    const int64_t most = most_chunks(w);
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
    if (!*list) /* other sizes are wrong as well */
        (void)snprintf(list, sizeof list, "so few that their product is at most %lld",
                       (long long)most);
    return hd_err(HD_INVALID,
                  "parallel.%s: %lld stages x %lld virtual_stages are more chunks than the %lld "
                  "units of the model (embedding, %lld layers, head); use %s",
                  of_stage ? "virtual_stages" : "pp", (long long)s->pp,
                  (long long)s->virtual_stages, (long long)most, (long long)w->layers, list);
}

/* Where pp is auto and searched, several stages were tried as well: the rule that two of them break
 * says more than that one is too few. */
static enum hd_status refuse_pipeline(const struct hd_plan_request *w, int32_t min, int32_t max)
{
    const bool any = w->searched && !w->sizes.pp;
    struct hd_layout_sizes sizes = w->sizes;
    enum hd_status st;

    sizes.pp = any ? 2 : or_one(sizes.pp);
    decide_pipeline(&sizes);
    if (has_too_many_chunks(w, &sizes))
        return refuse_chunks(w, &sizes, min, max);
    st = check_pipeline(w, &sizes);
    if (st || !any)
        return st;
    sizes = w->sizes;
    sizes.pp = 1;
    decide_pipeline(&sizes);
    return check_pipeline(w, &sizes);
}

/* The message for an obstacle that holds for every number of devices. */
static enum hd_status refuse_always(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                    int32_t min, int32_t max)
{
    struct trial cp = {*w, offsetof(struct hd_layout_sizes, cp), min, max, 0};
    struct trial ep = {*w, offsetof(struct hd_layout_sizes, ep), min, max, 0};
    char list[HD_TEXT_LIST_MAX];

    switch (why) {
    case HD_PLAN_PIPELINE:
        return refuse_pipeline(w, min, max);
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
                      (int)w->sizes.tp, (long long)(w->context / or_one(w->sizes.cp)));
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
    const int64_t replica = replica_of(w);

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

/* The replicas do not share the batch: other numbers of devices, or another batch. */
static enum hd_status refuse_batch(const struct hd_plan_request *w, int32_t devices,
                                   const char *list)
{
    const int64_t replica = replica_of(w), dp = devices / replica;
    char instead[HD_TEXT_LIST_MAX + 64];

    if (*list)
        (void)snprintf(instead, sizeof instead, "use %s", list);
    else
        (void)snprintf(instead, sizeof instead, "make train.global_batch a multiple of %lld",
                       (long long)(dp * or_one(w->sizes.micro_batch)));
    if (replica == 1)
        return hd_err(HD_INVALID,
                      "resources.devices: %d does not divide train.global_batch = %lld; %s",
                      devices, (long long)w->global_batch, instead);
    return hd_err(HD_INVALID,
                  "resources.devices: %d are %lld replicas of %s = %lld, which do not divide "
                  "train.global_batch = %lld; %s",
                  devices, (long long)dp, replica_words(w), (long long)replica,
                  (long long)w->global_batch, instead);
}

/* The order from a file has another number of micro-batches than a replica. */
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

/* The message for an obstacle on exactly this number of devices. */
static enum hd_status refuse_count(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                                   int32_t devices)
{
    const int64_t replica = replica_of(w);
    const int64_t share = why >= HD_PLAN_MICRO_BATCH ? w->global_batch / (devices / replica) : 0;
    struct expert_ranks ranks = {.experts = w->experts};
    struct trial ep = {*w, offsetof(struct hd_layout_sizes, ep), devices, devices, 0};
    struct trial shard = {*w, offsetof(struct hd_layout_sizes, zero_shard), devices, devices, 0};
    char list[HD_TEXT_LIST_MAX];

    hd_text_list_near(is_possible_count, w, most_ranks(w), devices, list);
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
        ranks.ranks = devices / or_one(w->sizes.tp) / or_one(w->sizes.pp);
        list_values(&ep, w->experts, is_possible_ep, &ranks, list);
        return hd_err(HD_INVALID,
                      "parallel.ep: %d does not divide the %lld ranks of dp x cp "
                      "(resources.devices / parallel.tp / parallel.pp); use %s",
                      (int)w->sizes.ep, (long long)ranks.ranks, list);
    case HD_PLAN_SHARD:
        ranks.ranks = devices / or_one(w->sizes.tp) / or_one(w->sizes.pp);
        list_values(&shard, ranks.ranks, divides, &ranks.ranks, list);
        return hd_err(HD_INVALID,
                      "parallel.zero_shard: %lld does not divide the %lld ranks of dp x cp "
                      "(resources.devices / parallel.tp / parallel.pp); use %s",
                      (long long)w->sizes.zero_shard, (long long)ranks.ranks, list);
    case HD_PLAN_BATCH:
        return refuse_batch(w, devices, list);
    case HD_PLAN_ORDER:
        return refuse_order(w, share);
    default: /* every check before this one has passed, so each divisor is possible */
        hd_text_list_near(divides, &share, MICRO_BATCH_MAX, w->sizes.micro_batch, list);
        return hd_err(HD_INVALID,
                      "parallel.micro_batch: %d does not divide the %lld sequences of a rank "
                      "(train.global_batch / %s); use %s",
                      (int)w->sizes.micro_batch, (long long)share,
                      replica == 1 ? "resources.devices" : "the replicas", list);
    }
}

/* Is a size of the replica left to a search? */
static bool is_open(const struct hd_plan_request *w)
{
    return w->searched && !(w->sizes.tp && w->sizes.pp && w->sizes.cp);
}

/* An obstacle of one stage, or of tp 1, where a search tries others. */
static bool is_of_one(const struct hd_plan_request *w, enum hd_plan_obstacle why)
{
    return w->searched && ((why == HD_PLAN_PIPELINE && !w->sizes.pp) ||
                           (why == HD_PLAN_SEQUENCE_ALONE && !w->sizes.tp));
}

/* Of a search: the first size that is given and alone stands in the way, with the values with which
 * a layout exists. HD_OK: no single one does. */
static enum hd_status refuse_given(const struct hd_plan_request *w, int32_t devices)
{
    const struct {
        size_t offset;
        const char *key;
        int64_t whole; /* a possible value divides it */
    } sizes[] = {
        {offsetof(struct hd_layout_sizes, micro_batch), "micro_batch", w->global_batch},
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

/* The message when no number of devices from min to max is possible. */
static enum hd_status refuse_range(const struct hd_plan_request *w, int32_t min, int32_t max)
{
    const int64_t replica = replica_of(w);
    const int64_t wanted = w->sizes.dp * replica;

    if (w->sizes.dp && (wanted < min || wanted > max))
        return refuse_dp(w, wanted < min ? min : max);
    if (max / replica * replica < min)
        return hd_err(HD_INVALID,
                      "resources.devices: no number from %d to %d is a multiple of %s = %lld; "
                      "change one of them",
                      min, max, replica_keys(w), (long long)replica);
    return hd_err(HD_INVALID,
                  "resources.devices: no number from %d to %d shares train.global_batch = %lld "
                  "evenly%s%s; change one of them",
                  min, max, (long long)w->global_batch,
                  w->sizes.micro_batch ? " in whole micro-batches" : "",
                  w->sizes.zero_shard ? " among whole blocks of parallel.zero_shard"
                  : w->sizes.ep > 1   ? " among whole blocks of parallel.ep"
                                      : "");
}

enum hd_status hd_plan_check(const struct hd_plan_request *request, int32_t devices_min,
                             int32_t devices_max)
{
    const int32_t connected = most_ranks(request);
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

enum hd_status hd_plan_decide(const struct hd_plan_request *request, int32_t devices,
                              struct hd_layout_sizes *ret_sizes)
{
    if (hd_plan_size(request, devices, ret_sizes) == HD_PLAN_FITS ||
        hd_plan_first(request, devices, ret_sizes))
        return HD_OK;
    return hd_plan_check(request, devices, devices);
}
