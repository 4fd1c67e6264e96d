/* further: the layers that predict further tokens (model.mtp) in files of families that have names for
 * them, in one of two forms:
 *
 *   behind  DeepSeek V3, GLM-4.5: layer k of ours is their layer L + k, for a model of L blocks: a block
 *           with the names of any other, and four tensors of its own. These files also have copies of
 *           the embedding and of the head in each of these layers, which are not read; an export has
 *           them.
 *   aside   Qwen3-Next, Qwen3.5: the tensors mtp.*, without the prefix of the model's, of one layer: a
 *           block mtp.layers.0.*, and four more. Files with several layers share the four among them,
 *           which ours do not; they are not read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/hf_internal.h"

#define ASIDE "mtp."

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
static const struct hd_hf_row aside_rows[] = {
    ROW("mtp.#.embedding_norm.weight", "pre_fc_norm_embedding.weight"),
    ROW("mtp.#.hidden_norm.weight", "pre_fc_norm_hidden.weight"),
    ROW("mtp.#.projection.weight", "fc.weight"),
    ROW("mtp.#.head_norm.weight", "norm.weight"),
};
enum { OWN_COUNT = sizeof own_rows / sizeof own_rows[0] };
_Static_assert(sizeof aside_rows == sizeof own_rows, "both forms have the same tensors of ours");

bool hd_hf_has_aside(const struct hd_family *family)
{
    return family->names == HD_NAMES_QWEN_NEXT || family->names == HD_NAMES_QWEN3_5;
}

const char *hd_hf_further_key(const struct hd_family *family)
{
    static const char *const keys[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (hd_hf_reads(family, keys[i]))
            return keys[i];
    return NULL;
}

int64_t hd_hf_further_max(const struct hd_family *family)
{
    const bool behind = family->names == HD_NAMES_DEEPSEEK || family->names == HD_NAMES_GLM4_MOE;

    if (!hd_hf_further_key(family))
        return 0;
    return hd_hf_has_aside(family) ? 1
           : behind                ? (int64_t)hd_job_find_key("model.mtp.layers")->max
                                   : 0;
}

bool hd_hf_is_further(const char *ours)
{
    return hd_text_starts(ours, "mtp.");
}

bool hd_hf_is_aside(const char *theirs)
{
    return hd_text_starts(theirs, ASIDE);
}

const struct hd_hf_row *hd_hf_further_rows(const struct hd_family *family, size_t *ret_count)
{
    *ret_count = OWN_COUNT;
    return hd_hf_has_aside(family) ? aside_rows : own_rows;
}

const struct hd_hf_row *hd_hf_further_copies(const struct hd_family *family, size_t *ret_count)
{
    *ret_count = hd_hf_has_aside(family) ? 0 : sizeof copy_rows / sizeof copy_rows[0];
    return copy_rows;
}

void hd_hf_format_theirs(const struct hd_hf_row *row, const struct hd_job *job,
                         const struct hd_hf_prefixes *prefixes, int64_t layer, int64_t expert,
                         char ret_name[HD_WEIGHTS_NAME_MAX])
{
    const bool aside = layer >= job->layers && hd_hf_has_aside(hd_family_named(job->family));
    char plain[HD_CKPT_NAME_MAX];

    hd_hf_format_name(row->theirs, aside ? layer - job->layers : layer, expert, plain);
    (void)snprintf(ret_name, HD_WEIGHTS_NAME_MAX, "%s%s",
                   aside      ? ASIDE
                   : row->top ? prefixes->top
                              : prefixes->base,
                   plain);
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
    depth = strtoll(ours + strlen("mtp."), &end, 10);
    if (depth >= hd_hf_further_max(hd_family_named(job->family)))
        return NULL;
    row = find_pattern(hd_hf_has_aside(hd_family_named(job->family)) ? aside_rows : own_rows,
                       OWN_COUNT, job, ours, ret_layer);
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
