#include "train/execute.h"

#include <stdlib.h>
#include <string.h>

#include "train/offload.h"
#include "train/profile.h"

/* ---- addresses ---- */

static char *stage_io_slot(const struct hd_trainer *t, int32_t slot)
{
    return t->registered_base + t->rank_program.stage_io + slot * t->rank_program.stage_io_slot;
}

/* Returns the chunk whose program an instruction of the list runs; *ret_state: offset of its
 * constants, and of its caches. */
static const struct hd_chunk *chunk_of(const struct hd_trainer *t,
                                       const struct hd_bound_instructions *list,
                                       const struct hd_instruction *in, int64_t *ret_state)
{
    return list->decodes
               ? hd_rank_program_get_decode(&t->rank_program, list->program, in, ret_state)
               : hd_rank_program_get(&t->rank_program, in, ret_state);
}

/* Computes the base addresses of the memory regions for an instruction. A kind of slot that the
 * instruction does not use gets the address of slot 0, which the program does not read. */
static struct hd_bases bases_of(const struct hd_trainer *t,
                                const struct hd_bound_instructions *list,
                                const struct hd_instruction *in, int64_t chunk_state)
{
    const struct hd_rank_program *l = &t->rank_program;
    const int64_t *work = list->decodes ? l->decode.work : l->work;
    const int64_t saved = in->slot[HD_SLOT_SAVED] > 0 ? in->slot[HD_SLOT_SAVED] : 0;
    const int64_t deferred = in->slot[HD_SLOT_DEFERRED] > 0 ? in->slot[HD_SLOT_DEFERRED] : 0;
    char *const base[2] = {t->private_base, t->registered_base};
    struct hd_bases b = {.chunk_state = t->private_base + chunk_state};

    for (int v = 0; v < 2; v++) {
        b.base[HD_REGION_STATE][v] = base[v];
        b.base[HD_REGION_SAVED][v] = base[v] + l->saved[v] + saved * l->saved_slot[v];
        b.base[HD_REGION_DEFERRED][v] = base[v] + l->deferred[v] + deferred * l->deferred_slot[v];
        b.base[HD_REGION_WORK][v] = base[v] + work[v];
    }
    for (int k = 0; k < HD_STAGE_IO_COUNT; k++)
        if (in->slot[HD_SLOT_IN + k] >= 0)
            b.stage_io[k] = stage_io_slot(t, in->slot[HD_SLOT_IN + k]);
    return b;
}

/* ---- binding ---- */

static bool runs(const struct hd_instruction *in)
{
    return in->kind == HD_DO_RUN || in->kind == HD_DO_BEGIN || in->kind == HD_DO_UPDATE;
}

/* Returns true if both instructions run the same program on the same slots of activations. */
static bool same_run(const struct hd_instruction *a, const struct hd_instruction *b)
{
    return a->kind == b->kind && a->call == b->call && a->chunk == b->chunk &&
           a->first == b->first && a->last == b->last &&
           memcmp(a->slot, b->slot, sizeof a->slot) == 0;
}

/* Returns the bound program of the first of `count` instructions that runs what `in` does; NULL:
 * none. */
static struct hd_bound *find_bound(const struct hd_bound_instructions *list, int32_t count,
                                   const struct hd_instruction *in)
{
    for (int32_t k = 0; k < count; k++)
        if (list->bound[k] && same_run(&list->plan->list[k], in))
            return list->bound[k];
    return NULL;
}

static enum hd_status bind_run(struct hd_trainer *t, const struct hd_bound_instructions *like,
                               struct hd_bound_instructions *list, int32_t i)
{
    const struct hd_instruction *in = &list->plan->list[i];
    const bool step = in->kind != HD_DO_RUN;
    int64_t chunk_state;
    const struct hd_chunk *chunk = chunk_of(t, list, in, &chunk_state);
    const struct hd_bases bases = bases_of(t, list, in, chunk_state);

    list->bound[i] = find_bound(list, i, in);
    if (!list->bound[i] && like)
        list->bound[i] = find_bound(like, like->plan->count, in);
    if (list->bound[i])
        return HD_OK;
    if (in->kind == HD_DO_UPDATE && t->rank_program.registry.offload) {
        const enum hd_status st = hd_bind(t->open.runner, chunk, HD_CALL_P, true, true, &bases,
                                          &t->arena, &list->publish);

        if (st)
            return st;
    }
    return hd_bind(t->open.runner, chunk, list->decodes ? HD_CALL_D : in->call, step || in->first,
                   step || in->last, &bases, &t->arena, &list->bound[i]);
}

/* Opens the group of a transfer: this rank and its peer in the other stage. */
static enum hd_status open_peer_channel(struct hd_trainer *t, const struct hd_instruction *in,
                                        struct hd_comm_group **ret_group)
{
    const struct hd_rank_program *l = &t->rank_program;
    const bool sends = in->kind == HD_DO_SEND;

    return hd_rank_open_channel(&t->open, &l->mesh, l->rank, sends ? l->coord.pp : in->peer,
                                sends ? in->peer : l->coord.pp, in->call == HD_CALL_B, ret_group);
}

static struct hd_comm_stream *stream_of(struct hd_trainer *t, const struct hd_instruction *in)
{
    const bool next = in->peer == (t->rank_program.coord.pp + 1) % t->rank_program.pipeline.stages;
    const int channel = (in->kind == HD_DO_SEND ? 0 : 4) + (in->call == HD_CALL_B ? 2 : 0) + !next;

    return hd_comm_get_stream(t->open.comm,
                              (enum hd_comm_stream_name)(HD_COMM_STREAM_SEND_NEXT + channel));
}

/* Returns the index of the slot of hidden rows that a transfer between stages sends or receives. */
static int32_t slot_of(const struct hd_instruction *in)
{
    int k = HD_SLOT_IN;

    while (in->slot[k] < 0)
        k++;
    return in->slot[k];
}

/* Returns the number of elements that a transfer moves, and their encoding. */
static int64_t count_of(const struct hd_trainer *t, const struct hd_bound_instructions *list,
                        const struct hd_instruction *in, enum hd_dtype *ret_dtype)
{
    const enum hd_stage_io io = in->kind == HD_DO_SEND ? HD_STAGE_OUTPUT : HD_STAGE_INPUT;
    const struct hd_store *s;
    int64_t state;

    if (!list->decodes)
        return hd_rank_program_transfer(&t->rank_program, in, ret_dtype);
    s = hd_chunk_find_stage_io(chunk_of(t, list, in, &state), io);
    *ret_dtype = s->dtype;
    return s->rows * s->columns;
}

static enum hd_status bind_transfer(struct hd_trainer *t, const struct hd_bound_instructions *list,
                                    const struct hd_instruction *in,
                                    struct hd_transfer_args *ret_args)
{
    *ret_args = (struct hd_transfer_args){.sends = in->kind == HD_DO_SEND,
                                          .stream = stream_of(t, in),
                                          .buffer = stage_io_slot(t, slot_of(in))};
    ret_args->count = count_of(t, list, in, &ret_args->dtype);
    return open_peer_channel(t, in, &ret_args->group);
}

static enum hd_status bind_list(struct hd_trainer *t, const struct hd_bound_instructions *like,
                                struct hd_bound_instructions *list)
{
    const struct hd_step_plan *plan = list->plan;
    enum hd_status st = HD_OK;

    list->bound = hd_arena_array(&t->arena, (size_t)plan->count, sizeof(struct hd_bound *));
    list->transfers = hd_arena_array(&t->arena, (size_t)plan->count, sizeof *list->transfers);
    if (!list->bound || !list->transfers)
        return hd_err(HD_NO_MEMORY, "no memory to bind a step");
    for (int32_t i = 0; !st && i < plan->count; i++)
        if (runs(&plan->list[i]))
            st = bind_run(t, like, list, i);
        else if (plan->list[i].kind == HD_DO_SEND || plan->list[i].kind == HD_DO_RECEIVE)
            st = bind_transfer(t, list, &plan->list[i], &list->transfers[i]);
    return st;
}

enum hd_status hd_execute_bind(struct hd_trainer *t, const struct hd_step_plan *plan,
                               const struct hd_bound_instructions *like,
                               struct hd_bound_instructions *ret_list)
{
    *ret_list =
        (struct hd_bound_instructions){.plan = plan, .publish = like ? like->publish : NULL};
    return bind_list(t, like, ret_list);
}

enum hd_status hd_execute_bind_decode(struct hd_trainer *t, enum hd_decode_program program,
                                      struct hd_bound_instructions *ret_list)
{
    *ret_list = (struct hd_bound_instructions){
        .plan = &t->rank_program.decode.plan, .decodes = true, .program = program};
    return bind_list(t, NULL, ret_list);
}

/* ---- connecting ---- */

/* A channel of transfers between two stages. Channels are sorted by call, sending stage and
 * receiving stage: an order that is equal on all ranks. A rank has at most eight. */
struct channel {
    int backward, from, to;
    bool sends;
    struct hd_comm_group *group;
};

static int by_channel(const void *a, const void *b)
{
    const struct channel *x = a, *y = b;

    if (x->backward != y->backward)
        return x->backward - y->backward;
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

enum hd_status hd_execute_connect(struct hd_trainer *t, const struct hd_step_plan *plan,
                                  struct hd_comm_stream *stream)
{
    const int mine = t->rank_program.coord.pp;
    struct channel channels[HD_COMM_STREAM_COUNT];
    size_t count = 0;
    enum hd_status st = HD_OK;

    for (int32_t i = 0; i < plan->count && !st; i++) {
        const struct hd_instruction *in = &plan->list[i];
        const bool sends = in->kind == HD_DO_SEND;
        struct hd_comm_group *group;
        bool known = false;

        if (!sends && in->kind != HD_DO_RECEIVE)
            continue;
        st = open_peer_channel(t, in, &group);
        for (size_t k = 0; k < count && !known && !st; k++)
            known = channels[k].group == group;
        if (!known && !st)
            channels[count++] = (struct channel){in->call == HD_CALL_B, sends ? mine : in->peer,
                                                 sends ? in->peer : mine, sends, group};
    }
    qsort(channels, count, sizeof *channels, by_channel);
    for (size_t k = 0; k < count && !st; k++)
        st = hd_comm_connect(channels[k].group, stream,
                             channels[k].sends ? HD_COMM_USE_SEND : HD_COMM_USE_RECEIVE);
    return st;
}

/* ---- running ---- */

/* Calls `feed` (it fills batches) with the chunk that a FEED or RUN instruction names. */
static enum hd_status call_with_chunk(struct hd_trainer *t,
                                      const struct hd_bound_instructions *list,
                                      const struct hd_instruction *in, hd_execute_feed *feed,
                                      void *context)
{
    struct hd_instruction run = *in;
    const struct hd_chunk *chunk;
    struct hd_bases bases;
    int64_t chunk_state;

    run.kind = HD_DO_RUN;
    chunk = chunk_of(t, list, &run, &chunk_state);
    bases = bases_of(t, list, in, chunk_state);
    return feed(t, chunk, &bases, in->micro_batch, context);
}

static enum hd_status run_program(struct hd_trainer *t, const struct hd_instruction *in,
                                  struct hd_bound *bound)
{
    enum hd_status st = HD_OK;

    for (int k = HD_SLOT_IN; !st && k < HD_SLOT_USES; k++)
        if (in->kind == HD_DO_RUN && in->slot[k] >= 0)
            st = hd_runner_await(t->open.runner, &t->slots[in->slot[k]]);
    return st ? st : hd_run(t->open.runner, bound);
}

static enum hd_status execute_one(struct hd_trainer *t, const struct hd_bound_instructions *list,
                                  int32_t i, hd_execute_feed *feed, hd_execute_feed *after,
                                  void *context)
{
    const struct hd_instruction *in = &list->plan->list[i];
    enum hd_status st;

    switch (in->kind) {
    case HD_DO_FEED:
        return call_with_chunk(t, list, in, feed, context);
    case HD_DO_BEGIN:
    case HD_DO_RUN:
    case HD_DO_UPDATE:
        st = run_program(t, in, list->bound[i]);
        if (!st && after && in->kind == HD_DO_RUN)
            st = call_with_chunk(t, list, in, after, context);
        if (!st && list->publish && in->kind == HD_DO_UPDATE)
            st = hd_offload_update(t);
        if (!st && list->publish && in->kind == HD_DO_UPDATE)
            st = hd_run(t->open.runner, list->publish);
        return st;
    case HD_DO_SEND:
    case HD_DO_RECEIVE:
        return hd_runner_transfer(t->open.runner, &list->transfers[i], &t->slots[slot_of(in)]);
    case HD_DO_SYNCHRONIZE:
        break;
    }
    return hd_runner_order(t->open.runner);
}

static bool is_of_micro_batch(const struct hd_instruction *in)
{
    return in->kind == HD_DO_FEED || in->kind == HD_DO_RUN || in->kind == HD_DO_SEND ||
           in->kind == HD_DO_RECEIVE;
}

enum hd_status hd_execute(struct hd_trainer *t, const struct hd_bound_instructions *list,
                          int64_t micro_batches, hd_execute_feed *feed, hd_execute_feed *after,
                          void *context)
{
    for (int32_t i = 0; i < list->plan->count; i++) {
        const struct hd_instruction *in = &list->plan->list[i];
        enum hd_status st;

        if (is_of_micro_batch(in) && in->micro_batch >= micro_batches)
            continue;
        hd_profile_program_begin(t->profile, in);
        st = execute_one(t, list, i, feed, after, context);
        hd_profile_program_end(t->profile);
        if (st)
            return st;
    }
    return hd_runner_synchronize(t->open.runner);
}
