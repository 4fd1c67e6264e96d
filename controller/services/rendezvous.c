/* rendezvous: exchanges the addresses of the ranks of an attempt.
 *
 * In each round every rank puts one value (its addresses). When all values of a round have arrived,
 * every node of the attempt gets all of them. Nothing is stored: after a restart of the controller
 * the daemons put unanswered values again. An incomplete round is freed when the attempt ends, at
 * the latest after start_timeout_ms of the core.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/services/internal.h"

struct rendezvous {
    uint64_t job;
    int32_t attempt;
    uint32_t round;
    size_t world, value_count;
    /* value of each rank, [ranks]; data NULL: this rank has not put its value yet */
    ProtobufCBinaryData *values;
    struct rendezvous *next;
};

static void free_rendezvous(struct rendezvous *r)
{
    for (size_t i = 0; r->values && i < r->world; i++)
        free(r->values[i].data);
    free(r->values);
    free(r);
}

static struct rendezvous *find_or_make(struct controller *c, const struct hd_attempt_record *a,
                                       uint32_t round)
{
    struct rendezvous *r = c->rendezvous;

    while (r && (r->job != a->job || r->attempt != a->attempt || r->round != round))
        r = r->next;
    if (r)
        return r;
    r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->job = a->job;
    r->attempt = a->attempt;
    r->round = round;
    r->world = (size_t)a->plan.rank_count;
    r->values = calloc(r->world, sizeof *r->values);
    if (!r->values) {
        free_rendezvous(r);
        return NULL;
    }
    r->next = c->rendezvous;
    c->rendezvous = r;
    return r;
}

static enum hd_status check_put(const struct hd_attempt_record *a, const char *node_uuid,
                                const Heddle__V1__RendezvousPut *put)
{
    if (put->rank < 0 || put->rank >= a->plan.rank_count ||
        strcmp(a->plan.ranks[put->rank].node_uuid, node_uuid) != 0)
        return hd_err(HD_INVALID,
                      "attempt %" PRId32 " of job %" PRIu64 " has no rank %" PRId32 " on this node",
                      put->attempt, put->job, put->rank);
    if (put->value.len < 1 || put->value.len > RENDEZVOUS_VALUE_MAX)
        return hd_err(HD_LIMIT, "a rendezvous value has %zu bytes; 1 to %d are allowed",
                      put->value.len, RENDEZVOUS_VALUE_MAX);
    if (put->round >= RENDEZVOUS_ROUNDS_MAX)
        return hd_err(HD_LIMIT, "rendezvous round %" PRIu32 ": must be less than %d", put->round,
                      RENDEZVOUS_ROUNDS_MAX);
    return HD_OK;
}

static enum hd_status keep_value(struct rendezvous *r, const Heddle__V1__RendezvousPut *put)
{
    ProtobufCBinaryData *value = &r->values[put->rank];
    uint8_t *copy = malloc(put->value.len);

    if (!copy)
        return hd_err(HD_NO_MEMORY, "no memory for a rendezvous");
    memcpy(copy, put->value.data, put->value.len);
    r->value_count += value->data == NULL;
    free(value->data);
    value->data = copy;
    value->len = put->value.len;
    return HD_OK;
}

enum hd_status rendezvous_put(struct controller *c, struct hd_rpc_call *call, const char *node_uuid,
                              const Heddle__V1__RendezvousPut *put)
{
    const struct hd_attempt_record *attempt = hd_core_attempt(c->core, put->job, put->attempt);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__RendezvousSet set = HEDDLE__V1__RENDEZVOUS_SET__INIT;
    struct rendezvous *r;
    bool was_complete;
    enum hd_status st;

    if (!attempt || attempt->state == HD_ATTEMPT_STATE_ENDED)
        return HD_OK; /* attempt ended: its ranks are being stopped */
    st = check_put(attempt, node_uuid, put);
    if (st)
        return st;
    r = find_or_make(c, attempt, put->round);
    if (!r)
        return hd_err(HD_NO_MEMORY, "no memory for a rendezvous");
    was_complete = r->value_count == r->world;
    st = keep_value(r, put);
    if (st || r->value_count < r->world)
        return st;
    set.job = r->job;
    set.attempt = r->attempt;
    set.round = r->round;
    set.n_values = r->world;
    set.values = r->values;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_RENDEZVOUS_SET;
    message.rendezvous_set = &set;
    if (was_complete)
        /* a repeated put: only this node needs the values */
        (void)hd_rpc_call_write(call, &message.base);
    else
        fleet_send_to_attempt(c, attempt, &message);
    return HD_OK;
}

void rendezvous_tick(struct controller *c)
{
    struct rendezvous **at = &c->rendezvous;

    while (*at) {
        struct rendezvous *r = *at;
        const struct hd_attempt_record *a = hd_core_attempt(c->core, r->job, r->attempt);

        if (a && a->state != HD_ATTEMPT_STATE_ENDED) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        free_rendezvous(r);
    }
}

void rendezvous_free_all(struct controller *c)
{
    while (c->rendezvous) {
        struct rendezvous *r = c->rendezvous;

        c->rendezvous = r->next;
        free_rendezvous(r);
    }
}
