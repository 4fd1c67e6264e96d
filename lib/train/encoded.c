#include "train/encoded.h"

#include <assert.h>
#include <string.h>

/* Where the values of a matrix come from. */
struct values {
    struct hd_source *source; /* NULL: the seed */
    const struct hd_param *param;
    int number; /* of the parameter */
    int64_t expert;
    uint64_t seed;
    struct hd_param whole; /* the parameter as one rank alone would hold it */
};

static int64_t matrix_elements(const struct hd_param *p)
{
    return p->shape[p->dim_count - 2] * p->shape[p->dim_count - 1];
}

static enum hd_status read_values(void *context, int64_t first, int64_t count, float *ret_values)
{
    const struct values *v = context;
    const struct hd_param *p = v->param;
    struct hd_ckpt_entry want;

    if (!v->source) {
        hd_param_init_values(&v->whole, v->seed, v->expert * matrix_elements(p) + first, count,
                             ret_values);
        return HD_OK;
    }
    want = hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);
    if (p->dim_count > 2)
        hd_ckpt_entry_cut(&want, 0, v->expert, 1);
    want.flat_first = first;
    want.flat_count = count;
    return hd_source_read(v->source, v->number, &want, ret_values);
}

enum hd_status hd_encoded_make(struct hd_source *source, const struct hd_registry *registry,
                               int param, uint64_t seed, int64_t index, void *ret_record)
{
    const struct hd_param *p = &registry->params[param];
    const struct hd_quant_box box = hd_param_quant_box(p);
    struct values v = {.source = source && hd_source_has(source, param) ? source : NULL,
                       .param = p,
                       .number = param,
                       .expert = p->dim_count > 2 ? p->start[0] + index : 0,
                       .seed = source ? hd_source_seed(source) : seed,
                       .whole = *p};
    struct hd_quant_whole codes;

    assert(p->quant && index < hd_param_matrices(p));
    memcpy(v.whole.local, p->shape, sizeof p->shape);
    memcpy(v.whole.real, p->shape, sizeof p->shape);
    memset(v.whole.start, 0, sizeof v.whole.start);
    memset(ret_record, 0, (size_t)p->record_bytes); /* also between the arrays */
    if (v.source && hd_source_codes(source, param, v.expert, p->quant, &codes)) {
        hd_quant_take(&box, &codes, ret_record);
        return HD_OK;
    }
    return hd_quant_encode(&box, read_values, &v, ret_record);
}
