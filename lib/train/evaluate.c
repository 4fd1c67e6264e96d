#include "train/evaluate.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "chat/date.h"
#include "records/kind.h"
#include "train/inference_rank.h"
#include "train/job_chat.h"
#include "train/job_data.h"

struct evaluation {
    const struct hd_evaluation_options *options;
    struct hd_inference_rank model;
    /* copy of the model's job whose validation data are the files to evaluate on */
    struct hd_job job;
    struct hd_chunk *chunk;
    struct hd_bound *bound;
    struct hd_job_tokenizer tokenizer;
    struct hd_job_data data;
    /* tokens of a window; number of windows that one run of the program computes */
    int64_t context, batch;
    int32_t *token_bytes;          /* [vocab], bytes of each token's text; NULL: no tokenizer */
    int64_t bytes;                 /* bytes of the text of the tokens predicted so far */
    char set[HD_JOB_VAL_NAME_MAX]; /* name of the validation set; "": none is named */
    char tokens[HD_JOB_PATH_MAX];  /* temporary folder of token files; "": none */
};

/* ---- the job ---- */

static enum hd_status choose_window_length(struct evaluation *e)
{
    const int64_t context = e->model.job.context, wish = e->options->context;

    e->context =
        e->model.is_checkpoint || context < HD_EVALUATE_CONTEXT ? context : HD_EVALUATE_CONTEXT;
    if (wish > context)
        return hd_err(HD_INVALID, "--context: %lld is more than the model's context of %lld",
                      (long long)wish, (long long)context);
    if (wish)
        e->context = wish;
    /* LongRoPE has other angles beyond the original context; the windows are all that is read */
    if (!e->model.is_checkpoint && e->model.job.rope_scaling == HD_JOB_ROPE_SCALING_LONGROPE)
        e->model.job.context = e->context;
    e->batch = e->model.is_checkpoint ? e->model.job.micro_batch : HD_EVALUATE_CONTEXT / e->context;
    if (e->batch < 1)
        e->batch = 1;
    return HD_OK;
}

/* Sets those keys of the job that a model directory does not contain to the defaults of a job
 * file. */
static enum hd_status complete_job(struct evaluation *e)
{
    struct hd_job *job = &e->job;
    const char *tokenizer = *e->model.tokenizer ? e->model.tokenizer : "none";
    struct hd_text template = {0};
    char today[HD_CHAT_DATE_MAX];
    enum hd_status st;

    /* files given by the user come without a job file that could set data.too_long */
    if (e->options->file_count)
        job->too_long = HD_JOB_TOO_LONG_DROP;
    if (e->model.is_checkpoint) /* a date that its job lacks would change data.text_identity */
        return HD_OK;
    hd_chat_date_today(today);
    st = hd_job_set_text(job, &job->date, today);
    if (!st)
        st = hd_chat_find(e->options->dirs.dir, &template);
    if (!st)
        st = hd_job_take_text(job, &job->template, &template);
    job->from_dir = e->options->dirs.dir;
    job->data_format = HD_JOB_DATA_FORMAT_AUTO;
    job->data_loss = HD_JOB_DATA_LOSS_ANSWERS;
    hd_text_free(&template);
    job->tokenizer = tokenizer;
    job->documents =
        strcmp(tokenizer, "bytes") == 0 ? HD_JOB_DOCUMENTS_JOINED : HD_JOB_DOCUMENTS_BOUNDED;
    job->end_of_text = -2;
    return st;
}

static bool is_text(const char *path)
{
    return !hd_data_is_tokens(path);
}

/* Refuses a file of preference pairs for a model that is not a reward model: the loss of such a
 * model is computed on text or conversations. */
static enum hd_status refuse_pairs(const char *path)
{
    enum hd_chat_form form;

    if (!hd_data_has_records(path) || hd_jsonl_look(path, NULL, HD_CHAT_PREFERENCE, &form))
        return HD_OK;
    return hd_err(HD_INVALID,
                  "--data: %s holds pairs of answers, which rate a reward model only; give text or "
                  "conversations, such as the answers that were chosen",
                  path);
}

/* Keeps of the job's validation files those of the set to evaluate. */
static enum hd_status choose_set(struct evaluation *e)
{
    const char *wish = e->options->set;
    struct hd_job *job = &e->job;
    int64_t set, first = 0, end;

    set = wish ? hd_job_val_set_find(job, wish) : hd_job_val_set_best(job);
    if (set < 0)
        return hd_err(HD_INVALID, "--val: '%s' is no validation set of %s; %s%s", wish,
                      e->options->dirs.dir, *job->val_sets ? "it has " : "its sets have no names",
                      job->val_sets);
    if (!*job->val_sets)
        return HD_OK;
    hd_job_val_set_name(job, set, e->set);
    while (first < job->val_count && job->val[first].source != set)
        first++;
    for (end = first; end < job->val_count && job->val[end].source == set; end++)
        job->val[end].source = 0;
    job->val += first;
    job->val_count = end - first;
    job->val_sets = "";
    job->checkpoint_best_set = "";
    return HD_OK;
}

/* Makes the files to evaluate on the job's validation files. */
static enum hd_status choose_files(struct evaluation *e)
{
    const struct hd_evaluation_options *o = e->options;
    struct hd_job *job = &e->job;

    const bool rates = hd_job_is_reward(job);

    if (hd_job_has_pairs(job) && !rates && !o->file_count)
        return hd_err(HD_INVALID,
                      "--data is missing: the validation data of %s are %s, which only "
                      "its training compares; give text or conversations",
                      o->dirs.dir, hd_job_is_unpaired(job) ? "rated answers" : "pairs of answers");
    if (!rates) /* other models: loss of next tokens */
        job->objective = HD_JOB_OBJECTIVE_NEXT_TOKEN;
    if (o->file_count) {
        struct hd_job_file *files = hd_arena_array(&e->model.arena, o->file_count, sizeof *files);

        if (!files)
            return hd_err(HD_NO_MEMORY, "no memory for a list of files");
        for (size_t i = 0; i < o->file_count; i++)
            files[i] = (struct hd_job_file){.path = o->files[i], .size_bytes = -1};
        job->val = files;
        job->val_count = (int64_t)o->file_count;
        job->val_split = 0;
        job->val_sets = "";
    } else if (!e->model.is_checkpoint || (!job->val_count && job->val_split <= 0)) {
        return hd_err(HD_INVALID, "--data is missing: %s has no validation data of its own",
                      o->dirs.dir);
    } else if (choose_set(e)) {
        return HD_INVALID;
    }
    if (job->val_count) /* a job without data.val takes the end of its training text */
        job->train_count = job->weight_count = 0;
    for (int64_t i = 0; i < job->val_count; i++) {
        enum hd_chat_form form;
        const enum hd_status st = hd_job_form(job, job->val[i].path, &form);

        if (st && !rates && refuse_pairs(job->val[i].path))
            return HD_INVALID;
        if (!st && form != HD_CHAT_TEXT)
            job->documents = HD_JOB_DOCUMENTS_BOUNDED;
        if (is_text(job->val[i].path) && strcmp(job->tokenizer, "none") == 0)
            return hd_err(HD_INVALID,
                          "--data: %s is text, and %s names no tokenizer; give token files (.npy, "
                          ".bin; heddle data tokenize makes them)",
                          job->val[i].path, o->dirs.dir);
    }
    return HD_OK;
}

/* ---- the data ---- */

static bool tell(struct evaluation *e, bool tokenizing, int64_t done, int64_t total)
{
    const struct hd_evaluation_progress progress = {tokenizing, done, total};

    return !e->options->progress || e->options->progress(e->options->user, &progress);
}

static bool alive(void *context, int64_t done_bytes, int64_t total_bytes)
{
    return tell(context, true, done_bytes, total_bytes);
}

/* Creates a folder for this evaluation's token files: the job's own ones may be in use. */
static enum hd_status make_folder(struct evaluation *e)
{
    const char *base = getenv("TMPDIR");

    (void)snprintf(e->tokens, sizeof e->tokens, "%.*s/heddle-eval.XXXXXX",
                   (int)sizeof e->tokens - 32, base && *base ? base : "/tmp");
    if (!mkdtemp(e->tokens)) {
        const enum hd_status st =
            hd_err(HD_IO, "cannot create the folder %s for tokens: %s", e->tokens, strerror(errno));

        e->tokens[0] = '\0';
        return st;
    }
    return hd_job_print_text(&e->job, &e->job.attempt_dir, "%s/attempt", e->tokens);
}

static enum hd_status open_data(struct evaluation *e)
{
    const int64_t own = e->job.validate_batches * e->job.global_batch;
    const int64_t limit = e->options->windows || e->options->file_count ? e->options->windows : own;
    const struct hd_token_cache_watch watch = {.world = 1, .alive = alive, .context = e};
    struct hd_token_cache cache;
    enum hd_status st = make_folder(e);

    if (!st)
        st = hd_token_cache_fill(&e->job, &e->tokenizer, &watch, &e->model.arena, &cache);
    if (!st)
        st = hd_job_data_open_validation(&e->job, &e->tokenizer, &cache, e->context, limit,
                                         &e->model.arena, &e->data);
    /* a missing file is treated as a mistake in the options, like any other wrong file name */
    if (st == HD_NOT_FOUND)
        st = hd_err(HD_INVALID, "%s", hd_err_message());
    return st ? hd_err_prefix(st, e->options->file_count ? "--data" : "the job's validation data")
              : HD_OK;
}

/* ---- the program ---- */

static enum hd_status load(struct evaluation *e)
{
    struct hd_inference_rank *m = &e->model;
    const struct hd_rec_shape shape = {.mode = HD_RECORD_EVAL,
                                       .B = e->batch,
                                       .S = e->context,
                                       .context = m->job.context,
                                       .first_position = hd_job_first_position(&m->job),
                                       .bounded = e->job.documents == HD_JOB_DOCUMENTS_BOUNDED,
                                       .preference = hd_rank_program_preference(&e->job)};
    enum hd_status st = hd_inference_rank_declare(m);
    struct hd_bases bases;

    if (!st)
        st = hd_inference_rank_compile(m, &shape, 0, &e->chunk);
    if (!st)
        st = hd_inference_rank_open(m, NULL);
    if (!st)
        st = hd_inference_rank_reserve(m, &(struct hd_inference_chunks){&e->chunk, 1},
                                       &(struct hd_inference_chunks){0}, 1);
    bases = hd_inference_rank_bases(m, 0);
    if (!st)
        st = hd_inference_rank_bind(m, e->chunk, HD_CALL_E, &bases, &e->bound);
    return st ? st : hd_inference_rank_read_weights(m, &e->options->dirs);
}

static void *field(const struct evaluation *e, enum hd_batch_field name)
{
    const struct hd_store *store = hd_chunk_find_batch(e->chunk, name);

    return store ? hd_store_address(&e->model.bases, store) : NULL;
}

/* Measures the bytes of each token's text; the end-of-text token counts 0. If the tokenizer cannot
 * be opened (a job with token files does not need it any more), no bytes are reported. */
static enum hd_status measure_tokens(struct evaluation *e)
{
    const int64_t V = e->model.job.vocab;
    const struct hd_tokenizer *tokenizer;
    struct hd_text text = {0};
    int64_t end = -1;

    if (strcmp(e->job.tokenizer, "none") == 0 ||
        hd_job_tokenizer_need(&e->tokenizer, &e->job, &tokenizer) ||
        hd_job_tokenizer_end_of_text(&e->tokenizer, &e->job, &end))
        return HD_OK;
    e->token_bytes = hd_arena_array(&e->model.arena, (size_t)V, sizeof *e->token_bytes);
    if (!e->token_bytes)
        return hd_err(HD_NO_MEMORY, "no memory for the sizes of tokens");
    for (int32_t id = 0; id < V && id < hd_tokenizer_vocab(tokenizer); id++) {
        hd_text_clear(&text);
        if (id != end && !hd_tokenizer_decode_next(tokenizer, id, &text))
            e->token_bytes[id] = (int32_t)text.len_bytes;
    }
    hd_text_free(&text);
    return HD_OK;
}

static void count_bytes(struct evaluation *e, const int32_t *targets)
{
    for (int64_t i = 0; targets && e->token_bytes && i < e->batch * e->context; i++)
        if (targets[i] >= 0)
            e->bytes += e->token_bytes[targets[i]];
}

static enum hd_status evaluate_windows(struct evaluation *e)
{
    const struct hd_data_batch batch = {.tokens = field(e, HD_BATCH_TOKENS),
                                        .targets = field(e, HD_BATCH_TARGETS),
                                        .positions = field(e, HD_BATCH_POSITIONS),
                                        .index = field(e, HD_BATCH_INDEX),
                                        .bounds = field(e, HD_BATCH_BOUNDS),
                                        .begins = field(e, HD_BATCH_BEGINS),
                                        .lengths = field(e, HD_BATCH_LENGTHS),
                                        .answers = field(e, HD_BATCH_ANSWERS),
                                        .answer_ends = true};
    const int64_t count = e->data.validations[0].window_count;
    enum hd_status st = HD_OK;

    for (int64_t first = 0; !st && first < count; first += e->batch) {
        if (!tell(e, false, first, count))
            return hd_err(HD_ABORTED, "interrupted after %lld of %lld windows", (long long)first,
                          (long long)count);
        st = hd_validation_fill(&e->data.validations[0], first, e->batch, &batch);
        if (!st)
            count_bytes(e, batch.targets);
        if (!st && batch.positions)
            hd_data_move_positions(batch.positions, e->batch * e->context,
                                   hd_job_first_position(&e->model.job));
        if (!st)
            st = hd_run(e->model.open.runner, e->bound);
        if (!st)
            st = hd_runner_synchronize(e->model.open.runner);
    }
    return st;
}

static struct hd_step_state *block_of(const struct evaluation *e)
{
    return (struct hd_step_state *)(e->model.open.memory.base +
                                    e->model.registry.global_offset[HD_GLOBAL_STEP_STATE]);
}

static enum hd_status evaluate(struct evaluation *e, struct hd_evaluation *ret)
{
    struct hd_step_state *block = block_of(e);
    const struct hd_validation *v = &e->data.validations[0];
    enum hd_status st;

    *block = (struct hd_step_state){.loss_scale = 1};
    st = measure_tokens(e);
    if (!st)
        st = evaluate_windows(e);
    if (st)
        return st;
    if (!block->target_count)
        return hd_err(HD_INVALID,
                      hd_job_is_reward(&e->job)
                          ? "the data has no pair that fits the window of %lld tokens"
                          : "the data has no target in windows of %lld tokens: each of its tokens "
                            "ends a document",
                      (long long)v->context);
    *ret =
        (struct hd_evaluation){.loss = block->loss_sum / (double)block->target_count,
                               .targets = block->target_count,
                               .bytes = e->bytes,
                               .windows = v->window_count,
                               .all_windows = v->packing ? hd_packing_get_facts(v->packing)->windows
                                                         : (v->range.count - 1) / v->context,
                               .context = v->context,
                               .is_checkpoint = e->model.is_checkpoint,
                               .step = e->model.step};
    if (hd_job_is_reward(&e->job)) {
        const double pairs = (double)block->target_count;

        ret->targets = 0;
        ret->pairs = (struct hd_pair_result){.count = block->target_count,
                                             .margin = block->margin_sum / pairs,
                                             .accuracy = block->correct_pairs / pairs,
                                             .reward = block->reward_sum / pairs};
    }
    memcpy(ret->set, e->set, sizeof ret->set);
    (void)snprintf(ret->precision, sizeof ret->precision, "%s",
                   hd_job_precision_words[e->model.job.precision]);
    if (!isfinite(ret->loss))
        return hd_err(
            HD_CORRUPT,
            "the loss is not finite; the weights are damaged or have diverged: see heddle "
            "checkpoint verify, or take an older checkpoint");
    return HD_OK;
}

enum hd_status hd_evaluate(const struct hd_evaluation_options *options,
                           struct hd_evaluation *ret_evaluation)
{
    struct evaluation *e = calloc(1, sizeof *e);
    struct hd_error error;
    enum hd_status st;

    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory for an evaluation");
    e->options = options;
    hd_inference_rank_init(&e->model, options->backend, options->threads);
    st = hd_inference_rank_read_job(&e->model, &options->dirs);
    if (!st)
        st = hd_inference_rank_choose_precision(&e->model.job, options->precision);
    if (!st)
        st = choose_window_length(e);
    if (!st) {
        e->job = e->model.job;
        e->job.threads = options->threads;
        st = complete_job(e);
    }
    if (!st)
        st = choose_files(e);
    if (!st)
        st = open_data(e);
    if (!st)
        st = load(e);
    if (!st)
        st = evaluate(e, ret_evaluation);
    hd_err_save(st, &error);
    hd_job_data_close(&e->data);
    hd_job_tokenizer_close(&e->tokenizer);
    if (e->tokens[0])
        (void)hd_file_remove_tree(e->tokens); /* a failure only wastes disk space */
    hd_inference_rank_done(&e->model);
    free(e);
    return st ? hd_err_restore(&error) : HD_OK;
}
