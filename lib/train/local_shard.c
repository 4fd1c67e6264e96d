/* local_shard: reads and writes a rank's elements of a state as fp32 on the host, whatever their
 * encoding is. */
#include <assert.h>
#include <stdlib.h>

#include "base/math.h"
#include "train/trainer.h"

enum { PIECE = HD_LOCAL_SHARD_CHUNK };

static int64_t scales_bytes(const struct hd_local_shard *local_shard, int64_t elements)
{
    return elements / local_shard->block * (int64_t)sizeof(float);
}

/* ---- frozen weights in the compute encoding ---- */

static enum hd_status read_narrow(const struct hd_staging *staging,
                                  const struct hd_local_shard *local_shard, int64_t at,
                                  int64_t count, float *ret_values)
{
    uint16_t narrow[PIECE];
    enum hd_status st = HD_OK;

    for (int64_t done = 0, n; !st && done < count; done += n) {
        n = hd_min(count - done, PIECE);
        st = hd_staging_read(staging, narrow,
                             local_shard->at + (at + done) * (int64_t)sizeof *narrow,
                             n * (int64_t)sizeof *narrow);
        for (int64_t i = 0; !st && i < n; i++)
            ret_values[done + i] = hd_half_to_f32(local_shard->dtype, narrow[i]);
    }
    return st;
}

static enum hd_status write_narrow(const struct hd_staging *staging,
                                   const struct hd_local_shard *local_shard, int64_t at,
                                   int64_t count, const float *values)
{
    uint16_t narrow[PIECE];
    enum hd_status st = HD_OK;

    for (int64_t done = 0, n; !st && done < count; done += n) {
        n = hd_min(count - done, PIECE);
        for (int64_t i = 0; i < n; i++)
            narrow[i] = hd_f32_to_half(local_shard->dtype, values[done + i]);
        st = hd_staging_write(staging, local_shard->at + (at + done) * (int64_t)sizeof *narrow,
                              narrow, n * (int64_t)sizeof *narrow);
    }
    return st;
}

/* ---- quantized matrices ---- */

static struct hd_quant_factor factor_of(const struct hd_param *p)
{
    const struct hd_quant_box box = hd_param_quant_box(p);

    return (struct hd_quant_factor){.quant = p->quant,
                                    .count = 1,
                                    .columns = box.box_columns,
                                    .matrix = {hd_quant_matrix_at(&box, 0)}};
}

/* Decodes elements of one quantized matrix. If its record is on a device, the whole record is
 * copied to the host. */
static enum hd_status read_record(const struct hd_staging *staging, const struct hd_param *p,
                                  const char *record, int64_t first, int64_t count,
                                  float *ret_values)
{
    const struct hd_quant_factor f = factor_of(p);
    char *copy = NULL;
    enum hd_status st = HD_OK;

    if (staging->device) {
        copy = malloc((size_t)p->record_bytes);
        st = copy ? hd_staging_read(staging, copy, record, p->record_bytes)
                  : hd_err(HD_NO_MEMORY, "no memory to decode %s", p->name);
    }
    if (!st)
        hd_quant_decode(&f, copy ? copy : record, first, count, ret_values);
    free(copy);
    return st;
}

static enum hd_status read_quantized(const struct hd_staging *staging,
                                     const struct hd_local_shard *local_shard, int64_t at,
                                     int64_t count, float *ret_values)
{
    const struct hd_param *p = local_shard->codes;
    const int64_t each = p->count / hd_param_matrices(p);
    enum hd_status st = HD_OK;

    for (int64_t done = 0, n; !st && done < count; done += n) {
        const int64_t matrix = (at + done) / each, first = (at + done) % each;

        n = hd_min(count - done, each - first);
        st = read_record(staging, p, local_shard->at + matrix * p->record_bytes, first, n,
                         ret_values + done);
    }
    return st;
}

enum hd_status hd_local_shard_read(const struct hd_staging *staging,
                                   const struct hd_local_shard *local_shard, int64_t at,
                                   int64_t count, float *ret_values)
{
    float scales[PIECE / HD_BLOCK_MIN];
    uint8_t codes[PIECE];
    enum hd_status st = HD_OK;

    if (local_shard->codes)
        return read_quantized(staging, local_shard, at, count, ret_values);
    if (!local_shard->block && local_shard->dtype != HD_F32)
        return read_narrow(staging, local_shard, at, count, ret_values);
    if (!local_shard->block)
        return hd_staging_read(staging, ret_values, local_shard->at + at * (int64_t)sizeof(float),
                               count * (int64_t)sizeof(float));
    assert(at % local_shard->block == 0 && count % local_shard->block == 0);
    for (int64_t done = 0, n; !st && done < count; done += n) {
        n = hd_min(count - done, PIECE);
        st = hd_staging_read(staging, codes, local_shard->at + at + done, n);
        if (!st)
            st = hd_staging_read(staging, scales,
                                 local_shard->scales + scales_bytes(local_shard, at + done),
                                 scales_bytes(local_shard, n));
        if (!st)
            hd_decode(local_shard->map, local_shard->block, n, scales, codes, ret_values + done);
    }
    return st;
}

enum hd_status hd_local_shard_write(const struct hd_staging *staging,
                                    const struct hd_local_shard *local_shard, int64_t at,
                                    int64_t count, const float *values)
{
    float scales[PIECE / HD_BLOCK_MIN];
    uint8_t codes[PIECE];
    enum hd_status st = HD_OK;

    assert(!local_shard->codes);
    if (!local_shard->block && local_shard->dtype != HD_F32)
        return write_narrow(staging, local_shard, at, count, values);
    if (!local_shard->block)
        return hd_staging_write(staging, local_shard->at + at * (int64_t)sizeof(float), values,
                                count * (int64_t)sizeof(float));
    assert(at % local_shard->block == 0 && count % local_shard->block == 0);
    for (int64_t done = 0, n; !st && done < count; done += n) {
        n = hd_min(count - done, PIECE);
        hd_encode(local_shard->map, local_shard->block, n, values + done, scales, codes);
        st = hd_staging_write(staging, local_shard->at + at + done, codes, n);
        if (!st)
            st = hd_staging_write(staging,
                                  local_shard->scales + scales_bytes(local_shard, at + done),
                                  scales, scales_bytes(local_shard, n));
    }
    return st;
}
