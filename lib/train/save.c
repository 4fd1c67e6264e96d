/* save: writes weights and moments to checkpoints and reads them.
 *
 * Several ranks hold the same share of a tensor: those of its pipeline stage with the same index in
 * tp and, for experts, in ep. With ZeRO each of them has moments and master weights of one shard.
 * One of them writes it: the one with the fewest bytes so far, in registry order, so that all
 * shards have about the same size. The two moments of a tensor are separate entries. First all
 * ranks write their shards durably; then they exchange descriptions of the shards; then rank 0
 * commits the manifest and sends the result to the others. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "train/source.h"
#include "train/trainer.h"

enum { KINDS = 3, CHECKPOINT_DEADLINE_MS = 15 * 60 * 1000 };

static const enum hd_state_kind kinds[KINDS] = {HD_STATE_WEIGHT, HD_STATE_MOMENT1,
                                                HD_STATE_MOMENT2};
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

/* Elements of a share, without padding. Padding is the end of the share. */
static int64_t real_elements(const struct hd_param *p, int share)
{
    int64_t start[HD_PARAM_DIMS_MAX], real[HD_PARAM_DIMS_MAX], elements = 1;

    hd_param_box(p, share, start, real);
    for (int d = 0; d < p->dim_count; d++)
        elements *= real[d];
    return elements;
}

/* What rank `rank` has of a kind of state of its share of a parameter: elements begin .. end - 1,
 * without padding. */
static struct hd_range piece_of(const struct hd_registry *r, const struct hd_param *p, int kind,
                                int rank)
{
    struct hd_range piece = hd_part_range(r, &r->parts[p->part], kinds[kind], rank);
    const int64_t real = real_elements(p, hd_param_share_of(p, &r->mesh, rank));

    piece.begin = piece.begin > p->offset ? piece.begin - p->offset : 0;
    piece.end = piece.end > p->offset ? piece.end - p->offset : 0;
    if (piece.end > real)
        piece.end = real;
    return piece;
}

static bool has_piece(const struct hd_registry *r, const struct hd_param *p, int kind, int rank,
                      int share, struct hd_range piece)
{
    const struct hd_range other = piece_of(r, p, kind, rank);

    return hd_param_share_of(p, &r->mesh, rank) == share && other.begin == piece.begin &&
           other.end == piece.end;
}

/* The rank with the fewest bytes so far among the ranks of `stage` that have the piece; -1: a rank
 * lower than `rank` has it, too, and the piece got its owner when that rank was asked for. */
static int pick_owner(const struct hd_registry *r, const struct hd_param *p, int kind, int rank,
                      const struct hd_range *stage, const int64_t *bytes)
{
    const struct hd_range piece = piece_of(r, p, kind, rank);
    const int share = hd_param_share_of(p, &r->mesh, rank);
    int owner = rank;

    for (int w = (int)stage->begin; w < stage->end; w++) {
        if (!has_piece(r, p, kind, w, share, piece))
            continue;
        if (w < rank)
            return -1;
        if (bytes[w] < bytes[owner])
            owner = w;
    }
    return owner;
}

/* Calls put for each entry of a checkpoint with the rank that writes it and what it is of the
 * share: for each piece of a parameter's state that differs, one owner among the ranks that have
 * it. Every rank computes the same assignment by itself. HD_NO_MEMORY. */
typedef void put_entry_fn(void *context, int owner, int param, int kind, struct hd_range piece);

static enum hd_status assign(const struct hd_trainer *t, struct hd_arena *arena, put_entry_fn *put,
                             void *context)
{
    const struct hd_registry *r = &t->layout.registry;
    const struct hd_mesh *mesh = &t->layout.mesh;
    const int ranks = mesh->world / mesh->sizes.pp; /* of a stage */
    int64_t *bytes = hd_arena_array(arena, (size_t)mesh->world, sizeof *bytes);

    if (!bytes)
        return hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint");
    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        const int64_t first = (int64_t)r->parts[p->part].stage * ranks;
        const struct hd_range stage = {first, first + ranks};

        for (int k = 0; k < KINDS && (k == 0 || p->trainable); k++)
            for (int w = (int)stage.begin; w < stage.end; w++) {
                const struct hd_range piece = piece_of(r, p, k, w);
                const int owner =
                    piece.begin < piece.end ? pick_owner(r, p, k, w, &stage, bytes) : -1;

                if (owner < 0)
                    continue;
                bytes[owner] += (piece.end - piece.begin) * (int64_t)sizeof(float);
                put(context, owner, i, k, piece);
            }
    }
    return HD_OK;
}

struct shard_plan {
    struct hd_trainer *t;
    struct hd_ckpt_entry *entries;
    const char **tensors; /* addresses of the entries' values */
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
    s->tensors[s->count++] = hd_trainer_find(s->t, param, kinds[kind]).at;
}

/* The entries that this rank writes. */
static enum hd_status plan_shard(struct hd_trainer *t, struct hd_arena *arena,
                                 struct shard_plan *ret_plan)
{
    const size_t most = (size_t)t->layout.registry.param_count * KINDS + 1;
    struct shard_plan s = {t, hd_arena_array(arena, most, sizeof *s.entries),
                           hd_arena_array(arena, most, sizeof *s.tensors),
                           hd_arena_array(arena, most, sizeof *s.names), 0};
    enum hd_status st = hd_arena_failed(arena)
                            ? hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint")
                            : assign(t, arena, put_own, &s);

    if (!st)
        *ret_plan = s;
    return st;
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
    struct whole whole = {0};
    enum hd_status st = assign(t, arena, put_any, &whole);

    return st ? st
              : hd_file_check_room(t->layout.job.attempt_dir,
                                   hd_ckpt_bound_bytes(whole.data_bytes, whole.entries));
}

/* ---- saving ---- */

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
};

/* The bytes of an entry: all at once from host memory, a staging buffer at a time from a device. */
static enum hd_status entry_bytes(void *context, size_t entry, int64_t at, int64_t left_bytes,
                                  const void **ret_bytes, int64_t *ret_size_bytes)
{
    const struct shard_source *s = context;

    *ret_size_bytes = hd_staging_piece(s->staging, left_bytes);
    return hd_staging_fetch(s->staging, s->plan->tensors[entry] + at, *ret_size_bytes, ret_bytes);
}

static enum hd_status write_shard(struct hd_trainer *t, const char *dir, struct hd_arena *arena,
                                  struct outcome *ret_outcome)
{
    struct shard_plan plan = {0};
    struct shard_source source = {&t->staging, &plan};
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
static const char *sums_fact(const struct hd_trainer *t)
{
    return hd_comm_sums_natively(t->comm) ? "native" : "ordered";
}

/* The weights as they are now. */
static bool is_validated(const struct hd_trainer *t)
{
    return t->val_step >= 0 && t->val_step == t->steps_done;
}

static enum hd_status commit(struct hd_trainer *t, const char *dir, const struct outcome *all,
                             struct hd_arena *arena, uint64_t *ret_hash)
{
    const struct hd_job *job = &t->layout.job;
    const int world = t->layout.mesh.world;
    struct hd_ckpt_shard *shards = hd_arena_array(arena, (size_t)world, sizeof *shards);
    struct hd_text config = {0};
    char dp[24], tp[24], pp[24], zero[24], cp[24], ep[24], threads[24], micro[24];
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
        {"precision", precision_fact(t)}, {"sums", sums_fact(t)}};
    const struct hd_ckpt_counter counters[] = {{"step", t->steps_done},
                                               {"adam_step", t->steps_done}};
    struct hd_ckpt_manifest m = {.job = job->name,
                                 .attempt = (int)job->attempt,
                                 .step = t->steps_done,
                                 .tokens_seen = t->steps_done * job->global_batch * job->context,
                                 .has_val_loss = is_validated(t),
                                 .val_loss = t->val_loss,
                                 .has_lowest_val_loss = isfinite(t->lowest_val_loss),
                                 .lowest_val_loss = t->lowest_val_loss,
                                 .layout = layout,
                                 .layout_count = sizeof layout / sizeof layout[0],
                                 .determinism = determinism,
                                 .determinism_count = sizeof determinism / sizeof determinism[0],
                                 .counters = counters,
                                 .counter_count = sizeof counters / sizeof counters[0],
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

static enum hd_status save(struct hd_trainer *t, struct hd_arena *arena, struct hd_saved *ret_saved)
{
    struct outcome *all = hd_arena_array(arena, (size_t)t->layout.mesh.world, sizeof *all), mine;
    struct hd_saved saved = {.val_loss = is_validated(t) ? t->val_loss : NAN};
    uint64_t hash = 0;
    enum hd_status st;

    if (!all)
        return hd_err(HD_NO_MEMORY, "no memory for the results of the ranks");
    st = agree_on_room(t, arena, all);
    if (st)
        return st;
    st =
        hd_ckpt_format_dir(t->layout.job.attempt_dir, t->steps_done, saved.path, sizeof saved.path);
    if (st)
        mine = outcome_of(st);
    else
        (void)write_shard(t, saved.path, arena, &mine); /* a failure is in the outcome */
    st = agree(t, &mine, all);
    if (st)
        return give_up(t, st, saved.path, all);
    for (int r = 0; r < t->layout.mesh.world; r++)
        saved.bytes += all[r].shard.size_bytes;

    mine = (struct outcome){0};
    if (t->layout.rank == 0) {
        st = commit(t, saved.path, all, arena, &hash);
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

enum hd_status hd_trainer_save(struct hd_trainer *t, struct hd_saved *ret_saved)
{
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_comm_set_deadline(t->comm, CHECKPOINT_DEADLINE_MS); /* disks are slower than steps */
    st = save(t, &arena, ret_saved);
    hd_comm_set_deadline(t->comm, HD_STEP_DEADLINE_MS);
    hd_arena_done(&arena);
    return st ? hd_err_prefix(st, "checkpoint of step %lld", (long long)t->steps_done) : HD_OK;
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
    enum hd_status st = hd_comm_mesh_group(t->comm, &r->mesh, hd_part_shard_group(p), &group);

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

        if (!p->held || p->compute == HD_F32)
            continue;
        copy = (hd_state_is_visible(p, HD_STATE_COPY) ? t->visible_base : t->private_base) +
               p->offset[HD_STATE_COPY] + p->shard_begin * (int64_t)hd_dtype_size(p->compute);
        if (p->shard_end > p->shard_begin)
            st = hd_launch(
                hd_runner_stream(t->runner), HD_K_cast,
                &(struct hd_cast_args){.out = copy,
                                       .inp = t->private_base + p->offset[HD_STATE_WEIGHT],
                                       .N = p->shard_end - p->shard_begin,
                                       .out_dtype = p->compute,
                                       .inp_dtype = HD_F32});
        if (!st && p->shard_count)
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
    char threads[24];

    number_text(t->layout.job.threads, threads);
    compare_fact(ckpt, "backend", t->traits.backend, ret_note);
    compare_fact(ckpt, "isa", t->traits.isa, ret_note);
    compare_fact(ckpt, "library", t->traits.library, ret_note);
    compare_fact(ckpt, "threads", threads, ret_note);
    compare_fact(ckpt, "precision", precision_fact(t), ret_note);
    compare("sums", sums_then ? sums_then : "ordered", sums_fact(t), ret_note);
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

/* This rank's share of one state of a parameter, piece by piece. */
static enum hd_status read_share(struct hd_trainer *t, int param, int kind, read_fn *read,
                                 void *from)
{
    const struct hd_registry *r = &t->layout.registry;
    const struct hd_range piece = piece_of(r, &r->params[param], kind, t->layout.rank);
    char *tensor = hd_trainer_find(t, param, kinds[kind]).at;
    struct names name;
    struct hd_ckpt_entry want = entry_of(&r->params[param], kind, &name);
    const int64_t count = piece.end - piece.begin, size = (int64_t)sizeof(float);
    enum hd_status st = HD_OK;

    for (int64_t at = 0; !st && at < count; at += want.flat_count) {
        want.flat_first = piece.begin + at;
        want.flat_count = hd_staging_piece(&t->staging, (count - at) * size) / size;
        st = read(from, param, &want, hd_staging_view(&t->staging, tensor + at * size));
        if (!st)
            st = hd_staging_put(&t->staging, tensor + at * size, want.flat_count * size);
    }
    return st;
}

static enum hd_status read_checkpoint(void *from, int param, const struct hd_ckpt_entry *want,
                                      float *ret_values)
{
    (void)param;
    return hd_source_read_checkpoint(from, want, ret_values);
}

static enum hd_status read_state(struct hd_trainer *t, struct hd_ckpt *ckpt)
{
    const struct hd_registry *r = &t->layout.registry;

    for (int i = 0; i < r->param_count; i++)
        for (int k = 0; k < KINDS; k++) {
            enum hd_status st;

            if (!r->parts[r->params[i].part].held || (k && !r->params[i].trainable))
                continue;
            st = read_share(t, i, k, read_checkpoint, ckpt);
            if (st)
                return st;
        }
    return HD_OK;
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

enum hd_status hd_trainer_load(struct hd_trainer *t, const char *dir, const char *expected_hash,
                               struct hd_text *ret_note)
{
    struct hd_ckpt *ckpt = NULL;
    char hash[17];
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (st)
        return st;
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, hd_ckpt_hash(ckpt));
    if (strcmp(expected_hash, "-") != 0 && strcmp(expected_hash, hash) != 0)
        st = hd_err(HD_CORRUPT, "%s: the manifest's hash is %s, but the attempt expects %s", dir,
                    hash, expected_hash);
    if (!st)
        st = verify(t, dir);
    if (!st)
        st = hd_ckpt_counter(ckpt, "step", &t->steps_done);
    t->val_step = t->lowest_step = -1;
    t->lowest_val_loss =
        hd_ckpt_manifest(ckpt)->has_lowest_val_loss ? hd_ckpt_manifest(ckpt)->lowest_val_loss : NAN;
    if (!st)
        st = read_state(t, ckpt);
    if (!st)
        st = refresh_copies(t);
    if (!st)
        compare_facts(t, ckpt, ret_note);
    hd_ckpt_close(ckpt);
    return st;
}

/* ---- initial weights ---- */

static bool is_held(const struct hd_trainer *t, int param)
{
    const struct hd_registry *r = &t->layout.registry;

    return r->parts[r->params[param].part].held;
}

static enum hd_status init_share(struct hd_trainer *t, int param)
{
    const struct hd_param *p = &t->layout.registry.params[param];
    const struct hd_held held = hd_trainer_find(t, param, HD_STATE_WEIGHT);
    const int64_t size = (int64_t)sizeof(float);
    enum hd_status st = HD_OK;

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
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < t->layout.registry.param_count; i++)
        if (is_held(t, i))
            st = init_share(t, i);
    return st;
}

static enum hd_status read_weight(void *from, int param, const struct hd_ckpt_entry *want,
                                  float *ret_values)
{
    return hd_source_read(from, param, want, ret_values);
}

static enum hd_status read_source(struct hd_trainer *t, struct hd_source *source)
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < t->layout.registry.param_count; i++)
        if (is_held(t, i))
            st = read_share(t, i, 0, read_weight, source);
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
    const struct hd_registry *r = &t->layout.registry;
    enum hd_status st = t->layout.job.init_from[0] ? init_from_source(t) : init_by_seed(t);

    for (int i = 0; !st && i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];

        for (int k = 1; k < KINDS && p->trainable && !st; k++) {
            const struct hd_held held = hd_trainer_find(t, i, kinds[k]);

            if (held.count)
                st = hd_staging_clear(&t->staging, held.at, held.count * (int64_t)sizeof(float));
        }
    }
    if (st)
        return st;
    t->steps_done = 0;
    return refresh_copies(t);
}
