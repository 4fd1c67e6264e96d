#include "train/encoded.h"

#include <assert.h>
#include <string.h>

static int64_t matrix_elements(const struct hd_param *p)
{
    return p->shape[p->dim_count - 2] * p->shape[p->dim_count - 1];
}

void hd_whole_init(struct hd_whole *whole, struct hd_source *source,
                   const struct hd_registry *registry, int param, uint64_t seed, int64_t index)
{
    const struct hd_param *p = &registry->params[param];

    *whole = (struct hd_whole){.source = source && hd_source_has(source, param) ? source : NULL,
                               .number = param,
                               .expert = p->dim_count > 2 ? p->start[0] + index : 0,
                               .seed = source ? hd_source_seed(source) : seed,
                               .param = *p};
    memcpy(whole->param.local, p->shape, sizeof p->shape);
    memcpy(whole->param.real, p->shape, sizeof p->shape);
    memset(whole->param.start, 0, sizeof whole->param.start);
}

enum hd_status hd_whole_read(void *context, int64_t first, int64_t count, float *ret_values)
{
    const struct hd_whole *whole = context;
    const struct hd_param *p = &whole->param;
    struct hd_ckpt_entry want;

    if (!whole->source) {
        hd_param_init_values(p, whole->seed, whole->expert * matrix_elements(p) + first, count,
                             ret_values);
        return HD_OK;
    }
    want = hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);
    if (p->dim_count > 2)
        hd_ckpt_entry_cut(&want, 0, whole->expert, 1);
    want.flat_first = first;
    want.flat_count = count;
    return hd_source_read(whole->source, whole->number, &want, ret_values);
}

enum hd_status hd_encoded_make_box(struct hd_whole *whole, const struct hd_quant_box *box,
                                   void *ret_record)
{
    struct hd_quant_whole quantized;

    /* clears the gaps between the record's arrays, too */
    memset(ret_record, 0, (size_t)hd_quant_lay_out(box).size_bytes);
    if (whole->source &&
        hd_source_quantized(whole->source, whole->number, whole->expert, box->quant, &quantized)) {
        hd_quant_take(box, &quantized, ret_record);
        return HD_OK;
    }
    return hd_quant_encode(box, hd_whole_read, whole, ret_record);
}

enum hd_status hd_encoded_make(struct hd_source *source, const struct hd_registry *registry,
                               int param, uint64_t seed, int64_t index, void *ret_record)
{
    const struct hd_param *p = &registry->params[param];
    const struct hd_quant_box box = hd_param_quant_box(p);
    struct hd_whole whole;

    assert(p->quant && index < hd_param_matrices(p));
    hd_whole_init(&whole, source, registry, param, seed, index);
    return hd_encoded_make_box(&whole, &box, ret_record);
}
