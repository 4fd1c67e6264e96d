/* rank_tensorboard: writes a step's numbers, and the job's keys, to files for TensorBoard. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "worker/rank_policy.h"

/* Opens the files beside the attempts' folders, so that TensorBoard shows a job as one run. Retried
 * later if the disk accepts no writes now. */
static enum hd_status open_tensorboard(struct rank *r)
{
    const char *slash = strrchr(r->job.attempt_dir, '/');
    struct hd_text dir = {0};
    enum hd_status st;

    if (r->rank != 0 || !slash)
        return HD_OK;
    hd_text_add(&dir, "%.*s/tensorboard", (int)(slash - r->job.attempt_dir), r->job.attempt_dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : hd_tensorboard_open(dir.data, r->job.attempt,
                                          hd_trainer_steps_done(r->trainer), &r->tensorboard);
    hd_text_free(&dir);
    return st;
}

static void tensorboard_fails(struct rank *r)
{
    if (!r->tensorboard_failed)
        rank_say(r, HD_LINK_LEVEL_WARN, hd_err_message());
    r->tensorboard_failed = true;
}

/* ---- hyper-parameters -------------------------------------------------------------------------*/

/* Fills a hyper-parameter from a key of the job; its text lives in the rank's arena. */
static bool fill_hparam(struct rank *r, const struct hd_key *key, struct hd_hparam *ret_hparam)
{
    const void *member = hd_job_member(key, &r->job);
    struct hd_text text = {0};
    double number;

    *ret_hparam = (struct hd_hparam){.key = key->path};
    if (hd_job_format(key, &r->job, &text) || !text.data) {
        hd_text_free(&text);
        return false;
    }
    if (key->kind == HD_KEY_BOOL) {
        ret_hparam->is_bool = true;
        ret_hparam->number = *(const bool *)member;
    } else if ((key->kind == HD_KEY_INT || key->kind == HD_KEY_REAL) &&
               !hd_text_to_double(text.data, -HUGE_VAL, HUGE_VAL, &number)) {
        ret_hparam->number = number;
    } else {
        ret_hparam->text = hd_arena_strdup(&r->arena, hd_job_word_in_file(key, text.data));
    }
    hd_text_free(&text);
    return ret_hparam->text ||
           (key->kind != HD_KEY_WORD && key->kind != HD_KEY_NAME && key->kind != HD_KEY_PATH);
}

/* Returns whether a key is of use to somebody who compares runs: it has another value than its
 * default, or decides how a run learns. */
static bool is_compared(const struct rank *r, const struct hd_key *key,
                        const struct hd_job *defaults)
{
    static const char *const always[] = {"train.seed",           "train.weight_decay",
                                         "train.optimizer.name", "train.lr.decay",
                                         "train.beta2",          "train.clip"};

    if (key->hidden || key->kind == HD_KEY_FORM || strcmp(key->path, "name") == 0 ||
        strlen(key->path) > HD_TENSORBOARD_TAG_MAX)
        return false;
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        if (strcmp(key->path, always[i]) == 0)
            return true;
    return !hd_job_members_equal(key, &r->job, defaults);
}

/* Writes the keys of the job for the tab HPARAMS, in which TensorBoard compares runs. */
static enum hd_status begin_session(struct rank *r)
{
    struct hd_job *defaults = malloc(sizeof *defaults);
    struct hd_hparam hparams[HD_TENSORBOARD_HPARAMS_MAX];
    size_t count = 0;

    if (!defaults)
        return hd_err(HD_NO_MEMORY, "no memory for hyper-parameters");
    hd_job_set_defaults(defaults);
    for (size_t i = 0; i < hd_job_key_count && count < HD_TENSORBOARD_HPARAMS_MAX; i++)
        if (is_compared(r, &hd_job_keys[i], defaults))
            count += fill_hparam(r, &hd_job_keys[i], &hparams[count]);
    free(defaults);
    return hd_tensorboard_begin_session(r->tensorboard, hparams, count);
}

void rank_open_tensorboard(struct rank *r)
{
    enum hd_status st = open_tensorboard(r);

    if (!st && r->tensorboard)
        st = begin_session(r);
    if (st)
        tensorboard_fails(r);
}

void rank_end_tensorboard(struct rank *r)
{
    if (r->tensorboard && hd_tensorboard_end_session(r->tensorboard))
        tensorboard_fails(r);
}

/* ---- numbers ----------------------------------------------------------------------------------*/

void rank_show(struct rank *r, int64_t step, const struct hd_scalar *scalars, size_t count)
{
    enum hd_status st = r->tensorboard ? HD_OK : open_tensorboard(r);

    if (!st && r->tensorboard)
        st = hd_tensorboard_add(r->tensorboard, step, scalars, count);
    if (st)
        tensorboard_fails(r);
}

/* Shows a sample as a block of code, so that the text is not read as Markdown. */
void rank_show_sample(struct rank *r, int64_t index, const char *prompt, const char *text)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    struct hd_text shown = {0};
    char tag[HD_TENSORBOARD_TAG_MAX];
    enum hd_status st = r->tensorboard ? HD_OK : open_tensorboard(r);

    hd_text_add(&shown, "    ");
    for (int half = 0; half < 2; half++)
        for (const char *c = half ? text : prompt; *c; c++)
            hd_text_add(&shown, *c == '\n' ? "\n    " : "%c", *c);
    (void)snprintf(tag, sizeof tag, "samples/%lld", (long long)index + 1);
    if (!st && shown.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the text of a sample");
    if (!st && r->tensorboard)
        st = hd_tensorboard_add_text(r->tensorboard, step, tag, shown.data);
    if (st)
        tensorboard_fails(r);
    hd_text_free(&shown);
}

/* Returns a NaN without its sign, which would be printed. */
static double without_sign(double value)
{
    return isnan(value) ? NAN : value;
}

struct hd_step_metrics rank_metrics(const struct rank *r, const struct hd_step_result *s)
{
    struct hd_step_metrics metrics = {.loss = without_sign(s->loss),
                                      .grad_norm = without_sign(s->grad_norm),
                                      .lr = s->lr,
                                      .tokens = s->tokens,
                                      .tokens_per_s = s->tokens_per_s,
                                      .step_ms = s->step_ms,
                                      .mfu = s->mfu,
                                      .targets = s->targets,
                                      .pairs = s->pairs.count,
                                      .margin = without_sign(s->pairs.margin),
                                      .accuracy = s->pairs.accuracy,
                                      .reward = without_sign(s->pairs.reward),
                                      .answers = s->pairs.answers,
                                      .reward_chosen = without_sign(s->pairs.chosen),
                                      .reward_rejected = without_sign(s->pairs.rejected),
                                      .kl = without_sign(s->pairs.kl),
                                      .z_loss = without_sign(s->z_loss),
                                      .distill_loss = without_sign(s->distill_loss),
                                      .max_attention_logit = without_sign(s->max_attention_logit),
                                      .clipped_heads = s->clipped_heads,
                                      .loss_scale = (double)s->loss_scale};

    for (int k = 0; k < s->further.count; k++) {
        (void)hd_metric_set(&metrics, HD_METRIC_INDEX_mtp_loss_1 + k,
                            without_sign(s->further.loss[k]));
        (void)hd_metric_set(&metrics, HD_METRIC_INDEX_mtp_hits_1 + k, s->further.hits[k]);
    }
    if (s->router.present) {
        metrics.router_balance = s->router.balance;
        metrics.router_z = s->router.z;
        metrics.router_dropped = s->router.dropped;
    }
    rank_policy_metrics(r, s, &metrics);
    return metrics;
}

/* Returns the load of the busiest expert, relative to an even share, as `heddle watch` shows it. */
static double busiest_expert(const struct hd_router_result *router)
{
    int64_t sum = 0, most = 0;

    for (int64_t e = 0; e < router->experts; e++) {
        sum += router->load[e];
        most = router->load[e] > most ? router->load[e] : most;
    }
    return sum ? (double)most * (double)router->experts / (double)sum : 0;
}

void rank_show_step(struct rank *r, const struct hd_step_result *s)
{
    const struct hd_step_metrics metrics = rank_metrics(r, s);
    struct hd_scalar scalars[HD_METRIC_COUNT + 1];
    size_t count = 0;

    for (int i = 0; i < HD_METRIC_COUNT; i++)
        if (*hd_metrics[i].tag && hd_metric_is_present(&metrics, i, s->router.present))
            scalars[count++] = (struct hd_scalar){hd_metrics[i].tag, hd_metric_get(&metrics, i)};
    if (s->router.present)
        scalars[count++] = (struct hd_scalar){"router/busiest_expert", busiest_expert(&s->router)};
    rank_show(r, s->step, scalars, count);
}
