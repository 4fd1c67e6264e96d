/* check: proves that the step plans of all stages are correct together.
 *
 * It first checks each stage's plan alone, with the values that its slots hold (check_stage). Then
 * it compares the channels: the SENDs of one end and the RECEIVEs of the other must name equal
 * values in one order (pair). Last it looks for deadlocks by executing all plans with these rules
 * (run_streams), until nothing progresses:
 *
 *   transfer      ends when both hosts have launched it, the transfer before it on its channel has
 *                 ended, and the receiver's slot is free: the transfer out of that slot has ended
 *   RUN           blocks the host until it has ended. It begins when the transfers into the slots
 *                 that it reads, and out of the slots that it writes, have ended
 *   SYNCHRONIZE   waits for all transfers of the stage
 *
 * A wait that ends under these rules ends under every executor that keeps the order of each plan.
 */
#include <stdio.h>
#include <string.h>

#include "pipeline/pipeline_internal.h"

enum value_kind { VALUE_NONE, VALUE_HIDDEN, VALUE_GRAD, VALUE_SAVED, VALUE_DEFERRED };

/* The value in a slot. Hidden rows between two chunks, and their gradient, carry the number of the
 * lower chunk: the one that has them as OUT and OUT_GRAD. */
struct value {
    enum value_kind kind;
    int32_t chunk, micro_batch;
    int32_t reads; /* number of instructions that have yet to read the value; 0: the slot may be
                      overwritten */
};

struct transfer {
    int32_t from, from_at, to, to_at; /* stages of sender and receiver; indices of SEND and RECEIVE
                                         in their plans */
    int64_t before;             /* number of the previous transfer on the same channel; -1: none */
    int64_t slot_sent;          /* number of the newest earlier transfer out of the slot that this
                                   one is received into; -1: none */
    bool sent, received, ended; /* the sender has launched its SEND; the receiver its RECEIVE; the
                                   transfer has ended */
};

struct check {
    const struct hd_schedule *schedule;
    const struct hd_step_plan *plans;
    struct hd_arena arena;
    bool forward;
    struct transfer *transfers; /* all transfers, grouped by channel */
    int64_t transfer_count;
    int64_t **transfer_of; /* [stage][instruction] number of the transfer of a SEND or RECEIVE; -1:
                              another instruction */
};

enum { STORY_MAX = 128 };

static const struct hd_instruction *at(const struct check *c, int32_t stage, int32_t i)
{
    return &c->plans[stage].list[i];
}

/* Writes "stage 1, instruction 12 (RUN F0.3)". */
static const char *describe_instruction(const struct check *c, int32_t stage, int32_t i,
                                        char ret_text[STORY_MAX])
{
    static const char *const kinds[] = {"BEGIN",   "FEED",        "RUN",   "SEND",
                                        "RECEIVE", "SYNCHRONIZE", "UPDATE"};
    const struct hd_instruction *in = at(c, stage, i);
    const bool known = in->kind <= HD_DO_UPDATE,
               transfer = in->kind == HD_DO_SEND || in->kind == HD_DO_RECEIVE;
    char what[48] = "", peer[24] = "";

    if (in->kind == HD_DO_FEED)
        (void)snprintf(what, sizeof what, " %d.%d", (int)in->chunk, (int)in->micro_batch);
    else if (in->kind == HD_DO_RUN || transfer)
        (void)snprintf(what, sizeof what, " %s%d.%d",
                       in->call < HD_CALL_COUNT ? hd_call_name(in->call) : "?", (int)in->chunk,
                       (int)in->micro_batch);
    if (transfer)
        (void)snprintf(peer, sizeof peer, " %s %d", in->kind == HD_DO_SEND ? "to" : "from",
                       (int)in->peer);
    (void)snprintf(ret_text, STORY_MAX, "stage %d, instruction %d (%s%s%s)", (int)stage, (int)i,
                   known ? kinds[in->kind] : "?", what, peer);
    return ret_text;
}

/* ---- one list ---- */

struct stage_check {
    struct check *c;
    int32_t stage, i; /* stage, and index of the instruction in its plan, that are being checked */
    struct value *saved, *deferred, *stage_io;
    int32_t *due[PROGRAM_ROWS]; /* [k] next micro-batch of the stage's k-th chunk */
    int32_t runs;
};

static enum hd_status wrong(const struct stage_check *s, const char *what)
{
    char text[STORY_MAX];

    return hd_err(HD_INVALID, "%s: %s", describe_instruction(s->c, s->stage, s->i, text), what);
}

static const char *describe(struct value v, char ret_text[STORY_MAX])
{
    static const char *const names[] = {
        "nothing", "the hidden rows of chunk", "the gradient of the hidden rows of chunk",
        "the saved activations of chunk", "the deferred values of chunk"};

    if (v.kind == VALUE_NONE)
        (void)snprintf(ret_text, STORY_MAX, "nothing");
    else
        (void)snprintf(ret_text, STORY_MAX, "%s %d, micro-batch %d", names[v.kind], (int)v.chunk,
                       (int)v.micro_batch);
    return ret_text;
}

static bool same_value(struct value a, struct value b)
{
    return a.kind == b.kind && a.chunk == b.chunk && a.micro_batch == b.micro_batch;
}

static const char *const use_names[] = {"saved",
                                        "deferred",
                                        "boundary (in)",
                                        "boundary (out)",
                                        "boundary (out_grad)",
                                        "boundary (in_grad)"};

static struct value *slot_at(struct stage_check *s, enum hd_slot_use use)
{
    const int32_t slot = at(s->c, s->stage, s->i)->slot[use];

    return use == HD_SLOT_SAVED      ? &s->saved[slot]
           : use == HD_SLOT_DEFERRED ? &s->deferred[slot]
                                     : &s->stage_io[slot];
}

static enum hd_status write_slot(struct stage_check *s, enum hd_slot_use use, struct value v)
{
    struct value *slot = slot_at(s, use);
    char text[STORY_MAX], old[STORY_MAX];

    if (slot->reads)
        return hd_err(HD_INVALID, "%s: overwrites %s slot %d, where %s are still needed",
                      describe_instruction(s->c, s->stage, s->i, text), use_names[use],
                      (int)at(s->c, s->stage, s->i)->slot[use], describe(*slot, old));
    *slot = v;
    return HD_OK;
}

static enum hd_status read_slot(struct stage_check *s, enum hd_slot_use use, struct value v)
{
    struct value *slot = slot_at(s, use);
    char text[STORY_MAX], old[STORY_MAX], new[STORY_MAX];

    if (!same_value(*slot, v) || !slot->reads)
        return hd_err(HD_INVALID, "%s: %s slot %d holds %s%s, not %s",
                      describe_instruction(s->c, s->stage, s->i, text), use_names[use],
                      (int)at(s->c, s->stage, s->i)->slot[use],
                      slot->kind && !slot->reads ? "what is left of " : "", describe(*slot, old),
                      describe(v, new));
    slot->reads--;
    return HD_OK;
}

static bool is_here(const struct stage_check *s, int32_t chunk)
{
    return hd_pipeline_stage(&s->c->schedule->pipeline, chunk) == s->stage;
}

/* Returns the value of the hidden rows that a chunk writes, with the number of times that this
 * stage reads them: by the programs of the next chunk if that chunk is on this stage, otherwise by
 * one SEND. */
static struct value hidden_of(const struct stage_check *s, int32_t chunk, int32_t micro_batch)
{
    return (struct value){
        VALUE_HIDDEN, chunk, micro_batch,
        is_here(s, chunk + 1) ? schedule_programs(s->c->schedule, s->c->forward, chunk + 1) : 1};
}

static struct value grad_of(const struct stage_check *s, int32_t chunk, int32_t micro_batch)
{
    return (struct value){VALUE_GRAD, chunk, micro_batch,
                          is_here(s, chunk) && s->c->schedule->split ? 2 : 1};
}

/* Checks that the current instruction names a slot for exactly the uses in `uses` (one bit per enum
 * hd_slot_use), and that each slot is within its pool. */
static enum hd_status check_slots(const struct stage_check *s, unsigned uses)
{
    const struct hd_step_plan *plan = &s->c->plans[s->stage];
    const struct hd_instruction *in = at(s->c, s->stage, s->i);
    char text[STORY_MAX];

    for (int use = 0; use < HD_SLOT_USES; use++) {
        const int32_t count = use == HD_SLOT_SAVED      ? plan->saved_slots
                              : use == HD_SLOT_DEFERRED ? plan->deferred_slots
                                                        : plan->stage_io_slots;
        const bool used = (uses >> use & 1) != 0;

        if (used ? in->slot[use] < 0 || in->slot[use] >= count : in->slot[use] != -1)
            return hd_err(HD_INVALID, "%s: %s slot %d; %s%d",
                          describe_instruction(s->c, s->stage, s->i, text), use_names[use],
                          (int)in->slot[use],
                          used ? "the number of slots is " : "it uses none and must have ",
                          used ? (int)count : -1);
    }
    return HD_OK;
}

static enum hd_status check_chunk(const struct stage_check *s)
{
    const struct hd_instruction *in = at(s->c, s->stage, s->i);
    const struct hd_schedule *o = s->c->schedule;

    if (in->chunk < 0 || in->chunk >= o->pipeline.chunks || !is_here(s, in->chunk))
        return wrong(s, "the chunk is not on this stage");
    if (in->micro_batch < 0 || in->micro_batch >= o->micro_batches)
        return wrong(s, "there is no such micro-batch");
    return HD_OK;
}

static enum hd_status check_feed(struct stage_check *s)
{
    const struct hd_instruction *in = at(s->c, s->stage, s->i);
    const int32_t reads = schedule_programs(s->c->schedule, s->c->forward, in->chunk);
    enum hd_status st = check_slots(s, 1u << HD_SLOT_SAVED);

    if (!st && in->call != (s->c->forward ? HD_CALL_E : HD_CALL_F))
        st = wrong(s, "FEED is for F, in validation for E");
    if (!st)
        st = write_slot(s, HD_SLOT_SAVED,
                        (struct value){VALUE_SAVED, in->chunk, in->micro_batch, reads});
    return st;
}

/* Returns whether a chunk runs the program that an instruction names on each micro-batch of a step
 * (frozen chunks have no B; W exists only if split). */
static bool has_program(const struct check *c, const struct hd_instruction *in)
{
    if (c->forward)
        return in->call == HD_CALL_E;
    if (in->chunk < c->schedule->frozen)
        return in->call == HD_CALL_F;
    return in->call == HD_CALL_F || in->call == HD_CALL_B ||
           (c->schedule->split && in->call == HD_CALL_W);
}

/* Checks that a RUN comes in order: it is the next program of the stage's schedule, on the next
 * micro-batch of its chunk, with the right `first` and `last`. */
static enum hd_status check_turn(struct stage_check *s)
{
    const struct hd_instruction *in = at(s->c, s->stage, s->i);
    const struct hd_schedule *o = s->c->schedule;
    const struct hd_stage_schedule *stage = &o->stages[s->stage];
    const int32_t k = hd_pipeline_index(&o->pipeline, in->chunk);
    const struct hd_schedule_entry *e;
    char text[STORY_MAX];
    int32_t *due;

    if (!has_program(s->c, in))
        return wrong(s, "this step has no such program");
    due = &s->due[program_row(in->call)][k];
    if (in->micro_batch != *due)
        return hd_err(HD_INVALID,
                      "%s: micro-batch %d comes next; a program runs each micro-batch once, in "
                      "ascending order",
                      describe_instruction(s->c, s->stage, s->i, text), (int)*due);
    ++*due;
    if (in->first != (in->micro_batch == 0) ||
        in->last != (in->micro_batch == o->micro_batches - 1))
        return hd_err(HD_INVALID, "%s: marked first %d, last %d, of %d micro-batches",
                      describe_instruction(s->c, s->stage, s->i, text), in->first, in->last,
                      (int)o->micro_batches);
    e = &stage->entries[s->runs];
    if (s->runs >= stage->count || e->call != in->call || e->chunk != in->chunk ||
        e->micro_batch != in->micro_batch)
        return wrong(s, "the schedule has another program in this position");
    s->runs++;
    return HD_OK;
}

static enum hd_status check_run(struct stage_check *s)
{
    const struct hd_instruction *in = at(s->c, s->stage, s->i);
    const int32_t c = in->chunk, m = in->micro_batch;
    const bool forward = in->call == HD_CALL_F || in->call == HD_CALL_E;
    const bool below = c > 0, above = c < s->c->schedule->pipeline.chunks - 1;
    const bool deferred = !forward && s->c->schedule->split;
    const bool back = in->call == HD_CALL_B && below && schedule_sends_back(s->c->schedule, c);
    const struct value left = {VALUE_DEFERRED, c, m, 1};
    unsigned uses = 1u << HD_SLOT_SAVED;
    enum hd_status st = check_turn(s);

    if (st)
        return st;
    uses |= (unsigned)below << HD_SLOT_IN | (unsigned)deferred << HD_SLOT_DEFERRED;
    uses |= (unsigned)above << (forward ? HD_SLOT_OUT : HD_SLOT_OUT_GRAD);
    uses |= (unsigned)back << HD_SLOT_IN_GRAD;
    st = check_slots(s, uses);
    /* A program must not write a slot that it reads, so its writes are checked before its reads. */
    if (!st && forward && above)
        st = write_slot(s, HD_SLOT_OUT, hidden_of(s, c, m));
    if (!st && back)
        st = write_slot(s, HD_SLOT_IN_GRAD, grad_of(s, c - 1, m));
    if (!st && in->call == HD_CALL_B && deferred)
        st = write_slot(s, HD_SLOT_DEFERRED, left);
    if (!st)
        st = read_slot(s, HD_SLOT_SAVED, (struct value){VALUE_SAVED, c, m, 0});
    if (!st && below)
        st = read_slot(s, HD_SLOT_IN, hidden_of(s, c - 1, m));
    if (!st && !forward && above)
        st = read_slot(s, HD_SLOT_OUT_GRAD, grad_of(s, c, m));
    if (!st && in->call == HD_CALL_W)
        st = read_slot(s, HD_SLOT_DEFERRED, left);
    return st;
}

static enum hd_status check_transfer(struct stage_check *s)
{
    const struct hd_instruction *in = at(s->c, s->stage, s->i);
    const struct hd_pipeline *p = &s->c->schedule->pipeline;
    const bool send = in->kind == HD_DO_SEND, rows = in->call == HD_CALL_F;
    const int32_t other = send == rows ? in->chunk + 1 : in->chunk - 1;
    const int32_t below = other < in->chunk ? other : in->chunk;
    enum hd_slot_use use;
    struct value v;
    enum hd_status st;

    if (!rows && (in->call != HD_CALL_B || s->c->forward))
        return wrong(s, "a transfer is of F or B");
    if (other < 0 || other >= p->chunks)
        return wrong(s, "there is no chunk beyond");
    if (!rows && !schedule_sends_back(s->c->schedule, send ? in->chunk : other))
        return wrong(s, "no weight is trained below, so no gradient is sent there");
    if (in->peer != hd_pipeline_stage(p, other) || in->peer == s->stage)
        return wrong(s, "the peer is not the stage of the neighbouring chunk");
    use = send ? (rows ? HD_SLOT_OUT : HD_SLOT_IN_GRAD) : (rows ? HD_SLOT_IN : HD_SLOT_OUT_GRAD);
    st = check_slots(s, 1u << use);
    if (st)
        return st;
    v = rows ? hidden_of(s, below, in->micro_batch) : grad_of(s, below, in->micro_batch);
    return send ? read_slot(s, use, v) : write_slot(s, use, v);
}

static enum hd_status check_instruction(struct stage_check *s)
{
    const struct hd_instruction *in = at(s->c, s->stage, s->i);
    const int32_t count = s->c->plans[s->stage].count;
    enum hd_status st;

    switch (in->kind) {
    case HD_DO_BEGIN:
    case HD_DO_SYNCHRONIZE:
    case HD_DO_UPDATE:
        if (s->c->forward)
            return wrong(s, "validation has none");
        if (s->i != (in->kind == HD_DO_BEGIN         ? 0
                     : in->kind == HD_DO_SYNCHRONIZE ? count - 2
                                                     : count - 1))
            return wrong(s,
                         "BEGIN is the first instruction, SYNCHRONIZE and UPDATE are the last two");
        if ((in->kind == HD_DO_BEGIN && in->call != HD_CALL_S) ||
            (in->kind == HD_DO_UPDATE && in->call != HD_CALL_U))
            return wrong(s, "BEGIN runs the program S, UPDATE the program U");
        return check_slots(s, 0);
    case HD_DO_FEED:
        st = check_chunk(s);
        return st ? st : check_feed(s);
    case HD_DO_RUN:
        st = check_chunk(s);
        return st ? st : check_run(s);
    case HD_DO_SEND:
    case HD_DO_RECEIVE:
        st = check_chunk(s);
        return st ? st : check_transfer(s);
    }
    return wrong(s, "there is no such instruction");
}

/* Checks that at the end of the stage's plan no value in a slot of the pool still has to be
 * read. */
static enum hd_status check_rest(const struct stage_check *s, const struct value *slots,
                                 int32_t count)
{
    char text[STORY_MAX];

    for (int32_t i = 0; i < count; i++)
        if (slots[i].reads)
            return hd_err(HD_INVALID, "stage %d: at the end of its step plan %s are still needed",
                          (int)s->stage, describe(slots[i], text));
    return HD_OK;
}

static enum hd_status check_end(const struct stage_check *s)
{
    const struct hd_step_plan *plan = &s->c->plans[s->stage];
    const struct hd_stage_schedule *stage = &s->c->schedule->stages[s->stage];
    enum hd_status st;

    if (s->runs < stage->count) {
        const struct hd_schedule_entry *e = &stage->entries[s->runs];

        return hd_err(HD_INVALID,
                      "stage %d: its step plan ends after %d instructions without %s%d.%d",
                      (int)s->stage, (int)plan->count, hd_call_name(e->call), (int)e->chunk,
                      (int)e->micro_batch);
    }
    if (!s->c->forward && (plan->list[0].kind != HD_DO_BEGIN ||
                           plan->list[plan->count - 2].kind != HD_DO_SYNCHRONIZE ||
                           plan->list[plan->count - 1].kind != HD_DO_UPDATE))
        return hd_err(HD_INVALID,
                      "stage %d: its step plan does not begin with BEGIN and end with "
                      "SYNCHRONIZE and UPDATE",
                      (int)s->stage);
    st = check_rest(s, s->saved, plan->saved_slots);
    if (!st)
        st = check_rest(s, s->deferred, plan->deferred_slots);
    if (!st)
        st = check_rest(s, s->stage_io, plan->stage_io_slots);
    return st;
}

static enum hd_status check_stage(struct check *c, int32_t stage)
{
    const struct hd_step_plan *plan = &c->plans[stage];
    const size_t V = (size_t)(c->schedule->pipeline.chunks / c->schedule->pipeline.stages);
    struct stage_check s = {.c = c, .stage = stage};
    enum hd_status st = HD_OK;

    if (plan->saved_slots < 0 || plan->deferred_slots < 0 || plan->stage_io_slots < 0 ||
        plan->count < 3 - 3 * (int)c->forward)
        return hd_err(HD_INVALID,
                      "stage %d: a step plan of %d instructions, with %d, %d and %d slots",
                      (int)stage, (int)plan->count, (int)plan->saved_slots,
                      (int)plan->deferred_slots, (int)plan->stage_io_slots);
    s.saved = hd_arena_array(&c->arena, (size_t)plan->saved_slots + 1, sizeof *s.saved);
    s.deferred = hd_arena_array(&c->arena, (size_t)plan->deferred_slots + 1, sizeof *s.deferred);
    s.stage_io = hd_arena_array(&c->arena, (size_t)plan->stage_io_slots + 1, sizeof *s.stage_io);
    for (int row = 0; row < PROGRAM_ROWS; row++)
        s.due[row] = hd_arena_array(&c->arena, V, sizeof *s.due[row]);
    if (hd_arena_failed(&c->arena))
        return hd_err(HD_NO_MEMORY, "no memory to check step plans");
    for (s.i = 0; s.i < plan->count && !st; s.i++)
        st = check_instruction(&s);
    return st ? st : check_end(&s);
}

/* ---- channels ---- */

static int64_t channel_of(const struct check *c, int32_t from, int32_t to, enum hd_call call)
{
    return ((int64_t)from * c->schedule->pipeline.stages + to) * 2 + (call == HD_CALL_B);
}

/* Returns the lower one of the two chunks between which a SEND or RECEIVE transfers a value. */
static int32_t below_of(const struct hd_instruction *in)
{
    return (in->kind == HD_DO_SEND) == (in->call == HD_CALL_F) ? in->chunk : in->chunk - 1;
}

/* Numbers the SENDs of all stages, grouped by channel: begins[channel] becomes the number of the
 * channel's first transfer. */
static enum hd_status list_sends(struct check *c, int64_t *begins, int64_t channels)
{
    const int32_t P = c->schedule->pipeline.stages;
    int64_t total = 0;

    for (int32_t s = 0; s < P; s++)
        for (int32_t i = 0; i < c->plans[s].count; i++)
            if (at(c, s, i)->kind == HD_DO_SEND)
                begins[channel_of(c, s, at(c, s, i)->peer, at(c, s, i)->call)]++;
    for (int64_t ch = 0; ch <= channels; ch++) {
        const int64_t count = begins[ch];

        begins[ch] = total;
        total += count;
    }
    c->transfers = hd_arena_array(&c->arena, (size_t)total + 1, sizeof *c->transfers);
    if (!c->transfers)
        return hd_err(HD_NO_MEMORY, "no memory to check step plans");
    c->transfer_count = total;
    return HD_OK;
}

/* Fills one end of each transfer (`sends`: the sender's, otherwise the receiver's) in the order of
 * the instructions in the plans. */
static enum hd_status fill_ends(struct check *c, const int64_t *begins, int64_t *next, bool sends)
{
    char a[STORY_MAX], b[STORY_MAX];

    for (int32_t s = 0; s < c->schedule->pipeline.stages; s++)
        for (int32_t i = 0; i < c->plans[s].count; i++) {
            const struct hd_instruction *in = at(c, s, i);
            const struct hd_instruction *sent;
            struct transfer *t;
            int64_t ch, number;

            if (in->kind != (sends ? HD_DO_SEND : HD_DO_RECEIVE))
                continue;
            ch =
                sends ? channel_of(c, s, in->peer, in->call) : channel_of(c, in->peer, s, in->call);
            number = begins[ch] + next[ch]++;
            if (!sends && number >= begins[ch + 1])
                return hd_err(HD_INVALID, "%s: stage %d never sends it",
                              describe_instruction(c, s, i, a), (int)in->peer);
            t = &c->transfers[number];
            c->transfer_of[s][i] = number;
            if (sends) {
                *t = (struct transfer){.from = s, .from_at = i, .to = in->peer, .slot_sent = -1};
                t->before = number > begins[ch] ? number - 1 : -1;
                continue;
            }
            sent = at(c, t->from, t->from_at);
            if (below_of(sent) != below_of(in) || sent->micro_batch != in->micro_batch)
                return hd_err(HD_INVALID,
                              "%s is matched with %s; both ends of a channel must have one order",
                              describe_instruction(c, s, i, a),
                              describe_instruction(c, t->from, t->from_at, b));
            t->to_at = i;
        }
    return HD_OK;
}

static enum hd_status pair(struct check *c)
{
    const int64_t P = c->schedule->pipeline.stages, channels = P * P * 2;
    int64_t *begins = hd_arena_array(&c->arena, (size_t)channels + 1, sizeof *begins);
    int64_t *sent = hd_arena_array(&c->arena, (size_t)channels, sizeof *sent);
    int64_t *received = hd_arena_array(&c->arena, (size_t)channels, sizeof *received);
    char text[STORY_MAX];
    enum hd_status st;

    c->transfer_of = hd_arena_array(&c->arena, (size_t)P, sizeof *c->transfer_of);
    for (int32_t s = 0; s < P && c->transfer_of; s++) {
        c->transfer_of[s] =
            hd_arena_array(&c->arena, (size_t)c->plans[s].count + 1, sizeof *c->transfer_of[s]);
        for (int32_t i = 0; c->transfer_of[s] && i < c->plans[s].count; i++)
            c->transfer_of[s][i] = -1;
    }
    if (hd_arena_failed(&c->arena))
        return hd_err(HD_NO_MEMORY, "no memory to check step plans");
    st = list_sends(c, begins, channels);
    if (!st)
        st = fill_ends(c, begins, sent, true);
    if (!st)
        st = fill_ends(c, begins, received, false);
    for (int64_t ch = 0; ch < channels && !st; ch++) {
        const struct transfer *t = &c->transfers[begins[ch] + received[ch]];

        if (received[ch] < sent[ch])
            st = hd_err(HD_INVALID, "%s: stage %d never receives it",
                        describe_instruction(c, t->from, t->from_at, text), (int)t->to);
    }
    return st;
}

/* ---- waits ---- */

struct host {
    int32_t next;        /* index in the stage's plan of the next instruction to execute */
    int64_t *into, *out; /* for each slot of the boundary pool, the newest transfer into the slot
                            and the newest one out of it; -1: none */
    int64_t open;        /* transfers that this host has launched and that have not ended */
};

struct execution {
    struct check *c;
    struct host *hosts;
    int64_t *active; /* for each channel in use, the first transfer that has not ended; -1: all have
                        ended */
    int64_t active_count;
};

/* Returns the transfer that a stage's next instruction waits for; -1: it does not wait. */
static int64_t awaited_transfer(const struct execution *r, int32_t stage)
{
    static const enum hd_slot_use reads[] = {HD_SLOT_IN, HD_SLOT_OUT_GRAD},
                                  writes[] = {HD_SLOT_OUT, HD_SLOT_IN_GRAD};
    const struct host *h = &r->hosts[stage];
    const struct hd_instruction *in = at(r->c, stage, h->next);

    if (in->kind == HD_DO_RUN) {
        for (int i = 0; i < 2; i++) {
            const int32_t read = in->slot[reads[i]], written = in->slot[writes[i]];
            const int64_t into = read >= 0 ? h->into[read] : -1;
            const int64_t out = written >= 0 ? h->out[written] : -1;

            if (into >= 0 && !r->c->transfers[into].ended)
                return into;
            if (out >= 0 && !r->c->transfers[out].ended)
                return out;
        }
    } else if (in->kind == HD_DO_SYNCHRONIZE && h->open) {
        for (int64_t t = 0; t < r->c->transfer_count; t++) {
            const struct transfer *x = &r->c->transfers[t];

            if (!x->ended && (x->from == stage || x->to == stage))
                return t;
        }
    }
    return -1;
}

/* Executes the next instruction of a stage's host. Returns false if the instruction has to wait for
 * a transfer, or if the plan is at its end. */
static bool step_host(struct execution *r, int32_t stage)
{
    struct host *h = &r->hosts[stage];
    const struct hd_instruction *in;
    struct transfer *t;

    if (h->next == r->c->plans[stage].count)
        return false;
    in = at(r->c, stage, h->next);
    if (in->kind == HD_DO_SEND || in->kind == HD_DO_RECEIVE) {
        const int64_t number = r->c->transfer_of[stage][h->next];

        t = &r->c->transfers[number];
        h->open++;
        if (in->kind == HD_DO_SEND) {
            h->out[in->slot[in->call == HD_CALL_F ? HD_SLOT_OUT : HD_SLOT_IN_GRAD]] = number;
            t->sent = true;
        } else {
            const int32_t slot = in->slot[in->call == HD_CALL_F ? HD_SLOT_IN : HD_SLOT_OUT_GRAD];

            t->slot_sent = h->out[slot];
            h->into[slot] = number;
            t->received = true;
        }
    } else if (in->kind == HD_DO_SYNCHRONIZE ? h->open > 0 : awaited_transfer(r, stage) >= 0) {
        return false;
    }
    h->next++;
    return true;
}

/* Marks transfers of a channel as ended, in order, as far as the rules at the top of this file
 * allow. Returns whether one ended. */
static bool end_transfers(struct execution *r, int64_t channel)
{
    struct transfer *transfers = r->c->transfers;
    bool progress = false;

    while (r->active[channel] >= 0) {
        const int64_t number = r->active[channel], next = number + 1;
        struct transfer *t = &transfers[number];

        if (!t->sent || !t->received || (t->slot_sent >= 0 && !transfers[t->slot_sent].ended))
            break;
        t->ended = true;
        r->hosts[t->from].open--;
        r->hosts[t->to].open--;
        r->active[channel] =
            next < r->c->transfer_count && transfers[next].before == number ? next : -1;
        progress = true;
    }
    return progress;
}

/* Sets *ret_stage to the stage whose host a transfer waits for, and *ret_at to the instruction that
 * this host must reach. Returns false if transfers only wait for one another. */
static bool find_cause(const struct check *c, int64_t number, int32_t *ret_stage, int32_t *ret_at)
{
    for (int64_t i = 0; i <= c->transfer_count; i++) {
        const struct transfer *t = &c->transfers[number];

        if (!t->sent || !t->received) {
            *ret_stage = t->sent ? t->to : t->from;
            *ret_at = t->sent ? t->to_at : t->from_at;
            return true;
        }
        number = t->before >= 0 && !c->transfers[t->before].ended ? t->before : t->slot_sent;
    }
    return false;
}

static enum hd_status instruction_deadlock(const struct execution *r, int32_t stage)
{
    const struct check *c = r->c;
    char story[HD_ERR_MAX] = "", a[STORY_MAX], b[STORY_MAX];
    int32_t first, other = 0, there = 0;
    size_t n = 0;

    /* follow from each stage to the stage that it waits for, once per stage: then `stage` is in the
     * cycle */
    for (int32_t i = 0; i < c->schedule->pipeline.stages; i++) {
        if (!find_cause(c, awaited_transfer(r, stage), &other, &there))
            return hd_err(HD_INVALID, "%s waits for transfers that wait for one another",
                          describe_instruction(c, stage, r->hosts[stage].next, a));
        stage = other;
    }
    first = stage;
    do {
        (void)find_cause(c, awaited_transfer(r, stage), &other, &there);
        n += (size_t)snprintf(story + n, sizeof story - n, "%s%s waits for %s", n ? "; " : "",
                              describe_instruction(c, stage, r->hosts[stage].next, a),
                              describe_instruction(c, other, there, b));
        stage = other;
    } while (stage != first && n < sizeof story);
    return hd_err(HD_INVALID, "the step plans deadlock: %s", story);
}

static enum hd_status prepare_run(struct execution *r)
{
    struct check *c = r->c;

    r->hosts = hd_arena_array(&c->arena, (size_t)c->schedule->pipeline.stages, sizeof *r->hosts);
    r->active = hd_arena_array(&c->arena, (size_t)c->transfer_count + 1, sizeof *r->active);
    for (int32_t s = 0; s < c->schedule->pipeline.stages && r->hosts; s++) {
        const size_t slots = (size_t)c->plans[s].stage_io_slots;
        struct host *h = &r->hosts[s];

        h->into = hd_arena_array(&c->arena, slots + 1, sizeof *h->into);
        h->out = hd_arena_array(&c->arena, slots + 1, sizeof *h->out);
        for (size_t i = 0; i < slots && h->into && h->out; i++)
            h->into[i] = h->out[i] = -1;
    }
    if (hd_arena_failed(&c->arena))
        return hd_err(HD_NO_MEMORY, "no memory to check step plans");
    for (int64_t t = 0; t < c->transfer_count; t++)
        if (c->transfers[t].before < 0)
            r->active[r->active_count++] = t;
    return HD_OK;
}

static enum hd_status run_streams(struct check *c)
{
    const int32_t P = c->schedule->pipeline.stages;
    struct execution r = {.c = c};
    bool progress = true;
    enum hd_status st = prepare_run(&r);

    if (st)
        return st;
    while (progress) {
        progress = false;
        for (int32_t s = 0; s < P; s++)
            while (step_host(&r, s))
                progress = true;
        for (int64_t channel = 0; channel < r.active_count; channel++)
            progress |= end_transfers(&r, channel);
    }
    for (int32_t s = 0; s < P; s++)
        if (r.hosts[s].next < c->plans[s].count)
            return instruction_deadlock(&r, s);
    return HD_OK;
}

enum hd_status hd_step_plan_check(const struct hd_schedule *schedule,
                                  const struct hd_step_plan *plans)
{
    struct check c = {.schedule = schedule, .plans = plans};
    struct schedule_walk walk;
    enum hd_status st;

    hd_arena_init(&c.arena, 0);
    st = schedule_walk_run(schedule, NULL, NULL, &c.arena, &walk);
    if (st)
        goto end;
    c.forward = schedule_is_forward(schedule);
    for (int32_t s = 0; s < schedule->pipeline.stages && !st; s++)
        st = check_stage(&c, s);
    if (!st)
        st = pair(&c);
    if (!st)
        st = run_streams(&c);
end:
    hd_arena_done(&c.arena);
    return st;
}

enum hd_status hd_schedule_check(const struct hd_schedule *schedule, struct hd_arena *arena,
                                 struct hd_step_plan **ret_plans)
{
    const int32_t stages = schedule->pipeline.stages;
    struct hd_step_plan *plans = hd_arena_array(arena, (size_t)stages, sizeof *plans);
    enum hd_status st = plans ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for step plans");

    for (int32_t s = 0; !st && s < stages; s++)
        st = hd_step_plan_build(schedule, s, arena, &plans[s]);
    if (!st)
        st = hd_step_plan_check(schedule, plans);
    *ret_plans = plans;
    return st;
}
