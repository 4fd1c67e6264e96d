/* save: writes weights and moments to checkpoints; load.c reads them.
 *
 * Each rank writes the entries that it owns (save_plan.h); the two moments of a tensor are separate
 * entries, in fp32: moments that a rank has in 8-bit blocks are decoded here and encoded when they
 * are read, so a checkpoint fits every layout and either value of train.moments. Encoding
 * reproduces the codes and scales that were decoded (base/encoding.h). Buffers (registry.h) are
 * entries of their own, written whole by rank 0 and read by every rank. First all ranks write their
 * shards durably; then they exchange descriptions of the shards; then rank 0 commits the manifest
 * and sends the result to the others.
 *
 * With checkpoint.async a rank copies its entries to memory that is part of its plan, and a thread
 * writes the shard while training continues (hd_trainer_save_begin). The step's numbers for the
 * manifest, such as step and loss scale, are copied at the same time. Descriptions are exchanged
 * when every rank has written (hd_trainer_save_finish). A shard without a manifest is no
 * checkpoint: an interrupted save leaves the previous checkpoint valid.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/hf.h"
#include "train/save_internal.h"

/* ---- entries ---- */

struct shard_plan {
    struct hd_trainer *t;
    struct hd_ckpt_entry *entries;
    struct hd_local_shard *local_shard; /* addresses of the values of each entry on this rank */
    struct save_names *names;
    size_t count;
};

static void put_own(void *context, int owner, int param, int kind, struct hd_range piece)
{
    struct shard_plan *s = context;
    struct hd_ckpt_entry *e = &s->entries[s->count];

    if (owner != s->t->rank_program.rank)
        return;
    *e = save_entry_of(&s->t->rank_program.registry.params[param], kind, &s->names[s->count]);
    e->flat_first = piece.begin;
    e->flat_count = piece.end - piece.begin;
    s->local_shard[s->count++] = hd_trainer_find(s->t, param, hd_saved_kinds[kind]);
}

static void put_buffers(struct shard_plan *s)
{
    const struct hd_registry *r = &s->t->rank_program.registry;

    for (int i = 0; i < r->buffer_count && s->t->rank_program.rank == 0; i++) {
        const struct hd_buffer *b = &r->buffers[i];
        struct save_names *name = &s->names[s->count];

        save_name_buffer(b, name);
        s->entries[s->count] =
            hd_ckpt_entry_whole(name->text, HD_F32, 2, (const int64_t[]){b->rows, b->columns});
        s->local_shard[s->count++] = (struct hd_local_shard){
            .count = b->rows * b->columns, .at = (char *)save_buffer_at(s->t, b), .dtype = HD_F32};
    }
}

/* Lists the checkpoint entries that this rank writes. */
static enum hd_status plan_shard(struct hd_trainer *t, struct hd_arena *arena,
                                 struct shard_plan *ret_plan)
{
    const size_t most = (size_t)t->rank_program.registry.param_count * HD_SAVED_KINDS +
                        (size_t)t->rank_program.registry.buffer_count + 1;
    struct shard_plan s = {t, hd_arena_array(arena, most, sizeof *s.entries),
                           hd_arena_array(arena, most, sizeof *s.local_shard),
                           hd_arena_array(arena, most, sizeof *s.names), 0};
    enum hd_status st = hd_arena_failed(arena)
                            ? hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint")
                            : hd_save_plan_assign(&t->rank_program.registry, arena, put_own, &s);

    if (st)
        return st;
    put_buffers(&s);
    *ret_plan = s;
    return HD_OK;
}

/* ---- disk space ---- */

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

/* Fails if the attempt's folder existed once and is gone. The folder is made before its ranks
 * start; if it is gone, its file system may be unmounted, and a checkpoint would be written below
 * the mount point and be hidden when the file system is mounted again. */
static enum hd_status look_for_attempt(struct hd_trainer *t)
{
    const bool is_there = hd_file_exists(t->rank_program.job.attempt_dir);

    if (!is_there && t->saw_attempt_dir)
        return hd_err(HD_STORAGE,
                      "the attempt's folder %s is gone: it was removed, or its file system is not "
                      "mounted; mount it again, or let another attempt (heddle requeue) begin with "
                      "the newest checkpoint that is left",
                      t->rank_program.job.attempt_dir);
    t->saw_attempt_dir |= is_there;
    return HD_OK;
}

/* Checks that a checkpoint of all ranks fits into the attempt's file system. */
static enum hd_status look_for_space(struct hd_trainer *t, struct hd_arena *arena)
{
    struct whole whole = {hd_save_plan_buffers_bytes(&t->rank_program.registry),
                          t->rank_program.registry.buffer_count};
    enum hd_status st = look_for_attempt(t);

    if (!st)
        st = hd_save_plan_assign(&t->rank_program.registry, arena, put_any, &whole);
    return st ? st
              : hd_file_check_space(t->rank_program.job.attempt_dir,
                                    hd_ckpt_bound_bytes(whole.data_bytes, whole.entries));
}

/* ---- saving ---- */

/* Numbers for the manifest (step, loss scale ..) at the moment whose weights are saved. */
struct saved_moment {
    int64_t step, updates;
    struct hd_loss_scale scale;
    struct hd_guard guard;
    int64_t data_skipped, tokens_seen;
    bool is_validated;
    double val_loss, lowest_val_loss;
    struct hd_val_numbers numbers;
};

struct shard_source {
    const struct hd_staging *staging;
    const struct shard_plan *plan;
    float *decoded; /* [HD_LOCAL_SHARD_CHUNK], buffer for elements decoded to fp32 */
};

/* Returns the next bytes of an entry: all at once from host memory, a staging buffer at a time from
 * a device, HD_LOCAL_SHARD_CHUNK elements at a time if they must be decoded. */
static enum hd_status entry_bytes(void *context, size_t entry, int64_t at, int64_t left_bytes,
                                  const void **ret_bytes, int64_t *ret_size_bytes)
{
    const struct shard_source *s = context;
    const struct hd_local_shard *local_shard = &s->plan->local_shard[entry];
    const int64_t size = (int64_t)sizeof(float);

    if (!hd_local_shard_is_plain(local_shard)) {
        const int64_t left = left_bytes / size,
                      count = left < HD_LOCAL_SHARD_CHUNK ? left : HD_LOCAL_SHARD_CHUNK;

        *ret_bytes = s->decoded;
        *ret_size_bytes = count * size;
        return hd_local_shard_read(s->staging, local_shard, at / size, count, s->decoded);
    }
    *ret_size_bytes = hd_staging_piece(s->staging, left_bytes);
    return hd_staging_fetch(s->staging, local_shard->at + at, *ret_size_bytes, ret_bytes);
}

static enum hd_status write_shard(struct hd_trainer *t, const char *dir, struct hd_arena *arena,
                                  struct save_outcome *ret_outcome)
{
    struct shard_plan plan = {0};
    struct shard_source source = {&t->open.staging, &plan,
                                  hd_arena_array(arena, HD_LOCAL_SHARD_CHUNK, sizeof(float))};
    enum hd_status st = plan_shard(t, arena, &plan);

    *ret_outcome = (struct save_outcome){0};
    if (!st && plan.count) {
        st = hd_ckpt_write_shard(dir, t->rank_program.rank, plan.entries, plan.count, entry_bytes,
                                 &source, &ret_outcome->shard);
        ret_outcome->has_shard = !st;
    }
    if (st)
        *ret_outcome = save_outcome_of(st);
    return st;
}

static struct saved_moment now(const struct hd_trainer *t)
{
    return (struct saved_moment){.step = t->steps_done,
                                 .updates = t->updates,
                                 .scale = t->scale,
                                 .guard = t->guard,
                                 .data_skipped = t->data_skipped,
                                 .tokens_seen = t->tokens_seen,
                                 .is_validated = t->val_step >= 0 && t->val_step == t->steps_done,
                                 .val_loss = t->val_loss,
                                 .lowest_val_loss = t->lowest_val_loss,
                                 .numbers = t->numbers};
}

enum { COUNTERS_MAX = 9 + HD_GUARD_STEPS };

struct counters {
    struct hd_ckpt_counter list[COUNTERS_MAX];
    char names[HD_GUARD_STEPS][16];
    size_t count;
};

static void add_counter(struct counters *c, const char *name, int64_t value)
{
    c->list[c->count++] = (struct hd_ckpt_counter){name, value};
}

/* Adds the state of early stopping, if a validation has counted for it. The number is stored as its
 * bits. */
static void add_stop(const struct hd_val_numbers *n, struct counters *c)
{
    int64_t bits;

    if (isnan(n->stop_best))
        return;
    memcpy(&bits, &n->stop_best, sizeof bits);
    add_counter(c, SAVE_STOP_BEST, bits);
    add_counter(c, SAVE_STOP_BEST_STEP, n->stop_best_step);
    add_counter(c, SAVE_STOP_WAITS, n->stop_waits);
}

/* Lists the counters to store in the manifest; those of fp16, early stopping and train.guard only
 * if the job uses them. */
static void fill_counters(const struct saved_moment *at, struct counters *ret_counters)
{
    struct counters *c = ret_counters;

    c->count = 0;
    add_counter(c, "step", at->step);
    add_counter(c, "adam_step", at->updates);
    if (at->scale.used) {
        add_counter(c, "loss_scale", at->scale.scale);
        add_counter(c, "loss_scale_good", at->scale.good);
    }
    if (at->data_skipped)
        add_counter(c, "data_skipped", at->data_skipped);
    add_stop(&at->numbers, c);
    if (!(at->guard.spike > 0))
        return;
    add_counter(c, "guard_steps", at->guard.count);
    for (int i = 0; i < HD_GUARD_STEPS && i < at->guard.count; i++) {
        save_name_guard(i, c->names[i]);
        add_counter(c, c->names[i], hd_guard_pack(&at->guard, i));
    }
}

static enum hd_status commit(struct hd_trainer *t, const struct saved_moment *at, const char *dir,
                             const struct save_outcome *all, struct hd_arena *arena,
                             uint64_t *ret_hash)
{
    const struct hd_job *job = &t->rank_program.job;
    const int world = t->rank_program.mesh.world;
    struct hd_ckpt_shard *shards = hd_arena_array(arena, (size_t)world, sizeof *shards);
    struct hd_text config = {0};
    char sums[SAVE_SUMS_TEXT], dp[24], tp[24], pp[24], zero[24], cp[24], ep[24], threads[24],
        micro[24];
    const struct hd_ckpt_fact rank_program[] = {
        {"dp", dp},
        {"tp", tp},
        {"pp", pp},
        {"zero", zero},
        {"cp", cp},
        {"ep", ep},
        {"cp_exchange", hd_job_cp_exchange_words[job->cp_exchange]},
        {"sequence", job->sequence ? "1" : "0"},
        {"micro_batch", micro}};
    const struct hd_ckpt_fact determinism[] = {
        {"backend", t->traits.backend},        {"isa", t->traits.isa},
        {"library", t->traits.library},        {"threads", threads},
        {"precision", save_precision_fact(t)}, {"moments", hd_job_moments_words[job->moments]},
        {"sums", save_sums_fact(t, sums)}};
    struct counters *counters = hd_arena_alloc(arena, sizeof *counters);
    struct hd_ckpt_manifest m = {.job = job->name,
                                 .attempt = (int)job->attempt,
                                 .step = at->step,
                                 .tokens_seen = at->tokens_seen,
                                 .has_val_loss = at->is_validated,
                                 .val_loss = at->val_loss,
                                 .has_lowest_val_loss = isfinite(at->lowest_val_loss),
                                 .lowest_val_loss = at->lowest_val_loss,
                                 .layout = rank_program,
                                 .layout_count = sizeof rank_program / sizeof rank_program[0],
                                 .determinism = determinism,
                                 .determinism_count = sizeof determinism / sizeof determinism[0],
                                 .shards = shards};
    enum hd_status st = shards && counters ? hd_job_write(job, &config)
                                           : hd_err(HD_NO_MEMORY, "no memory for a manifest");

    if (counters) {
        fill_counters(at, counters);
        m.counters = counters->list;
        m.counter_count = counters->count;
    }

    save_number_text(job->dp, dp);
    save_number_text(job->tp, tp);
    save_number_text(job->pp, pp);
    save_number_text(job->zero > 0 ? job->zero : 0, zero);
    save_number_text(job->cp, cp);
    save_number_text(job->ep, ep);
    save_number_text(job->threads, threads);
    save_number_text(job->micro_batch, micro);
    for (int r = 0; !st && r < world; r++)
        if (all[r].has_shard)
            shards[m.shard_count++] = all[r].shard;
    m.config = config.data;
    if (!st)
        st = hd_hf_keep(dir, job, t->files_of);
    if (!st)
        st = hd_ckpt_commit(dir, &m, ret_hash);
    if (!st)
        (void)snprintf(t->files_of, sizeof t->files_of, "%s", dir);
    hd_text_free(&config);
    return st;
}

/* Checks the disk space on rank 0 alone, because other ranks' shards may be growing by then, and
 * sends the result to all ranks. */
static enum hd_status agree_on_space(struct hd_trainer *t, struct hd_arena *arena,
                                     struct save_outcome *all)
{
    struct save_outcome mine = {0};

    if (t->rank_program.rank == 0)
        mine = save_outcome_of(look_for_space(t, arena));
    return save_agree(t, &mine, all);
}

/* Removes the shards of a failed save, on rank 0, when all ranks know that the save failed. The
 * other ranks wait, because the removal may take longer than a step. Files that cannot be removed
 * now are removed when the next attempt starts. */
static enum hd_status give_up(struct hd_trainer *t, enum hd_status st, const char *dir,
                              struct save_outcome *all)
{
    struct save_outcome mine = {0};
    struct hd_error error;

    hd_err_save(st, &error);
    if (hd_comm_failure(t->open.comm))
        return hd_err_restore(&error);
    if (t->rank_program.rank == 0)
        (void)hd_ckpt_remove_partial(dir);
    /* a failure here is one of the communication, which later calls return, too */
    (void)save_agree(t, &mine, all);
    return hd_err_restore(&error);
}

/* Runs phase two of a save, after this rank's shard is written or has failed: exchanges the
 * descriptions of shards and, on rank 0, commits the manifest. */
static enum hd_status publish(struct hd_trainer *t, const struct saved_moment *at,
                              const struct save_outcome *written, struct hd_arena *arena,
                              struct hd_saved *ret_saved)
{
    struct save_outcome *all =
                            hd_arena_array(arena, (size_t)t->rank_program.mesh.world, sizeof *all),
                        mine;
    struct hd_saved saved = *ret_saved;
    uint64_t hash = 0;
    enum hd_status st;

    if (!all)
        return hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");
    st = save_agree(t, written, all);
    if (st)
        return give_up(t, st, saved.path, all);
    for (int r = 0; r < t->rank_program.mesh.world; r++)
        saved.bytes += all[r].shard.size_bytes;

    mine = (struct save_outcome){0};
    if (t->rank_program.rank == 0) {
        st = commit(t, at, saved.path, all, arena, &hash);
        mine = save_outcome_of(st);
        mine.manifest_hash = hash;
    }
    st = save_agree(t, &mine, all);
    if (st)
        return give_up(t, st, saved.path, all);
    (void)snprintf(saved.hash, sizeof saved.hash, "%016" PRIx64, all[0].manifest_hash);
    *ret_saved = saved;
    return HD_OK;
}

/* Checks the disk space, and begins the description of the checkpoint. ret_mine: a failure of this
 * rank alone. */
static enum hd_status open_save(struct hd_trainer *t, const struct saved_moment *at,
                                struct hd_arena *arena, struct hd_saved *ret_saved,
                                struct save_outcome *ret_mine)
{
    struct save_outcome *all =
        hd_arena_array(arena, (size_t)t->rank_program.mesh.world, sizeof *all);
    enum hd_status st = all ? agree_on_space(t, arena, all)
                            : hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");

    if (st)
        return st;
    *ret_saved =
        (struct hd_saved){.step = at->step, .val_loss = at->is_validated ? at->val_loss : NAN};
    st = hd_ckpt_format_dir(t->rank_program.job.attempt_dir, at->step, ret_saved->path,
                            sizeof ret_saved->path);
    *ret_mine = save_outcome_of(st);
    return HD_OK;
}

static enum hd_status save(struct hd_trainer *t, const struct saved_moment *at,
                           struct hd_arena *arena, struct hd_saved *ret_saved)
{
    struct save_outcome mine;
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
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms); /* disks are slower than steps */
    st = save(t, &at, &arena, &saved);
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    hd_arena_done(&arena);
    if (st)
        return hd_err_prefix(st, "checkpoint of step %lld", (long long)at.step);
    *ret_saved = saved;
    return HD_OK;
}

/* ---- saving in the background ---- */

/* One save between begin and finish. The thread uses plan, copies, saved.path and mine; the rank
 * uses the rest. */
struct hd_background_save {
    bool in_flight;
    struct hd_arena arena;
    struct saved_moment at;
    struct hd_saved saved;
    struct shard_plan plan;
    const char **copies; /* copies of this rank's entries as fp32, which the thread writes */
    struct save_outcome mine;
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
        b->mine = save_outcome_of(st);
    else
        b->mine.has_shard = 1;
    atomic_store(&b->written, true);
    return NULL;
}

/* Copies the values of this rank's entries to the snapshot memory; training waits only for this
 * copy. */
static enum hd_status copy_entries(struct hd_trainer *t, struct hd_background_save *b)
{
    char *copy = t->host_base + t->rank_program.snapshot;
    enum hd_status st = plan_shard(t, &b->arena, &b->plan);

    b->copies = hd_arena_array(&b->arena, b->plan.count + 1, sizeof *b->copies);
    if (!st && !b->copies)
        st = hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint");
    for (size_t i = 0; !st && i < b->plan.count; i++) {
        const int64_t bytes = hd_ckpt_entry_bytes(&b->plan.entries[i]);

        st = hd_local_shard_read(&t->open.staging, &b->plan.local_shard[i], 0,
                                 bytes / (int64_t)sizeof(float), (float *)copy);
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
        b->mine = save_outcome_of(copy_entries(t, b));
    atomic_store(&b->written, true);
    if (b->mine.status || !b->plan.count)
        /* returns HD_OK, because publish reports a failure of this rank alone to all ranks */
        return HD_OK;
    atomic_store(&b->written, false);
    b->has_thread = pthread_create(&b->thread, NULL, write_copy, b) == 0;
    if (!b->has_thread) {
        b->mine = save_outcome_of(hd_err(HD_NO_MEMORY, "no thread to write a checkpoint"));
        atomic_store(&b->written, true);
    }
    return HD_OK;
}

static void end_save(struct hd_background_save *b)
{
    if (b->has_thread)
        (void)pthread_join(b->thread, NULL);
    b->has_thread = b->in_flight = false;
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

    assert(b && !b->in_flight);
    *b = (struct hd_background_save){.in_flight = true, .at = now(t), .rank = t->rank_program.rank};
    hd_arena_init(&b->arena, 0);
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms);
    st = begin(t, b);
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    if (st)
        end_save(b);
    return st ? hd_err_prefix(st, "checkpoint of step %lld", (long long)b->at.step) : HD_OK;
}

bool hd_trainer_is_saving(const struct hd_trainer *t)
{
    return t->background && t->background->in_flight;
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
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms);
    st = publish(t, &b->at, &b->mine, &b->arena, &b->saved);
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    if (!st)
        *ret_saved = b->saved;
    end_save(b);
    return st ? hd_err_prefix(st, "checkpoint of step %lld", (long long)b->at.step) : HD_OK;
}

enum hd_status hd_trainer_check_space(struct hd_trainer *t)
{
    struct save_outcome *all = calloc((size_t)t->rank_program.mesh.world, sizeof *all);
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms);
    st = all ? agree_on_space(t, &arena, all)
             : hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    hd_arena_done(&arena);
    free(all);
    return st ? hd_err_prefix(st, "the next checkpoint") : HD_OK;
}
