/* samples: `heddle-worker samples`, shows what the ranks of a job will read: how many sequences an
 * epoch has, how full they are, and the samples themselves with the tokens that count for the loss.
 * Texts are tokenized into a temporary folder, exactly as ranks tokenize them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "data/packing.h"
#include "data/tokenize.h"
#include "flags/flags.h"
#include "job/choice_sets.h"
#include "job/rewards.h"
#include "records/kind.h"
#include "train/answer_texts.h"
#include "train/exam.h"
#include "train/job_chat.h"
#include "train/job_data.h"
#include "train/prompt_rows.h"
#include "train/prompts.h"
#include "worker/worker.h"

enum { SAMPLES_MAX = 100000 };

struct samples {
    struct hd_arena arena;
    struct hd_job job;
    struct hd_job_tokenizer tokenizer;
    struct hd_token_cache cache;
    struct hd_bad_rows bad; /* records that cannot be used */
    struct hd_job_data data;
    char folder[128]; /* temporary folder; "": none */
    int64_t first, count;
    bool only_facts, only_questions, as_json, colour;
    int64_t
        every; /* --sample: one record in so many is encoded, and nothing else done; 0: not given */
    /* document 2 k - 1 of a sample is the chosen answer of pair k, document 2 k the rejected one */
    bool is_pairs;
    /* [context], buffers for the tokens, targets and document bounds of one sample */
    int32_t *tokens, *targets, *bounds;
};

/* true: the work is to stop; set by the signal handler, which does nothing else */
static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

static bool goes_on(void *context, int64_t done_bytes, int64_t total_bytes)
{
    (void)context, (void)done_bytes, (void)total_bytes;
    return !stop;
}

/* ---- the job ---- */

static enum hd_status read_job_from_stdin(struct samples *s)
{
    struct hd_text text = {0};
    char buffer[4096];
    size_t n;
    enum hd_status st;

    while ((n = fread(buffer, 1, sizeof buffer, stdin)) > 0)
        hd_text_add_bytes(&text, buffer, n);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for the samples of a job")
                     : hd_job_read(text.data ? text.data : "", text.len_bytes, &s->arena, &s->job);
    hd_text_free(&text);
    return st;
}

/* Removes files of plain text from the job: only conversations have facts that need their
 * tokens. */
static enum hd_status leave_out_text(struct samples *s)
{
    struct hd_job *job = &s->job;
    const int64_t each = hd_job_weights_each(job);
    int64_t kept = 0, source = -1, before = -1;
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < job->train_count; i++) {
        struct hd_job_file file = job->train[i];
        enum hd_chat_form form = HD_CHAT_TEXT;

        st = hd_job_form(job, file.path, &form);
        if (form == HD_CHAT_TEXT && hd_data_kind_of(file.path) != HD_DATA_BIN)
            continue;
        if (file.source != before && job->weight_count)
            memmove(job->weights + (source + 1) * each, job->weights + file.source * each,
                    (size_t)each * sizeof *job->weights);
        source += file.source != before;
        before = file.source;
        file.source = source;
        job->train[kept++] = file;
    }
    job->train_count = kept;
    job->weight_count = job->weight_count ? source + 1 : 0;
    for (int64_t k = 0; *job->data_stages && k < job->weight_count; k++)
        job->weights[k] = 1; /* facts are of the sources: a stage may have none of those left */
    job->data_stages = "";
    kept = 0;
    for (int64_t i = 0; !st && i < job->val_count; i++) {
        enum hd_chat_form form = HD_CHAT_TEXT;

        st = hd_job_form(job, job->val[i].path, &form);
        if (form != HD_CHAT_TEXT)
            job->val[kept++] = job->val[i];
    }
    job->val_count = kept;
    job->validate_batches = 0;
    return st;
}

static enum hd_status make_folder(struct samples *s)
{
    const char *tmp = getenv("TMPDIR");

    (void)snprintf(s->folder, sizeof s->folder, "%.90s/heddle-samples-XXXXXX",
                   tmp && *tmp ? tmp : "/tmp");
    if (mkdtemp(s->folder))
        return HD_OK;
    s->folder[0] = '\0';
    return hd_err(hd_file_write_status(errno), "cannot make a temporary folder: %s; set TMPDIR",
                  strerror(errno));
}

static enum hd_status open_data(struct samples *s)
{
    const struct hd_token_cache_watch watch = {.world = 1, .alive = goes_on, .bad = &s->bad};
    struct hd_job *job = &s->job;
    enum hd_status st;

    if (hd_job_has_policy(job))
        return hd_err(HD_UNSUPPORTED,
                      "the data of train.objective: %s are prompts, of which there are no "
                      "samples; heddle samples shows answers of a run",
                      hd_job_objective_words[job->objective]);
    st = make_folder(s);
    if (st)
        return st;
    st = hd_job_print_text(job, &job->attempt_dir, "%s/attempt", s->folder);
    if (st)
        return st;
    if (job->threads < 1)
        job->threads = sysconf(_SC_NPROCESSORS_ONLN);
    st = hd_token_cache_fill(job, &s->tokenizer, &watch, &s->arena, &s->cache);
    /* counts are of the training data only; the validation conversations were checked just now */
    if (s->only_facts)
        job->val_count = 0;
    return st || !job->train_count
               ? st
               : hd_job_data_open(job, &s->tokenizer, &s->cache, &s->arena, &s->data);
}

/* ---- facts ---- */

/* Adds the forms of the files, such as "messages" and "sharegpt". */
static void add_forms(const struct samples *s, struct hd_json_writer *w)
{
    hd_json_begin(w, "forms", '[');
    for (int f = 0; f <= HD_CHAT_TEXT; f++)
        if (s->cache.train_forms >> f & 1)
            hd_json_add_string(w, NULL, hd_chat_form_name((enum hd_chat_form)f));
    hd_json_end(w, ']');
}

static void add_facts(const struct samples *s, struct hd_json_writer *w)
{
    const struct hd_packing_facts p = hd_job_data_packing(&s->data);

    hd_json_begin(w, "epoch", '{');
    add_forms(s, w);
    hd_json_add_int64(w, "sequences", s->data.sampler.window_count);
    hd_json_add_int64(w, "packed_sequences", p.windows);
    hd_json_add_int64(w, p.pairs ? "pairs" : "conversations", p.conversations);
    if (hd_job_is_unpaired(&s->job)) {
        hd_json_add_int64(w, "desirable", p.desirable);
        hd_json_add_int64(w, "undesirable", p.undesirable);
        hd_json_add_int64(w, "lone_sequences", p.lone);
    }
    hd_json_add_int64(w, "tokens", p.tokens);
    hd_json_add_int64(w, "targets", p.targets);
    hd_json_add_int64(w, "rows", p.windows * p.context);
    hd_json_add_int64(w, "longest", p.longest);
    hd_json_add_int64(w, "dropped", p.dropped);
    hd_json_add_int64(w, "cut", p.cut);
    hd_json_add_int64(w, "spell_special_tokens", s->cache.spelled);
    hd_json_add_int64(w, "left_out", s->bad.count);
    hd_json_end(w, '}');
}

/* ---- samples ---- */

/* Appends the text of `count` token ids, with control characters made printable. */
static enum hd_status add_token_text(const struct samples *s, const int32_t *ids, int64_t count,
                                     struct hd_text *ret_text)
{
    struct hd_utf8_printer printer = {0};
    struct hd_text bytes = {0};
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < count; i++) {
        if (s->tokenizer.opened)
            st = hd_tokenizer_decode_next(s->tokenizer.opened, ids[i], &bytes);
        else
            hd_text_add(ret_text, "%d ", (int)ids[i]);
    }
    if (!st)
        hd_utf8_printer_add(&printer, bytes.data ? bytes.data : "", bytes.len_bytes, ret_text);
    hd_utf8_printer_end(&printer, ret_text);
    hd_text_free(&bytes);
    return st;
}

/* Returns true if token j of the sample counts for the loss: it is the target of the row before
 * it. */
static bool counts(const struct samples *s, int64_t first, int64_t j)
{
    return j > first && s->targets[j - 1] != HD_DATA_TARGET_NONE;
}

/* Appends rows [first, end) as text; runs of tokens that count for the loss are marked. */
static enum hd_status show_rows(const struct samples *s, int64_t first, int64_t end,
                                struct hd_text *out)
{
    enum hd_status st = HD_OK;

    for (int64_t j = first, next; !st && j < end; j = next) {
        const bool marked = counts(s, first, j);

        for (next = j + 1; next < end && counts(s, first, next) == marked;)
            next++;
        hd_text_add(out, "%s", !marked ? "" : s->colour ? "\033[1;32m" : "\u27E6");
        st = add_token_text(s, s->tokens + j, next - j, out);
        hd_text_add(out, "%s", !marked ? "" : s->colour ? "\033[0m" : "\u27E7");
    }
    return st;
}

/* Adds one document of a sample, rows [first, end), as JSON. number: the document's number in its
 * sample, from 1. */
static enum hd_status write_rows(const struct samples *s, int64_t first, int64_t end,
                                 int64_t number, struct hd_json_writer *w)
{
    struct hd_text text = {0};
    enum hd_status st = add_token_text(s, s->tokens + first, end - first, &text);

    hd_json_begin(w, NULL, '{');
    if (s->is_pairs) {
        hd_json_add_int64(w, "pair", (number + 1) / 2);
        hd_json_add_string(w, "answer", number % 2 ? "chosen" : "rejected");
    }
    hd_json_begin(w, "ids", '[');
    for (int64_t j = first; j < end; j++)
        hd_json_add_int64(w, NULL, s->tokens[j]);
    hd_json_end(w, ']');
    hd_json_begin(w, "counts", '[');
    for (int64_t j = first; j < end; j++)
        hd_json_add_int64(w, NULL, counts(s, first, j));
    hd_json_end(w, ']');
    hd_json_add_string(w, "text", text.data ? text.data : "");
    hd_json_end(w, '}');
    hd_text_free(&text);
    return st;
}

/* Returns the end of the document that begins at row `first`. */
static int64_t document_end(const struct samples *s, int64_t first)
{
    int64_t end = first + 1;

    while (end < s->job.context && s->bounds[end] == s->bounds[first])
        end++;
    return end;
}

/* Returns the first row of padding, which is a document of zeros without targets at the end of a
 * packed window. */
static int64_t padding_of(const struct samples *s, int64_t sample)
{
    const struct hd_packed *packed;
    int64_t source, rows = 0;
    const struct hd_sampler *sampler =
        hd_job_data_sampler(&s->data, hd_batch_spans_step_of(&s->data.sampler.batches, sample) + 1);
    const int64_t window = hd_sampler_window(sampler, sample, &source);
    const struct hd_packing *packing = sampler->sources[source].packing;

    if (!packing)
        return s->job.context;
    for (int64_t n = hd_packing_window(packing, window, &packed); n > 0; n--)
        rows += packed++->count;
    return rows;
}

/* Returns whether rows [first, end) are in place of an answer that a rated record does not have. */
static bool is_absent(const struct samples *s, int64_t first, int64_t end)
{
    for (int64_t j = first; j < end; j++)
        if (s->targets[j] != HD_DATA_TARGET_NONE)
            return false;
    return hd_job_is_unpaired(&s->job);
}

static enum hd_status show_sample(struct samples *s, int64_t sample, struct hd_json_writer *w,
                                  struct hd_text *out)
{
    const struct hd_batch_spans *batches = &s->data.sampler.batches;
    const int64_t step = hd_batch_spans_step_of(batches, sample);
    const int64_t S = s->job.context, end = padding_of(s, sample);
    const struct hd_data_batch batch = {
        .tokens = s->tokens, .targets = s->targets, .bounds = s->bounds};
    int64_t targets = 0, number = 0;
    enum hd_status st = hd_sampler_fill(hd_job_data_sampler(&s->data, step + 1), step,
                                        sample - hd_batch_spans_before(batches, step), 1, &batch);

    for (int64_t j = 0; !st && j < S; j++)
        targets += s->targets[j] != HD_DATA_TARGET_NONE;
    if (s->as_json) {
        hd_json_begin(w, NULL, '{');
        hd_json_add_int64(w, "sample", sample);
        hd_json_add_int64(w, "rows", S);
        hd_json_add_int64(w, "filled", end);
        hd_json_add_int64(w, "targets", targets);
        hd_json_begin(w, "documents", '[');
    } else {
        hd_text_add(out, "sample %lld: %lld of %lld rows filled, %lld tokens count for the loss\n",
                    (long long)sample, (long long)end, (long long)S, (long long)targets);
    }
    for (int64_t first = 0, next; !st && first < end; first = next) {
        next = document_end(s, first);
        number++;
        if (is_absent(s, first, next))
            continue;
        if (s->as_json) {
            st = write_rows(s, first, next, number, w);
            continue;
        }
        if (s->is_pairs)
            hd_text_add(out, "--- %s %lld, %s, %lld tokens\n",
                        hd_job_is_unpaired(&s->job) ? "record" : "pair",
                        (long long)(number + 1) / 2, number % 2 ? "chosen" : "rejected",
                        (long long)(next - first));
        else
            hd_text_add(out, "--- document %lld, %lld tokens\n", (long long)number,
                        (long long)(next - first));
        st = show_rows(s, first, next, out);
        hd_text_add(out, "\n");
    }
    if (s->as_json) {
        hd_json_end(w, ']');
        hd_json_end(w, '}');
    }
    return st;
}

static enum hd_status show_samples(struct samples *s, struct hd_text *out)
{
    struct hd_json_writer w = {.out = out};
    enum hd_status st = HD_OK;

    if (s->only_facts) {
        hd_json_begin(&w, NULL, '{');
        add_facts(s, &w);
        hd_json_end(&w, '}');
        hd_text_add(out, "\n");
        return st;
    }
    if (s->as_json) {
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "api_version", "heddle/v1");
        hd_json_add_string(&w, "kind", "SampleList");
        hd_json_begin(&w, "items", '[');
    }
    for (int64_t i = s->first; !st && i < s->first + s->count; i++)
        st = show_sample(s, i, &w, out);
    if (s->as_json) {
        hd_json_end(&w, ']');
        hd_json_end(&w, '}');
        hd_text_add(out, "\n");
    }
    return st;
}

/* Encodes one record in `every` of a file of conversations, as a rank would all of them. */
static enum hd_status check_sample(struct samples *s, struct hd_job_chat *chat, const char *path)
{
    const struct hd_tokenizer *tokenizer;
    struct hd_conversation_rules rules;
    enum hd_chat_form form = HD_CHAT_TEXT;
    struct hd_tokenize how = {.inputs = &path,
                              .input_count = 1,
                              .vocab = s->job.vocab,
                              .rows = hd_job_rows(&s->job),
                              .bad = &s->bad,
                              .every = s->every,
                              .format = HD_TOKEN_FORMAT_COUNTS,
                              .threads = (int)s->job.threads};
    enum hd_status st = hd_job_form(&s->job, path, &form);

    if (st || form == HD_CHAT_TEXT)
        return st;
    st = hd_job_tokenizer_need(&s->tokenizer, &s->job, &tokenizer);
    if (!st)
        st = hd_job_chat_rules(chat, &s->tokenizer, &s->job, form, &rules);
    how.tokenizer = tokenizer;
    how.conversations = &rules;
    how.end_of_text = st ? -1 : rules.end_of_text;
    return st ? st : hd_tokenize_run(&how, NULL);
}

/* Checks a sample of all conversations of the job, and writes how large it is. */
static enum hd_status check_samples(struct samples *s, struct hd_text *out)
{
    struct hd_job_chat chat = {.opened = NULL};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    enum hd_status st = HD_OK;

    s->job.threads = cores < 1                         ? 1
                     : cores < HD_TOKENIZE_THREADS_MAX ? cores
                                                       : HD_TOKENIZE_THREADS_MAX;
    for (int64_t i = 0; !st && i < s->job.train_count; i++)
        st = check_sample(s, &chat, s->job.train[i].path);
    for (int64_t i = 0; !st && i < s->job.val_count; i++)
        st = check_sample(s, &chat, s->job.val[i].path);
    hd_job_chat_close(&chat);
    hd_text_add(out, "{\"epoch\":{\"sampled_one_in\":%lld,\"left_out\":%lld}}\n",
                (long long)s->every, (long long)s->bad.count);
    return st;
}

/* Gives the job the sizes of the first span of data.stages, whose samples are shown. */
static enum hd_status take_first_span(struct samples *s)
{
    const struct hd_job whole = s->job;
    struct hd_data_span span;
    enum hd_status st = hd_job_at_step(&whole, 1, &s->job, &span);

    if (st || !hd_job_has_spans(&whole) || s->first + s->count <= span.end * s->job.global_batch)
        return st;
    return hd_err(HD_INVALID,
                  "--first: samples are shown of the first stages with one context, to step %lld: "
                  "0 to %lld",
                  (long long)span.end, (long long)(span.end * s->job.global_batch - s->count));
}

static enum hd_status write_samples(struct samples *s, struct hd_text *out)
{
    enum hd_status st = s->only_facts && s->job.epochs == 0 ? leave_out_text(s) : HD_OK;
    size_t S;

    if (!st && !s->only_facts)
        st = take_first_span(s);
    S = (size_t)s->job.context;
    if (s->every)
        return st ? st : check_samples(s, out);
    if (!st && (s->job.train_count || s->job.val_count))
        st = open_data(s);
    if (!st && !s->job.train_count) {
        hd_text_add(out, "{}\n");
        return HD_OK;
    }
    if (!st && !s->only_facts && !s->tokenizer.opened && strcmp(s->job.tokenizer, "none") != 0) {
        const struct hd_tokenizer *unused;

        st = hd_job_tokenizer_need(&s->tokenizer, &s->job, &unused);
    }
    s->tokens = calloc(S, sizeof *s->tokens);
    s->targets = calloc(S, sizeof *s->targets);
    s->bounds = calloc(S, sizeof *s->bounds);
    if (!st && (!s->tokens || !s->targets || !s->bounds))
        st = hd_err(HD_NO_MEMORY, "no memory for the samples of a job");
    return st ? st : show_samples(s, out);
}

/* Reads the questions of validate.choices as a rank does, and writes how many there are. */
static enum hd_status check_questions(struct samples *s, struct hd_text *out)
{
    struct hd_exams *exams = calloc(1, sizeof *exams);
    enum hd_status st = exams ? hd_exams_open(&s->job, &s->tokenizer, exams)
                              : hd_err(HD_NO_MEMORY, "no memory for the samples of a job");

    for (int64_t k = 0; !st && k < exams->count; k++) {
        const struct hd_exam *e = &exams->list[k];

        hd_text_add(out, "validate.choices.%s: %lld question%s, %lld choices in %lld sequences",
                    e->name, (long long)e->questions, e->questions == 1 ? "" : "s",
                    (long long)e->count, (long long)e->window_count);
        if (e->cut)
            hd_text_add(out, "; %lld longer than model.context: their beginning is left out",
                        (long long)e->cut);
        hd_text_add(out, "\n");
    }
    if (exams)
        hd_exams_close(exams);
    free(exams);
    return st;
}

/* Reads the prompts of validate.samples as a rank does, and writes how many there are. */
static enum hd_status check_prompts(struct samples *s, struct hd_text *out)
{
    struct hd_prompts *prompts = calloc(1, sizeof *prompts);
    int64_t longest = 0;
    enum hd_status st = prompts ? hd_prompts_open(&s->job, &s->tokenizer, prompts)
                                : hd_err(HD_NO_MEMORY, "no memory for the samples of a job");

    for (int64_t i = 0; !st && i < prompts->count; i++)
        longest = prompts->list[i].count > longest ? prompts->list[i].count : longest;
    if (!st && prompts->count)
        hd_text_add(out, "validate.samples: %lld prompt%s, of at most %lld tokens\n",
                    (long long)prompts->count, prompts->count == 1 ? "" : "s", (long long)longest);
    if (prompts)
        hd_prompts_close(prompts);
    free(prompts);
    return st;
}

/* Writes how many rows lack the column with which a builtin reward compares, and what that does. */
static enum hd_status add_rows_without(const struct hd_prompt_rows *rows, const char *key,
                                       const char *field, const char *effect, struct hd_text *out)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 16, .depth_max = 32};
    enum hd_status st = HD_OK;
    int64_t without = 0;

    for (int64_t i = 0; !st && i < rows->count; i++) {
        const struct hd_json *root, *right;
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        st = hd_json_parse_line(&arena, rows->rows[i].line, strlen(rows->rows[i].line), &limits,
                                &root);
        right = st ? NULL : hd_json_member(root, field);
        without += !right || (right->kind != HD_JSON_NUMBER && right->kind != HD_JSON_STRING);
        hd_arena_done(&arena);
    }
    if (!st && without)
        hd_text_add(
            out,
            "%s: %lld of %lld rows have no number or text in a column `%s`: their answers %s\n",
            key, (long long)without, (long long)rows->count, field, effect);
    return st;
}

/* Encodes each prompt with an empty answer for the reward model as a rank does, and writes which ones leave
 * no room for the longest answers. */
static enum hd_status check_reward_model(const struct hd_job *job,
                                         const struct hd_prompt_rows *rows, struct hd_text *out)
{
    struct hd_answer_texts texts;
    struct hd_id_list ids = {0};
    int64_t long_ones = 0;
    enum hd_status st = hd_answer_texts_open(job, &texts);

    for (int64_t i = 0; !st && i < rows->count; i++) {
        ids.count = 0;
        st = hd_answer_texts_encode(&texts, rows->rows[i].line, "", &ids);
        long_ones += (int64_t)ids.count + job->rollout_max_tokens > texts.job.context;
    }
    if (!st && long_ones)
        hd_text_add(
            out,
            "train.rewards.model: behind %lld of %lld prompts the reward model, which reads "
            "%lld tokens here, has no room for the longest answers: these get no reward\n",
            (long long)long_ones, (long long)rows->count, (long long)texts.job.context);
    hd_id_list_free(&ids);
    hd_answer_texts_close(&texts);
    return st;
}

/* Returns the rows that a rollout takes in the mean: one for each prompt, or, of the share of gkd in which
 * rows have the answers, one for each answer. */
static double rows_of_rollout(const struct hd_job *job)
{
    const double written = job->objective == HD_JOB_OBJECTIVE_GKD ? job->distill_on_policy : 1;

    return (double)job->rollout_prompts * (written + (1 - written) * (double)job->rollout_group);
}

/* Reads the prompts that the model is to answer as a rank does, and writes what there is. */
static enum hd_status check_rows(struct samples *s, struct hd_text *out)
{
    struct hd_rewards rewards = {.count = 0};
    struct hd_prompt_rows rows;
    enum hd_status st = hd_rewards_read("train.rewards", s->job.rewards, &s->arena, &rewards);

    if (st)
        return st;
    st = hd_prompt_rows_open(&s->job, &s->tokenizer, NULL, NULL, &rows);
    if (!st) {
        hd_text_add(out, "data.train: %lld prompt%s, the longest of %lld tokens",
                    (long long)rows.count, rows.count == 1 ? "" : "s", (long long)rows.longest);
        if (rows.dropped)
            hd_text_add(out, "; data.too_long: %lld are left out", (long long)rows.dropped);
        hd_text_add(out, "; %.3g passes over them in %lld steps\n",
                    (double)((s->job.steps - 1) / s->job.rollout_updates + 1) *
                        rows_of_rollout(&s->job) / (double)rows.count,
                    (long long)s->job.steps);
        if (!rows.stops.count)
            hd_text_add(out,
                        "no token ends an answer, so that each has train.rollout.max_tokens; give "
                        "train.rollout.stop or data.end_of_text\n");
    }
    if (!st && hd_job_has_reward_model(&s->job))
        st = check_reward_model(&s->job, &rows, out);
    for (int64_t k = 0; !st && k < rewards.count; k++)
        if (*rewards.list[k].field) /* other kinds than exact and number compare with no column */
            st = add_rows_without(&rows, "train.rewards", rewards.list[k].field,
                                  "get no reward, and are not trained on", out);
    hd_prompt_rows_close(&rows);
    return st;
}

/* Reads the tasks of a file of validate.tasks as a rank does, and writes what there is. */
static enum hd_status check_tasks_of(struct samples *s, int64_t index, struct hd_text *out)
{
    const char *const key = hd_choice_set_key(HD_QUESTIONS_TASKS);
    struct hd_rewards rewards = {.count = 0};
    struct hd_choice_set set;
    struct hd_prompt_rows rows = {.count = 0};
    enum hd_status st = hd_choice_set_read(&s->job, HD_QUESTIONS_TASKS, index, &set);

    if (!st)
        st = hd_rewards_read("validate.tasks.check", s->job.tasks_check, &s->arena, &rewards);
    if (!st)
        st = hd_prompt_rows_open_tasks(&s->job, index, &s->tokenizer, NULL, NULL, &rows);
    if (!st)
        hd_text_add(out, "%s.%s: %lld task%s, the longest of %lld tokens%s\n", key, set.name,
                    (long long)rows.count, rows.count == 1 ? "" : "s", (long long)rows.longest,
                    rows.stops.count ? ""
                                     : "; no token ends an answer, so that each has "
                                       "validate.tasks.tokens; give data.end_of_text");
    for (int64_t k = 0; !st && k < rewards.count; k++)
        if (*rewards.list[k].field)
            st = add_rows_without(&rows, key, rewards.list[k].field, "count as wrong", out);
    hd_prompt_rows_close(&rows);
    return st;
}

static enum hd_status check_all_tasks(struct samples *s, struct hd_text *out)
{
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < hd_choice_set_count(&s->job, HD_QUESTIONS_TASKS); i++)
        st = check_tasks_of(s, i, out);
    return st;
}

static enum hd_status read_samples_options(int argc, char **argv, struct samples *s)
{
    struct hd_flag f[] = {HD_FLAG_INT64("--count", s->count, 1, SAMPLES_MAX),
                          HD_FLAG_INT64("--first", s->first, 0, INT64_C(1) << 40),
                          HD_FLAG_SWITCH("--json", s->as_json),
                          HD_FLAG_SWITCH("--colour", s->colour),
                          HD_FLAG_SWITCH("--facts", s->only_facts),
                          HD_FLAG_INT64("--sample", s->every, 1, INT64_C(1) << 40),
                          HD_FLAG_SWITCH("--questions", s->only_questions)};

    s->count = 3;
    return HD_FLAGS_READ(argc, argv, f);
}

static void done(struct samples *s)
{
    free(s->tokens);
    free(s->targets);
    free(s->bounds);
    hd_job_data_close(&s->data);
    hd_job_tokenizer_close(&s->tokenizer);
    hd_bad_rows_free(&s->bad);
    hd_arena_done(&s->arena);
}

int hd_worker_samples(int argc, char **argv)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct samples s = {.count = 0};
    struct hd_text out = {0};
    struct hd_error story;
    enum hd_status st;

    hd_arena_init(&s.arena, 0);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    st = read_samples_options(argc, argv, &s);
    if (!st)
        st = read_job_from_stdin(&s);
    s.is_pairs = !st && hd_job_has_pairs(&s.job);
    if (!st)
        st = s.only_questions ? check_questions(&s, &out) : write_samples(&s, &out);
    if (!st && s.only_questions)
        st = check_prompts(&s, &out);
    if (!st && s.only_questions && hd_job_has_policy(&s.job))
        st = check_rows(&s, &out);
    if (!st && s.only_questions)
        st = check_all_tasks(&s, &out);
    hd_err_save(st, &story);
    if (s.bad.count)
        hd_worker_list_bad(&s.bad);
    done(&s);
    if (*s.folder)
        (void)hd_file_remove_tree(s.folder); /* best effort: a leftover only uses disk space */
    st = st ? hd_err_restore(&story) : HD_OK;
    return hd_worker_finish("samples", hd_worker_print(st, &out));
}
