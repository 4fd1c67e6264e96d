/* fence: prevents two controllers from leading the nodes of one cluster.
 *
 * The Hello of a daemon names the epoch that the daemon obeyed last. Compared with this
 * controller's:
 *
 *   a higher epoch, or this epoch of another       another controller leads: this one stops
 *     start
 *   an earlier epoch with more progress            this database is older than the nodes' state, so
 *                                                  it is a copy: this one stops
 *   either, of a controller in this same place     that controller has ended, because the state
 *                                                  directory is locked, and an older database was
 *                                                  restored here: this epoch rises above it
 *
 * An epoch counts only with a proof made with the database's secret, which a copy of the database
 * has and a node has not. Losses before a takeover were accepted by the person who ran the restore.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/fleet.h"
#include "pki/pki.h"

enum { PROGRESS_MS = 10000 };

static void prove(const struct controller *c, uint64_t number, const char *instance,
                  const char *place, uint64_t progress, unsigned char ret_proof[HD_PKI_HASH_BYTES])
{
    const char *const texts[] = {"epoch", hd_store_cluster_id(c->store), instance, place};

    hd_pki_chain(hd_store_own_epoch(c->store)->secret, number, (int64_t)progress, texts,
                 sizeof texts / sizeof texts[0], ret_proof);
}

void fence_open(struct controller *c)
{
    const struct hd_store_epoch *e = hd_store_own_epoch(c->store);
    char when[HD_CLOCK_TEXT_MAX];

    c->fence.number = e->number;
    c->fence.progress = c->fence.durable = e->progress;
    c->fence.taken_over_ms = e->taken_over_ms;
    c->fence.copied_ms = e->copied_ms;
    if (!e->restored)
        return;
    hd_clock_format_utc(e->copied_ms, when);
    hd_log(HD_LOG_WARN,
           "this database was restored from a copy%s%s and takes over (epoch %" PRIu64
           "): what happened since is unknown. Tokens revoked since are valid again (heddle token "
           "ls), nodes revoked or removed since are members again (heddle node revoke), nodes "
           "invited since are named here when they come (docs/operations.md, \"Backup\")",
           e->copied_ms ? " made at " : "", e->copied_ms ? when : "", e->number);
}

Heddle__V1__Epoch fence_claim(struct controller *c, uint64_t progress)
{
    const struct hd_store_epoch *e = hd_store_own_epoch(c->store);
    Heddle__V1__Epoch claim = HEDDLE__V1__EPOCH__INIT;

    claim.number = c->fence.number;
    claim.instance = convert_text(e->instance);
    claim.place = convert_text(e->place);
    claim.progress = progress;
    claim.cluster_id = convert_text(hd_store_cluster_id(c->store));
    prove(c, claim.number, e->instance, e->place, progress, c->fence.proof);
    claim.proof.data = c->fence.proof;
    claim.proof.len = sizeof c->fence.proof;
    return claim;
}

/* ---- progress ---------------------------------------------------------------------------------*/

struct progress_action {
    struct post_commit_action action;
    uint64_t progress;
};

static void run_progress(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct progress_action *p = (struct progress_action *)(void *)action;

    if (!st && p->progress > c->fence.durable)
        c->fence.durable = p->progress;
    free(p);
}

void fence_count(struct controller *c, struct transaction *transaction)
{
    const int64_t now_ms = hd_clock_now_ms();
    struct progress_action *p;
    char text[32];

    if (!transaction->batch->count || now_ms < c->fence.progress_due_ms)
        return;
    p = calloc(1, sizeof *p);
    if (!p)
        return;
    c->fence.progress_due_ms = now_ms + PROGRESS_MS;
    p->action.run = run_progress;
    p->progress = ++c->fence.progress;
    (void)snprintf(text, sizeof text, "%" PRIu64, p->progress);
    hd_batch_add_meta(transaction->batch, "progress", text);
    (void)snprintf(text, sizeof text, "%" PRId64, c->settled.wall_ms);
    hd_batch_add_meta(transaction->batch, "settled_ms", text);
    *transaction->end = &p->action;
    transaction->end = &p->action.next;
}

/* ---- claims of daemons ------------------------------------------------------------------------*/

static bool is_proven(const struct controller *c, const Heddle__V1__Epoch *seen)
{
    unsigned char proof[HD_PKI_HASH_BYTES];

    prove(c, seen->number, seen->instance, seen->place, seen->progress, proof);
    return seen->proof.len == sizeof proof && memcmp(seen->proof.data, proof, sizeof proof) == 0;
}

/* Raises this controller's epoch above the one that a node obeyed: an older database was put back
 * here by other means than heddle-controller restore. */
static void rise_above(struct controller *c, const char *node, const Heddle__V1__Epoch *seen)
{
    char text[32];

    c->fence.number = (seen->number > c->fence.number ? seen->number : c->fence.number) + 1;
    c->fence.rose = true;
    c->fence.taken_over_ms = hd_clock_wall_ms();
    c->fence.copied_ms = 0;
    hd_log(HD_LOG_WARN,
           "node %s has obeyed epoch %" PRIu64 " of the controller here, which this database does "
           "not know: an older one was put back. The epoch is %" PRIu64
           " from now on; what was done in between is unknown (docs/operations.md, \"Backup\")",
           node, seen->number, c->fence.number);
    (void)snprintf(text, sizeof text, "%" PRIu64, c->fence.number);
    hd_batch_add_meta(c->transaction->batch, "epoch", text);
    hd_batch_add_meta(c->transaction->batch, "takeover", text);
    (void)snprintf(text, sizeof text, "%" PRId64, c->fence.taken_over_ms);
    hd_batch_add_meta(c->transaction->batch, "taken_over_ms", text);
    hd_batch_add_meta(c->transaction->batch, "copied_ms", "0");
}

static enum hd_status stop(struct controller *c, const char *node, const Heddle__V1__Epoch *seen,
                           bool lost)
{
    const struct hd_store_epoch *e = hd_store_own_epoch(c->store);
    char text[HD_STORE_PLACE_MAX + 32];

    (void)snprintf(text, sizeof text, "%" PRIu64 " in %.*s", seen->number,
                   (int)hd_record_fit(seen->place, HD_STORE_PLACE_MAX - 1), seen->place);
    hd_batch_add_meta(c->transaction->batch, "fenced", text);
    (void)hd_err(HD_CONFLICT,
                 "%s: node %s has obeyed the controller of epoch %s; this one, in %s, has epoch "
                 "%" PRIu64 ", and stops, because two must not lead the same nodes. If the other "
                 "one is gone for good: heddle-controller restore --state-dir DIR here, and start "
                 "it again",
                 lost ? "this database is an older copy"
                      : "another controller of this cluster "
                        "leads",
                 node, text, e->place, c->fence.number);
    controller_fail(c, HD_CONFLICT);
    return hd_err(HD_UNAVAILABLE,
                  "the controller in %s (epoch %" PRIu64 ") stops: this node has obeyed the one of "
                  "epoch %s",
                  e->place, c->fence.number, text);
}

enum hd_status fence_take(struct controller *c, const char *node, const Heddle__V1__Epoch *seen)
{
    const struct hd_store_epoch *e = hd_store_own_epoch(c->store);
    bool newer, lost;

    if (!seen || strcmp(seen->cluster_id, hd_store_cluster_id(c->store)) != 0)
        return HD_OK;
    newer = seen->number > c->fence.number ||
            (seen->number == c->fence.number && strcmp(seen->instance, e->instance) != 0);
    lost = !newer && seen->number < c->fence.number && strcmp(seen->instance, e->instance) != 0 &&
           seen->number >= e->takeover && !c->fence.rose && seen->progress > e->progress;
    if (!newer && !lost)
        return HD_OK;
    if (!is_proven(c, seen)) {
        hd_log(HD_LOG_WARN,
               "node %s says that it has obeyed epoch %" PRIu64 " in %.200s, without a proof that "
               "holds here; it may refuse this controller",
               node, seen->number, seen->place);
        return HD_OK;
    }
    if (!c->transaction)
        return hd_err(HD_UNAVAILABLE, "the controller is stopping");
    if (strcmp(seen->place, e->place) != 0)
        return stop(c, node, seen, lost);
    rise_above(c, node, seen);
    return HD_OK;
}

bool fence_is_before(const struct controller *c, const Heddle__V1__Epoch *seen)
{
    const uint64_t takeover =
        c->fence.rose ? c->fence.number : hd_store_own_epoch(c->store)->takeover;

    if (!takeover) /* this database was never restored from a copy */
        return false;
    if (!seen) /* a daemon too old to send an epoch */
        return true;
    return strcmp(seen->cluster_id, hd_store_cluster_id(c->store)) == 0 && seen->number < takeover;
}
