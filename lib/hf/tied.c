/* tied: finds whether a folder whose config.json ties the head to the embedding has a head of its
 * own. transformers 5 compares the two tensors if both are in the files, unties them if they
 * differ, and warns; this file does the same. */
#include <stdio.h>
#include <string.h>

#include "base/pieces.h"
#include "hf/config_internal.h"

enum { TIED_PIECE = HD_PIECE(4096, 37) }; /* values of each tensor that are compared at a time */

/* Sets *ret_embedding and *ret_head to the two tensors; NULL: absent. */
static void find_both(const struct hd_weights *weights, const char *family,
                      const struct hd_weight **ret_embedding, const struct hd_weight **ret_head)
{
    const struct hd_hf_row *rows = NULL;
    struct hd_hf_prefixes prefixes;
    const char *prefix = NULL;
    size_t count = 0;
    char name[HD_WEIGHTS_NAME_MAX];

    *ret_embedding = *ret_head = NULL;
    if (hd_hf_rows(family, &rows, &count, &prefix)) /* the first row is the embedding */
        return;
    prefixes = hd_hf_find_prefixes(weights, prefix, rows[0].theirs);
    (void)snprintf(name, sizeof name, "%s%s", prefixes.base, rows[0].theirs);
    *ret_embedding = hd_weights_find(weights, name);
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].ours, "head.weight") == 0) {
            (void)snprintf(name, sizeof name, "%s%s", prefixes.top, rows[i].theirs);
            *ret_head = hd_weights_find(weights, name);
        }
}

static bool are_numbers(const struct hd_weight *w)
{
    return w->dtype == HD_F32 || w->dtype == HD_F16 || w->dtype == HD_BF16 || w->dtype == HD_F64;
}

/* Returns whether two tensors of one shape have equal values, as torch.equal: 0 and -0 are equal,
 * NaN equals nothing. */
static bool equal_tensors(const struct hd_weight *a, const struct hd_weight *b)
{
    float of_a[TIED_PIECE], of_b[TIED_PIECE];
    int64_t elements = 1;

    if (a->dim_count != b->dim_count ||
        memcmp(a->shape, b->shape, (size_t)a->dim_count * sizeof *a->shape) != 0)
        return false;
    if (a->dtype == b->dtype && a->size_bytes == b->size_bytes &&
        memcmp(a->data, b->data, (size_t)a->size_bytes) == 0)
        return true;
    for (int d = 0; d < a->dim_count; d++)
        elements *= a->shape[d];
    if (!are_numbers(a) || !are_numbers(b))
        return false;
    for (int64_t at = 0, n; at < elements; at += n) {
        n = elements - at < TIED_PIECE ? elements - at : TIED_PIECE;
        hd_hf_convert(a, at, 1, n, of_a);
        hd_hf_convert(b, at, 1, n, of_b);
        for (int64_t i = 0; i < n; i++)
            if (of_a[i] != of_b[i])
                return false;
    }
    return true;
}

void hd_hf_resolve_tied(const char *dir, struct hd_job *job, struct hd_text *notes)
{
    struct hd_weights *weights = NULL;
    const struct hd_weight *head, *embedding;

    if (hd_job_is_reward(job) || hd_weights_open(dir, &weights))
        return; /* faults of the files are reported when the weights are needed */
    find_both(weights, job->family, &embedding, &head);
    if (head && embedding && !equal_tensors(head, embedding)) {
        job->tie_embeddings = false;
        hd_hf_note(notes,
                   "config.json says tie_word_embeddings: true, but %s differs from %s; it is a "
                   "weight of its own, as in transformers 5. Set tie_word_embeddings: false in the "
                   "file if that is meant, or remove the tensor",
                   head->name, embedding->name);
    }
    hd_weights_close(weights);
}
