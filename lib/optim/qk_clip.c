#include "optim/qk_clip.h"

bool hd_qk_clip_of(const struct hd_registry *r, int param, struct hd_qk_clip_args *ret_args,
                   int64_t *ret_element)
{
    const struct hd_param *p = &r->params[param];
    const struct hd_score_rows *rows = &p->scores;
    const struct hd_bucket *b = &r->buckets[p->bucket];
    const int64_t begin = p->offset > b->shard_begin ? p->offset : b->shard_begin;
    const int64_t last = p->offset + p->count, end = last < b->shard_end ? last : b->shard_end;
    const int64_t step = rows->keys ? rows->group : 1; /* query heads from one head to the next */

    if (!(r->qk_clip.threshold > 0) || !rows->head_rows || !p->trainable || end <= begin)
        return false;
    *ret_element = begin;
    *ret_args =
        (struct hd_qk_clip_args){.N = end - begin,
                                 .first = begin - p->offset,
                                 .columns = p->dim_count > 1 ? p->local[1] : 1,
                                 .head_rows = rows->head_rows,
                                 .split = rows->split,
                                 .first_head = p->start[0] / rows->head_rows * step,
                                 .head_step = step,
                                 .group = rows->group,
                                 .threshold = r->qk_clip.threshold,
                                 .power = rows->keys ? 1 - r->qk_clip.alpha : r->qk_clip.alpha,
                                 .rest_power = rows->keys ? 0 : 1,
                                 .copy_dtype = b->compute};
    return true;
}
