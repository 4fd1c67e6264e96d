/* wait_reasons: why queued jobs wait, in sentences. */
#include <inttypes.h>

#include "base/clock.h"
#include "controller/core/core_texts.h"

enum { STEPS_NAMED_MAX = 8 }; /* most missing checkpoints that a reason names */

/* ---- missing checkpoints ----------------------------------------------------------------------*/

void core_add_missing_names(const struct hd_core *core, const struct core_job *job, bool all,
                            struct hd_text *text)
{
    const struct hd_checkpoint_record *newest = NULL;
    const struct core_node *node;
    size_t count = 0, named = 1;

    for (size_t i = 0; i < job->checkpoint_count; i++) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i];

        count += c->missing;
        if (c->missing && (!newest || c->step > newest->step ||
                           (c->step == newest->step && c->attempt > newest->attempt)))
            newest = c;
    }
    if (!newest)
        return;
    node = newest->shared ? NULL : core_find_node(core, newest->node_uuid);
    hd_text_add(text, "step %lld of attempt %d (%s%s%s)", (long long)newest->step, newest->attempt,
                newest->path, node ? " on " : "", node ? node->rec.name : "");
    for (size_t i = job->checkpoint_count; all && i > 0 && named < STEPS_NAMED_MAX; i--) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i - 1];

        if (!c->missing || c == newest)
            continue;
        hd_text_add(text, ", step %lld of attempt %d", (long long)c->step, c->attempt);
        named++;
    }
    if (count > named)
        hd_text_add(text, " and %zu more", count - named);
}

void core_add_missing(const struct hd_core *core, const struct core_job *job, struct hd_text *text)
{
    bool is_shared = false;

    for (size_t i = 0; i < job->checkpoint_count; i++)
        is_shared |= job->checkpoints[i].missing && job->checkpoints[i].shared;
    hd_text_add(text, "its checkpoints are not on the disk: ");
    core_add_missing_names(core, job, true, text);
    if (is_shared)
        hd_text_add(text, "; restore a state of the jobs directory that has one (it is searched "
                          "every minute, and at once after heddle hold and heddle release)");
    else
        hd_text_add(text, "; bring the node's disk back, then heddle hold and heddle release (the "
                          "next attempt that does not find its checkpoint counts against "
                          "restart.max)");
    hd_text_add(text,
                ", or give each of them up, to begin at step 0: heddle checkpoint rm %" PRIu64
                " --step N",
                job->rec.job);
    if (job->search_problem && *job->search_problem)
        hd_text_add(text, "; the last search failed: %s", job->search_problem);
}

/* ---- better placements ------------------------------------------------------------------------*/

void core_add_placement_text(const struct hd_core *core, int32_t nodes, int32_t tier,
                             struct hd_text *text)
{
    const struct hd_node_tree *tree = core->config.tree;

    hd_text_add(text, "%d node%s", nodes, nodes == 1 ? "" : "s");
    if (tier && tree && tree->tier_count && tier <= tree->tier_count)
        hd_text_add(text, " at one switch of tier %s", tree->tiers[tier - 1].name);
    else if (tier && tree && tree->tier_count)
        hd_text_add(text, " at several switches");
}

void core_add_choice(const struct hd_core *core, const struct hd_core_choice *choice, bool waits,
                     struct hd_text *text)
{
    const int64_t differs_ms = choice->saved_ms > 0 ? choice->saved_ms : -choice->saved_ms;
    const bool opens = waits && choice->now_ms > core->now.wall_ms; /* the job does not fit now, and
                                                                     * waits */
    char at[HD_CLOCK_TEXT_MAX], span[HD_CLOCK_TEXT_MAX], first[HD_CLOCK_TEXT_MAX];
    char gain[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(choice->later_ms, at);
    hd_clock_format_utc(choice->now_ms, first);
    hd_clock_format_span(differs_ms, span);
    if (opens)
        hd_text_add(text, "could start at %s on ", first);
    else
        hd_text_add(text, waits ? "could start now on " : "started on ");
    core_add_placement_text(core, choice->nodes_now, choice->tier_now, text);
    hd_text_add(text, " at %.3g s a step; %s", choice->step_now_s, waits ? "waits for " : "on ");
    core_add_placement_text(core, choice->nodes_later, choice->tier_later, text);
    hd_text_add(text, " at %.3g s a step, %s at %s, %s %s %s", choice->step_later_s,
                waits ? "expected" : "which would be free", at,
                waits ? "where it ends" : "it would end", span,
                choice->saved_ms > 0 ? "earlier" : "later");
    if (!waits || choice->saved_ms > 0)
        return;
    hd_clock_format_span(choice->gain_ms, gain);
    hd_text_add(text, "; but it holds its devices %s less there, and other jobs wait for them",
                gain);
}
