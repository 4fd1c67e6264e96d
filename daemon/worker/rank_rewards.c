#include "worker/rank_rewards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mesh/mesh.h"

enum { WAIT_MS = 1000 }; /* between two exchanges of ranks that wait for one that rates */

/* Answers of this rank that are to be rated. */
struct rank_rating {
    struct rank_rater *rater;
    const struct rank_answer **answers;
    int64_t *at; /* [count], index of each in `parts`, of its first reward */
    char **texts;
    int64_t count;
};

/* ---- who rates ---- */

int64_t rank_rater_of(const struct rank_rater *rater, int64_t group)
{
    const struct hd_mesh *mesh = &hd_trainer_rank_program(rater->r->trainer)->mesh;
    const int64_t replica = group % rater->replicas;
    const struct hd_mesh_coord first = {.dp = (int32_t)(replica / mesh->sizes.cp),
                                        .cp = (int32_t)(replica % mesh->sizes.cp)};

    return hd_mesh_rank(mesh, first);
}

static enum hd_status enter_sandbox(const void *of)
{
    const struct rank_rater *rater = of;

    return rank_lock_rewards(rater->r, &rater->rewards);
}

/* Finds out whether this rank is the first of its replica, before the trainer is open. */
static enum hd_status find_place(struct rank_rater *rater)
{
    const struct hd_job *job = &rater->r->job;
    struct hd_mesh_coord own;
    struct hd_mesh mesh;
    enum hd_status st = hd_rank_program_mesh(job, &mesh);

    if (st)
        return st;
    own = hd_mesh_coord_of(&mesh, (int32_t)rater->r->rank);
    rater->rates = own.pp == 0 && own.tp == 0;
    rater->replicas = job->dp * job->cp;
    return HD_OK;
}

enum hd_status rank_rater_begin(struct rank *r, const char *key, const char *rewards,
                                struct rank_rater *rater)
{
    enum hd_status st;

    rater->r = r;
    rater->key = key;
    st = hd_rewards_read(key, rewards, &r->arena, &rater->rewards);
    if (!st)
        st = find_place(rater);
    if (!st && rater->rates && hd_rewards_find(&rater->rewards, HD_REWARD_PROGRAM) >= 0)
        st = reward_keeper_start(&rater->rewards, r->rank, enter_sandbox, rater, &rater->keeper);
    return st;
}

enum hd_status rank_rater_open(struct rank_rater *rater)
{
    enum hd_status st = HD_OK;

    for (int64_t k = 0; !st && k < rater->rewards.count; k++)
        if (rater->rewards.list[k].kind < HD_REWARD_PROGRAM)
            st = hd_builtin_reward_new(&rater->rewards.list[k], &rater->builtins[k]);
    if (st)
        return hd_err_prefix(st, "%s", rater->key);
    if (hd_rewards_find(&rater->rewards, HD_REWARD_MODEL) >= 0)
        st = hd_answer_texts_open(&rater->r->job, &rater->model_texts);
    return st;
}

void rank_rater_close(struct rank_rater *rater)
{
    reward_keeper_stop(rater->keeper);
    for (int k = 0; k < HD_REWARDS_MAX; k++)
        hd_builtin_reward_free(rater->builtins[k]);
    hd_answer_texts_close(&rater->model_texts);
    hd_job_tokenizer_close(&rater->tokenizer);
}

bool rank_is_to_stop(void *rank)
{
    struct rank *r = rank;

    rank_listen(r);
    return r->request == REQUEST_STOP && hd_trainer_steps_done(r->trainer) > 0;
}

enum hd_status rank_answer_text(struct rank_rater *rater, const struct hd_rollout_sequence *answer,
                                struct hd_text *out)
{
    return rank_decode(rater->r, &rater->tokenizer, answer->ids,
                       answer->count - (answer->end == HD_ROLLOUT_STOP), out);
}

/* ---- builtins ---- */

static const struct hd_json_limits row_limits = {.values_max = 1 << 16, .depth_max = 32};

/* Rates all answers by all builtins. */
static enum hd_status rate_builtins(const struct rank_rating *g, double *parts)
{
    const struct rank_rater *rater = g->rater;
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < g->count; i++) {
        const struct rank_answer *a = g->answers[i];
        struct hd_rated_answer rated = {
            .text = g->texts[i], .tokens = a->sequence->count, .max_tokens = rater->max_tokens};
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        st =
            hd_json_parse_line(&arena, a->row->line, strlen(a->row->line), &row_limits, &rated.row);
        for (int64_t k = 0; !st && k < rater->rewards.count; k++)
            if (rater->builtins[k])
                parts[g->at[i] + k] = hd_builtin_reward_rate(rater->builtins[k], &rated);
        hd_arena_done(&arena);
    }
    return st;
}

/* ---- programs ---- */

/* Returns the line of JSON, without `id`, that a program gets for an answer; the caller frees it. */
static char *make_line(const struct rank_answer *a, const char *text)
{
    struct hd_text line = {0};
    struct hd_json_writer w = {.out = &line};
    const struct hd_json *row = NULL;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "prompt", a->row->shown);
    hd_json_add_string(&w, "completion", text);
    hd_json_add_int64(&w, "tokens", a->sequence->count);
    hd_json_add_bool(&w, "finished", a->sequence->end == HD_ROLLOUT_STOP);
    if (!hd_json_parse_line(&arena, a->row->line, strlen(a->row->line), &row_limits, &row))
        hd_json_add_value(&w, "row", row);
    hd_json_end(&w, '}');
    hd_arena_done(&arena);
    if (line.failed) {
        hd_text_free(&line);
        return NULL;
    }
    return line.data;
}

enum { RATED, RATES, STOPS }; /* what a rank says to those that wait with it; the largest counts */

/* Waits until no rank rates any more, or until one of them is to stop, and says meanwhile that this one is
 * alive. */
static enum hd_status wait_for_rewards(struct rank_rater *rater, bool is_rating,
                                       double *ret_rewards)
{
    struct rank *r = rater->r;
    int64_t busy = RATES;
    bool done = !is_rating;
    enum hd_status own = HD_OK, st = HD_OK;

    while (!st && busy == RATES) {
        if (!done)
            own = reward_keeper_wait(rater->keeper, WAIT_MS, &done, ret_rewards);
        if (own) /* the peers are told by the failure of the communication */
            return hd_err_prefix(own, "%s", rater->key);
        rank_say_alive(r);
        st = hd_trainer_agree(r->trainer,
                              rank_is_to_stop(r) && !done ? STOPS
                              : done                      ? RATED
                                                          : RATES,
                              &busy);
    }
    rater->stopped = busy == STOPS;
    return st;
}

/* Rates by one program. Collective. */
static enum hd_status rate_program(struct rank_rating *g, int64_t index, double *parts)
{
    char **lines = calloc((size_t)g->count + 1, sizeof *lines);
    double *rewards = calloc((size_t)g->count + 1, sizeof *rewards);
    enum hd_status st =
        lines && rewards ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the lines of rewards");

    for (int64_t i = 0; !st && i < g->count; i++) {
        lines[i] = make_line(g->answers[i], g->texts[i]);
        if (!lines[i])
            st = hd_err(HD_NO_MEMORY, "no memory for a line of rewards");
    }
    if (!st && g->count)
        st = reward_keeper_rate(g->rater->keeper, index, (const char *const *)lines, g->count);
    if (!st)
        st = wait_for_rewards(g->rater, g->count > 0, rewards);
    for (int64_t i = 0; !st && i < g->count; i++)
        parts[g->at[i] + index] = rewards[i];
    for (int64_t i = 0; lines && i < g->count; i++)
        free(lines[i]);
    free(lines);
    free(rewards);
    return st;
}

/* ---- the reward model ---- */

/* Encodes all answers of a call for the reward model; `ids` has them one behind the other. */
static enum hd_status encode_answers(struct rank_rater *rater, const struct rank_answer *answers,
                                     int64_t count, struct hd_id_list *ids,
                                     struct hd_rated_text *texts)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < count; i++) {
        const size_t before = ids->count;

        hd_text_clear(&text);
        st = rank_answer_text(rater, answers[i].sequence, &text);
        if (!st)
            st = hd_answer_texts_encode(&rater->model_texts, answers[i].row->line, text.data, ids);
        texts[i].count = (int64_t)(ids->count - before);
    }
    hd_text_free(&text);
    for (int64_t i = 0, at = 0; !st && i < count; at += texts[i++].count)
        texts[i].ids = ids->ids + at;
    return st;
}

static void warn_of_length(struct rank_rater *rater, int64_t too_long)
{
    const int64_t context = rater->model_texts.job.context;
    char said[200];

    if (rater->r->rank == 0 && too_long && !rater->too_long) {
        (void)snprintf(
            said, sizeof said,
            "train.rewards.model: %lld answers of a step have with their prompts more than "
            "the %lld tokens that the reward model reads here, and no reward",
            (long long)too_long, (long long)context);
        rank_say(rater->r, HD_LINK_LEVEL_WARN, said);
    }
    rater->too_long += too_long;
}

/* Rates by the reward model. Collective. */
static enum hd_status rate_by_model(struct rank_rater *rater, const struct rank_answer *answers,
                                    int64_t groups, const bool *wanted, int64_t index,
                                    double *parts)
{
    const int64_t G = rater->group, rewards = rater->rewards.count;
    const int64_t count = groups * G;
    struct hd_rated_text *texts = calloc((size_t)count + 1, sizeof *texts);
    float *values = calloc((size_t)count + 1, sizeof *values);
    struct hd_id_list ids = {0};
    int64_t too_long = 0;
    enum hd_status st = texts && values ? encode_answers(rater, answers, count, &ids, texts)
                                        : hd_err(HD_NO_MEMORY, "no memory for rewards");

    rank_say_alive(rater->r);
    if (!st)
        st = hd_trainer_rate_texts(rater->r->trainer, texts, count, values);
    for (int64_t i = 0; !st && i < count; i++) {
        too_long += texts[i].count > rater->model_texts.job.context;
        if (wanted[i / G])
            parts[i * rewards + index] = (double)values[i];
    }
    if (!st)
        warn_of_length(rater, too_long);
    hd_id_list_free(&ids);
    free(texts);
    free(values);
    return st;
}

/* ---- all ---- */

/* Collects the answers that this rank rates, with their texts. */
static enum hd_status collect(struct rank_rating *g, const struct rank_answer *answers,
                              int64_t groups, const bool *wanted)
{
    const int64_t G = g->rater->group, rewards = g->rater->rewards.count;
    const size_t most = (size_t)(groups * G) + 1;
    enum hd_status st = HD_OK;

    g->answers = calloc(most, sizeof(struct rank_answer *));
    g->at = calloc(most, sizeof *g->at);
    g->texts = calloc(most, sizeof *g->texts);
    if (!g->answers || !g->at || !g->texts)
        return hd_err(HD_NO_MEMORY, "no memory for answers");
    for (int64_t i = 0; !st && i < groups * G; i++) {
        struct hd_text text = {0};

        if (!wanted[i / G])
            continue;
        st = rank_answer_text(g->rater, answers[i].sequence, &text);
        g->answers[g->count] = &answers[i];
        g->at[g->count] = i * rewards;
        g->texts[g->count++] = text.data;
    }
    return st;
}

enum hd_status rank_rate(struct rank_rater *rater, const struct rank_answer *answers,
                         int64_t groups, const bool *wanted, double *parts)
{
    struct rank_rating g = {.rater = rater};
    enum hd_status st = collect(&g, answers, groups, wanted);

    if (!st)
        st = rate_builtins(&g, parts);
    for (int64_t k = 0; !st && !rater->stopped && k < rater->rewards.count; k++)
        if (rater->rewards.list[k].kind == HD_REWARD_PROGRAM)
            st = rate_program(&g, k, parts);
        else if (rater->rewards.list[k].kind == HD_REWARD_MODEL)
            st = rate_by_model(rater, answers, groups, wanted, k, parts);
    for (int64_t i = 0; i < g.count; i++)
        free(g.texts[i]);
    free(g.texts);
    free(g.at);
    free(g.answers);
    return st;
}

struct reward_owners {
    const struct rank_rater *rater;
    int64_t first, each; /* first group; rewards of a group */
};

static int64_t owner_of_reward(const void *of, int64_t index)
{
    const struct reward_owners *o = of;

    return rank_rater_of(o->rater, o->first + index / o->each);
}

enum hd_status rank_share_rewards(const struct rank_rater *rater, int64_t first, int64_t groups,
                                  double *parts)
{
    const struct reward_owners owners = {rater, first, rater->group * rater->rewards.count};

    return hd_trainer_share(rater->r->trainer, parts, groups * owners.each, owner_of_reward,
                            &owners);
}
