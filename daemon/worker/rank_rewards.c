/* rank_rewards: rates the answers of a step by the rewards of train.rewards. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/rank_policy.h"

enum { WAIT_MS = 1000 }; /* between two exchanges of ranks that wait for one that rates */

/* Answers of this rank that are to be rated. */
struct rank_rating {
    struct rank *r;
    const struct rank_answer **answers;
    int64_t *at; /* [count], index of each in `parts`, of its first reward */
    char **texts;
    int64_t count;
};

enum hd_status rank_answer_text(struct rank *r, const struct hd_rollout_sequence *answer,
                                struct hd_text *out)
{
    const struct hd_tokenizer *tokenizer;
    struct hd_utf8_printer printer = {.pending_count = 0};
    const int64_t count = answer->count - (answer->end == HD_ROLLOUT_STOP);
    struct hd_text bytes = {0};
    enum hd_status st = hd_job_tokenizer_need(&r->policy->tokenizer, &r->job, &tokenizer);

    for (int64_t i = 0; !st && i < count; i++)
        st = hd_tokenizer_decode_next(tokenizer, answer->ids[i], &bytes);
    hd_utf8_printer_add(&printer, bytes.data ? bytes.data : "", bytes.len_bytes, out);
    hd_utf8_printer_end(&printer, out);
    hd_text_add(out, "%s", "");
    if (!st && (bytes.failed || out->failed))
        st = hd_err(HD_NO_MEMORY, "no memory for the text of an answer");
    hd_text_free(&bytes);
    return st;
}

/* ---- builtins ---- */

static const struct hd_json_limits row_limits = {.values_max = 1 << 16, .depth_max = 32};

/* Rates all answers by all builtins. */
static enum hd_status rate_builtins(const struct rank_rating *g, double *parts)
{
    const struct rank_policy *p = g->r->policy;
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < g->count; i++) {
        const struct rank_answer *a = g->answers[i];
        struct hd_rated_answer rated = {.text = g->texts[i],
                                        .tokens = a->sequence->count,
                                        .max_tokens = g->r->job.rollout_max_tokens};
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        st =
            hd_json_parse_line(&arena, a->row->line, strlen(a->row->line), &row_limits, &rated.row);
        for (int64_t k = 0; !st && k < p->rewards.count; k++)
            if (p->builtins[k])
                parts[g->at[i] + k] = hd_builtin_reward_rate(p->builtins[k], &rated);
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
static enum hd_status wait_for_rewards(struct rank *r, bool is_rating, double *ret_rewards)
{
    int64_t busy = RATES;
    bool done = !is_rating;
    enum hd_status own = HD_OK, st = HD_OK;

    while (!st && busy == RATES) {
        if (!done)
            own = reward_keeper_wait(r->policy->keeper, WAIT_MS, &done, ret_rewards);
        if (own) /* the peers are told by the failure of the communication */
            return own;
        rank_policy_say_alive(r);
        st = hd_trainer_agree(r->trainer,
                              rank_policy_is_to_stop(r) && !done ? STOPS
                              : done                             ? RATED
                                                                 : RATES,
                              &busy);
    }
    r->policy->stopped = busy == STOPS;
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
        st = reward_keeper_rate(g->r->policy->keeper, index, (const char *const *)lines, g->count);
    if (!st)
        st = wait_for_rewards(g->r, g->count > 0, rewards);
    for (int64_t i = 0; !st && i < g->count; i++)
        parts[g->at[i] + index] = rewards[i];
    for (int64_t i = 0; lines && i < g->count; i++)
        free(lines[i]);
    free(lines);
    free(rewards);
    return st;
}

/* ---- all ---- */

/* Collects the answers that this rank rates, with their texts. */
static enum hd_status collect(struct rank_rating *g, const struct rank_answer *answers,
                              int64_t groups, const bool *wanted)
{
    const int64_t G = g->r->job.rollout_group, rewards = g->r->policy->rewards.count;
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
        st = rank_answer_text(g->r, answers[i].sequence, &text);
        g->answers[g->count] = &answers[i];
        g->at[g->count] = i * rewards;
        g->texts[g->count++] = text.data;
    }
    return st;
}

enum hd_status rank_rate(struct rank *r, const struct rank_answer *answers, int64_t groups,
                         const bool *wanted, double *parts)
{
    struct rank_rating g = {.r = r};
    enum hd_status st = collect(&g, answers, groups, wanted);

    if (!st)
        st = rate_builtins(&g, parts);
    for (int64_t k = 0; !st && !r->policy->stopped && k < r->policy->rewards.count; k++)
        if (r->policy->rewards.list[k].kind == HD_REWARD_PROGRAM)
            st = rate_program(&g, k, parts);
    for (int64_t i = 0; i < g.count; i++)
        free(g.texts[i]);
    free(g.texts);
    free(g.at);
    free(g.answers);
    return st;
}
