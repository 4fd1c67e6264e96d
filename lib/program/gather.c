/* gather: inserts the gathers of weights that ZeRO 3 cuts (Rajbhandari et al. 2020; Zhao et al.
 * 2023, "PyTorch FSDP").
 *
 * A program gathers the weights of a unit once, into memory that lives until its last use there.
 * The gathers of a unit stand before the first use of the unit before it, on a stream of their own,
 * so they overlap with that unit's compute, and at most two units' weights are gathered at a time;
 * but a tied table, which both ends of F use, is there for all of F, and full recompute over K
 * units needs the weights of the K that it replays.
 */
#include "program/emit.h"

static int first_use(const struct hd_node_list *list, const struct hd_store *store)
{
    int i = 0;

    while (i < list->count && !hd_node_touches(list->nodes[i], store))
        i++;
    return i;
}

static void emit_gather(struct hd_emit *e, struct hd_store *gathered, int at)
{
    const struct hd_part *p = &e->registry->parts[gathered->part];

    e->unit = p->unit;
    hd_emit_comm(e,
                 HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = p->shard_group,
                         .count = p->shard_count, .dtype = p->compute),
                 HD_OPERANDS(comm, .received = {gathered, 0},
                             .sent = hd_emit_part(e, gathered->part, HD_STATE_COPY,
                                                  hd_part_base(p, HD_STATE_COPY))))
        ->stream = HD_STREAM_AHEAD;
    hd_move_last_to(&e->lists[e->call], at);
}

static bool is_gathered(const struct hd_node *first, const struct hd_store *s)
{
    return first->is_comm && hd_comm_operands_of(first)->received.store == s;
}

/* The store of this list that has no gather yet and is used first; NULL: none. */
static struct hd_store *next_store(const struct hd_emit *e, int *ret_at)
{
    const struct hd_node_list *list = &e->lists[e->call];
    struct hd_store *next = NULL;

    for (int part = 0; part < e->registry->part_count; part++) {
        struct hd_store *s = e->gathered[part * HD_CALL_COUNT + (int)e->call];
        const int at = s ? first_use(list, s) : 0;

        if (!s || is_gathered(list->nodes[at], s) || (next && at >= *ret_at))
            continue;
        next = s;
        *ret_at = at;
    }
    return next;
}

static void gather_for(struct hd_emit *e)
{
    int unit = -1, unit_at = 0, ahead_at = 0,
        at = 0; /* first use of this unit, of the one before */
    struct hd_store *s;

    while ((s = next_store(e, &at)) != NULL) {
        if (e->registry->parts[s->part].unit != unit) {
            ahead_at = unit_at;
            unit = e->registry->parts[s->part].unit;
            unit_at = at;
        }
        emit_gather(e, s, ahead_at);
        ahead_at++;
        unit_at++;
    }
}

void hd_pass_gather(struct hd_emit *e)
{
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        e->call = (enum hd_call)c;
        gather_for(e);
    }
}
