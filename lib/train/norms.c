#include "train/norms.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/pieces.h"
#include "train/encoded.h"

enum { PIECE = HD_PIECE(HD_QUANT_PIECE, 192) }; /* elements of rows that are read at a time */

/* Source from which the rows of a weight are read to compute their norms. */
struct norm_rows {
    struct hd_whole whole;
    int64_t N, K;
    enum hd_dtype computes;
    struct hd_quant_factor codes;
    void *record; /* the whole quantized matrix; NULL: the weight is not quantized */
};

static enum hd_status no_memory_for_norms(const struct hd_param *p)
{
    return hd_err(HD_NO_MEMORY, "no memory for the norms of %s", p->name);
}

static enum hd_status open_rows(struct hd_source *source, const struct hd_registry *registry,
                                int weight, uint64_t seed, struct norm_rows *ret_rows)
{
    const struct hd_param *p = &registry->params[weight];
    struct norm_rows r = {
        .N = p->shape[0], .K = p->shape[1], .computes = registry->buckets[p->bucket].compute};
    const struct hd_quant_box box = {
        .quant = p->quant, .rows = r.N, .columns = r.K, .box_rows = r.N, .box_columns = r.K};
    enum hd_status st;

    assert(p->dim_count == 2);
    hd_whole_init(&r.whole, source, registry, weight, seed, 0);
    if (p->quant) {
        r.computes = registry->compute_dtype;
        r.codes = (struct hd_quant_factor){
            .quant = p->quant, .count = 1, .columns = r.K, .matrix = {hd_quant_matrix_at(&box, 0)}};
        r.record = malloc((size_t)hd_quant_lay_out(&box).size_bytes);
        if (!r.record)
            return no_memory_for_norms(p);
        st = hd_encoded_make_box(&r.whole, &box, r.record);
        if (st) {
            free(r.record);
            return st;
        }
    }
    *ret_rows = r;
    return HD_OK;
}

static enum hd_status read_rows(struct norm_rows *r, int64_t first, int64_t count,
                                float *ret_values)
{
    if (!r->record)
        return hd_whole_read(&r->whole, first * r->K, count * r->K, ret_values);
    hd_quant_decode(&r->codes, r->record, first * r->K, count * r->K, ret_values);
    return HD_OK;
}

static float norm_of(const struct norm_rows *r, const float *row)
{
    double sum = 0;

    for (int64_t k = 0; k < r->K; k++) {
        const double w =
            r->computes == HD_F32
                ? (double)row[k]
                : (double)hd_half_to_f32(r->computes, hd_f32_to_half(r->computes, row[k]));

        sum += w * w;
    }
    return (float)sqrt(sum);
}

enum hd_status hd_norms_make(struct hd_source *source, const struct hd_registry *registry,
                             int param, uint64_t seed, int64_t first, int64_t count,
                             float *ret_values)
{
    const struct hd_param *p = &registry->params[param];
    const int64_t begin = p->start[0] + first;
    struct norm_rows r;
    int64_t most;
    float *values;
    enum hd_status st = open_rows(source, registry, p->norms_of, seed, &r);

    assert(p->init == HD_INIT_NORMS && p->dim_count == 1);
    if (st)
        return st;
    most = r.K < PIECE ? PIECE / r.K : 1;
    values = calloc((size_t)(most * r.K), sizeof *values);
    if (!values)
        st = no_memory_for_norms(p);
    for (int64_t at = 0, n; !st && at < count; at += n) {
        n = count - at < most ? count - at : most;
        st = read_rows(&r, begin + at, n, values);
        for (int64_t i = 0; !st && i < n; i++)
            ret_values[at + i] = norm_of(&r, values + i * r.K);
    }
    free(values);
    free(r.record);
    return st;
}
