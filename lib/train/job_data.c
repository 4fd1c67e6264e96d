#include "train/job_data.h"

#include <stdlib.h>
#include <string.h>

#include "job/batch_spans.h"

/* Returns the key that names the training files. */
static const char *train_key(const struct hd_job *job)
{
    return hd_job_stage_count(job) ? "data.stages" : "data.train";
}

/* Opens a list of files as one corpus. cached: token files to read instead of the job's files;
 * NULL: none. */
static enum hd_status open_corpus(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                  const struct hd_job_file *files, int64_t count,
                                  const struct hd_corpus_file *cached, struct hd_arena *arena,
                                  struct hd_corpus **ret_corpus)
{
    struct hd_corpus_file *list = hd_arena_array(arena, (size_t)count + 1, sizeof *list);
    const struct hd_tokenizer *text_tokenizer;
    enum hd_status st;
    int64_t end = -1;

    if (!list)
        return hd_err(HD_NO_MEMORY, "no memory for %lld data files", (long long)count);
    for (int64_t i = 0; i < count; i++)
        list[i] = (struct hd_corpus_file){.path = files[i].path,
                                          .size_bytes = files[i].size_bytes,
                                          .fingerprint = files[i].fingerprint};
    st = hd_corpus_open(cached ? cached : list, (size_t)count, ret_corpus);
    if (!st && hd_corpus_has_text(*ret_corpus))
        st = hd_job_tokenizer_need(tokenizer, job, &text_tokenizer);
    if (!st)
        st = hd_corpus_set_vocab(*ret_corpus, job->vocab);
    if (st || job->documents != HD_JOB_DOCUMENTS_BOUNDED)
        return st;
    st = hd_job_tokenizer_end_of_text(tokenizer, job, &end);
    if (!st)
        hd_corpus_set_bounds(*ret_corpus, end);
    if (!st && hd_job_has_pairs(job))
        hd_corpus_set_pairs(*ret_corpus);
    if (!st && hd_job_is_unpaired(job))
        hd_corpus_set_unpaired(*ret_corpus);
    return st;
}

/* Packs the conversations in a range of a corpus into windows of `context` tokens. *ret_packing
 * stays NULL if the range is plain text. */
static enum hd_status pack(const struct hd_job *job, struct hd_data_range range, int64_t context,
                           struct hd_packing **ret_packing)
{
    const enum hd_too_long too_long = job->too_long == HD_JOB_TOO_LONG_DROP  ? HD_TOO_LONG_DROP
                                      : job->too_long == HD_JOB_TOO_LONG_CUT ? HD_TOO_LONG_CUT
                                                                             : HD_TOO_LONG_ERROR;
    bool conversations = false;
    enum hd_status st = hd_data_range_form(range, &conversations);

    if (!st && !conversations && hd_job_has_pairs(job))
        st = hd_err(HD_INVALID, "train.objective: %s needs %s",
                    hd_job_objective_words[job->objective],
                    hd_job_is_unpaired(job)
                        ? "rated answers, lines of a .jsonl with prompt, completion and label"
                        : "pairs of answers, lines of a .jsonl with prompt, chosen and rejected");
    if (st || !conversations)
        return st;
    if (!hd_corpus_is_bounded(range.corpus))
        return hd_err(HD_INVALID, "data.documents: conversations are bounded; remove the line");
    return hd_packing_new(range, context, too_long, (uint64_t)job->seed, ret_packing);
}

/* Opens the samplers of the stages of a span over the sources of d->sampler. sources: [count], their
 * indices in the job. */
static enum hd_status open_stages(const struct hd_job *job, const struct hd_data_span *span,
                                  const int64_t *sources, int64_t count, struct hd_job_data *d)
{
    const int64_t stages = span->last - span->first + 1;
    double weights[HD_JOB_SOURCES_MAX * HD_JOB_STAGES_MAX];
    int64_t first_steps[HD_JOB_STAGES_MAX];

    if (!d->stage_count)
        return HD_OK;
    d->stage_samplers = calloc((size_t)d->stage_count, sizeof *d->stage_samplers);
    if (!d->stage_samplers)
        return hd_err(HD_NO_MEMORY, "no memory for the stages of the data");
    for (int64_t s = 0; s < stages; s++) {
        first_steps[s] = hd_data_stage_begin(d->stages, span->first + s);
        for (int64_t k = 0; k < count; k++)
            weights[k * stages + s] = hd_job_weight(job, span->first + s, sources[k]);
    }
    hd_sampler_init_stages(&d->sampler, weights, first_steps, stages,
                           d->stage_samplers + span->first);
    return HD_OK;
}

const struct hd_sampler *hd_job_data_sampler(const struct hd_job_data *d, int64_t step)
{
    return d->stage_count ? &d->stage_samplers[hd_data_stage_at(d->stages, d->stage_count, step)]
                          : &d->sampler;
}

/* Returns whether a stage of the span has the source. */
static bool is_used(const struct hd_job *job, const struct hd_data_span *span, int64_t source)
{
    bool used = !hd_job_stage_count(job);

    for (int64_t s = span->first; !used && s <= span->last; s++)
        used = hd_job_weight(job, s, source) > 0;
    return used;
}

/* Opens the sampler over all sources of the span. Files of one source are adjacent in the list. */
static enum hd_status open_sampler(const struct hd_job *job, const struct hd_data_span *span,
                                   struct hd_job_data *d)
{
    double equal[HD_JOB_SOURCES_MAX];
    const bool own_weights = job->weight_count && !hd_job_stage_count(job);
    const struct hd_batch_spans batches = hd_job_batch_spans(job);
    struct hd_data_range ranges[HD_JOB_SOURCES_MAX] = {d->train};
    const enum hd_data_order order =
        job->order == HD_JOB_ORDER_SEQUENTIAL ? HD_DATA_SEQUENTIAL : HD_DATA_SHUFFLED;
    int64_t sources[HD_JOB_SOURCES_MAX] = {0}, first = 0, end = 0, count = !job->weight_count;
    enum hd_status st;

    for (int64_t k = 0; k < HD_JOB_SOURCES_MAX; k++)
        equal[k] = 1;
    for (int64_t k = 0; k < job->weight_count; k++, first = end) {
        while (end < job->train_count && job->train[end].source == k)
            end++;
        if (!is_used(job, span, k))
            continue;
        ranges[count] = hd_corpus_files(d->train_corpus, (size_t)first, (size_t)(end - first));
        sources[count++] = k;
    }
    for (int64_t k = 0; k < count; k++) {
        st = pack(job, ranges[k], job->context, &d->packings[k]);
        if (st && job->weight_count && own_weights)
            return hd_err_prefix(st, "data.train[%lld]", (long long)k);
        if (st)
            return hd_err_prefix(st, "%s", train_key(job));
    }
    st = hd_sampler_init_mixture(&d->sampler, ranges, d->packings,
                                 own_weights ? job->weights : equal, count, job->context,
                                 job->global_batch, order, (uint64_t)job->seed);
    if (st)
        return st;
    hd_sampler_set_batches(&d->sampler, &batches);
    return open_stages(job, span, sources, count, d);
}

/* Opens the windows of the range `val` as the next validation set: its first window_limit windows;
 * 0: all. */
static enum hd_status open_windows(const struct hd_job *job, struct hd_data_range val,
                                   int64_t context, int64_t window_limit, struct hd_job_data *d)
{
    struct hd_packing **packing = &d->val_packings[d->validation_count];
    struct hd_validation *v = &d->validations[d->validation_count];
    enum hd_status st = pack(job, val, context, packing);

    if (!st)
        st = *packing ? hd_validation_init_packed(v, val, *packing, window_limit)
                      : hd_validation_init(v, val, context, window_limit);
    d->validation_count += !st;
    return st;
}

/* Opens the windows of all validation sets of data.val, whose files are adjacent in its list. */
static enum hd_status open_sets(const struct hd_job *job, struct hd_job_data *d)
{
    const int64_t limit = job->validate_batches * job->global_batch;
    char name[HD_JOB_VAL_NAME_MAX];
    enum hd_status st = HD_OK;
    int64_t first = 0, end = 0;

    for (int64_t k = 0; !st && k < hd_job_val_set_count(job); k++, first = end) {
        while (end < job->val_count && job->val[end].source == k)
            end++;
        st = open_windows(job, hd_corpus_files(d->val_corpus, (size_t)first, (size_t)(end - first)),
                          job->context, limit, d);
        hd_job_val_set_name(job, k, name);
        st = st ? hd_err_prefix(st, "data.val%s%s", *name ? "." : "", name) : HD_OK;
    }
    return st;
}

static enum hd_status open_train(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                 const struct hd_token_cache *cache, struct hd_arena *arena,
                                 struct hd_job_data *d)
{
    const enum hd_status st = open_corpus(job, tokenizer, job->train, job->train_count,
                                          cache ? cache->train : NULL, arena, &d->train_corpus);

    if (st)
        return hd_err_prefix(st, "%s", train_key(job));
    d->train = hd_corpus_all(d->train_corpus);
    return HD_OK;
}

/* Opens the validation data: files of its own, or the end of the training data, which must be open;
 * ret_val stays empty if the job has neither. */
static enum hd_status open_val(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                               const struct hd_token_cache *cache, struct hd_arena *arena,
                               struct hd_job_data *d, struct hd_data_range *ret_val)
{
    enum hd_status st;

    if (!job->val_count)
        return job->val_split > 0 ? hd_corpus_split(d->train_corpus, job->val_split, job->context,
                                                    &d->train, ret_val)
                                  : HD_OK;
    st = open_corpus(job, tokenizer, job->val, job->val_count, cache ? cache->val : NULL, arena,
                     &d->val_corpus);
    if (!st)
        *ret_val = hd_corpus_all(d->val_corpus);
    return st;
}

/* Frees what open_sampler and open_windows have made. */
static void close_samplers(struct hd_job_data *d)
{
    for (int i = 0; i < HD_JOB_SOURCES_MAX; i++)
        hd_packing_free(d->packings[i]);
    for (int i = 0; i < HD_JOB_VAL_SETS_MAX; i++)
        hd_packing_free(d->val_packings[i]);
    free(d->stage_samplers);
}

/* Opens the data of the job's other spans and closes them, so that a run does not end at the first
 * step of a later span because a source has no whole window for it. */
static enum hd_status try_other_spans(const struct hd_job *job, const struct hd_data_span *mine,
                                      const struct hd_job_data *d)
{
    struct hd_data_span span;
    enum hd_status st = HD_OK;

    for (int64_t k = 0; !st && k < d->stage_count; k = span.last + 1) {
        struct hd_job_data *other;
        struct hd_job now = *job;

        span = hd_data_span_of(d->stages, d->stage_count, k, job->steps);
        if (!d->stages[k].context || span.first == mine->first)
            continue;
        now.context = d->stages[k].context;
        now.global_batch = d->stages[k].global_batch;
        other = calloc(1, sizeof *other);
        if (!other)
            return hd_err(HD_NO_MEMORY, "no memory for the stages of the data");
        other->train_corpus = d->train_corpus;
        other->val_corpus = d->val_corpus;
        other->train = d->train;
        other->stage_count = d->stage_count;
        memcpy(other->stages, d->stages, sizeof other->stages);
        st = open_sampler(&now, &span, other);
        if (!st && job->val_count && job->validate_batches)
            st = open_sets(&now, other);
        if (st)
            st = hd_err_prefix(st, "data.stages[%lld]", (long long)k);
        close_samplers(other);
        free(other);
    }
    return st;
}

static enum hd_status open_job_data(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                    const struct hd_token_cache *cache,
                                    const struct hd_data_span *span, struct hd_arena *arena,
                                    struct hd_job_data *ret_data)
{
    struct hd_job_data *d = ret_data;
    struct hd_data_range val = {0};
    enum hd_status st;

    *d = (struct hd_job_data){.validation_count = 0};
    if (hd_job_has_policy(job)) /* its data are prompts (prompt_rows.h) */
        return HD_OK;
    st = hd_data_stages_read(job, d->stages, &d->stage_count);
    if (st)
        return st;
    st = open_train(job, tokenizer, cache, arena, d);
    if (st)
        return st;
    st = open_val(job, tokenizer, cache, arena, d, &val);
    if (st)
        return job->val_count ? hd_err_prefix(st, "data.val") : st;
    st = try_other_spans(job, span, d);
    if (!st)
        st = open_sampler(job, span, d);
    if (st || !val.corpus || !job->validate_batches)
        return st;
    return job->val_count
               ? open_sets(job, d)
               : open_windows(job, val, job->context, job->validate_batches * job->global_batch, d);
}

enum hd_status hd_job_data_open_validation(const struct hd_job *job,
                                           struct hd_job_tokenizer *tokenizer,
                                           const struct hd_token_cache *cache, int64_t context,
                                           int64_t window_limit, struct hd_arena *arena,
                                           struct hd_job_data *ret_data)
{
    struct hd_job_data *d = ret_data;
    struct hd_data_range val = {0};
    enum hd_status st = HD_OK;

    *d = (struct hd_job_data){.validation_count = 0};
    if (!job->val_count)
        st = open_train(job, tokenizer, cache, arena, d);
    if (!st)
        st = open_val(job, tokenizer, cache, arena, d, &val);
    return st ? st : open_windows(job, val, context, window_limit, d);
}

enum hd_status hd_job_data_open_span(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                     const struct hd_token_cache *cache,
                                     const struct hd_data_span *span, struct hd_arena *arena,
                                     struct hd_job_data *ret_data)
{
    struct hd_job_tokenizer own = {.opened = NULL};
    enum hd_status st =
        open_job_data(job, tokenizer ? tokenizer : &own, cache, span, arena, ret_data);

    hd_job_tokenizer_close(&own);
    return st;
}

enum hd_status hd_job_data_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                const struct hd_token_cache *cache, struct hd_arena *arena,
                                struct hd_job_data *ret_data)
{
    struct hd_job now;
    struct hd_data_span span;
    const enum hd_status st = hd_job_at_step(job, 1, &now, &span);

    return st ? st : hd_job_data_open_span(&now, tokenizer, cache, &span, arena, ret_data);
}

struct hd_packing_facts hd_job_data_packing(const struct hd_job_data *d)
{
    struct hd_packing_facts all = {.windows = 0};

    for (int k = 0; k < HD_JOB_SOURCES_MAX; k++) {
        const struct hd_packing_facts *one =
            d->packings[k] ? hd_packing_get_facts(d->packings[k]) : NULL;

        if (!one)
            continue;
        all.context = one->context;
        all.windows += one->windows;
        all.conversations += one->conversations;
        all.pairs |= one->pairs;
        all.desirable += one->desirable;
        all.undesirable += one->undesirable;
        all.lone += one->lone;
        all.tokens += one->tokens;
        all.targets += one->targets;
        all.too_long += one->too_long;
        all.dropped += one->dropped;
        all.cut += one->cut;
        all.silent += one->silent;
        all.longest = one->longest > all.longest ? one->longest : all.longest;
    }
    return all;
}

static void describe_packing(const struct hd_packing_facts *p, struct hd_text *ret_text)
{
    const bool rated = p->desirable + p->undesirable > 0;

    if (rated)
        hd_text_add(ret_text, "; %lld desirable and %lld undesirable answers",
                    (long long)p->desirable, (long long)p->undesirable);
    hd_text_add(ret_text, "%s%lld %s fill %.1f%% of their rows, %lld tokens count for the loss",
                rated ? " in " : "; ", (long long)p->conversations,
                rated      ? "records"
                : p->pairs ? "pairs of answers"
                           : "conversations",
                100.0 * (double)p->tokens / ((double)p->windows * (double)p->context),
                (long long)p->targets);
    if (p->dropped)
        hd_text_add(ret_text, ", %lld too long were left out", (long long)p->dropped);
    if (p->cut)
        hd_text_add(ret_text, ", %lld too long were cut", (long long)p->cut);
}

enum { PASSES_USUAL = 4 };

/* Appends how often the run goes over its data, and a warning where that is often: a model that has
 * read a text a few times begins to learn it by heart (Muennighoff et al. 2023, "Scaling
 * Data-Constrained Language Models"). */
static void describe_passes(double passes, struct hd_text *ret_text)
{
    hd_text_add(ret_text,
                passes < 9.95 ? ", which the run reads %.1f times"
                              : ", which the run reads %.0f times",
                passes);
    if (passes > PASSES_USUAL)
        hd_text_add(ret_text,
                    " (more than %d: it may learn them by heart; watch the validation loss)",
                    PASSES_USUAL);
}

void hd_job_data_describe(const struct hd_job_data *d, int64_t windows, struct hd_text *ret_text)
{
    const struct hd_packing_facts packing = hd_job_data_packing(d);
    size_t files;

    if (!d->train_corpus) {
        hd_text_add(ret_text, "training on answers that the model writes");
        return;
    }
    files = hd_corpus_file_count(d->train_corpus);

    hd_text_add(ret_text, "training on %lld tokens (%s, %zu file%s", (long long)d->train.count,
                hd_corpus_kind(d->train_corpus), files, files == 1 ? "" : "s");
    if (d->sampler.mixture.count > 1)
        hd_text_add(ret_text, ", %lld sources", (long long)d->sampler.mixture.count);
    if (d->stage_count)
        hd_text_add(ret_text, ", %lld stages", (long long)d->stage_count);
    hd_text_add(ret_text, "): %lld sequences an epoch", (long long)d->sampler.window_count);
    if (d->sampler.mixture.count <= 1 && !d->stage_count && d->sampler.window_count)
        describe_passes((double)windows / (double)d->sampler.window_count, ret_text);
    hd_text_add(ret_text, ", documents %s",
                hd_corpus_is_bounded(d->train_corpus) ? "bounded" : "joined");
    if (packing.windows)
        describe_packing(&packing, ret_text);
    if (d->validation_count)
        hd_text_add(ret_text, "; validation on %lld sequences",
                    (long long)hd_job_data_validation_windows(d));
    if (d->validation_count > 1)
        hd_text_add(ret_text, " of %lld sets", (long long)d->validation_count);
}

int64_t hd_job_data_validation_windows(const struct hd_job_data *d)
{
    int64_t sum = 0;

    for (int64_t k = 0; k < d->validation_count; k++)
        sum += d->validations[k].window_count;
    return sum;
}

void hd_job_data_close(struct hd_job_data *data)
{
    close_samplers(data);
    hd_corpus_close(data->train_corpus);
    hd_corpus_close(data->val_corpus);
    *data = (struct hd_job_data){.validation_count = 0};
}

enum hd_status hd_job_data_check(const struct hd_job_data *data)
{
    enum hd_status st = data->train_corpus ? hd_corpus_check(data->train_corpus) : HD_OK;

    return !st && data->val_corpus ? hd_corpus_check(data->val_corpus) : st;
}
