/* fp8_blocks: matrices of E4M3 codes with a scale for each block of 128 x 128, as DeepSeek-V3 and
 * others publish them:
 *
 *     NAME              F8_E4M3 [N, K]
 *     NAME_scale_inv    F32 [ceil(N / 128), ceil(K / 128)]: the factor of a block's codes, in spite
 *                       of its name; the last blocks of rows and columns may be short
 *
 * They are read as plain weights; codes and scales are not kept. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fp8.h"
#include "hf/hf_internal.h"

#define SCALES "_scale_inv"

static int64_t blocks_of(int64_t count)
{
    return (count + HD_HF_FP8_BLOCK - 1) / HD_HF_FP8_BLOCK;
}

bool hd_hf_is_fp8(const struct hd_weight *weight)
{
    return strcmp(weight->form, "F8_E4M3") == 0;
}

enum hd_status hd_hf_find_fp8(const struct hd_weights *weights, const struct hd_weight *weight,
                              int64_t rows, int64_t columns, bool *used,
                              struct hd_hf_quantized *ret_quantized)
{
    char name[HD_WEIGHTS_NAME_MAX + sizeof SCALES];
    const struct hd_weight *scales;

    if (weight->dim_count != 2 || weight->shape[0] != rows || weight->shape[1] != columns)
        return hd_err(HD_INVALID,
                      "%s: tensor %s does not have the shape [%" PRId64 ", %" PRId64
                      "], which the model needs",
                      weight->file, weight->name, rows, columns);
    (void)snprintf(name, sizeof name, "%s" SCALES, weight->name);
    scales = hd_weights_find(weights, name);
    if (!scales)
        return hd_err(HD_INVALID, "%s: tensor %s is codes, and %s is missing", weight->file,
                      weight->name, name);
    used[scales - hd_weights_at(weights, 0)] = true;
    if (scales->dtype != HD_F32 || scales->dim_count != 2 || scales->shape[0] != blocks_of(rows) ||
        scales->shape[1] != blocks_of(columns))
        return hd_err(HD_INVALID,
                      "%s: tensor %s is not [%" PRId64 ", %" PRId64
                      "] numbers of f32, one for each block of %d x %d",
                      scales->file, scales->name, blocks_of(rows), blocks_of(columns),
                      HD_HF_FP8_BLOCK, HD_HF_FP8_BLOCK);
    *ret_quantized =
        (struct hd_hf_quantized){.fp8_blocks = true,
                                 .rows = rows,
                                 .columns = columns,
                                 .whole = {.codes = weight->data, .scales = scales->data}};
    return HD_OK;
}

void hd_hf_decode_fp8(const struct hd_hf_quantized *quantized, int64_t row, int64_t column,
                      int64_t count, float *ret_values)
{
    const struct hd_quant_whole *w = &quantized->whole;
    const int64_t blocks = blocks_of(quantized->columns);
    const char *scales =
        (const char *)w->scales + row / HD_HF_FP8_BLOCK * blocks * (int64_t)sizeof(float);

    for (int64_t i = 0; i < count; i++) {
        const int64_t k = column + i;
        float scale;

        memcpy(&scale, scales + k / HD_HF_FP8_BLOCK * (int64_t)sizeof scale, sizeof scale);
        ret_values[i] = hd_fp8_value(w->codes[row * quantized->columns + k], HD_E4M3) * scale;
    }
}
