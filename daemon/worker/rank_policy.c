#include "worker/rank_policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"

enum {
    FILES_KEPT = 4,   /* steps whose answers stay on disk, beside those since the last checkpoint */
    SHOWN_STEPS = 50, /* steps of a run whose answers are shown */
};

/* ---- opening and closing ---- */

enum hd_status rank_policy_begin(struct rank *r)
{
    struct rank_policy *p;

    if (!hd_job_has_policy(&r->job))
        return HD_OK;
    p = r->policy = calloc(1, sizeof *p);
    if (!p)
        return hd_err(HD_NO_MEMORY, "no memory for answers");
    p->rollout = -1;
    p->fresh = true;
    hd_arena_init(&p->arena, 0);
    p->rater.group = r->job.rollout_group;
    p->rater.max_tokens = r->job.rollout_max_tokens;
    return rank_rater_begin(r, "train.rewards", r->job.rewards, &p->rater);
}

/* Sets the folder of the files of answers, JOB/rollouts. */
static enum hd_status find_folder(struct rank *r)
{
    struct rank_policy *p = r->policy;
    char *slash;

    (void)snprintf(p->dir, sizeof p->dir, "%s", r->job.attempt_dir);
    slash = strrchr(p->dir, '/');
    if (!slash || slash == p->dir || (size_t)(slash - p->dir) + sizeof "/rollouts" > sizeof p->dir)
        return hd_err(HD_INVALID, "the attempt's folder %s is in no job's folder",
                      r->job.attempt_dir);
    memcpy(slash, "/rollouts", sizeof "/rollouts");
    return hd_file_make_dirs(p->dir, HD_FILE_JOB_DIR_MODE);
}

enum hd_status rank_policy_open(struct rank *r)
{
    struct rank_policy *p = r->policy;
    char text[200];
    enum hd_status st;

    if (!p)
        return HD_OK;
    st = rank_rater_open(&p->rater);
    if (!st)
        st = find_folder(r);
    if (!st)
        st = hd_prompt_rows_open(&r->job, &p->rater.tokenizer, rank_say_set_up, r, &p->rows);
    if (st)
        return st;
    (void)snprintf(text, sizeof text,
                   "%lld prompts of up to %lld tokens%s; %lld answers at a time on each replica",
                   (long long)p->rows.count, (long long)p->rows.longest,
                   p->rows.dropped ? ", too long ones left out" : "",
                   (long long)hd_trainer_rank_program(r->trainer)->decode.slots);
    rank_say(r, HD_LINK_LEVEL_INFO, text);
    if (!p->rows.stops.count)
        rank_say(r, HD_LINK_LEVEL_WARN,
                 "no token ends an answer, so that each has train.rollout.max_tokens; give "
                 "train.rollout.stop or data.end_of_text");
    return HD_OK;
}

void rank_policy_close(struct rank *r)
{
    struct rank_policy *p = r->policy;

    if (!p)
        return;
    rank_rater_close(&p->rater);
    hd_prompt_rows_close(&p->rows);
    hd_arena_done(&p->arena);
    free(p);
    r->policy = NULL;
}

/* ---- a rollout ---- */

/* A rollout while it is made: rounds of `prompts` groups. A round is all groups of index
 * round * prompts .. of the rollout. */
struct rank_rollout {
    struct rank *r;
    int64_t step;  /* first step that trains on it */
    bool writes;   /* the model writes its answers; false: they are those of the rows */
    int64_t first; /* draw of group 0 */
    struct hd_rollout_file *file;   /* on a rank that rates; NULL: its disk takes no writes */
    struct hd_rollout_group *found; /* [found_count], from the files of an earlier attempt */
    int64_t found_count;
    /* of one round */
    int64_t begin;                       /* index of its first group */
    struct rank_answer *answers;         /* [prompts, group] */
    double *parts;                       /* [prompts, group, rewards] */
    struct hd_rollout_sequence *missing; /* sequences that the files lack, in groups */
    int64_t *missing_group;              /* [groups of missing], index of each in the round */
    int64_t *missing_left;               /* [groups of missing], answers that have not ended */
    int64_t missing_count;               /* groups */
};

/* Returns a hash of what makes an update of a gradient, and may change when a job is resumed: with other values
 * the weights behind a step of the same loss and gradient are others. lr: of that update. */
static uint64_t hash_of_update(const struct hd_job *job, double lr)
{
    const double numbers[] = {lr,
                              job->weight_decay,
                              job->beta1,
                              job->beta2,
                              job->adam_eps,
                              job->clip,
                              job->adapter_b_lr,
                              job->muon_momentum,
                              job->muon_adamw_lr,
                              (double)job->muon_iterations,
                              job->muon_nesterov};
    uint64_t hash = hd_random_key(hd_random_hash(hd_job_muon_scale_words[job->muon_scale]),
                                  hd_random_hash(hd_job_moments_words[job->moments]));

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uint64_t bits;

        memcpy(&bits, &numbers[i], sizeof bits);
        hash = hd_random_key(hash, bits);
    }
    return hash;
}

static struct hd_rollout_header header_of(const struct rank_rollout *o)
{
    const struct hd_job *job = &o->r->job;
    const struct rank_policy *p = o->r->policy;
    uint64_t settings = hd_random_key((uint64_t)job->seed, (uint64_t)o->first);

    settings = hd_random_key(settings, (uint64_t)(job->rollout_temperature * 1e6));
    settings = hd_random_key(settings, hd_random_hash(job->rewards));
    if (*job->reward_identity)
        settings = hd_random_key(settings, hd_random_hash(job->reward_identity));
    settings = hd_random_key(settings, hd_random_hash(job->rollout_stop));
    settings = hd_random_key(settings, (uint64_t)p->rows.count);
    return (struct hd_rollout_header){.step = o->step,
                                      .group = job->rollout_group,
                                      .max_tokens = job->rollout_max_tokens,
                                      .rewards = p->rater.rewards.count,
                                      .settings = settings,
                                      .update = p->fresh ? 0 : hash_of_update(job, p->lr),
                                      .loss = p->fresh ? 0 : p->loss,
                                      .grad_norm = p->fresh ? 0 : p->grad_norm};
}

/* Returns a hash of all groups that were found, of 62 bits. */
static int64_t hash_of_found(const struct rank_rollout *o)
{
    const struct rank_policy *p = o->r->policy;
    const int64_t G = o->r->job.rollout_group;
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (int64_t i = 0; i < o->found_count; i++) {
        const struct hd_rollout_group *g = &o->found[i];

        hd_hash_add(&hash, &g->index, sizeof g->index);
        for (int64_t k = 0; k < G; k++) {
            const struct hd_rollout_sequence *s = &g->answers[k];

            hd_hash_add(&hash, &s->count, sizeof s->count);
            hd_hash_add(&hash, &s->end, sizeof s->end);
            hd_hash_add(&hash, s->ids, (size_t)s->count * sizeof *s->ids);
            hd_hash_add(&hash, s->log_probabilities,
                        (size_t)s->count * sizeof *s->log_probabilities);
        }
        if (g->rewards)
            hd_hash_add(&hash, g->rewards,
                        (size_t)(G * p->rater.rewards.count) * sizeof *g->rewards);
    }
    return (int64_t)(hd_hash_value(&hash) >> 2);
}

/* Reads what an earlier attempt has recorded of the rollout. All ranks take the same, or nothing. */
static enum hd_status find_recorded(struct rank_rollout *o)
{
    const struct hd_rollout_header header = header_of(o);
    struct rank_policy *p = o->r->policy;
    int64_t own, most, least;
    enum hd_status st =
        hd_rollout_files_read(p->dir, &header, p->fresh, &p->arena, &o->found, &o->found_count);

    if (st)
        return st;
    own = hash_of_found(o);
    st = hd_trainer_agree(o->r->trainer, own, &most);
    if (!st)
        st = hd_trainer_agree(o->r->trainer, -own, &least);
    if (!st && most != -least)
        o->found_count = 0;
    return st;
}

/* Ends the recording of this rollout on this rank if `st` is HD_STORAGE, and returns HD_OK then: a disk
 * that takes no writes ends no run, whose state in memory would be lost with it. */
static enum hd_status go_on_unrecorded(struct rank_rollout *o, enum hd_status st)
{
    struct rank_policy *p = o->r->policy;
    char text[HD_LINK_TEXT_MAX];

    if (st != HD_STORAGE)
        return st;
    hd_rollout_file_close(o->file);
    o->file = NULL;
    (void)snprintf(text, sizeof text,
                   "the answers of step %lld are not recorded: %.900s; training goes on, and an "
                   "attempt that repeats the step writes and rates them anew",
                   (long long)o->step, hd_err_message());
    if (p->unrecorded)
        hd_log(HD_LOG_WARN, "%s", text);
    else
        rank_say(o->r, HD_LINK_LEVEL_WARN, text);
    p->unrecorded = true;
    return HD_OK;
}

/* Makes this rank's file, with the groups that were found and that it rates. */
static enum hd_status make_file(struct rank_rollout *o)
{
    const struct hd_rollout_header header = header_of(o);
    enum hd_status st = hd_rollout_file_create(o->r->policy->dir, o->r->rank, &header, &o->file);

    for (int64_t i = 0; !st && i < o->found_count; i++) {
        if (rank_rater_of(&o->r->policy->rater, o->found[i].index) != o->r->rank)
            continue;
        st = hd_rollout_file_add(o->file, o->found[i].index, o->found[i].answers);
        if (!st && o->found[i].rewards)
            st = hd_rollout_file_rate(o->file, o->found[i].index, o->found[i].rewards);
    }
    return st ? st : hd_rollout_file_publish(o->file);
}

/* Begins this rank's file, with what is known already. All ranks have read the files of the step. */
static enum hd_status begin_file(struct rank_rollout *o)
{
    struct rank_policy *p = o->r->policy;
    int64_t unused;
    enum hd_status st;

    if (!o->found_count && o->r->rank == 0)
        hd_rollout_files_remove(p->dir, 0, o->step - 1);
    st = hd_trainer_agree(o->r->trainer, 0, &unused); /* until they are removed */
    if (st || !p->rater.rates)
        return st;
    st = make_file(o);
    p->unrecorded &= st != HD_OK;
    return go_on_unrecorded(o, st);
}

static const struct hd_rollout_group *find_group(const struct rank_rollout *o, int64_t index)
{
    for (int64_t i = 0; i < o->found_count; i++)
        if (o->found[i].index == index)
            return &o->found[i];
    return NULL;
}

/* Makes an answer of a round that is not written: the completion of a row. */
static struct rank_answer take_completion(struct rank_rollout *o, int64_t draw,
                                          struct hd_rollout_sequence *s)
{
    const struct hd_prompt_row *row = hd_prompt_rows_draw(&o->r->policy->rows, draw);

    *s = (struct hd_rollout_sequence){
        .prompt = row->ids,
        .prompt_count = row->count,
        .ids = row->completion,
        .log_probabilities = hd_arena_array(&o->r->policy->arena, (size_t)row->completion_count + 1,
                                            sizeof *s->log_probabilities),
        .count = row->completion_count,
        .end = row->is_ended ? HD_ROLLOUT_STOP : HD_ROLLOUT_LENGTH};
    return (struct rank_answer){.sequence = s, .row = row};
}

/* Makes the answers of a round: those that were found, and empty ones to be written. Each of those that are
 * not written has a row of its own. */
static enum hd_status begin_round(struct rank_rollout *o)
{
    const struct hd_job *job = &o->r->job;
    struct hd_arena *arena = &o->r->policy->arena;
    const int64_t P = job->rollout_prompts, G = job->rollout_group;
    const uint64_t key = hd_random_key((uint64_t)job->seed, hd_random_hash("rollout"));
    const size_t most = (size_t)job->rollout_max_tokens;

    o->answers = hd_arena_array(arena, (size_t)(P * G), sizeof *o->answers);
    o->parts = hd_arena_array(arena, (size_t)(P * G * o->r->policy->rater.rewards.count),
                              sizeof *o->parts);
    o->missing = hd_arena_array(arena, (size_t)(P * G), sizeof *o->missing);
    o->missing_group = hd_arena_array(arena, (size_t)P, sizeof *o->missing_group);
    o->missing_left = hd_arena_array(arena, (size_t)P, sizeof *o->missing_left);
    o->missing_count = 0;
    for (int64_t g = 0; !hd_arena_failed(arena) && g < P; g++) {
        const int64_t draw = o->first + o->begin + g;
        const struct hd_prompt_row *row = hd_prompt_rows_draw(&o->r->policy->rows, draw);
        const struct hd_rollout_group *found = find_group(o, o->begin + g);

        for (int64_t k = 0; k < G; k++) {
            struct hd_rollout_sequence *s =
                found ? &found->answers[k] : &o->missing[o->missing_count * G + k];

            if (!o->writes) {
                o->answers[g * G + k] = take_completion(o, draw * G + k, &o->missing[g * G + k]);
                continue;
            }
            s->prompt = row->ids;
            s->prompt_count = row->count;
            s->seed = hd_random_key(key, (uint64_t)(draw * G + k));
            if (!found) {
                s->ids = hd_arena_array(arena, most, sizeof *s->ids);
                s->log_probabilities = hd_arena_array(arena, most, sizeof *s->log_probabilities);
            }
            o->answers[g * G + k] = (struct rank_answer){.sequence = s, .row = row};
        }
        if (!found && o->writes) {
            o->missing_left[o->missing_count] = G;
            o->missing_group[o->missing_count++] = g;
        }
    }
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for the answers of a step")
                                  : HD_OK;
}

static void still_writes_answers(void *user)
{
    const struct rank_rollout *o = user;

    rank_say_alive(o->r);
}

static bool stops_now(void *user)
{
    const struct rank_rollout *o = user;

    return rank_is_to_stop(o->r);
}

/* Records a group on the rank that rates it, when all of its answers have ended. */
static enum hd_status record_answer(void *user, int64_t sequence)
{
    struct rank_rollout *o = user;
    const int64_t G = o->r->job.rollout_group, missing = sequence / G;
    const int64_t group = o->begin + o->missing_group[missing];

    if (--o->missing_left[missing] || !o->file ||
        rank_rater_of(&o->r->policy->rater, group) != o->r->rank)
        return HD_OK;
    return go_on_unrecorded(o, hd_rollout_file_add(o->file, group, o->missing + missing * G));
}

static enum hd_status write_answers(struct rank_rollout *o)
{
    const struct hd_job *job = &o->r->job;
    const struct hd_rollout rollout = {
        .sequences = o->missing,
        .count = o->missing_count * job->rollout_group,
        .group = job->rollout_group,
        .max_tokens = job->rollout_max_tokens,
        .sampling = {.temperature = job->rollout_temperature, .top_p = 1},
        .stops = &o->r->policy->rows.stops,
        .drawn_max = o->r->policy->rows.drawn_max,
        .probability_temperature = job->rollout_temperature,
        .alive = still_writes_answers,
        .stops_now = stops_now,
        .ret_stopped = &o->r->policy->rater.stopped,
        .ended = record_answer,
        .user = o};

    return o->missing_count ? hd_trainer_rollout(o->r->trainer, &rollout) : HD_OK;
}

/* Rates the answers of a round, each group on one rank, records the rewards, and gives them to all
 * ranks. */
static enum hd_status rate_answers(struct rank_rollout *o)
{
    struct rank *r = o->r;
    const int64_t P = r->job.rollout_prompts, G = r->job.rollout_group;
    const int64_t each = G * r->policy->rater.rewards.count;
    bool *wanted = hd_arena_array(&r->policy->arena, (size_t)P, sizeof *wanted);
    enum hd_status st = wanted ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for rewards");

    if (!each) /* with gkd a teacher takes the place of rewards */
        return st;
    for (int64_t g = 0; !st && g < P; g++) {
        const struct hd_rollout_group *found = find_group(o, o->begin + g);

        if (found && found->rewards)
            memcpy(o->parts + g * each, found->rewards, (size_t)each * sizeof *o->parts);
        else
            wanted[g] = rank_rater_of(&r->policy->rater, o->begin + g) == r->rank;
    }
    if (!st)
        st = rank_rate(&r->policy->rater, o->answers, P, wanted, o->parts);
    if (!st && r->policy->rater.stopped)
        return HD_OK;
    for (int64_t g = 0; !st && g < P; g++)
        if (wanted[g] && o->file)
            st = go_on_unrecorded(o,
                                  hd_rollout_file_rate(o->file, o->begin + g, o->parts + g * each));
    if (!st)
        st = rank_share_rewards(&r->policy->rater, o->begin, P, o->parts);
    for (int64_t i = 0; !st && i < P * G; i++)
        o->answers[i].reward = hd_rewards_sum(&r->policy->rater.rewards,
                                              o->parts + i * r->policy->rater.rewards.count);
    return st;
}

/* Keeps the groups of a round from which something can be learned, or, in the last round, as many
 * others as are missing, in the order of their prompts. */
static void keep_groups(struct rank_rollout *o, bool is_last, bool *kept)
{
    struct rank_policy *p = o->r->policy;
    const int64_t P = o->r->job.rollout_prompts, G = o->r->job.rollout_group;
    const int64_t rewards = p->rater.rewards.count;
    double *own = hd_arena_array(&p->arena, (size_t)G, sizeof *own);

    for (int flat = 0; own && flat <= (int)is_last; flat++)
        for (int64_t g = 0; g < P && p->count < P * G; g++) {
            for (int64_t k = 0; k < G; k++)
                own[k] = o->answers[g * G + k].reward;
            if (kept[g] || hd_advantage_is_flat(own, G) != (flat > 0))
                continue;
            kept[g] = true;
            memcpy(p->answers + p->count, o->answers + g * G, (size_t)G * sizeof *p->answers);
            memcpy(p->parts + p->count * rewards, o->parts + g * G * rewards,
                   (size_t)(G * rewards) * sizeof *p->parts);
            p->count += G;
        }
}

static enum hd_status run_round(struct rank_rollout *o, bool is_last)
{
    struct rank_policy *p = o->r->policy;
    const int64_t P = o->r->job.rollout_prompts, G = o->r->job.rollout_group;
    bool *kept = hd_arena_array(&p->arena, (size_t)P, sizeof *kept);
    int64_t begin = hd_clock_now_ns(), before = p->count;
    enum hd_status st = kept ? begin_round(o) : hd_err(HD_NO_MEMORY, "no memory for answers");

    if (!st)
        st = write_answers(o);
    if (!st && p->rater.stopped)
        return HD_OK;
    p->rollout_ms += (double)(hd_clock_now_ns() - begin) * 1e-6;
    begin = hd_clock_now_ns();
    if (!st)
        st = rate_answers(o);
    p->rewards_ms += (double)(hd_clock_now_ns() - begin) * 1e-6;
    if (st || p->rater.stopped)
        return st;
    for (int64_t i = 0; i < o->missing_count * G; i++)
        p->drawn_tokens += o->missing[i].count;
    keep_groups(o, is_last, kept);
    p->replaced += P - (p->count - before) / G;
    return hd_arena_failed(&p->arena) ? hd_err(HD_NO_MEMORY, "no memory for answers") : HD_OK;
}

/* Writes and rates answers until the step has all of its groups. */
static enum hd_status run_rollout(struct rank *r, int64_t number)
{
    struct rank_policy *p = r->policy;
    const struct hd_job *job = &r->job;
    const int64_t rounds = job->rollout_resample > 1 ? job->rollout_resample : 1;
    const size_t most = (size_t)(job->rollout_prompts * job->rollout_group);
    const uint64_t key = hd_random_key((uint64_t)job->seed, hd_random_hash("on_policy"));
    struct rank_rollout o = {.r = r,
                             .step = number * job->rollout_updates + 1,
                             .writes =
                                 hd_random_uniform(key, (uint64_t)number) < job->distill_on_policy,
                             .first = number * rounds * job->rollout_prompts};
    enum hd_status st;

    hd_arena_done(&p->arena);
    p->rollout = -1;
    p->count = p->drawn_tokens = p->replaced = 0;
    p->rollout_ms = p->rewards_ms = p->reference_ms = 0;
    p->references = NULL;
    p->divergences = NULL;
    p->answers = hd_arena_array(&p->arena, most, sizeof *p->answers);
    p->parts = hd_arena_array(&p->arena, most * (size_t)p->rater.rewards.count, sizeof *p->parts);
    p->advantages = hd_arena_array(&p->arena, most, sizeof *p->advantages);
    p->completions = hd_arena_array(&p->arena, most, sizeof *p->completions);
    if (hd_arena_failed(&p->arena))
        return hd_err(HD_NO_MEMORY, "no memory for the answers of a step");
    st = find_recorded(&o);
    if (!st)
        st = begin_file(&o);
    for (int64_t k = 0; !st && !p->rater.stopped && k < rounds && p->count < (int64_t)most; k++) {
        o.begin = k * job->rollout_prompts;
        /* without resampling every group is kept: none is replaced */
        st = run_round(&o, k + 1 == rounds);
    }
    hd_rollout_file_close(o.file);
    if (!st && !p->rater.stopped)
        p->rollout = number;
    return st;
}

/* ---- the step ---- */

static enum hd_advantage_scale scale_of(const struct hd_job *job)
{
    return job->policy_scale == HD_JOB_POLICY_SCALE_BATCH  ? HD_ADVANTAGE_BATCH
           : job->policy_scale == HD_JOB_POLICY_SCALE_NONE ? HD_ADVANTAGE_NONE
                                                           : HD_ADVANTAGE_GROUP;
}

/* Makes the completions of the newest rollout, without advantages. */
static void make_completions(struct rank *r)
{
    struct rank_policy *p = r->policy;

    for (int64_t i = 0; i < p->count; i++) {
        const struct hd_rollout_sequence *s = p->answers[i].sequence;

        p->completions[i] = (struct hd_policy_completion){
            .prompt = s->prompt,
            .prompt_count = s->prompt_count,
            .ids = s->ids,
            .count = s->count,
            .sampled = s->log_probabilities,
            .reference = p->references ? p->references[i] : NULL,
            .masked = !s->count || isnan(p->answers[i].reward) || s->end == HD_ROLLOUT_NOT_FINITE ||
                      (r->job.policy_mask_truncated && s->end == HD_ROLLOUT_LENGTH)};
    }
}

/* Computes the log-probabilities of the newest rollout under the reference, and the divergences. */
static enum hd_status compare_with_reference(struct rank *r)
{
    const enum hd_policy_kl kl = hd_rank_program_kl(&r->job);
    const int64_t begin = hd_clock_now_ns();
    struct rank_policy *p = r->policy;
    int64_t tokens = 0;
    enum hd_status st;

    p->references = hd_arena_array(&p->arena, (size_t)p->count, sizeof(float *));
    p->divergences = hd_arena_array(&p->arena, (size_t)p->count, sizeof *p->divergences);
    for (int64_t i = 0; p->references && i < p->count; i++)
        p->references[i] = hd_arena_array(&p->arena, (size_t)p->answers[i].sequence->count + 1,
                                          sizeof *p->references[i]);
    if (hd_arena_failed(&p->arena))
        return hd_err(HD_NO_MEMORY, "no memory for log-probabilities of the reference");
    make_completions(r);
    rank_say_alive(r);
    st = hd_trainer_score_reference(r->trainer, p->completions, p->count, p->references);
    p->kl = 0;
    for (int64_t i = 0; !st && i < p->count; i++) {
        if (p->completions[i].masked)
            continue;
        p->divergences[i] = hd_advantage_divergence(kl, p->completions[i].sampled, p->references[i],
                                                    p->completions[i].count);
        p->kl += p->divergences[i];
        tokens += p->completions[i].count;
    }
    p->kl /= tokens ? (double)tokens : 1;
    p->reference_ms = (double)(hd_clock_now_ns() - begin) * 1e-6;
    return st;
}

static enum hd_status set_completions(struct rank *r)
{
    struct rank_policy *p = r->policy;
    double *rewards = hd_arena_array(&p->arena, (size_t)p->count, sizeof *rewards);

    if (!rewards)
        return hd_err(HD_NO_MEMORY, "no memory for rewards");
    make_completions(r);
    if (!hd_job_has_policy_loss(&r->job))
        return HD_OK;
    for (int64_t i = 0; i < p->count; i++)
        rewards[i] = p->answers[i].reward;
    if (p->divergences && r->job.policy_kl_in == HD_JOB_POLICY_KL_IN_REWARD)
        hd_advantage_take(p->divergences, p->count, r->job.policy_kl_beta, rewards);
    hd_advantages(rewards, p->count, r->job.rollout_group, scale_of(&r->job),
                  r->job.policy_loss == HD_JOB_POLICY_LOSS_RLOO, p->advantages, &p->numbers);
    for (int64_t i = 0; i < p->count; i++)
        p->completions[i].advantage = p->advantages[i];
    return HD_OK;
}

enum hd_status rank_policy_prepare(struct rank *r)
{
    struct rank_policy *p = r->policy;
    int64_t number;
    enum hd_status st = HD_OK;

    if (!p)
        return HD_OK;
    number = hd_trainer_steps_done(r->trainer) / r->job.rollout_updates;
    if (p->rollout != number) {
        rank_say_alive(r);
        st = run_rollout(r, number);
        r->stopped = p->rater.stopped;
        if (!st && !r->stopped && hd_job_has_reference(&r->job))
            st = compare_with_reference(r);
        hd_link_report_phase(r->link, HD_LINK_PHASE_TRAINING, hd_trainer_steps_done(r->trainer));
    }
    if (st || r->stopped)
        return st;
    st = set_completions(r);
    return st ? st : hd_trainer_set_completions(r->trainer, p->completions, p->count);
}

/* ---- numbers ---- */

/* Lengths of the answers that the step has trained on. */
struct answer_lengths {
    int64_t sum, least, most, cut;
};

static struct answer_lengths lengths_of(const struct rank_policy *p)
{
    struct answer_lengths l = {.least = INT64_MAX};

    for (int64_t i = 0; i < p->count; i++) {
        const struct hd_rollout_sequence *s = p->answers[i].sequence;

        l.sum += s->count;
        l.least = s->count < l.least ? s->count : l.least;
        l.most = s->count > l.most ? s->count : l.most;
        l.cut += s->end == HD_ROLLOUT_LENGTH;
    }
    return l;
}

void rank_policy_metrics(const struct rank *r, const struct hd_step_result *s,
                         struct hd_step_metrics *metrics)
{
    const struct rank_policy *p = r->policy;
    struct answer_lengths l;

    if (!p || !p->count)
        return;
    l = lengths_of(p);
    metrics->completions = p->count;
    metrics->reward = p->numbers.mean;
    metrics->reward_std = p->numbers.std;
    metrics->frac_reward_zero_std = p->numbers.zero_std;
    metrics->rewards_missing = p->numbers.missing;
    metrics->entropy = s->policy.entropy;
    /* in the loss it is that of the weights of now */
    metrics->kl = r->job.policy_kl_in == HD_JOB_POLICY_KL_IN_REWARD ? p->kl : s->policy.kl;
    metrics->clip_low = s->policy.clipped_low;
    metrics->clip_high = s->policy.clipped_high;
    metrics->length_mean = (double)l.sum / (double)p->count;
    metrics->length_min = l.least;
    metrics->length_max = l.most;
    metrics->clipped = (double)l.cut / (double)p->count;
    metrics->logp_difference = s->policy.difference;
    metrics->logp_difference_max = s->policy.difference_max;
    metrics->ratio_max = s->policy.ratio_max;
    metrics->rollout_ms = p->rollout_ms;
    metrics->rewards_ms = p->rewards_ms;
    metrics->rollout_tokens_per_s =
        p->rollout_ms > 0 ? (double)p->drawn_tokens / (p->rollout_ms * 1e-3) : 0;
}

/* Shows mean and standard deviation of each reward, by the names of TRL. */
static void show_rewards(struct rank *r, int64_t step)
{
    const struct rank_policy *p = r->policy;
    char tags[2 * HD_REWARDS_MAX][HD_TENSORBOARD_TAG_MAX];
    struct hd_scalar scalars[2 * HD_REWARDS_MAX];
    const int64_t rewards = p->rater.rewards.count;
    size_t count = 0;

    for (int64_t k = 0; k < rewards; k++) {
        double sum = 0, squares = 0, mean;
        int64_t n = 0;

        for (int64_t i = 0; i < p->count; i++)
            if (!isnan(p->parts[i * rewards + k])) {
                sum += p->parts[i * rewards + k];
                n++;
            }
        mean = n ? sum / (double)n : 0;
        for (int64_t i = 0; i < p->count; i++)
            if (!isnan(p->parts[i * rewards + k]))
                squares += pow(p->parts[i * rewards + k] - mean, 2);
        for (int std = 0; std < 2; std++) {
            (void)snprintf(tags[count], sizeof tags[count], "train/rewards/%s/%s",
                           p->rater.rewards.list[k].name, std ? "std" : "mean");
            scalars[count] = (struct hd_scalar){
                tags[count], std ? (n > 1 ? sqrt(squares / (double)(n - 1)) : 0) : mean};
            count++;
        }
    }
    if (count)
        rank_show(r, step, scalars, count);
}

/* Reports the best and the worst answer to the step's first prompt. */
static void show_answers(struct rank *r, int64_t step)
{
    const struct rank_policy *p = r->policy;
    const int64_t G = r->job.rollout_group;
    int64_t best = 0, worst = 0;
    struct hd_text text = {0};
    char end[64];

    for (int64_t i = 1; i < G && i < p->count; i++) {
        /* an answer without a reward is neither, if any has one */
        if (isnan(p->answers[best].reward) || p->answers[i].reward > p->answers[best].reward)
            best = i;
        if (isnan(p->answers[worst].reward) || p->answers[i].reward < p->answers[worst].reward)
            worst = i;
    }
    for (int64_t i = 0; i < (best == worst ? 1 : 2); i++) {
        const struct rank_answer *a = &p->answers[i ? worst : best];
        const char *why = a->sequence->end == HD_ROLLOUT_STOP     ? "stop"
                          : a->sequence->end == HD_ROLLOUT_LENGTH ? "length"
                                                                  : "not finite";

        hd_text_clear(&text);
        (void)snprintf(end, sizeof end, "%s", why);
        if (p->rater.rewards.count)
            (void)snprintf(end, sizeof end, "%s, reward %.6g", why, a->reward);
        if (!rank_answer_text(&r->policy->rater, a->sequence, &text))
            rank_say_sample(r, step, i, best == worst ? 1 : 2, a->row->shown,
                            text.data ? text.data : "", end);
    }
    hd_text_free(&text);
}

void rank_policy_note(struct rank *r, const struct hd_step_result *s)
{
    struct rank_policy *p = r->policy;
    const int64_t every = r->job.log_every > 0 ? r->job.log_every : r->job.steps / SHOWN_STEPS + 1;
    int64_t first;

    if (!p)
        return;
    p->fresh = false;
    p->loss = s->loss;
    p->grad_norm = s->grad_norm;
    p->lr = s->lr;
    hd_log(HD_LOG_INFO,
           "step %lld: reward %.4f std %.4f, %lld answers of %.1f tokens, rollout %.1f ms, rewards "
           "%.1f ms, reference %.1f ms",
           (long long)s->step, p->numbers.mean, p->numbers.std, (long long)p->count,
           p->count ? (double)lengths_of(p).sum / (double)p->count : 0, p->rollout_ms,
           p->rewards_ms, p->reference_ms);
    if (r->rank != 0)
        return;
    if (p->count && p->numbers.missing == p->count && !p->unrated) {
        rank_say(r, HD_LINK_LEVEL_WARN,
                 "no answer of a step has a reward, so that nothing is learned from it: the rows "
                 "lack the "
                 "column that a builtin of train.rewards compares with (`field`), a program gave "
                 "none, or they are too long for the reward model");
        p->unrated = true;
    }
    if (p->count && !lengths_of(p).sum && !p->empty) {
        rank_say(r, HD_LINK_LEVEL_WARN,
                 "no answer of a step has a token, so that nothing is learned from it: the "
                 "completions of the rows are empty, or the model ends each answer at once");
        p->empty = true;
    }
    show_rewards(r, s->step);
    if (s->step == 1 || s->step % every == 0)
        show_answers(r, s->step);
    first = s->step + 1 - FILES_KEPT;
    /* those since the last checkpoint are what a restart reads; with `updates` a rollout begins
     * before the checkpoint */
    if (first > r->saved_step + 1 - r->job.rollout_updates)
        first = r->saved_step + 1 - r->job.rollout_updates;
    hd_rollout_files_remove(p->dir, first, INT64_MAX);
}
