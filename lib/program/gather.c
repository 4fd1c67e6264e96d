/* gather: inserts the gathers of weights that ZeRO 3 shards (Rajbhandari et al. 2020; Zhao et al.
 * 2023, "PyTorch FSDP").
 *
 * A program gathers the weights of a unit once, into memory that lives until their last use in the
 * program. The gathers of a unit are inserted before the first use of the previous unit, on a
 * separate stream, so they overlap with that unit's compute, and at most two units' weights are
 * gathered at a time. Two exceptions: a tied table, which both ends of F use, stays gathered for
 * all of F; and full recompute over K units holds the weights of the K units that it replays.
 */
#include "program/emit.h"

static void emit_bucket_gather(struct hd_emit *e, struct hd_store *gathered, int at)
{
    const struct hd_bucket *p = &e->registry->buckets[gathered->bucket];

    e->unit = p->unit;
    hd_emit_comm(e,
                 HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = p->shard_group,
                         .count = p->shard_count, .dtype = p->compute),
                 HD_OPERANDS(comm, .received = {gathered, 0},
                             .sent = hd_emit_bucket(e, gathered->bucket, HD_STATE_COPY,
                                                    hd_bucket_base(p, HD_STATE_COPY))))
        ->stream = HD_STREAM_PREFETCH;
    hd_move_last_to(&e->lists[e->call], at);
}

/* A store of gathered weights, and the first node that uses it. */
struct use {
    struct hd_store *store;
    int at;
};

/* Appends to `uses` the gathered stores that the node, at index `at`, is the first to use, ordered
 * by bucket. Returns the new count. */
static int add_uses(const struct hd_node *node, int at, bool *seen, struct use *uses, int count)
{
    const int begin = count;

    for (int k = 0; k < hd_node_operand_count(node); k++) {
        struct hd_store *s = node->operands[k].store;
        int i = count;

        if (!s || s->kind != HD_STORE_GATHERED || seen[s->bucket])
            continue;
        seen[s->bucket] = true;
        for (; i > begin && uses[i - 1].store->bucket > s->bucket; i--)
            uses[i] = uses[i - 1];
        uses[i] = (struct use){s, at};
        count++;
    }
    return count;
}

static void gather_for(struct hd_emit *e)
{
    const struct hd_node_list *list = &e->lists[e->call];
    const size_t buckets = (size_t)e->registry->bucket_count + 1;
    struct use *uses = hd_arena_array(e->arena, buckets, sizeof *uses);
    bool *seen = hd_arena_array(e->arena, buckets, sizeof *seen);
    int unit = -1, count = 0;
    int unit_at = 0, prefetch_at = 0; /* index of the first node that uses weights of the current
                                         unit, and of the previous unit */

    if (!uses || !seen) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to gather weights"));
        return;
    }
    for (int i = 0; i < list->count; i++)
        count = add_uses(list->nodes[i], i, seen, uses, count);
    for (int k = 0; k < count; k++) { /* k gathers were inserted before the node, so its index grew
                                         by k */
        if (e->registry->buckets[uses[k].store->bucket].unit != unit) {
            prefetch_at = unit_at;
            unit = e->registry->buckets[uses[k].store->bucket].unit;
            unit_at = uses[k].at + k;
        }
        emit_bucket_gather(e, uses[k].store, prefetch_at);
        prefetch_at++;
        unit_at++;
    }
}

void hd_pass_gather(struct hd_emit *e)
{
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        e->call = (enum hd_call)c;
        if (e->registry->zero == 3)
            gather_for(e);
    }
}
