#include "train/job_tokenizer.h"

#include <string.h>

static enum hd_status open_once(struct hd_job_tokenizer *t, const struct hd_job *job)
{
    enum hd_status st = t->opened ? HD_OK : hd_tokenizer_open(job->tokenizer, &t->opened);

    return st ? hd_err_prefix(st, "data.tokenizer") : HD_OK;
}

enum hd_status hd_job_tokenizer_need(struct hd_job_tokenizer *t, const struct hd_job *job,
                                     const struct hd_tokenizer **ret_tokenizer)
{
    enum hd_status st = open_once(t, job);

    if (!st && job->vocab < hd_tokenizer_vocab(t->opened))
        st = hd_err(HD_INVALID, "model.vocab: %lld is less than the %d tokens of %s",
                    (long long)job->vocab, (int)hd_tokenizer_vocab(t->opened), job->tokenizer);
    *ret_tokenizer = t->opened;
    return st;
}

enum hd_status hd_job_tokenizer_end_of_text(struct hd_job_tokenizer *t, const struct hd_job *job,
                                            int64_t *ret_id)
{
    enum hd_status st;

    *ret_id = job->end_of_text;
    if (job->end_of_text != -2)
        return HD_OK;
    *ret_id = -1;
    if (strcmp(job->tokenizer, "none") == 0)
        return HD_OK;
    st = open_once(t, job);
    if (!st)
        *ret_id = hd_tokenizer_end_of_text(t->opened);
    return st;
}

void hd_job_tokenizer_close(struct hd_job_tokenizer *t)
{
    hd_tokenizer_close(t->opened);
    t->opened = NULL;
}
