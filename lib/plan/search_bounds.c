/* search_bounds: lower bounds of a candidate's time and memory. A bound that is too high would drop
 * the best layout (search_test compares with every layout). */
#include <string.h>

#include "base/math.h"
#include "comm/nccl.h"
#include "plan/search_internal.h"

/* Least bytes moved per updated parameter, whatever the encodings: an update reads gradient, master
 * and moments, and writes master and moments. */
enum { UPDATE_BYTES = 16 };
/* Least ratio of the time of ZeRO-3 programs, added up from layer profiles, to that of programs
 * without ZeRO: which weights are gathered first depends on the chunk (step_cost_test). */
static const double gathered_share = 0.97;
/* Least ratio of the bytes saved per token with any micro-batch size to those with one sequence. */
static const double saved_share = 0.9;
/* Least ratio of the work memory of a larger chunk to that of a chunk of one block: its programs
 * are different ones, in which fewer tensors may be live at the same time. */
static const double work_share = 0.9;

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

/* Returns the number of a block's parameters that one rank updates. */
static double block_updated(const struct layout_search *s, const struct hd_layout_sizes *z)
{
    return ((double)s->block_parameters / shards_of(z, false) +
            (double)s->block_experts / expert_ranks(z) / shards_of(z, true)) /
           (double)z->tp;
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

/* Returns the seconds, as profile_seconds, of a block that continues a recompute segment. */
static double inner_seconds(const struct layout_search *s, const struct hd_layer_profiles *p)
{
    const double inner = profile_seconds(s, &p->inner);

    return p->has_windowed ? hd_min_real(inner, profile_seconds(s, &p->inner_windowed)) : inner;
}

/* Returns a lower bound of a block's seconds. A chunk of n blocks takes base + n blocks, so at
 * least n times the lesser of what a block takes alone and beside others. */
static double block_seconds(const struct layout_search *s, const struct hd_layer_profiles *p)
{
    const double base = profile_seconds(s, &p->profile[HD_LAYER_PROFILE_BASE]);
    double least = profile_seconds(s, &p->profile[HD_LAYER_PROFILE_BLOCK]);

    if (p->has_windowed)
        least = hd_min_real(least, profile_seconds(s, &p->windowed));
    if (p->has_inner)
        least = hd_min_real(least, inner_seconds(s, p));
    return least + hd_min_real(base, 0);
}

static double micro_batches(const struct layout_search *s, const struct candidate *c)
{
    const int64_t dp = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);

    return (double)(s->asked->spec->global_batch / (dp * c->micro_batch));
}

/* Returns a lower bound of a step's seconds: the time that the stage with the most blocks, at least
 * an even share of them, takes for all micro-batches. */
double search_blocks_bound(const struct layout_search *s, const struct candidate *c)
{
    return micro_batches(s, c) * (double)hd_divide_up(s->config.L, c->pp) *
           block_seconds(s, c->blocks);
}

/* Returns a lower bound of a step's seconds: the longest over the stages. A stage starts when the
 * first micro-batch has passed the chunks before it; and after its last backward, unless B and W
 * are split, gradients pass back through those chunks. */
double search_schedule_bound(const struct layout_search *s, const struct candidate *c,
                             const struct ordered *ordered)
{
    const double block = block_seconds(s, c->blocks), M = micro_batches(s, c);
    double most = 0;

    for (int32_t i = 0; i < ordered->shared.pipeline.stages; i++) {
        const struct ordered_stage *stage = &ordered->stages[i];
        const double before = ordered->shared.order.split ? 0 : stage->before;

        if (most < (M * stage->blocks + before) * block)
            most = (M * stage->blocks + before) * block;
    }
    return most;
}

/* Adds to the walked time a lower bound of the update, which starts when all stages have ended;
 * some stage has at least an even share of the parameters. */
double search_variant_bound(const struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z)
{
    const bool away = strcmp(z->offload, "optimizer") == 0;
    const double parameters = (double)s->config.L / (double)z->pp * block_updated(s, z);
    const struct hd_rates *r = &s->asked->cluster->rates;
    const double update = away ? 0
                               : parameters * UPDATE_BYTES /
                                     hd_max_real(r->memory_bytes_per_s, r->most_update_bytes_per_s);

    return c->bound_s * (z->zero == 3 ? gathered_share : 1) + update;
}

/* ---- memory ---- */

/* Returns the device bytes that a rank holds per parameter: weights, gradients and its share of the
 * optimizer state (registry.h). */
static double state_bytes(const struct layout_search *s, const struct hd_layout_sizes *z,
                          bool experts)
{
    const double shards = shards_of(z, experts);
    const bool keep_fp32 = strcmp(z->precision, "fp32") == 0;
    const bool away =
        strcmp(z->offload, "optimizer") == 0 && s->asked->cluster->traits.memory_bytes;
    const double moments = away ? 0 : strcmp(s->asked->spec->moments, "8bit") == 0 ? 2 : 8;
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
    const double moments = strcmp(s->asked->spec->moments, "8bit") == 0 ? 2 : 8;
    const double master = strcmp(z->precision, "fp32") == 0 ? 0 : 4;

    return (double)hd_divide_up(s->config.L, z->pp) * block_updated(s, z) * (moments + master);
}

/* Returns a lower bound of the bytes of a parameter that does not train: one copy in the compute
 * encoding whatever the ZeRO stage, or quantized codes in a block. */
static double frozen_bytes(const struct layout_search *s, const struct hd_layout_sizes *z,
                           bool in_block)
{
    const char *weights = s->asked->spec->model_weights;

    if (!in_block || strcmp(weights, "plain") == 0)
        return strcmp(z->precision, "fp32") == 0 ? 4 : 2;
    return strcmp(weights, "nf4") == 0 ? 0.5 : 1;
}

/* Returns the bytes of a block's parameters and their optimizer state on one rank. */
static double block_state(const struct layout_search *s, const struct hd_layout_sizes *z)
{
    const double frozen = frozen_bytes(s, z, true);
    const double experts =
        (double)s->block_experts * state_bytes(s, z, true) + (double)s->experts_frozen * frozen;

    return ((double)s->block_parameters * state_bytes(s, z, false) +
            (double)s->block_frozen * frozen + experts / expert_ranks(z)) /
           (double)z->tp;
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
static double slot_bytes(const struct layout_search *s, double blocks, double of_block,
                         double beside)
{
    return s->differ ? 0 : hd_max_real(0, blocks * of_block + beside);
}

/* Returns a lower bound of the bytes that a chunk of `blocks` blocks saves. Blocks with and without
 * a window save at least the lesser of the two. With recompute segments, `blocks` counts blocks
 * that begin one. */
static double chunk_saved(const struct layout_search *s, const struct hd_layer_profiles *p,
                          double blocks)
{
    const double block = (double)p->profile[HD_LAYER_PROFILE_BLOCK].saved_bytes;
    const double least =
        p->has_windowed ? hd_min_real(block, (double)p->windowed.saved_bytes) : block;

    return slot_bytes(s, blocks, least,
                      hd_min_real(0, (double)p->profile[HD_LAYER_PROFILE_BASE].saved_bytes));
}

/* Returns a lower bound of the bytes that a chunk defers for W. */
static double chunk_deferred(const struct layout_search *s, const struct hd_layer_profiles *p,
                             double blocks)
{
    const double block = (double)p->profile[HD_LAYER_PROFILE_BLOCK].deferred_bytes;
    const double least =
        p->has_windowed ? hd_min_real(block, (double)p->windowed.deferred_bytes) : block;

    return slot_bytes(s, blocks, least,
                      hd_min_real(0, (double)p->profile[HD_LAYER_PROFILE_BASE].deferred_bytes));
}

/* Returns an upper bound of the bytes that a chunk defers for W. */
static double most_deferred(const struct layout_search *s, const struct hd_layer_profiles *p,
                            double blocks)
{
    const double block = (double)p->profile[HD_LAYER_PROFILE_BLOCK].deferred_bytes;
    const double most =
        hd_max_real(block, hd_max_real((double)p->windowed.deferred_bytes,
                                       hd_max_real((double)p->inner.deferred_bytes,
                                                   (double)p->inner_windowed.deferred_bytes)));

    return slot_bytes(s, blocks, most,
                      hd_max_real(0, (double)p->profile[HD_LAYER_PROFILE_BASE].deferred_bytes));
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
    const double less = -(double)p->profile[HD_LAYER_PROFILE_BASE].saved_bytes;

    if (s->differ || stage == 0 || ordered->shared.order.split)
        return 0;
    return ordered->stages[stage].kept *
           hd_max_real(0, hd_min_real(less, (double)p->stage_io_bytes));
}

/* Returns a lower bound of the work memory of any chunk that has a block. */
static double block_work(const struct layout_search *s, const struct hd_layer_profiles *p)
{
    return s->differ ? 0 : work_share * (double)p->profile[HD_LAYER_PROFILE_BASE].work_bytes;
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
    const struct hd_pipeline *p = &ordered->shared.pipeline;
    *ret_saved = *ret_work = 0;
    for (int32_t k = 0; k < p->chunks / p->stages; k++) {
        const int32_t chunk = hd_pipeline_chunk(p, stage, k);
        const struct hd_units u = ordered->shared.units[chunk];
        const int64_t first = u.first - HD_UNIT_FIRST_BLOCK + (chunk == 0);
        const int64_t blocks = u.end - u.first - (chunk == 0) - (chunk == p->chunks - 1);
        const struct segments x = segments_of(first, blocks, c->segment);
        const double again =
            whole_blocks(s, (double)(x.longest - 1), ordered->stages[stage].before);
        const double deferred =
            ordered->shared.order.split ? most_deferred(s, profiles, (double)x.longest) : 0;

        *ret_saved = hd_max_real(*ret_saved, chunk_saved(s, profiles, (double)x.count));
        if (x.longest > 1 && c->plain)
            *ret_work =
                hd_max_real(*ret_work, saved_share * chunk_saved(s, c->plain, again) - deferred);
    }
}

/* Returns a lower bound of a process's GPU memory beside its reservations.
 * hd_rank_program_gpu_overhead counts the mesh's groups, at least one per axis, and the channels
 * between stages, at least one in each direction; if a part of the model trains, perhaps only one,
 * since no gradient is sent to a stage where nothing trains. */
static double overhead_bytes(const struct layout_search *s, const struct hd_layout_sizes *z)
{
    const struct hd_traits *traits = &s->asked->cluster->traits;
    const int64_t axes[] = {z->tp, z->cp, z->dp, z->pp};
    const int64_t world = z->tp * z->cp * z->dp * z->pp;
    int communicators = 1;

    if (!hd_traits_is_cuda(traits) || world == 1)
        return (double)traits->process_bytes;
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        communicators += axes[i] > 1 && axes[i] < world;
    if (z->pp > 1)
        communicators += s->tuned ? 1 : 2;
    return (double)traits->process_bytes + communicators * (double)traits->communicator_bytes +
           (double)hd_comm_nccl_bytes((int)world);
}

static struct hd_search_rejected rejected(const struct layout_search *s, const struct candidate *c,
                                          const struct hd_layout_sizes *z, int32_t stage,
                                          double state, double kept)
{
    const double all = state + kept + overhead_bytes(s, z);

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

    return rejected(s, c, z, 0, (double)blocks * block_state(s, z) + work, kept);
}

struct hd_search_rejected search_least_memory(const struct layout_search *s,
                                              const struct candidate *c,
                                              const struct hd_layout_sizes *z,
                                              const struct ordered *ordered,
                                              const struct hd_layer_profiles *profiles)
{
    const double state = block_state(s, z);
    struct hd_search_rejected most = {0};

    for (int32_t i = 0; i < ordered->shared.pipeline.stages; i++) {
        const struct ordered_stage *stage = &ordered->stages[i];
        const double ends = ends_state(s, z, &ordered->shared.pipeline, i);
        const double whole = whole_blocks(s, stage->largest, stage->before);
        double of_slot = chunk_saved(s, profiles, whole), work = 0, slots;
        struct hd_search_rejected r;

        if (c->segment > 1)
            segment_bytes(s, c, ordered, profiles, i, &of_slot, &work);
        if (whole > 0)
            work += block_work(s, profiles);
        slots = stage->kept * of_slot + stage->deferred * chunk_deferred(s, profiles, whole) +
                stage_io_bytes_of(s, profiles, ordered, i);
        r = rejected(s, c, z, i, stage->blocks * state + ends + work, slots);

        if (i == 0 || r.needed_bytes > most.needed_bytes)
            most = r;
    }
    return most;
}
