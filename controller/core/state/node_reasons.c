/* node_reasons: why nodes take no new jobs, why they cannot share a job with other nodes, and which
 * of their devices are slow, in sentences. */
#include <inttypes.h>
#include <string.h>

#include "controller/core/state/texts.h"

/* ---- nodes that take no new jobs --------------------------------------------------------------*/

static const char *drain_reason_of(const struct core_node *node)
{
    const char *reason = node->rec.drain_reason;

    return reason && *reason ? reason : "no reason given";
}

/* Appends why the node takes no new jobs, besides a drain. */
static void add_absence(const struct core_node *node, enum core_absence absence, int64_t silent_s,
                        struct hd_text *text)
{
    switch (absence) {
    case CORE_ABSENCE_NONE:
    case CORE_ABSENCE_LOST:
    case CORE_ABSENCE_DRAINED:
        break;
    case CORE_ABSENCE_NOT_COME:
        hd_text_add(text, "has not connected since the controller was started %lld s ago",
                    (long long)silent_s);
        break;
    case CORE_ABSENCE_UNREACHABLE:
        hd_text_add(text, "has been unreachable for %lld s", (long long)silent_s);
        break;
    case CORE_ABSENCE_AWAY:
        hd_text_add(text,
                    "has been without its heddled for %lld s: that was stopped, or its connection "
                    "is lost",
                    (long long)silent_s);
        break;
    case CORE_ABSENCE_CONNECTING:
        hd_text_add(text, "is connecting");
        break;
    case CORE_ABSENCE_REFUSES:
        hd_text_add(text, "%s", node->refuses_attempts);
        break;
    case CORE_ABSENCE_STALE:
        hd_text_add(text, "is still stopping attempt %d of job %" PRIu64, node->stale_attempt,
                    node->stale_job);
        break;
    }
}

void core_add_absence(const struct core_node *node, enum core_absence absence, bool is_empty,
                      int64_t silent_ms, struct hd_text *text)
{
    if (absence == CORE_ABSENCE_NONE)
        return;
    if (absence == CORE_ABSENCE_LOST)
        hd_text_add(text, "is lost");
    if (absence == CORE_ABSENCE_LOST && node->rec.drain)
        hd_text_add(text, "; it is drained: %s", drain_reason_of(node));
    else if (node->rec.drain)
        hd_text_add(text, "is %s: %s%s", is_empty ? "drained" : "draining", drain_reason_of(node),
                    absence == CORE_ABSENCE_DRAINED ? "" : "; it ");
    add_absence(node, absence, silent_ms / 1000, text);
}

/* Returns the length of the first sentence of a problem text, which names the problem; the rest
 * says what to do, which the list of nodes shows once for all nodes. */
static int first_sentence(const char *problem)
{
    const char *end = strstr(problem, ". ");

    return (int)(end ? (size_t)(end - problem) : strlen(problem));
}

void core_add_no_jobs_dir(const struct hd_core *core, const struct core_node *node,
                          enum core_no_jobs_dir where, struct hd_text *text)
{
    const char *why = node->jobs_dir_problem && *node->jobs_dir_problem ? node->jobs_dir_problem
                                                                        : "it is another folder";

    if (where == CORE_NO_JOBS_DIR_ON_CONTROLLER)
        hd_text_add(text,
                    "takes no new jobs: the controller does not see the jobs directory (%.*s)",
                    first_sentence(core->jobs_dir_problem), core->jobs_dir_problem);
    else if (where == CORE_NO_JOBS_DIR_ON_NODE)
        hd_text_add(text,
                    "takes no new jobs: it does not see the cluster's jobs directory any more "
                    "(%s); mount it there. If the node is to have a folder of its own now: heddle "
                    "node rm %s, and start heddled again",
                    why, node->rec.name);
}

/* ---- jobs on several nodes --------------------------------------------------------------------*/

void core_add_gang_obstacle(const struct core_node *node, enum hd_device_kind kind,
                            enum core_gang_obstacle obstacle, struct hd_text *text)
{
    switch (obstacle) {
    case CORE_GANG_OBSTACLE_NONE:
        break;
    case CORE_GANG_OBSTACLE_JOBS_DIR:
        hd_text_add(text, " (no jobs with other nodes: it does not see the jobs directory%s%s)",
                    node->jobs_dir_problem && *node->jobs_dir_problem ? ": " : "",
                    node->jobs_dir_problem ? node->jobs_dir_problem : "");
        break;
    case CORE_GANG_OBSTACLE_ADDRESS:
        hd_text_add(text, " (no jobs with other nodes: its heddled has no --data-address)");
        break;
    case CORE_GANG_OBSTACLE_ENGINE:
        hd_text_add(text, " (no jobs with GPUs of other nodes: it has no NCCL, which heddled "
                          "--doctor looks for)");
        break;
    case CORE_GANG_OBSTACLE_LOOPBACK:
        hd_text_add(text, " (jobs only with nodes of its own machine: its --data-address is %s)",
                    node->data_address);
        break;
    case CORE_GANG_OBSTACLE_NUMERICS:
        hd_text_add(text, " (jobs only with nodes that compute with %s)", node->compute[kind]);
        break;
    }
}

/* ---- slow devices -----------------------------------------------------------------------------*/

/* Appends a rate in units of 1e9, without an exponent even for 1e15 per second. */
static void add_giga(struct hd_text *text, double rate)
{
    hd_text_add(text, rate < 9.995e11 ? "%.3g" : "%.0f", rate / 1e9);
}

void core_add_slow_rate(const struct core_slow_rate *slow, struct hd_text *text)
{
    hd_text_add(text, "%s%s at ", text->len_bytes ? "; " : "", slow->name);
    add_giga(text, slow->value);
    hd_text_add(text, " of ");
    add_giga(text, slow->median);
    hd_text_add(text, " %s, the median of %zu such devices", slow->unit, slow->count);
}
