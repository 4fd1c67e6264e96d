/* search_bounds: lower bounds of a candidate's time and memory. A bound that is too high would drop
 * the best layout (search_test compares with every layout). */
#include <math.h>
#include <string.h>

#include "base/math.h"
#include "comm/nccl.h"
#include "optim/optim.h"
#include "plan/search_internal.h"

/* Least bytes moved per updated parameter, whatever the encodings: an update reads gradient, master
 * and moments, and writes master and moments. */
enum { UPDATE_BYTES = 12, UPDATE_MOMENT_BYTES = 2 };

/* Returns the least bytes of a parameter's moments in the job's encoding, and of its moving average,
 * which is sharded as they are. */
static double moments_bytes(const struct layout_search *s)
{
    return hd_optimizer_fewest_moments(s->asked->spec) *
               (s->asked->spec->moments == HD_JOB_MOMENTS_INT8 ? 1.0 : 4.0) +
           (hd_job_has_ema(s->asked->spec) ? 4 : 0);
}
/* Least ratio of the time of ZeRO-3 programs, added up from layer profiles, to that of programs
 * without ZeRO: which weights are gathered first depends on the chunk (step_cost_test). */
static const double gathered_share = 0.97;
/* Least ratio of the bytes saved per token with any micro-batch size to those with one sequence. */
static const double saved_share = 0.9;
/* Least ratio of the time of a micro-batch's blocks, per token, to that with the largest micro-batch
 * and without recompute: kernels and collectives take at most in proportion to their rows, but
 * their tiles and fusions may differ. */
static const double coarse_share = 0.9;
/* Least ratio of the work memory of a larger chunk to that of a chunk of one block: its programs
 * are different ones, in which fewer tensors may be live at the same time. */
static const double work_share = 0.9;

/* ---- blocks of several kinds ----
 *
 * An array of HD_LAYER_KINDS numbers has one per kind of block; those of kinds that the model does
 * not have are neither set nor read. */

static double least_of(const struct layout_search *s, const double of_kind[HD_LAYER_KINDS])
{
    double least = INFINITY;

    for (int i = 0; i < s->kind_count; i++)
        least = hd_min_real(least, of_kind[s->kinds[i]]);
    return least;
}

static double most_of(const struct layout_search *s, const double of_kind[HD_LAYER_KINDS])
{
    double most = -INFINITY;

    for (int i = 0; i < s->kind_count; i++)
        most = hd_max_real(most, of_kind[s->kinds[i]]);
    return most;
}

/* Returns the sum over the blocks of layers first to end - 1. */
static double sum_of(const struct layout_search *s, int64_t first, int64_t end,
                     const double of_kind[HD_LAYER_KINDS])
{
    double sum = 0;

    for (int i = 0; first < end && i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        sum += (s->kinds_before[end][kind] - s->kinds_before[first][kind]) * of_kind[kind];
    }
    return sum;
}

/* Returns the mean over all blocks of the model. */
static double mean_of_kinds(const struct layout_search *s, const double of_kind[HD_LAYER_KINDS])
{
    double mean = 0;

    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        mean += s->kinds_before[s->config.L][kind] / (double)s->config.L * of_kind[kind];
    }
    return mean;
}

/* Returns a lower bound of the sum over a stage's blocks, for the stage in which it is largest: it
 * is at least the mean over stages, and some stage has at least an even share of the blocks. */
static double even_share(const struct layout_search *s, int64_t pp,
                         const double of_kind[HD_LAYER_KINDS])
{
    return hd_max_real((double)hd_divide_up(s->config.L, pp) * least_of(s, of_kind),
                       (double)s->config.L / (double)pp * mean_of_kinds(s, of_kind));
}

/* The layers of a chunk: first to end - 1. */
struct layers {
    int64_t first, end;
};

static struct layers layers_of(const struct layout_search *s, const struct ordered *ordered,
                               int32_t chunk)
{
    const struct hd_units u = ordered->step.units[chunk];
    const int64_t first = u.first - HD_UNIT_FIRST_BLOCK, end = u.end - HD_UNIT_FIRST_BLOCK;

    return (struct layers){first > 0 ? first : 0, end < s->config.L ? end : s->config.L};
}

/* Returns the sum over all blocks of a stage. */
static double stage_sum(const struct layout_search *s, const struct ordered *ordered, int32_t stage,
                        const double of_kind[HD_LAYER_KINDS])
{
    const struct hd_pipeline *p = &ordered->step.pipeline;
    double sum = 0;

    for (int32_t k = 0; k < p->chunks / p->stages; k++) {
        const struct layers l = layers_of(s, ordered, hd_pipeline_chunk(p, stage, k));

        sum += sum_of(s, l.first, l.end, of_kind);
    }
    return sum;
}

static bool stage_has_kind(const struct layout_search *s, const struct ordered *ordered,
                           int32_t stage, int kind)
{
    const struct hd_pipeline *p = &ordered->step.pipeline;

    for (int32_t k = 0; k < p->chunks / p->stages; k++) {
        const struct layers l = layers_of(s, ordered, hd_pipeline_chunk(p, stage, k));

        if (l.first < l.end && s->kinds_before[l.end][kind] > s->kinds_before[l.first][kind])
            return true;
    }
    return false;
}

/* Returns the largest sum over the blocks of a chunk of the stage, except for the first `skipped`
 * blocks of each chunk. */
static double largest_chunk(const struct layout_search *s, const struct ordered *ordered,
                            int32_t stage, int64_t skipped, const double of_kind[HD_LAYER_KINDS])
{
    const struct hd_pipeline *p = &ordered->step.pipeline;
    double most = 0;

    for (int32_t k = 0; k < p->chunks / p->stages; k++) {
        const struct layers l = layers_of(s, ordered, hd_pipeline_chunk(p, stage, k));

        most = hd_max_real(most, sum_of(s, l.first + skipped, l.end, of_kind));
    }
    return most;
}

/* ---- parameters of a rank ---- */

/* Returns the number of ranks over which a block's experts are split. */
static double expert_ranks(const struct hd_layout_sizes *z)
{
    return z->ep > 1 ? (double)z->ep : 1;
}

/* Returns the number of ranks over which ZeRO shards a parameter; experts: the parameter of an
 * expert, which only the ranks that hold this expert share. */
static double shards_of(const struct hd_layout_sizes *z, bool experts)
{
    const double shards = z->zero_shard ? (double)z->zero_shard : (double)(z->dp * z->cp);

    if (!z->zero)
        return 1;
    return experts ? shards / expert_ranks(z) : shards;
}

/* Computes the number of a block's parameters that one rank updates, by kind. */
static void block_updated(const struct layout_search *s, const struct hd_layout_sizes *z,
                          double ret_updated[HD_LAYER_KINDS])
{
    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        ret_updated[kind] =
            ((double)s->block_parameters[kind] / shards_of(z, false) +
             (double)s->block_experts[kind] / expert_ranks(z) / shards_of(z, true)) /
            (double)z->tp;
    }
}

/* ---- time ---- */

double search_ideal_seconds(const struct layout_search *s)
{
    const struct hd_rates *r = &s->asked->cluster->rates;
    const double tokens = (double)s->asked->spec->global_batch * (double)s->asked->spec->context;
    double fastest = hd_max_real(r->fp8_flops, hd_max_real(r->half_flops, r->single_flops));

    fastest = hd_max_real(fastest, r->most_flops);
    return s->model.flops_per_token * tokens / (s->asked->devices * fastest);
}

/* Returns the seconds of F, B and W of a layer profile in one micro-batch; of F alone if only a
 * part of the model trains. */
static double profile_seconds(const struct layout_search *s, const struct hd_layer_profile *p)
{
    const int calls = s->tuned ? HD_LAYER_PROFILE_F + 1 : HD_LAYER_PROFILE_CALLS;
    double seconds = 0;

    for (int call = 0; call < calls; call++)
        seconds += p->time[call][0].run;
    return seconds;
}

/* Computes a lower bound of a block's seconds, by kind. A chunk of n blocks of one kind takes base
 * + n blocks, so at least n times the lesser of what a block takes alone and beside others. */
static void block_seconds(const struct layout_search *s, const struct hd_layer_profiles *p,
                          double ret_seconds[HD_LAYER_KINDS])
{
    double base[HD_LAYER_KINDS], least;

    for (int i = 0; i < s->kind_count; i++)
        base[s->kinds[i]] = profile_seconds(s, &p->kind[s->kinds[i]].base);
    least = hd_min_real(least_of(s, base), 0);
    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        ret_seconds[kind] = profile_seconds(s, &p->kind[kind].block);
        if (p->has_inner)
            ret_seconds[kind] =
                hd_min_real(ret_seconds[kind], profile_seconds(s, &p->kind[kind].inner));
        ret_seconds[kind] += least;
    }
}

static double micro_batches(const struct layout_search *s, const struct candidate *c)
{
    const int64_t dp = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);

    return (double)(s->asked->spec->global_batch / (dp * c->micro_batch));
}

/* Returns a lower bound of a step's seconds: the time of all micro-batches on the stage whose
 * blocks take longest. */
double search_blocks_bound(const struct layout_search *s, const struct candidate *c)
{
    double seconds[HD_LAYER_KINDS];

    block_seconds(s, c->blocks, seconds);
    return micro_batches(s, c) * even_share(s, c->pp, seconds);
}

double search_coarse_bound(const struct layout_search *s, const struct candidate *c,
                           const struct candidate *reference)
{
    const double part = (double)c->micro_batch / (double)reference->micro_batch;
    double seconds[HD_LAYER_KINDS];

    block_seconds(s, reference->blocks, seconds);
    return coarse_share * part * micro_batches(s, c) * even_share(s, c->pp, seconds);
}

/* Returns a lower bound of a step's seconds: the longest over the stages. A stage starts when the
 * first micro-batch has passed the chunks before it; and after its last backward, unless B and W
 * are split, gradients pass back through those chunks. */
double search_schedule_bound(const struct layout_search *s, const struct candidate *c,
                             const struct ordered *ordered)
{
    const double M = micro_batches(s, c);
    double seconds[HD_LAYER_KINDS], times[HD_LAYER_KINDS], least, most = 0;

    block_seconds(s, c->blocks, seconds);
    least = least_of(s, seconds);
    for (int i = 0; i < s->kind_count; i++) /* seconds in those of the fastest block */
        times[s->kinds[i]] = least > 0 ? seconds[s->kinds[i]] / least : 1;
    for (int32_t i = 0; i < ordered->step.pipeline.stages; i++) {
        const double before =
            ordered->step.order.split ? 0 : sum_of(s, 0, ordered->stages[i].before, times);

        most = hd_max_real(most, (M * stage_sum(s, ordered, i, times) + before) * least);
    }
    return most;
}

/* Adds to the walked time a lower bound of the update, which starts when all stages have ended;
 * some stage has at least an even share of the parameters. */
double search_variant_bound(const struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z)
{
    const bool away = z->offload == HD_JOB_OFFLOAD_OPTIMIZER;
    const int bytes =
        UPDATE_BYTES + UPDATE_MOMENT_BYTES * hd_optimizer_fewest_moments(s->asked->spec);
    const struct hd_rates *r = &s->asked->cluster->rates;
    const double rate = hd_max_real(r->memory_bytes_per_s, r->most_update_bytes_per_s);
    double updated[HD_LAYER_KINDS], update = 0;

    block_updated(s, z, updated);
    if (!away)
        update = (double)s->config.L / (double)z->pp * mean_of_kinds(s, updated) * bytes / rate;
    return c->bound_s * (z->zero == 3 ? gathered_share : 1) + update;
}

/* ---- memory ---- */

/* Returns the device bytes that a rank holds per parameter: weights, gradients and its share of the
 * optimizer state (registry.h). */
static double state_bytes(const struct layout_search *s, const struct hd_layout_sizes *z,
                          bool experts)
{
    const double shards = shards_of(z, experts);
    const bool keep_fp32 = z->precision == HD_JOB_PRECISION_FP32;
    const bool away =
        z->offload == HD_JOB_OFFLOAD_OPTIMIZER && s->asked->cluster->traits.memory_bytes;
    const double moments = away ? 0 : moments_bytes(s);
    const double master = keep_fp32 || !away ? 4 : 0, copy = keep_fp32 ? 0 : 2, gradient = 4;

    switch (z->zero) {
    case 1:
        return gradient + (keep_fp32 ? master : copy) +
               (moments + (keep_fp32 ? 0 : master)) / shards;
    case 2:
        return (keep_fp32 ? master : copy) +
               (gradient + moments + (keep_fp32 ? 0 : master)) / shards;
    case 3:
        return (master + copy + gradient + moments) / shards;
    default:
        return master + copy + gradient + moments;
    }
}

double search_host_bytes(const struct layout_search *s, const struct hd_layout_sizes *z)
{
    const double moments = moments_bytes(s);
    const double master = z->precision == HD_JOB_PRECISION_FP32 ? 0 : 4;
    double updated[HD_LAYER_KINDS];

    block_updated(s, z, updated);
    return even_share(s, z->pp, updated) * (moments + master);
}

/* Returns a lower bound of the bytes of a parameter that does not train: one copy in the compute
 * encoding whatever the ZeRO stage, or quantized codes in a block. */
static double frozen_bytes(const struct layout_search *s, const struct hd_layout_sizes *z,
                           bool in_block)
{
    const enum hd_job_model_weights weights = s->asked->spec->model_weights;

    if (!in_block || weights == HD_JOB_MODEL_WEIGHTS_PLAIN)
        return z->precision == HD_JOB_PRECISION_FP32 ? 4 : 2;
    return weights == HD_JOB_MODEL_WEIGHTS_NF4 ? 0.5 : 1;
}

/* Computes the bytes of a block's parameters and their optimizer state on one rank, by kind. */
static void block_state(const struct layout_search *s, const struct hd_layout_sizes *z,
                        double ret_state[HD_LAYER_KINDS])
{
    const double frozen = frozen_bytes(s, z, true), of_expert = state_bytes(s, z, true),
                 of_other = state_bytes(s, z, false);

    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];
        const double experts =
            (double)s->block_experts[kind] * of_expert + (double)s->experts_frozen[kind] * frozen;

        ret_state[kind] = ((double)s->block_parameters[kind] * of_other +
                           (double)s->block_frozen[kind] * frozen + experts / expert_ranks(z)) /
                          (double)z->tp;
    }
}

/* Returns the bytes of the embedding's and the head's parameters and optimizer state, on the stages
 * that have them. */
static double ends_state(const struct layout_search *s, const struct hd_layout_sizes *z,
                         const struct hd_pipeline *p, int32_t stage)
{
    int64_t parameters = 0, frozen = 0;

    if (hd_pipeline_stage(p, 0) == stage) {
        parameters += s->first_parameters;
        frozen += s->first_frozen;
    }
    if (hd_pipeline_stage(p, p->chunks - 1) == stage) {
        parameters += s->last_parameters;
        frozen += s->last_frozen;
    }
    return ((double)parameters * state_bytes(s, z, false) +
            (double)frozen * frozen_bytes(s, z, false)) /
           (double)z->tp;
}

/* Returns the bytes that a chunk saves for one micro-batch: those of its blocks, and those beside
 * them. 0 if trained parts may differ from block to block, which gives no bound. */
static double slot_bytes(const struct layout_search *s, double blocks, double beside)
{
    return s->differ ? 0 : hd_max_real(0, blocks + beside);
}

/* Bytes by kind: what a block saves and defers for W; `base`: what a chunk saves and defers besides
 * its blocks. */
struct kind_bytes {
    double saved[HD_LAYER_KINDS], deferred[HD_LAYER_KINDS];
    double base_saved[HD_LAYER_KINDS], base_deferred[HD_LAYER_KINDS];
};

static struct kind_bytes bytes_by_kind(const struct layout_search *s,
                                       const struct hd_layer_profiles *p)
{
    struct kind_bytes b;

    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        b.saved[kind] = (double)p->kind[kind].block.saved_bytes;
        b.deferred[kind] = (double)p->kind[kind].block.deferred_bytes;
        b.base_saved[kind] = (double)p->kind[kind].base.saved_bytes;
        b.base_deferred[kind] = (double)p->kind[kind].base.deferred_bytes;
    }
    return b;
}

/* Returns a lower bound of the bytes that a chunk of `blocks` blocks of any kinds saves. With
 * recompute segments, `blocks` counts blocks that begin one. */
static double chunk_saved(const struct layout_search *s, const struct hd_layer_profiles *p,
                          double blocks)
{
    const struct kind_bytes b = bytes_by_kind(s, p);

    return slot_bytes(s, blocks * least_of(s, b.saved), hd_min_real(0, least_of(s, b.base_saved)));
}

/* Returns an upper bound of the bytes that a chunk of `blocks` blocks defers for W. */
static double most_deferred(const struct layout_search *s, const struct hd_layer_profiles *p,
                            double blocks)
{
    struct kind_bytes b = bytes_by_kind(s, p);

    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        b.deferred[kind] =
            hd_max_real(b.deferred[kind], (double)p->kind[kind].inner.deferred_bytes);
    }
    return slot_bytes(s, blocks * most_of(s, b.deferred),
                      hd_max_real(0, most_of(s, b.base_deferred)));
}

/* Returns the number of blocks in a stage's largest chunk whose backward is whole. If only an
 * adapter trains, nothing before the model's first block needs a gradient; that block's backward is
 * shorter and saves less, so it is not counted. before: blocks of the model before the stage. */
static double whole_blocks(const struct layout_search *s, double blocks, int32_t before)
{
    return s->tuned && before == 0 ? hd_max_real(0, blocks - 1) : blocks;
}

/* Returns a lower bound of the bytes of a stage's input slots. On a stage without the embedding,
 * the rows that enter a chunk lie in a stage-I/O slot until backward has read them, and the first
 * block saves that much less than others. If B and W are split, the rows may be released before W,
 * which gives no bound. */
static double stage_io_bytes_of(const struct layout_search *s, const struct hd_layer_profiles *p,
                                const struct ordered *ordered, int32_t stage)
{
    const struct kind_bytes b = bytes_by_kind(s, p);
    const double less = -most_of(s, b.base_saved);

    if (s->differ || stage == 0 || ordered->step.order.split)
        return 0;
    return ordered->stages[stage].kept *
           hd_max_real(0, hd_min_real(less, (double)p->stage_io_bytes));
}

/* Returns a lower bound of the work memory of a stage, for the kind of its blocks that needs
 * most. */
static double stage_work(const struct layout_search *s, const struct hd_layer_profiles *p,
                         const struct ordered *ordered, int32_t stage)
{
    double most = 0;

    for (int i = 0; !s->differ && i < s->kind_count; i++) {
        const int kind = s->kinds[i];

        if (stage_has_kind(s, ordered, stage, kind))
            most = hd_max_real(most, (double)p->kind[kind].base.work_bytes);
    }
    return work_share * most;
}

/* Returns a lower bound of the work memory of any chunk that has a block. */
static double block_work(const struct layout_search *s, const struct hd_layer_profiles *p)
{
    double work[HD_LAYER_KINDS];

    for (int i = 0; i < s->kind_count; i++)
        work[s->kinds[i]] = (double)p->kind[s->kinds[i]].base.work_bytes;
    return s->differ ? 0 : work_share * least_of(s, work);
}

/* ---- segments of recompute ---- */

/* Least number of recompute segments of a chunk, and the blocks of its longest one. Segments begin
 * at multiples of `segment`, and with the chunk. */
struct segments {
    int64_t count, longest;
};

static struct segments segments_of(int64_t first, int64_t blocks, int64_t segment)
{
    const int64_t last = first + blocks - 1, borders = last / segment - first / segment;
    const int64_t head = (first / segment + 1) * segment - first,
                  tail = last - last / segment * segment + 1;
    struct segments x = {1 + borders, blocks};

    if (blocks <= 0)
        return (struct segments){0, 0};
    if (borders > 0)
        x.longest = borders > 1 ? segment : head > tail ? head : tail;
    return x;
}

/* Computes lower bounds for a stage's largest chunk with recompute segments: the bytes saved in a
 * slot; and the work memory that backward of its longest segment needs beyond that of a single
 * block. The latter is all that forward would save of the segment without recompute, except for its
 * last block, whose backward may begin before the rest is recomputed. If B and W are split, what W
 * needs of the segment lies in deferred slots instead of work memory. */
static void segment_bytes(const struct layout_search *s, const struct candidate *c,
                          const struct ordered *ordered, const struct hd_layer_profiles *profiles,
                          int32_t stage, double *ret_saved, double *ret_work)
{
    const struct hd_pipeline *p = &ordered->step.pipeline;
    *ret_saved = *ret_work = 0;
    for (int32_t k = 0; k < p->chunks / p->stages; k++) {
        const int32_t chunk = hd_pipeline_chunk(p, stage, k);
        const struct hd_units u = ordered->step.units[chunk];
        const int64_t first = u.first - HD_UNIT_FIRST_BLOCK + (chunk == 0);
        const int64_t blocks = u.end - u.first - (chunk == 0) - (chunk == p->chunks - 1);
        const struct segments x = segments_of(first, blocks, c->segment);
        const double again =
            whole_blocks(s, (double)(x.longest - 1), ordered->stages[stage].before);
        const double deferred =
            ordered->step.order.split ? most_deferred(s, profiles, (double)x.longest) : 0;

        *ret_saved = hd_max_real(*ret_saved, chunk_saved(s, profiles, (double)x.count));
        if (x.longest > 1 && c->plain)
            *ret_work =
                hd_max_real(*ret_work, saved_share * chunk_saved(s, c->plain, again) - deferred);
    }
}

/* Returns a lower bound of a process's GPU memory beside its reservations.
 * hd_rank_program_gpu_overhead counts the mesh's groups, at least one per axis, and the channels
 * between stages, at least one in each direction; if a part of the model trains, perhaps only one,
 * since no gradient is sent to a stage where nothing trains. Connections are bounded by those of
 * the world, which gathers. */
static double overhead_bytes(const struct layout_search *s, const struct hd_layout_sizes *z)
{
    const struct hd_traits *traits = &s->asked->cluster->traits;
    const int64_t axes[] = {z->tp, z->cp, z->dp, z->pp};
    const int64_t world = z->tp * z->cp * z->dp * z->pp;
    const struct hd_comm_nccl_shape all = {.uses = HD_COMM_USE_GATHER,
                                           .size = (int)world,
                                           .stride = 1,
                                           .blocks =
                                               hd_comm_nccl_blocks(false, traits->multiprocessors)};
    int communicators = 1;

    if (!hd_traits_is_cuda(traits) || world == 1)
        return (double)traits->process_bytes;
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        communicators += axes[i] > 1 && axes[i] < world;
    if (z->pp > 1)
        communicators += s->tuned ? 1 : 2;
    return (double)traits->process_bytes + communicators * (double)traits->communicator_bytes +
           (double)hd_comm_nccl_connection_bytes(&all) + (double)hd_comm_nccl_bytes((int)world);
}

/* overhead: overhead_bytes of the sizes. */
static struct hd_search_rejected rejected(const struct candidate *c,
                                          const struct hd_layout_sizes *z, double overhead,
                                          int32_t stage, double state, double kept)
{
    const double all = state + kept + overhead;

    return (struct hd_search_rejected){.sizes = *z,
                                       .step_s = c->bound_s,
                                       .stage = stage,
                                       .needed_bytes = (int64_t)all,
                                       .activations = kept / all};
}

/* Bounds the memory of a stage with an even share of the blocks. When F of a micro-batch ends on
 * it, all blocks hold what backward needs. With a fraction of the reference's rows the work memory
 * is at least that fraction; with more rows it is at least as large. */
struct hd_search_rejected search_family_memory(const struct layout_search *s,
                                               const struct candidate *c,
                                               const struct hd_layout_sizes *z,
                                               const struct hd_layer_profiles *reference)
{
    const int64_t blocks = hd_divide_up(s->config.L, c->pp);
    const int64_t keep = c->segment > 1 ? hd_divide_up(blocks, c->segment) : blocks;
    const double rows = (double)c->micro_batch / (double)c->cp;
    const double whole = c->segment > 1 ? (double)keep : whole_blocks(s, (double)keep, 0);
    const double kept = saved_share * chunk_saved(s, reference, whole) * rows;
    const double work = block_work(s, reference) * hd_min_real(1, rows);
    double state[HD_LAYER_KINDS];

    block_state(s, z, state);
    return rejected(c, z, overhead_bytes(s, z), 0, (double)blocks * least_of(s, state) + work,
                    kept);
}

struct hd_search_rejected search_least_memory(const struct layout_search *s,
                                              const struct candidate *c,
                                              const struct hd_layout_sizes *z,
                                              const struct ordered *ordered,
                                              const struct hd_layer_profiles *profiles)
{
    const struct kind_bytes bytes = bytes_by_kind(s, profiles);
    const double overhead = overhead_bytes(s, z);
    struct hd_search_rejected most = {0};
    double state[HD_LAYER_KINDS];

    block_state(s, z, state);
    for (int32_t i = 0; i < ordered->step.pipeline.stages; i++) {
        const struct ordered_stage *stage = &ordered->stages[i];
        const double ends = ends_state(s, z, &ordered->step.pipeline, i);
        const double whole = whole_blocks(s, stage->largest, stage->before);
        const int64_t skipped = stage->largest - (int64_t)whole;
        const double deferred = slot_bytes(s, largest_chunk(s, ordered, i, skipped, bytes.deferred),
                                           hd_min_real(0, least_of(s, bytes.base_deferred)));
        double of_slot = slot_bytes(s, largest_chunk(s, ordered, i, skipped, bytes.saved),
                                    hd_min_real(0, least_of(s, bytes.base_saved)));
        double work = 0, slots;
        struct hd_search_rejected r;

        if (c->segment > 1)
            segment_bytes(s, c, ordered, profiles, i, &of_slot, &work);
        if (whole > 0)
            /* of a model's first block whose backward is not whole, no kind is known */
            work += skipped ? block_work(s, profiles) : stage_work(s, profiles, ordered, i);
        slots = stage->kept * of_slot + stage->deferred * deferred +
                stage_io_bytes_of(s, profiles, ordered, i);
        r = rejected(c, z, overhead, i, stage_sum(s, ordered, i, state) + ends + work, slots);

        if (i == 0 || r.needed_bytes > most.needed_bytes)
            most = r;
    }
    return most;
}
