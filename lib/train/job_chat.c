#include "train/job_chat.h"

#include <string.h>

#include "data/data.h"
#include "records/kind.h"

static enum hd_status open_template(struct hd_job_chat *c, const struct hd_job *job)
{
    char dir[HD_JOB_PATH_MAX];
    enum hd_status st;

    if (c->opened)
        return HD_OK;
    hd_job_chat_folder(job, dir);
    st = hd_chat_open(job->template, *dir ? dir : NULL, &c->opened);
    if (st)
        return hd_err_prefix(st, "data.template");
    st = hd_chat_set_date(c->opened, job->date);
    return st ? hd_err_prefix(st, "data.date") : HD_OK;
}

enum hd_status hd_job_chat_rules(struct hd_job_chat *c, struct hd_job_tokenizer *tokenizer,
                                 const struct hd_job *job, enum hd_chat_form form,
                                 struct hd_conversation_rules *ret_rules)
{
    struct hd_conversation_rules rules = {.form = form};
    enum hd_status st = open_template(c, job);

    if (!st)
        st = hd_job_tokenizer_need(tokenizer, job, &rules.tokenizer);
    if (!st)
        st = hd_job_tokenizer_end_of_text(tokenizer, job, &rules.end_of_text);
    if (st)
        return st;
    rules.chat = c->opened;
    rules.roles = job->roles;
    rules.rewards = hd_job_is_reward(job);
    rules.loss = job->data_loss == HD_JOB_DATA_LOSS_ALL    ? HD_CHAT_ALL
                 : job->data_loss == HD_JOB_DATA_LOSS_LAST ? HD_CHAT_LAST
                                                           : HD_CHAT_ANSWERS;
    *ret_rules = rules;
    return HD_OK;
}

void hd_job_chat_close(struct hd_job_chat *c)
{
    hd_chat_close(c->opened);
    c->opened = NULL;
}

struct hd_row_rules hd_job_rows(const struct hd_job *job)
{
    return (struct hd_row_rules){
        .columns = job->columns, .roles = job->roles, .bad_rows = job->bad_rows};
}

enum hd_status hd_job_form(const struct hd_job *job, const char *path, enum hd_chat_form *ret_form)
{
    const struct hd_row_rules rows = hd_job_rows(job);
    enum hd_chat_form form = HD_CHAT_TEXT;

    *ret_form = HD_CHAT_TEXT;
    if (!hd_data_has_records(path))
        return HD_OK;
    if (hd_job_has_pairs(job))
        return hd_jsonl_look(
            path, &rows, hd_job_is_unpaired(job) ? HD_CHAT_UNPAIRED : HD_CHAT_PREFERENCE, ret_form);
    if (!hd_chat_form_find(hd_job_data_format_words[job->data_format], &form) ||
        form == HD_CHAT_TEXT)
        return HD_OK;
    return hd_jsonl_look(path, &rows, form, ret_form);
}
