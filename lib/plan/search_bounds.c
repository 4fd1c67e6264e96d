/* search_bounds: lower bounds of a candidate's time and memory. A bound that is too high would drop
 * the best layout (search_test compares with every layout). */
#include <math.h>

#include "base/math.h"
#include "plan/search_internal.h"

/* Least ratio of the work memory in which backward recomputes a segment to that of one block and what forward
 * would save of the others: measured on 1,800 random models, 0.996. */
static const double segment_share = 0.98;
/* Least ratio of the time of a micro-batch's blocks, per token, to that with the largest micro-batch
 * and without recompute: kernels and collectives take at most in proportion to their rows, but
 * their tiles and fusions may differ. */
static const double coarse_share = 0.9;

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

/* Returns whether some chunk of the stage has a block of this kind, and thereby its work memory. The model's
 * first block does not count: it passes no gradient on, so that it may take less than others. */
static bool stage_has_kind(const struct layout_search *s, const struct ordered *ordered,
                           int32_t stage, int kind)
{
    const struct hd_pipeline *p = &ordered->step.pipeline;

    for (int32_t k = 0; k < p->chunks / p->stages; k++) {
        const struct layers l = layers_of(s, ordered, hd_pipeline_chunk(p, stage, k));
        const int64_t first = hd_max(l.first, 1);

        if (first < l.end && s->kinds_before[l.end][kind] > s->kinds_before[first][kind])
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

/* ---- time ---- */

double search_ideal_seconds(const struct layout_search *s)
{
    const struct hd_rates *r = &s->asked->cluster->rates;
    const double tokens = (double)s->asked->spec->global_batch * (double)s->asked->spec->context;
    double fastest = hd_max_real(r->fp8_flops, hd_max_real(r->half_flops, r->single_flops));

    fastest = hd_max_real(fastest, r->most_flops);
    return s->model.flops_per_token * tokens / (s->asked->devices * fastest);
}

static double micro_batches(const struct layout_search *s, const struct candidate *c)
{
    const int64_t dp = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);

    return (double)(s->asked->spec->global_batch / (dp * c->micro_batch));
}

/* Returns a lower bound of a step's seconds: the time of all micro-batches on the stage whose
 * blocks take longest. */
double search_blocks_bound(const struct layout_search *s, const struct candidate *c,
                           const struct search_sizes *sizes, double stage_s)
{
    return micro_batches(s, c) * hd_max_real(even_share(s, c->pp, sizes->all_s), stage_s);
}

double search_coarse_bound(const struct layout_search *s, const struct candidate *c,
                           const struct search_sizes *large)
{
    return coarse_share * micro_batches(s, c) * c->micro_batch / HD_SEARCH_MICRO_BATCH_MAX *
           even_share(s, c->pp, large->all_s);
}

/* Returns the seconds by kind of a micro-batch that passes a chunk, forward and back. W, which other
 * stages do not wait for, takes the time in which gradients pass back. */
static const double *passes_of(const struct ordered *ordered, const struct search_sizes *sizes)
{
    return ordered->step.order.split ? sizes->forward_s : sizes->all_s;
}

/* Returns a lower bound of a step's seconds: the longest over the stages. A stage starts when F of
 * the first micro-batch has passed the chunks before it; and after its last backward gradients pass
 * back through those chunks. */
double search_schedule_bound(const struct layout_search *s, const struct candidate *c,
                             const struct ordered *ordered, const struct search_sizes *sizes)
{
    const double M = micro_batches(s, c), *passes = passes_of(ordered, sizes);
    double most = 0;

    for (int32_t i = 0; i < ordered->step.pipeline.stages; i++)
        most = hd_max_real(most, M * stage_sum(s, ordered, i, sizes->all_s) +
                                     sum_of(s, 0, ordered->stages[i].before, passes));
    return most;
}

/* Returns the mean over stages of the sum over their blocks. */
static double stage_mean(const struct layout_search *s, const struct candidate *c,
                         const double of_kind[HD_LAYER_KINDS])
{
    return (double)s->config.L / c->pp * mean_of_kinds(s, of_kind);
}

double search_traffic_bound(struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z, const struct search_sizes *sizes)
{
    const struct held_state *state;
    double gather, forward, backward;

    if (z->zero < 2 || s->tuned || s->asked->cluster->links ||
        s->asked->cluster->rates.calibration) /* times that it interpolates give no bound */
        return 0;
    state = search_state(s, z);
    gather = stage_mean(s, c, state->gather_s);
    forward = stage_mean(s, c, sizes->forward_s);
    backward = stage_mean(s, c, sizes->all_s) - forward;
    return SEARCH_GATHERED_SHARE * micro_batches(s, c) *
           hd_max_real(even_share(s, z->pp, state->reduce_s),
                       hd_max_real(gather, forward) + hd_max_real(gather, backward));
}

/* ---- memory ---- */

void search_take_least_state(struct layout_search *s, struct hd_layout_sizes *sizes)
{
    if (s->asked->request->sizes.zero < 0 && sizes->dp * sizes->cp > 1)
        sizes->zero = 3;
    if (!search_may_offload(s))
        return;
    sizes->offload = HD_JOB_OFFLOAD_OPTIMIZER;
    if (even_share(s, sizes->pp, search_state(s, sizes)->host) >
        (double)s->asked->cluster->host_memory_bytes)
        sizes->offload = HD_JOB_OFFLOAD_NONE;
}

/* Returns the bytes of embedding and head on the stages that have them. */
static double ends_of(const struct held_state *state, const struct hd_pipeline *p, int32_t stage)
{
    const bool first = hd_pipeline_stage(p, 0) == stage,
               last = hd_pipeline_stage(p, p->chunks - 1) == stage;

    return (first ? state->embedding : 0) + (last ? state->head + (first ? 0 : state->tied) : 0);
}

/* Returns the bytes that a chunk saves for one micro-batch: those of its blocks, and those beside
 * them. 0 if trained parts may differ from block to block, which gives no bound. */
static double slot_bytes(const struct layout_search *s, double blocks, double beside)
{
    return s->differ ? 0 : hd_max_real(0, blocks + beside);
}

/* Returns a lower bound of the bytes that a chunk of `blocks` blocks of any kinds saves. With
 * recompute segments, `blocks` counts blocks that begin one. */
static double chunk_saved(const struct layout_search *s, const struct search_sizes *b,
                          double blocks)
{
    return slot_bytes(s, blocks * least_of(s, b->saved),
                      hd_min_real(0, least_of(s, b->base_saved)));
}

/* Returns an upper bound of the bytes that a chunk of `blocks` blocks defers for W. */
static double most_deferred(const struct layout_search *s, const struct search_sizes *b,
                            double blocks)
{
    return slot_bytes(s,
                      blocks * hd_max_real(most_of(s, b->deferred), most_of(s, b->inner_deferred)),
                      hd_max_real(0, most_of(s, b->base_deferred)));
}

/* Returns the number of blocks in a stage's largest chunk whose backward is whole. If only an
 * adapter trains, nothing before the model's first block needs a gradient; that block's backward is
 * shorter and saves less, so it is not counted. before: blocks of the model before the stage. */
static double whole_blocks(const struct layout_search *s, double blocks, int32_t before)
{
    return s->tuned && before == 0 ? hd_max_real(0, blocks - 1) : blocks;
}

/* Returns a lower bound of the work memory of a stage, for the kind of its blocks that needs most. */
static double stage_work(const struct layout_search *s, const struct search_sizes *b,
                         const struct held_state *state, const struct ordered *ordered,
                         int32_t stage)
{
    double most = 0;

    for (int i = 0; i < s->kind_count; i++) {
        const int kind = s->kinds[i];
        const double work = s->differ ? 0 : b->work[kind];

        if (stage_has_kind(s, ordered, stage, kind))
            most = hd_max_real(most, hd_max_real(work, state->gathered[kind]));
    }
    return most;
}

/* Returns a lower bound of the work memory of any chunk that has a block. */
static double block_work(const struct layout_search *s, const struct search_sizes *b)
{
    return s->differ ? 0 : least_of(s, b->work);
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
                          const struct ordered *ordered, const struct search_sizes *b,
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
            ordered->step.order.split ? most_deferred(s, b, (double)x.longest) : 0;

        *ret_saved = hd_max_real(*ret_saved, chunk_saved(s, b, (double)x.count));
        if (x.longest > 1 && c->plain)
            *ret_work =
                hd_max_real(*ret_work, segment_share * chunk_saved(s, c->plain, again) - deferred);
    }
}

/* Returns a lower bound of the bytes of a stage's slots, for saved and deferred activations.
 * *work: its work memory, to which segments of recompute add. */
static double stage_slots(const struct layout_search *s, const struct candidate *c,
                          const struct ordered *ordered, const struct search_sizes *b, int32_t i,
                          double *work)
{
    const struct ordered_stage *stage = &ordered->stages[i];
    const int64_t skipped =
        stage->largest - (int64_t)whole_blocks(s, stage->largest, stage->before);
    double deferred = 0, saved;

    if (stage->deferred > 0)
        deferred = slot_bytes(s, largest_chunk(s, ordered, i, skipped, b->deferred),
                              hd_min_real(0, least_of(s, b->base_deferred)));
    if (c->segment > 1) {
        double again;

        segment_bytes(s, c, ordered, b, i, &saved, &again);
        *work += again;
    } else {
        saved = slot_bytes(s, largest_chunk(s, ordered, i, skipped, b->saved),
                           hd_min_real(0, least_of(s, b->base_saved)));
    }
    if (stage->largest > skipped)
        /* of a model's first block whose backward is not whole, no kind is known */
        *work += skipped ? block_work(s, b) : 0;
    return stage->kept * saved + stage->deferred * deferred;
}

/* Returns a lower bound of the bytes that the weights of the frozen model take on a rank, in the mean over
 * stages: they are whole, in the compute encoding. */
static double frozen_model_bytes(const struct layout_search *s, const struct hd_layout_sizes *z)
{
    const double width = z->precision == HD_JOB_PRECISION_FP32 ? 4 : 2;

    return ((double)s->frozen_parameters + (double)s->frozen_experts / (double)hd_max(z->ep, 1)) *
           width / (double)(z->tp * z->pp);
}

/* Which stage has which part of the frozen model is not known: some stage has at least the mean. */
struct hd_search_rejected search_least_memory(struct layout_search *s, const struct candidate *c,
                                              const struct hd_layout_sizes *z,
                                              const struct ordered *ordered,
                                              const struct search_sizes *b, double enough)
{
    const double process = (double)s->asked->cluster->traits.process_bytes;
    const struct held_state *state = search_state(s, z);
    double most = -1, most_slots = 0, sum = 0;
    int32_t fullest = 0;

    for (int32_t i = 0; i < ordered->step.pipeline.stages && most <= enough; i++) {
        const struct ordered_stage *stage = &ordered->stages[i];
        const bool whole = stage->largest > 0 && !(s->tuned && stage->before == 0);
        double work = whole ? stage_work(s, b, state, ordered, i) : 0;
        const double slots = stage_slots(s, c, ordered, b, i, &work);
        const double bytes = process + stage_sum(s, ordered, i, state->block) +
                             ends_of(state, &ordered->step.pipeline, i) + work + slots;

        sum += bytes;
        if (bytes > most) {
            most = bytes;
            most_slots = slots;
            fullest = i;
        }
    }
    most = hd_max_real(most, sum / ordered->step.pipeline.stages + frozen_model_bytes(s, z));
    return (struct hd_search_rejected){.sizes = *z,
                                       .step_s = c->bound_s + c->rollout_s,
                                       .stage = fullest,
                                       .needed_bytes = (int64_t)most,
                                       .activations = most_slots / most};
}

/* Blocks of a model that take at least as much memory as those of one kind. */
struct heavy_blocks {
    int64_t count;
    double state, saved; /* bytes of each, at least */
    double work;         /* lower bound of the work memory of a stage that has one */
    double all_s;        /* lower bound of the seconds of each in a micro-batch */
};

static struct heavy_blocks heavy_blocks_of(const struct layout_search *s, int kind,
                                           const struct held_state *state,
                                           const struct search_sizes *b)
{
    struct heavy_blocks heavy = {
        .state = state->block[kind], .saved = b->saved[kind], .work = INFINITY, .all_s = INFINITY};

    for (int i = 0; i < s->kind_count; i++) {
        const int other = s->kinds[i];

        if (state->block[other] < heavy.state || b->saved[other] < heavy.saved)
            continue;
        heavy.count += s->kinds_before[s->config.L][other];
        heavy.work = hd_min_real(heavy.work, hd_max_real(b->work[other], state->gathered[other]));
        heavy.all_s = hd_min_real(heavy.all_s, b->all_s[other]);
    }
    return heavy;
}

/* Returns the most of these blocks that stage i may hold in `limit` bytes beside their work memory,
 * however the model is cut. Full recompute may have segments as long as a chunk. */
static int64_t most_on_stage(const struct layout_search *s, const struct candidate *c,
                             const struct ordered *ordered, const struct held_state *state,
                             const struct search_sizes *b, const struct heavy_blocks *heavy,
                             double limit, int32_t i)
{
    const struct hd_pipeline *p = &ordered->step.pipeline;
    const double kept = ordered->stages[i].kept, chunks = p->chunks / p->stages;
    /* how much less a chunk saves than its blocks: 0 or less */
    const double beside = hd_min_real(0, least_of(s, b->base_saved));
    const bool segments = c->recompute == FULL;
    const double slot = segments ? hd_max_real(0, beside + least_of(s, b->saved)) : beside;
    const double work = hd_pipeline_stage(p, 0) == i ? 0 : heavy->work; /* stage_has_kind */
    const double capacity = limit - work - ends_of(state, p, i) - kept * slot;
    const double each =
        heavy->state + (segments ? 0 : kept * hd_max_real(0, heavy->saved) / chunks);

    if (capacity <= 0)
        return 0;
    return capacity >= each * (double)heavy->count ? heavy->count : (int64_t)(capacity / each);
}

double search_cuts_seconds(struct layout_search *s, const struct candidate *c,
                           const struct hd_layout_sizes *z, const struct ordered *ordered,
                           const struct search_sizes *b)
{
    const int32_t stages = ordered->step.pipeline.stages;
    const double limit = (double)(s->asked->memory_bytes - s->asked->cluster->traits.process_bytes);
    const struct held_state *state = search_state(s, z);
    double seconds = 0;

    if ((limit - frozen_model_bytes(s, z)) * stages - block_work(s, b) * (stages - 1) <
        sum_of(s, 0, s->config.L, state->block))
        return INFINITY;
    for (int k = 0; k < s->kind_count; k++) {
        const struct heavy_blocks heavy = heavy_blocks_of(s, s->kinds[k], state, b);
        int64_t fullest = hd_divide_up(heavy.count, stages), held = 0, open = stages;

        while (held < heavy.count && open) { /* `fullest` rises to the least that holds all */
            held = open = 0;
            for (int32_t i = 0; i < stages && held < heavy.count; i++) {
                const int64_t most = most_on_stage(s, c, ordered, state, b, &heavy, limit, i);

                held += most < fullest ? most : fullest;
                open += most > fullest;
            }
            if (held < heavy.count && open)
                fullest += hd_divide_up(heavy.count - held, open);
        }
        if (held < heavy.count)
            return INFINITY;
        seconds = hd_max_real(seconds, (double)fullest * heavy.all_s);
    }
    return seconds;
}
