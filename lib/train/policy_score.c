/* policy_score: log-probabilities of completions under the present weights, and rewards of answers by the
 * reward model.
 *
 * The head's ranks with tp coordinate 0 have the values of their rows, in the order of windows and of
 * their rows in a window. They send these in pieces of one message each; every rank knows the same order,
 * and so whose value each number is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job/frozen_model.h"
#include "mesh/zigzag.h"
#include "train/policy_feed.h"
#include "train/trainer.h"
#include "train/window_pass.h"

enum { VALUES_MAX = HD_EXCHANGE_SLOT_BYTES / (int)sizeof(float) };

struct scoring {
    struct hd_packed_completions *packed;
    float *const *logp; /* the caller's, by completion */
};

/* A place in the order of one rank's values. */
struct value_place {
    int64_t window, row; /* row: index among the rank's own rows of the window */
    float *at;           /* where the value of that row belongs */
};

/* Returns where the value of a row of a window belongs; NULL: the row has no target. */
static float *value_at(const struct scoring *s, int64_t window, int64_t row)
{
    const struct hd_packed_completions *k = s->packed;

    for (int64_t i = k->begins[window]; i < k->begins[window + 1]; i++) {
        const struct hd_policy_completion *c = &k->all[k->order[i]];

        if (row < hd_policy_rows(c))
            return row < c->prompt_count - 1 ? NULL
                                             : &s->logp[k->order[i]][row - c->prompt_count + 1];
        row -= hd_policy_rows(c);
    }
    return NULL;
}

/* Moves to the rank's next row with a target. Returns false behind the last one. */
static bool next_value(const struct hd_trainer *t, const struct scoring *s,
                       const struct hd_mesh_coord *coord, struct value_place *p)
{
    const struct hd_rank_program *l = &t->rank_program;
    const struct hd_zigzag mine = {l->job.context, l->mesh.sizes.cp, coord->cp};

    for (; p->window < s->packed->windows; p->window++, p->row = -1) {
        if (p->window / l->job.micro_batch % l->mesh.sizes.dp != coord->dp)
            continue;
        for (p->row++; p->row < hd_zigzag_rows(&mine); p->row++) {
            p->at = value_at(s, p->window, hd_zigzag_position(&mine, p->row));
            if (p->at)
                return true;
        }
    }
    return false;
}

static enum hd_status take_value(void *user, int64_t window, int64_t position, const float *value)
{
    float *at = value_at(user, window, position);

    if (at)
        *at = *value;
    return HD_OK;
}

static enum hd_status run_scoring(struct hd_trainer *t, struct scoring *s)
{
    struct hd_window_pass pass = {
        .windows = {.completions = s->packed}, .columns = 1, .take = take_value, .user = s};
    enum hd_status st = hd_trainer_reset_sums(t);

    if (!st)
        st = hd_window_pass_run(t, &pass, 0, s->packed->windows);
    return st ? st : hd_trainer_read_sums(t);
}

/* Sends up to VALUES_MAX of this rank's values, and takes as many of every rank. Sets *ret_more to whether
 * any rank has more; places: [world]. */
static enum hd_status exchange_piece(struct hd_trainer *t, const struct scoring *s,
                                     struct value_place *places, bool *ret_more)
{
    const struct hd_rank_program *l = &t->rank_program;
    struct value_place own = places[l->rank];
    float mine[VALUES_MAX] = {0};
    const char *all;
    enum hd_status st;

    for (int i = 0; hd_window_pass_takes(l, l->coord) && i < VALUES_MAX; i++)
        if (next_value(t, s, &l->coord, &own))
            mine[i] = *own.at;
    st = hd_trainer_exchange(t, mine, sizeof mine, &all);
    *ret_more = false;
    for (int r = 0; !st && r < l->mesh.world; r++) {
        const struct hd_mesh_coord coord = hd_mesh_coord_of(&l->mesh, r);
        int taken = 0;

        while (hd_window_pass_takes(l, coord) && taken < VALUES_MAX &&
               next_value(t, s, &coord, &places[r]))
            memcpy(places[r].at, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES + 4 * taken++,
                   sizeof(float));
        *ret_more = *ret_more || taken == VALUES_MAX;
    }
    return st;
}

static enum hd_status exchange_values(struct hd_trainer *t, const struct scoring *s)
{
    const int world = t->rank_program.mesh.world;
    struct value_place *places = calloc((size_t)world, sizeof *places);
    enum hd_status st = HD_OK;

    if (!places)
        return hd_err(HD_NO_MEMORY, "no memory for log-probabilities of completions");
    for (int r = 0; r < world; r++)
        places[r].row = -1;
    for (bool more = true; !st && more;)
        st = exchange_piece(t, s, places, &more);
    free(places);
    return st;
}

/* Returns HD_LIMIT on every rank if the experts of any had no memory for all rows. */
static enum hd_status check_expert_rows(struct hd_trainer *t)
{
    int64_t too_many;
    const enum hd_status st = hd_trainer_agree(t, t->block.too_many_rows, &too_many);

    if (st || !too_many)
        return st;
    return hd_err_prefix(hd_trainer_refuse_rows(), "log-probabilities of completions");
}

/* Computes the value of each target of the completions by the programs of validation. */
static enum hd_status score_completions(struct hd_trainer *t,
                                        const struct hd_policy_completion *completions,
                                        int64_t count, float *const *ret_values)
{
    struct scoring s = {.logp = ret_values};
    enum hd_status st = hd_policy_pack(t, completions, count, true, &s.packed);

    if (st)
        return st;
    st = run_scoring(t, &s);
    if (!st)
        st = check_expert_rows(t);
    if (!st)
        st = exchange_values(t, &s);
    hd_packed_completions_free(s.packed);
    return st;
}

enum hd_status hd_trainer_score_completions(struct hd_trainer *t,
                                            const struct hd_policy_completion *completions,
                                            int64_t count, float *const *ret_logp)
{
    const struct hd_job *job = &t->rank_program.job;

    if (*job->choices && hd_factor_of((float)job->rollout_temperature) != 1)
        return hd_err(HD_UNSUPPORTED,
                      "the programs that score completions at train.rollout.temperature "
                      "answer the questions of validate.choices, at 1; remove one of "
                      "the two");
    return score_completions(t, completions, count, ret_logp);
}

enum hd_status hd_trainer_rate_texts(struct hd_trainer *t, const struct hd_rated_text *texts,
                                     int64_t count, float *ret_rewards)
{
    static const int32_t
        no_id; /* behind a text: its last token is the row of a target, as in pairs */
    struct hd_policy_completion *list = calloc((size_t)count + 1, sizeof *list);
    float **values = calloc((size_t)count + 1, sizeof *values);
    struct hd_trainer *m = t->frozen;
    enum hd_status st = HD_OK;

    if (!hd_job_has_reward_model(&t->rank_program.job))
        st = hd_err(HD_INTERNAL, "texts to rate, and the job has no reward model");
    else if (!list || !values)
        st = hd_err(HD_NO_MEMORY, "no memory for texts to rate");
    for (int64_t i = 0; !st && i < count; i++) {
        values[i] = &ret_rewards[i];
        ret_rewards[i] = NAN;
        list[i] = (struct hd_policy_completion){
            .prompt = texts[i].ids,
            .prompt_count = texts[i].count,
            .ids = &no_id,
            .count = 1,
            .masked = !texts[i].count || texts[i].count > m->rank_program.job.context};
    }
    if (!st)
        st = score_completions(m, list, count, values);
    if (st == HD_INVALID) /* a token that the model lacks */
        st = hd_err_prefix(st, "%s", hd_job_frozen_path(&t->rank_program.job));
    for (int64_t i = 0; !st && i < count; i++)
        if (!list[i].masked && !isfinite(ret_rewards[i]))
            st = hd_err(HD_CORRUPT,
                        "%s: a reward is not finite; are its weights those of a trained "
                        "model?",
                        hd_job_frozen_path(&t->rank_program.job));
    free(list);
    free(values);
    return st;
}
