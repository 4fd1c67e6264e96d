/* further: the layers that predict further tokens (model.mtp) in files of DeepSeek V3 and GLM-4.5.
 * Layer k of ours is their layer L + k, for a model of L blocks: a block with the names of any other,
 * and four tensors of its own. Their files also have copies of the embedding and of the head in each
 * of these layers, which are not read; an export has them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/hf_internal.h"

#define ROW(our, their)                          \
    {                                            \
        .ours = our, .theirs = their, .parts = 1 \
    }
static const struct hd_hf_row own_rows[] = {
    ROW("mtp.#.embedding_norm.weight", "layers.#.enorm.weight"),
    ROW("mtp.#.hidden_norm.weight", "layers.#.hnorm.weight"),
    ROW("mtp.#.projection.weight", "layers.#.eh_proj.weight"),
    ROW("mtp.#.head_norm.weight", "layers.#.shared_head.norm.weight"),
};
static const struct hd_hf_row copy_rows[] = {
    ROW("embedding.weight", "layers.#.embed_tokens.weight"),
    ROW("head.weight", "layers.#.shared_head.head.weight"),
};

bool hd_hf_names_further(const struct hd_family *family)
{
    return (family->names == HD_NAMES_DEEPSEEK || family->names == HD_NAMES_GLM4_MOE) &&
           hd_hf_reads(family, "num_nextn_predict_layers");
}

bool hd_hf_is_further(const char *ours)
{
    return hd_text_starts(ours, "mtp.");
}

const struct hd_hf_row *hd_hf_further_rows(size_t *ret_count)
{
    *ret_count = sizeof own_rows / sizeof own_rows[0];
    return own_rows;
}

const struct hd_hf_row *hd_hf_further_copies(size_t *ret_count)
{
    *ret_count = sizeof copy_rows / sizeof copy_rows[0];
    return copy_rows;
}

static const struct hd_hf_row *find_pattern(const struct hd_hf_row *rows, size_t count,
                                            const struct hd_job *job, const char *ours,
                                            int64_t *ret_layer)
{
    for (size_t i = 0; i < count; i++)
        if (hd_hf_is_row_of(&rows[i], job) && hd_hf_name_matches(rows[i].ours, ours, ret_layer))
            return &rows[i];
    return NULL;
}

const struct hd_hf_row *hd_hf_find_row(const struct hd_hf_row *rows, size_t count,
                                       const struct hd_job *job, const char *ours,
                                       int64_t *ret_layer)
{
    const struct hd_hf_row *row;
    char name[HD_CKPT_NAME_MAX];
    char *end;
    long long depth;

    if (!hd_hf_is_further(ours))
        return find_pattern(rows, count, job, ours, ret_layer);
    if (!hd_hf_names_further(hd_family_named(job->family)))
        return NULL;
    depth = strtoll(ours + strlen("mtp."), &end, 10);
    row = find_pattern(own_rows, sizeof own_rows / sizeof own_rows[0], job, ours, ret_layer);
    if (!row) {
        (void)snprintf(name, sizeof name, "blocks.%lld%s", depth, end);
        row = find_pattern(rows, count, job, name, ret_layer);
    }
    *ret_layer += job->layers;
    return row;
}

void hd_hf_format_ours(const struct hd_hf_row *row, const struct hd_job *job, int64_t layer,
                       char ret_name[HD_CKPT_NAME_MAX])
{
    static const char blocks[] = "blocks.#";

    if (layer >= job->layers && hd_text_starts(row->ours, blocks))
        (void)snprintf(ret_name, HD_CKPT_NAME_MAX, "mtp.%lld%s", (long long)(layer - job->layers),
                       row->ours + strlen(blocks));
    else
        hd_hf_format_name(row->ours, layer >= job->layers ? layer - job->layers : layer, 0,
                          ret_name);
}
