/* choose: the rules of a layout's sizes. */
#include <string.h>

#include "base/quant.h"
#include "comm/comm.h"
#include "plan/choose_internal.h"

int64_t choose_or_one(int64_t size)
{
    return size ? size : 1;
}

int32_t choose_most_ranks(const struct hd_plan_request *w)
{
    return w->only_planned ? HD_PLAN_DEVICES_MAX : hd_plan_ranks_max(w->sizes.device, NULL);
}

int64_t choose_replica(const struct hd_plan_request *w)
{
    return choose_or_one(w->sizes.tp) * choose_or_one(w->sizes.cp) * choose_or_one(w->sizes.pp);
}

int32_t hd_plan_unit(const struct hd_plan_request *request)
{
    return (int32_t)choose_or_one(request->sizes.tp);
}

struct hd_plan_shape hd_plan_shape_of(const struct hd_plan_request *request)
{
    const bool codes = request->searched && request->nf4;

    return (struct hd_plan_shape){
        .pp = choose_or_one(request->sizes.pp),
        .tp = choose_or_one(request->sizes.tp),
        .cp = choose_or_one(request->sizes.cp),
        .ep = choose_or_one(request->sizes.ep),
        .dp = request->sizes.dp,
        .zero_shard = request->sizes.zero_shard,
        .micro_batch = request->sizes.micro_batch,
        .order_micro_batches = request->sizes.order_micro_batches,
        .global_batch = request->global_batch,
        .batch_divisor = request->batch_divisor,
        .layers = request->searched ? request->layers : 0,
        .heads = request->searched ? request->heads : 0,
        .kv_heads = request->searched ? request->kv_heads : 0,
        .ffn_hidden = request->searched ? request->ffn_hidden : 0,
        .context = request->searched ? request->context : 0,
        .vocab = request->searched ? request->vocab : 0,
        .shared_ffn_hidden = request->searched ? request->shared_ffn_hidden : 0,
        .dense_ffn_hidden = request->searched ? request->dense_ffn_hidden : 0,
        .delta_heads = request->searched ? request->delta_heads : 0,
        .delta_conv_width = request->searched ? request->delta_conv_width : 0,
        .conv_width = request->searched ? request->conv_width : 0,
        .conv_hidden = request->searched && request->conv_layers ? request->hidden : 0,
        .nf4_hidden = codes ? request->hidden : 0,
        .nf4_head_width = codes ? request->head_width : 0,
        .nf4_latents = {codes ? request->mla_q_rank : 0, codes ? request->mla_kv_rank : 0,
                        codes ? request->mla_nope : 0, codes ? request->mla_value : 0},
        .nf4_delta = {codes ? request->delta_key_width : 0, codes ? request->delta_value_heads : 0,
                      codes ? request->delta_value_width : 0}};
}

/* Returns the micro_batch that replaces auto: the largest divisor, up to HD_MICRO_BATCH_AUTO_MAX,
 * of a replica's sequences per step; with pipeline stages one that leaves at least four
 * micro-batches per stage, so that the bubble is small. */
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

/* Returns the chunks per stage that replace `auto` in virtual_stages for this schedule. */
static int64_t auto_virtual_stages(const char *schedule)
{
    return strcmp(schedule, "interleaved") == 0 || strcmp(schedule, "zb-v") == 0 ? 2 : 1;
}

/* Replaces auto in schedule, stages and virtual_stages. With one pipeline stage, a schedule that
 * has one chunk per stage becomes "none", which runs the same programs. */
static void decide_pipeline(struct hd_layout_sizes *s)
{
    if (!*s->stages)
        memcpy(s->stages, "auto", sizeof "auto");
    if (s->pp == 1) {
        decide_word(s->schedule, "none");
        if (strcmp(s->schedule, "1f1b") == 0 || strcmp(s->schedule, "gpipe") == 0 ||
            strcmp(s->schedule, "zb-h1") == 0)
            memcpy(s->schedule, "none", sizeof "none");
        s->virtual_stages = choose_or_one(s->virtual_stages);
        return;
    }
    decide_word(s->schedule, s->virtual_stages > 1 ? "interleaved" : "1f1b");
    if (!s->virtual_stages)
        s->virtual_stages = auto_virtual_stages(s->schedule);
}

bool choose_is_schedule(const char *word)
{
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++)
        if (strcmp(word, schedules[i]) == 0)
            return true;
    return false;
}

bool choose_is_from_file(const struct hd_layout_sizes *s)
{
    return strcmp(s->schedule, HD_SCHEDULE_FILE) == 0;
}

int64_t choose_most_chunks(const struct hd_plan_request *w)
{
    return w->layers + 2 < HD_PLAN_CHUNKS_MAX ? w->layers + 2 : HD_PLAN_CHUNKS_MAX;
}

bool choose_has_chunks(const struct hd_layout_sizes *s)
{
    return strcmp(s->schedule, "interleaved") == 0 || strcmp(s->schedule, "zb-v") == 0 ||
           choose_is_from_file(s);
}

enum hd_status choose_check_stages(const struct hd_plan_request *w, const struct hd_layout_sizes *s)
{
    int64_t layers[HD_PLAN_CHUNKS_MAX];

    return strcmp(s->stages, "auto") == 0
               ? HD_OK
               : hd_stages_read_chunks(s->stages, s->pp * s->virtual_stages, w->layers, layers);
}

/* Returns whether the second of `shares` equal shares of an nf4 matrix consists of whole
 * quantization blocks; then all shares do. An uneven division returns true: other rules refuse
 * it. */
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

bool choose_cuts_codes(const struct hd_plan_request *w, int64_t tp)
{
    const int64_t C = w->hidden, ffn[] = {w->ffn_hidden, w->shared_ffn_hidden, w->dense_ffn_hidden};
    struct choose_matrix list[3 * CHOOSE_MATRICES_MAX];
    int count = choose_attention(w, list);

    count += choose_delta(w, list + count);
    count += choose_conv(w, list + count);
    for (int i = 0; i < count; i++) {
        const struct choose_matrix *m = &list[i];
        const int64_t shares = m->shares_max && tp > m->shares_max ? m->shares_max : tp;

        if (m->split != CHOOSE_WHOLE &&
            !has_whole_blocks(m->rows, m->columns, m->split == CHOOSE_COLUMNS, shares))
            return true;
    }
    for (size_t i = 0; i < sizeof ffn / sizeof ffn[0]; i++)
        if (ffn[i] &&
            (!has_whole_blocks(ffn[i], C, false, tp) || !has_whole_blocks(C, ffn[i], true, tp)))
            return true;
    return false;
}

bool choose_breaks(const struct hd_plan_request *w, const struct hd_layout_sizes *s,
                   int32_t devices, enum hd_plan_obstacle rule)
{
    switch (rule) {
#define N(name, broken, ...) \
    case HD_PLAN_##name:     \
        return broken;
#define R(name, size, broken, ...) N(name, broken)
#include "plan/choose_rules.def"
    default:
        return false;
    }
}

enum hd_plan_obstacle choose_first_broken(const struct hd_plan_request *w,
                                          const struct hd_layout_sizes *s, int32_t devices,
                                          enum hd_plan_obstacle first, enum hd_plan_obstacle last)
{
    for (int rule = (int)first; rule <= (int)last; rule++)
        if (choose_breaks(w, s, devices, (enum hd_plan_obstacle)rule))
            return (enum hd_plan_obstacle)rule;
    return HD_PLAN_FITS;
}

bool hd_plan_allows(const struct hd_plan_request *request, const struct hd_layout_sizes *sizes)
{
    const struct hd_layout_sizes *requested = &request->sizes;
    const struct {
        int64_t wished, open, is;
    } numbers[] = {{requested->tp, 0, sizes->tp},
                   {requested->pp, 0, sizes->pp},
                   {requested->dp, 0, sizes->dp},
                   {requested->cp, 0, sizes->cp},
                   {requested->ep, 0, sizes->ep},
                   {requested->zero, -1, sizes->zero},
                   {requested->zero_shard, 0, sizes->zero_shard},
                   {requested->virtual_stages, 0, sizes->virtual_stages},
                   {requested->micro_batch, 0, sizes->micro_batch},
                   {requested->sequence, -1, sizes->sequence},
                   {requested->order_micro_batches, 0, sizes->order_micro_batches}};
    const struct {
        const char *wished, *is;
    } words[] = {{requested->schedule, sizes->schedule},
                 {requested->stages, sizes->stages},
                 {requested->recompute, sizes->recompute}};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].wished != numbers[i].open && numbers[i].wished != numbers[i].is)
            return false;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].wished, "auto") != 0 && strcmp(words[i].wished, words[i].is) != 0)
            return false;
    if (requested->offload != HD_JOB_OFFLOAD_AUTO && requested->offload != sizes->offload)
        return false;
    if (requested->cp_exchange != HD_JOB_CP_EXCHANGE_AUTO &&
        requested->cp_exchange != sizes->cp_exchange)
        return false;
    return requested->expert_rows == 0 || requested->expert_rows == sizes->expert_rows;
}

void hd_plan_decide_device(enum hd_job_device device, bool bf16_fast, int64_t threads,
                           struct hd_layout_sizes *sizes)
{
    sizes->device = device;
    if (sizes->precision == HD_JOB_PRECISION_AUTO)
        sizes->precision = bf16_fast ? HD_JOB_PRECISION_BF16 : HD_JOB_PRECISION_FP32;
    if (!sizes->threads)
        sizes->threads = threads > 0 ? threads : 1;
}

void choose_axes(struct hd_layout_sizes *s)
{
    s->pp = choose_or_one(s->pp);
    s->cp = choose_or_one(s->cp);
    s->tp = choose_or_one(s->tp);
    s->ep = choose_or_one(s->ep);
    if (s->zero < 0) /* zero_shard > 1 needs at least ZeRO stage 1 */
        s->zero = s->zero_shard > 1;
    if (s->zero_shard == 1 && !s->zero)
        s->zero_shard = 0; /* zero_shard is 0 in every layout without ZeRO */
    if (s->sequence < 0)
        s->sequence = s->tp > 1;
    if (s->cp_exchange == HD_JOB_CP_EXCHANGE_AUTO)
        s->cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    decide_pipeline(s);
    decide_word(s->recompute, "none");
    if (s->offload == HD_JOB_OFFLOAD_AUTO)
        s->offload = HD_JOB_OFFLOAD_NONE;
}

enum hd_plan_obstacle hd_plan_size(const struct hd_plan_request *request, int32_t devices,
                                   struct hd_layout_sizes *ret_sizes)
{
    struct hd_layout_sizes s = request->sizes;
    enum hd_plan_obstacle why;
    int64_t whole;

    choose_axes(&s);
    why = choose_first_broken(request, &s, devices, HD_PLAN_CHUNKS, HD_PLAN_DEVICES);
    if (why)
        return why;
    s.dp = devices / (s.tp * s.cp * s.pp);
    why = choose_first_broken(request, &s, devices, HD_PLAN_DP, HD_PLAN_BATCH);
    if (why)
        return why;
    whole = request->global_batch / s.dp;
    if (!s.micro_batch && choose_is_from_file(&s) && whole % s.order_micro_batches == 0)
        s.micro_batch = whole / s.order_micro_batches;
    if (!s.micro_batch)
        s.micro_batch = auto_micro_batch(hd_plan_batch_unit(request) / s.dp, s.pp);
    why = choose_first_broken(request, &s, devices, HD_PLAN_MICRO_BATCH, HD_PLAN_ORDER);
    if (!why)
        *ret_sizes = s;
    return why;
}

int32_t hd_plan_ranks_max(enum hd_job_device device, const char **ret_engine)
{
    const bool cuda = device == HD_JOB_DEVICE_CUDA;

    if (ret_engine)
        *ret_engine = cuda ? "nccl" : "gloo";
    return cuda ? HD_COMM_NCCL_RANKS_MAX : HD_COMM_GLOO_RANKS_MAX;
}

enum hd_status hd_plan_check_devices(const char *path, enum hd_job_device device, bool only_planned,
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

/* An axis that is auto, and the largest value that the search tries for it (search.h). */
struct open_axis {
    int64_t *size, most;
};

bool hd_plan_size_searched(const struct hd_plan_request *request, int32_t devices,
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

/* Tries all combinations of values of the axes that are auto; true: one of them has a layout. */
static bool searched_fits(struct hd_plan_request *r, const struct open_axis *axes, int count,
                          int32_t devices, struct hd_layout_sizes *ret_sizes)
{
    const int64_t left = devices / choose_replica(r);
    bool fits = false;

    if (count == 0)
        return hd_plan_size_searched(r, devices, ret_sizes);
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

    return request->searched && devices > 0 && devices % choose_replica(&r) == 0 &&
           searched_fits(&r, axes, 3, devices, ret_sizes);
}

int32_t hd_plan_most(const struct hd_plan_request *request, int32_t devices_min,
                     int32_t devices_max)
{
    const int32_t connected = choose_most_ranks(request);
    const int32_t most = devices_max < connected ? devices_max : connected;
    struct hd_layout_sizes sizes;

    for (int32_t count = most; count >= devices_min && count > 0; count--) {
        const enum hd_plan_obstacle why = hd_plan_size(request, count, &sizes);

        if (why == HD_PLAN_FITS || hd_plan_first(request, count, &sizes))
            return count;
        /* this obstacle holds for every number of devices */
        if (why < HD_PLAN_TOO_MANY && !request->searched)
            return 0;
    }
    return 0;
}

enum hd_status hd_plan_decide(const struct hd_plan_request *request, int32_t devices,
                              struct hd_layout_sizes *ret_sizes)
{
    if (hd_plan_size(request, devices, ret_sizes) == HD_PLAN_FITS ||
        hd_plan_first(request, devices, ret_sizes))
        return HD_OK;
    return hd_plan_check(request, devices, devices);
}
