#include "train/rollout.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/math.h"
#include "base/pieces.h"
#include "train/execute.h"

enum {
    NONE = -1, /* in place of a drawn id */
    NOT_FINITE = -2,
    DRAWERS_MAX = 16,                        /* threads that draw tokens */
    DRAWN_A_THREAD = HD_PIECE(1 << 15, 300), /* logits for which a thread is worth its start */
};

/* A sequence in a slot of a replica: one dp and cp index. */
struct rollout_slot {
    int64_t sequence; /* index; -1: the slot is free */
    int64_t filled;   /* tokens in the cache */
    bool draws;       /* the last call of a program has the logits behind its newest token */
};

/* A token that a rank with the head drew, as it travels. */
struct rollout_token {
    int32_t id; /* NONE, NOT_FINITE */
    float log_probability;
};

/* Message of a rank to all others when tokens are drawn. */
struct rollout_message {
    struct rollout_token tokens[HD_DECODE_SLOTS_MAX];
    int32_t stops; /* 1: this rank is to stop */
};

/* A thread that draws tokens, and its workspace. */
struct drawer {
    float *logits;  /* [V] */
    int32_t *order; /* [V], for hd_sample_token */
    /* of a call: each `step`-th of `count` rows from `first` on, into tokens[slots] */
    const struct hd_trainer *trainer;
    struct rollout_token *tokens;
    int64_t count, first, step;
    pthread_t thread;
    bool started;
};

struct hd_rollouts {
    struct hd_bound_instructions programs[HD_DECODE_PROGRAMS];
    struct hd_bound **starts; /* [chunk_count], programs S, which compute values from weights; NULL:
                                 the chunk has none */
    struct rollout_slot *slots; /* [replicas, slots] */
    int64_t *taken;             /* [replicas], sequences that have or had a slot */
    int64_t replicas;
    int32_t *fields; /* [rows of the program of prompts + 3 * slots], values of one batch field */
    /* only on ranks with the head */
    struct drawer drawers[DRAWERS_MAX];
    int drawer_count;
    float *rows; /* [tp, slots, columns of this rank], logits of the slots that draw */
    struct hd_comm_group *tp;
    /* of the call that runs */
    const struct hd_rollout *now;
    enum hd_decode_program program;
    struct hd_bases bases; /* of the head's chunk */
    const struct hd_store *output;
};

/* ---- opening ---- */

static bool has_head(const struct hd_rank_program *l)
{
    return l->coord.pp == hd_pipeline_stage(&l->pipeline, l->pipeline.chunks - 1);
}

/* Returns the columns of this rank's logits, with padding. */
static int64_t columns_of(const struct hd_rank_program *l)
{
    const struct hd_chunk *last = l->decode.chunks[HD_DECODE_TOKENS][l->chunk_count - 1];

    return hd_chunk_find_kind(last, HD_STORE_OUTPUT)->columns;
}

/* Returns the number of threads that draw: those of the job, or, on a device, of the processors that the rank
 * may use. */
static int drawers_of(const struct hd_job *job, int64_t slots)
{
    int64_t threads = job->threads;
    cpu_set_t may;

    if (job->device == HD_JOB_DEVICE_CUDA && sched_getaffinity(0, sizeof may, &may) == 0)
        threads = CPU_COUNT(&may);
    return (int)hd_max(1, hd_min(hd_min(threads, slots), DRAWERS_MAX));
}

static enum hd_status open_head(struct hd_trainer *t, struct hd_rollouts *o)
{
    const struct hd_rank_program *l = &t->rank_program;
    const size_t V = (size_t)l->job.vocab;

    o->drawer_count = drawers_of(&l->job, l->decode.slots);
    for (int i = 0; i < o->drawer_count; i++) {
        o->drawers[i].logits = hd_arena_array(&t->arena, V, sizeof(float));
        o->drawers[i].order = hd_arena_array(&t->arena, V, sizeof(int32_t));
    }
    o->rows = hd_arena_array(&t->arena, (size_t)(l->mesh.sizes.tp * l->decode.slots),
                             (size_t)columns_of(l) * sizeof *o->rows);
    if (hd_arena_failed(&t->arena))
        return hd_err(HD_NO_MEMORY, "no memory for logits");
    return l->mesh.sizes.tp > 1 ? hd_comm_mesh_group(t->open.comm, &l->mesh, HD_GROUP_TP, &o->tp)
                                : HD_OK;
}

/* Binds the programs S of the rank's chunks. */
static enum hd_status bind_starts(struct hd_trainer *t, struct hd_rollouts *o)
{
    const struct hd_rank_program *l = &t->rank_program;
    enum hd_status st = HD_OK;

    for (int k = 0; !st && k < l->chunk_count; k++) {
        const struct hd_chunk *chunk = l->decode.chunks[HD_DECODE_TOKENS][k];
        struct hd_bases bases = {.chunk_state = t->private_base + l->decode.state[k]};
        char *const base[2] = {t->private_base, t->registered_base};

        for (int v = 0; v < 2; v++) {
            bases.base[HD_REGION_STATE][v] = base[v];
            bases.base[HD_REGION_WORK][v] = base[v] + l->decode.work[v];
        }
        if (chunk->program[HD_CALL_S].count)
            st = hd_bind(t->open.runner, chunk, HD_CALL_S, true, true, &bases, &t->arena,
                         &o->starts[k]);
    }
    return st;
}

enum hd_status hd_rollout_bind(struct hd_trainer *t)
{
    const struct hd_rank_program *l = &t->rank_program;
    const int64_t slots = l->decode.slots, replicas = (int64_t)l->mesh.sizes.dp * l->mesh.sizes.cp;
    struct hd_rollouts *o;
    enum hd_status st = HD_OK;

    if (!slots)
        return HD_OK;
    o = t->rollouts = hd_arena_alloc(&t->arena, sizeof *o);
    if (!o)
        return hd_err(HD_NO_MEMORY, "no memory for samples");
    *o = (struct hd_rollouts){
        .replicas = replicas,
        .starts = hd_arena_array(&t->arena, (size_t)l->chunk_count, sizeof(struct hd_bound *)),
        .slots = hd_arena_array(&t->arena, (size_t)(replicas * slots), sizeof *o->slots),
        .taken = hd_arena_array(&t->arena, (size_t)replicas, sizeof *o->taken),
        .fields =
            hd_arena_array(&t->arena, (size_t)(slots * (l->decode.rows + 3)), sizeof *o->fields)};
    if (hd_arena_failed(&t->arena))
        return hd_err(HD_NO_MEMORY, "no memory for samples");
    for (int p = 0; !st && p < HD_DECODE_PROGRAMS; p++)
        st = hd_execute_bind_decode(t, (enum hd_decode_program)p, &o->programs[p]);
    if (!st)
        st = bind_starts(t, o);
    return st || !has_head(l) ? st : open_head(t, o);
}

/* ---- slots ---- */

static struct rollout_slot *slots_of(const struct hd_trainer *t, int64_t replica)
{
    return t->rollouts->slots + replica * t->rank_program.decode.slots;
}

static int64_t own_replica(const struct hd_rank_program *l)
{
    return (int64_t)l->coord.dp * l->mesh.sizes.cp + l->coord.cp;
}

/* Returns the index of sequence n of a replica; -1: it has fewer. The groups are dealt in turn. */
static int64_t sequence_of(const struct hd_rollouts *o, int64_t replica, int64_t n)
{
    const int64_t group = o->now->group;
    const int64_t index = (n / group * o->replicas + replica) * group + n % group;

    return index < o->now->count ? index : -1;
}

/* Returns whether enough slots are free to read prompts for them: a call of the program of prompts costs as
 * much for one slot as for all. It waits for a quarter of the slots of all replicas, or until no slot
 * has a sequence. */
static bool may_refill(const struct hd_trainer *t)
{
    const int64_t count = t->rollouts->replicas * t->rank_program.decode.slots;
    int64_t idle = 0;

    for (int64_t i = 0; i < count; i++)
        idle += t->rollouts->slots[i].sequence < 0;
    return 4 * idle >= count;
}

/* Gives free slots to the next sequences. */
static void refill(struct hd_trainer *t)
{
    struct hd_rollouts *o = t->rollouts;

    if (!may_refill(t))
        return;
    for (int64_t r = 0; r < o->replicas; r++)
        for (int64_t b = 0; b < t->rank_program.decode.slots; b++) {
            struct rollout_slot *slot = &slots_of(t, r)[b];

            if (slot->sequence >= 0)
                continue;
            slot->sequence = sequence_of(o, r, o->taken[r]);
            slot->filled = 0;
            o->taken[r] += slot->sequence >= 0;
        }
}

/* Returns the number of tokens of the slot that a call of the program reads. */
static int64_t rows_of(const struct hd_trainer *t, const struct rollout_slot *slot,
                       enum hd_decode_program program)
{
    const struct hd_rollout_sequence *s;

    if (slot->sequence < 0)
        return 0;
    s = &t->rollouts->now->sequences[slot->sequence];
    if (program == HD_DECODE_TOKENS)
        return slot->filled >= s->prompt_count;
    return hd_max(hd_min(t->rank_program.decode.rows, s->prompt_count - slot->filled), 0);
}

/* Returns whether a call of the program would read a token, on any rank. */
static bool reads(const struct hd_trainer *t, enum hd_decode_program program)
{
    const int64_t count = t->rollouts->replicas * t->rank_program.decode.slots;

    for (int64_t i = 0; i < count; i++)
        if (rows_of(t, &t->rollouts->slots[i], program))
            return true;
    return false;
}

/* Counts what a call has read. Returns whether a slot of any rank draws a token now. */
static bool advance(struct hd_trainer *t)
{
    const int64_t count = t->rollouts->replicas * t->rank_program.decode.slots;
    bool draws = false;

    for (int64_t i = 0; i < count; i++) {
        struct rollout_slot *slot = &t->rollouts->slots[i];
        const int64_t rows = rows_of(t, slot, t->rollouts->program);
        const struct hd_rollout_sequence *s =
            &t->rollouts->now->sequences[hd_max(slot->sequence, 0)];

        slot->filled += rows;
        slot->draws = rows && slot->filled == s->prompt_count + s->count;
        draws |= slot->draws;
    }
    return draws;
}

/* ---- the batch of a call ---- */

static int32_t token_at(const struct hd_rollout_sequence *s, int64_t i)
{
    return i < s->prompt_count ? s->prompt[i] : s->ids[i - s->prompt_count];
}

static enum hd_status put_decode_field(const struct hd_trainer *t, const struct hd_chunk *chunk,
                                       const struct hd_bases *bases, enum hd_batch_field field,
                                       int64_t count)
{
    const struct hd_store *store = hd_chunk_find_batch(chunk, field);

    return store ? hd_staging_write(&t->open.staging, hd_store_address(bases, store),
                                    t->rollouts->fields, count * (int64_t)sizeof(int32_t))
                 : HD_OK;
}

/* Returns the value of a field for row i of a slot, of `rows` that are read. Padding has token 0,
 * length 0 and the positions behind the last token, but none beyond the context, where the table of
 * rotation angles ends. */
static int32_t field_value(const struct hd_trainer *t, enum hd_batch_field field,
                           const struct rollout_slot *slot, int64_t rows, int64_t i)
{
    const struct hd_job *job = &t->rank_program.job;
    const int64_t place = (slot->sequence >= 0 ? slot->filled : 0) + i;

    switch (field) {
    case HD_BATCH_TOKENS:
        return i < rows ? token_at(&t->rollouts->now->sequences[slot->sequence], place) : 0;
    case HD_BATCH_LENGTHS:
        return i < rows;
    case HD_BATCH_POSITIONS:
        return (int32_t)(hd_min(place, job->context - 1) + hd_job_first_position(job));
    case HD_BATCH_INDEX:
        return (int32_t)place;
    default: /* HD_BATCH_BEGINS */
        return 0;
    }
}

static enum hd_status feed_decode(struct hd_trainer *t, const struct hd_chunk *chunk,
                                  const struct hd_bases *bases, int64_t micro_batch, void *context)
{
    static const enum hd_batch_field names[] = {HD_BATCH_TOKENS, HD_BATCH_POSITIONS, HD_BATCH_INDEX,
                                                HD_BATCH_BEGINS, HD_BATCH_LENGTHS};
    const struct hd_rank_program *l = &t->rank_program;
    const int64_t B = l->decode.slots, S = chunk->shape.S;
    const struct rollout_slot *slots = slots_of(t, own_replica(l));
    struct hd_rollouts *o = t->rollouts;
    enum hd_status st = HD_OK;

    (void)micro_batch, (void)context;
    for (size_t f = 0; !st && f < sizeof names / sizeof names[0]; f++) {
        for (int64_t b = 0; b < B; b++)
            for (int64_t i = 0; i < S; i++)
                o->fields[b * S + i] =
                    field_value(t, names[f], &slots[b], rows_of(t, &slots[b], o->program), i);
        st = put_decode_field(t, chunk, bases, names[f], B * S);
    }
    /* tokens in the slot before and after the call. An empty slot is full before, so that nothing is
     * written, and empty after, so that nothing is read */
    for (int64_t b = 0; b < B; b++) {
        const int64_t rows = rows_of(t, &slots[b], o->program);

        o->fields[b] = (int32_t)(rows ? slots[b].filled : l->job.context);
        o->fields[B + b] = (int32_t)(rows ? slots[b].filled + rows : 0);
        o->fields[2 * B + b] = (int32_t)b;
    }
    if (!st)
        st = put_decode_field(t, chunk, bases, HD_BATCH_FILLED, 3 * B);
    if (st)
        hd_comm_abort(t->open.comm, hd_err_message());
    return st;
}

/* Notes where the logits are. */
static enum hd_status note_output(struct hd_trainer *t, const struct hd_chunk *chunk,
                                  const struct hd_bases *bases, int64_t micro_batch, void *context)
{
    const struct hd_store *store = hd_chunk_find_kind(chunk, HD_STORE_OUTPUT);

    (void)micro_batch, (void)context;
    if (store) {
        t->rollouts->bases = *bases;
        t->rollouts->output = store;
    }
    return HD_OK;
}

/* ---- drawing ---- */

/* Reads this rank's logits of the slots that draw, into `rows`, and returns how many slots do. */
static enum hd_status read_logit_rows(struct hd_trainer *t, const struct rollout_slot *slots,
                                      int64_t *ret_count)
{
    struct hd_rollouts *o = t->rollouts;
    const int64_t S = o->program == HD_DECODE_PROMPTS ? t->rank_program.decode.rows : 1;
    const int64_t columns = o->output->columns;
    const float *output = hd_store_address(&o->bases, o->output);
    enum hd_status st = HD_OK;

    *ret_count = 0;
    for (int64_t b = 0; !st && b < t->rank_program.decode.slots; b++) {
        const struct hd_rollout_sequence *s;
        int64_t row = 0;

        if (!slots[b].draws)
            continue;
        s = &o->now->sequences[slots[b].sequence];
        if (o->program == HD_DECODE_PROMPTS) /* the last row of the prompt's last piece */
            row = (s->prompt_count - 1) % t->rank_program.decode.rows;
        st = hd_staging_read(&t->open.staging, o->rows + *ret_count * columns,
                             output + (b * S + row) * columns, columns * (int64_t)sizeof *output);
        (*ret_count)++;
    }
    return st;
}

/* Gathers `count` rows of each tp rank, which become o->rows [tp, count, columns]. */
static enum hd_status gather_rows(struct hd_trainer *t, int64_t count)
{
    const struct hd_rank_program *l = &t->rank_program;
    struct hd_rollouts *o = t->rollouts;
    struct hd_comm_stream *stream = hd_comm_get_stream(t->open.comm, HD_COMM_STREAM_REDUCE);
    const int64_t columns = o->output->columns, bytes = count * columns * (int64_t)sizeof *o->rows;
    const int64_t most = hd_tensor_align(l->decode.slots * columns * (int64_t)sizeof *o->rows);
    char *all = t->registered_base + l->decode.logits, *own = all + l->mesh.sizes.tp * most;
    enum hd_status st = hd_staging_write(&t->open.staging, own, o->rows, bytes);

    if (!st)
        st = hd_comm_follow(stream, hd_runner_stream(t->open.runner));
    if (!st)
        st = hd_comm_launch(o->tp, stream, HD_COMM_ALL_GATHER,
                            HD_COLLECTIVE(own, all, count * columns, HD_F32));
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    return st ? st : hd_staging_read(&t->open.staging, o->rows, all, l->mesh.sizes.tp * bytes);
}

/* Puts row `row` of `count` gathered ones together in `logits`. Returns whether all are finite. */
static bool join_logits(const struct hd_trainer *t, int64_t row, int64_t count, float *logits)
{
    const struct hd_rollouts *o = t->rollouts;
    const int64_t V = t->rank_program.job.vocab, columns = o->output->columns;

    for (int64_t v = 0; v < V; v += columns)
        memcpy(logits + v, o->rows + (v / columns * count + row) * columns,
               (size_t)hd_min(columns, V - v) * sizeof *logits);
    for (int64_t v = 0; v < V; v++)
        if (!isfinite(logits[v]))
            return false;
    return true;
}

/* Returns the log-probability of a token by the logits of one row, which it may change. */
static float log_probability(const struct hd_rollouts *o, float *logits, int64_t V, int32_t id)
{
    const double T = o->now->probability_temperature;

    if (T > 0 && T < 1e30 && (T < 1 || T > 1))
        for (int64_t v = 0; v < V; v++)
            logits[v] = (float)((double)logits[v] / T);
    return (float)((double)logits[id] - hd_sample_norm(logits, V));
}

static struct rollout_token draw(const struct hd_trainer *t, const struct drawer *d,
                                 const struct hd_rollout_sequence *s)
{
    const struct hd_rollouts *o = t->rollouts;
    const int64_t V = t->rank_program.job.vocab, most = o->now->drawn_max;
    struct hd_sampling sampling = o->now->sampling;
    struct rollout_token token;

    sampling.seed = s->seed;
    token.id = hd_sample_token(d->logits, most > 0 && most < V ? most : V, &sampling,
                               (uint64_t)s->count, d->order);
    token.log_probability = log_probability(o, d->logits, V, token.id);
    return token;
}

/* Draws the tokens of each `step`-th row, beginning with the drawer's. Runs in a thread of its own: rows are
 * independent, so the tokens are the same for any number of threads. */
static void *draw_rows(void *of)
{
    const struct drawer *d = of;
    const struct hd_trainer *t = d->trainer;
    const struct rollout_slot *slots = slots_of(t, own_replica(&t->rank_program));
    int64_t row = 0;

    for (int64_t b = 0; b < t->rank_program.decode.slots; b++) {
        if (!slots[b].draws || row++ % d->step != d->first)
            continue;
        if (join_logits(t, row - 1, d->count, d->logits))
            d->tokens[b] = draw(t, d, &t->rollouts->now->sequences[slots[b].sequence]);
        else
            d->tokens[b].id = NOT_FINITE;
    }
    return NULL;
}

/* Draws the tokens of this replica, on the tp ranks with the head. */
static enum hd_status draw_own(struct hd_trainer *t, struct rollout_token *ret_tokens)
{
    const struct rollout_slot *slots = slots_of(t, own_replica(&t->rank_program));
    struct hd_rollouts *o = t->rollouts;
    int64_t count;
    int step;
    enum hd_status st = read_logit_rows(t, slots, &count);

    if (!st && count && o->tp)
        st = gather_rows(t, count);
    if (st)
        return st;
    step =
        (int)hd_max(1, hd_min(o->drawer_count, count * t->rank_program.job.vocab / DRAWN_A_THREAD));
    for (int i = 0; i < step; i++) {
        struct drawer *d = &o->drawers[i];

        d->trainer = t;
        d->tokens = ret_tokens;
        d->count = count;
        d->first = i;
        d->step = step;
        d->started = i + 1 < step && pthread_create(&d->thread, NULL, draw_rows, d) == 0;
        if (!d->started)
            (void)draw_rows(d);
    }
    for (int i = 0; i < step; i++)
        if (o->drawers[i].started)
            (void)pthread_join(o->drawers[i].thread, NULL);
    return HD_OK;
}

/* Adds a token to the slot's sequence, and frees the slot if it ends with it. */
static enum hd_status take_token(const struct hd_trainer *t, struct rollout_slot *slot,
                                 const struct rollout_token *token)
{
    const struct hd_rollout *now = t->rollouts->now;
    struct hd_rollout_sequence *s = &now->sequences[slot->sequence];
    const int64_t sequence = slot->sequence;
    bool ends = true;

    if (token->id < 0) {
        s->end = HD_ROLLOUT_NOT_FINITE;
    } else {
        s->ids[s->count] = token->id;
        if (s->log_probabilities)
            s->log_probabilities[s->count] = token->log_probability;
        s->count++;
        if (now->stops && hd_stops_has(now->stops, token->id))
            s->end = HD_ROLLOUT_STOP;
        else
            ends = s->count == now->max_tokens ||
                   s->prompt_count + s->count > t->rank_program.job.context;
    }
    if (!ends)
        return HD_OK;
    slot->sequence = -1;
    return now->ended ? now->ended(now->user, sequence) : HD_OK;
}

/* Draws a token for each slot whose newest token has been read, and gives it to all ranks. */
static enum hd_status draw_all(struct hd_trainer *t)
{
    const struct hd_rank_program *l = &t->rank_program;
    const int64_t slots = l->decode.slots;
    const struct hd_rollout *now = t->rollouts->now;
    struct rollout_message message = {.stops = now->stops_now && now->stops_now(now->user)};
    struct rollout_token *tokens = message.tokens;
    struct hd_mesh_coord head = {.pp = hd_pipeline_stage(&l->pipeline, l->pipeline.chunks - 1)};
    const char *all;
    enum hd_status st;

    _Static_assert(sizeof message <= HD_EXCHANGE_SLOT_BYTES,
                   "the tokens of a rank are one message");
    for (int64_t b = 0; b < slots; b++)
        tokens[b] = (struct rollout_token){.id = NONE};
    st = has_head(l) ? draw_own(t, tokens) : HD_OK;
    if (!st)
        st = hd_trainer_exchange(t, &message, sizeof message, &all);
    for (int r = 0; !st && now->stops_now && r < l->mesh.world; r++) {
        memcpy(&message, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, sizeof message);
        *now->ret_stopped |= message.stops != 0;
    }
    for (int64_t r = 0; !st && r < t->rollouts->replicas; r++) {
        head.dp = (int32_t)(r / l->mesh.sizes.cp);
        head.cp = (int32_t)(r % l->mesh.sizes.cp);
        memcpy(tokens, all + hd_mesh_rank(&l->mesh, head) * (int64_t)HD_EXCHANGE_SLOT_BYTES,
               (size_t)slots * sizeof *tokens);
        for (int64_t b = 0; !st && b < slots; b++)
            if (slots_of(t, r)[b].draws)
                st = take_token(t, &slots_of(t, r)[b], &tokens[b]);
    }
    return st;
}

/* ---- a rollout ---- */

static enum hd_status check_rollout(const struct hd_trainer *t, const struct hd_rollout *now)
{
    const struct hd_job *job = &t->rank_program.job;

    if (!t->rollouts)
        return hd_err(HD_INVALID, "this job has no programs of decoding");
    if (now->group < 1 || now->max_tokens < 1 || now->count % now->group)
        return hd_err(HD_INVALID, "a rollout needs whole groups and at least one token");
    for (int64_t i = 0; i < now->count; i++) {
        const struct hd_rollout_sequence *s = &now->sequences[i];

        if (s->prompt_count < 1 || s->prompt_count > job->context)
            return hd_err(HD_INVALID, "prompt %lld has %lld tokens, and model.context is %lld",
                          (long long)i + 1, (long long)s->prompt_count, (long long)job->context);
        for (int64_t k = 0; k < s->prompt_count; k++)
            if (s->prompt[k] < 0 || s->prompt[k] >= job->vocab)
                return hd_err(HD_INVALID,
                              "token %d of prompt %lld is outside the vocabulary of %lld",
                              (int)s->prompt[k], (long long)i + 1, (long long)job->vocab);
    }
    return HD_OK;
}

/* Makes caches and tables in memory that the last step or validation has used for other things. */
static enum hd_status start(struct hd_trainer *t)
{
    const struct hd_rank_program *l = &t->rank_program;
    const struct hd_rollouts *o = t->rollouts;
    enum hd_status st = HD_OK;

    for (int k = 0; !st && k < l->chunk_count; k++) {
        const struct hd_chunk *chunk = l->decode.chunks[HD_DECODE_TOKENS][k];

        /* no number in a row that is not valid yet may be a NaN, which zero times it is, too */
        st = hd_staging_clear(&t->open.staging, t->private_base + l->decode.state[k],
                              chunk->extent[HD_REGION_STATE].private_bytes);
        if (!st)
            st = hd_staging_write_constants(&t->open.staging, chunk,
                                            t->private_base + l->decode.state[k]);
        if (!st && o->starts[k])
            st = hd_run(t->open.runner, o->starts[k]);
    }
    return st;
}

static enum hd_status run_calls(struct hd_trainer *t)
{
    struct hd_rollouts *o = t->rollouts;
    enum hd_status st = HD_OK;

    for (refill(t); !st; refill(t)) {
        if (reads(t, HD_DECODE_PROMPTS))
            o->program = HD_DECODE_PROMPTS;
        else if (reads(t, HD_DECODE_TOKENS))
            o->program = HD_DECODE_TOKENS;
        else
            break;
        if (o->now->alive)
            o->now->alive(o->now->user);
        st = hd_execute(t, &o->programs[o->program], 1, feed_decode, note_output, NULL);
        if (!st && advance(t))
            st = draw_all(t);
        if (o->now->stops_now && *o->now->ret_stopped)
            break;
    }
    return st;
}

enum hd_status hd_trainer_rollout(struct hd_trainer *t, const struct hd_rollout *rollout)
{
    struct hd_rollouts *o = t->rollouts;
    enum hd_status st = check_rollout(t, rollout);

    if (st)
        return st;
    o->now = rollout;
    memset(o->taken, 0, (size_t)o->replicas * sizeof *o->taken);
    for (int64_t i = 0; i < o->replicas * t->rank_program.decode.slots; i++)
        o->slots[i] = (struct rollout_slot){.sequence = -1};
    for (int64_t i = 0; i < rollout->count; i++) {
        rollout->sequences[i].count = 0;
        rollout->sequences[i].end = HD_ROLLOUT_LENGTH;
    }
    st = start(t);
    if (!st)
        st = run_calls(t);
    /* the programs may have set flags in the step's state block, for rows that are empty */
    return st ? st : hd_trainer_write_block(t);
}
