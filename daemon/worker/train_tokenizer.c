/* train_tokenizer: `heddle-worker train-tokenizer`, makes a byte-level BPE from text files. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "data/data.h"
#include "data/tokenize.h"
#include "flags/flags.h"
#include "records/kind.h"
#include "records/source.h"
#include "tokenizer/bpe_train.h"
#include "worker/worker.h"

enum { PROGRESS_MS = 200, LINE_MS = 10000, INTERRUPTED = 130, TERMINATED = 143, BYTE_TOKENS = 256 };

/* Most bytes of the table of words; merging them takes up to ten times their bytes. */
#define WORDS_BYTES_MAX (UINT64_C(1) << 30)

static const char default_special[] = "<|endoftext|>";

struct tokenizer_training {
    const char *out, *bos, *eos, *pad;
    const char *specials[HD_BPE_TRAIN_SPECIALS_MAX];
    int special_count;
    bool as_json, forces;
    struct hd_bpe_training how;
    struct hd_word_counts words;
    int64_t begin_ms, last_ms; /* times of the clock: beginning of the phase; last progress line */
    bool shown;
};

/* ---- progress ---- */

/* Prints a line of progress if it is time for one. Returns false after a signal. */
static bool show(struct tokenizer_training *t, const char *line)
{
    const bool is_terminal = isatty(STDERR_FILENO);

    t->last_ms = hd_clock_now_ms();
    t->shown = is_terminal;
    (void)fprintf(stderr, "%s%s%s", is_terminal ? "\r\033[K" : "", line, is_terminal ? "" : "\n");
    return !hd_worker_stop_signal();
}

static bool is_line_due(const struct tokenizer_training *t)
{
    return hd_clock_now_ms() - t->last_ms >= (isatty(STDERR_FILENO) ? PROGRESS_MS : LINE_MS);
}

static bool show_counting(void *context, const struct hd_tokenize_counts *c)
{
    struct tokenizer_training *t = context;
    const int64_t spent = hd_clock_now_ms() - t->begin_ms;
    char line[160], done[32], total[32], rate[32];

    if (hd_worker_stop_signal())
        return false;
    if (!is_line_due(t) || !spent)
        return true;
    hd_text_format_bytes(c->read_bytes, done);
    hd_text_format_bytes(c->total_bytes, total);
    hd_text_format_bytes((int64_t)((double)c->read_bytes * 1000 / (double)spent), rate);
    (void)snprintf(line, sizeof line, "counting words: %s of %s, %s/s, %lld different", done, total,
                   rate, (long long)t->words.used);
    return show(t, line);
}

static bool show_merging(void *context, int32_t ids, int32_t vocab)
{
    struct tokenizer_training *t = context;
    char line[96];

    if (hd_worker_stop_signal())
        return false;
    if (!is_line_due(t))
        return true;
    (void)snprintf(line, sizeof line, "merging: %d of %d tokens", (int)ids, (int)vocab);
    return show(t, line);
}

/* ---- options ---- */

/* Moves each "--special TOKEN" out of argv[0..*argc) into t->specials. */
static enum hd_status take_specials(struct tokenizer_training *t, int *argc, char **argv)
{
    int kept = 0;

    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], "--special") != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (i + 1 == *argc)
            return hd_err(HD_INVALID, "--special needs a value");
        if (t->special_count == HD_BPE_TRAIN_SPECIALS_MAX - 4)
            return hd_err(HD_LIMIT, "--special: more than %d tokens",
                          HD_BPE_TRAIN_SPECIALS_MAX - 4);
        t->specials[t->special_count++] = argv[++i];
    }
    *argc = kept;
    return HD_OK;
}

static bool has_special(const struct tokenizer_training *t, const char *token)
{
    for (int i = 0; i < t->special_count; i++)
        if (strcmp(t->specials[i], token) == 0)
            return true;
    return false;
}

static enum hd_status check_special(const char *flag, const char *token)
{
    if (!*token)
        return hd_err(HD_INVALID, "%s: an empty token; give a text such as %s", flag,
                      default_special);
    if (!hd_text_is_utf8(token, strlen(token)))
        return hd_err(HD_INVALID, "%s: the token is not UTF-8", flag);
    if (strlen(token) > 1024)
        return hd_err(HD_LIMIT, "%s: a token of more than 1024 bytes", flag);
    return HD_OK;
}

/* Adds the tokens that begin, end and fill texts to the special tokens; without any special token
 * there is <|endoftext|>, which ends texts. */
static enum hd_status choose_specials(struct tokenizer_training *t)
{
    const struct {
        const char *flag, *token;
    } named[] = {{"--bos", t->bos}, {"--eos", t->eos}, {"--pad", t->pad}};
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < t->special_count; i++) {
        st = check_special("--special", t->specials[i]);
        for (int k = 0; !st && k < i; k++)
            if (strcmp(t->specials[k], t->specials[i]) == 0)
                st = hd_err(HD_INVALID, "--special: %s is given twice", t->specials[i]);
    }
    for (int i = 0; !st && i < 3; i++) {
        st = named[i].token ? check_special(named[i].flag, named[i].token) : HD_OK;
        if (!st && named[i].token && !has_special(t, named[i].token))
            t->specials[t->special_count++] = named[i].token;
    }
    if (!st && !t->special_count)
        t->specials[t->special_count++] = default_special;
    if (!st && !t->eos && has_special(t, default_special))
        t->eos = default_special;
    if (!st && !t->eos && t->special_count == 1)
        t->eos = t->specials[0];
    if (!st && !t->eos)
        st = hd_err(HD_INVALID, "--eos: is missing; say which of the special tokens ends a text");
    t->how.specials = t->specials;
    t->how.special_count = t->special_count;
    if (!st && t->how.vocab < BYTE_TOKENS + t->special_count)
        st =
            hd_err(HD_INVALID,
                   "--vocab: %d has no space for %d bytes and %d special token%s; give at least %d",
                   (int)t->how.vocab, BYTE_TOKENS, t->special_count,
                   t->special_count == 1 ? "" : "s", BYTE_TOKENS + t->special_count);
    return st;
}

static enum hd_status choose_pattern(const char *name, enum hd_word_pattern *ret_pattern)
{
    *ret_pattern = HD_WORDS_CL100K;
    for (int i = 0; name && i < HD_WORD_PATTERNS; i++)
        if (strcmp(name, hd_word_pattern_names[i]) == 0) {
            *ret_pattern = (enum hd_word_pattern)i;
            return HD_OK;
        }
    return name ? hd_err(HD_INVALID, "--pattern: '%.40s' is not cl100k or gpt2", name) : HD_OK;
}

static enum hd_status check_files(char *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (hd_data_is_tokens(inputs[i]) || hd_text_ends(inputs[i], ".idx"))
            return hd_err(HD_INVALID,
                          "%s holds tokens already; a tokenizer is trained on text or records",
                          inputs[i]);
    return HD_OK;
}

static enum hd_status read_training_options(struct tokenizer_training *t, int argc, char **argv,
                                            struct hd_tokenize *ret_how)
{
    int64_t vocab = 0;
    const char *pattern = NULL;
    struct hd_tokenize how = {.end_of_text = -1,
                              .takes_messages = true,
                              .threads = hd_flags_threads(HD_TOKENIZE_THREADS_MAX)};
    struct hd_flag f[] = {
        HD_FLAG_NEEDED("--out", t->out),
        HD_FLAG_INT64("--vocab", vocab, 1, HD_BPE_TRAIN_VOCAB_MAX, .required = true),
        HD_FLAG_TEXT("--pattern", pattern),
        HD_FLAG_INT64("--min-count", t->how.min_count, 1, INT64_C(1) << 40),
        HD_FLAG_TEXT("--bos", t->bos),
        HD_FLAG_TEXT("--eos", t->eos),
        HD_FLAG_TEXT("--pad", t->pad),
        HD_FLAG_INT("--threads", how.threads, 1, HD_TOKENIZE_THREADS_MAX),
        HD_FLAG_TEXT("--columns", how.rows.columns),
        HD_FLAG_SWITCH("--force", t->forces),
        HD_FLAG_SWITCH("--json", t->as_json),
        HD_FLAG_TEXT("--roles", how.rows.roles),
        HD_FLAG_TEXT("--bad-rows", how.rows.bad_rows)};
    int flags = hd_flags_count(argc, argv);
    const int inputs = flags + 1;
    enum hd_status st = take_specials(t, &flags, argv);

    t->how.min_count = 2;
    if (!st)
        st = HD_FLAGS_READ(flags, argv, f);
    if (!st && inputs >= argc)
        st = hd_err(HD_INVALID, "no input files; give them after --");
    if (!st)
        st = check_files(argv + inputs, argc - inputs);
    if (!st)
        st = choose_pattern(pattern, &t->how.pattern);
    if (!st && how.rows.columns)
        st = hd_err_prefix(hd_records_check_columns(how.rows.columns), "--columns");
    t->how.vocab = (int32_t)vocab;
    how.inputs = (const char *const *)argv + inputs;
    how.input_count = (size_t)(argc - inputs);
    *ret_how = how;
    return st ? st : choose_specials(t);
}

/* ---- the folder ---- */

/* Makes the folder, so that a mistake in its name shows before hours of work. Refuses to replace a
 * tokenizer, whose ids a model may have been trained on. */
static enum hd_status check_folder(const struct tokenizer_training *t)
{
    struct hd_text path = {0};
    enum hd_status st = hd_folder_path(&path, t->out, "tokenizer.json");

    if (!st && !t->forces && hd_file_exists(path.data))
        st = hd_err(HD_INVALID,
                    "%s exists; name another folder, or replace it with --force: models that were "
                    "trained with it then have other ids",
                    path.data);
    if (!st)
        st = hd_file_make_dirs(t->out, 0755);
    hd_text_free(&path);
    return st;
}

static enum hd_status write_one(const struct tokenizer_training *t, const char *name,
                                const struct hd_text *text)
{
    struct hd_text path = {0};
    enum hd_status st = hd_folder_path(&path, t->out, name);

    if (!st)
        st = hd_file_write_atomic(path.data, text->data ? text->data : "", text->len_bytes, 0644);
    hd_text_free(&path);
    return st;
}

/* Writes tokenizer.json last: without it, the folder is none of a tokenizer. */
static enum hd_status write_folder(const struct tokenizer_training *t, const struct hd_text *json)
{
    struct hd_text config = {0};
    enum hd_status st = HD_OK;

    hd_bpe_write_config(t->bos, t->eos, t->pad, &config);
    if (config.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for tokenizer_config.json");
    if (!st)
        st = write_one(t, "tokenizer_config.json", &config);
    if (!st)
        st = write_one(t, "tokenizer.json", json);
    hd_text_free(&config);
    return st;
}

/* ---- the work ---- */

static enum hd_status take_words(void *context, const int32_t *ids, size_t count)
{
    struct tokenizer_training *t = context;

    return hd_word_counts_add(&t->words, ids, count);
}

static enum hd_status print_training(const struct tokenizer_training *t,
                                     const struct hd_bpe_trained *trained,
                                     const struct hd_tokenize_counts *c, int64_t spent_ms)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    if (!t->as_json) {
        (void)printf("%s: %d tokens, %d merges, from %lld different words in %lld document%s, "
                     "%.1f s\n",
                     t->out, (int)trained->ids, (int)trained->merges, (long long)trained->words,
                     (long long)c->documents, c->documents == 1 ? "" : "s",
                     (double)spent_ms / 1000);
        return HD_OK;
    }
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "api_version", "heddle/v1");
    hd_json_add_string(&w, "kind", "Tokenizer");
    hd_json_begin(&w, "items", '[');
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "path", t->out);
    hd_json_add_int64(&w, "tokens", trained->ids);
    hd_json_add_int64(&w, "merges", trained->merges);
    hd_json_add_int64(&w, "words", trained->words);
    hd_json_add_int64(&w, "documents", c->documents);
    hd_json_add_int64(&w, "text_bytes", c->text_bytes);
    hd_json_add_int64(&w, "forgotten", t->words.forgotten);
    hd_json_end(&w, '}');
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(&text, "\n");
    return hd_worker_print(HD_OK, &text);
}

static void note_shortage(const struct tokenizer_training *t, const struct hd_bpe_trained *trained)
{
    struct hd_text note = {0};

    if (trained->ids < t->how.vocab)
        hd_text_add(&note,
                    "%d tokens instead of %d: no other pair of tokens occurs at least %lld times "
                    "in the text; give more text, or a smaller --vocab or --min-count\n",
                    (int)trained->ids, (int)t->how.vocab, (long long)t->how.min_count);
    if (t->words.forgotten)
        hd_text_add(&note,
                    "the text has more different words than the table of words holds: rare ones, "
                    "which occurred %lld times, were left out\n",
                    (long long)t->words.forgotten);
    hd_worker_note("train-tokenizer", note.data ? note.data : "");
    hd_text_free(&note);
}

static enum hd_status train_tokenizer(struct tokenizer_training *t, struct hd_tokenize *how,
                                      struct hd_bpe_trained *ret_trained,
                                      struct hd_tokenize_counts *ret_counts)
{
    struct hd_tokenizer *splitter = NULL;
    struct hd_text json = {0};
    enum hd_status st = check_folder(t);

    if (!st)
        st = hd_tokenizer_open_words(t->how.pattern, &splitter);
    how->tokenizer = splitter;
    how->take = take_words;
    how->progress = show_counting;
    how->context = t;
    how->needs_tokens = true;
    t->words.bytes_max = WORDS_BYTES_MAX;
    t->how.progress = show_merging;
    t->how.context = t;
    hd_worker_catch_stop();
    if (!st)
        st = hd_tokenize_run(how, ret_counts);
    if (!st)
        st = hd_bpe_train(&t->how, &t->words, &json, ret_trained);
    if (!st)
        st = write_folder(t, &json);
    hd_text_free(&json);
    hd_tokenizer_close(splitter);
    return st;
}

int hd_worker_train_tokenizer(int argc, char **argv)
{
    struct tokenizer_training *t = calloc(1, sizeof *t);
    struct hd_tokenize how = {.threads = 1};
    struct hd_bpe_trained trained = {.ids = 0};
    struct hd_tokenize_counts counts = {.documents = 0};
    enum hd_status st = t ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");

    if (!st)
        st = read_training_options(t, argc, argv, &how);
    if (!st) {
        t->begin_ms = t->last_ms = hd_clock_now_ms();
        st = train_tokenizer(t, &how, &trained, &counts);
        if (t->shown)
            (void)fprintf(stderr, "\r\033[K");
    }
    if (!st) {
        note_shortage(t, &trained);
        st = print_training(t, &trained, &counts, hd_clock_now_ms() - t->begin_ms);
    }
    if (t)
        hd_word_counts_free(&t->words);
    free(t);
    if (st == HD_ABORTED) {
        (void)hd_worker_finish("train-tokenizer", st);
        return hd_worker_stop_signal() == SIGTERM ? TERMINATED : INTERRUPTED;
    }
    return hd_worker_finish("train-tokenizer", st);
}
