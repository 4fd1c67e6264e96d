#include "optim/optim.h"

#include <math.h>
#include <string.h>

#include "optim/muon.h"
#include "optim/qk_clip.h"
#include "program/emit.h"

struct hd_lr_schedule hd_lr_schedule_from_job(const struct hd_job *job)
{
    return (struct hd_lr_schedule){.peak = job->lr_peak,
                                   .min = job->lr_min,
                                   .warmup_steps = job->lr_warmup_steps,
                                   .decay_steps = job->lr_decay_steps,
                                   .total_steps = job->steps - job->lr_after,
                                   .decay = job->lr_decay,
                                   .shape = job->lr_decay_shape};
}

struct hd_lr_schedule hd_lr_schedule_from_stage(const struct hd_data_stage *stage, int64_t steps)
{
    struct hd_lr_schedule s = {.peak = stage->lr_peak,
                               .min = stage->lr_min,
                               .warmup_steps = stage->lr_warmup_steps,
                               .decay_steps = stage->lr_decay_steps,
                               .total_steps = steps,
                               .decay = stage->lr_decay,
                               .shape = stage->lr_decay_shape};

    if (!s.decay_steps && s.decay == HD_JOB_LR_DECAY_WSD) /* a tenth, or all after the warm-up */
        s.decay_steps =
            steps / 10 && steps / 10 < steps - s.warmup_steps ? steps / 10 : steps - s.warmup_steps;
    return s;
}

/* Returns the fraction of the decay that is done at this step, in [0, 1]. */
static double decay_fraction(const struct hd_lr_schedule *s, int64_t step)
{
    int64_t first = s->warmup_steps, length = s->decay_steps;

    if (s->decay == HD_JOB_LR_DECAY_WSD)
        first = s->total_steps - length;
    else if (!length)
        length = s->total_steps - first;
    if (step <= first)
        return 0;
    return step - first >= length ? 1 : (double)(step - first) / (double)length;
}

/* Returns the part of peak - min that is left at x of the decay of WSD, in [0, 1]. */
static double left_at(enum hd_job_lr_decay_shape shape, double x)
{
    switch (shape) {
    case HD_JOB_LR_DECAY_SHAPE_COSINE:
        return 0.5 * (1 + cos(3.14159265358979323846 * x));
    case HD_JOB_LR_DECAY_SHAPE_SQRT:
        return 1 - sqrt(x);
    case HD_JOB_LR_DECAY_SHAPE_EXPONENTIAL:
        return 2 * pow(0.5, x) - 1;
    case HD_JOB_LR_DECAY_SHAPE_LINEAR:
        break;
    }
    return 1 - x;
}

static double inverse_sqrt(const struct hd_lr_schedule *s, int64_t step)
{
    const double warmup = s->warmup_steps > 1 ? (double)s->warmup_steps : 1;
    const double rate = s->peak * sqrt(warmup / (double)step);

    return rate > s->min ? rate : s->min;
}

double hd_lr_at(const struct hd_lr_schedule *s, int64_t step)
{
    if (step < 1) /* before the schedule */
        return 0;
    if (step <= s->warmup_steps)
        return s->peak * (double)step / (double)s->warmup_steps;
    switch (s->decay) {
    case HD_JOB_LR_DECAY_COSINE:
        return s->min + (s->peak - s->min) * 0.5 *
                            (1 + cos(3.14159265358979323846 * decay_fraction(s, step)));
    case HD_JOB_LR_DECAY_WSD:
        if (s->shape && s->shape != HD_JOB_LR_DECAY_SHAPE_LINEAR)
            return s->min + (s->peak - s->min) * left_at(s->shape, decay_fraction(s, step));
        /* fall through */
    case HD_JOB_LR_DECAY_LINEAR:
        return s->peak + (s->min - s->peak) * decay_fraction(s, step);
    case HD_JOB_LR_DECAY_INVERSE_SQRT:
        return inverse_sqrt(s, step);
    case HD_JOB_LR_DECAY_CONSTANT:
        break;
    }
    return s->peak;
}

/* ---- the program U ---- */

/* ---- the norm ---- */

/* Emits the sums of squares, by chunks, of elements [begin, end) of a segment that this rank counts
 * in the gradient norm. A kernel's chunks begin with its first element, so elements before the
 * first chunk bound get a launch of their own. */
static void emit_square_pieces(struct hd_emit *e, int bucket, const struct hd_segment *s,
                               int64_t begin, int64_t end)
{
    while (begin < end) {
        const int64_t bound = (begin / HD_GRAD_CHUNK + 1) * HD_GRAD_CHUNK;
        const int64_t stop = begin % HD_GRAD_CHUNK && bound < end ? bound : end;
        struct hd_operand sums = hd_emit_global(e, HD_GLOBAL_SUMS);

        sums.offset_bytes = hd_segment_chunk(s, begin) * (int64_t)sizeof(double);
        (void)hd_emit_square_sums(
            e, HD_ARGS(square_sums, .N = stop - begin),
            HD_OPERANDS(square_sums, .sums = sums, .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE),
                        .grad = hd_emit_bucket(e, bucket, HD_STATE_GRAD, begin)));
        begin = stop;
    }
}

/* Returns true if this rank sums the squares of the bucket: it has its own shard, or it is the rank
 * that counts a bucket whose gradient is equal on several ranks. */
static bool needs_squares(const struct hd_registry *r, const struct hd_bucket *p)
{
    return p->shard_count || hd_bucket_owns_norm(r, p);
}

static bool computes_all_squares(const struct hd_registry *r)
{
    for (int i = 0; i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (p->trainable && p->is_local && (p->shard_count || !hd_bucket_owns_norm(r, p)))
            return false;
    }
    return true;
}

static void emit_squares(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];

    for (int i = 0; i < p->segment_count && needs_squares(e->registry, p); i++) {
        const struct hd_segment *s = &p->segments[i];
        const int64_t begin = s->begin > p->shard_begin ? s->begin : p->shard_begin;
        const int64_t end = s->end < p->shard_end ? s->end : p->shard_end;

        if (s->owns_norm)
            emit_square_pieces(e, bucket, s, begin, end);
    }
}

/* Emits the zeroing of chunk sums [first, end). */
static void emit_no_sums(struct hd_emit *e, int64_t first, int64_t end)
{
    struct hd_operand sums = hd_emit_global(e, HD_GLOBAL_SUMS);

    sums.offset_bytes = first * (int64_t)sizeof(double);
    if (end > first)
        (void)hd_emit_zero(e, HD_ARGS(zero, .size_bytes = (end - first) * (int64_t)sizeof(double)),
                           HD_OPERANDS(zero, .out = sums));
}

/* Emits, with ZeRO, a sum over ranks that gives the rank that counts the bucket the chunk sums of
 * all shards: a rank adds zeros for shards of others, which changes no bit; the other ranks then
 * zero the bucket's sums. The record thus adds the same numbers in the same order as without
 * ZeRO. */
static void emit_shard_sums(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    struct hd_operand sums = hd_emit_global(e, HD_GLOBAL_SUMS);
    int64_t first = 0, end = 0;

    for (int i = p->segment_count - 1; i >= 0; i--) {
        if (!p->segments[i].owns_norm)
            continue;
        first = p->segments[i].first_chunk;
        end = end ? end : hd_segment_chunk(&p->segments[i], p->segments[i].end - 1) + 1;
    }
    if (!p->shard_count || end == first)
        return;
    sums.offset_bytes = first * (int64_t)sizeof(double);
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = p->shard_group,
                               .count = end - first, .dtype = HD_F64),
                       HD_OPERANDS(comm, .received = sums, .sent = sums));
    if (!hd_bucket_owns_norm(e->registry, p))
        emit_no_sums(e, first, end);
}

/* ---- the update ---- */

/* Emits the gather of the updated weight shards of a bucket. Buckets are gathered in order, which
 * overlaps with the update of later buckets. */
static void emit_gather(struct hd_emit *e, int bucket)
{
    const struct hd_registry *r = e->registry;
    const struct hd_bucket *p = &r->buckets[bucket];
    const struct hd_operand all = hd_emit_bucket(e, bucket, HD_STATE_COPY, 0);
    const int index = hd_mesh_find_group(&r->mesh, p->shard_group, r->rank).index;

    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = p->shard_group,
                               .count = p->shard_count, .dtype = p->compute),
                       HD_OPERANDS(comm, .received = all,
                                   .sent = hd_emit_at(all, p->shard_count * index, p->compute)));
}

static void emit_adamw(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    const bool copy = p->copied;
    const int64_t begin = p->shard_begin;

    (void)hd_emit_adamw(
        e,
        HD_ARGS(adamw, .N = p->shard_end - begin, .range_count = p->range_count,
                .moment_bytes = p->in_blocks ? p->moment_bytes : 0, .copy_dtype = p->compute),
        HD_OPERANDS(adamw, .weight = hd_emit_bucket(e, bucket, HD_STATE_WEIGHT, begin),
                    .m = hd_emit_bucket(e, bucket, HD_STATE_MOMENT1, begin),
                    .v = hd_emit_bucket(e, bucket, HD_STATE_MOMENT2, begin),
                    .copy = copy ? hd_emit_bucket(e, bucket, HD_STATE_COPY, begin) : hd_emit_none(),
                    .grad = hd_emit_bucket(e, bucket, HD_STATE_GRAD, begin),
                    .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE),
                    .ranges = hd_emit_bucket(e, bucket, HD_STATE_RANGES, 0)));
}

static void emit_lion(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    const int64_t begin = p->shard_begin;

    (void)hd_emit_lion(
        e,
        HD_ARGS(lion, .N = p->shard_end - begin, .range_count = p->range_count,
                .moment_bytes = p->in_blocks ? p->moment_bytes : 0, .copy_dtype = p->compute),
        HD_OPERANDS(lion, .weight = hd_emit_bucket(e, bucket, HD_STATE_WEIGHT, begin),
                    .m = hd_emit_bucket(e, bucket, HD_STATE_MOMENT1, begin),
                    .copy = p->copied ? hd_emit_bucket(e, bucket, HD_STATE_COPY, begin)
                                      : hd_emit_none(),
                    .grad = hd_emit_bucket(e, bucket, HD_STATE_GRAD, begin),
                    .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE),
                    .ranges = hd_emit_bucket(e, bucket, HD_STATE_RANGES, 0)));
}

/* Emits QK-clip of the queries and keys in a bucket, whose weights are updated already. */
static void emit_qk_clip(struct hd_emit *e, int bucket)
{
    const struct hd_registry *r = e->registry;
    const struct hd_bucket *p = &r->buckets[bucket];
    const struct hd_unit *unit = &r->units[p->unit];
    struct hd_qk_clip_args args;
    int64_t element;

    for (int i = unit->first_param; i < unit->first_param + unit->param_count; i++)
        if (r->params[i].bucket == bucket && hd_qk_clip_of(r, i, &args, &element))
            (void)hd_emit_qk_clip(
                e, &args,
                HD_OPERANDS(qk_clip, .weight = hd_emit_bucket(e, bucket, HD_STATE_WEIGHT, element),
                            .copy = p->copied ? hd_emit_bucket(e, bucket, HD_STATE_COPY, element)
                                              : hd_emit_none(),
                            .top_score = hd_emit_at(hd_emit_global(e, HD_GLOBAL_SCORES),
                                                    p->unit * r->qk_clip.heads, HD_F32),
                            .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
}

/* Emits what follows the update of a bucket's shard, for every optimizer: QK-clip, and the gather of the
 * weights that other ranks updated. */
static void emit_finish(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];

    emit_qk_clip(e, bucket);
    if (p->shard_count && p->zero < 3)
        emit_gather(e, bucket);
}

/* Emits the update of a bucket whose elements are updated one by one. */
static void emit_update(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];

    if (p->offloaded || hd_rule_row(p->rule)->matrices)
        return;
    if (p->shard_end > p->shard_begin)
        (p->rule == HD_RULE_LION ? emit_lion : emit_adamw)(e, bucket);
    emit_finish(e, bucket);
}

/* Emits the step of the moving average of a bucket's weights, which are updated already. */
static void emit_ema(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];

    if (!(e->registry->ema_rate > 0) || p->offloaded || p->shard_end == p->shard_begin)
        return;
    (void)hd_emit_ema(
        e, HD_ARGS(ema, .N = p->shard_end - p->shard_begin, .rate = e->registry->ema_rate),
        HD_OPERANDS(ema, .ema = hd_emit_bucket(e, bucket, HD_STATE_EMA, p->shard_begin),
                    .weight = hd_emit_bucket(e, bucket, HD_STATE_WEIGHT, p->shard_begin),
                    .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
}

/* Emits into program P the gather of a bucket's weights, which follows the host's update of all
 * buckets (train/offload.h). */
static void emit_publish(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];

    if (p->shard_count && p->zero < 3 && p->offloaded)
        emit_gather(e, bucket);
}

static void emit_for_buckets(struct hd_emit *e, void (*emit)(struct hd_emit *e, int bucket))
{
    for (int bucket = 0; bucket < e->registry->bucket_count; bucket++) {
        e->unit = e->registry->buckets[bucket].unit;
        if (e->registry->buckets[bucket].trainable && e->registry->buckets[bucket].is_local)
            emit(e, bucket);
    }
}

/* Emits the sum over a group of a bucket's gradient: of this rank's ZeRO shard, or of all of it
 * without ZeRO. */
static void emit_sum_over(struct hd_emit *e, int bucket, enum hd_group_name group)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    struct hd_operand grad;

    if (p->shard_end == p->shard_begin)
        return;
    grad = hd_emit_bucket(e, bucket, HD_STATE_GRAD, p->shard_begin);
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = group,
                               .count = p->shard_end - p->shard_begin, .dtype = HD_F32),
                       HD_OPERANDS(comm, .received = grad, .sent = grad));
}

static bool has_replicas(const struct hd_emit *e, int bucket)
{
    const struct hd_registry *r = e->registry;

    return r->buckets[bucket].shard_count &&
           hd_mesh_find_group(&r->mesh, HD_GROUP_ZERO_REPLICATE, r->rank).size > 1;
}

/* Emits, with hybrid sharding, the sum of a bucket's gradient over the ranks that have the same
 * shard. */
static void emit_replicas(struct hd_emit *e, int bucket)
{
    if (has_replicas(e, bucket))
        emit_sum_over(e, bucket, HD_GROUP_ZERO_REPLICATE);
}

/* A gradient shard of a bucket that is being reduced in bf16. */
struct travelling {
    struct hd_operand grad, wire;
    int64_t count;
    int unit;
};

static struct travelling emit_departure(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    const int64_t count = p->shard_end - p->shard_begin;
    const struct travelling t = {.grad = hd_emit_bucket(e, bucket, HD_STATE_GRAD, p->shard_begin),
                                 .wire = hd_emit_wire(e, bucket, count),
                                 .count = count,
                                 .unit = p->unit};

    (void)hd_emit_cast(
        e, HD_ARGS(cast, .N = count, .inp_dtype = HD_F32, .out_dtype = e->options->wire),
        HD_OPERANDS(cast, .out = t.wire, .inp = t.grad));
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = HD_GROUP_ZERO_REPLICATE,
                               .count = count, .dtype = e->options->wire),
                       HD_OPERANDS(comm, .received = t.wire, .sent = t.wire));
    return t;
}

static void emit_arrival(struct hd_emit *e, const struct travelling *t)
{
    e->unit = t->unit;
    (void)hd_emit_cast(
        e, HD_ARGS(cast, .N = t->count, .inp_dtype = e->options->wire, .out_dtype = HD_F32),
        HD_OPERANDS(cast, .out = t->grad, .inp = t->wire));
}

/* Emits the sums of emit_replicas for all buckets in the encoding of train.grad_reduce_dtype. A
 * bucket's reduction overlaps with the rounding of the next bucket; at most two reductions are in
 * flight. */
static void emit_replicas_in_bf16(struct hd_emit *e)
{
    struct travelling before = {.count = 0};

    for (int bucket = 0; bucket < e->registry->bucket_count; bucket++) {
        const struct hd_bucket *p = &e->registry->buckets[bucket];
        struct travelling next;

        if (!p->trainable || !p->is_local || !has_replicas(e, bucket) ||
            p->shard_end == p->shard_begin)
            continue;
        e->unit = p->unit;
        next = emit_departure(e, bucket);
        if (before.count)
            emit_arrival(e, &before);
        before = next;
    }
    if (before.count)
        emit_arrival(e, &before);
}

/* Emits the sum of the two gradients of a tied weight that the pipeline stages of the embedding and
 * of the head computed. */
static void emit_tie(struct hd_emit *e, int bucket)
{
    if (e->registry->buckets[bucket].stage != e->registry->buckets[bucket].tie_stage)
        emit_sum_over(e, bucket, HD_GROUP_EMBEDDING);
}

/* Emits the zeroing of the gradient shard to which every micro-batch of a step adds (ZeRO 2, 3). */
static void emit_no_gradient(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    const int64_t count = p->shard_end - p->shard_begin;

    if (p->zero >= 2 && count > 0)
        (void)hd_emit_zero(
            e, HD_ARGS(zero, .size_bytes = count * (int64_t)sizeof(float)),
            HD_OPERANDS(zero, .out = hd_emit_bucket(e, bucket, HD_STATE_GRAD, p->shard_begin)));
}

/* Emits the zeroing of a global, unless it is empty. */
static void emit_zeroed(struct hd_emit *e, enum hd_global global)
{
    struct hd_operand all;

    if (hd_global_bytes(e->registry, global) == 0)
        return;
    all = hd_emit_global(e, global);
    (void)hd_emit_zero(e, HD_ARGS(zero, .size_bytes = all.store->size_bytes),
                       HD_OPERANDS(zero, .out = all));
}

/* Emits the start of a step: zeroes the sums of the step state, the routers' records, and the
 * maxima of fp8 and of attention scores. */
static void emit_start(struct hd_emit *e)
{
    (void)hd_emit_step_begin(
        e, HD_ARGS(step_begin, 0),
        HD_OPERANDS(step_begin, .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
    emit_zeroed(e, HD_GLOBAL_ROUTES);
    emit_zeroed(e, HD_GLOBAL_AMAX);
    emit_zeroed(e, HD_GLOBAL_SCORES);
}

/* Emits the maximum over all ranks of `count` numbers of a global that are at least 0. That is the
 * maximum of the step for every layout and division into micro-batches, because ranks without a
 * number have 0. */
static struct hd_operand emit_most(struct hd_emit *e, enum hd_global global, int64_t count)
{
    const struct hd_operand most = hd_emit_global(e, global);

    if (e->registry->mesh.world > 1)
        (void)hd_emit_comm(e,
                           HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = HD_GROUP_WORLD,
                                   .count = count, .dtype = HD_F32, .reduce = HD_COMM_MAX),
                           HD_OPERANDS(comm, .received = most, .sent = most));
    return most;
}

/* Emits the update of the amax histories of fp8 with the magnitudes of the whole step. */
static void emit_histories(struct hd_emit *e)
{
    const struct hd_registry *r = e->registry;
    const int64_t count = (int64_t)r->buffer_count * HD_AMAX_COUNT;

    if (count)
        (void)hd_emit_fp8_history(
            e, HD_ARGS(fp8_history, .N = count, .history_len = r->amax_history),
            HD_OPERANDS(fp8_history, .history = hd_emit_global(e, HD_GLOBAL_BUFFERS),
                        .seen = emit_most(e, HD_GLOBAL_AMAX, count),
                        .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
}

/* Emits the changes of the routers' select biases by the load of the step, which every rank has
 * after emit_exchange. */
static void emit_select_biases(struct hd_emit *e)
{
    const struct hd_registry *r = e->registry;

    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        struct hd_operand load;

        if (!p->state || !(p->rate > 0) || !hd_param_is_local(r, i))
            continue;
        e->unit = p->unit;
        load = hd_emit_global(e, HD_GLOBAL_ROUTES);
        load.offset_bytes =
            (p->router * (HD_ROUTE_WORDS + r->experts) + HD_ROUTE_WORDS) * (int64_t)sizeof(double);
        (void)hd_emit_route_bias(
            e, HD_ARGS(route_bias, .E = r->experts, .rate = (float)p->rate),
            HD_OPERANDS(route_bias,
                        .bias = hd_emit_bucket(e, p->bucket, HD_STATE_WEIGHT, p->offset),
                        .load = load, .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
    }
    e->unit = -1;
}

/* Emits the sum of `count` doubles of a global over a group's ranks. */
static void sum_global(struct hd_emit *e, enum hd_global global, int64_t count,
                       enum hd_group_name group)
{
    const struct hd_registry *r = e->registry;
    struct hd_operand sums;

    if (count == 0 || hd_mesh_find_group(&r->mesh, group, r->rank).size == 1)
        return;
    sums = hd_emit_global(e, global);
    (void)hd_emit_comm(
        e,
        HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = group, .count = count, .dtype = HD_F64),
        HD_OPERANDS(comm, .received = sums, .sent = sums));
}

/* Emits the sums of the routers' records and of those of further tokens. All tp ranks have equal
 * ones, and the records of other stages than a router's or the head's are zeros. */
static void sum_records(struct hd_emit *e, enum hd_group_name group)
{
    const struct hd_registry *r = e->registry;

    sum_global(e, HD_GLOBAL_ROUTES, r->routers * (HD_ROUTE_WORDS + r->experts), group);
    sum_global(e, HD_GLOBAL_FURTHER, r->further * HD_FURTHER_WORDS, group);
}

/* Emits the exchange of records that ends a step; to be called after emit_squares, whose sums the
 * record contains. All tp ranks of one (dp, cp) compute the same loss, and tp index 0 counts it; on
 * stages without the head the loss is 0. A rank sums only the segments that it counts (registry.h).
 * With one rank its record is the whole array of records, and nothing is gathered. */
static void emit_exchange(struct hd_emit *e)
{
    const struct hd_registry *r = e->registry;
    const bool alone = r->mesh.world == 1;
    struct hd_operand record = hd_emit_global(e, alone ? HD_GLOBAL_RECORDS : HD_GLOBAL_RECORD);
    struct hd_operand records = hd_emit_global(e, HD_GLOBAL_RECORDS);
    struct hd_operand block = hd_emit_global(e, HD_GLOBAL_STEP_STATE);

    (void)hd_emit_step_record(
        e, HD_ARGS(step_record, .chunks = r->chunk_count, .counts_loss = r->coord.tp == 0),
        HD_OPERANDS(step_record, .record = record, .block = block,
                    .sums = hd_emit_global(e, HD_GLOBAL_SUMS)));
    if (!alone)
        (void)hd_emit_comm(e,
                           HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_WORLD,
                                   .count = HD_EXCHANGE_WORDS, .dtype = HD_F64),
                           HD_OPERANDS(comm, .received = records, .sent = record));
    sum_records(e, HD_GROUP_DP_CP);
    sum_records(e, HD_GROUP_PP);
    (void)hd_emit_step_finish(e, HD_ARGS(step_finish, .ranks = r->mesh.world),
                              HD_OPERANDS(step_finish, .block = block, .records = records));
}

enum hd_status hd_optim_compile(const struct hd_registry *registry,
                                const struct hd_compile_options *options, struct hd_arena *arena,
                                struct hd_chunk **ret_chunk)
{
    struct hd_rec *rec =
        hd_rec_new(registry, &(struct hd_rec_shape){.mode = HD_RECORD_TRAIN}, arena);
    struct hd_emit *e = rec ? hd_emit_begin(rec, options) : NULL;

    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory to compile the update");
    e->unit = -1;
    e->call = HD_CALL_S;
    emit_start(e);
    emit_for_buckets(e, emit_no_gradient);
    e->call = HD_CALL_U;
    if (e->options->wire == HD_F32)
        emit_for_buckets(e, emit_replicas);
    else
        emit_replicas_in_bf16(e);
    emit_for_buckets(e, emit_tie);
    if (!computes_all_squares(registry))
        emit_no_sums(e, 0, registry->chunk_count);
    emit_for_buckets(e, emit_squares);
    emit_for_buckets(e, emit_shard_sums);
    e->unit = -1;
    emit_exchange(e);
    emit_histories(e);
    if (registry->qk_clip.threshold > 0)
        (void)emit_most(e, HD_GLOBAL_SCORES, registry->unit_count * registry->qk_clip.heads);
    emit_select_biases(e);
    emit_for_buckets(e, emit_update);
    hd_muon_emit(e, emit_finish);
    emit_for_buckets(e, emit_ema);
    e->call = HD_CALL_P;
    emit_for_buckets(e, emit_publish);
    return hd_emit_finish(e, ret_chunk);
}
