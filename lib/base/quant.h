/* quant: matrices of weights kept as codes of 4 or 8 bits, for weights that do not train.
 *
 * A matrix has N rows (outputs) and K columns. Its codes and scales follow from the whole matrix
 * alone; a rank of a layout holds those of its box. Three encodings:
 *
 *     nf4    4 bits: 16 values between -1 and 1, the quantiles of a normal distribution. Blocks of
 *            64 neighbours of the flat matrix (row-major) share a scale s, their largest magnitude.
 *            The scales are themselves kept in 8 bits: with m their mean over the matrix, blocks of
 *            256 neighbours of s - m share a scale of their own, their largest magnitude, in fp32,
 *            and have the codes of a signed dynamic map of 256 values (Dettmers et al. 2023,
 *            "QLoRA", sections 3 and appendix E; the map: Dettmers et al. 2022, "8-bit Optimizers
 *            via Block-wise Quantization"). 4 + 8/64 + 32/(64 * 256) = 4.127 bits a weight
 *     int8   8 bits: round(127 w / s) with s the largest magnitude of the row (the weights of
 *            Dettmers et al. 2022, "LLM.int8()"; activations stay as they are)
 *     fp8    8 bits: E4M3 of w 2^e, with a power of two for each row (base/fp8.h)
 *
 * Bytes and values of nf4 and int8 are those of bitsandbytes, so a folder that it has written loads
 * bit for bit: two codes of nf4 in a byte, the first in the upper half; w = value(code) * s, with s
 * = map(code of s) * (scale of 256) + m, each operation rounded to fp32; w = (code * s) * (1/127).
 * The mean is the one thing that differs: ours is that of exact sums, rounded once.
 *
 * In memory a matrix is a *record*: codes, scales, and for nf4 the second level, [m, the map,
 * scales of 256], each aligned to 64 bytes. Codes and scales are those of the rank's box, in its
 * row-major order. The second level is that of the whole matrix on every rank: 256 blocks are
 * 16,384 neighbours of the flat matrix, which cuts do not respect, and it is 1/2,000 of a large
 * record. The map is in it because a folder has its own, whose last digits depend on who computed
 * it.
 *
 * A box must consist of whole blocks of 64 (hd_quant_box_fits).
 *
 * Used by: kernels, program, hf, train.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_QUANT_H
#define HD_BASE_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/encoding.h" /* HD_ON_DEVICE */
#include "base/status.h"

/* code, its word in a job file, bits of a code */
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
    HD_NF4_BLOCK = 64,   /* weights with one scale */
    HD_NF4_BLOCKS = 256, /* scales with one scale */
    HD_NF4_VALUES = 16,
    HD_QUANT_MAP = 256,    /* values of the map of scales */
    HD_NF4_SECOND_MAP = 1, /* places in the second level */
    HD_NF4_SECOND_SCALES = HD_NF4_SECOND_MAP + HD_QUANT_MAP,
    HD_QUANT_ALIGN = 64 /* bytes */
};

const char *hd_quant_word(enum hd_quant quant);
enum hd_quant hd_quant_of_word(const char *word); /* HD_QUANT_COUNT: there is no such word */

/* The 16 values of nf4, ascending, and the 256 of the map of scales, ascending. Static memory. */
const float *hd_nf4_values(void);
const float *hd_quant_map(void);

/* The box of a matrix [rows, columns] that a rank holds. */
struct hd_quant_box {
    enum hd_quant quant;
    int64_t rows, columns; /* of the whole matrix */
    int64_t first_row, first_column, box_rows, box_columns;
};

/* Whether the box consists of whole blocks. */
bool hd_quant_box_fits(const struct hd_quant_box *box);

/* Where a record's arrays are, in bytes from its begin, and how many elements they have. */
struct hd_quant_layout {
    int64_t scales, second; /* codes are at 0; second: of nf4 */
    int64_t code_bytes;
    int64_t scale_count;  /* nf4: bytes, one for each block of the box; else floats, one a row */
    int64_t second_count; /* floats */
    int64_t size_bytes;   /* of the record, a multiple of HD_QUANT_ALIGN */
};
struct hd_quant_layout hd_quant_lay_out(const struct hd_quant_box *box);

/* One matrix of a factor: what a kernel needs to find the values of its rows. The block of the box
 * with number b is block first + b / box_step * whole_step + b % box_step of the whole matrix. */
struct hd_quant_matrix {
    int64_t rows;
    int64_t at, scales, second; /* bytes from the factor's begin, to the record and its arrays */
    int64_t first, box_step, whole_step;
};

/* A factor of a product: up to HD_QUANT_MATRICES matrices below one another, each a record. */
enum { HD_QUANT_MATRICES = 3 };
struct hd_quant_factor {
    enum hd_quant quant; /* NONE: the factor is plain, and nothing else here has a meaning */
    int32_t count;
    int64_t columns;
    struct hd_quant_matrix matrix[HD_QUANT_MATRICES];
};

/* The matrix of a record that begins `at` bytes behind the factor's begin. */
struct hd_quant_matrix hd_quant_matrix_at(const struct hd_quant_box *box, int64_t at);

HD_ON_DEVICE static inline int64_t hd_nf4_block_of(const struct hd_quant_matrix *m, int64_t b)
{
    return m->first + b / m->box_step * m->whole_step + b % m->box_step;
}

/* The scale of a block from its value in the map, the scale of 256 and the mean: a product and a
 * sum, rounded apart. */
float hd_nf4_scale(float map_value, float scale, float mean);
/* The scales of `count` blocks of the box from block `b` on: fp32. */
void hd_nf4_scales(const struct hd_quant_matrix *matrix, const void *factor, int64_t b,
                   int64_t count, float *ret_scales);

/* (code * scale) / 127 as bitsandbytes computes it. */
HD_ON_DEVICE static inline float hd_int8_value(int8_t code, float scale)
{
    return (float)code * scale * 7.874015718698502e-3F;
}

/* Elements [first, first + count) of the box, row-major, of a factor with one matrix, as fp32. For
 * the host: kernels have their own loops. */
void hd_quant_decode(const struct hd_quant_factor *factor, const void *memory, int64_t first,
                     int64_t count, float *ret_values);

/* Reads elements [first, first + count) of the whole matrix, row-major. */
typedef enum hd_status hd_quant_read_fn(void *context, int64_t first, int64_t count,
                                        float *ret_values);

/* Encodes a matrix of finite values into the record of a box. Reads the whole matrix once, in
 * order, in pieces of about HD_QUANT_PIECE elements, so it needs little memory beside the record:
 * one piece, and 4 bytes for each block of nf4. */
enum { HD_QUANT_PIECE = 64 * 1024 };
enum hd_status hd_quant_encode(const struct hd_quant_box *box, hd_quant_read_fn *read,
                               void *context, void *ret_record);

/* A whole matrix as another program has encoded it. */
struct hd_quant_whole {
    const uint8_t *codes;
    const void *scales;       /* nf4: bytes, one a block; else fp32, one a row; may be unaligned */
    const void *map, *second; /* nf4: fp32 [HD_QUANT_MAP], and scales of 256; may be unaligned */
    float mean;               /* nf4 */
};
/* Copies a box of it into a record. */
void hd_quant_take(const struct hd_quant_box *box, const struct hd_quant_whole *whole,
                   void *ret_record);

/* ---- nearest values, for tests and for the encoders ---- */

uint8_t hd_nf4_code(float quotient); /* nearest of the 16; of two equally near ones the lower */
uint8_t hd_quant_map_code(float quotient);

#endif
