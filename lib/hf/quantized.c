/* quantized: matrices that bitsandbytes has quantized, in the form in which transformers saves
 * them, and GPT-OSS's stacks of experts in mxfp4.
 *
 * nf4:
 *             NAME                                 U8 [(N K + 1) / 2, 1], two codes in a byte
 *             NAME.absmax                          U8 [blocks of 64]
 *             NAME.nested_absmax                   F32 [blocks of 256 of these]
 *             NAME.quant_map, .nested_quant_map    F32 [16], [256]
 *             NAME.quant_state.bitsandbytes__nf4   U8: JSON, shape and mean of the scales
 *
 * int8:
 *             NAME                                 I8 [N, K]
 *             NAME with "SCB" for its end "weight" F32 [N]
 *             NAME_format                          U8 []: 0, codes row by row
 *
 * [N, K] are outputs and inputs also in gpt2, whose plain matrices are transposed.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hf/hf_internal.h"

enum { STATE_BYTES_MAX = 4096, STATE_VALUES_MAX = 64, SUFFIX_MAX = 48, ROW_FORMAT = 0 };

#define STATE ".quant_state.bitsandbytes__nf4"

/* A tensor that belongs to a quantized matrix besides its codes: scales, tables, state. */
struct beside {
    const struct hd_weights *weights;
    const struct hd_weight *quantized;
    bool *used;
};

static const struct hd_weight *find(const struct beside *b, size_t kept, const char *suffix)
{
    char name[HD_WEIGHTS_NAME_MAX + SUFFIX_MAX];
    const struct hd_weight *w;

    (void)snprintf(name, sizeof name, "%.*s%s", (int)kept, b->quantized->name, suffix);
    w = hd_weights_find(b->weights, name);
    if (w)
        b->used[w - hd_weights_at(b->weights, 0)] = true;
    return w;
}

static enum hd_status need(const struct beside *b, size_t kept, const char *suffix,
                           enum hd_dtype dtype, int64_t elements, const void **ret_data)
{
    const struct hd_weight *w = find(b, kept, suffix);

    if (!w)
        return hd_err(HD_INVALID, "%s: tensor %s is codes, and %.*s%s is missing",
                      b->quantized->file, b->quantized->name, (int)kept, b->quantized->name,
                      suffix);
    if (w->dtype != dtype || w->size_bytes != elements * (int64_t)hd_dtype_size(dtype))
        return hd_err(HD_INVALID, "%s: tensor %s is not %" PRId64 " numbers of %s", w->file,
                      w->name, elements, hd_dtype_name(dtype));
    *ret_data = w->data;
    return HD_OK;
}

/* ---- nf4 ---- */

static enum hd_status check_word(const struct hd_json *state, const char *key, const char *only)
{
    const char *word = NULL;
    const enum hd_status st = hd_json_need_string(state, key, &word);

    if (st || strcmp(word, only) == 0)
        return st;
    return hd_err(HD_UNSUPPORTED, "%s: only %s is supported", key, only);
}

static enum hd_status check_number(const struct hd_json *state, const char *key, int64_t only)
{
    int64_t number = 0;
    const enum hd_status st = hd_json_need_int64(state, key, 0, INT64_MAX, &number);

    if (st || number == only)
        return st;
    return hd_err(HD_UNSUPPORTED, "%s: %" PRId64 " is not supported, only %" PRId64, key, number,
                  only);
}

static enum hd_status check_matrix_shape(const struct hd_json *state,
                                         const struct hd_hf_quantized *quantized)
{
    const struct hd_json *shape = NULL;
    int64_t rows = 0, columns = 0;
    enum hd_status st = hd_json_need(state, "shape", HD_JSON_ARRAY, &shape);

    if (!st && shape->count != 2)
        st = hd_err(HD_INVALID, "shape: is not two numbers");
    if (!st)
        st = hd_json_to_int64(shape->first, 1, HD_CKPT_ELEMENTS_MAX, &rows);
    if (!st)
        st = hd_json_to_int64(shape->first->next, 1, HD_CKPT_ELEMENTS_MAX, &columns);
    if (st || (rows == quantized->rows && columns == quantized->columns))
        return st;
    return hd_err(HD_INVALID,
                  "shape: is [%" PRId64 ", %" PRId64 "], the model needs [%" PRId64 ", %" PRId64
                  "]",
                  rows, columns, quantized->rows, quantized->columns);
}

/* Reads the JSON of an nf4 matrix's quant_state. Its members "dtype" and "nested_dtype" add nothing
 * and are ignored. */
static enum hd_status read_state(const struct hd_json *state, struct hd_hf_quantized *quantized)
{
    const struct hd_json *mean = NULL;
    double value = 0;
    enum hd_status st = check_word(state, "quant_type", "nf4");

    if (!st)
        st = check_number(state, "blocksize", HD_NF4_BLOCK);
    if (!st && !hd_json_member(state, "nested_blocksize"))
        st = hd_err(HD_UNSUPPORTED, "its scales are not encoded themselves; only double "
                                    "quantisation is supported (bnb_4bit_use_double_quant)");
    if (!st)
        st = check_number(state, "nested_blocksize", HD_NF4_BLOCKS);
    if (!st)
        st = check_matrix_shape(state, quantized);
    if (!st)
        st = hd_json_need(state, "nested_offset", HD_JSON_NUMBER, &mean);
    if (!st && hd_text_to_double(mean->text, -1e30, 1e30, &value))
        st = hd_err(HD_INVALID, "nested_offset: is no number");
    quantized->whole.mean = (float)value;
    return st;
}

static enum hd_status parse_state(const struct beside *b, struct hd_hf_quantized *quantized)
{
    const struct hd_json_limits limits = {.values_max = STATE_VALUES_MAX, .depth_max = 3};
    const struct hd_weight *w = find(b, strlen(b->quantized->name), STATE);
    const struct hd_json *state = NULL;
    struct hd_arena arena;
    enum hd_status st;

    if (!w || w->dtype != HD_U8 || w->size_bytes > STATE_BYTES_MAX)
        return hd_err(HD_UNSUPPORTED,
                      "%s: tensor %s is codes of no known kind; only those of bitsandbytes are "
                      "read, nf4 and int8",
                      b->quantized->file, b->quantized->name);
    hd_arena_init(&arena, 0);
    st = hd_json_parse(&arena, w->data, (size_t)w->size_bytes, &limits, &state);
    if (!st && state->kind != HD_JSON_OBJECT)
        st = hd_err(HD_INVALID, "it is not a JSON object");
    if (!st)
        st = read_state(state, quantized);
    hd_arena_done(&arena);
    return st ? hd_err_prefix(st, "%s: %s", w->file, w->name) : HD_OK;
}

static enum hd_status find_nf4(const struct beside *b, struct hd_hf_quantized *quantized)
{
    const size_t all = strlen(b->quantized->name);
    const int64_t count = quantized->rows * quantized->columns;
    const int64_t blocks = (count + HD_NF4_BLOCK - 1) / HD_NF4_BLOCK;
    const void *values = NULL, *second = NULL;
    enum hd_status st = parse_state(b, quantized);

    if (!st && b->quantized->size_bytes != (count + 1) / 2)
        st = hd_err(HD_INVALID, "%s: tensor %s has %" PRId64 " bytes of codes, not %" PRId64,
                    b->quantized->file, b->quantized->name, b->quantized->size_bytes,
                    (count + 1) / 2);
    if (!st)
        st = need(b, all, ".absmax", HD_U8, blocks, &quantized->whole.scales);
    if (!st)
        st = need(b, all, ".nested_absmax", HD_F32, (blocks + HD_NF4_BLOCKS - 1) / HD_NF4_BLOCKS,
                  &second);
    if (!st)
        st = need(b, all, ".nested_quant_map", HD_F32, HD_QUANT_MAP, &quantized->whole.map);
    if (!st)
        st = need(b, all, ".quant_map", HD_F32, HD_NF4_VALUES, &values);
    if (!st && memcmp(values, hd_nf4_values(), HD_NF4_VALUES * sizeof(float)) != 0)
        st = hd_err(HD_UNSUPPORTED, "%s: tensor %s.quant_map has other values than those of nf4",
                    b->quantized->file, b->quantized->name);
    quantized->whole.second = second;
    return st;
}

/* ---- int8 ---- */

static enum hd_status find_int8(const struct beside *b, struct hd_hf_quantized *quantized)
{
    static const char end[] = "weight";
    const struct hd_weight *w = b->quantized, *format;
    const size_t all = strlen(w->name), kept = all - (sizeof end - 1);

    if (all < sizeof end || strcmp(b->quantized->name + kept, end) != 0)
        return hd_err(HD_UNSUPPORTED, "%s: tensor %s is neither F32, F16, BF16 nor F64",
                      b->quantized->file, b->quantized->name);
    if (w->dim_count != 2 || w->shape[0] != quantized->rows || w->shape[1] != quantized->columns)
        return hd_err(HD_INVALID,
                      "%s: tensor %s does not have the shape [%" PRId64 ", %" PRId64
                      "], which the model needs",
                      w->file, w->name, quantized->rows, quantized->columns);
    format = find(b, all, "_format");
    if (format && (format->size_bytes != 1 || *(const uint8_t *)format->data != ROW_FORMAT))
        return hd_err(HD_UNSUPPORTED,
                      "%s: tensor %s is not 0: the codes are not stored row by row; save the model "
                      "again with a newer bitsandbytes",
                      format->file, format->name);
    return need(b, kept, "SCB", HD_F32, quantized->rows, &quantized->whole.scales);
}

enum hd_status hd_hf_find_quantized(const struct hd_weights *weights,
                                    const struct hd_weight *weight, int64_t rows, int64_t columns,
                                    bool *used, struct hd_hf_quantized *ret_quantized)
{
    const struct beside b = {weights, weight, used};
    struct hd_hf_quantized quantized = {
        .rows = rows, .columns = columns, .whole.codes = weight->data};
    enum hd_status st;

    quantized.quant = weight->dtype == HD_U8 ? HD_QUANT_NF4 : HD_QUANT_INT8;
    st = quantized.quant == HD_QUANT_NF4 ? find_nf4(&b, &quantized) : find_int8(&b, &quantized);
    if (!st)
        *ret_quantized = quantized;
    return st;
}

/* ---- mxfp4 ---- */

enum { MX_BLOCK = 32, MX_BIAS = 127, MX_NOT_A_NUMBER = 255 };

static enum hd_status check_mx_scales(const struct hd_weight *scales)
{
    const uint8_t *exponent = scales->data;

    for (int64_t i = 0; i < scales->size_bytes; i++)
        if (exponent[i] == MX_NOT_A_NUMBER)
            return hd_err(HD_INVALID,
                          "%s: tensor %s holds scales that are not numbers (255): the file is "
                          "damaged",
                          scales->file, scales->name);
    return HD_OK;
}

enum hd_status hd_hf_find_mxfp4(const struct hd_weights *weights, const struct hd_weight *blocks,
                                const int64_t shape[3], bool *used,
                                struct hd_hf_quantized *ret_quantized)
{
    static const char end[] = "_blocks";
    const struct beside b = {weights, blocks, used};
    const size_t all = strlen(blocks->name), kept = all - (sizeof end - 1);
    const int64_t *s = blocks->shape;
    const struct hd_weight *scales = NULL;

    if (all < sizeof end || strcmp(blocks->name + kept, end) != 0)
        return hd_err(HD_UNSUPPORTED, "%s: tensor %s is codes of no known kind", blocks->file,
                      blocks->name);
    if (s[0] != shape[0] || s[1] != shape[1] || s[2] * MX_BLOCK != shape[2] || s[3] != MX_BLOCK / 2)
        return hd_err(HD_INVALID,
                      "%s: tensor %s has the shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                      "], the model needs [%" PRId64 ", %" PRId64 ", %" PRId64 ", %d]",
                      blocks->file, blocks->name, s[0], s[1], s[2], s[3], shape[0], shape[1],
                      shape[2] / MX_BLOCK, MX_BLOCK / 2);
    scales = find(&b, kept, "_scales");
    if (!scales || scales->dtype != HD_U8 ||
        scales->size_bytes * (MX_BLOCK / 2) != blocks->size_bytes)
        return hd_err(HD_INVALID,
                      "%s: tensor %s is codes, and %.*s_scales with a byte for each %d "
                      "of its values is missing",
                      blocks->file, blocks->name, (int)kept, blocks->name, MX_BLOCK);
    *ret_quantized =
        (struct hd_hf_quantized){.mxfp4 = true,
                                 .rows = shape[0] * shape[1],
                                 .columns = shape[2],
                                 .whole = {.codes = blocks->data, .scales = scales->data}};
    return check_mx_scales(scales);
}

static void decode_mxfp4(const struct hd_quant_whole *w, int64_t first, int64_t count,
                         float *ret_values)
{
    static const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6}; /* of E2M1 without its sign */
    float scale = 0;

    for (int64_t i = first; i < first + count; i++) {
        const int code = i % 2 ? w->codes[i / 2] >> 4 : w->codes[i / 2] & 15;
        const float value = values[code & 7];

        if (i == first || i % MX_BLOCK == 0)
            scale = ldexpf(1, ((const uint8_t *)w->scales)[i / MX_BLOCK] - MX_BIAS);
        ret_values[i - first] = (code & 8 ? -value : value) * scale;
    }
}

/* ---- values ---- */

static float float_at(const void *floats, int64_t i)
{
    float value;

    memcpy(&value, (const char *)floats + i * (int64_t)sizeof value, sizeof value);
    return value;
}

static float nf4_value(const struct hd_quant_whole *w, int64_t i)
{
    const int64_t block = i / HD_NF4_BLOCK;
    const uint8_t scale = ((const uint8_t *)w->scales)[block];
    const int code = i % 2 ? w->codes[i / 2] & 15 : w->codes[i / 2] >> 4;

    return hd_nf4_values()[code] * hd_nf4_scale(float_at(w->map, scale),
                                                float_at(w->second, block / HD_NF4_BLOCKS),
                                                w->mean);
}

void hd_hf_decode(const struct hd_hf_quantized *quantized, int64_t row, int64_t column,
                  int64_t count, float *ret_values)
{
    const struct hd_quant_whole *w = &quantized->whole;
    const int64_t first = row * quantized->columns + column;

    if (quantized->mxfp4)
        decode_mxfp4(w, first, count, ret_values);
    for (int64_t i = 0; !quantized->mxfp4 && i < count; i++)
        ret_values[i] = quantized->quant == HD_QUANT_NF4
                            ? nf4_value(w, first + i)
                            : hd_int8_value((int8_t)w->codes[first + i], float_at(w->scales, row));
}

bool hd_hf_slice_quantized(const struct hd_hf_quantized *quantized, int64_t first_row,
                           struct hd_quant_whole *ret_whole)
{
    const int64_t first = first_row * quantized->columns, blocks = first / HD_NF4_BLOCK;
    struct hd_quant_whole w = quantized->whole;

    if (quantized->quant == HD_QUANT_INT8) {
        w.codes += first;
        w.scales = (const char *)w.scales + first_row * (int64_t)sizeof(float);
    } else {
        if (first % (HD_NF4_BLOCK * HD_NF4_BLOCKS))
            return false;
        w.codes += first / 2;
        w.scales = (const char *)w.scales + blocks;
        w.second = (const char *)w.second + blocks / HD_NF4_BLOCKS * (int64_t)sizeof(float);
    }
    *ret_whole = w;
    return true;
}
