/* step_plan: turns the schedule of all stages into the instructions of one stage.
 *
 * A stage's plan has one *turn* per program, in this order:
 *
 *     RECEIVE the values that the next turn's program reads   (one program ahead)
 *     FEED, if the program is F or E
 *     RUN the program
 *     SEND its results for another stage
 *
 * The turn in which a value is received follows from the schedule alone: one program before its
 * reader, and not later than any value that its sender sends afterwards, so that both ends of a
 * channel have one order.
 *
 * Reuse of a slot that is being sent. The transfer ends when the receiver has launched its RECEIVE.
 * If the sender took the slot earlier, it would wait for the receiver, which may itself wait for
 * the sender. To exclude this, the schedule is walked with unit costs: each turn gets a start time,
 * and a slot that is being sent is taken only by a turn that is later than the receiver's turn with
 * the RECEIVE. So there is one sequence of all instructions of all stages in which nothing waits,
 * and therefore no deadlock. Real times differ from those of the walk and can make an instruction
 * wait, but never for ever. */
#include <assert.h>

#include "pipeline/pipeline_internal.h"

/* A point in time of the walk (walk.c) with unit costs: the start of a turn, when the stage's host
 * has ended the program before it (`running` false), or the start of the turn's program (`running`
 * true). */
struct moment {
    double time;
    bool running;
    int32_t stage;
};

static bool is_before(struct moment a, struct moment b)
{
    if (a.time != b.time)
        return a.time < b.time;
    if (a.running != b.running)
        return b.running;
    return a.stage < b.stage;
}

struct slot {
    bool taken;
    bool sent;             /* true: a SEND of the slot's value was added, so the next two members
                              limit the slot's reuse */
    int32_t usable_from;   /* first turn that may take the slot: one program must run after the
                              SEND */
    struct moment receive; /* start of the receiver's turn that has the RECEIVE; only a turn that
                              starts later may take the slot */
};

struct pool {
    struct slot *slots;
    int32_t count, room;
};

struct build {
    const struct hd_schedule *schedule;
    int32_t stage;
    struct hd_arena *arena, *scratch;
    struct schedule_walk walk;
    struct hd_step_plan plan;
    int room; /* number of instructions for which plan.list has memory */
    struct pool saved, deferred, stage_io;
    /* Per value, indexed by the program id of the chunk that has it as OUT or OUT_GRAD: the turn in
     * which the receiving stage receives it, and its slot on this stage. */
    int32_t *receive_turn[2]; /* index 0: values that are hidden rows; index 1: values that are
                                 gradients */
    int32_t *value_slot[2];
    int32_t *saved_slot, *deferred_slot;   /* slot of each micro-batch of a chunk, by program id */
    int32_t *first_receive, *next_receive; /* linked lists of the values received in each turn: the
                                              turn's first one; the one after each value; -1: end */
    int64_t *receives; /* values that this stage receives, each as program id * 2 + (0: hidden rows,
                          1: gradient) */
    int32_t receive_count;
};

static const struct hd_schedule_entry *entry_at(const struct build *b, int32_t stage, int32_t turn)
{
    return &b->schedule->stages[stage].entries[turn];
}

static int32_t stage_of(const struct build *b, int32_t chunk)
{
    return hd_pipeline_stage(&b->schedule->pipeline, chunk);
}

static struct moment turn_begins(const struct build *b, int32_t stage, int32_t turn)
{
    struct moment m = {-1, false, stage};

    if (turn > 0) {
        const struct hd_schedule_entry *e = entry_at(b, stage, turn - 1);

        m.time =
            b->walk.end[program_row(e->call)][program_id(b->schedule, e->chunk, e->micro_batch)];
    }
    return m;
}

static struct moment program_begins(const struct build *b, int32_t turn)
{
    const struct hd_schedule_entry *e = entry_at(b, b->stage, turn);

    return (struct moment){
        b->walk.start[program_row(e->call)][program_id(b->schedule, e->chunk, e->micro_batch)],
        true, b->stage};
}

/* ---- slots ---- */

/* Takes the lowest slot of the pool that is free in `turn`, which starts at moment `now`, and
 * returns its index; adds a slot to the pool if none is free. Returns -1 if there is no memory. */
static int32_t take(struct build *b, struct pool *pool, int32_t turn, struct moment now)
{
    struct slot *slots;
    int32_t i;

    for (i = 0; i < pool->count; i++) {
        const struct slot *s = &pool->slots[i];

        if (!s->taken && (!s->sent || (turn >= s->usable_from && is_before(s->receive, now))))
            break;
    }
    if (i == pool->count) {
        slots = hd_arena_grow(b->scratch, pool->slots, pool->count, &pool->room, sizeof *slots);
        if (!slots)
            return -1;
        pool->slots = slots;
        pool->count++;
    }
    pool->slots[i] = (struct slot){.taken = true};
    return i;
}

static void give_back(struct pool *pool, int32_t slot)
{
    if (slot >= 0)
        pool->slots[slot].taken = false;
}

/* ---- which values a chunk's programs use ---- */

/* Return the number of the value (hidden rows or their gradient) that crosses the boundary between
 * a program's chunk and the previous chunk (value_in) or the next chunk (value_out). The number is
 * the program id of the earlier of the two chunks for the micro-batch; -1: no chunk on that side. */
static int64_t value_in(const struct build *b, const struct hd_schedule_entry *e)
{
    return e->chunk > 0 ? program_id(b->schedule, e->chunk - 1, e->micro_batch) : -1;
}

static int64_t value_out(const struct build *b, const struct hd_schedule_entry *e)
{
    return e->chunk < b->schedule->pipeline.chunks - 1
               ? program_id(b->schedule, e->chunk, e->micro_batch)
               : -1;
}

static int32_t slot_of(const struct build *b, int which, int64_t value)
{
    return value < 0 ? -1 : b->value_slot[which][value];
}

/* ---- where values are received ---- */

/* Fills receive_turn with the turn (see above) in which a stage receives each value from another
 * stage. Goes through the sends of a stage from the last to the first, and receives no value later
 * than the one that is sent after it on the same channel. */
static enum hd_status find_receive_turns(struct build *b)
{
    const struct hd_pipeline *p = &b->schedule->pipeline;
    int32_t *least = hd_arena_array(b->scratch, 2 * (size_t)p->stages, sizeof *least);

    if (!least)
        return hd_err(HD_NO_MEMORY, "no memory for a step plan");
    for (int32_t from = 0; from < p->stages; from++) {
        for (int32_t i = 0; i < 2 * p->stages; i++)
            least[i] = INT32_MAX;
        for (int32_t turn = b->schedule->stages[from].count - 1; turn >= 0; turn--) {
            const struct hd_schedule_entry *e = entry_at(b, from, turn);
            const int which = program_row(e->call);
            const int32_t reader = which == 0 ? e->chunk + 1 : e->chunk - 1;
            int32_t to, due, *channel;
            int64_t value;

            if (which > 1 || reader < 0 || reader >= p->chunks || stage_of(b, reader) == from ||
                (which == 1 && !schedule_sends_back(b->schedule, e->chunk)))
                continue;
            to = stage_of(b, reader);
            channel = &least[2 * to + which];
            due = b->walk.index[which][program_id(b->schedule, reader, e->micro_batch)];
            due = due > 0 ? due - 1 : 0;
            if (due < *channel)
                *channel = due;
            value = which == 0 ? value_out(b, e) : value_in(b, e);
            b->receive_turn[which][value] = *channel;
            if (to == b->stage) {
                const int32_t r = b->receive_count++;

                b->receives[r] = value * 2 + which;
                b->next_receive[r] = b->first_receive[*channel];
                b->first_receive[*channel] = r;
            }
        }
    }
    return HD_OK;
}

/* ---- instructions ---- */

static const struct hd_instruction no_instruction = {.slot = {-1, -1, -1, -1, -1, -1}};

static struct hd_instruction *add(struct build *b, enum hd_instruction_kind kind)
{
    struct hd_instruction *list =
        hd_arena_grow(b->arena, b->plan.list, b->plan.count, &b->room, sizeof *list);

    if (!list)
        return NULL;
    b->plan.list = list;
    list += b->plan.count++;
    *list = no_instruction;
    list->kind = kind;
    list->call = kind == HD_DO_BEGIN ? HD_CALL_S : kind == HD_DO_UPDATE ? HD_CALL_U : HD_CALL_F;
    return list;
}

static void add_receives(struct build *b, int32_t turn)
{
    const int32_t M = b->schedule->micro_batches;

    for (int32_t r = b->first_receive[turn]; r >= 0; r = b->next_receive[r]) {
        const int which = (int)(b->receives[r] % 2);
        const int64_t value = b->receives[r] / 2;
        const int32_t below = (int32_t)(value / M); /* lower one of the two chunks that share the
                                                       value */
        const int32_t slot = take(b, &b->stage_io, turn, turn_begins(b, b->stage, turn));
        struct hd_instruction *in = add(b, HD_DO_RECEIVE);

        if (slot < 0 || !in)
            return;
        b->value_slot[which][value] = slot;
        in->call = which ? HD_CALL_B : HD_CALL_F;
        in->chunk = which ? below : below + 1;
        in->micro_batch = (int32_t)(value % M);
        in->peer = stage_of(b, which ? below + 1 : below);
        in->slot[which ? HD_SLOT_OUT_GRAD : HD_SLOT_IN] = slot;
    }
}

/* Adds a SEND of a value that the program of `turn` wrote, unless the chunk that reads the value is
 * on this stage. */
static void add_send(struct build *b, int32_t turn, int which, int64_t value)
{
    const struct hd_schedule_entry *e = entry_at(b, b->stage, turn);
    const int32_t slot = slot_of(b, which, value);
    struct hd_instruction *in;
    int32_t peer;

    if (slot < 0)
        return;
    peer = stage_of(b, which ? e->chunk - 1 : e->chunk + 1);
    if (peer == b->stage)
        return;
    in = add(b, HD_DO_SEND);
    if (!in)
        return;
    in->call = which ? HD_CALL_B : HD_CALL_F;
    in->chunk = e->chunk;
    in->micro_batch = e->micro_batch;
    in->peer = peer;
    in->slot[which ? HD_SLOT_IN_GRAD : HD_SLOT_OUT] = slot;
    b->stage_io.slots[slot] =
        (struct slot){.sent = true,
                      .usable_from = turn + 2,
                      .receive = turn_begins(b, peer, b->receive_turn[which][value])};
}

static void add_program(struct build *b, int32_t turn)
{
    const struct hd_schedule_entry *e = entry_at(b, b->stage, turn);
    const int64_t id = program_id(b->schedule, e->chunk, e->micro_batch);
    const int64_t in = value_in(b, e), out = value_out(b, e);
    const struct moment now = program_begins(b, turn);
    const bool forward = e->call == HD_CALL_F || e->call == HD_CALL_E;
    const bool last_use = e->call == HD_CALL_E || e->call == HD_CALL_W ||
                          (e->call == HD_CALL_B && !b->schedule->split) ||
                          e->chunk < b->schedule->frozen;
    const bool back = e->call == HD_CALL_B && schedule_sends_back(b->schedule, e->chunk);
    struct hd_instruction *run;
    int32_t *slot;

    if (forward) {
        struct hd_instruction *feed;

        b->saved_slot[id] = take(b, &b->saved, turn, now);
        feed = add(b, HD_DO_FEED);
        if (!feed)
            return;
        feed->call = e->call;
        feed->chunk = e->chunk;
        feed->micro_batch = e->micro_batch;
        feed->slot[HD_SLOT_SAVED] = b->saved_slot[id];
        if (out >= 0)
            b->value_slot[0][out] = take(b, &b->stage_io, turn, now);
    } else if (e->call == HD_CALL_B) {
        if (back && in >= 0)
            b->value_slot[1][in] = take(b, &b->stage_io, turn, now);
        if (b->schedule->split)
            b->deferred_slot[id] = take(b, &b->deferred, turn, now);
    }
    run = add(b, HD_DO_RUN);
    if (!run || hd_arena_failed(b->scratch))
        return;
    run->call = e->call;
    run->chunk = e->chunk;
    run->micro_batch = e->micro_batch;
    run->first = e->micro_batch == 0;
    run->last = e->micro_batch == b->schedule->micro_batches - 1;
    slot = run->slot;
    slot[HD_SLOT_SAVED] = b->saved_slot[id];
    slot[HD_SLOT_IN] = slot_of(b, 0, in);
    if (forward) {
        slot[HD_SLOT_OUT] = slot_of(b, 0, out);
    } else {
        slot[HD_SLOT_OUT_GRAD] = slot_of(b, 1, out);
        if (back)
            slot[HD_SLOT_IN_GRAD] = slot_of(b, 1, in);
        if (b->schedule->split)
            slot[HD_SLOT_DEFERRED] = b->deferred_slot[id];
    }
    if (forward)
        add_send(b, turn, 0, out);
    else if (back)
        add_send(b, turn, 1, in);
    if (last_use) {
        give_back(&b->saved, slot[HD_SLOT_SAVED]);
        give_back(&b->deferred, slot[HD_SLOT_DEFERRED]);
        give_back(&b->stage_io, slot[HD_SLOT_IN]);
        give_back(&b->stage_io, slot[HD_SLOT_OUT_GRAD]);
    }
}

static enum hd_status allocate(struct build *b)
{
    const size_t values = (size_t)b->schedule->pipeline.chunks * (size_t)b->schedule->micro_batches;
    const size_t turns = (size_t)b->schedule->stages[b->stage].count;
    int32_t **const arrays[] = {&b->receive_turn[0], &b->receive_turn[1], &b->value_slot[0],
                                &b->value_slot[1],   &b->saved_slot,      &b->deferred_slot};

    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        *arrays[i] = hd_arena_array(b->scratch, values, sizeof **arrays[i]);
    /* The arrays have one entry per program: each receives at most one value from another stage, IN
     * for F, OUT_GRAD for B. */
    b->first_receive = hd_arena_array(b->scratch, turns, sizeof *b->first_receive);
    b->next_receive = hd_arena_array(b->scratch, turns, sizeof *b->next_receive);
    b->receives = hd_arena_array(b->scratch, turns, sizeof *b->receives);
    if (hd_arena_failed(b->scratch))
        return hd_err(HD_NO_MEMORY, "no memory for a step plan");
    for (size_t i = 0; i < turns; i++)
        b->first_receive[i] = -1;
    return HD_OK;
}

enum hd_status hd_step_plan_build(const struct hd_schedule *schedule, int32_t stage,
                                  struct hd_arena *arena, struct hd_step_plan *ret_plan)
{
    struct hd_arena scratch;
    struct build b = {.schedule = schedule, .stage = stage, .arena = arena, .scratch = &scratch};
    enum hd_status st;

    assert(stage >= 0 && stage < schedule->pipeline.stages);
    hd_arena_init(&scratch, 0);
    st = schedule_walk_run(schedule, NULL, NULL, &scratch, &b.walk);
    if (!st)
        st = allocate(&b);
    if (!st)
        st = find_receive_turns(&b);
    if (st)
        goto end;
    if (!schedule_is_forward(schedule))
        (void)add(&b, HD_DO_BEGIN);
    for (int32_t turn = 0; turn < schedule->stages[stage].count; turn++) {
        add_receives(&b, turn);
        add_program(&b, turn);
        if (hd_arena_failed(arena) || hd_arena_failed(&scratch))
            break;
    }
    if (!schedule_is_forward(schedule)) {
        (void)add(&b, HD_DO_SYNCHRONIZE);
        (void)add(&b, HD_DO_UPDATE);
    }
    if (hd_arena_failed(arena) || hd_arena_failed(&scratch)) {
        st = hd_err(HD_NO_MEMORY, "no memory for a step plan");
        goto end;
    }
    b.plan.saved_slots = b.saved.count;
    b.plan.deferred_slots = b.deferred.count;
    b.plan.stage_io_slots = b.stage_io.count;
    *ret_plan = b.plan;
end:
    hd_arena_done(&scratch);
    return st;
}
