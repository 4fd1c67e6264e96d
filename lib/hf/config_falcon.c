/* config_falcon: keys of a config.json of Falcon. Its class has three layouts of a block, which differ
 * in the number of key/value heads and in the norms before parallel branches; in all of them the rows
 * of query_key_value are those of by_heads (hf_internal.h). */
#include <string.h>

#include "hf/config_internal.h"

void hd_hf_set_falcon_defaults(struct hd_hf_reading *r)
{
    r->falcon.multi_query = r->falcon.parallel = true;
}

/* Returns the value of model.parallel_residual; NULL: the class has no such block. */
static const char *branches_of(const struct hd_hf_reading *r)
{
    const int64_t norms = r->falcon.norms ? r->falcon.norms : r->falcon.grouped ? 2 : 1;

    if (!r->falcon.parallel)
        return r->falcon.grouped ? NULL : "none";
    if (norms > 2 || (norms == 2 && !r->falcon.grouped))
        return NULL;
    return norms == 2 ? "two_norms" : "one_norm";
}

enum hd_status hd_hf_take_falcon(struct hd_hf_reading *r)
{
    struct hd_job *job = r->job;
    const char *branches = branches_of(r);

    if (!hd_hf_reads(r->family, "new_decoder_architecture"))
        return HD_OK;
    if (!branches)
        return hd_err(
            HD_UNSUPPORTED,
            "num_ln_in_parallel_attn, parallel_attn: transformers has no such block; with "
            "new_decoder_architecture: true one or two norms and parallel_attn: true are "
            "supported, else one norm");
    if (!r->falcon.grouped && !r->falcon.multi_query && r->falcon.kv_heads &&
        r->falcon.kv_heads != job->heads)
        return hd_err(HD_UNSUPPORTED, "num_kv_heads: without new_decoder_architecture and "
                                      "multi_query it can only be num_attention_heads");
    job->parallel_residual = branches;
    if (r->falcon.grouped)
        job->kv_heads = r->falcon.kv_heads ? r->falcon.kv_heads : job->heads;
    else
        job->kv_heads = r->falcon.multi_query ? 1 : job->heads;
    if (!job->ffn_hidden)
        job->ffn_hidden = 4 * job->hidden;
    if (r->falcon.alibi)
        job->positions = HD_JOB_POSITIONS_ALIBI;
    return HD_OK;
}

bool hd_hf_has_falcon_heads(const struct hd_job *job)
{
    return strcmp(job->parallel_residual, "none") != 0 || job->kv_heads == 1 ||
           job->kv_heads == job->heads;
}

void hd_hf_describe_falcon(struct hd_json_writer *w, const struct hd_job *job)
{
    const bool parallel = strcmp(job->parallel_residual, "none") != 0;
    const bool two = strcmp(job->parallel_residual, "two_norms") == 0;
    const bool multi_query = job->kv_heads == 1;
    const bool grouped = two || (parallel && !multi_query && job->kv_heads != job->heads);

    hd_json_add_bool(w, "new_decoder_architecture", grouped);
    hd_json_add_bool(w, "multi_query", multi_query);
    hd_json_add_int64(w, "num_kv_heads", job->kv_heads);
    hd_json_add_bool(w, "parallel_attn", parallel);
    if (parallel)
        hd_json_add_int64(w, "num_ln_in_parallel_attn", two ? 2 : 1);
    hd_json_add_bool(w, "alibi", job->positions == HD_JOB_POSITIONS_ALIBI);
    hd_json_add_bool(w, "bias", job->qkv_bias);
}
