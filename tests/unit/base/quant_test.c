/* quant: codes, scales and values of whole matrices against bitsandbytes (tests/golden/quant.py),
 * and records of boxes against those of the whole. */
#include <stdlib.h>
#include <string.h>

#include "base/quant.h"
#include "tests/program/test.h"

static const struct {
    enum hd_quant quant;
    int64_t rows, columns;
    uint64_t codes, scales, second, mean, values;
} golden[] = {
#include "quant_golden.inc"
};

static uint64_t fnv(const void *data, size_t size_bytes)
{
    const unsigned char *p = data;
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < size_bytes; i++)
        hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

/* The matrix of quant.py. */
static enum hd_status read_matrix(void *context, int64_t first, int64_t count, float *ret_values)
{
    const struct hd_quant_box *b = context;

    for (int64_t i = first; i < first + count; i++) {
        const uint32_t bits =
            (uint32_t)((uint64_t)i * 2654435761u + (uint64_t)b->rows * 40503u); /* mod 2^32 */
        const double unit = (double)(bits >> 8) / 16777216.0 - 0.5;

        ret_values[i - first] = (float)(unit / (double)(1 << ((i / 640) % 5 + 3)));
        if (b->rows > 4 && i / b->columns == 3)
            ret_values[i - first] = 0;
    }
    return HD_OK;
}

static struct hd_quant_box whole(enum hd_quant quant, int64_t rows, int64_t columns)
{
    return (struct hd_quant_box){
        .quant = quant, .rows = rows, .columns = columns, .box_rows = rows, .box_columns = columns};
}

static char *encode(struct hd_quant_box *box)
{
    const int64_t bytes = hd_quant_lay_out(box).size_bytes;
    char *record = malloc((size_t)bytes);

    assert_non_null(record);
    memset(record, 0xa5, (size_t)bytes);
    assert_int_equal(hd_quant_encode(box, read_matrix, box, record), HD_OK);
    return record;
}

static float *decode(const struct hd_quant_box *box, const char *record)
{
    const struct hd_quant_factor f = {.quant = box->quant,
                                      .count = 1,
                                      .columns = box->box_columns,
                                      .matrix = {hd_quant_matrix_at(box, 0)}};
    const int64_t count = box->box_rows * box->box_columns, half = count / 3;
    float *values = malloc((size_t)count * sizeof *values);

    assert_non_null(values);
    hd_quant_decode(&f, record, 0, half, values); /* in two pieces, cut anywhere */
    hd_quant_decode(&f, record, half, count - half, values + half);
    return values;
}

/* Goal: a folder of bitsandbytes and an own encoding are the same bytes. */
static void bytes_and_values_are_those_of_bitsandbytes(void **state)
{
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        struct hd_quant_box box = whole(golden[i].quant, golden[i].rows, golden[i].columns);
        const struct hd_quant_layout l = hd_quant_lay_out(&box);
        const bool nf4 = box.quant == HD_QUANT_NF4;
        const int64_t count = box.rows * box.columns;
        char *record = encode(&box);
        float *values = decode(&box, record);
        const float *second = (const float *)(record + l.second);

        assert_int_equal(fnv(record, (size_t)l.code_bytes), golden[i].codes);
        assert_int_equal(fnv(record + l.scales, (size_t)l.scale_count * (nf4 ? 1 : 4)),
                         golden[i].scales);
        assert_int_equal(fnv(values, (size_t)count * 4), golden[i].values);
        if (nf4) {
            assert_int_equal(fnv(second, 4), golden[i].mean);
            assert_int_equal(fnv(second + HD_NF4_SECOND_SCALES,
                                 (size_t)(l.second_count - HD_NF4_SECOND_SCALES) * 4),
                             golden[i].second);
        }
        free(values);
        free(record);
    }
}

/* The box's values are those of the whole, bit for bit, and taking the box out of the whole's codes
 * gives the same record as encoding it. */
static void check_box(struct hd_quant_box *all, const char *record, const float *values,
                      struct hd_quant_box *box)
{
    const struct hd_quant_layout l = hd_quant_lay_out(all), mine = hd_quant_lay_out(box);
    const float *second = (const float *)(record + l.second);
    const struct hd_quant_whole theirs = {.codes = (const uint8_t *)record,
                                          .scales = record + l.scales,
                                          .map = second + HD_NF4_SECOND_MAP,
                                          .second = second + HD_NF4_SECOND_SCALES,
                                          .mean = l.second_count ? second[0] : 0};
    char *own = encode(box), *taken = malloc((size_t)mine.size_bytes);
    float *part = decode(box, own);

    assert_non_null(taken);
    memset(taken, 0xa5, (size_t)mine.size_bytes);
    hd_quant_take(box, &theirs, taken);
    assert_memory_equal(own, taken, (size_t)mine.size_bytes);
    for (int64_t r = 0; r < box->box_rows; r++)
        assert_memory_equal(part + r * box->box_columns,
                            values + (box->first_row + r) * box->columns + box->first_column,
                            (size_t)box->box_columns * sizeof *part);
    free(part);
    free(taken);
    free(own);
}

/* Goal: a layout changes no code. 192 x 256 are 768 blocks, three scales of the second level, which
 * begin in rows 64 and 128: a cut of the columns in 2 or 4 has parts of each. */
static void a_box_has_the_codes_of_the_whole(void **state)
{
    for (int q = HD_QUANT_NF4; q < HD_QUANT_COUNT; q++) {
        struct hd_quant_box all = whole((enum hd_quant)q, 192, 256);
        char *record = encode(&all);
        float *values = decode(&all, record);

        for (int64_t shares = 2; shares <= 4; shares *= 2)
            for (int64_t i = 0; i < shares; i++) {
                struct hd_quant_box rows = all, columns = all;

                rows.box_rows = all.rows / shares;
                rows.first_row = i * rows.box_rows;
                columns.box_columns = all.columns / shares;
                columns.first_column = i * columns.box_columns;
                check_box(&all, record, values, &rows);
                check_box(&all, record, values, &columns);
            }
        free(values);
        free(record);
    }
}

static void a_cut_through_a_block_does_not_fit(void **state)
{
    struct hd_quant_box box = whole(HD_QUANT_NF4, 4, 96);

    assert_true(hd_quant_box_fits(&box));
    box.box_columns = 48;
    assert_false(hd_quant_box_fits(&box)); /* 48 of 96 columns are no blocks */
    box.quant = HD_QUANT_INT8;
    assert_true(hd_quant_box_fits(&box)); /* a row has one scale */
    box = whole(HD_QUANT_NF4, 4, 96);
    box.box_rows = box.first_row = 2; /* 192 weights: three blocks, of which one lies in two rows */
    assert_true(hd_quant_box_fits(&box));
    box.box_rows = box.first_row = 1; /* 96 weights */
    assert_false(hd_quant_box_fits(&box));
}

/* 4096 x 4096: 2^24 weights are 8,388,608 bytes of codes, 262,144 scales, and 1 + 256 + 1,024
 * floats, 5,124 bytes, aligned to 5,184. */
static void a_record_has_4_127_bits_a_weight(void **state)
{
    const struct hd_quant_box box = whole(HD_QUANT_NF4, 4096, 4096);

    assert_int_equal(hd_quant_lay_out(&box).size_bytes, 8388608 + 262144 + 5184);
}

static void words_name_encodings(void **state)
{
    assert_string_equal(hd_quant_word(HD_QUANT_NONE), "plain");
    assert_string_equal(hd_quant_word(HD_QUANT_NF4), "nf4");
    assert_string_equal(hd_quant_word(HD_QUANT_FP8), "fp8");
}

RUN_CASES()
