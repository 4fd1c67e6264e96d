#include "train/inference_rank.h"

#include <assert.h>
#include <string.h>

#include "base/file.h"
#include "base/math.h"
#include "comm/comm.h"
#include "hf/hf.h"
#include "tokenizer/companions.h"
#include "train/param_reader.h"
#include "train/partition.h"
#include "train/train.h"

void hd_inference_rank_init(struct hd_inference_rank *l, const struct hd_backend_table *backend,
                            int threads)
{
    *l = (struct hd_inference_rank){.open = {.table = backend},
                                    .options = {.threads = threads},
                                    .pp = 1,
                                    .tp = 1,
                                    .tokenizer = ""};
    hd_arena_init(&l->arena, 0);
    hd_job_init(&l->job, &l->arena);
}

void hd_inference_rank_done(struct hd_inference_rank *l)
{
    hd_rank_close(&l->open);
    hd_arena_done(&l->arena);
}

/* ---- the job ---- */

/* Reads the job that a checkpoint contains. */
static enum hd_status read_stored_job(struct hd_inference_rank *l, const char *dir)
{
    struct hd_ckpt *ckpt = NULL;
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (st)
        return st;
    l->step = hd_ckpt_get_manifest(ckpt)->step;
    l->is_checkpoint = true;
    st = hd_stored_job_of(ckpt, &l->arena, &l->job);
    l->tokenizer = l->job.tokenizer;
    hd_ckpt_close(ckpt);
    return st;
}

/* Takes the tokenizer named in config.json, which only models exported by Heddle have; else the
 * directory's tokenizer.json or tokenizer.model. */
static enum hd_status find_tokenizer(struct hd_inference_rank *l, const char *dir)
{
    struct hd_text path = {0};
    const bool found = hd_companions_find_tokenizer(dir, &path);
    char *copy = found ? hd_arena_strdup(&l->arena, path.data) : NULL;
    const bool failed = path.failed || (found && !copy);

    hd_text_free(&path);
    if (failed)
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    l->tokenizer = l->job.tokenizer;
    if (!*l->tokenizer && found)
        l->tokenizer = copy;
    return HD_OK;
}

/* Makes a job from the architecture in config.json. */
static enum hd_status make_job(struct hd_inference_rank *l, const char *dir)
{
    enum hd_status st = hd_hf_read_config(dir, &l->job, NULL);

    if (st)
        return st;
    l->job.precision = HD_JOB_PRECISION_FP32;
    return find_tokenizer(l, dir);
}

/* Adds the adapter in a directory to the job. A prefix adapter takes positions of the context, so
 * fewer positions are left for tokens. */
static enum hd_status add_adapter(struct hd_inference_rank *l, const char *dir, const char *base)
{
    enum hd_status st;

    if (l->job.adapter != HD_JOB_ADAPTER_NONE)
        return hd_err(HD_INVALID, "--adapter: the model has an adapter already");
    st = hd_adapter_check_base(dir, base);
    if (st)
        return hd_err_prefix(st, "--adapter");
    st = hd_adapter_read(dir, &l->job, NULL);
    l->job.context -= st ? 0 : hd_job_prefix(&l->job);
    if (!st && l->job.context < 1)
        st = hd_err(HD_INVALID,
                    "--adapter: %s has a prefix of %lld tokens, which leaves the model no position "
                    "for others; use a shorter prefix",
                    dir, (long long)l->job.adapter_tokens);
    return st;
}

/* Checks that the model has a layer that predicts further tokens, which can draft. */
static enum hd_status check_drafts(const struct hd_inference_rank *l,
                                   const struct hd_source_dirs *dirs)
{
    if (hd_job_keeps_state(&l->job))
        return hd_err(HD_UNSUPPORTED,
                      "--draft: %s has %s, whose state cannot go back behind a draft "
                      "that is refused; leave --draft out",
                      dirs->dir,
                      hd_job_has_delta(&l->job) ? "gated delta layers" : "short convolutions");
    if (!l->job.mtp_layers)
        return hd_err(HD_UNSUPPORTED,
                      "--draft: %s has no layers that predict further tokens (model.mtp, or "
                      "num_nextn_predict_layers in config.json), which would draft them; leave "
                      "--draft out",
                      dirs->dir);
    if (dirs->adapter && *dirs->adapter)
        return hd_err(
            HD_UNSUPPORTED,
            "--draft: with --adapter the layers that predict further tokens would draft as "
            "without it; leave --draft out, or export the model with its adapter merged");
    return HD_OK;
}

enum hd_status hd_inference_rank_read_job(struct hd_inference_rank *l,
                                          const struct hd_source_dirs *dirs)
{
    const bool is_model = !hd_source_is_checkpoint(dirs->dir) && hd_hf_has_config(dirs->dir);
    enum hd_status st = is_model ? make_job(l, dirs->dir) : read_stored_job(l, dirs->dir);

    if (!st && is_model)
        l->job.adapter = HD_JOB_ADAPTER_NONE;
    if (!st && l->drafts)
        st = check_drafts(l, dirs);
    l->job.mtp_layers = l->drafts; /* only training has all layers that predict further tokens */
    return !st && dirs->adapter && *dirs->adapter ? add_adapter(l, dirs->adapter, dirs->dir) : st;
}

enum hd_status hd_inference_rank_choose_precision(struct hd_job *job, const char *wish)
{
    const enum hd_job_precision wished = wish ? hd_job_find_word(hd_job_precision_words, wish) : 0;

    if (wish && (!wished || wished == HD_JOB_PRECISION_AUTO || wished == HD_JOB_PRECISION_FP8))
        return hd_err(HD_INVALID, "--precision: '%.20s' is not fp32, bf16 or fp16", wish);
    /* generation and evaluation compute in bf16: only training computes products in fp8 */
    if (hd_rank_program_is_fp8(job))
        job->precision = HD_JOB_PRECISION_BF16;
    if (wish)
        job->precision = wished;
    return HD_OK;
}

/* ---- programs and memory ---- */

/* Declares the model for one rank of a mesh. unit_stage: stage of each unit; NULL: one stage. */
static enum hd_status declare_on_mesh(struct hd_inference_rank *l,
                                      const struct hd_mesh_sizes *sizes, int rank,
                                      const int32_t *unit_stage)
{
    struct hd_mesh_sizes all = *sizes;
    struct hd_model_config config;
    enum hd_status st = hd_model_config_from_job(&l->job, &config);

    all.kv_replica = st ? 0 : hd_model_kv_replica(&config, all.tp);
    if (!st)
        st = hd_mesh_init(&l->mesh, &all);
    if (st)
        return st;
    hd_registry_init(&l->registry, &l->arena, &l->mesh, rank);
    l->registry.quant = hd_rank_program_quant(&l->job);
    l->registry.only_computes = true;
    if (unit_stage)
        hd_registry_stages(&l->registry, unit_stage, all.pp - 1);
    st = hd_model_declare(&config, &l->registry, &l->arena, &l->model);
    return st ? st
              : hd_registry_finish(&l->registry, hd_rank_program_compute_dtype(&l->job), false);
}

/* Adds the bytes of each unit's weights to load[unit], equal on all ranks. The weights of a tied
 * embedding count for the head, too. */
static void add_weights(const struct hd_inference_rank *l, double *load)
{
    const struct hd_registry *r = &l->registry;

    for (int i = 0; i < r->bucket_count; i++) {
        const double bytes = (double)hd_bucket_state_bytes(r, &r->buckets[i], HD_STATE_WEIGHT);

        load[r->buckets[i].unit] += bytes;
        if (r->buckets[i].tied)
            load[l->model.unit_head] += bytes;
    }
}

enum hd_status hd_inference_rank_cut(struct hd_inference_rank *l, int64_t block_bytes)
{
    const int64_t L = l->job.layers, units = L + 2;
    double *load = hd_arena_array(&l->arena, (size_t)units, sizeof *load);
    enum hd_status st;

    l->stages = hd_arena_array(&l->arena, (size_t)l->pp, sizeof *l->stages);
    if (!load || !l->stages)
        return hd_err(HD_NO_MEMORY, "no memory to cut the model");
    st = declare_on_mesh(l, &(struct hd_mesh_sizes){.tp = l->tp}, 0, NULL);
    if (st)
        return st;
    for (int64_t u = 0; u < units; u++) /* the head has the blocks that draft */
        load[u] = u < HD_UNIT_FIRST_BLOCK || (u > L && !l->drafts) ? 0 : (double)block_bytes;
    add_weights(l, load);
    return hd_partition_evenly(load, L, l->pp, &l->arena, l->stages);
}

enum hd_status hd_inference_rank_declare(struct hd_inference_rank *l)
{
    const struct hd_mesh_sizes sizes = {.pp = l->pp, .tp = l->tp};
    int32_t *stage;

    if (!l->stages)
        return declare_on_mesh(l, &sizes, l->rank, NULL);
    stage = hd_arena_array(&l->arena, (size_t)l->job.layers + 2, sizeof *stage);
    if (!stage)
        return hd_err(HD_NO_MEMORY, "no memory for the units of the model");
    for (int s = 0; s < l->pp; s++)
        for (int u = l->stages[s].first; u < l->stages[s].end; u++)
            stage[u] = s;
    return declare_on_mesh(l, &sizes, l->rank, stage);
}

static int stage_of(const struct hd_inference_rank *l)
{
    return hd_mesh_coord_of(&l->mesh, l->rank).pp;
}

bool hd_inference_rank_has_head(const struct hd_inference_rank *l)
{
    return stage_of(l) == l->pp - 1;
}

enum hd_status hd_inference_rank_compile(struct hd_inference_rank *l,
                                         const struct hd_rec_shape *shape, int64_t input_rows,
                                         struct hd_chunk **ret_chunk)
{
    struct hd_compile_options options = {
        .precision = hd_precision_uniform(hd_rank_program_compute_dtype(&l->job)),
        .mesh = &l->mesh};
    struct hd_rec *rec = hd_rec_new(&l->registry, shape, &l->arena);

    assert(!input_rows || hd_inference_rank_has_head(l));
    if (!rec)
        return hd_err(HD_NO_MEMORY, "no memory to record the model");
    l->open.table->describe(&l->options, &options.traits);
    if (input_rows)
        hd_model_record_draft(&l->model, input_rows, rec);
    else
        hd_model_record(&l->model, l->stages ? l->stages[stage_of(l)] : hd_model_units(&l->model),
                        rec);
    return hd_compile(rec, &options, ret_chunk);
}

enum hd_status hd_inference_rank_open(struct hd_inference_rank *l,
                                      const struct hd_shm_control *connecting)
{
    const struct hd_backend_table *table = l->open.table;
    enum hd_status st;

    if (table->device)
        l->options.device = l->rank;
    st = hd_rank_open(&(struct hd_rank_opening){.table = table,
                                                .options = l->options,
                                                .shm = connecting,
                                                .rank = l->rank,
                                                .world = l->mesh.world,
                                                .nccl_mesh = &l->mesh,
                                                .deadline_ms = HD_STEP_DEADLINE_MS,
                                                .mesh = &l->mesh},
                      &l->open);
    if (st && !l->open.backend && table->device && l->mesh.world > 1)
        st = hd_err_prefix(st, "each of the %d ranks needs a GPU of its own", l->mesh.world);
    return st;
}

/* Writes the constants of chunks that share them. */
static enum hd_status write_inference_constants(struct hd_inference_rank *l, char *chunk_state,
                                                const struct hd_inference_chunks *chunks)
{
    return chunks->count
               ? hd_staging_write_constants(&l->open.staging, chunks->list[0], chunk_state)
               : HD_OK;
}

/* Reserves the memory that other ranks can access: the registered parts of state and work, and the
 * hidden rows of the lanes. */
static enum hd_status reserve_registered(struct hd_inference_rank *l, int64_t work_bytes,
                                         int micro_batches)
{
    const int64_t before_work = hd_work_begin(l->registry.registered_bytes);
    const int64_t before_stage_io = hd_work_begin(before_work + work_bytes);
    const int64_t all = before_stage_io + 2 * micro_batches * l->stage_io_bytes;
    char *memory = NULL;
    enum hd_status st;

    if (!l->open.comm)
        return HD_OK;
    st = hd_comm_alloc_registered(l->open.comm, (size_t)all, (void **)&memory);
    if (st)
        return st;
    l->memory_bytes += all;
    l->bases.base[HD_REGION_STATE][1] = memory;
    l->bases.base[HD_REGION_WORK][1] = memory + before_work;
    l->stage_io = memory + before_stage_io;
    return HD_OK;
}

/* Adds what chunks need to the largest work memory and hidden rows. Returns the bytes of their
 * constants and caches. */
static int64_t add_extents(struct hd_inference_rank *l, const struct hd_inference_chunks *chunks,
                           struct hd_extent *work)
{
    int64_t own = 0;

    for (int i = 0; i < chunks->count; i++) {
        const struct hd_extent *extent = chunks->list[i]->extent;

        assert(!i || own == extent[HD_REGION_STATE].private_bytes);
        own = extent[HD_REGION_STATE].private_bytes;
        work->private_bytes = hd_max(work->private_bytes, extent[HD_REGION_WORK].private_bytes);
        work->registered_bytes =
            hd_max(work->registered_bytes, extent[HD_REGION_WORK].registered_bytes);
        l->stage_io_bytes =
            hd_max(l->stage_io_bytes, hd_work_begin(extent[HD_REGION_STAGE_IO].registered_bytes));
    }
    return own;
}

enum hd_status hd_inference_rank_reserve(struct hd_inference_rank *l,
                                         const struct hd_inference_chunks *model,
                                         const struct hd_inference_chunks *drafts,
                                         int micro_batches)
{
    struct hd_extent work = {0};
    const int64_t before_drafts =
        hd_work_begin(l->registry.private_bytes + add_extents(l, model, &work));
    const int64_t before_work = hd_work_begin(before_drafts + add_extents(l, drafts, &work));
    const bool keeps_rows = !l->open.comm && l->stage_io_bytes; /* no other rank accesses them */
    int64_t end, before_rows;
    enum hd_status st;

    l->micro_batch_bytes = hd_inference_rank_has_head(l) ? hd_work_begin(work.private_bytes) : 0;
    end = before_work + l->micro_batch_bytes * (micro_batches - 1) + work.private_bytes;
    before_rows = hd_work_begin(end);
    if (keeps_rows)
        end = before_rows + 2 * micro_batches * l->stage_io_bytes;
    st = hd_rank_reserve(&l->open, end, 0, l->options.threads);
    l->memory_bytes = st ? 0 : end;
    if (!st)
        st = reserve_registered(l, work.registered_bytes, micro_batches);
    if (st)
        return st;
    if (keeps_rows)
        l->stage_io = l->open.memory.base + before_rows;
    l->bases.base[HD_REGION_STATE][0] = l->open.memory.base;
    l->bases.chunk_state = l->open.memory.base + l->registry.private_bytes;
    l->bases.base[HD_REGION_WORK][0] = l->open.memory.base + before_work;
    l->draft_state = l->open.memory.base + before_drafts;
    st = write_inference_constants(l, l->bases.chunk_state, model);
    return st ? st : write_inference_constants(l, l->draft_state, drafts);
}

struct hd_bases hd_inference_rank_bases(const struct hd_inference_rank *l, int micro_batch)
{
    struct hd_bases bases = l->bases;

    bases.base[HD_REGION_WORK][0] += micro_batch * l->micro_batch_bytes;
    if (l->stage_io) {
        bases.stage_io[HD_STAGE_INPUT] = l->stage_io + 2 * micro_batch * l->stage_io_bytes;
        bases.stage_io[HD_STAGE_OUTPUT] = l->stage_io + (2 * micro_batch + 1) * l->stage_io_bytes;
    }
    return bases;
}

struct hd_bases hd_inference_rank_draft_bases(const struct hd_inference_rank *l, int micro_batch)
{
    struct hd_bases bases = hd_inference_rank_bases(l, micro_batch);

    bases.chunk_state = l->draft_state;
    bases.stage_io[HD_STAGE_INPUT] = bases.stage_io[HD_STAGE_OUTPUT];
    return bases;
}

enum hd_status hd_inference_rank_bind(struct hd_inference_rank *l, const struct hd_chunk *chunk,
                                      enum hd_call call, const struct hd_bases *bases,
                                      struct hd_bound **ret_bound)
{
    return hd_bind(l->open.runner, chunk, call, true, true, bases, &l->arena, ret_bound);
}

/* Reads one parameter's weights in the encoding that the programs compute with. */
static enum hd_status read_param(void *user, const struct hd_param_reader *reader, int param)
{
    struct hd_inference_rank *l = user;
    const struct hd_param *p = &l->registry.params[param];
    const struct hd_bucket *bucket = &l->registry.buckets[p->bucket];
    const int64_t element = p->quant ? 1 : (int64_t)hd_dtype_size(bucket->stored);
    const struct hd_local_shard shard = {
        .count = p->count,
        .at = l->open.memory.base + bucket->offset[HD_STATE_WEIGHT] + p->offset * element,
        .dtype = bucket->stored,
        .codes = p->quant ? p : NULL};

    if (!hd_source_has(reader->source, param) && !p->quant && p->init != HD_INIT_NORMS) {
        /* left at zero: an adapter whose factors no directory has adds nothing */
        if (!l->drafts || p->adapter)
            return HD_OK;
        return hd_err(HD_INVALID,
                      "--draft: the model has no %s, although it says that it has a layer that "
                      "predicts further tokens; leave --draft out",
                      p->name);
    }
    /* magnitudes of a DoRA adapter that no directory has are norms: the adapter begins with zeros */
    return hd_param_read(reader, param, HD_SAVED_WEIGHT, &shard);
}

static enum hd_status verify_dirs(const struct hd_source_dirs *dirs)
{
    enum hd_status st = hd_source_is_checkpoint(dirs->dir) ? hd_ckpt_verify(dirs->dir) : HD_OK;

    if (!st && dirs->adapter && *dirs->adapter && hd_source_is_checkpoint(dirs->adapter))
        st = hd_ckpt_verify(dirs->adapter);
    return st;
}

enum hd_status hd_inference_rank_read_weights(struct hd_inference_rank *l,
                                              const struct hd_source_dirs *dirs)
{
    const enum hd_status st = l->rank == 0 ? verify_dirs(dirs) : HD_OK;

    return st ? st
              : hd_params_read(&(struct hd_param_reading){.staging = &l->open.staging,
                                                          .registry = &l->registry,
                                                          .job = &l->job,
                                                          .dirs = dirs,
                                                          .read = read_param,
                                                          .user = l});
}
