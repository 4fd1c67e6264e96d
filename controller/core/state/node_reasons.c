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
static void add_absence(const struct core_node *node, enum core_absence absence, long long silent_s,
                        struct hd_text *text)
{
    switch (absence) {
#define WHY(name, ...)                  \
    case CORE_ABSENCE_##name:           \
        hd_text_add(text, __VA_ARGS__); \
        break;
        WHY(NOT_COME, "has not connected since the controller was started %lld s ago", silent_s)
        WHY(UNREACHABLE, "has been unreachable for %lld s", silent_s)
        WHY(AWAY,
            "has been without its heddled for %lld s: that was stopped, or its connection is lost",
            silent_s)
        WHY(CONNECTING, "is connecting")
        WHY(REFUSES, "%s", node->refuses_attempts)
        WHY(STALE, "is still stopping attempt %d of job %" PRIu64, node->stale_attempt,
            node->stale_job)
#undef WHY
    case CORE_ABSENCE_NONE:
    case CORE_ABSENCE_LOST:
    case CORE_ABSENCE_DRAINED:
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
    const char *problem = node->jobs_dir_problem ? node->jobs_dir_problem : "";

    switch (obstacle) {
#define WHY(name, ...)                  \
    case CORE_GANG_OBSTACLE_##name:     \
        hd_text_add(text, __VA_ARGS__); \
        break;
        WHY(JOBS_DIR, " (no jobs with other nodes: it does not see the jobs directory%s%s)",
            *problem ? ": " : "", problem)
        WHY(ADDRESS, " (no jobs with other nodes: its heddled has no --data-address)")
        WHY(ENGINE, " (no jobs with GPUs of other nodes: it has no NCCL, which heddled --doctor "
                    "looks for)")
        WHY(LOOPBACK, " (jobs only with nodes of its own machine: its --data-address is %s)",
            node->facts.data_address)
        WHY(NUMERICS, " (jobs only with nodes that compute with %s)", node->facts.compute[kind])
#undef WHY
    case CORE_GANG_OBSTACLE_NONE:
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
