/* vocab: model.vocab by the tokenizer: its default, and the check that it covers all ids. */
#include <inttypes.h>

#include "spec_internal.h"
#include "tokenizer/count.h"

/* The default is rounded up, so that the rows of the embedding and of the head divide among 2 to 64
 * ranks of tensor parallelism, and fill the tiles of matrix kernels. */
enum { VOCAB_MULTIPLE = 64 };

enum hd_status spec_fill_vocab(struct spec_draft *draft, struct hd_text *notes)
{
    struct hd_job *job = draft->job;
    const bool distills = (job->distill_write || hd_job_has_teacher(job)) && !job->distill_vocab;
    int32_t ids = 0;
    enum hd_status st;

    if (job->tokenizer[0] != '/' || (hd_job_vocab_is_given(job) && !distills))
        return HD_OK;
    st = hd_tokenizer_count_ids(job->tokenizer, &ids);
    if (!st && distills)
        job->distill_vocab = ids;
    if (hd_job_vocab_is_given(job))
        return HD_OK; /* heddle-worker says more about a tokenizer's mistakes */
    if (st && job->vocab)
        return HD_OK; /* heddle-worker opens the tokenizer and says more about its mistakes */
    if (st)
        return hd_err_prefix(st == HD_NO_MEMORY ? st : HD_INVALID, "data.tokenizer");
    if (job->vocab && job->vocab < ids)
        return hd_err(HD_INVALID,
                      "model.vocab: %" PRId64 " is less than the %d tokens of data.tokenizer = %s; "
                      "write at least that, or remove the line",
                      job->vocab, (int)ids, job->tokenizer);
    if (job->vocab)
        return HD_OK;
    job->vocab = (ids + VOCAB_MULTIPLE - 1) / VOCAB_MULTIPLE * VOCAB_MULTIPLE;
    if (notes)
        hd_text_add(notes,
                    "model.vocab: %" PRId64 ": the tokenizer has %d ids, rounded up to a multiple "
                    "of %d\n",
                    job->vocab, (int)ids, VOCAB_MULTIPLE);
    return HD_OK;
}
