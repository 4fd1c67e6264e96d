/* load: reads weights and moments from a checkpoint to resume a run, or only weights to begin one.
 * Any layout reads checkpoints that any other layout wrote; save.c describes the format. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/continued.h"
#include "train/offload.h"
#include "train/param_reader.h"

/* ---- copies of weights in the compute encoding ---- */

/* Gathers the compute copies of a bucket from all ranks that hold a shard of it. */
static enum hd_status gather_copies(struct hd_trainer *t, const struct hd_bucket *p)
{
    const struct hd_registry *r = &t->rank_program.registry;
    struct hd_comm_stream *stream = hd_comm_get_stream(t->open.comm, HD_COMM_STREAM_GATHER);
    char *copy = t->registered_base + p->offset[HD_STATE_COPY];
    const int64_t shard_bytes = p->shard_count * (int64_t)hd_dtype_size(p->compute);
    struct hd_comm_group *group;
    enum hd_status st = hd_comm_mesh_group(t->open.comm, &r->mesh, p->shard_group, &group);

    if (!st)
        st = hd_comm_follow(stream, hd_runner_stream(t->open.runner));
    if (!st)
        st = hd_comm_launch(group, stream, HD_COMM_ALL_GATHER,
                            HD_COLLECTIVE(copy + hd_comm_group_index(group) * shard_bytes, copy,
                                          p->shard_count, p->compute));
    return st ? st
              : hd_comm_wait_on(stream, hd_comm_record(stream), hd_runner_stream(t->open.runner));
}

enum hd_status hd_trainer_refresh_bucket(struct hd_trainer *t, const struct hd_bucket *p,
                                         enum hd_state_kind from)
{
    char *copy =
        hd_trainer_state(t, p, HD_STATE_COPY) +
        (p->shard_begin - hd_bucket_base(p, HD_STATE_COPY)) * (int64_t)hd_dtype_size(p->compute);
    enum hd_status st = HD_OK;

    if (p->copied && p->shard_end > p->shard_begin && p->offloaded)
        st = hd_offload_copy(t, p, from);
    else if (p->copied && p->shard_end > p->shard_begin)
        st = hd_launch(hd_runner_stream(t->open.runner), HD_K_cast,
                       &(struct hd_cast_args){.out = copy,
                                              .inp = hd_trainer_state(t, p, from),
                                              .N = p->shard_end - p->shard_begin,
                                              .out_dtype = p->compute,
                                              .inp_dtype = HD_F32});
    if (!st && p->shard_count && p->zero < 3)
        st = gather_copies(t, p);
    return st;
}

/* Waits until all ranks have read their weights. The deadline is that of a save, as a rank may be minutes
 * behind the others: its disk is slower, or its matrices take longer to decompose. */
static enum hd_status await_readers(struct hd_trainer *t)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(t->open.comm, HD_COMM_STREAM_REDUCE);
    enum hd_status st;

    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms);
    st = hd_comm_barrier(t->world, stream);
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    return st;
}

/* Casts the fp32 master weights of all buckets to their copies in the compute encoding, when all ranks
 * have read theirs. */
static enum hd_status refresh_copies(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    enum hd_status st = await_readers(t);

    for (int i = 0; !st && i < r->bucket_count; i++)
        if (r->buckets[i].is_local && r->buckets[i].copied)
            st = hd_trainer_refresh_bucket(t, &r->buckets[i], HD_STATE_WEIGHT);
    return st ? st : t->open.table->synchronize(hd_runner_stream(t->open.runner));
}

/* ---- resuming ---- */

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

    save_number_text(size, now);
    compare(name, hd_ckpt_layout(ckpt, name), now, ret_note);
}

static void compare_facts(const struct hd_trainer *t, const struct hd_ckpt *ckpt,
                          const struct hd_job *then, struct hd_text *ret_note)
{
    const char *sums_then =
        /* NULL: the checkpoint was written before train.native_reduction existed */
        hd_ckpt_determinism(ckpt, "sums");
    /* NULL: the checkpoint was written by a build without train.moments */
    const char *moments_then = hd_ckpt_determinism(ckpt, "moments");
    char threads[24], sums[SAVE_SUMS_TEXT];

    save_number_text(t->rank_program.job.threads, threads);
    compare_fact(ckpt, "backend", t->traits.backend, ret_note);
    compare_fact(ckpt, "isa", t->traits.isa, ret_note);
    compare_fact(ckpt, "library", t->traits.library, ret_note);
    compare_fact(ckpt, "threads", threads, ret_note);
    compare_fact(ckpt, "precision", save_precision_fact(t), ret_note);
    compare("moments", moments_then ? moments_then : "fp32",
            hd_job_moments_words[t->rank_program.job.moments], ret_note);
    compare("sums", sums_then ? sums_then : "ordered", save_sums_fact(t, sums), ret_note);
    compare("train.trainable", then->only, t->rank_program.job.only, ret_note);
    compare_size(ckpt, "dp", t->rank_program.job.dp, ret_note);
    compare_size(ckpt, "tp", t->rank_program.job.tp, ret_note);
    compare_size(ckpt, "pp", t->rank_program.job.pp, ret_note);
    compare_size(ckpt, "cp", t->rank_program.job.cp, ret_note);
    compare_size(ckpt, "ep", t->rank_program.job.ep, ret_note);
    compare_size(ckpt, "sequence", t->rank_program.job.sequence, ret_note);
    if (then->context == t->rank_program.job.context) /* else it begins another span, as planned */
        compare_size(ckpt, "micro_batch", t->rank_program.job.micro_batch, ret_note);
    if (t->rank_program.job.cp > 1)
        compare("cp_exchange", hd_ckpt_layout(ckpt, "cp_exchange"),
                hd_job_cp_exchange_words[t->rank_program.job.cp_exchange], ret_note);
    if (ret_note && ret_note->len_bytes)
        hd_text_add(ret_note, ": training continues, but results may differ in the last bits");
}

static enum hd_status read_shard(struct hd_trainer *t, const struct hd_param_reader *reader,
                                 int param, int kind)
{
    const struct hd_local_shard shard = hd_trainer_find(t, param, hd_saved_kinds[kind]);

    return hd_param_read(reader, param, kind, &shard);
}

/* Sets this rank's optimizer moments to 0; zero bytes mean 0 in every encoding. */
static enum hd_status clear_moments(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < r->bucket_count; i++)
        for (int k = HD_SAVED_MOMENT1; !st && k <= HD_SAVED_MOMENT2; k++) {
            const struct hd_bucket *p = &r->buckets[i];

            if (p->offset[hd_saved_kinds[k]] >= 0)
                st = hd_staging_clear(&t->open.staging, hd_trainer_state(t, p, hd_saved_kinds[k]),
                                      hd_bucket_state_bytes(r, p, hd_saved_kinds[k]));
        }
    return st;
}

/* Sets this rank's shard of a parameter's moving average to its weight. */
static enum hd_status begin_average(struct hd_trainer *t, int param, float *values)
{
    const struct hd_local_shard weight = hd_trainer_find(t, param, HD_STATE_WEIGHT),
                                ema = hd_trainer_find(t, param, HD_STATE_EMA);
    enum hd_status st = HD_OK;

    for (int64_t at = 0, n; !st && at < ema.count; at += n) {
        n = ema.count - at < HD_LOCAL_SHARD_CHUNK ? ema.count - at : HD_LOCAL_SHARD_CHUNK;
        st = hd_local_shard_read(&t->open.staging, &weight, ema.first - weight.first + at, n,
                                 values);
        if (!st)
            st = hd_local_shard_write(&t->open.staging, &ema, at, n, values);
    }
    return st;
}

/* Sets all moving averages to the weights. */
static enum hd_status begin_averages(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    float *values = calloc(HD_LOCAL_SHARD_CHUNK, sizeof *values);
    enum hd_status st = values ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for averages of weights");

    for (int i = 0; !st && r->ema_rate > 0 && i < r->param_count; i++)
        if (r->params[i].trainable)
            st = begin_average(t, i, values);
    free(values);
    return st;
}

/* Refuses a resume that would lose trained weights. A weight that once trained cannot be read from
 * the base model, so a checkpoint that omits frozen weights would lose it. */
static enum hd_status check_source(const struct hd_registry *r, const struct hd_source *source)
{
    for (int i = 0; i < r->param_count; i++) {
        if (!hd_source_has(source, i) && !r->params[i].quant)
            return hd_err(HD_INVALID,
                          "the checkpoint has no %s: a resumed run keeps its %s; submit a new "
                          "job, with train.init_from, to change it",
                          r->params[i].name,
                          r->params[i].newly_initialized              ? "train.objective"
                          : hd_text_starts(r->params[i].name, "mtp.") ? "model.mtp"
                                                                      : "train.adapter");
        if (!r->params[i].trainable && !r->params[i].state && hd_source_in_checkpoint(source, i) &&
            (r->omits_frozen || r->params[i].quant))
            return hd_err(
                HD_INVALID,
                "%s was trained and is frozen now: with %s its training would be lost; "
                "set %s, or keep it trainable",
                r->params[i].name,
                r->params[i].quant ? "model.quantization in codes" : "checkpoint.frozen: omit",
                r->params[i].quant ? "model.quantization: none" : "checkpoint.frozen: save");
    }
    return HD_OK;
}

/* Refuses the moments of another optimizer. */
static enum hd_status check_optimizer(const struct hd_trainer *t, const struct hd_ckpt *ckpt,
                                      const struct hd_job *then)
{
    const struct hd_job *now = &t->rank_program.job;

    /* a job that sets none has the default's moments */
    if (hd_rule_named(hd_job_optimizer_words[then->optimizer]) ==
        hd_rule_named(hd_job_optimizer_words[now->optimizer]))
        return HD_OK;
    return hd_err(
        HD_INVALID,
        "train.optimizer: %s: the checkpoint %s has the moments of %s; keep %s, or submit "
        "a new job with train.init_from: %s, which takes the weights and begins with "
        "moments of zero",
        hd_job_optimizer_words[now->optimizer], hd_ckpt_dir(ckpt),
        hd_job_optimizer_words[then->optimizer], hd_job_optimizer_words[then->optimizer],
        hd_ckpt_dir(ckpt));
}

/* Reads this rank's shard of a parameter's moving average; one that the checkpoint does not have, because
 * it was not kept or the parameter was frozen, begins at the weight. */
static enum hd_status read_average(struct hd_trainer *t, const struct hd_param_reader *reader,
                                   int param)
{
    const struct hd_registry *r = &t->rank_program.registry;
    struct save_names name;

    if (!(r->ema_rate > 0) || !r->params[param].trainable)
        return HD_OK;
    (void)save_entry_of(&r->params[param], HD_SAVED_EMA, &name);
    return hd_ckpt_find_tensor(reader->ckpt, name.text) ? read_shard(t, reader, param, HD_SAVED_EMA)
                                                        : begin_average(t, param, reader->values);
}

/* A load: from a checkpoint whose job trained the parameters of `only`, or, if that is NULL, of weights
 * alone. */
struct param_load {
    struct hd_trainer *t;
    const struct hd_only *only;
};

/* Reads this rank's shard of a weight and, from a checkpoint, of its moments and average. A parameter that
 * was frozen then and trains now has no moments in the checkpoint: they begin at 0. */
static enum hd_status load_param(void *user, const struct hd_param_reader *reader, int param)
{
    const struct param_load *l = user;
    struct hd_trainer *t = l->t;
    const struct hd_param *p = &reader->registry->params[param];
    const bool has_moments = l->only && p->trainable && hd_only_trains(l->only, p->name);
    enum hd_status st = read_shard(t, reader, param, HD_SAVED_WEIGHT);

    for (int k = HD_SAVED_MOMENT1; !st && has_moments && k <= HD_SAVED_MOMENT2; k++)
        if (hd_saved_kind_is_of(reader->registry, p, k))
            st = read_shard(t, reader, param, k);
    if (!st && l->only)
        st = read_average(t, reader, param);
    if (t->alive)
        t->alive(t->alive_user);
    return st;
}

/* Reads the weights that `dirs` have (NULL: none), gives the others their initial values, and reads what
 * else a resumed run keeps from its checkpoint (NULL: none). */
static enum hd_status read_params(struct hd_trainer *t, const struct hd_source_dirs *dirs,
                                  struct hd_ckpt *ckpt, const struct hd_only *only)
{
    return hd_params_read(&(struct hd_param_reading){.staging = &t->open.staging,
                                                     .registry = &t->rank_program.registry,
                                                     .job = &t->rank_program.job,
                                                     .dirs = dirs,
                                                     .ckpt = ckpt,
                                                     .check = ckpt ? check_source : NULL,
                                                     .read = load_param,
                                                     .user = &(struct param_load){t, only}});
}

/* Reads weights from the checkpoint and its base (NULL: where the checkpoint's job had it), and
 * moments from the checkpoint. */
static enum hd_status read_state(struct hd_trainer *t, struct hd_ckpt *ckpt, const char *base,
                                 const struct hd_job *then)
{
    const struct hd_source_dirs dirs = {.dir = hd_ckpt_dir(ckpt), .base = base};
    char text[HD_JOB_PATH_MAX];
    const struct hd_only only = {text, then->layers, then->tie_embeddings, NULL};
    enum hd_status st = hd_adapter_only(then, text);

    if (!st)
        st = clear_moments(t);
    return st ? st : read_params(t, &dirs, ckpt, &only);
}

static enum hd_status clear_buffers(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;

    return r->buffer_count
               ? hd_staging_clear(&t->open.staging, hd_trainer_global(t, HD_GLOBAL_BUFFERS),
                                  hd_global_bytes(r, HD_GLOBAL_BUFFERS))
               : HD_OK;
}

/* Restores the rows of a moving-average buffer; if the saved window has another length, only its
 * newest entries that fit. */
static enum hd_status read_buffer(struct hd_trainer *t, struct hd_ckpt *ckpt,
                                  const struct hd_buffer *b, const struct hd_ckpt_entry *is)
{
    const int64_t columns = is->dim_count == 2 ? is->shape[1] : 0;
    const int64_t shared_columns = columns < b->columns ? columns : b->columns;
    float *values;
    enum hd_status st;

    if (is->dim_count != 2 || is->shape[0] != b->rows)
        return hd_err(HD_CORRUPT, "%s: tensor %s does not have %lld rows", hd_ckpt_dir(ckpt),
                      is->name, (long long)b->rows);
    values = calloc((size_t)(b->rows * columns) + 1, sizeof *values);
    if (!values)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", b->name);
    st = hd_source_read_checkpoint(ckpt, is, values);
    for (int64_t row = 0; !st && row < b->rows; row++)
        st = hd_staging_write(&t->open.staging, save_buffer_at(t, b) + row * b->columns,
                              values + row * columns, shared_columns * (int64_t)sizeof *values);
    free(values);
    return st;
}

/* Restores all buffers (registry.h). A checkpoint of a run in another precision has none: the
 * buffers then begin at 0. */
static enum hd_status read_buffers(struct hd_trainer *t, struct hd_ckpt *ckpt)
{
    const struct hd_registry *r = &t->rank_program.registry;
    enum hd_status st = clear_buffers(t);

    for (int i = 0; !st && i < r->buffer_count; i++) {
        const struct hd_ckpt_entry *is;
        struct save_names name;

        save_name_buffer(&r->buffers[i], &name);
        is = hd_ckpt_find_tensor(ckpt, name.text);
        if (is)
            st = read_buffer(t, ckpt, &r->buffers[i], is);
    }
    return st;
}

/* Verifies a checkpoint: rank 0 checks the hash of every byte and sends the result to all ranks, so
 * that no rank loads damaged data. */
static enum hd_status verify_on_first_rank(struct hd_trainer *t, const char *dir)
{
    struct save_outcome *all = calloc((size_t)t->rank_program.mesh.world, sizeof *all), mine = {0};
    enum hd_status st;

    if (!all)
        return hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");
    if (t->rank_program.rank == 0)
        mine = save_outcome_of(hd_ckpt_verify(dir));
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms);
    st = save_agree(t, &mine, all);
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    free(all);
    return st;
}

/* Restores the history of the guard. A checkpoint of a run without train.guard has none: it begins
 * empty. */
static void read_guard(struct hd_trainer *t, const struct hd_ckpt *ckpt)
{
    struct hd_guard guard;
    int64_t packed;
    char name[16];

    hd_guard_init(&t->rank_program.job, &t->guard);
    guard = t->guard;
    if (hd_ckpt_get_counter(ckpt, "guard_steps", &guard.count) || guard.count < 0)
        return;
    for (int i = 0; i < HD_GUARD_STEPS && i < guard.count; i++) {
        save_name_guard(i, name);
        if (hd_ckpt_get_counter(ckpt, name, &packed))
            return;
        hd_guard_unpack(&guard, i, packed);
    }
    t->guard = guard;
}

/* Returns whether two jobs judge by the same number of the same questions. */
static bool same_number(const struct hd_job *a, struct hd_val_metric x, const struct hd_job *b,
                        struct hd_val_metric y)
{
    char first[HD_JOB_WORD_MAX], second[HD_JOB_WORD_MAX];

    hd_job_metric_name(a, x, first);
    hd_job_metric_name(b, y, second);
    return x.kind == y.kind && strcmp(first, second) == 0 &&
           (!hd_job_metric_rises(x) || hd_job_same_questions(a, b, x));
}

/* Takes from a checkpoint of the job `then` the numbers with which later validations are compared:
 * those for checkpoint.best and validate.stop, if they are of the same kind as this job's. */
static void read_numbers(struct hd_trainer *t, const struct hd_ckpt *ckpt,
                         const struct hd_job *then)
{
    const struct hd_ckpt_manifest *m = hd_ckpt_get_manifest(ckpt);
    const struct hd_job *job = &t->rank_program.job;
    struct hd_val_numbers *n = &t->numbers;
    int64_t bits;

    hd_trainer_forget_numbers(t);
    if (m->has_lowest_val_loss && job->checkpoint_best && then->checkpoint_best &&
        same_number(job, hd_job_best_metric(job), then, hd_job_best_metric(then)))
        t->lowest_val_loss = m->lowest_val_loss;
    if (!job->stop_patience || !then->stop_patience ||
        !same_number(job, hd_job_stop_metric(job), then, hd_job_stop_metric(then)) ||
        hd_ckpt_get_counter(ckpt, SAVE_STOP_BEST, &bits) ||
        hd_ckpt_get_counter(ckpt, SAVE_STOP_BEST_STEP, &n->stop_best_step) ||
        hd_ckpt_get_counter(ckpt, SAVE_STOP_WAITS, &n->stop_waits))
        return;
    memcpy(&n->stop_best, &bits, sizeof n->stop_best);
}

/* Restores the counters. A checkpoint of a run in another precision has no loss scale: it begins at
 * its initial value. */
static enum hd_status read_counters(struct hd_trainer *t, const struct hd_ckpt *ckpt)
{
    enum hd_status st = hd_ckpt_get_counter(ckpt, "step", &t->steps_done);
    int64_t scale;

    if (!st)
        st = hd_ckpt_get_counter(ckpt, "adam_step", &t->updates);
    if (hd_ckpt_get_counter(ckpt, "data_skipped", &t->data_skipped))
        /* a checkpoint of an older build has no such counter, because no data could be skipped */
        t->data_skipped = 0;
    read_guard(t, ckpt);
    hd_loss_scale_init(&t->rank_program.job, &t->scale);
    if (st || hd_ckpt_get_counter(ckpt, "loss_scale", &scale) ||
        hd_ckpt_get_counter(ckpt, "loss_scale_good", &t->scale.good))
        return st;
    t->scale.scale = scale > t->scale.floor ? scale : t->scale.floor;
    return HD_OK;
}

/* Reads the whole state from an open checkpoint. base: as in read_state. `arena` gets the job of the
 * run that wrote it, *ret_then. */
static enum hd_status read_all(struct hd_trainer *t, struct hd_ckpt *ckpt, const char *base,
                               struct hd_arena *arena, struct hd_job *ret_then,
                               struct hd_text *ret_note)
{
    enum hd_status st = verify_on_first_rank(t, hd_ckpt_dir(ckpt));

    if (!st)
        st = read_counters(t, ckpt);
    t->tokens_seen = hd_ckpt_get_manifest(ckpt)->tokens_seen;
    if (!st)
        st = hd_stored_job_of(ckpt, arena, ret_then);
    if (!st)
        read_numbers(t, ckpt, ret_then);
    if (!st)
        st = check_optimizer(t, ckpt, ret_then);
    if (!st)
        st = read_state(t, ckpt, base, ret_then);
    if (!st)
        st = read_buffers(t, ckpt);
    if (!st)
        st = refresh_copies(t);
    if (!st)
        compare_facts(t, ckpt, ret_then, ret_note);
    return st;
}

enum hd_status hd_trainer_load(struct hd_trainer *t, const char *dir, const char *expected_hash,
                               struct hd_text *ret_note)
{
    struct hd_ckpt *ckpt = NULL;
    struct hd_job then;
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
        st = read_all(t, ckpt, t->rank_program.job.init_from, &arena, &then, ret_note);
    hd_arena_done(&arena);
    hd_ckpt_close(ckpt);
    return st;
}

enum hd_status hd_trainer_go_back(struct hd_trainer *t, const char *dir, const char *expected_hash)
{
    const int64_t next_batch = t->steps_done + t->data_skipped;
    const enum hd_status st = hd_trainer_load(t, dir, expected_hash, NULL);

    if (st)
        return st;
    t->data_skipped = next_batch - t->steps_done;
    return HD_OK;
}

/* ---- going on from another run ---- */

enum hd_status hd_trainer_continue(struct hd_trainer *t, struct hd_text *ret_said,
                                   struct hd_text *ret_note)
{
    const struct hd_job *job = &t->rank_program.job;
    struct hd_ckpt *ckpt = NULL;
    struct hd_job then;
    struct hd_arena arena;
    enum hd_status st = hd_source_check_identity(job->continue_from, job->init_identity);

    hd_arena_init(&arena, 0);
    if (!st)
        st = hd_ckpt_open(job->continue_from, &ckpt);
    if (!st)
        st = read_all(t, ckpt, NULL, &arena, &then, ret_note);
    if (!st && t->steps_done >= job->steps)
        st = hd_err(HD_INVALID, "%s has taken %lld steps; train.steps is %lld", job->continue_from,
                    (long long)t->steps_done, (long long)job->steps);
    if (!st && hd_continued_skip(&then, job, t->steps_done, &t->data_skipped, ret_said))
        hd_guard_init(job, &t->guard);
    hd_trainer_forget_numbers(t); /* the best checkpoint is one of this job */
    hd_arena_done(&arena);
    hd_ckpt_close(ckpt);
    /* a damaged input is the job's fault: a restart would find the same damage */
    return st ? hd_err_prefix(st == HD_CORRUPT ? HD_INVALID : st, "train.continue_from") : HD_OK;
}

/* ---- initial weights ---- */

/* Checks that train.adapter.from has not changed since the job was submitted; rank 0 verifies a
 * checkpoint. */
static enum hd_status check_adapter(struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;
    enum hd_status st = hd_source_check_adapter(job->adapter_from, job->adapter_identity);

    if (!st && hd_source_is_checkpoint(job->adapter_from))
        st = verify_on_first_rank(t, job->adapter_from);
    return st ? hd_err_prefix(st, "train.adapter.from") : HD_OK;
}

/* Reads the initial weights from the job's init_from, each rank its own shards. If that is a
 * checkpoint, rank 0 first verifies it. */
static enum hd_status init_from_source(struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;
    const struct hd_source_dirs dirs = {.dir = job->init_from, .adapter = job->adapter_from};
    enum hd_status st = hd_source_check_identity(job->init_from, job->init_identity);

    if (!st && hd_source_is_checkpoint(job->init_from))
        st = verify_on_first_rank(t, job->init_from);
    if (!st)
        st = read_params(t, &dirs, NULL, NULL);
    return st ? hd_err_prefix(st, "train.init_from") : HD_OK;
}

static enum hd_status init_weights(struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;
    enum hd_status st = *job->adapter_from ? check_adapter(t) : HD_OK;

    if (!st)
        st = *job->init_from ? init_from_source(t) : read_params(t, NULL, NULL, NULL);
    /* a damaged input is the job's fault: a restart would find the same damage */
    return st == HD_CORRUPT ? HD_INVALID : st;
}

enum hd_status hd_trainer_init(struct hd_trainer *t)
{
    enum hd_status st = init_weights(t);

    if (!st)
        st = clear_moments(t);
    if (!st)
        st = begin_averages(t);
    if (!st)
        st = clear_buffers(t);
    if (st)
        return st;
    t->steps_done = t->updates = t->data_skipped = t->tokens_seen = 0;
    hd_guard_init(&t->rank_program.job, &t->guard);
    hd_loss_scale_init(&t->rank_program.job, &t->scale);
    return refresh_copies(t);
}
