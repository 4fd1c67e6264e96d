/* conversations: finds which data files hold conversations, and the chat template that they
 * need. */
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "chat/date.h"
#include "chat/model.h"
#include "data/data.h"
#include "data/lines.h"
#include "spec_internal.h"

/* Returns the form of conversations that data.format names. */
static enum hd_chat_form form_of(const struct hd_job *job)
{
    enum hd_chat_form form = HD_CHAT_AUTO;

    (void)hd_chat_form_find(hd_job_data_format_words[job->data_format],
                            &form); /* check.c has checked the words */
    return form;
}

static struct hd_row_rules rows_of(const struct hd_job *job)
{
    return (struct hd_row_rules){
        .columns = job->columns, .roles = job->roles, .bad_rows = job->bad_rows};
}

static enum hd_status look_at_tokens(const char *path, bool *ret_conversations)
{
    const struct hd_corpus_file file = {.path = path, .size_bytes = -1};
    struct hd_corpus *corpus = NULL;
    const enum hd_status st = hd_corpus_open(&file, 1, &corpus);

    if (!st)
        *ret_conversations = strcmp(hd_corpus_kind(corpus), "conversations") == 0;
    hd_corpus_close(corpus);
    return st;
}

/* Checks that a file has records, of which the first is a prompt. */
static enum hd_status look_at_prompts(const struct hd_job *job, const char *path, bool has_records)
{
    static const struct hd_json_limits limits = {.values_max = 4096, .depth_max = 16};
    const struct hd_json *root;
    struct hd_lines lines;
    struct hd_arena arena;
    bool there = false;
    enum hd_status st;

    if (!has_records)
        return hd_err(HD_INVALID,
                      "%s has no records, and train.objective: %s needs prompts: a .jsonl, "
                      ".parquet or the like with prompt, or messages, and what rewards read",
                      path, hd_job_objective_words[job->objective]);
    st = hd_lines_open(&lines, path, job->columns, 16 << 20);
    do
        st = st ? st : hd_lines_next(&lines, &there);
    while (!st && there && hd_lines_is_blank(&lines));
    hd_arena_init(&arena, 0);
    if (!st && !there)
        st = hd_err(HD_INVALID, "%s has no record", path);
    if (!st) {
        st = hd_json_parse_line(&arena, lines.line.data, lines.line.len_bytes, &limits, &root);
        if (st)
            st = hd_err_prefix(st, "%s:%s%lld", path, hd_lines_unit(&lines),
                               (long long)lines.number);
    }
    if (!st && !hd_json_member(root, "prompt") && !hd_json_member(root, "messages"))
        st = hd_err(HD_INVALID,
                    "%s:%s%lld: has neither `prompt` nor `messages`, and train.objective: %s "
                    "answers prompts; rename a column, or say which it is: data.columns: "
                    "{prompt: NAME}",
                    path, hd_lines_unit(&lines), (long long)lines.number,
                    hd_job_objective_words[job->objective]);
    hd_arena_done(&arena);
    hd_lines_close(&lines);
    return st;
}

enum hd_status spec_look_at_form(const struct hd_job *job, const char *path, enum hd_data_kind kind,
                                 bool *ret_conversations)
{
    const bool has_records = hd_data_kind_has_records(kind);
    const struct hd_row_rules rows = rows_of(job);
    enum hd_chat_form wanted = form_of(job), form = HD_CHAT_TEXT;
    enum hd_status st = HD_OK;

    *ret_conversations = false;
    if (hd_job_has_policy(job)) {
        *ret_conversations = true;
        return look_at_prompts(job, path, has_records);
    }
    if (hd_job_has_pairs(job)) {
        const bool unpaired = hd_job_is_unpaired(job);

        *ret_conversations = true;
        return has_records
                   ? hd_jsonl_look(path, &rows, unpaired ? HD_CHAT_UNPAIRED : HD_CHAT_PREFERENCE,
                                   &form)
                   : hd_err(HD_INVALID,
                            "%s has no records, and train.objective: %s needs %s answers: a "
                            ".jsonl, .parquet or the like with prompt, %s",
                            path, hd_job_objective_words[job->objective],
                            unpaired ? "rated" : "pairs of",
                            unpaired ? "completion and label" : "chosen and rejected");
    }
    if (hd_data_is_tokens(path))
        return look_at_tokens(path, ret_conversations);
    if (has_records) {
        st = hd_jsonl_look(path, &rows, wanted, &form);
        *ret_conversations = !st && form != HD_CHAT_TEXT;
        return st;
    }
    if (wanted == HD_CHAT_AUTO || wanted == HD_CHAT_TEXT)
        return HD_OK;
    return hd_err(
        HD_INVALID,
        "%s has no records, and data.format: %s names conversations, one in each line of a "
        ".jsonl, or row of a .parquet or the like",
        path, hd_job_data_format_words[job->data_format]);
}

/* Looks at one file of each source, as all others are like it (need_sequence). */
static bool any_talks(const struct hd_job *job, const struct hd_job_file *files, int64_t count)
{
    struct hd_data_facts facts;
    bool any = false;

    for (int64_t i = 0; !any && i < count; i++)
        if ((!i || files[i].source != files[i - 1].source) && !hd_data_look(files[i].path, &facts))
            (void)spec_look_at_form(job, files[i].path, facts.kind, &any);
    return any;
}

bool hd_spec_has_conversations(const struct hd_job *job)
{
    return any_talks(job, job->train, job->train_count) || any_talks(job, job->val, job->val_count);
}

/* Sets the job's chat template: data.template, else that of model.from, else none. */
static enum hd_status find_template(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    struct hd_text path = {0};
    enum hd_status st = HD_OK;

    if (*job->template)
        return spec_make_absolute(job, &job->template, "data.template", folder);
    if (*job->from_dir)
        st = hd_chat_find(job->from_dir, &path);
    if (!st && path.len_bytes && hd_job_take_text(job, &job->template, &path) == HD_NO_MEMORY)
        st = HD_NO_MEMORY;
    hd_text_free(&path);
    return st ? hd_err_prefix(st, "model.from") : HD_OK;
}

enum hd_status spec_refuse_unused(struct spec_draft *draft)
{
    const struct hd_job *job = draft->job;
    const char *key = *job->template                               ? "data.template"
                      : *job->date                                 ? "data.date"
                      : *job->roles                                ? "data.roles"
                      : job->data_loss != HD_JOB_DATA_LOSS_ANSWERS ? "data.loss"
                      : job->too_long != HD_JOB_TOO_LONG_ERROR     ? "data.too_long"
                                                                   : NULL;

    if (!key)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s: no file of this job has conversations, so it would change nothing; remove "
                  "the line, or name files of conversations in data.train",
                  key);
}

enum hd_status spec_set_text_identity(struct spec_draft *draft)
{
    struct hd_job *job = draft->job;
    const bool talks = *job->template, plain = strcmp(job->tokenizer, "bytes") == 0;
    char folder[HD_JOB_PATH_MAX];
    const struct hd_text_origin origin = {.tokenizer = job->tokenizer,
                                          .template = talks ? job->template : NULL,
                                          .folder = folder,
                                          .model_dir = job->from_dir,
                                          .format = hd_job_data_format_words[job->data_format],
                                          .loss = hd_job_data_loss_words[job->data_loss],
                                          .date = job->date};
    char identity[HD_TEXT_IDENTITY_MAX];
    uint64_t hash = 0;
    enum hd_status st;

    job->text_identity = "";
    if ((plain && !talks) || !hd_spec_has_text(job))
        return HD_OK;
    hd_job_chat_folder(job, folder);
    st = hd_text_identity(&origin, &hash);
    if (st)
        return hd_err_prefix(st, "data.tokenizer");
    hd_text_identity_format(hash, identity);
    *spec_given(draft, "data.text_identity") = true;
    return hd_job_set_text(job, &job->text_identity, identity);
}

/* Sets the date that the template gets: the job file's, else the date of submission, once for the
 * whole job. */
static enum hd_status set_date(struct spec_draft *draft, struct hd_chat *chat)
{
    struct hd_job *job = draft->job;
    char today[HD_CHAT_DATE_MAX];
    enum hd_status st = hd_chat_set_date(chat, job->date);

    if (!st && *job->date && !hd_chat_asks_date(chat))
        st = hd_err(HD_INVALID,
                    "the chat template %s does not ask for the date (strftime_now), so "
                    "it would change nothing; remove the line",
                    job->template);
    if (st)
        return hd_err_prefix(st, "data.date");
    if (*job->date || !hd_chat_asks_date(chat))
        return HD_OK;
    hd_chat_date_today(today);
    *spec_given(draft, "data.date") = true;
    return hd_job_set_text(job, &job->date, today);
}

enum hd_status spec_check_conversations(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    struct hd_chat *chat = NULL;
    char names[HD_JOB_PATH_MAX];
    enum hd_status st = find_template(draft, folder);

    if (!st && *job->template) {
        hd_job_chat_folder(job, names);
        st = hd_chat_open(job->template, *names ? names : NULL, &chat);
        if (st == HD_NOT_FOUND || st == HD_LIMIT || st == HD_IO)
            st = HD_INVALID;
        st = st ? hd_err_prefix(st, "data.template") : set_date(draft, chat);
        hd_chat_close(chat);
    } else if (!st && *job->date) {
        st = hd_err(HD_INVALID, "data.date: the conversations have no chat template that could ask "
                                "for it; remove the line");
    }
    if (!st && job->documents == HD_JOB_DOCUMENTS_JOINED)
        st =
            hd_err(HD_INVALID, "data.documents: conversations are bounded, so that none is seen by "
                               "its neighbour; remove the line");
    return st;
}
