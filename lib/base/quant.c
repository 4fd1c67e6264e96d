#include "base/quant.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/fp8.h"
#include "base/math.h"
#include "base/pieces.h"

enum { PIECE = HD_PIECE(HD_QUANT_PIECE, 192) }; /* elements; a multiple of blocks of nf4 */

static const char *const words[] = {
#define X(code, word, bits) word,
    HD_QUANT_LIST(X)
#undef X
};

const char *hd_quant_word(enum hd_quant quant)
{
    return words[quant];
}

static int64_t align(int64_t bytes)
{
    return hd_round_up(bytes, HD_QUANT_ALIGN);
}

/* ---- layout ---- */

static bool has_all_columns(const struct hd_quant_box *b)
{
    return b->box_columns == b->columns;
}

bool hd_quant_box_fits(const struct hd_quant_box *b)
{
    const int64_t first = b->first_row * b->columns, count = b->box_rows * b->columns;

    if (b->quant != HD_QUANT_NF4)
        return true;
    if (!has_all_columns(b))
        return b->columns % HD_NF4_BLOCK == 0 && b->first_column % HD_NF4_BLOCK == 0 &&
               b->box_columns % HD_NF4_BLOCK == 0;
    return first % HD_NF4_BLOCK == 0 &&
           (count % HD_NF4_BLOCK == 0 || b->first_row + b->box_rows == b->rows);
}

static int64_t whole_blocks(const struct hd_quant_box *b)
{
    return hd_divide_up(b->rows * b->columns, HD_NF4_BLOCK);
}

struct hd_quant_layout hd_quant_lay_out(const struct hd_quant_box *b)
{
    const int64_t count = b->box_rows * b->box_columns;
    struct hd_quant_layout l = {.code_bytes = count, .scale_count = b->box_rows};

    assert(hd_quant_box_fits(b) && b->quant != HD_QUANT_NONE);
    if (b->quant == HD_QUANT_NF4) {
        l.code_bytes = hd_divide_up(count, 2);
        l.scale_count = hd_divide_up(count, HD_NF4_BLOCK);
        l.second_count = HD_NF4_SECOND_SCALES + hd_divide_up(whole_blocks(b), HD_NF4_BLOCKS);
    }
    l.scales = align(l.code_bytes);
    l.second =
        l.scales + align(l.scale_count * (b->quant == HD_QUANT_NF4 ? 1 : (int64_t)sizeof(float)));
    l.size_bytes = l.second + align(l.second_count * (int64_t)sizeof(float));
    return l;
}

struct hd_quant_matrix hd_quant_matrix_at(const struct hd_quant_box *b, int64_t at)
{
    const struct hd_quant_layout l = hd_quant_lay_out(b);
    struct hd_quant_matrix m = {.rows = b->box_rows,
                                .at = at,
                                .scales = at + l.scales,
                                .second = at + l.second,
                                .box_step = 1,
                                .whole_step = 1};

    m.first = (b->first_row * b->columns + b->first_column) / HD_NF4_BLOCK;
    if (!has_all_columns(b)) {
        m.box_step = b->box_columns / HD_NF4_BLOCK;
        m.whole_step = b->columns / HD_NF4_BLOCK;
    }
    return m;
}

/* ---- values ---- */

/* Values of nf4: quantiles of a normal distribution divided by the largest, eight from -1 to 0 and
 * nine from 0 to 1, with 0 counted once (Dettmers et al. 2023, appendix E). */
static const float nf4_values[HD_NF4_VALUES] = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

const float *hd_nf4_values(void)
{
    return nf4_values;
}

/* Values of the 8-bit codes of nf4 scales, ascending: 0, 1 and 127 magnitudes of either sign, the
 * values of the signed map of encoding.h as bitsandbytes computes them. */
static const float map_values[HD_QUANT_MAP] = {
#include "base/quant_map.inc"
};

/* Returns the nf4 code of the value that is nearest to `quotient`; of two equally near ones the
 * lower. Compares with midpoints in fp32. */
uint8_t hd_nf4_code(float quotient)
{
    int code = 0;

    for (int i = 1; i < HD_NF4_VALUES; i++)
        code += (nf4_values[i - 1] + nf4_values[i]) / 2 < quotient;
    return (uint8_t)code;
}

uint8_t hd_quant_map_code(float quotient)
{
    int low = 0, high = HD_QUANT_MAP - 1; /* first and last code that can still be the nearest */

    while (low < high) {
        const int middle = (low + high) / 2;

        if ((map_values[middle] + map_values[middle + 1]) / 2 < quotient)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint8_t)low;
}

/* Returns map_value * scale + mean, the product and the sum each rounded: this file is compiled
 * without fused multiply-adds. */
float hd_nf4_scale(float map_value, float scale, float mean)
{
    const float product = map_value * scale;

    return product + mean;
}

void hd_nf4_scales(const struct hd_quant_matrix *m, const void *factor, int64_t b, int64_t count,
                   float *ret_scales)
{
    const uint8_t *codes = (const uint8_t *)factor + m->scales + b;
    const float *second = (const float *)((const char *)factor + m->second);
    const float *map = second + HD_NF4_SECOND_MAP, *scales = second + HD_NF4_SECOND_SCALES;

    for (int64_t i = 0; i < count; i++)
        ret_scales[i] = hd_nf4_scale(map[codes[i]],
                                     scales[hd_nf4_block_of(m, b + i) / HD_NF4_BLOCKS], second[0]);
}

static void decode_nf4(const struct hd_quant_matrix *m, const char *memory, int64_t first,
                       int64_t count, float *ret_values)
{
    const uint8_t *codes = (const uint8_t *)memory + m->at;
    float scale = 0;

    for (int64_t i = first; i < first + count; i++) {
        const int code = i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4;

        if (i == first || i % HD_NF4_BLOCK == 0)
            hd_nf4_scales(m, memory, i / HD_NF4_BLOCK, 1, &scale);
        ret_values[i - first] = nf4_values[code] * scale;
    }
}

void hd_quant_decode(const struct hd_quant_factor *factor, const void *memory, int64_t first,
                     int64_t count, float *ret_values)
{
    const struct hd_quant_matrix *m = &factor->matrix[0];
    const uint8_t *codes = (const uint8_t *)memory + m->at;
    const float *scales = (const float *)((const char *)memory + m->scales);

    assert(factor->count == 1);
    if (factor->quant == HD_QUANT_NF4) {
        decode_nf4(m, memory, first, count, ret_values);
        return;
    }
    for (int64_t i = first; i < first + count; i++) {
        const float scale = scales[i / factor->columns];

        ret_values[i - first] = factor->quant == HD_QUANT_INT8
                                    ? hd_int8_value((int8_t)codes[i], scale)
                                    : hd_fp8_value(codes[i], HD_E4M3) * scale;
    }
}

/* ---- encoding ---- */

/* Rows with a smaller largest magnitude are encoded as zeros, because 127 / magnitude might not be
 * finite. */
#define TINY_ROW 1e-36F

static float largest(const float *values, int64_t count)
{
    float most = 0;

    for (int64_t i = 0; i < count; i++) {
        const float magnitude = values[i] < 0 ? -values[i] : values[i];

        most = magnitude > most ? magnitude : most;
    }
    return most;
}

struct encoding {
    const struct hd_quant_box *box;
    struct hd_quant_layout layout;
    uint8_t *codes;
    char *record;
    float *scales; /* nf4: scales of all blocks of the whole matrix, needed for their mean */
};

/* Rounds x to the nearest integer, ties to even, as bitsandbytes does. Adding 1.5 * 2^23 leaves the
 * integer in the last bits of the sum. */
static int8_t round_to_int8(float x)
{
    const volatile float sum = x + 12582912.0F;

    return (int8_t)(sum - 12582912.0F);
}

/* Encodes the box's columns of one row with the row's scale; a row of zeros has scale 0 and codes
 * 0. */
static void encode_row(const struct encoding *e, int64_t row, const float *values)
{
    const struct hd_quant_box *b = e->box;
    uint8_t *codes;
    float *scale, most;
    int exponent;

    if (row < b->first_row || row >= b->first_row + b->box_rows)
        return;
    codes = e->codes + (row - b->first_row) * b->box_columns;
    scale = (float *)(e->record + e->layout.scales) + (row - b->first_row);
    most = largest(values, b->columns);
    exponent = hd_fp8_exponent(most, HD_E4M3);
    values += b->first_column;
    *scale = b->quant == HD_QUANT_INT8 ? most : hd_fp8_power(-exponent);
    for (int64_t i = 0; i < b->box_columns; i++)
        if (b->quant == HD_QUANT_INT8)
            codes[i] = most > TINY_ROW ? (uint8_t)round_to_int8(values[i] * (127.0F / most)) : 0;
        else
            codes[i] = hd_fp8_encode(values[i], hd_fp8_power(exponent), HD_E4M3);
}

static enum hd_status encode_rows(const struct encoding *e, hd_quant_read_fn *read, void *context,
                                  float *values, int64_t most)
{
    const struct hd_quant_box *b = e->box;
    const int64_t at_once = most / b->columns;
    enum hd_status st = HD_OK;

    for (int64_t row = 0, n; !st && row < b->rows; row += n) {
        n = b->rows - row < at_once ? b->rows - row : at_once;
        st = read(context, row * b->columns, n * b->columns, values);
        for (int64_t i = 0; !st && i < n; i++)
            encode_row(e, row + i, values + i * b->columns);
    }
    return st;
}

/* Returns the index, among the box's blocks, of block g of the whole matrix; -1: the block is
 * outside of the box. */
static int64_t block_in_box(const struct hd_quant_box *b, int64_t g)
{
    const int64_t across = b->columns / HD_NF4_BLOCK, wide = b->box_columns / HD_NF4_BLOCK;
    const int64_t first = b->first_row * b->columns / HD_NF4_BLOCK;
    int64_t row, column;

    if (has_all_columns(b)) {
        g -= first;
        return g >= 0 && g < hd_divide_up(b->box_rows * b->columns, HD_NF4_BLOCK) ? g : -1;
    }
    row = g / across - b->first_row;
    column = g % across - b->first_column / HD_NF4_BLOCK;
    return row >= 0 && row < b->box_rows && column >= 0 && column < wide ? row * wide + column : -1;
}

/* Divides the weights of an nf4 block by its scale, as bitsandbytes does: a whole block is
 * multiplied by the inverse, the incomplete last block of a matrix is divided. Returns the
 * scale. */
static float scale_block(const float *values, int64_t count, int64_t block, float *ret_quotients)
{
    static const float least = 1e-38F;
    const float most = largest(values, count), divisor = most > least ? most : least;
    const float factor = 1 / divisor;

    for (int64_t i = 0; i < count; i++)
        ret_quotients[i] = count == block ? values[i] * factor : values[i] / divisor;
    return count == block ? most : divisor;
}

static void encode_block(const struct encoding *e, int64_t g, const float *values, int64_t count)
{
    const int64_t b = block_in_box(e->box, g);
    uint8_t *codes = e->codes + b * (HD_NF4_BLOCK / 2);
    float quotients[HD_NF4_BLOCK + 1];

    e->scales[g] = scale_block(values, count, HD_NF4_BLOCK, quotients);
    quotients[count] = 0; /* pads an odd count with a zero, because codes are written in pairs */
    for (int64_t i = 0; b >= 0 && i < count; i += 2)
        codes[i / 2] = (uint8_t)(hd_nf4_code(quotients[i]) << 4 | hd_nf4_code(quotients[i + 1]));
}

/* Writes the 8-bit codes of the nf4 scales and their second level: the scales minus their mean, in
 * blocks of 256, each block with a second scale. */
static void encode_scales(const struct encoding *e)
{
    const int64_t blocks = whole_blocks(e->box);
    uint8_t *codes = (uint8_t *)e->record + e->layout.scales;
    float *second = (float *)(e->record + e->layout.second);
    double sum = 0;

    for (int64_t g = 0; g < blocks; g++)
        sum += (double)e->scales[g];
    second[0] = (float)(sum / (double)blocks);
    memcpy(second + HD_NF4_SECOND_MAP, map_values, sizeof map_values);
    for (int64_t g = 0; g < blocks; g++)
        e->scales[g] -= second[0];
    for (int64_t g = 0; g < blocks; g += HD_NF4_BLOCKS) {
        const int64_t n = blocks - g < HD_NF4_BLOCKS ? blocks - g : HD_NF4_BLOCKS;

        second[HD_NF4_SECOND_SCALES + g / HD_NF4_BLOCKS] =
            scale_block(e->scales + g, n, HD_NF4_BLOCKS, e->scales + g);
        for (int64_t i = g; i < g + n; i++) {
            const int64_t b = block_in_box(e->box, i);

            if (b >= 0)
                codes[b] = hd_quant_map_code(e->scales[i]);
        }
    }
}

static enum hd_status encode_blocks(struct encoding *e, hd_quant_read_fn *read, void *context,
                                    float *values, int64_t most)
{
    const int64_t count = e->box->rows * e->box->columns;
    enum hd_status st = HD_OK;

    for (int64_t at = 0, n; !st && at < count; at += n) {
        n = count - at < most ? count - at : most;
        st = read(context, at, n, values);
        for (int64_t i = 0; !st && i < n; i += HD_NF4_BLOCK)
            encode_block(e, (at + i) / HD_NF4_BLOCK, values + i,
                         n - i < HD_NF4_BLOCK ? n - i : HD_NF4_BLOCK);
    }
    if (!st)
        encode_scales(e);
    return st;
}

enum hd_status hd_quant_encode(const struct hd_quant_box *box, hd_quant_read_fn *read,
                               void *context, void *ret_record)
{
    struct encoding e = {
        .box = box, .layout = hd_quant_lay_out(box), .codes = ret_record, .record = ret_record};
    const bool nf4 = box->quant == HD_QUANT_NF4;
    const int64_t piece = nf4 || box->columns < PIECE ? PIECE : box->columns;
    float *values = malloc((size_t)piece * sizeof *values);
    enum hd_status st = HD_OK;

    if (nf4)
        e.scales = malloc((size_t)whole_blocks(box) * sizeof *e.scales);
    if (!values || (nf4 && !e.scales))
        st = hd_err(HD_NO_MEMORY, "no memory to encode a matrix of %lld x %lld as %s",
                    (long long)box->rows, (long long)box->columns, hd_quant_word(box->quant));
    if (!st)
        st = nf4 ? encode_blocks(&e, read, context, values, piece)
                 : encode_rows(&e, read, context, values, piece);
    free(e.scales);
    free(values);
    return st;
}

/* ---- codes of another program ---- */

static void take_columns(const struct hd_quant_box *b, const struct hd_quant_whole *w,
                         const struct hd_quant_layout *l, char *record, int64_t per_byte)
{
    for (int64_t row = 0; row < b->box_rows; row++)
        memcpy(record + row * b->box_columns / per_byte,
               w->codes + ((b->first_row + row) * b->columns + b->first_column) / per_byte,
               (size_t)(b->box_columns / per_byte));
    for (int64_t row = 0; b->quant == HD_QUANT_NF4 && row < b->box_rows; row++) {
        const int64_t wide = b->box_columns / HD_NF4_BLOCK;

        memcpy(record + l->scales + row * wide,
               (const char *)w->scales +
                   ((b->first_row + row) * b->columns + b->first_column) / HD_NF4_BLOCK,
               (size_t)wide);
    }
}

void hd_quant_take(const struct hd_quant_box *b, const struct hd_quant_whole *w, void *ret_record)
{
    const struct hd_quant_layout l = hd_quant_lay_out(b);
    const int64_t first = b->first_row * b->columns;
    const bool nf4 = b->quant == HD_QUANT_NF4;
    char *record = ret_record;

    if (!has_all_columns(b)) {
        take_columns(b, w, &l, record, nf4 ? 2 : 1);
    } else {
        memcpy(record, w->codes + (nf4 ? first / 2 : first), (size_t)l.code_bytes);
        if (nf4)
            memcpy(record + l.scales, (const char *)w->scales + first / HD_NF4_BLOCK,
                   (size_t)l.scale_count);
    }
    if (!nf4) {
        memcpy(record + l.scales, (const char *)w->scales + b->first_row * (int64_t)sizeof(float),
               (size_t)l.scale_count * sizeof(float));
        return;
    }
    memcpy(record + l.second, &w->mean, sizeof w->mean);
    memcpy(record + l.second + HD_NF4_SECOND_MAP * sizeof(float), w->map,
           HD_QUANT_MAP * sizeof(float));
    memcpy(record + l.second + HD_NF4_SECOND_SCALES * sizeof(float), w->second,
           (size_t)(l.second_count - HD_NF4_SECOND_SCALES) * sizeof(float));
}
