/* data: `heddle-worker data`, describes a job's data files as JSON, for `heddle validate`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/json.h"
#include "data/survey.h"
#include "data/tokenize.h"
#include "flags/flags.h"
#include "train/job_tokenizer.h"
#include "worker/worker.h"

struct source { /* files of one source in one of the job's lists, data.train or data.val */
    char list[8];
    int64_t number;
    struct hd_corpus_file *files;
    int count, room;
};

struct data_list {
    struct hd_arena arena;
    struct hd_job job;                    /* only the keys given by flags are set */
    struct hd_job_tokenizer opened;       /* tokenizer of `job` */
    const struct hd_tokenizer *tokenizer; /* the opened tokenizer; NULL: "none" */
    struct hd_text notes;                 /* lines about the tokenizer's special tokens */
    int64_t vocab, end_of_text;           /* end_of_text -1: none */
    enum hd_chat_form form;               /* form of .jsonl files */
    /* rules for examining the files, made from the members above */
    struct hd_survey_rules rules;
    struct hd_bad_rows bad; /* bad records of all files */
    char bad_list[16];      /* key of the list that has the first of them */
    struct source *sources;
    int source_count, source_room;
};

/* Returns the source (of list `list`, with this number) that an input line names; lines of one
 * source are adjacent. */
static struct source *source_of(struct data_list *a, const char *list, int64_t number)
{
    struct source *s = a->source_count ? &a->sources[a->source_count - 1] : NULL;

    if (s && strcmp(s->list, list) == 0 && s->number == number)
        return s;
    s = hd_arena_grow(&a->arena, a->sources, a->source_count, &a->source_room, sizeof *s);
    if (!s)
        return NULL;
    a->sources = s;
    s = &a->sources[a->source_count++];
    *s = (struct source){.number = number};
    (void)snprintf(s->list, sizeof s->list, "%s", list);
    return s;
}

static enum hd_status add_line(struct data_list *a, const char *line)
{
    struct hd_corpus_file file = {.path = NULL}, *files;
    int64_t number = 0;
    struct source *s;
    char list[8];
    int path_at = 0;

    if (sscanf(line, "%7s %" SCNd64 " %" SCNd64 " %n", list, &number, &file.size_bytes, &path_at) !=
            3 ||
        !path_at)
        return hd_err(HD_INVALID, "'%.100s' is no line of LIST SOURCE BYTES PATH", line);
    s = source_of(a, list, number);
    file.path = hd_arena_strdup(&a->arena, line + path_at);
    files = s ? hd_arena_grow(&a->arena, s->files, s->count, &s->room, sizeof file) : NULL;
    if (!file.path || !files)
        return hd_err(HD_NO_MEMORY, "no memory for a list of files");
    s->files = files;
    s->files[s->count++] = file;
    return HD_OK;
}

static enum hd_status read_files(struct data_list *a)
{
    enum hd_status st = HD_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;

    while (!st && (n = getline(&line, &room, stdin)) > 0) {
        line[n - (line[n - 1] == '\n')] = '\0';
        st = add_line(a, line);
    }
    free(line);
    return st;
}

static enum hd_status read_data_options(int argc, char **argv, struct data_list *a)
{
    const char *tokenizer = NULL, *end = NULL, *form = NULL, *model = "";
    struct hd_row_rules *rows = &a->rules.rows;
    struct hd_flag f[] = {HD_FLAG_NEEDED("--tokenizer", tokenizer),
                          HD_FLAG_INT64("--vocab", a->vocab, 1, INT32_MAX, .required = true),
                          HD_FLAG_TEXT("--end-of-text", end),
                          HD_FLAG_TEXT("--form", form),
                          HD_FLAG_TEXT("--model", model),
                          HD_FLAG_TEXT("--columns", rows->columns),
                          HD_FLAG_TEXT("--roles", rows->roles),
                          HD_FLAG_TEXT("--bad-rows", rows->bad_rows)};
    enum hd_status st = HD_FLAGS_READ(argc, argv, f);

    a->form = HD_CHAT_AUTO;
    if (!st && form &&
        /* true: train.objective asks for files of preference pairs */
        strcmp(form, hd_chat_form_name(HD_CHAT_PREFERENCE)) == 0)
        a->form = HD_CHAT_PREFERENCE;
    else if (!st && form && strcmp(form, hd_chat_form_name(HD_CHAT_UNPAIRED)) == 0)
        a->form = HD_CHAT_UNPAIRED; /* train.objective asks for rated answers */
    else if (!st && form && !hd_chat_form_find(form, &a->form))
        st = hd_err(HD_INVALID, "--form: '%.40s' is no form", form);
    a->job.end_of_text = end ? -1 : -2; /* -1: none, -2: auto */
    if (!st && end && strcmp(end, "none") != 0 &&
        hd_text_to_int64(end, 0, INT32_MAX, &a->job.end_of_text))
        st = hd_err_prefix(HD_INVALID, "--end-of-text");
    if (st)
        return st;
    a->job.vocab = a->vocab;
    a->job.tokenizer = tokenizer;
    a->job.from_dir = model;
    return HD_OK;
}

/* Opens the tokenizer and finds the end-of-document token, in the same way as a rank. The caller
 * checks model.vocab, because only the caller has the whole job. */
static enum hd_status open_tokenizer(struct data_list *a)
{
    enum hd_status st = HD_OK;

    if (strcmp(a->job.tokenizer, "none") != 0) {
        a->job.vocab = INT64_MAX;
        st = hd_job_tokenizer_need(&a->opened, &a->job, &a->tokenizer);
        a->job.vocab = a->vocab;
    }
    if (!st)
        st = hd_job_tokenizer_end_of_text(&a->opened, &a->job, &a->end_of_text);
    if (!st)
        st = hd_job_tokenizer_notes(&a->opened, &a->job, &a->notes);
    return st;
}

/* Adds a member with a count to the JSON, or null if the count is -1 (unknown). */
static void add_count(struct hd_json_writer *w, const char *key, int64_t count)
{
    if (count < 0)
        hd_json_add_null(w, key);
    else
        hd_json_add_int64(w, key, count);
}

static void add_tokenizer(const struct data_list *a, struct hd_json_writer *w)
{
    hd_json_begin(w, "tokenizer", '{');
    hd_json_add_string(w, "name", a->tokenizer ? hd_tokenizer_name(a->tokenizer) : "none");
    add_count(w, "vocab", a->tokenizer ? hd_tokenizer_vocab(a->tokenizer) : -1);
    add_count(w, "end_of_text", a->end_of_text);
    hd_json_add_string(w, "notes", a->notes.data ? a->notes.data : "");
    hd_json_end(w, '}');
}

static enum hd_status add_source(struct data_list *a, const struct source *s,
                                 struct hd_json_writer *w)
{
    struct hd_survey survey;
    enum hd_status st = hd_survey_run(s->files, (size_t)s->count, &a->rules, &survey);

    if (st)
        return hd_err_prefix(st, "data.%s", s->list);
    /* records that cannot be used are told by the caller, all at once */
    if (survey.documents == 0 && survey.tokens < 0 && !a->bad.count &&
        strcmp(s->list, "train") == 0)
        return hd_err(HD_INVALID, "data.train: %s%s: there is no record to train on",
                      s->files[0].path, s->count > 1 ? " and the other files" : "");
    if (a->bad.count && !*a->bad_list)
        (void)snprintf(a->bad_list, sizeof a->bad_list, "data.%s", s->list);
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "list", s->list);
    hd_json_add_int64(w, "source", s->number);
    hd_json_add_string(w, "kind", survey.kind);
    hd_json_add_int64(w, "files", survey.files);
    hd_json_add_int64(w, "size_bytes", survey.bytes);
    add_count(w, "documents", survey.documents);
    add_count(w, "tokens", survey.tokens);
    hd_json_add_int64(w, "checked_bytes", survey.checked);
    hd_json_add_int64(w, "checked_one_in", survey.every);
    hd_json_add_int64(w, "left_out", survey.left_out);
    hd_json_end(w, '}');
    return HD_OK;
}

static void set_rules(struct data_list *a)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);

    a->rules = (struct hd_survey_rules){.tokenizer = a->tokenizer,
                                        .end_of_text = a->end_of_text,
                                        .vocab = a->vocab,
                                        .form = a->form,
                                        .rows = a->rules.rows,
                                        .bad = &a->bad,
                                        .threads = cores < 1 ? 1
                                                   : cores < HD_TOKENIZE_THREADS_MAX
                                                       ? (int)cores
                                                       : HD_TOKENIZE_THREADS_MAX,
                                        .encode_left = HD_SURVEY_ENCODE_MAX,
                                        .read_left = HD_SURVEY_READ_MAX};
}

void hd_worker_list_bad(const struct hd_bad_rows *bad)
{
    (void)fputs(bad->reasons.data ? bad->reasons.data : "", stderr);
    if (bad->count > HD_BAD_ROWS_SHOWN)
        (void)fprintf(stderr, "and %" PRId64 " others\n", bad->count - HD_BAD_ROWS_SHOWN);
}

/* Prints the records that cannot be used, and fails if the job does not leave them out. */
static enum hd_status judge_records(const struct data_list *a)
{
    struct hd_bad_rule rule;
    const enum hd_status st = hd_bad_rule_read(a->rules.rows.bad_rows, &rule);

    if (st || !a->bad.count)
        return st;
    hd_worker_list_bad(&a->bad);
    return rule.skips ? HD_OK : hd_bad_rows_judge(&a->bad, &rule, a->bad_list);
}

int hd_worker_data(int argc, char **argv)
{
    struct data_list a = {.tokenizer = NULL};
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    enum hd_status st;

    hd_arena_init(&a.arena, 0);
    hd_job_init(&a.job, &a.arena);
    st = read_data_options(argc, argv, &a);
    if (!st)
        st = open_tokenizer(&a);
    if (!st)
        st = read_files(&a);
    set_rules(&a);
    hd_json_begin(&w, NULL, '{');
    if (!st)
        add_tokenizer(&a, &w);
    hd_json_begin(&w, "sources", '[');
    for (int i = 0; !st && i < a.source_count; i++)
        st = add_source(&a, &a.sources[i], &w);
    if (!st)
        st = judge_records(&a);
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(&text, "\n");
    st = hd_worker_print(st, &text);
    hd_job_tokenizer_close(&a.opened);
    hd_text_free(&a.notes);
    hd_bad_rows_free(&a.bad);
    hd_arena_done(&a.arena);
    return hd_worker_finish("data", st);
}
