/* step: runs a step of training, and a validation. */
#include "train/train.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "train/batch.h"
#include "train/policy_feed.h"
#include "train/profile.h"
#include "train/trainer.h"

/* ---- counting the batch ---- */

static bool has_router_losses(const struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;

    return t->rank_program.registry.routers > 0 && (job->balance > 0 || job->z_loss > 0);
}

/* Counts the step's targets, or those of a further token. */
static enum hd_status count_targets(struct hd_trainer *t, int64_t further, int64_t *ret_targets)
{
    const struct hd_sampler *sampler = hd_job_data_sampler(&t->data, t->steps_done + 1);

    return hd_sampler_targets(sampler, t->steps_done + t->data_skipped, 0, hd_trainer_batch(t),
                              further, ret_targets);
}

/* Sets the records of further tokens: no sums, and the factor of their gradients, which U divides by
 * the number of the model's own targets, although each of these losses is a mean over its own. */
static enum hd_status set_further(struct hd_trainer *t, int64_t targets)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const double weight = t->rank_program.job.mtp_weight;
    enum hd_status st = HD_OK;

    for (int64_t k = 0; !st && k < r->further; k++) {
        double *record = t->further + k * HD_FURTHER_WORDS;
        int64_t own = 0;

        st = count_targets(t, k + 1, &own);
        memset(record, 0, HD_FURTHER_WORDS * sizeof *record);
        if (own > 0)
            record[HD_FURTHER_FACTOR] = weight / (double)r->further * (double)targets / (double)own;
    }
    if (st || !r->further)
        return st;
    return hd_staging_write(&t->open.staging, hd_trainer_global(t, HD_GLOBAL_FURTHER), t->further,
                            hd_global_bytes(r, HD_GLOBAL_FURTHER));
}

/* Sets *ret_tokens to the number of tokens of a step on completions, and the factor of losses that are
 * means over all tokens: the step divides by the terms of its own loss. */
static void count_completions(struct hd_trainer *t, int64_t *ret_tokens)
{
    const struct hd_policy_totals totals = hd_policy_count(t);

    t->block.loss_per_token =
        totals.tokens > 0 ? (float)((double)totals.terms / (double)totals.tokens) : 1;
    *ret_tokens = totals.tokens;
}

/* Sets *ret_tokens to the step's number of tokens, and sets the factors of losses that are means
 * over all tokens (those of routers) or over their own targets (those of further tokens). Every rank
 * counts the whole batch, so that no rank waits for another. Targets are counted only for such
 * losses, and if a token may lack a target. */
static enum hd_status count_batch(struct hd_trainer *t, int64_t *ret_tokens)
{
    const struct hd_sampler *sampler = hd_job_data_sampler(&t->data, t->steps_done + 1);
    const int64_t batch = t->steps_done + t->data_skipped;
    const int64_t tokens = hd_sampler_tokens(sampler, batch, hd_trainer_batch(t));
    int64_t targets = tokens;
    enum hd_status st = HD_OK;

    if ((has_router_losses(t) || t->rank_program.registry.further) &&
        !hd_sampler_fills_windows(sampler))
        st = count_targets(t, 0, &targets);
    if (!st)
        st = set_further(t, targets);
    if (st) {
        hd_comm_abort(t->open.comm, hd_err_message());
        return st;
    }
    t->block.loss_per_token = (float)((double)targets / (double)tokens);
    *ret_tokens = tokens;
    return HD_OK;
}

/* Returns the approximate number of terms that the step's loss is a mean of: pairs, or targets. */
static int64_t terms_of_loss(const struct hd_trainer *t, int64_t tokens)
{
    const struct hd_job *job = &t->rank_program.job;

    if (hd_job_has_policy(job))
        return hd_policy_count(t).terms;
    return hd_job_has_pairs(job) ? hd_trainer_batch(t) : tokens;
}

/* Returns the learning rate of a step, counted from 1: of its stage's own schedule, or of the
 * job's. */
static double rate_at(const struct hd_trainer *t, int64_t step)
{
    const struct hd_job_data *d = &t->data;
    const int64_t k = d->stage_count ? hd_data_stage_at(d->stages, d->stage_count, step) : 0;

    if (!d->stage_count || !d->stages[k].has_lr)
        return hd_lr_at(&t->schedule, step - t->rank_program.job.lr_after);
    return hd_lr_at(&t->stage_schedules[k], step - hd_data_stage_begin(d->stages, k));
}

/* Forgets, before the first step of a later stage, the losses and gradients of the stage before,
 * whose data were others: they say nothing about spikes in this stage. */
static void begin_stage(struct hd_trainer *t)
{
    if (hd_trainer_begins_stage(t) > 1)
        hd_guard_init(&t->rank_program.job, &t->guard);
}

/* Returns the results of pairs or rated answers. margin, correct, reward: means over `count` pairs or
 * answers, as step_finish makes them. */
static struct hd_pair_result pairs_of(const struct hd_trainer *t, int64_t count, double margin,
                                      double correct, double reward)
{
    struct hd_pair_result r = {.count = count, .margin = margin, .accuracy = correct};

    r.reward = reward;
    if (!hd_job_is_unpaired(&t->rank_program.job))
        return r;
    r = (struct hd_pair_result){.answers = count, .kl = t->block.kl};
    r.reward = reward;
    if (correct > 0)
        r.chosen = margin / correct;
    if (correct < 1)
        r.rejected = (reward - margin) / (1 - correct);
    r.margin = r.chosen - r.rejected;
    return r;
}

static enum hd_status set_block(struct hd_trainer *t, int64_t request, int64_t tokens)
{
    const struct hd_job *job = &t->rank_program.job;
    const struct hd_guard_limits limits = hd_guard_get_limits(&t->guard);
    const int64_t step = t->steps_done + 1;

    t->block.step = step;
    t->block.update = t->updates + 1;
    t->block.lr = (float)rate_at(t, step);
    t->block.max_grad_norm = (float)job->clip;
    t->block.beta1 = (float)job->beta1;
    t->block.beta2 = (float)job->beta2;
    t->block.adam_eps = (float)job->adam_eps;
    t->block.weight_decay = (float)job->weight_decay;
    t->block.loss_scale = hd_loss_scale_factor(&t->scale, terms_of_loss(t, tokens));
    t->block.request = request;
    t->block.busy_ms = t->busy_ms;
    t->block.awaited = t->awaited + 1;
    t->block.loss_limit = limits.loss;
    t->block.norm_limit = limits.norm;
    return hd_trainer_write_block(t);
}

/* Reads all results of a step; the only point at which the host waits for the device. */
static enum hd_status read_results(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    enum hd_status st = hd_trainer_read_sums(t);

    if (!st)
        st = hd_staging_read(&t->open.staging, t->records, hd_trainer_global(t, HD_GLOBAL_RECORDS),
                             hd_global_bytes(r, HD_GLOBAL_RECORDS));
    if (!st && r->routers)
        st = hd_staging_read(&t->open.staging, t->routes, hd_trainer_global(t, HD_GLOBAL_ROUTES),
                             hd_global_bytes(r, HD_GLOBAL_ROUTES));
    if (!st && r->further)
        st = hd_staging_read(&t->open.staging, t->further, hd_trainer_global(t, HD_GLOBAL_FURTHER),
                             hd_global_bytes(r, HD_GLOBAL_FURTHER));
    if (!st && r->qk_clip.threshold > 0)
        st = hd_staging_read(&t->open.staging, t->scores, hd_trainer_global(t, HD_GLOBAL_SCORES),
                             hd_global_bytes(r, HD_GLOBAL_SCORES));
    return st;
}

enum hd_status hd_trainer_write_profile(struct hd_trainer *t, bool ended, struct hd_text *ret_note)
{
    return hd_profile_is_due(t->profile, ended) ? hd_profile_write(t->profile, t->peak, ret_note)
                                                : HD_OK;
}

/* Returns the largest value of word `word` in the exchange records of all ranks. */
static double largest_word(const struct hd_trainer *t, enum hd_exchange_word word)
{
    const struct hd_registry *r = &t->rank_program.registry;
    double largest = 0;

    for (int64_t i = 0; i < r->mesh.world; i++)
        if (t->records[i * HD_EXCHANGE_WORDS + word] > largest)
            largest = t->records[i * HD_EXCHANGE_WORDS + word];
    return largest;
}

/* Returns the routers' results; their records are sums over all rows of the step and all ranks
 * (optim.c). */
static struct hd_router_result read_routers(const struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const int64_t words = HD_ROUTE_WORDS + r->experts;
    struct hd_router_result result = {
        .present = r->routers > 0, .experts = r->experts, .load = t->router_load};
    double rows = 0;

    for (int64_t e = 0; e < r->experts; e++)
        t->router_load[e] = 0;
    for (int64_t i = 0; i < r->routers; i++) {
        const double *record = t->routes + i * words;

        rows += record[HD_ROUTE_ROWS];
        result.balance += record[HD_ROUTE_BALANCE];
        result.z += record[HD_ROUTE_Z];
        result.dropped += (int64_t)record[HD_ROUTE_DROPPED];
        for (int64_t e = 0; e < r->experts; e++)
            t->router_load[e] += (int64_t)record[HD_ROUTE_WORDS + e];
    }
    if (rows > 0) {
        result.balance /= rows;
        result.z /= rows;
    }
    return result;
}

/* Returns the losses of further tokens; their records are sums over all ranks, as those of routers. */
static struct hd_further_result read_further(const struct hd_trainer *t)
{
    struct hd_further_result result = {.count = (int)t->rank_program.registry.further};

    for (int k = 0; k < result.count; k++) {
        const double *record = t->further + k * HD_FURTHER_WORDS;
        const double targets = record[HD_FURTHER_TARGETS];

        if (targets > 0) {
            result.loss[k] = record[HD_FURTHER_LOSS] / targets;
            result.hits[k] = record[HD_FURTHER_HITS] / targets;
        }
    }
    return result;
}

/* Sets the largest attention score of a step, and the number of heads that were clipped; all ranks
 * have the scores of all (optim.c). */
static void read_scores(const struct hd_trainer *t, struct hd_step_result *result)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const struct hd_qk_clip *clip = &r->qk_clip;
    const int64_t group = t->rank_program.job.heads / t->rank_program.job.kv_heads;

    for (int64_t i = 0; clip->threshold > 0 && i < r->unit_count * clip->heads; i += group) {
        float top = 0;

        for (int64_t h = i; h < i + group; h++)
            top = t->scores[h] > top ? t->scores[h] : top;
        if ((double)top > result->max_attention_logit)
            result->max_attention_logit = (double)top;
        if (top > clip->threshold && isfinite(top) && !result->skipped)
            result->clipped_heads += group;
    }
}

static bool has_too_many_rows(const struct hd_trainer *t)
{
    return largest_word(t, HD_EXCHANGE_OVERFLOW) >= HD_EXCHANGE_TOO_MANY_ROWS;
}

/* Counts the update and adapts the loss scale of fp16; all ranks have the same records and decide
 * the same. A step that was skipped because of too many expert rows, a spike or missing targets
 * does not change the scale. Returns true if the scale was lowered. */
static bool follow_scale(struct hd_trainer *t)
{
    const bool skipped = t->block.skip_update != 0;
    const bool overflowed =
        skipped && !t->block.spike && !has_too_many_rows(t) && t->block.total_targets > 0;
    bool lower;

    t->updates += !skipped;
    lower = (overflowed || !skipped) && hd_loss_scale_after(&t->scale, overflowed);
    return t->scale.used && overflowed && lower;
}

/* Reads the busy times of the previous step, which the ranks sent with this step's records. */
static struct hd_reported_step read_reported(struct hd_trainer *t)
{
    const bool present = t->step_ms > 0;

    for (int64_t r = 0; r < t->rank_program.mesh.world; r++) {
        const double *record = t->records + r * HD_EXCHANGE_WORDS;

        t->reported_busy_ms[r] = record[HD_EXCHANGE_BUSY_MS];
        t->reported_waiting[r] = (int)record[HD_EXCHANGE_AWAITED] - 1;
    }
    return (struct hd_reported_step){present, t->step_ms, t->reported_busy_ms, t->reported_waiting};
}

/* Stores this rank's busy time of the step in the trainer, to be sent with the next step's
 * records. */
static void note_waits(struct hd_trainer *t, double step_ms)
{
    struct hd_comm_waited waited;
    const bool known = hd_comm_take_waited(t->open.comm, &waited);

    t->busy_ms = known ? fmax(0, step_ms - (double)waited.ns * 1e-6) : -1;
    t->awaited = known ? waited.rank : -1;
    t->step_ms = step_ms;
}

/* Returns the MFU (model FLOPs utilisation): flops_per_s relative to the rank's measured peak. The
 * peak was measured at the start, perhaps while other processes used the cores, so an MFU above 1
 * means that the peak is too low: the run's own rate then becomes the peak. */
static double mfu_of(struct hd_trainer *t, double flops_per_s)
{
    const double mfu = flops_per_s / (t->peak * (double)t->rank_program.mesh.world);

    if (!(mfu > 1) || isinf(mfu))
        return mfu;
    t->peak *= mfu;
    return 1;
}

int64_t hd_trainer_begins_stage(const struct hd_trainer *t)
{
    for (int64_t k = 0; k < t->data.stage_count; k++)
        if (hd_data_stage_begin(t->data.stages, k) == t->steps_done)
            return k + 1;
    return 0;
}

/* Sets the number of micro-batches of a step of a job with train.batch_schedule, whose spans count
 * batches, as the sampler does. */
static enum hd_status set_size(struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;
    const struct hd_batch_spans *batches = &t->data.sampler.batches;
    enum hd_status st;

    if (!*job->batch_schedule)
        return HD_OK;
    st = hd_trainer_set_micro_batches(
        t, hd_batch_spans_batch(batches, t->steps_done + t->data_skipped) /
               (job->dp * job->micro_batch));
    if (st)
        hd_comm_abort(t->open.comm, hd_err_message());
    return st;
}

enum hd_status hd_trainer_step(struct hd_trainer *t, int64_t request,
                               struct hd_step_result *ret_result)
{
    const struct hd_job *job = &t->rank_program.job;
    const bool pairs = hd_job_has_pairs(job), has_policy = hd_job_has_policy(job),
               policy_loss = hd_job_has_policy_loss(job);
    const int64_t begin = hd_clock_now_ns();
    enum hd_status st;
    struct hd_comm_waited before;
    struct hd_reported_step reported;
    int64_t scale, tokens;
    double seconds;
    bool rescaled;

    /* discards the waits of saves and validations since the last step */
    (void)hd_comm_take_waited(t->open.comm, &before);
    begin_stage(t);
    if (hd_trainer_needs_reference(t) && !t->reference)
        return hd_err(HD_INTERNAL, "a step of %s without the reference's log-probabilities",
                      hd_job_objective_words[job->objective]);
    if (has_policy && !t->completions)
        return hd_err(HD_INTERNAL, "a step of %s without completions",
                      hd_job_objective_words[job->objective]);
    st = set_size(t);
    if (!st && has_policy)
        count_completions(t, &tokens);
    else if (!st)
        st = count_batch(t, &tokens);
    if (!st && hd_job_has_kl(job))
        st = hd_trainer_find_kl(t, NULL);
    if (!st && hd_job_has_teacher_model(job))
        st = hd_trainer_take_lessons(t);
    if (!st)
        st = set_block(t, request, tokens);
    if (st)
        return st;
    hd_profile_step_begin(t->profile, t->open.runner, t->steps_done + 1);
    st = hd_execute(t, t->step, t->micro_batches, hd_batch_feed_training, NULL, NULL);
    hd_profile_step_end(t->profile, t->open.runner, st != HD_OK);
    if (!st)
        st = read_results(t);
    if (!st && t->block.too_many_rows && !has_too_many_rows(t)) /* set behind the step's records */
        st = hd_err(HD_INTERNAL,
                    "the optimizer's exchange of matrices moved other rows than planned");
    if (st)
        return st;
    scale = t->scale.used ? t->scale.scale : 0;
    rescaled = follow_scale(t);
    t->steps_done++;
    t->tokens_seen += tokens;
    if (!t->block.skip_update)
        hd_guard_add(&t->guard, t->block.mean_loss, t->block.grad_norm);
    reported = read_reported(t);
    seconds = (double)(hd_clock_now_ns() - begin) * 1e-9;
    note_waits(t, seconds * 1e3);
    *ret_result = (struct hd_step_result){
        .step = t->steps_done,
        .loss = t->block.mean_loss,
        .grad_norm = t->block.grad_norm,
        .lr = (double)t->block.lr,
        .tokens = tokens,
        .tokens_per_s = (double)tokens / seconds,
        .step_ms = seconds * 1e3,
        .mfu = mfu_of(t, t->flops_per_token * (double)tokens / seconds),
        .targets = (int64_t)(pairs         ? t->block.pair_targets
                             : policy_loss ? t->block.policy_total[HD_POLICY_TOKENS]
                                           : t->block.total_targets),
        .z_loss = t->block.mean_z,
        .distill_loss = t->block.mean_distill,
        .pairs = pairs_of(t, pairs ? (int64_t)t->block.total_targets : 0, t->block.mean_margin,
                          t->block.pair_accuracy, t->block.mean_reward),
        .skipped = t->block.skip_update != 0,
        .too_many_rows = has_too_many_rows(t),
        .loss_scale = scale,
        .rescaled = rescaled,
        .spiked = t->block.spike != 0,
        .loss_limit = t->block.loss_limit,
        .norm_limit = t->block.norm_limit,
        .reported = reported,
        .router = read_routers(t),
        .further = read_further(t),
        .request = (int64_t)largest_word(t, HD_EXCHANGE_REQUEST),
    };
    read_scores(t, ret_result);
    if (policy_loss)
        ret_result->policy = hd_policy_read_result(t);
    hd_packed_completions_free(t->completions);
    t->completions = NULL;
    return HD_OK;
}

/* ---- validation ---- */

/* Runs the eval programs on all windows of a validation set. Every rank runs them equally often, if
 * necessary on padding, because the experts' collectives (ep) need all ranks. */
static enum hd_status validate_windows(struct hd_trainer *t, const struct hd_validation *set)
{
    const int64_t together = t->rank_program.mesh.sizes.dp * t->rank_program.job.micro_batch;
    const int64_t calls = (set->window_count + together - 1) / together;
    const int64_t round = t->rank_program.eval_order.micro_batches;
    enum hd_status st = HD_OK;

    struct hd_batch_windows windows = {.windows = set};

    for (; !st && windows.first < calls; windows.first += round)
        st = hd_execute(t, t->round, calls - windows.first, hd_batch_feed_windows, NULL, &windows);
    return st;
}

struct validation_sum {
    double loss, margin, correct, reward;
    int64_t targets;
    int64_t too_many_rows;
};

struct hd_pair_result hd_trainer_validated_pairs(const struct hd_trainer *t)
{
    return t->validated_pairs;
}

enum hd_status hd_trainer_validate(struct hd_trainer *t, double *ret_loss, int64_t *ret_targets)
{
    return hd_trainer_validate_set(t, hd_job_val_set_best(&t->rank_program.job), ret_loss,
                                   ret_targets);
}

enum hd_status hd_trainer_validate_set(struct hd_trainer *t, int64_t set, double *ret_loss,
                                       int64_t *ret_targets)
{
    struct validation_sum mine = {0}, total = {0};
    const char *all;
    enum hd_status st;

    if (set < 0 || set >= t->data.validation_count)
        return hd_err(HD_INVALID, "the job has no validation data");
    st = hd_job_has_kl(&t->rank_program.job) ? hd_trainer_find_kl(t, &t->data.validations[set])
                                             : HD_OK;
    if (!st)
        st = hd_trainer_reset_sums(t);
    if (!st)
        st = validate_windows(t, &t->data.validations[set]);
    if (!st)
        st = hd_trainer_read_sums(t);
    if (st)
        return st;
    mine.too_many_rows = t->block.too_many_rows;
    /* all tp ranks have the same loss, so only tp rank 0 adds it to the sum */
    if (t->rank_program.coord.tp == 0) {
        mine.loss = t->block.loss_sum;
        mine.targets = t->block.target_count;
        mine.margin = t->block.margin_sum;
        mine.correct = t->block.correct_pairs;
        mine.reward = t->block.reward_sum;
    }
    st = hd_trainer_exchange(t, &mine, sizeof mine, &all);
    if (st)
        return st;
    for (int r = 0; r < t->rank_program.mesh.world; r++) {
        struct validation_sum one;

        memcpy(&one, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, sizeof one);
        total.loss += one.loss;
        total.margin += one.margin;
        total.correct += one.correct;
        total.reward += one.reward;
        total.targets += one.targets;
        total.too_many_rows += one.too_many_rows;
    }
    if (total.too_many_rows)
        return hd_trainer_refuse_rows();
    if (!total.targets)
        return hd_err(HD_INVALID, "the validation data has no target: each of its tokens ends a "
                                  "document; see data.documents and data.end_of_text");
    *ret_loss = total.loss / (double)total.targets;
    *ret_targets = total.targets;
    if (hd_job_has_pairs(&t->rank_program.job))
        t->validated_pairs =
            pairs_of(t, total.targets, total.margin / (double)total.targets,
                     total.correct / (double)total.targets, total.reward / (double)total.targets);
    (t->has_averages ? hd_trainer_note_ema : hd_trainer_note_loss)(t, set, *ret_loss);
    return HD_OK;
}
