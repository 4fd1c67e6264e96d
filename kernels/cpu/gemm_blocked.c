/* gemm_blocked: GEMM by own code, for any shape.
 *
 * c is computed slab by slab. For each slice of the depth K the threads pack the slab's rows of a
 * and columns of b into shared panels (hd_costs_lay_out_gemm), in the order in which the inner loop
 * reads them; then each thread computes groups of tiles of c. Packing handles transposed factors
 * and sizes that are not multiples: the inner loops get whole panels, padded with zeros.
 *
 * A word of a panel is an fp32 value (bf16 and f16 factors are widened while packing), or, for bf16
 * factors if the CPU multiplies them, a pair of bf16 values (panel.h).
 *
 * If b is quantised it is decoded while it is packed: a thread decodes the columns of one panel, in
 * the slice's depth, to its own strip of scratch, which stays in its cache.
 *
 * The order in which the terms of an element are added depends on K only, not on rows, columns or
 * threads.
 *
 * (Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication".)
 */
#include <assert.h>

#include "base/math.h"
#include "kernels/costs/costs.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/transpose.h"

/* Size of a group of tiles of c, which one of several threads computes at a time: at most 224 KiB of
 * a's panels times 512 KiB of b's (pairs) or 1 MiB (fp32 values). */
enum { GROUP_ROWS = 112, GROUP_WORDS = 56 * 1024, GROUP_COLUMNS = 256, PACK_PANELS = 8 };

struct slab {
    const struct hd_gemm_args *args;
    const struct hd_cpu_panels *panels; /* inner loops for bf16 pairs; NULL: words of panels are
                                           fp32 values */
    int panel_rows;
    int64_t row, rows, column, columns; /* first row, rows, first column and columns of the slab in
                                           c */
    int64_t k, depth, words;            /* begin and depth of this slice in elements; depth in
                                           words, padded */
    bool last;                          /* true: this is the last slice of K */
    bool in_place;                      /* true: whole panels of a are read directly from the matrix
                                           a, not packed */
    uint32_t *a, *b;                    /* packed panels of a and of b for this slab and slice */
    int64_t a_panel_words;              /* words from a packed panel of a to the next one */
    char *strips;                       /* scratch strips for decoded columns of b, strip_bytes for
                                           each thread; NULL: b is not quantised */
    int64_t strip_bytes;
    float *sums; /* fp32 sums of the slab; NULL: c holds them */
    int64_t sums_ld;
    int64_t groups_across, group_panels; /* number of groups of tiles side by side in the slab;
                                            number of panels of rows in a group */
};

/* ---- packing ---- */

static void pack_a_pairs(const struct slab *s, uint32_t *to, int64_t row, int64_t rows)
{
    const struct hd_gemm_args *a = s->args;
    const int64_t m = s->panel_rows;
    const uint16_t *from =
        (const uint16_t *)a->a + (a->trans_a ? s->k * a->lda + row : row * a->lda + s->k);

    if (a->trans_a) /* only for panels stored by row; pack_a_across packs the others */
        pack_pairs_by_row(to, s->words, from, a->lda, s->depth, rows, s->words, m);
    else if (s->panels->by_row)
        copy_lines(to, s->words, from, a->lda, rows, s->depth, s->words, m);
    else
        pack_pairs_transposed(to, m, from, a->lda, rows, s->depth, s->words, m);
}

/* Packs fp32 panels [begin, end) of a transposed a: each line of a (MICRO_M values per panel) is
 * read once, in order. If a vector is longer than MICRO_M, whole vectors are stored and the next
 * line overwrites the excess; only the last line is stored exactly. */
INLINE void pack_a_lines(const struct slab *s, int64_t begin, int64_t end, enum hd_dtype dtype)
{
    const struct hd_gemm_args *a = s->args;

    for (int64_t k = 0; k < s->depth; k++) {
        const int64_t line = (s->k + k) * a->lda + s->row;

        if (k + PREFETCH_ROWS < s->depth)
            prefetch_row(a->a, line + PREFETCH_ROWS * a->lda + begin * MICRO_M,
                         hd_min(end * MICRO_M, s->rows) - begin * MICRO_M, dtype);
        for (int64_t p = begin; p < end; p++) {
            float *to = (float *)s->a + p * s->a_panel_words + k * MICRO_M;
            const int64_t left = s->rows - p * MICRO_M, at = line + p * MICRO_M;

            if ((int)VL >= (int)MICRO_M && left >= VL && k + 1 < s->depth)
                vf_store_f32(to, VL, vf_load(a->a, at, VL, dtype));
            else
                pack_rows(to, MICRO_M, a->a, at, 0, 1, hd_min(left, MICRO_M), MICRO_M, dtype);
        }
    }
}

INLINE void pack_a_widened(const struct slab *s, float *to, int64_t row, int64_t rows,
                           enum hd_dtype dtype)
{
    const struct hd_gemm_args *a = s->args;

    if (rows == MICRO_M) /* makes rows a constant to the compiler */
        pack_transposed(to, MICRO_M, a->a, row * a->lda + s->k, a->lda, MICRO_M, s->depth, MICRO_M,
                        dtype);
    else
        pack_transposed(to, MICRO_M, a->a, row * a->lda + s->k, a->lda, rows, s->depth, MICRO_M,
                        dtype);
}

/* Columns of b in the current slice of K: their first element is number `at` of `data`. */
struct columns {
    const void *data;
    int64_t at, ld, count;
};

static void pack_b_pairs(const struct slab *s, uint32_t *to, const struct columns *c)
{
    const uint16_t *from = (const uint16_t *)c->data + c->at;

    if (s->args->trans_b)
        pack_pairs_transposed(to, MICRO_N, from, c->ld, c->count, s->depth, s->words, MICRO_N);
    else
        pack_pairs(to, MICRO_N, from, c->ld, s->depth, c->count, s->words, MICRO_N);
}

/* Packs MICRO_N columns of a b that is not transposed: pack_rows() with its inner loops unrolled,
 * which gcc does not do by itself. */
INLINE void pack_b_lines(float *to, const struct columns *c, int64_t depth, enum hd_dtype dtype)
{
    for (int64_t k = 0, at = c->at; k < depth; k++, at += c->ld, to += MICRO_N) {
        if (k + PREFETCH_ROWS < depth)
            prefetch_row(c->data, at + PREFETCH_ROWS * c->ld, MICRO_N, dtype);
        UNROLL
        for (int j = 0; j < MICRO_N; j += VL)
            vf_store_f32(to + j, VL, vf_load(c->data, at + j, VL, dtype));
    }
}

INLINE void pack_b_widened(const struct slab *s, float *to, const struct columns *c,
                           enum hd_dtype dtype)
{
    if (s->args->trans_b)
        pack_transposed(to, MICRO_N, c->data, c->at, c->ld, c->count, s->depth, MICRO_N, dtype);
    else if (c->count == MICRO_N)
        pack_b_lines(to, c, s->depth, dtype);
    else
        pack_rows(to, MICRO_N, c->data, c->at, c->ld, s->depth, c->count, MICRO_N, dtype);
}

/* Decodes `count` columns of a quantised b, from `column` on, to the thread's strip; returns
 * them. */
INLINE struct columns decode_columns(const struct slab *s, int64_t column, int64_t count,
                                     char *strip, enum hd_dtype dtype)
{
    const struct hd_gemm_args *a = s->args;

    if (a->trans_b)
        decode_box(&a->b_codes, a->b, column, count, s->k, s->depth, strip, s->depth, dtype);
    else
        decode_box(&a->b_codes, a->b, s->k, s->depth, column, count, strip, MICRO_N, dtype);
    return (struct columns){strip, 0, a->trans_b ? s->depth : MICRO_N, count};
}

static struct columns find_columns(const struct slab *s, int64_t column, int64_t count, int thread)
{
    const struct hd_gemm_args *a = s->args;
    struct columns c = {a->b, a->trans_b ? column * a->ldb + s->k : s->k * a->ldb + column, a->ldb,
                        count};

    if (s->strips)
        WITH_FLOATS(a->ab_dtype, T,
                    c = decode_columns(s, column, count, s->strips + thread * s->strip_bytes, T));
    return c;
}

/* Packs bf16 panels [begin, end) of a transposed a: each line of a is read once, in order. */
static void pack_a_across(const struct slab *s, int64_t begin, int64_t end)
{
    const struct hd_gemm_args *a = s->args;
    const int64_t m = s->panel_rows, lda = a->lda;
    const uint16_t *from = (const uint16_t *)a->a + s->k * lda + s->row;

    for (int64_t k = 0; k < s->words; k++) {
        const bool has_low = 2 * k < s->depth, has_high = 2 * k + 1 < s->depth;
        const uint16_t *line = from + 2 * k * lda;

        if (2 * (k + PREFETCH_ROWS) + 1 < s->depth) {
            prefetch_row(line, 2 * PREFETCH_ROWS * lda + begin * m, (end - begin) * m, HD_BF16);
            prefetch_row(line, (2 * PREFETCH_ROWS + 1) * lda + begin * m, (end - begin) * m,
                         HD_BF16);
        }
        for (int64_t p = begin; p < end; p++) {
            const int64_t n = has_low ? hd_min(m, s->rows - p * m) : 0;
            vu word = {0};
            vf bits;

            if (n > 0)
                word = pair_lines(line, lda, has_high, p * m, n);
            memcpy(&bits, &word, sizeof bits);
            vf_store_f32((float *)s->a + p * s->a_panel_words + k * m, m, bits);
        }
    }
}

static void pack_a_panels(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct slab *s = args;
    const int64_t m = s->panel_rows;

    (void)thread;
    if (s->panels && !s->panels->by_row && s->args->trans_a) {
        pack_a_across(s, begin, end);
        return;
    }
    if (!s->panels && s->args->trans_a) {
        WITH_FLOATS(s->args->ab_dtype, T, pack_a_lines(s, begin, end, T));
        return;
    }
    for (int64_t p = begin; p < end; p++) {
        uint32_t *to = s->a + p * s->a_panel_words;
        const int64_t row = s->row + p * m, rows = hd_min(m, s->row + s->rows - row);

        if (s->in_place && rows == m)
            continue;
        if (s->panels)
            pack_a_pairs(s, to, row, rows);
        else
            WITH_FLOATS(s->args->ab_dtype, T, pack_a_widened(s, (float *)to, row, rows, T));
    }
}

static void pack_b_panels(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct slab *s = args;

    for (int64_t p = begin; p < end; p++) {
        uint32_t *to = s->b + p * MICRO_N * s->words;
        const int64_t column = s->column + p * MICRO_N;
        const struct columns c =
            find_columns(s, column, hd_min(MICRO_N, s->column + s->columns - column), thread);

        if (s->panels)
            pack_b_pairs(s, to, &c);
        else
            WITH_FLOATS(s->args->ab_dtype, T, pack_b_widened(s, (float *)to, &c, T));
    }
}

/* ---- the tiles ---- */

/* Returns the GEMM's epilogue applied to n complete sums x; `at` is the index in c of the first
 * one. */
INLINE vf apply_epilogue(const struct hd_gemm_args *a, vf x, int64_t at, int64_t n,
                         enum hd_dtype c_dtype)
{
    if (a->epilogue == HD_EPILOGUE_GELU_BACKWARD)
        return x * gelu_slope(vf_load(a->gelu_inp, at, n, c_dtype));
    if (a->pre)
        vf_store(a->pre, at, n, x, c_dtype);
    return gelu(vf_round(x, c_dtype));
}

/* Stores a tile of sums to c, or adds it: c (+)= tile. */
INLINE void add_tile(float *c, int64_t ldc, const float *tile, int64_t rows, int64_t columns,
                     bool add)
{
    for (int64_t i = 0; i < rows; i++, c += ldc, tile += MICRO_N)
        FOR_VECTORS (j, n, 0, columns) {
            vf x = vf_load_f32(tile + j, n);

            if (add)
                x += vf_load_f32(c + j, n);
            vf_store_f32(c + j, n, x);
        }
}

/* Stores a whole tile of complete sums: c = tile (+ sums). */
INLINE void round_tile(void *c, int64_t at, int64_t ldc, const float *tile, const float *sums,
                       int64_t sums_ld, int64_t rows, enum hd_dtype c_dtype)
{
    for (int64_t i = 0; i < rows; i++, at += ldc, tile += MICRO_N) {
        UNROLL
        for (int64_t j = 0; j < MICRO_N; j += VL) {
            vf x = vf_load_f32(tile + j, VL);

            if (sums)
                x += vf_load_f32(sums + i * sums_ld + j, VL);
            vf_store(c, at + j, VL, x, c_dtype);
        }
    }
}

/* Stores a tile: sums (+)= tile; or, in the last slice of K, c = sums + tile (+ c) (+ bias) (+ add)
 * and the epilogue. row and column are relative to the slab. */
INLINE void store_tile(const struct slab *s, const float *tile, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, enum hd_dtype c_dtype)
{
    const struct hd_gemm_args *a = s->args;
    const bool first = s->k == 0, own_sums = s->sums != NULL;
    const bool bias = a->bias && s->last;
    const bool epilogue = a->epilogue && s->last;
    const bool residual = a->add && s->last;
    const bool rounds = s->last && !a->accumulate && (own_sums || first);
    const int64_t at_c = (s->row + row) * a->ldc + s->column + column;

    if (c_dtype == HD_F32 && !bias && !epilogue &&
        !residual) { /* the slab has no separate sums: c holds them */
        float *c = (float *)a->c + at_c;
        const bool add = a->accumulate || !first;

        if (columns == MICRO_N && add)
            add_tile(c, a->ldc, tile, rows, MICRO_N, true);
        else if (columns == MICRO_N)
            add_tile(c, a->ldc, tile, rows, MICRO_N, false);
        else
            add_tile(c, a->ldc, tile, rows, columns, add);
        return;
    }
    if (rounds && columns == MICRO_N && !bias && !epilogue && !residual) {
        if (first)
            round_tile(a->c, at_c, a->ldc, tile, NULL, 0, rows, c_dtype);
        else
            round_tile(a->c, at_c, a->ldc, tile, s->sums + row * s->sums_ld + column, s->sums_ld,
                       rows, c_dtype);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        FOR_VECTORS (j, n, 0, columns) {
            const int64_t at = at_c + i * a->ldc + j;
            const int64_t at_sums = (row + i) * s->sums_ld + column + j;
            vf x = vf_load_f32(tile + i * MICRO_N + j, n);

            if (own_sums && !first)
                x += vf_load_f32(s->sums + at_sums, n);
            if (own_sums && !s->last) {
                vf_store_f32(s->sums + at_sums, n, x);
                continue;
            }
            if (own_sums ? a->accumulate : a->accumulate || !first)
                x += vf_load(a->c, at, n, c_dtype);
            if (bias)
                x += vf_load(a->bias, s->column + column + j, n, a->ab_dtype);
            if (residual)
                x += vf_load(a->add, at, n, c_dtype);
            if (epilogue)
                x = apply_epilogue(a, x, at, n, c_dtype);
            vf_store(a->c, at, n, x, c_dtype);
        }
}

/* Prefetches the lines of a tile whose first element is number `at` of the matrix. */
INLINE void prefetch_lines(const void *data, int64_t at, int64_t rows, int64_t ld, int64_t size)
{
    const char *line = (const char *)data + at * size;

    for (int64_t i = 0; i < rows; i++, line += ld * size)
        for (int64_t byte = 0; byte < MICRO_N * size; byte += 64)
            __builtin_prefetch(line + byte, 1);
}

/* Prefetches the lines that store_tile() will access, before the tile is computed. */
INLINE void prefetch_tile(const struct slab *s, int64_t row, int64_t rows, int64_t column)
{
    const struct hd_gemm_args *a = s->args;
    const int64_t size = a->c_dtype == HD_F32 ? 4 : 2;
    const int64_t at = (s->row + row) * a->ldc + s->column + column;

    if (s->sums)
        prefetch_lines(s->sums, row * s->sums_ld + column, rows, s->sums_ld, 4);
    else
        prefetch_lines(a->c, at, rows, a->ldc, size);
    if (s->last && a->gelu_inp)
        prefetch_lines(a->gelu_inp, at, rows, a->ldc, size);
}

static const uint32_t *packed_a(const struct slab *s, int64_t row)
{
    return s->a + row / s->panel_rows * s->a_panel_words;
}

static const uint16_t *a_in_place(const struct slab *s, int64_t row)
{
    return (const uint16_t *)s->args->a + (s->row + row) * s->args->lda + s->k;
}

/* Prefetches the panel of a that begins at `row`, while the first column of tiles of a group is
 * computed from the panel before it. */
static void prefetch_panel(const struct slab *s, int64_t row)
{
    for (int64_t i = row; i < hd_min(row + s->panel_rows, s->rows); i++)
        for (int64_t byte = 0; byte < s->depth * 2; byte += 64)
            __builtin_prefetch((const char *)a_in_place(s, i) + byte, 0, 2);
}

/* Sets the address and strides of the panel of a that begins at `row`. */
static void set_a(const struct slab *s, int64_t row, struct hd_cpu_product *p)
{
    p->words = (s->depth + 1) / 2;
    if (s->in_place) {
        p->a = (const char *)a_in_place(s, row);
        p->a_row_bytes = s->args->lda * (int64_t)sizeof(uint16_t);
        p->a_word_bytes = sizeof(uint32_t);
    } else {
        p->a = (const char *)packed_a(s, row);
        p->a_row_bytes = sizeof(uint32_t);
        p->a_word_bytes = s->panel_rows * (int64_t)sizeof(uint32_t);
    }
}

/* Computes a whole tile of the product directly in c or in the slab's sums, with the order of
 * additions of store_tile(). Returns false if multiply_into() cannot compute this case. */
static bool multiply_into_c(const struct slab *s, int64_t row, int64_t column,
                            struct hd_cpu_product *p)
{
    const struct hd_gemm_args *g = s->args;
    const int64_t at = (s->row + row) * g->ldc + s->column + column;

    p->is_bf16 = !s->sums && g->c_dtype == HD_BF16;
    p->add = s->k > 0 || (!s->sums && g->accumulate);
    if ((s->sums && s->last) || (p->is_bf16 && p->add) || ((g->epilogue || g->add) && s->last) ||
        (!s->sums && g->c_dtype == HD_F16))
        return false;
    p->ldc = s->sums ? s->sums_ld : g->ldc;
    if (s->sums)
        p->c = s->sums + row * s->sums_ld + column;
    else
        p->c = p->is_bf16 ? (void *)((uint16_t *)g->c + at) : (void *)((float *)g->c + at);
    if (g->bias && s->last)
        p->bias = (const uint16_t *)g->bias + s->column + column;
    s->panels->multiply_into(p);
    return true;
}

static void compute_tile(const struct slab *s, int64_t row, int64_t column)
{
    _Alignas(64) float tile[HD_PANEL_ROWS_MAX * MICRO_N];
    const int64_t rows = hd_min(s->panel_rows, s->rows - row);
    const int64_t columns = hd_min(MICRO_N, s->columns - column);
    const uint32_t *a = packed_a(s, row), *b = s->b + column * s->words;

    prefetch_tile(s, row, rows, column);
    if (s->panels && s->panels->multiply_into && rows == s->panel_rows) {
        struct hd_cpu_product p = {.b = b};

        set_a(s, row, &p);
        if (columns == MICRO_N && multiply_into_c(s, row, column, &p))
            return;
        p.c = tile;
        p.ldc = MICRO_N;
        p.is_bf16 = p.add = false;
        s->panels->multiply_into(&p);
    } else if (s->panels) {
        s->panels->multiply(tile, a, b, s->words);
    } else {
        micro_block(MICRO_M, 2, tile, MICRO_N, (const float *)a, 1, MICRO_M, (const float *)b,
                    MICRO_N, s->depth, false);
    }
    WITH_FLOATS(s->args->c_dtype, T, store_tile(s, tile, row, rows, column, columns, T));
}

static void compute_groups(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct slab *s = args;
    const int64_t group_rows = s->group_panels * s->panel_rows;

    (void)thread;
    if (s->panels && s->panels->begin)
        s->panels->begin();
    for (int64_t g = begin; g < end; g++) {
        const int64_t row = g / s->groups_across * group_rows;
        const int64_t column = g % s->groups_across * GROUP_COLUMNS;
        const int64_t row_end = hd_min(row + group_rows, s->rows);
        const int64_t column_end = hd_min(column + GROUP_COLUMNS, s->columns);

        for (int64_t j = column; j < column_end; j += MICRO_N)
            for (int64_t i = row; i < row_end; i += s->panel_rows) {
                if (s->in_place && j == column && i + s->panel_rows < row_end)
                    prefetch_panel(s, i + s->panel_rows);
                compute_tile(s, i, j);
            }
    }
    if (s->panels && s->panels->end)
        s->panels->end();
}

/* Returns whether compute_alone() computes the slab. On AVX-512 it was not measured. A quantised b
 * would be decoded once for each slab of rows. */
static bool is_for_one(const struct hd_backend *cpu, const struct slab *s)
{
    return VEC_BYTES < 64 && !cpu->pool && !s->panels && !s->strips;
}

/* Prefetches part `part` of `parts` of a panel of b, from `column` on. */
static void prefetch_b(const struct slab *s, int64_t column, int64_t part, int64_t parts)
{
    const struct hd_gemm_args *a = s->args;
    const int64_t columns = hd_min(MICRO_N, s->columns - column);
    const int64_t lines = a->trans_b ? columns : s->depth;
    const int64_t first =
        a->trans_b ? (s->column + column) * a->ldb + s->k : s->k * a->ldb + s->column + column;

    for (int64_t i = part * lines / parts; columns > 0 && i < (part + 1) * lines / parts; i++)
        prefetch_row(a->b, first + i * a->ldb, a->trans_b ? s->depth : columns, a->ab_dtype);
}

/* Computes a slab on one thread: packs all of its rows of a, then one panel of b at a time. All
 * panels of b are packed to one place, because most of the time of packing is that of writes to
 * places that no cache holds. While the thread multiplies by a panel of b, it prefetches the next
 * one. */
static void compute_alone(const struct slab *s)
{
    const int64_t panels = hd_divide_up(s->rows, s->panel_rows);

    pack_a_panels(s, 0, panels, 0);
    for (int64_t column = 0; column < s->columns; column += MICRO_N) {
        struct slab part = *s;

        part.column += column;
        part.columns = hd_min(MICRO_N, s->columns - column);
        part.sums = s->sums ? s->sums + column : NULL;
        pack_b_panels(&part, 0, 1, 0);
        for (int64_t i = 0; i < panels; i++) {
            prefetch_b(s, column + MICRO_N, i, panels);
            compute_tile(&part, i * s->panel_rows, 0);
        }
    }
}

/* ---- slabs and slices ---- */

/* Returns true if panels of a need no packing: its rows lie along K, so they consist of words
 * already. False if the slice's depth is odd (the last word would reach past the row), or if all
 * rows have equal addresses modulo 4096 (they would evict each other from the cache). */
static bool can_stay_in_place(const struct slab *s)
{
    return s->panels && s->panels->multiply_into && !s->args->trans_a && s->depth % 2 == 0 &&
           s->args->lda * 2 % 4096 != 0;
}

static void compute_slice(struct hd_backend *cpu, struct slab *s, bool pack_b)
{
    const int64_t group_rows = s->group_panels * s->panel_rows;
    const int64_t groups_down = (s->rows + group_rows - 1) / group_rows;
    const int64_t panels_down = (s->rows + s->panel_rows - 1) / s->panel_rows;

    if (is_for_one(cpu, s)) {
        compute_alone(s);
        return;
    }
    s->in_place = can_stay_in_place(s);
    if (s->in_place)
        pack_a_panels(s, s->rows / s->panel_rows, panels_down, 0);
    else
        hd_cpu_parallel(cpu, panels_down, PACK_PANELS, pack_a_panels, s);
    if (pack_b)
        hd_cpu_parallel(cpu, (s->columns + MICRO_N - 1) / MICRO_N, 1, pack_b_panels, s);
    s->groups_across = (s->columns + GROUP_COLUMNS - 1) / GROUP_COLUMNS;
    hd_cpu_parallel(cpu, groups_down * s->groups_across, 1, compute_groups, s);
}

/* Returns the inner loops for panels of bf16 pairs that compute this GEMM; NULL: its words are fp32
 * values. */
static const struct hd_cpu_panels *panels_of_layout(const struct hd_backend *cpu,
                                                    const struct hd_costs_gemm_layout *l)
{
    return l->pairs ? cpu->panels : NULL;
}

void KERNEL(gemm_blocked)(struct hd_backend *cpu, const struct hd_gemm_args *args)
{
    struct hd_costs_gemm_layout l = hd_costs_lay_out_gemm(args, &cpu->traits);
    struct slab s = {.args = args, .panels = panels_of_layout(cpu, &l), .words = l.words};
    char *scratch = args->scratch;

    s.panel_rows = s.panels ? s.panels->rows : MICRO_M;
    s.a_panel_words = s.panel_rows * l.words + l.a_gap;
    assert(hd_divide_up(hd_min(l.rows, args->M), s.panel_rows) * s.a_panel_words <= l.a_words);
    s.group_panels = hd_min(GROUP_ROWS, GROUP_WORDS / l.words) / s.panel_rows;
    s.a = (uint32_t *)scratch;
    s.b = (uint32_t *)(scratch + hd_tensor_align(l.a_words * 4));
    scratch = (char *)s.b + hd_tensor_align(l.b_words * 4);
    s.sums = l.sums_floats ? (float *)scratch : NULL;
    s.strips = l.strip_bytes ? scratch + hd_tensor_align(l.sums_floats * 4) : NULL;
    s.strip_bytes = l.strip_bytes;
    s.sums_ld = l.columns;
    if (is_for_one(cpu, &s) && args->K <= l.depth)
        l.columns = args->N; /* a is packed once: b needs memory for one panel only */
    for (s.column = 0; s.column < args->N; s.column += l.columns)
        for (s.row = 0; s.row < args->M; s.row += l.rows)
            for (s.k = 0; s.k < args->K || s.k == 0; s.k += l.depth) {
                s.rows = hd_min(l.rows, args->M - s.row);
                s.columns = hd_min(l.columns, args->N - s.column);
                s.depth = hd_min(l.depth, args->K - s.k);
                s.last = s.k + l.depth >= args->K;
                compute_slice(cpu, &s, s.row == 0 || args->K > l.depth);
            }
}
