/* quant: weight matrices stored as codes of 4 or 8 bits, for weights that are not trained.
 *
 * A matrix has N rows (outputs) and K columns. Its codes and scales are computed from the whole
 * matrix; a rank stores those of its box, the rows and columns that it holds. Three encodings:
 *
 *     nf4    4 bits: 16 values between -1 and 1, the quantiles of a normal distribution. Blocks of
 *            64 neighbours of the flat matrix (row-major) share a scale s, their largest magnitude.
 *            The scales are themselves stored in 8 bits: with m their mean over the matrix, blocks
 *            of 256 neighbours of s - m share a second scale, their largest magnitude, in fp32,
 *            and have the codes of a signed dynamic map of 256 values (Dettmers et al. 2023,
 *            "QLoRA", sections 3 and appendix E; the map: Dettmers et al. 2022, "8-bit Optimizers
 *            via Block-wise Quantization"). 4 + 8/64 + 32/(64 * 256) = 4.127 bits a weight
 *     int8   8 bits: round(127 w / s) with s the largest magnitude of the row (the weights of
 *            Dettmers et al. 2022, "LLM.int8()"; activations are not quantized)
 *     fp8    8 bits: E4M3 of w 2^e, with a power of two for each row (base/fp8.h)
 *
 * Bytes and values of nf4 and int8 are those of bitsandbytes, so a folder that bitsandbytes has
 * written loads bit for bit: two codes of nf4 in a byte, the first in the upper half; w =
 * value(code) * s, with s = map(code of s) * (second scale) + m, each operation rounded to fp32; w
 * = (code * s) * (1/127). Only the mean differs: here it is computed from exact sums, rounded once.
 *
 * In memory a matrix is a *record*: codes, scales, and for nf4 the second level [m, the map, second
 * scales], each aligned to 64 bytes. Codes and scales are those of the rank's box, in its row-major
 * order. The second level is that of the whole matrix on every rank: 256 blocks are 16,384
 * neighbours of the flat matrix, which the split over ranks does not respect, and it is 1/2,000 of
 * a large record. The map is part of the record because each folder brings its own, whose last
 * digits depend on the program that computed it.
 *
 * A box must consist of whole blocks of 64 (hd_quant_box_fits).
 *
 * Used by: kernels, program, hf, train.   Uses: libc.   Threads: any. */
#ifndef HD_BASE_QUANT_H
#define HD_BASE_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/encoding.h" /* HD_ON_DEVICE */
#include "base/status.h"

/* The encodings: code, its word in a job file, bits of one code. */
#define HD_QUANT_LIST(X) \
    X(NONE, "plain", 0)  \
    X(NF4, "nf4", 4)     \
    X(INT8, "int8", 8)   \
    X(FP8, "fp8", 8)

enum hd_quant {
#define X(code, word, bits) HD_QUANT_##code,
    HD_QUANT_LIST(X)
#undef X
        HD_QUANT_COUNT
};

enum {
    HD_NF4_BLOCK = 64,   /* weights per scale */
    HD_NF4_BLOCKS = 256, /* scales per second scale */
    HD_NF4_VALUES = 16,
    HD_QUANT_MAP = 256,    /* values of the map of scales */
    HD_NF4_SECOND_MAP = 1, /* index of the map in the second level, in floats; the mean comes before
                              it */
    HD_NF4_SECOND_SCALES = HD_NF4_SECOND_MAP + HD_QUANT_MAP,
    HD_QUANT_ALIGN = 64 /* bytes; alignment of the arrays of a record */
};

const char *hd_quant_word(enum hd_quant quant);

/* Returns the 16 values of nf4, ascending. Static memory. */
const float *hd_nf4_values(void);

/* The rows and columns of a matrix that a rank holds. */
struct hd_quant_box {
    enum hd_quant quant;
    int64_t rows, columns; /* numbers of rows and columns of the whole matrix */
    int64_t first_row, first_column, box_rows, box_columns;
};

/* Returns whether the box begins and ends at boundaries of the encoding's blocks of 64 weights. */
bool hd_quant_box_fits(const struct hd_quant_box *box);

/* The arrays of one matrix's record: their offsets in bytes from the record's start, and their
 * number of elements. */
struct hd_quant_layout {
    int64_t scales, second; /* offsets of the scales and of the second level (nf4 only); the codes
                               are at 0 */
    int64_t code_bytes;
    int64_t scale_count;  /* number of scales: in nf4 one byte per block of the box; otherwise one
                             float per row */
    int64_t second_count; /* floats of the second level */
    int64_t size_bytes;   /* size of the record, a multiple of HD_QUANT_ALIGN */
};
struct hd_quant_layout hd_quant_lay_out(const struct hd_quant_box *box);

/* One matrix of a factor, as a kernel needs it to find the values of its rows. Block b of the box
 * is block first + b / box_step * whole_step + b % box_step of the whole matrix. */
struct hd_quant_matrix {
    int64_t rows;
    int64_t at, scales, second; /* offsets in bytes, from the factor's start, of the matrix's
                                   record, its scales and its second level */
    int64_t first, box_step, whole_step;
};

/* One factor of a matrix product: up to HD_QUANT_MATRICES matrices stacked by rows, each a record.
 */
enum { HD_QUANT_MATRICES = 3 };
struct hd_quant_factor {
    enum hd_quant quant; /* HD_QUANT_NONE: the factor is not quantized; the other members are
                            unused */
    int32_t count;
    int64_t columns;
    struct hd_quant_matrix matrix[HD_QUANT_MATRICES];
};

/* Returns the description of the matrix whose record starts `at` bytes after the factor's start. */
struct hd_quant_matrix hd_quant_matrix_at(const struct hd_quant_box *box, int64_t at);

HD_ON_DEVICE static inline int64_t hd_nf4_block_of(const struct hd_quant_matrix *m, int64_t b)
{
    return m->first + b / m->box_step * m->whole_step + b % m->box_step;
}

/* Returns the nf4 scale of a block: map_value (the map's value of its 8-bit code) * scale (its
 * second scale) + mean, the product and the sum each rounded to fp32. */
float hd_nf4_scale(float map_value, float scale, float mean);
/* Writes in fp32 the nf4 scales of `count` blocks of the box, from block `b` on, decoded from the
 * 8-bit scales and the second level. */
void hd_nf4_scales(const struct hd_quant_matrix *matrix, const void *factor, int64_t b,
                   int64_t count, float *ret_scales);

/* Returns the weight of an int8 code: (code * scale) / 127 in the order of operations of
 * bitsandbytes. */
HD_ON_DEVICE static inline float hd_int8_value(int8_t code, float scale)
{
    return (float)code * scale * 7.874015718698502e-3F;
}

/* Decodes elements [first, first + count) of the box, row-major, of a factor with one matrix, to
 * fp32. For the host: kernels have their own loops. */
void hd_quant_decode(const struct hd_quant_factor *factor, const void *memory, int64_t first,
                     int64_t count, float *ret_values);

/* A function of the caller that reads elements [first, first + count) of the whole matrix, in
 * row-major order. */
typedef enum hd_status hd_quant_read_fn(void *context, int64_t first, int64_t count,
                                        float *ret_values);

/* Encodes a matrix of finite values into the record of a box. Reads the whole matrix once, in
 * order, in pieces of about HD_QUANT_PIECE elements, so it needs little memory besides the record:
 * one piece, and 4 bytes per block of nf4. */
enum { HD_QUANT_PIECE = 64 * 1024 };
enum hd_status hd_quant_encode(const struct hd_quant_box *box, hd_quant_read_fn *read,
                               void *context, void *ret_record);

/* The arrays of a whole matrix that another program (bitsandbytes) has encoded. */
struct hd_quant_whole {
    const uint8_t *codes;
    const void *scales; /* nf4: one byte per block; otherwise one fp32 per row; may be unaligned */
    const void *map, *second; /* nf4: values of the map, fp32 [HD_QUANT_MAP], and the second scales;
                                 may be unaligned */
    float mean;               /* nf4: mean of the scales of the whole matrix */
};
/* Copies the codes and scales of a box from an encoded whole matrix into the box's record. */
void hd_quant_take(const struct hd_quant_box *box, const struct hd_quant_whole *whole,
                   void *ret_record);

/* ---- nearest values, for tests and for the encoders ---- */

uint8_t hd_nf4_code(float quotient); /* code of the nearest of the 16 values; of two equally near
                                        ones the lower */
uint8_t hd_quant_map_code(float quotient);

#endif
