/* export: `heddle-worker export`, writes a model directory for transformers from a checkpoint and,
 * if the checkpoint has only trained parameters, from its base. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "flags/flags.h"
#include "hf/hf.h"
#include "job/family.h"
#include "model/model.h"
#include "tokenizer/companions.h"
#include "train/encoded.h"
#include "train/job_tokenizer.h"
#include "train/rank_program.h"
#include "train/source.h"
#include "worker/worker.h"

enum { PROGRESS_MS = 200, SHARD_MB_MAX = 1 << 20, SHARD_MB_DEFAULT = 5000 };

struct export_bar {
    bool shown;
    int64_t last_ms;
};

/* Shows the progress, on a terminal only and at most every PROGRESS_MS. */
static void show_export_progress(void *context, int64_t done_bytes, int64_t total_bytes)
{
    struct export_bar *bar = context;
    const int64_t now = hd_clock_now_ms();
    char done[32], total[32];

    if (!isatty(STDERR_FILENO) || (done_bytes < total_bytes && now - bar->last_ms < PROGRESS_MS))
        return;
    bar->last_ms = now;
    bar->shown = true;
    hd_text_format_bytes(done_bytes, done);
    hd_text_format_bytes(total_bytes, total);
    (void)fprintf(stderr, "\r\033[K%s of %s written", done, total);
}

enum export_form { FORM_PATH, FORM_JSON, FORM_JSONL };

static enum hd_status read_export_options(int argc, char **argv, struct hd_hf_export *ret_options,
                                          const char **ret_base, enum export_form *ret_form)
{
    int64_t shard_mb = SHARD_MB_DEFAULT;
    const char *dtype = "fp32", *base = NULL;
    bool json = false, lines = false;
    struct hd_hf_export o = {.dtype = HD_F32};
    struct hd_flag f[] = {HD_FLAG_NEEDED("--checkpoint", o.checkpoint_dir),
                          HD_FLAG_NEEDED("--out", o.out_dir),
                          HD_FLAG_TEXT("--dtype", dtype),
                          HD_FLAG_INT64("--max-shard-size", shard_mb, 1, SHARD_MB_MAX),
                          HD_FLAG_SWITCH("--force", o.force),
                          HD_FLAG_SWITCH("--json", json),
                          HD_FLAG_SWITCH("--jsonl", lines),
                          HD_FLAG_SWITCH("--adapter", o.adapter),
                          HD_FLAG_TEXT("--base", base),
                          HD_FLAG_SWITCH("--text-only", o.text_only),
                          HD_FLAG_SWITCH("--ema", o.ema)};
    const enum hd_status st = HD_FLAGS_READ(argc, argv, f);

    if (st)
        return st;
    o.shard_bytes_max = shard_mb * 1000 * 1000;
    if (o.adapter && base)
        return hd_err(
            HD_INVALID,
            "--base and --adapter exclude each other: an adapter alone has no base in it");
    if (o.adapter && o.text_only)
        return hd_err(HD_INVALID, "--text-only and --adapter exclude each other: an adapter alone "
                                  "has neither a text model nor a vision tower in it");
    if (strcmp(dtype, "bf16") == 0)
        o.dtype = HD_BF16;
    else if (strcmp(dtype, "fp32") != 0)
        return hd_err(HD_INVALID, "--dtype: '%.20s' is neither fp32 nor bf16", dtype);
    *ret_options = o;
    *ret_base = base;
    *ret_form = lines ? FORM_JSONL : json ? FORM_JSON : FORM_PATH;
    return HD_OK;
}

/* Adds the exported folder's files with their sizes to the JSON, sorted by name. */
static enum hd_status add_files(const char *dir, struct hd_json_writer *w)
{
    struct dirent **entries = NULL;
    const int count = scandir(dir, &entries, NULL, alphasort);
    enum hd_status st =
        count < 0 ? hd_err(HD_IO, "cannot read %s: %s", dir, strerror(errno)) : HD_OK;

    hd_json_begin(w, "files", '[');
    for (int i = 0; i < count; i++) {
        struct hd_text path = {0};
        struct stat info;

        hd_text_add(&path, "%s/%s", dir, entries[i]->d_name);
        if (!path.failed && stat(path.data, &info) == 0 && S_ISREG(info.st_mode)) {
            hd_json_begin(w, NULL, '{');
            hd_json_add_string(w, "name", entries[i]->d_name);
            hd_json_add_int64(w, "size_bytes", info.st_size);
            hd_json_end(w, '}');
        }
        hd_text_free(&path);
        free(entries[i]);
    }
    free(entries);
    hd_json_end(w, ']');
    return st;
}

/* Prints the result in the JSON envelope of the heddle command (controller/cli/rows.h), or as a
 * line of jsonl. */
static enum hd_status print_json(const struct hd_hf_export *options, enum export_form form)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    char *path = realpath(options->out_dir, NULL);
    enum hd_status st;

    if (form == FORM_JSON) {
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "api_version", "heddle/v1");
        hd_json_add_string(&w, "kind", "ModelFolderList");
        hd_json_begin(&w, "items", '[');
    }
    hd_json_begin(&w, NULL, '{');
    if (form == FORM_JSONL)
        hd_json_add_string(&w, "type", "model_folder");
    hd_json_add_string(&w, "path", path ? path : options->out_dir);
    hd_json_add_string(&w, "checkpoint", options->checkpoint_dir);
    hd_json_add_string(&w, "dtype", options->dtype == HD_BF16 ? "bf16" : "fp32");
    st = add_files(options->out_dir, &w);
    hd_json_end(&w, '}');
    if (form == FORM_JSON) {
        hd_json_end(&w, ']');
        hd_json_end(&w, '}');
    }
    hd_text_add(&text, "\n");
    st = hd_worker_print(st, &text);
    free(path);
    return st;
}

static enum hd_status print_path(const struct hd_hf_export *options)
{
    struct hd_text text = {0};

    hd_text_add(&text, "%s\n", options->out_dir);
    return hd_worker_print(HD_OK, &text);
}

/* ---- the base ---- */

/* All weights of a checkpoint's model, from the checkpoint and its base. */
struct export_base {
    struct hd_arena arena;
    struct hd_job job;
    struct hd_registry registry;
    struct hd_model model;
    struct hd_source *source;
    struct hd_hf_base values;
    /* codes and scales (record) of the quantized matrix that was made last; NULL: none yet */
    char *record;
    size_t record_param;
    int64_t record_matrix;
};

/* Makes the quantized codes of a matrix as the run made them, in b->record. Does nothing if it is
 * the matrix that was made last. */
static enum hd_status make_record(struct export_base *b, size_t param, int64_t matrix)
{
    enum hd_status st;

    if (b->record && b->record_param == param && b->record_matrix == matrix)
        return HD_OK;
    free(b->record);
    b->record = malloc((size_t)b->registry.params[param].record_bytes);
    if (!b->record)
        return hd_err(HD_NO_MEMORY, "no memory to decode %s", b->registry.params[param].name);
    st = hd_encoded_make(b->source, &b->registry, (int)param, (uint64_t)b->job.seed, matrix,
                         b->record);
    b->record_param = param;
    b->record_matrix = st ? -1 : matrix;
    return st;
}

/* Decodes elements of a quantized parameter: the same values that the adapter was trained with. */
static enum hd_status decode_value(struct export_base *b, size_t param,
                                   const struct hd_ckpt_entry *want, float *ret_values)
{
    const struct hd_param *p = &b->registry.params[param];
    const struct hd_quant_box box = hd_param_quant_box(p);
    const struct hd_quant_factor f = {.quant = p->quant,
                                      .count = 1,
                                      .columns = box.columns,
                                      .matrix = {hd_quant_matrix_at(&box, 0)}};
    const int64_t each = box.rows * box.columns, first = p->dim_count > 2 ? want->start[0] : 0;
    enum hd_status st = HD_OK;

    for (int64_t done = 0, n; !st && done < want->flat_count; done += n) {
        const int64_t at = want->flat_first + done;

        n = each - at % each < want->flat_count - done ? each - at % each : want->flat_count - done;
        st = make_record(b, param, first + at / each);
        if (!st)
            hd_quant_decode(&f, b->record, at % each, n, ret_values + done);
    }
    return st;
}

static enum hd_status read_value(void *context, size_t index, const struct hd_ckpt_entry *want,
                                 float *ret_values)
{
    struct export_base *b = context;

    if (b->registry.params[index].quant)
        return decode_value(b, index, want, ret_values);
    return hd_source_read(b->source, (int)index, want, ret_values);
}

static enum hd_status read_first_value(void *context, size_t index,
                                       const struct hd_ckpt_entry *want, float *ret_values)
{
    struct export_base *b = context;

    return hd_source_read_first(b->source, (int)index, want, ret_values);
}

static enum hd_status list_values(struct export_base *b)
{
    const size_t count = (size_t)b->registry.param_count;
    struct hd_ckpt_entry *entries = hd_arena_array(&b->arena, count, sizeof *entries);

    if (!entries)
        return hd_err(HD_NO_MEMORY, "no memory to export a model");
    for (size_t i = 0; i < count; i++) {
        const struct hd_param *p = &b->registry.params[i];

        entries[i] = hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);
    }
    b->values = (struct hd_hf_base){b, entries, count, read_value, read_first_value};
    return HD_OK;
}

/* Returns whether an export may need the folder of the base though the checkpoint has all weights: for
 * its files, or for tensors that are copied from it. */
static bool may_use_base(const struct export_base *b, const char *checkpoint)
{
    const struct hd_family *family = hd_family_named(b->job.family);

    return !hd_hf_has_kept(checkpoint) || hd_hf_is_wrapped(checkpoint) ||
           (family && family->extra_layers);
}

/* Opens the base of a checkpoint, if the checkpoint omits some weights, or, of an adapter alone, if it
 * began with directions of them; else b->source stays NULL. */
static enum hd_status open_base(struct export_base *b, const char *checkpoint, const char *base,
                                bool adapter)
{
    const struct hd_source_dirs dirs = {.dir = checkpoint, .base = base};
    struct hd_model_config config;
    enum hd_status st = hd_stored_job_in(checkpoint, &b->arena, &b->job);

    if (!st && adapter && b->job.adapter_init != HD_JOB_ADAPTER_INIT_PISSA)
        return HD_OK;
    if (st || (!adapter && b->job.checkpoint_base != HD_JOB_CHECKPOINT_BASE_OMIT &&
               hd_rank_program_quant(&b->job) == HD_QUANT_NONE))
        return st || !base || may_use_base(b, checkpoint)
                   ? st
                   : hd_err(HD_INVALID, "--base: %s has all weights and files of its model",
                            checkpoint);
    st = hd_model_config_from_job(&b->job, &config);
    if (st)
        return st;
    hd_registry_init(&b->registry, &b->arena, NULL, 0);
    b->registry.quant = hd_rank_program_quant(&b->job);
    st = hd_model_declare(&config, &b->registry, &b->arena, &b->model);
    if (!st)
        st = hd_source_open(&dirs, &b->job, &b->registry, &b->source);
    return st ? st : list_values(b);
}

/* Prints a note that names the weights to which the adapter was added: an adapter merges well only
 * with the weights it was trained with. */
static void say_base(const struct export_base *b, const char *base)
{
    const char *from = base ? base : *b->job.init_from ? b->job.init_from : "the job's seed";

    if (b->job.adapter != HD_JOB_ADAPTER_NONE && hd_rank_program_quant(&b->job) != HD_QUANT_NONE)
        (void)fprintf(stderr,
                      "the adapter was added to the weights of %s as decoded from %s, with which "
                      "it was trained, in fp32\n",
                      from, hd_job_model_weights_words[b->job.model_weights]);
    else if (b->job.adapter != HD_JOB_ADAPTER_NONE)
        (void)fprintf(stderr, "the adapter was added to the weights of %s, in fp32\n",
                      !b->source ? "the checkpoint, rounded to the compute encoding" : from);
}

/* Sets id and text of a special token, if it is a token of the tokenizer and a row of the model. */
static void take_token(const struct hd_tokenizer *tokenizer, const struct hd_job *job, int64_t id,
                       struct hd_arena *arena, int64_t *ret_id, const char **ret_text)
{
    const char *content = id >= 0 && id < job->vocab && id <= INT32_MAX
                              ? hd_tokenizer_content(tokenizer, (int32_t)id)
                              : NULL;

    if (!content)
        return;
    *ret_id = id;
    *ret_text = hd_arena_strdup(arena, content);
}

/* Finds the tokens that begin and end the job's texts, with its tokenizer, or with the checkpoint's
 * copy if the tokenizer's file is gone. If neither can be opened, prints a note: the weights can
 * still be exported. */
static void find_ends(const struct hd_job *trained, const char *checkpoint, struct hd_arena *arena,
                      struct hd_hf_ends *ret_ends)
{
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    const struct hd_tokenizer *opened = NULL;
    struct hd_job job = *trained;
    struct hd_special special;
    char folder[HD_JOB_PATH_MAX];
    struct hd_text kept = {0};
    int64_t unk = -1;

    (void)snprintf(folder, sizeof folder, "%s/base", checkpoint);
    if (*job.tokenizer == '/' && !hd_file_exists(job.tokenizer) &&
        hd_companions_find_tokenizer(folder, &kept)) {
        job.tokenizer = kept.data;
        job.from_dir = folder;
    }
    *ret_ends = (struct hd_hf_ends){.end = -1, .bos = -1, .pad = -1};
    if (hd_job_tokenizer_end_of_text(&tokenizer, &job, &ret_ends->end) ||
        (*job.tokenizer == '/' && hd_job_tokenizer_need(&tokenizer, &job, &opened)))
        hd_worker_note("export", hd_err_message());
    else if (opened && !hd_special_resolve(opened, job.from_dir, &special)) {
        take_token(opened, &job, special.bos.id, arena, &ret_ends->bos, &ret_ends->bos_token);
        take_token(opened, &job, special.pad.id, arena, &ret_ends->pad, &ret_ends->pad_token);
        take_token(opened, &job, special.unk.id, arena, &unk, &ret_ends->unk_token);
        take_token(opened, &job, ret_ends->end, arena, &ret_ends->end, &ret_ends->end_token);
        if (hd_tokenizer_has_rules(opened) && !*hd_tokenizer_companions(opened)->asked_class)
            hd_worker_note("export",
                           "the tokenizer.model has rules of normalization, and AutoTokenizer "
                           "opens the export as LlamaTokenizer, which does not apply them: texts "
                           "that they change get other ids there\n");
        if (*job.from_dir || *job.init_from) /* config.json stays as that of the base */
            ret_ends->pad = -1;
    }
    hd_job_tokenizer_close(&tokenizer);
    hd_text_free(&kept);
}

static enum hd_status write_model(struct hd_hf_export *options, const char *base)
{
    struct export_base b = {.source = NULL};
    struct hd_hf_ends ends;
    struct hd_text notes = {0};
    enum hd_status st = HD_OK;

    options->base_dir = base;
    options->notes = &notes;
    hd_arena_init(&b.arena, 0);
    st = open_base(&b, options->checkpoint_dir, base, options->adapter);
    if (!st && b.source)
        options->base = &b.values;
    if (!st && !options->adapter) {
        find_ends(&b.job, options->checkpoint_dir, &b.arena, &ends);
        options->ends = &ends;
    }
    if (!st)
        st = hd_hf_export_run(options);
    if (!st && !options->adapter)
        say_base(&b, base);
    if (!st && notes.len_bytes)
        hd_worker_note("export", notes.data);
    hd_text_free(&notes);
    free(b.record);
    hd_source_close(b.source);
    hd_arena_done(&b.arena);
    return st;
}

int hd_worker_export(int argc, char **argv)
{
    struct hd_hf_export options;
    const char *base = NULL;
    enum export_form form = FORM_PATH;
    struct export_bar bar = {.shown = false};
    enum hd_status st = read_export_options(argc, argv, &options, &base, &form);

    if (!st) {
        options.progress = show_export_progress;
        options.context = &bar;
        st = write_model(&options, base);
    }
    if (bar.shown)
        (void)fprintf(stderr, "\n");
    if (!st)
        st = form == FORM_PATH ? print_path(&options) : print_json(&options, form);
    return hd_worker_finish("export", st);
}
