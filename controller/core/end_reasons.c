/* end_reasons: why attempts and jobs have ended, in sentences. */
#include <stdio.h>

#include "controller/core/core_texts.h"

/* Appends rank, node and exit status of a failure; for a hang also the device, which may be the
 * cause. */
static void describe_rank(const struct core_attempt *attempt, const struct hd_end_record *end,
                          struct hd_text *text)
{
    const struct hd_plan_record *plan = &attempt->rec.plan;

    if (end->rank >= 0)
        hd_text_add(text, ": rank %d", end->rank);
    if (end->node && *end->node)
        hd_text_add(text, "%s %s", end->rank >= 0 ? " on" : ": node", end->node);
    if (end->cause == HD_END_CAUSE_HANG && end->rank >= 0 && end->rank < plan->rank_count)
        hd_text_add(text, ", device %d", plan->ranks[end->rank].device);
    if (end->cause == HD_END_CAUSE_HANG)
        return; /* the rank's exit status only reflects that it was killed */
    if (end->signal)
        hd_text_add(text, ": killed by signal %d", end->signal);
    else if (end->exit_code)
        hd_text_add(text, ": exit code %d", end->exit_code);
}

void core_describe_end(const struct core_attempt *attempt, const struct hd_end_record *end,
                       char *ret_text, size_t size)
{
    struct hd_text text = {0};
    const char *all;

    hd_text_add(&text, "%s", hd_end_cause_name((int)end->cause));
    if (end->cause != HD_END_CAUSE_DIVERGED) /* divergence is not the fault of one rank */
        describe_rank(attempt, end, &text);
    if (end->message && *end->message)
        hd_text_add(&text, ": %s", end->message);
    all = text.data && !text.failed ? text.data : "";
    (void)snprintf(ret_text, size, "%.*s", (int)hd_record_fit(all, size - 1), all);
    hd_text_free(&text);
}
