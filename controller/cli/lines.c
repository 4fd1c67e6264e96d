#include "controller/cli/lines.h"

#include <string.h>

#include "job/job.h"
#include "proto/step.h"

enum { AUTO_LINES_MAX = 100 };

bool hd_cli_log_step(int64_t step, int64_t steps, int64_t every)
{
    static const int64_t factors[] = {1, 2, 5};

    for (int64_t power = 1; every <= 0; power *= 10)
        for (int i = 0; i < 3 && every <= 0; i++)
            if (steps / (factors[i] * power) <= AUTO_LINES_MAX)
                every = factors[i] * power;
    return step == 1 || step == steps || step % every == 0;
}

/* ---- steps ---- */

/* Appends the busiest expert's load relative to an even share; 1: all experts have equally many
 * tokens. */
static void add_router(struct hd_text *out, const Heddle__V1__StepReport *s)
{
    double sum = 0, most = 0;

    for (size_t i = 0; i < s->n_expert_load; i++) {
        const double load = (double)s->expert_load[i];

        sum += load;
        most = load > most ? load : most;
    }
    hd_text_add(out, "  balance %.4f", s->router_balance);
    if (sum > 0)
        hd_text_add(out, "  busiest expert %.2fx", most * (double)s->n_expert_load / sum);
    if (s->router_dropped)
        hd_text_add(out, "  dropped %lld", (long long)s->router_dropped);
}

/* Appends the line of a step. Losses have six decimals, to show small differences between runs. */
static void add_step(struct hd_text *out, const struct lines *lines,
                     const Heddle__V1__StepReport *s)
{
    struct hd_step_metrics metrics;
    char rate[32];

    hd_text_add(out, "step %lld/%lld  loss %.6f  grad_norm %.4g  lr %.4g", (long long)s->step,
                (long long)lines->progress->steps, s->loss, s->grad_norm, s->lr);
    if (s->n_expert_load)
        add_router(out, s);
    hd_step_from_message(s, &metrics);
    if (metrics.mtp_loss_1 != 0)
        hd_text_add(out, "  mtp_loss %.4f  mtp_hits %.1f%%", metrics.mtp_loss_1,
                    100 * metrics.mtp_hits_1);
    if (metrics.z_loss != 0)
        hd_text_add(out, "  z_loss %.4f", metrics.z_loss);
    if (metrics.distill_loss != 0)
        hd_text_add(out, "  distill_loss %.4f", metrics.distill_loss);
    if (metrics.max_attention_logit > 0)
        hd_text_add(out, "  max_logit %.4g  clipped_heads %lld", metrics.max_attention_logit,
                    (long long)metrics.clipped_heads);
    if (metrics.pairs)
        hd_text_add(out, "  margin %.4f  accuracy %.1f%%", metrics.margin, 100 * metrics.accuracy);
    if (metrics.answers)
        hd_text_add(out, "  chosen %.4f  rejected %.4f  kl %.4f", metrics.reward_chosen,
                    metrics.reward_rejected, metrics.kl);
    if (metrics.completions && metrics.distill_loss != 0) /* gkd, which rates no answers */
        hd_text_add(out, "  length %.1f", metrics.length_mean);
    else if (metrics.completions)
        hd_text_add(out, "  reward %.4f  reward_std %.4f  length %.1f  entropy %.4f",
                    metrics.reward, metrics.reward_std, metrics.length_mean, metrics.entropy);
    if (metrics.completions && metrics.kl != 0)
        hd_text_add(out, "  kl %.4f", metrics.kl);
    if (!lines->times)
        return;
    if (metrics.completions)
        hd_text_add(out, "  rollout %.1f ms  rewards %.1f ms", metrics.rollout_ms,
                    metrics.rewards_ms);
    cli_format_count(s->tokens_per_s, rate);
    hd_text_add(out, "  %s tok/s  %.1f ms", rate, s->step_ms);
    if (s->mfu > 0)
        hd_text_add(out, "  mfu %.1f%%", 100 * s->mfu);
}

/* ---- checkpoints ---- */

static void add_checkpoint_line(struct hd_text *out, const struct lines *lines,
                                const Heddle__V1__CheckpointInfo *c)
{
    const size_t n = strlen(lines->directory);
    const char *path = c->path;

    if (n && strncmp(path, lines->directory, n) == 0 && path[n] == '/')
        path += n + 1;
    hd_text_add(out, "checkpoint at step %lld: ", (long long)c->step);
    cli_add_clean(out, path);
    if (c->_val_loss_case)
        hd_text_add(out, "  val_loss %.6f", c->val_loss);
}

/* ---- events ---- */

/* Prefix of the line of each event kind; kinds not listed are shown only by `heddle events`. */
static const struct {
    const char *kind, *prefix;
    bool is_error, is_placed; /* is_placed: rank and node are appended to the line */
} shown_events[] = {
    {"note", "", false, false},
    {"warning", "warning: ", true, true},
    {"error", "error: ", true, true},
    {"hang", "warning: ", true, true},
    {"straggler", "warning: ", true, true},
    {"guard", "warning: ", true, false},
    {"sample", "sample of ", false, false},
    /* the event's message names rank and node already */
    {"attempt_failed", "failed: ", true, false},
    {"checkpoint_damaged", "warning: ", true, false},
    {"layout", "layout: ", false, false},
    {"no_fit", "", true, false},
    {"step_time", "warning: ", true, false},
    {"cancel", "", false, false},
    {"killed", "", false, false},
};

static void add_event(struct hd_text *out, const struct lines *lines, const Heddle__V1__Event *e)
{
    const size_t count = sizeof shown_events / sizeof shown_events[0];
    size_t i = 0;

    while (i < count && strcmp(shown_events[i].kind, e->kind) != 0)
        i++;
    if (i == count || (lines->one_machine && strcmp(e->kind, "cancel") == 0))
        return; /* in `heddle local` the only user made the request */
    if (*shown_events[i].prefix)
        cli_add_coloured(out, shown_events[i].is_error && lines->error_colour ? "31" : NULL,
                         shown_events[i].prefix);
    cli_add_people(out, e->message);
    if (!shown_events[i].is_placed || e->rank < 0)
        return;
    hd_text_add(out, " (rank %d", e->rank);
    if (*e->node && !lines->one_machine) {
        hd_text_add(out, " on ");
        cli_add_clean(out, e->node);
    }
    hd_text_add(out, ")");
}

static void add_status(struct hd_text *out, const Heddle__V1__JobStatus *status)
{
    char word[CLI_WORD_MAX];

    if (status->state == HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING && !*status->reason)
        return; /* lines_add_placement prints the attempt's line */
    hd_text_add(out, "%s", cli_job_state(status->state, word));
    if (*status->reason) {
        hd_text_add(out, ": ");
        cli_add_people(out, status->reason);
    }
}

/* ---- the end ---- */

static void add_end(struct hd_text *out, const struct lines *lines, const Heddle__V1__JobEnd *end)
{
    const struct progress *p = lines->progress;
    char word[CLI_WORD_MAX];

    hd_text_add(out, "job ");
    if (lines->job)
        hd_text_add(out, "%llu ", (unsigned long long)lines->job);
    cli_add_coloured(out, lines->colour ? cli_state_colour(end->state) : NULL,
                     cli_job_state(end->state, word));
    if (end->step)
        hd_text_add(out, " at step %lld", (long long)end->step);
    if (end->attempts > 1)
        hd_text_add(out, " in %d attempts", end->attempts);
    if (p->step && p->step == end->step) {
        hd_text_add(out, ", loss %.6f", p->loss);
        for (int i = 0; i < p->validation_count; i++) {
            const char *set = p->validations[i].set;
            const bool is_first_loss = !i && !hd_job_val_report_is_score(set);

            hd_text_add(out, "%s%s%s %.6f", is_first_loss ? ", validation loss" : ", ",
                        is_first_loss && *set ? " " : "", set, p->validations[i].loss);
        }
        if (p->validation_count && p->validation_step != end->step)
            hd_text_add(out, " of step %lld", (long long)p->validation_step);
    }
    if (*end->reason) {
        hd_text_add(out, ": ");
        cli_add_people(out, end->reason);
    }
}

/* Appends a validation: the loss of a set, or a score of questions. */
static void add_validation(struct hd_text *out, const Heddle__V1__ValidationReport *v)
{
    if (hd_job_val_report_is_score(v->set))
        hd_text_add(out, "validation at step %lld: %s %.4f of %lld questions", (long long)v->step,
                    v->set, v->loss, (long long)v->tokens);
    else
        hd_text_add(out, "validation at step %lld: %s%sloss %.6f", (long long)v->step, v->set,
                    *v->set ? " " : "", v->loss);
}

bool lines_add(struct hd_text *out, const struct lines *lines,
               const Heddle__V1__WatchJobResponse *entry)
{
    switch (entry->body_case) {
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP:
        add_step(out, lines, entry->step);
        return true;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_VALIDATION:
        add_validation(out, entry->validation);
        return true;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_CHECKPOINT:
        add_checkpoint_line(out, lines, entry->checkpoint);
        return true;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END:
        add_end(out, lines, entry->end);
        return true;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT:
        add_event(out, lines, entry->event);
        return false;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS:
        add_status(out, entry->status);
        return false;
    default: /* event of a newer controller, unknown to this build */
        return false;
    }
}

/* ---- where an attempt runs ---- */

/* Appends " on n1, n2"; consecutive ranks share a node. */
static void add_node_names(struct hd_text *out, const Heddle__V1__Plan *plan)
{
    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (i && strcmp(plan->ranks[i]->node, plan->ranks[i - 1]->node) == 0)
            continue;
        hd_text_add(out, "%s", i ? ", " : " of ");
        cli_add_clean(out, plan->ranks[i]->node);
    }
}

/* Appends the axes larger than 1: "dp 2", "tp 2 x dp 2". */
static void add_axes(struct hd_text *out, const Heddle__V1__Plan *plan)
{
    const struct {
        const char *name;
        int32_t size;
    } axes[] = {{"tp", plan->tp}, {"cp", plan->cp}, {"ep", plan->ep}, {"pp", plan->pp}};

    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        if (axes[i].size > 1)
            hd_text_add(out, "%s %d x ", axes[i].name, axes[i].size);
    hd_text_add(out, "dp %d", plan->dp);
}

void lines_add_placement(struct hd_text *out, const struct lines *lines,
                         const Heddle__V1__AttemptStatus *attempt)
{
    const Heddle__V1__Plan *plan = attempt->plan;
    char word[CLI_WORD_MAX];

    if (attempt->attempt > 1)
        hd_text_add(out, "attempt %d ", attempt->attempt);
    hd_text_add(out, "running on %zu %s device%s", plan->n_ranks,
                cli_device_kind(plan->device, word), plan->n_ranks == 1 ? "" : "s");
    if (!lines->one_machine)
        add_node_names(out, plan);
    if (plan->threads_per_device)
        hd_text_add(out, ", %d thread%s each", plan->threads_per_device,
                    plan->threads_per_device == 1 ? "" : "s");
    hd_text_add(out, ": ");
    add_axes(out, plan);
    hd_text_add(out, ", micro-batch %d x %d, %s", plan->micro_batch, plan->micro_batches,
                cli_precision(plan->precision, word));
    if (attempt->base_checkpoint)
        hd_text_add(out, ", from step %lld", (long long)attempt->base_checkpoint->step);
}
