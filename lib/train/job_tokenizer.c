#include "train/job_tokenizer.h"

#include <string.h>

static enum hd_status open_tokenizer(struct hd_job_tokenizer *t, const struct hd_job *job)
{
    enum hd_status st = t->opened ? HD_OK : hd_tokenizer_open(job->tokenizer, &t->opened);

    return st ? hd_err_prefix(st, "data.tokenizer") : HD_OK;
}

static enum hd_status resolve_once(struct hd_job_tokenizer *t, const struct hd_job *job)
{
    enum hd_status st = open_tokenizer(t, job);

    if (!st && !t->resolved)
        st = hd_special_resolve(t->opened, job->from_dir, &t->special);
    t->resolved |= !st;
    return st;
}

enum hd_status hd_job_tokenizer_need(struct hd_job_tokenizer *t, const struct hd_job *job,
                                     const struct hd_tokenizer **ret_tokenizer)
{
    enum hd_status st = open_tokenizer(t, job);

    if (!st && job->vocab < hd_tokenizer_vocab(t->opened) && !hd_job_vocab_is_given(job))
        st = hd_err(HD_INVALID, "model.vocab: %lld is less than the %d tokens of %s",
                    (long long)job->vocab, (int)hd_tokenizer_vocab(t->opened), job->tokenizer);
    *ret_tokenizer = t->opened;
    return st;
}

enum hd_status hd_job_tokenizer_end_of_text(struct hd_job_tokenizer *t, const struct hd_job *job,
                                            int64_t *ret_id)
{
    const struct hd_special_token *end = &t->special.end;
    enum hd_status st;

    *ret_id = job->end_of_text;
    if (job->end_of_text != -2)
        return HD_OK;
    *ret_id = -1;
    if (strcmp(job->tokenizer, "none") == 0)
        return HD_OK;
    st = resolve_once(t, job);
    if (st)
        return st;
    if (end->id >= job->vocab)
        return hd_err(HD_INVALID,
                      "data.end_of_text: auto is '%.64s' by %s, which is token %d, and model.vocab "
                      "has %lld; write the id of another token, or none, or use a tokenizer.json "
                      "that has this token among the model's",
                      hd_tokenizer_content(t->opened, end->id), end->file, (int)end->id,
                      (long long)job->vocab);
    *ret_id = end->id;
    return HD_OK;
}

enum hd_status hd_job_tokenizer_special(struct hd_job_tokenizer *t, const struct hd_job *job,
                                        const struct hd_special **ret_special)
{
    *ret_special = &t->special;
    return resolve_once(t, job);
}

/* Appends a note if the tokenizer has tokens for which the model has no embedding row. */
static void note_rows(const struct hd_job_tokenizer *t, const struct hd_job *job,
                      struct hd_text *ret_text)
{
    const int64_t tokens = hd_tokenizer_vocab(t->opened);

    if (job->vocab >= tokens)
        return;
    hd_text_add(ret_text,
                "data.tokenizer: the model has rows for %lld tokens, and %s has %lld: a text with "
                "one of the others, such as '%.64s', is refused\n",
                (long long)job->vocab, job->tokenizer, (long long)tokens,
                hd_tokenizer_content(t->opened, (int32_t)tokens - 1));
}

enum hd_status hd_job_tokenizer_notes(struct hd_job_tokenizer *t, const struct hd_job *job,
                                      struct hd_text *ret_text)
{
    enum hd_status st;

    if (strcmp(job->tokenizer, "none") == 0 || strcmp(job->tokenizer, "bytes") == 0)
        return HD_OK;
    st = resolve_once(t, job);
    if (st)
        return st;
    hd_text_add(ret_text, "%s", t->special.notes);
    if (job->end_of_text == -2 && t->special.end.id < 0) {
        hd_text_add(ret_text, "data.end_of_text: ");
        hd_special_explain_end(
            t->opened, "data.end_of_text with the id of that token, or with none", ret_text);
        hd_text_add(ret_text, "\n");
    }
    note_rows(t, job, ret_text);
    return ret_text->failed ? hd_err(HD_NO_MEMORY, "no memory for notes") : HD_OK;
}

void hd_job_tokenizer_close(struct hd_job_tokenizer *t)
{
    hd_tokenizer_close(t->opened);
    t->opened = NULL;
    t->resolved = false;
}
