/* save: writes weights and moments to checkpoints and reads them.
 *
 * Each rank writes the entries that it owns (owners.h); the two moments of a tensor are separate
 * entries, in fp32: those that a rank has in blocks are decoded, and encoded when they are read, so
 * a checkpoint fits every layout and either value of train.moments. Encoding gives back the codes
 * and scales that were decoded (base/encoding.h). Buffers (registry.h) are entries of their own,
 * whole and of rank 0, and every rank reads them. First all ranks write their shards durably; then
 * they exchange descriptions of the shards; then rank 0 commits the manifest and sends the result
 * to the others.
 *
 * With checkpoint.async a rank copies its entries to memory that the plan has for it, and a thread
 * writes the shard while training goes on (hd_trainer_save_begin). What the manifest says of the
 * moment, such as step and loss scale, is noted with the copy. Descriptions are exchanged when
 * every rank has written (hd_trainer_save_finish). A shard without a manifest is no checkpoint: one
 * that is interrupted leaves the one before it valid. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "train/offload.h"
#include "train/owners.h"
#include "train/source.h"
#include "train/trainer.h"

enum { KINDS = HD_SAVED_KINDS, CHECKPOINT_DEADLINE_MS = 15 * 60 * 1000, SUMS_TEXT = 64 };

static const enum hd_state_kind *const kinds = hd_saved_kinds;
static const char *const prefixes[KINDS] = {"", "adamw.m.", "adamw.v."};

/* ---- entries ---- */

struct names {
    char text[HD_CKPT_NAME_MAX];
};

/* This rank's share of a tensor, without padding. */
static struct hd_ckpt_entry entry_of(const struct hd_param *p, int kind, struct names *ret_name)
{
    struct hd_ckpt_entry e;

    (void)snprintf(ret_name->text, sizeof ret_name->text, "%s%s", prefixes[kind], p->name);
    e = hd_ckpt_entry_whole(ret_name->text, HD_F32, p->dim_count, p->shape);
    for (int d = 0; d < p->dim_count; d++)
        if (p->real[d] != p->shape[d])
            hd_ckpt_entry_cut(&e, d, p->start[d], p->real[d]);
    return e;
}

struct shard_plan {
    struct hd_trainer *t;
    struct hd_ckpt_entry *entries;
    struct hd_held *held; /* the entries' values */
    struct names *names;
    size_t count;
};

static void put_own(void *context, int owner, int param, int kind, struct hd_range piece)
{
    struct shard_plan *s = context;
    struct hd_ckpt_entry *e = &s->entries[s->count];

    if (owner != s->t->layout.rank)
        return;
    *e = entry_of(&s->t->layout.registry.params[param], kind, &s->names[s->count]);
    e->flat_first = piece.begin;
    e->flat_count = piece.end - piece.begin;
    s->held[s->count++] = hd_trainer_find(s->t, param, kinds[kind]);
}

static void name_buffer(const struct hd_buffer *b, struct names *ret_name)
{
    (void)snprintf(ret_name->text, sizeof ret_name->text, HD_CKPT_BUFFER_PREFIX "%s", b->name);
}

static float *buffer_at(const struct hd_trainer *t, const struct hd_buffer *b)
{
    return (float *)hd_trainer_global(t, HD_GLOBAL_BUFFERS) + b->first;
}

static void put_buffers(struct shard_plan *s)
{
    const struct hd_registry *r = &s->t->layout.registry;

    for (int i = 0; i < r->buffer_count && s->t->layout.rank == 0; i++) {
        const struct hd_buffer *b = &r->buffers[i];
        struct names *name = &s->names[s->count];

        name_buffer(b, name);
        s->entries[s->count] =
            hd_ckpt_entry_whole(name->text, HD_F32, 2, (const int64_t[]){b->rows, b->columns});
        s->held[s->count++] = (struct hd_held){
            .count = b->rows * b->columns, .at = (char *)buffer_at(s->t, b), .dtype = HD_F32};
    }
}

/* The entries that this rank writes. */
static enum hd_status plan_shard(struct hd_trainer *t, struct hd_arena *arena,
                                 struct shard_plan *ret_plan)
{
    const size_t most = (size_t)t->layout.registry.param_count * KINDS +
                        (size_t)t->layout.registry.buffer_count + 1;
    struct shard_plan s = {t, hd_arena_array(arena, most, sizeof *s.entries),
                           hd_arena_array(arena, most, sizeof *s.held),
                           hd_arena_array(arena, most, sizeof *s.names), 0};
    enum hd_status st = hd_arena_failed(arena)
                            ? hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint")
                            : hd_owners_assign(&t->layout.registry, arena, put_own, &s);

    if (st)
        return st;
    put_buffers(&s);
    *ret_plan = s;
    return HD_OK;
}

/* ---- room ---- */

struct whole {
    int64_t data_bytes, entries;
};

static void put_any(void *context, int owner, int param, int kind, struct hd_range piece)
{
    struct whole *w = context;

    (void)owner, (void)param, (void)kind;
    w->data_bytes += (piece.end - piece.begin) * (int64_t)sizeof(float);
    w->entries++;
}

/* Whether a checkpoint of all ranks fits into the attempt's file system. */
static enum hd_status look_for_room(struct hd_trainer *t, struct hd_arena *arena)
{
    struct whole whole = {hd_owners_buffers_bytes(&t->layout.registry),
                          t->layout.registry.buffer_count};
    enum hd_status st = hd_owners_assign(&t->layout.registry, arena, put_any, &whole);

    return st ? st
              : hd_file_check_room(t->layout.job.attempt_dir,
                                   hd_ckpt_bound_bytes(whole.data_bytes, whole.entries));
}

/* ---- saving ---- */

/* What a manifest says of the moment at which the weights were as they are saved. */
struct saved_moment {
    int64_t step, updates;
    struct hd_loss_scale scale;
    bool is_validated;
    double val_loss, lowest_val_loss;
};

/* What a rank sends to the others: a failure with its message, or the description of its shard. */
struct outcome {
    enum hd_status status;
    int has_shard;
    struct hd_ckpt_shard shard;
    uint64_t manifest_hash;
    char message[HD_EXCHANGE_SLOT_BYTES - sizeof(struct hd_ckpt_shard) - 4 * sizeof(int) -
                 sizeof(uint64_t)];
};
_Static_assert(sizeof(struct outcome) <= HD_EXCHANGE_SLOT_BYTES, "an outcome fits its slot");

static struct outcome outcome_of(enum hd_status st)
{
    struct outcome o = {.status = st};

    if (st)
        (void)snprintf(o.message, sizeof o.message, "%s", hd_err_message());
    return o;
}

/* Exchanges the outcomes. If a rank failed, every rank returns the failure of the first of them. */
static enum hd_status agree(struct hd_trainer *t, const struct outcome *mine,
                            struct outcome *ret_all)
{
    const char *all;
    enum hd_status st = hd_trainer_exchange(t, mine, sizeof *mine, &all);

    if (st)
        return st;
    for (int r = 0; r < t->layout.mesh.world; r++)
        memcpy(&ret_all[r], all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, sizeof *ret_all);
    for (int r = 0; r < t->layout.mesh.world; r++)
        if (ret_all[r].status)
            return hd_err(ret_all[r].status, "rank %d: %.*s", r, (int)sizeof ret_all[r].message,
                          ret_all[r].message);
    return HD_OK;
}

struct shard_source {
    const struct hd_staging *staging;
    const struct shard_plan *plan;
    float *decoded; /* [HD_HELD_PIECE] */
};

/* The bytes of an entry: all at once from host memory, a staging buffer at a time from a device, a
 * piece at a time where it is decoded. */
static enum hd_status entry_bytes(void *context, size_t entry, int64_t at, int64_t left_bytes,
                                  const void **ret_bytes, int64_t *ret_size_bytes)
{
    const struct shard_source *s = context;
    const struct hd_held *held = &s->plan->held[entry];
    const int64_t size = (int64_t)sizeof(float);

    if (!hd_held_is_plain(held)) {
        const int64_t left = left_bytes / size, count = left < HD_HELD_PIECE ? left : HD_HELD_PIECE;

        *ret_bytes = s->decoded;
        *ret_size_bytes = count * size;
        return hd_held_read(s->staging, held, at / size, count, s->decoded);
    }
    *ret_size_bytes = hd_staging_piece(s->staging, left_bytes);
    return hd_staging_fetch(s->staging, held->at + at, *ret_size_bytes, ret_bytes);
}

static enum hd_status write_shard(struct hd_trainer *t, const char *dir, struct hd_arena *arena,
                                  struct outcome *ret_outcome)
{
    struct shard_plan plan = {0};
    struct shard_source source = {&t->staging, &plan,
                                  hd_arena_array(arena, HD_HELD_PIECE, sizeof(float))};
    enum hd_status st = plan_shard(t, arena, &plan);

    *ret_outcome = (struct outcome){0};
    if (!st && plan.count) {
        st = hd_ckpt_write_shard(dir, t->layout.rank, plan.entries, plan.count, entry_bytes,
                                 &source, &ret_outcome->shard);
        ret_outcome->has_shard = !st;
    }
    if (st)
        *ret_outcome = outcome_of(st);
    return st;
}

static void number_text(int64_t value, char ret_text[24])
{
    (void)snprintf(ret_text, 24, "%lld", (long long)value);
}

/* TF32 changes the bits of fp32 GEMMs on a GPU. */
static const char *precision_fact(const struct hd_trainer *t)
{
    const struct hd_job *job = &t->layout.job;

    return job->tf32 && hd_traits_is_cuda(&t->traits) && strcmp(job->precision, "fp32") == 0
               ? "tf32"
               : job->precision;
}

/* How sums over ranks are made; train.native_reduction has an effect only with NCCL. */
static const char *sums_fact(const struct hd_trainer *t, char ret_text[SUMS_TEXT])
{
    const struct hd_layout *l = &t->layout;
    const int32_t shard = l->mesh.sizes.zero_shard, replicas = l->mesh.sizes.dp * l->mesh.sizes.cp;
    int used =
        snprintf(ret_text, SUMS_TEXT, "%s", hd_comm_sums_natively(t->comm) ? "native" : "ordered");

    if (l->registry.zero >= 2 && replicas > 1)
        used += snprintf(ret_text + used, (size_t)(SUMS_TEXT - used), " in each micro-batch");
    if (strcmp(l->job.reduce, "bf16") == 0 && replicas > 1)
        used += snprintf(ret_text + used, (size_t)(SUMS_TEXT - used), " of bf16");
    if (l->registry.zero && shard < replicas)
        (void)snprintf(ret_text + used, (size_t)(SUMS_TEXT - used), " by blocks of %d", (int)shard);
    return ret_text;
}

static struct saved_moment now(const struct hd_trainer *t)
{
    return (struct saved_moment){.step = t->steps_done,
                                 .updates = t->updates,
                                 .scale = t->scale,
                                 .is_validated = t->val_step >= 0 && t->val_step == t->steps_done,
                                 .val_loss = t->val_loss,
                                 .lowest_val_loss = t->lowest_val_loss};
}

static enum hd_status commit(struct hd_trainer *t, const struct saved_moment *at, const char *dir,
                             const struct outcome *all, struct hd_arena *arena, uint64_t *ret_hash)
{
    const struct hd_job *job = &t->layout.job;
    const int world = t->layout.mesh.world;
    struct hd_ckpt_shard *shards = hd_arena_array(arena, (size_t)world, sizeof *shards);
    struct hd_text config = {0};
    char sums[SUMS_TEXT], dp[24], tp[24], pp[24], zero[24], cp[24], ep[24], threads[24], micro[24];
    const struct hd_ckpt_fact layout[] = {{"dp", dp},
                                          {"tp", tp},
                                          {"pp", pp},
                                          {"zero", zero},
                                          {"cp", cp},
                                          {"ep", ep},
                                          {"cp_exchange", job->cp_exchange},
                                          {"sequence", job->sequence ? "1" : "0"},
                                          {"micro_batch", micro}};
    const struct hd_ckpt_fact determinism[] = {
        {"backend", t->traits.backend},   {"isa", t->traits.isa},
        {"library", t->traits.library},   {"threads", threads},
        {"precision", precision_fact(t)}, {"moments", job->moments},
        {"sums", sums_fact(t, sums)}};
    const struct hd_ckpt_counter counters[] = {{"step", at->step},
                                               {"adam_step", at->updates},
                                               {"loss_scale", at->scale.scale},
                                               {"loss_scale_good", at->scale.good}};
    struct hd_ckpt_manifest m = {.job = job->name,
                                 .attempt = (int)job->attempt,
                                 .step = at->step,
                                 .tokens_seen = at->step * job->global_batch * job->context,
                                 .has_val_loss = at->is_validated,
                                 .val_loss = at->val_loss,
                                 .has_lowest_val_loss = isfinite(at->lowest_val_loss),
                                 .lowest_val_loss = at->lowest_val_loss,
                                 .layout = layout,
                                 .layout_count = sizeof layout / sizeof layout[0],
                                 .determinism = determinism,
                                 .determinism_count = sizeof determinism / sizeof determinism[0],
                                 .counters = counters,
                                 .counter_count = at->scale.used ? 4 : 2,
                                 .shards = shards};
    enum hd_status st = shards ? hd_job_write(job, &config) : hd_err(HD_NO_MEMORY, "no memory");

    number_text(job->dp, dp);
    number_text(job->tp, tp);
    number_text(job->pp, pp);
    number_text(job->zero > 0 ? job->zero : 0, zero);
    number_text(job->cp, cp);
    number_text(job->ep, ep);
    number_text(job->threads, threads);
    number_text(job->micro_batch, micro);
    for (int r = 0; !st && r < world; r++)
        if (all[r].has_shard)
            shards[m.shard_count++] = all[r].shard;
    m.config = config.data;
    if (!st)
        st = hd_ckpt_commit(dir, &m, ret_hash);
    hd_text_free(&config);
    return st;
}

/* Rank 0 alone looks: the shards of the others may be growing by then. */
static enum hd_status agree_on_room(struct hd_trainer *t, struct hd_arena *arena,
                                    struct outcome *all)
{
    struct outcome mine = {0};

    if (t->layout.rank == 0)
        mine = outcome_of(look_for_room(t, arena));
    return agree(t, &mine, all);
}

/* When all ranks know that the save failed: rank 0 removes what was written. The others wait,
 * because that may take longer than a step. What cannot be removed is removed when the next attempt
 * starts. */
static enum hd_status give_up(struct hd_trainer *t, enum hd_status st, const char *dir,
                              struct outcome *all)
{
    struct outcome mine = {0};
    struct hd_error error;

    hd_err_save(st, &error);
    if (hd_comm_failure(t->comm))
        return hd_err_restore(&error);
    if (t->layout.rank == 0)
        (void)hd_ckpt_remove_partial(dir);
    (void)agree(t, &mine, all); /* its failure is of the communication, and stays */
    return hd_err_restore(&error);
}

/* Phase two, when this rank's shard is written or has failed. */
static enum hd_status publish(struct hd_trainer *t, const struct saved_moment *at,
                              const struct outcome *written, struct hd_arena *arena,
                              struct hd_saved *ret_saved)
{
    struct outcome *all = hd_arena_array(arena, (size_t)t->layout.mesh.world, sizeof *all), mine;
    struct hd_saved saved = *ret_saved;
    uint64_t hash = 0;
    enum hd_status st;

    if (!all)
        return hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");
    st = agree(t, written, all);
    if (st)
        return give_up(t, st, saved.path, all);
    for (int r = 0; r < t->layout.mesh.world; r++)
        saved.bytes += all[r].shard.size_bytes;

    mine = (struct outcome){0};
    if (t->layout.rank == 0) {
        st = commit(t, at, saved.path, all, arena, &hash);
        mine = outcome_of(st);
        mine.manifest_hash = hash;
    }
    st = agree(t, &mine, all);
    if (st)
        return give_up(t, st, saved.path, all);
    (void)snprintf(saved.hash, sizeof saved.hash, "%016" PRIx64, all[0].manifest_hash);
    *ret_saved = saved;
    return HD_OK;
}

/* Looks for room, and begins the description of what will be saved. ret_mine: of a failure of this
 * rank alone. */
static enum hd_status open_save(struct hd_trainer *t, const struct saved_moment *at,
                                struct hd_arena *arena, struct hd_saved *ret_saved,
                                struct outcome *ret_mine)
{
    struct outcome *all = hd_arena_array(arena, (size_t)t->layout.mesh.world, sizeof *all);
    enum hd_status st = all ? agree_on_room(t, arena, all)
                            : hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");

    if (st)
        return st;
    *ret_saved =
        (struct hd_saved){.step = at->step, .val_loss = at->is_validated ? at->val_loss : NAN};
    st = hd_ckpt_format_dir(t->layout.job.attempt_dir, at->step, ret_saved->path,
                            sizeof ret_saved->path);
    *ret_mine = outcome_of(st);
    return HD_OK;
}

static enum hd_status save(struct hd_trainer *t, const struct saved_moment *at,
                           struct hd_arena *arena, struct hd_saved *ret_saved)
{
    struct outcome mine;
    enum hd_status st = open_save(t, at, arena, ret_saved, &mine);

    if (st)
        return st;
    if (!mine.status)
        (void)write_shard(t, ret_saved->path, arena, &mine); /* a failure is in the outcome */
    return publish(t, at, &mine, arena, ret_saved);
}

enum hd_status hd_trainer_save(struct hd_trainer *t, struct hd_saved *ret_saved)
{
    const struct saved_moment at = now(t);
    struct hd_saved saved;
    struct hd_arena arena;
    enum hd_status st;

    assert(!hd_trainer_is_saving(t));
    hd_arena_init(&arena, 0);
    hd_comm_set_deadline(t->comm, CHECKPOINT_DEADLINE_MS); /* disks are slower than steps */
    st = save(t, &at, &arena, &saved);
    hd_comm_set_deadline(t->comm, HD_STEP_DEADLINE_MS);
    hd_arena_done(&arena);
    if (st)
        return hd_err_prefix(st, "checkpoint of step %lld", (long long)at.step);
    *ret_saved = saved;
    return HD_OK;
}

/* ---- saving in the background ---- */

/* A save between begin and finish. The thread uses plan, copy, saved.path and mine; everything
 * else is the rank's. */
struct hd_background_save {
    bool under_way;
    struct hd_arena arena;
    struct saved_moment at;
    struct hd_saved saved;
    struct shard_plan plan;
    const char **copies; /* of the entries, fp32 */
    struct outcome mine;
    int rank;
    pthread_t thread;
    bool has_thread;
    atomic_bool written, given_up;
};

static enum hd_status copied_bytes(void *context, size_t entry, int64_t at, int64_t left_bytes,
                                   const void **ret_bytes, int64_t *ret_size_bytes)
{
    const struct hd_background_save *b = context;

    if (atomic_load(&b->given_up))
        return hd_err(HD_ABORTED, "the rank ends");
    *ret_size_bytes = left_bytes < HD_STAGING_BYTES ? left_bytes : HD_STAGING_BYTES;
    *ret_bytes = b->copies[entry] + at;
    return HD_OK;
}

static void *write_copy(void *argument)
{
    struct hd_background_save *b = argument;
    const enum hd_status st = hd_ckpt_write_shard(b->saved.path, b->rank, b->plan.entries,
                                                  b->plan.count, copied_bytes, b, &b->mine.shard);

    if (st)
        b->mine = outcome_of(st);
    else
        b->mine.has_shard = 1;
    atomic_store(&b->written, true);
    return NULL;
}

/* Training waits for this alone. */
static enum hd_status copy_entries(struct hd_trainer *t, struct hd_background_save *b)
{
    char *copy = t->host_base + t->layout.snapshot;
    enum hd_status st = plan_shard(t, &b->arena, &b->plan);

    b->copies = hd_arena_array(&b->arena, b->plan.count + 1, sizeof *b->copies);
    if (!st && !b->copies)
        st = hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint");
    for (size_t i = 0; !st && i < b->plan.count; i++) {
        const int64_t bytes = hd_ckpt_entry_bytes(&b->plan.entries[i]);

        st = hd_held_read(&t->staging, &b->plan.held[i], 0, bytes / (int64_t)sizeof(float),
                          (float *)copy);
        b->copies[i] = copy;
        copy += bytes;
    }
    return st;
}

static enum hd_status begin(struct hd_trainer *t, struct hd_background_save *b)
{
    enum hd_status st = open_save(t, &b->at, &b->arena, &b->saved, &b->mine);

    if (st)
        return st;
    if (!b->mine.status)
        b->mine = outcome_of(copy_entries(t, b));
    atomic_store(&b->written, true);
    if (b->mine.status || !b->plan.count)
        return HD_OK; /* a failure of this rank alone is told in publish */
    atomic_store(&b->written, false);
    b->has_thread = pthread_create(&b->thread, NULL, write_copy, b) == 0;
    if (!b->has_thread) {
        b->mine = outcome_of(hd_err(HD_NO_MEMORY, "no thread to write a checkpoint"));
        atomic_store(&b->written, true);
    }
    return HD_OK;
}

static void end_save(struct hd_background_save *b)
{
    if (b->has_thread)
        (void)pthread_join(b->thread, NULL);
    b->has_thread = b->under_way = false;
    hd_arena_done(&b->arena);
}

enum hd_status hd_trainer_background_init(struct hd_trainer *t)
{
    t->background = calloc(1, sizeof *t->background);
    return t->background ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to save in the background");
}

void hd_trainer_background_done(struct hd_trainer *t)
{
    if (hd_trainer_is_saving(t)) {
        atomic_store(&t->background->given_up, true);
        end_save(t->background);
    }
    free(t->background);
    t->background = NULL;
}

enum hd_status hd_trainer_save_begin(struct hd_trainer *t)
{
    struct hd_background_save *b = t->background;
    enum hd_status st;

    assert(b && !b->under_way);
    *b = (struct hd_background_save){.under_way = true, .at = now(t), .rank = t->layout.rank};
    hd_arena_init(&b->arena, 0);
    hd_comm_set_deadline(t->comm, CHECKPOINT_DEADLINE_MS);
    st = begin(t, b);
    hd_comm_set_deadline(t->comm, HD_STEP_DEADLINE_MS);
    if (st)
        end_save(b);
    return st ? hd_err_prefix(st, "checkpoint of step %lld", (long long)b->at.step) : HD_OK;
}

bool hd_trainer_is_saving(const struct hd_trainer *t)
{
    return t->background && t->background->under_way;
}

bool hd_trainer_has_written(const struct hd_trainer *t)
{
    return !hd_trainer_is_saving(t) || atomic_load(&t->background->written);
}

enum hd_status hd_trainer_save_finish(struct hd_trainer *t, struct hd_saved *ret_saved)
{
    struct hd_background_save *b = t->background;
    enum hd_status st;

    assert(hd_trainer_is_saving(t));
    if (b->has_thread)
        (void)pthread_join(b->thread, NULL);
    b->has_thread = false;
    hd_comm_set_deadline(t->comm, CHECKPOINT_DEADLINE_MS);
    st = publish(t, &b->at, &b->mine, &b->arena, &b->saved);
    hd_comm_set_deadline(t->comm, HD_STEP_DEADLINE_MS);
    if (!st)
        *ret_saved = b->saved;
    end_save(b);
    return st ? hd_err_prefix(st, "checkpoint of step %lld", (long long)b->at.step) : HD_OK;
}

enum hd_status hd_trainer_check_room(struct hd_trainer *t)
{
    struct outcome *all = calloc((size_t)t->layout.mesh.world, sizeof *all);
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_comm_set_deadline(t->comm, CHECKPOINT_DEADLINE_MS);
    st = all ? agree_on_room(t, &arena, all)
             : hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");
    hd_comm_set_deadline(t->comm, HD_STEP_DEADLINE_MS);
    hd_arena_done(&arena);
    free(all);
    return st ? hd_err_prefix(st, "the next checkpoint") : HD_OK;
}

/* ---- loading ---- */

/* Gathers the copies of all shards of a part. */
static enum hd_status gather_copies(struct hd_trainer *t, const struct hd_part *p)
{
    const struct hd_registry *r = &t->layout.registry;
    struct hd_comm_stream *stream = hd_comm_stream(t->comm, HD_COMM_STREAM_GATHER);
    char *copy = t->visible_base + p->offset[HD_STATE_COPY];
    const int64_t shard_bytes = p->shard_count * (int64_t)hd_dtype_size(p->compute);
    struct hd_comm_group *group;
    enum hd_status st = hd_comm_mesh_group(t->comm, &r->mesh, p->shard_group, &group);

    if (!st)
        st = hd_comm_follow(stream, hd_runner_stream(t->runner));
    if (!st)
        st = hd_comm_all_gather(
            group, stream,
            &(struct hd_comm_all_gather_args){copy + hd_comm_group_index(group) * shard_bytes, copy,
                                              p->shard_count, p->compute});
    return st ? st : hd_comm_wait_on(stream, hd_comm_record(stream), hd_runner_stream(t->runner));
}

/* Casts the master weights of all parts to their copies in the compute encoding. Of shards each
 * rank casts its own. */
static enum hd_status refresh_copies(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->layout.registry;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < r->part_count; i++) {
        const struct hd_part *p = &r->parts[i];
        char *copy;

        if (!p->held || !p->copied)
            continue;
        copy =
            hd_trainer_state(t, p, HD_STATE_COPY) +
            (p->shard_begin - hd_part_base(p, HD_STATE_COPY)) * (int64_t)hd_dtype_size(p->compute);
        if (p->shard_end > p->shard_begin && p->offloaded)
            st = hd_offload_copy(t, p);
        else if (p->shard_end > p->shard_begin)
            st = hd_launch(hd_runner_stream(t->runner), HD_K_cast,
                           &(struct hd_cast_args){.out = copy,
                                                  .inp = hd_trainer_state(t, p, HD_STATE_WEIGHT),
                                                  .N = p->shard_end - p->shard_begin,
                                                  .out_dtype = p->compute,
                                                  .inp_dtype = HD_F32});
        if (!st && p->shard_count && p->zero < 3)
            st = gather_copies(t, p);
    }
    return st ? st : t->table->synchronize(hd_runner_stream(t->runner));
}

static void compare(const char *name, const char *then, const char *now, struct hd_text *ret_note)
{
    if (ret_note && then && strcmp(then, now) != 0)
        hd_text_add(ret_note, "%s%s was %s, is %s", ret_note->len_bytes ? "; " : "", name, then,
                    now);
}

static void compare_fact(const struct hd_ckpt *ckpt, const char *name, const char *now,
                         struct hd_text *ret_note)
{
    compare(name, hd_ckpt_determinism(ckpt, name), now, ret_note);
}

static void compare_size(const struct hd_ckpt *ckpt, const char *name, int64_t size,
                         struct hd_text *ret_note)
{
    char now[24];

    number_text(size, now);
    compare(name, hd_ckpt_layout(ckpt, name), now, ret_note);
}

static void compare_facts(const struct hd_trainer *t, const struct hd_ckpt *ckpt,
                          struct hd_text *ret_note)
{
    const char *sums_then =
        hd_ckpt_determinism(ckpt, "sums"); /* NULL: written before native_reduction existed */
    const char *moments_then = hd_ckpt_determinism(ckpt, "moments"); /* NULL: of an older build */
    char threads[24], sums[SUMS_TEXT];

    number_text(t->layout.job.threads, threads);
    compare_fact(ckpt, "backend", t->traits.backend, ret_note);
    compare_fact(ckpt, "isa", t->traits.isa, ret_note);
    compare_fact(ckpt, "library", t->traits.library, ret_note);
    compare_fact(ckpt, "threads", threads, ret_note);
    compare_fact(ckpt, "precision", precision_fact(t), ret_note);
    compare("moments", moments_then ? moments_then : "fp32", t->layout.job.moments, ret_note);
    compare("sums", sums_then ? sums_then : "ordered", sums_fact(t, sums), ret_note);
    compare_size(ckpt, "dp", t->layout.job.dp, ret_note);
    compare_size(ckpt, "tp", t->layout.job.tp, ret_note);
    compare_size(ckpt, "pp", t->layout.job.pp, ret_note);
    compare_size(ckpt, "cp", t->layout.job.cp, ret_note);
    compare_size(ckpt, "ep", t->layout.job.ep, ret_note);
    compare_size(ckpt, "sequence", t->layout.job.sequence, ret_note);
    compare_size(ckpt, "micro_batch", t->layout.job.micro_batch, ret_note);
    if (t->layout.job.cp > 1)
        compare("cp_exchange", hd_ckpt_layout(ckpt, "cp_exchange"), t->layout.job.cp_exchange,
                ret_note);
    if (ret_note && ret_note->len_bytes)
        hd_text_add(ret_note, ": training continues, but its bits will differ");
}

/* Reads values from a checkpoint (hd_ckpt) or from initial weights (hd_source). */
typedef enum hd_status read_fn(void *from, int param, const struct hd_ckpt_entry *want,
                               float *ret_values);

/* This rank's share of one state of a parameter that is fp32, piece by piece. */
static enum hd_status read_plain(struct hd_trainer *t, int param, int kind, read_fn *read,
                                 void *from)
{
    const struct hd_registry *r = &t->layout.registry;
    const struct hd_range piece = hd_owners_piece(r, &r->params[param], kind, t->layout.rank);
    const struct hd_held held = hd_trainer_find(t, param, kinds[kind]);
    struct names name;
    struct hd_ckpt_entry want = entry_of(&r->params[param], kind, &name);
    const int64_t count = piece.end - piece.begin, size = (int64_t)sizeof(float);
    enum hd_status st = HD_OK;

    for (int64_t at = 0; !st && at < count; at += want.flat_count) {
        char *tensor = held.at + at * size;

        want.flat_first = piece.begin + at;
        want.flat_count = hd_staging_piece(&t->staging, (count - at) * size) / size;
        st = read(from, param, &want, hd_staging_view(&t->staging, tensor));
        if (!st)
            st = hd_staging_put(&t->staging, tensor, want.flat_count * size);
    }
    return st;
}

/* The same in another encoding, by way of `values`, HD_HELD_PIECE elements. */
static enum hd_status read_encoded(struct hd_trainer *t, int param, int kind, read_fn *read,
                                   void *from, float *values)
{
    const struct hd_registry *r = &t->layout.registry;
    const struct hd_range piece = hd_owners_piece(r, &r->params[param], kind, t->layout.rank);
    const struct hd_held held = hd_trainer_find(t, param, kinds[kind]);
    struct names name;
    struct hd_ckpt_entry want = entry_of(&r->params[param], kind, &name);
    enum hd_status st = HD_OK;

    for (want.flat_first = piece.begin; !st && want.flat_first < piece.end;
         want.flat_first += want.flat_count) {
        want.flat_count = piece.end - want.flat_first;
        if (want.flat_count > HD_HELD_PIECE)
            want.flat_count = HD_HELD_PIECE;
        st = read(from, param, &want, values);
        if (!st)
            st = hd_held_write(&t->staging, &held, want.flat_first - piece.begin, want.flat_count,
                               values);
    }
    return st;
}

/* This rank's share of one state of a parameter. */
static enum hd_status read_share(struct hd_trainer *t, int param, int kind, read_fn *read,
                                 void *from, float *values)
{
    const struct hd_held held = hd_trainer_find(t, param, kinds[kind]);

    return hd_held_is_plain(&held) ? read_plain(t, param, kind, read, from)
                                   : read_encoded(t, param, kind, read, from, values);
}

static float *make_values(enum hd_status *ret_status)
{
    float *values = calloc(HD_HELD_PIECE, sizeof *values);

    *ret_status = values ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read weights and moments");
    return values;
}

static enum hd_status read_checkpoint(void *from, int param, const struct hd_ckpt_entry *want,
                                      float *ret_values)
{
    (void)param;
    return hd_source_read_checkpoint(from, want, ret_values);
}

/* Zeros are moments of 0 in either encoding. */
static enum hd_status clear_moments(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->layout.registry;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < r->part_count; i++)
        for (int k = 1; !st && k < KINDS; k++) {
            const struct hd_part *p = &r->parts[i];

            if (p->offset[kinds[k]] >= 0)
                st = hd_staging_clear(&t->staging, hd_trainer_state(t, p, kinds[k]),
                                      hd_part_state_bytes(r, p, kinds[k]));
        }
    return st;
}

/* The job of the run that wrote the checkpoint. */
static enum hd_status read_job_then(const struct hd_ckpt *ckpt, struct hd_arena *arena,
                                    struct hd_job **ret_job)
{
    const char *config = hd_ckpt_manifest(ckpt)->config;
    enum hd_status st;

    *ret_job = hd_arena_alloc(arena, sizeof **ret_job);
    if (!*ret_job)
        return hd_err(HD_NO_MEMORY, "no memory to read a checkpoint");
    st = hd_job_read(config, strlen(config), arena, *ret_job);
    return st ? hd_err_prefix(st, "%s: the job stored in it", hd_ckpt_dir(ckpt)) : HD_OK;
}

/* What did not train then and trains now has no moments in the checkpoint: they begin at 0. */
static enum hd_status read_state(struct hd_trainer *t, struct hd_ckpt *ckpt, struct hd_arena *arena)
{
    const struct hd_registry *r = &t->layout.registry;
    struct hd_job *then = NULL;
    struct hd_only only;
    enum hd_status st;
    float *values = make_values(&st);

    if (!st)
        st = read_job_then(ckpt, arena, &then);
    if (!st)
        st = clear_moments(t);
    if (!st)
        only = (struct hd_only){then->only, then->layers, then->tie_embeddings};
    for (int i = 0; !st && i < r->param_count; i++) {
        const bool has_moments = r->params[i].trainable && hd_only_trains(&only, r->params[i].name);

        for (int k = 0; !st && k < (has_moments ? KINDS : 1); k++)
            if (r->parts[r->params[i].part].held)
                st = read_share(t, i, k, read_checkpoint, ckpt, values);
    }
    free(values);
    return st;
}

static enum hd_status clear_buffers(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->layout.registry;

    return r->buffer_count ? hd_staging_clear(&t->staging, hd_trainer_global(t, HD_GLOBAL_BUFFERS),
                                              hd_global_bytes(r, HD_GLOBAL_BUFFERS))
                           : HD_OK;
}

/* Of each row the newest numbers, as many as there are. */
static enum hd_status read_buffer(struct hd_trainer *t, struct hd_ckpt *ckpt,
                                  const struct hd_buffer *b, const struct hd_ckpt_entry *is)
{
    const int64_t columns = is->dim_count == 2 ? is->shape[1] : 0;
    const int64_t kept = columns < b->columns ? columns : b->columns;
    float *values;
    enum hd_status st;

    if (is->dim_count != 2 || is->shape[0] != b->rows)
        return hd_err(HD_CORRUPT, "%s: tensor %s has not %lld rows of numbers", hd_ckpt_dir(ckpt),
                      is->name, (long long)b->rows);
    values = calloc((size_t)(b->rows * columns) + 1, sizeof *values);
    if (!values)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", b->name);
    st = hd_source_read_checkpoint(ckpt, is, values);
    for (int64_t row = 0; !st && row < b->rows; row++)
        st = hd_staging_write(&t->staging, buffer_at(t, b) + row * b->columns,
                              values + row * columns, kept * (int64_t)sizeof *values);
    free(values);
    return st;
}

/* A checkpoint of a run in another precision has no buffers: they begin anew. */
static enum hd_status read_buffers(struct hd_trainer *t, struct hd_ckpt *ckpt)
{
    const struct hd_registry *r = &t->layout.registry;
    enum hd_status st = clear_buffers(t);

    for (int i = 0; !st && i < r->buffer_count; i++) {
        const struct hd_ckpt_entry *is;
        struct names name;

        name_buffer(&r->buffers[i], &name);
        is = hd_ckpt_find_tensor(ckpt, name.text);
        if (is)
            st = read_buffer(t, ckpt, &r->buffers[i], is);
    }
    return st;
}

/* Rank 0 checks the hash of every byte and tells the others, so that no rank loads damaged data. */
static enum hd_status verify(struct hd_trainer *t, const char *dir)
{
    struct outcome *all = calloc((size_t)t->layout.mesh.world, sizeof *all), mine = {0};
    enum hd_status st;

    if (!all)
        return hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");
    if (t->layout.rank == 0)
        mine = outcome_of(hd_ckpt_verify(dir));
    hd_comm_set_deadline(t->comm, CHECKPOINT_DEADLINE_MS);
    st = agree(t, &mine, all);
    hd_comm_set_deadline(t->comm, HD_STEP_DEADLINE_MS);
    free(all);
    return st;
}

/* A checkpoint of a run in another precision has no scale: it begins anew. */
static enum hd_status read_counters(struct hd_trainer *t, const struct hd_ckpt *ckpt)
{
    enum hd_status st = hd_ckpt_counter(ckpt, "step", &t->steps_done);
    int64_t scale;

    if (!st)
        st = hd_ckpt_counter(ckpt, "adam_step", &t->updates);
    hd_loss_scale_init(&t->layout.job, &t->scale);
    if (st || hd_ckpt_counter(ckpt, "loss_scale", &scale) ||
        hd_ckpt_counter(ckpt, "loss_scale_good", &t->scale.good))
        return st;
    t->scale.scale = scale > t->scale.floor ? scale : t->scale.floor;
    return HD_OK;
}

enum hd_status hd_trainer_load(struct hd_trainer *t, const char *dir, const char *expected_hash,
                               struct hd_text *ret_note)
{
    struct hd_ckpt *ckpt = NULL;
    struct hd_arena arena;
    char hash[17];
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (st)
        return st;
    hd_arena_init(&arena, 0);
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, hd_ckpt_hash(ckpt));
    if (strcmp(expected_hash, "-") != 0 && strcmp(expected_hash, hash) != 0)
        st = hd_err(HD_CORRUPT, "%s: the manifest's hash is %s, but the attempt expects %s", dir,
                    hash, expected_hash);
    if (!st)
        st = verify(t, dir);
    if (!st)
        st = read_counters(t, ckpt);
    t->val_step = t->lowest_step = -1;
    t->lowest_val_loss =
        hd_ckpt_manifest(ckpt)->has_lowest_val_loss ? hd_ckpt_manifest(ckpt)->lowest_val_loss : NAN;
    if (!st)
        st = read_state(t, ckpt, &arena);
    if (!st)
        st = read_buffers(t, ckpt);
    if (!st)
        st = refresh_copies(t);
    if (!st)
        compare_facts(t, ckpt, ret_note);
    hd_arena_done(&arena);
    hd_ckpt_close(ckpt);
    return st;
}

/* ---- initial weights ---- */

static bool is_held(const struct hd_trainer *t, int param)
{
    const struct hd_registry *r = &t->layout.registry;

    return r->parts[r->params[param].part].held;
}

static enum hd_status init_encoded(struct hd_trainer *t, const struct hd_param *p,
                                   const struct hd_held *held, float *values)
{
    enum hd_status st = HD_OK;

    for (int64_t at = 0, n; !st && at < held->count; at += n) {
        n = held->count - at < HD_HELD_PIECE ? held->count - at : HD_HELD_PIECE;
        hd_param_init_values(p, (uint64_t)t->layout.job.seed, held->first + at, n, values);
        st = hd_held_write(&t->staging, held, at, n, values);
    }
    return st;
}

static enum hd_status init_share(struct hd_trainer *t, int param, float *values)
{
    const struct hd_param *p = &t->layout.registry.params[param];
    const struct hd_held held = hd_trainer_find(t, param, HD_STATE_WEIGHT);
    const int64_t size = (int64_t)sizeof(float);
    enum hd_status st = HD_OK;

    if (!hd_held_is_plain(&held))
        return init_encoded(t, p, &held, values);
    for (int64_t at = 0, n; !st && at < held.count; at += n) {
        n = hd_staging_piece(&t->staging, (held.count - at) * size) / size;
        hd_param_init_values(p, (uint64_t)t->layout.job.seed, held.first + at, n,
                             hd_staging_view(&t->staging, held.at + at * size));
        st = hd_staging_put(&t->staging, held.at + at * size, n * size);
    }
    return st;
}

static enum hd_status init_by_seed(struct hd_trainer *t)
{
    enum hd_status st;
    float *values = make_values(&st);

    for (int i = 0; !st && i < t->layout.registry.param_count; i++)
        if (is_held(t, i))
            st = init_share(t, i, values);
    free(values);
    return st;
}

static enum hd_status read_weight(void *from, int param, const struct hd_ckpt_entry *want,
                                  float *ret_values)
{
    return hd_source_read(from, param, want, ret_values);
}

static enum hd_status read_source(struct hd_trainer *t, struct hd_source *source)
{
    enum hd_status st;
    float *values = make_values(&st);

    for (int i = 0; !st && i < t->layout.registry.param_count; i++)
        if (is_held(t, i))
            st = read_share(t, i, 0, read_weight, source, values);
    free(values);
    return st;
}

/* Each rank reads its own shares; rank 0 first verifies a checkpoint. */
static enum hd_status init_from_source(struct hd_trainer *t)
{
    const struct hd_job *job = &t->layout.job;
    struct hd_source *source = NULL;
    enum hd_status st = hd_source_check_identity(job->init_from, job->init_identity);

    if (!st && hd_source_is_checkpoint(job->init_from))
        st = verify(t, job->init_from);
    if (!st)
        st = hd_source_open(job->init_from, job, &t->layout.registry, &source);
    if (!st)
        st = read_source(t, source);
    hd_source_close(source);
    if (st == HD_CORRUPT) /* damage of an input: another attempt would find it, too */
        st = HD_INVALID;
    return st ? hd_err_prefix(st, "train.init_from") : HD_OK;
}

enum hd_status hd_trainer_init(struct hd_trainer *t)
{
    enum hd_status st = t->layout.job.init_from[0] ? init_from_source(t) : init_by_seed(t);

    if (!st)
        st = clear_moments(t);
    if (!st)
        st = clear_buffers(t);
    if (st)
        return st;
    t->steps_done = t->updates = 0;
    hd_loss_scale_init(&t->layout.job, &t->scale);
    return refresh_copies(t);
}
