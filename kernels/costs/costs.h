/* costs: what the rows of kernels.def say, and layouts of scratch.
 *
 * If scratch has several areas, a function here returns their layout; the backends take the offsets
 * from it, so the planned size and the used size always agree. Functions of one kernel are in the file
 * with the same name as its implementations.
 *
 * Used by: kernels/costs, kernels/cpu, kernels/cuda.   Uses: base, kernels.h.
 * Threads: pure functions.
 */
#ifndef HD_KERNELS_COSTS_COSTS_H
#define HD_KERNELS_COSTS_COSTS_H

#include "kernels/kernels.h"

/* ---- Called by the rows of kernels.def ---- */

/* Returns the elements from the first to behind the last of rows that lie `ld` elements apart. */
static inline int64_t hd_costs_extent(int64_t rows, int64_t ld, int64_t columns)
{
    return rows > 0 ? (rows - 1) * ld + columns : 0;
}

/* Returns whether a factor of an argument struct multiplies anything. */
static inline bool hd_costs_scales(float factor)
{
    return hd_factor_of(factor) != 1;
}

/* Returns the rows that k and v have at least: a cache may have its sequences in any slots. */
static inline int64_t hd_costs_cached_rows(const struct hd_attention_forward_args *a)
{
    return (a->kv_slot ? 0 : (a->B - 1) * a->kv_stride) + a->kv_len;
}

/* A factor of a product that may be quantised: bytes of its memory, and bytes of it that are read. */
struct hd_costs_factor_bytes {
    int64_t extent_bytes, moved_bytes;
};
struct hd_costs_factor_bytes hd_costs_factor(const struct hd_quant_factor *codes, int64_t rows,
                                             int64_t columns, int64_t ld, enum hd_dtype dtype);
struct hd_costs_factor_bytes hd_costs_gemm_b(const struct hd_gemm_args *args);
struct hd_costs_factor_bytes hd_costs_grouped_b(const struct hd_grouped_gemm_args *args);

/* Returns the columns of a GEMM's c and gelu_inp: N; with HD_EPILOGUE_GLU N / 2, with its backward
 * 2 N. */
int64_t hd_costs_gemm_columns(const struct hd_gemm_args *args);

static inline bool hd_costs_gemm_is_gated(const struct hd_gemm_args *args)
{
    return args->epilogue == HD_EPILOGUE_GLU || args->epilogue == HD_EPILOGUE_GLU_BACKWARD;
}

/* Return operations: of a GEMM's epilogue; per element of an activation, and of its product with an
 * up projection; of a residual; per logit of its map, and of its gradient; of a launch. */
int64_t hd_costs_epilogue_flops(const struct hd_gemm_args *args);
int hd_costs_activation_flops(enum hd_activation act, bool backward);
int hd_costs_glu_flops(enum hd_activation act, bool backward);
int hd_costs_residual_flops(const void *add, float factor);
int hd_costs_map_flops(struct hd_logit_map map);
int hd_costs_map_gradient_flops(struct hd_logit_map map);
double hd_costs_attention_forward_flops(const struct hd_attention_forward_args *args);
double hd_costs_attention_backward_flops(const struct hd_attention_backward_args *args);
double hd_costs_delta_flops(int64_t B, int64_t S, int64_t H, int64_t Dk, int64_t Dv);
double hd_costs_delta_summary_flops(const struct hd_delta_summary_args *args);
struct hd_costs hd_costs_newton(const struct hd_newton_schulz_args *args);

/* Returns the bytes of one partial sum of N floats per chunk of R rows. */
int64_t hd_costs_partial_bytes(const struct hd_traits *traits, int64_t R, int64_t N);
/* Returns the number of sums over rows that the gradients of a LayerNorm's weights need. A GPU
 * computes both, and does not use that of dbias if it is absent. */
int hd_costs_layernorm_sums(const struct hd_traits *traits, const float *dbias);

/* Return the bytes of a launch's scratch. */
#define SCRATCH(name) \
    int64_t hd_scratch_##name(const struct hd_##name##_args *args, const struct hd_traits *traits)
SCRATCH(gemm);
SCRATCH(fp8_gemm);
SCRATCH(grouped_gemm_weight);
SCRATCH(embedding_backward);
SCRATCH(head_norm_backward_weight);
SCRATCH(attention_forward);
SCRATCH(attention_backward);
SCRATCH(regroup);
#undef SCRATCH

/* ---- Layouts of scratch, and checks of arguments ---- */

/* Sums over rows are computed as partial sums of `count` chunks of `rows` rows (the last may have
 * fewer), which are then added in order. The chunks depend on R only, so the result does not depend
 * on the number of threads. */
struct hd_costs_chunks {
    int64_t rows, count;
};
struct hd_costs_chunks hd_costs_row_chunks(int64_t R);
/* Returns the division of R rows into chunks for a GPU, which needs more chunks to use all its
 * multiprocessors. */
struct hd_costs_chunks hd_costs_device_row_chunks(int64_t R);
/* Returns the division of R rows into chunks on the device with these traits:
 * hd_costs_device_row_chunks on a GPU, else hd_costs_row_chunks. */
struct hd_costs_chunks hd_costs_row_chunks_on(const struct hd_traits *traits, int64_t R);

/* Limits for a norm on a GPU: its backward computes the gradients of its weights in the same pass
 * if a row is a whole number of packs and at most two packs per thread of a block of 512
 * threads; its forward makes codes of fp8 up to the same length of a row. */
enum { HD_COSTS_PACK_BYTES = 16, HD_COSTS_NORM_WEIGHTS_ROW_BYTES = 512 * 2 * HD_COSTS_PACK_BYTES };

/* Layout of the scratch of embedding_backward on a GPU: the rows of dout are sorted by index. An
 * index with more than PIECE rows is summed in pieces of PIECE rows. Offsets in bytes. */
enum { HD_COSTS_EMBEDDING_PIECE = 64 };
struct hd_costs_embedding_layout {
    int64_t begin;  /* [V + 1] int32: position in `rows` of the first row with each index */
    int64_t rows;   /* [R] int32: row numbers, sorted by index */
    int64_t pieces; /* [2 * ceil(R / PIECE), C] fp32: partial sums */
    int64_t scratch_bytes;
};
struct hd_costs_embedding_layout
hd_costs_lay_out_embedding(const struct hd_embedding_backward_args *args);

/* Returns HD_OK, or HD_UNSUPPORTED if the channels that rotate are not pairs within a head. */
enum hd_status hd_costs_check_rope(const struct hd_rope_args *args);

/* Number of thread blocks of route_record on a GPU; each block writes one record to scratch. */
enum { HD_COSTS_RECORD_BLOCKS = 64 };

/* Heddle's own GEMM on the CPU computes one slab (rectangle) of c at a time. For each slice of the
 * depth K, the threads pack the slab's rows of a and columns of b into shared panels, then compute
 * the slab tile by tile. A panel consists of 32-bit words: one fp32 value, or two bf16 values that
 * are neighbours along K. */
enum {
    HD_COSTS_GEMM_PAIRS = 512,  /* maximum depth of a slice of K, in words that are pairs */
    HD_COSTS_GEMM_WORDS = 1024, /* maximum depth of a slice of K, in words that are fp32 values */
    HD_COSTS_GEMM_SLAB = 672 * 1024, /* maximum rows of a slab (1344 of pairs, 672 of fp32 values: a
                                        multiple of every panel's rows) times that depth */
    HD_COSTS_GEMM_ROWS_ALIGN = 42, /* multiple of the rows of every panel of fp32 values (6, 14) */
    HD_COSTS_GEMM_COLUMNS = 1024,  /* columns of a slab: a multiple of every panel's columns (8, 16,
                                     32) */
    HD_COSTS_GEMM_PANEL = 32,      /* maximum rows, or columns, of a panel */
    HD_COSTS_GEMM_WORDS_ALIGN = 16
};
struct hd_costs_gemm_layout {
    bool pairs;               /* true: a word of a panel is a pair of bf16 values; false: one fp32
                                 value */
    int64_t rows, columns;    /* rows and columns of a slab of c */
    int64_t depth, words;     /* depth of a slice of K: in elements; in words */
    int64_t a_words, b_words; /* sizes of the packed panels of a and of b for one slice, in words */
    int64_t a_gap;         /* unused words behind each packed panel of a: panels then begin an odd
                                 number of cache lines apart, so that packing a transposed a, which
                                 writes to all panels in turn, does not stay in one cache set */
    int64_t sums_floats;   /* number of fp32 sums [rows, columns] in scratch if c cannot hold
                                 them, else 0 */
    int64_t strip_bytes;   /* bytes per thread for the decoded columns of a panel, if b is
                                 quantised; else 0 */
    int64_t scratch_bytes; /* total bytes of the scratch */
};
struct hd_costs_gemm_layout hd_costs_lay_out_gemm(const struct hd_gemm_args *args,
                                                  const struct hd_traits *traits);
/* Returns true if the GEMM's b is quantised: it has codes instead of elements. */
bool hd_costs_gemm_is_encoded(const struct hd_gemm_args *args);
/* Limits of a slab on a GPU: codes of b are decoded to scratch before they are multiplied, one slab
 * of columns of c at a time, so that the scratch is bounded. */
enum { HD_COSTS_DECODED_BYTES = 64 << 20, HD_COSTS_DECODED_COLUMNS = 256 };
struct hd_costs_slabs {
    int64_t columns;       /* columns of a slab of c; the last slab may have fewer */
    int64_t decoded_bytes; /* bytes of decoded values at the begin of the scratch; the product's
                              scratch follows */
};
struct hd_costs_slabs hd_costs_gemm_slabs(const struct hd_gemm_args *args);
/* Returns the unquantised GEMM of the slab that begins with column `first` of c; its b is the
 * decoded slab in the scratch. */
struct hd_gemm_args hd_costs_gemm_slab(const struct hd_gemm_args *args, int64_t first);
/* Returns the number of experts whose weights a grouped GEMM on a GPU decodes at once: as many as
 * HD_COSTS_DECODED_BYTES hold, at least one. */
int64_t hd_costs_grouped_slab_experts(const struct hd_grouped_gemm_args *args);
/* Returns HD_INVALID for a combination of bias, epilogue and accumulate that ops.h forbids. */
enum hd_status hd_costs_gemm_check(const struct hd_gemm_args *args);
/* Returns true if the GEMM is one contiguous row times a transposed matrix, as in decoding:
 * Heddle's own code then reads b once, in order, and needs no scratch. */
bool hd_costs_gemm_is_row(const struct hd_gemm_args *args);
/* Returns true if Heddle's own code computes this GEMM: there is no GEMM library, or own code is
 * preferred to it. */
bool hd_costs_gemm_is_own(const struct hd_gemm_args *args, const struct hd_traits *traits);

/* Layout of the scratch of an fp8 product on the CPU: the factors are decoded to bf16, exactly, for
 * a GEMM of bf16 factors. Offsets in bytes. */
struct hd_costs_fp8_layout {
    int64_t a, b, gemm; /* [M, K] and [N, K] bf16; scratch of the GEMM */
    int64_t scratch_bytes;
};
struct hd_costs_fp8_layout hd_costs_lay_out_fp8(const struct hd_fp8_gemm_args *args,
                                                const struct hd_traits *traits);
/* Returns the GEMM of bf16 that computes an fp8 product on the CPU, with the addresses of the
 * decoded factors in the scratch. */
struct hd_gemm_args hd_costs_fp8_product(const struct hd_fp8_gemm_args *args,
                                         const struct hd_traits *traits);
/* Returns the product as a GEMM of bf16 factors: its shape, bias and result, without addresses of
 * factors and scratch. */
struct hd_gemm_args hd_costs_fp8_as_gemm(const struct hd_fp8_gemm_args *args);
/* Returns HD_INVALID for arguments of an fp8 product that ops.h forbids. */
enum hd_status hd_costs_fp8_check(const struct hd_fp8_gemm_args *args);

/* Layout of the scratch of newton_schulz: a second X at its begin, and the offsets in bytes of the
 * areas behind it. */
enum { HD_COSTS_NEWTON_PART = 4096 }; /* elements whose squares are summed together */
struct hd_costs_newton_layout {
    int64_t n;      /* the smaller side of a matrix */
    int64_t parts;  /* number of sums of squares */
    int64_t gram;   /* [n, n] dtype: G, then the polynomial of G */
    int64_t square; /* [n, n] fp32: G G */
    int64_t sums;   /* [parts] double: sums of squares */
    int64_t gemm;   /* scratch of the products */
    int64_t scratch_bytes;
};
struct hd_costs_newton_layout hd_costs_lay_out_newton(const struct hd_newton_schulz_args *args,
                                                      const struct hd_traits *traits);
/* The products of an iteration: G of X; G G, in fp32; the polynomial of G times X. Return one as a
 * GEMM: hd_costs_newton_product without addresses, hd_costs_newton_bound from X at `inp` to `out`,
 * with all of them. */
enum hd_newton_product { HD_NEWTON_GRAM, HD_NEWTON_SQUARE, HD_NEWTON_STEP, HD_NEWTON_PRODUCTS };
struct hd_gemm_args hd_costs_newton_product(const struct hd_newton_schulz_args *args,
                                            enum hd_newton_product product);
struct hd_gemm_args hd_costs_newton_bound(const struct hd_newton_schulz_args *args,
                                          const struct hd_costs_newton_layout *layout,
                                          enum hd_newton_product product, const void *inp,
                                          void *out);
/* Returns the factors of I, G and G G in iteration i, counted from 0; those of the last one contain
 * `scale`. */
struct hd_newton_terms {
    float a, b, c;
};
struct hd_newton_terms hd_costs_newton_terms(const struct hd_newton_schulz_args *args, int64_t i);
/* Returns an error for arguments of newton_schulz that ops_update.h forbids. */
enum hd_status hd_costs_newton_check(const struct hd_newton_schulz_args *args);

/* Returns HD_INVALID for an activation that ops.h forbids without an up projection. */
enum hd_status hd_costs_activation_check(enum hd_activation act);

/* Returns HD_INVALID if route_forward (ops_moe.h) cannot choose with these arguments. */
enum hd_status hd_costs_route_check(const struct hd_route_forward_args *args);

/* Operations per element of GELU, x * sigmoid(2u): u (4), doubling (1), sigmoid (3), product (1);
 * and of its backward: sigmoid(2u) (8), its derivative (2), du/dx (3), combining them (5). */
enum { HD_COSTS_GELU_FLOPS = 9, HD_COSTS_GELU_BACKWARD_FLOPS = 18 };

/* Parameters of grouped GEMMs on the CPU: own code, one expert after the other. All threads share
 * an expert with more than SMALL rows. If there are at least SMALL_PER_THREAD smaller experts per
 * thread (so that threads finish at about the same time), each thread computes whole small experts,
 * with scratch of its own. With T <= ONE_BY_ONE rows (decoding), rows are multiplied one by one. */
enum {
    HD_COSTS_GROUPED_SMALL = 512,
    HD_COSTS_GROUPED_SMALL_PER_THREAD = 2,
    HD_COSTS_GROUPED_ONE_BY_ONE = 8
};
struct hd_costs_grouped_layout {
    int64_t begins_bytes; /* bytes of the array [E + 1] int64 with the first row of each expert */
    int64_t thread_bytes; /* bytes of scratch per thread for small experts; 0: all threads share
                             every expert */
    int64_t scratch_bytes;
};
struct hd_costs_grouped_layout hd_costs_lay_out_grouped(const struct hd_grouped_gemm_args *args,
                                                        const struct hd_traits *traits);
bool hd_costs_grouped_is_one_by_one(const struct hd_grouped_gemm_args *args);
/* Return the arguments of the GEMM of one expert with `rows` rows; their pointers are NULL. */
struct hd_gemm_args hd_costs_grouped_product(const struct hd_grouped_gemm_args *args, int64_t rows);
struct hd_gemm_args hd_costs_grouped_weight_product(const struct hd_grouped_gemm_weight_args *args,
                                                    int64_t rows);

/* Layout of the scratch of regroup on a GPU. Offsets in bytes. */
struct hd_costs_regroup_layout {
    int64_t places;   /* [P, E] int64: first row of (rank, expert) in (expert, rank) order */
    int64_t arrivals; /* [P * E + 1] int64: first row of (rank, expert) in (rank, expert) order,
                         then the total */
    int64_t scratch_bytes;
};
struct hd_costs_regroup_layout hd_costs_lay_out_regroup(const struct hd_regroup_args *args);

/* Layout of the scratch of attention on the CPU in fp32. A "row" is a pair (head of one group,
 * query); "width" is the head width, padded. A thread works on a block of rows against one tile of
 * keys at a time. Offsets are in floats from the start of the thread's scratch; a member that
 * forward or backward does not use is 0. */
enum {
    HD_COSTS_ATTENTION_ROWS = 512, /* rows of a block of rows */
    HD_COSTS_ATTENTION_TILE = 64,  /* number of rows, and of keys, of a tile of scores */
    HD_COSTS_ATTENTION_ODD = 16,   /* `floats | this`: an odd number of cache lines, if floats is a
                                      multiple of 16; rows at that distance from each other lie in
                                      different sets of a cache */
    /* distance of the rows of a transposed tile of keys, in floats */
    HD_COSTS_ATTENTION_KEYS_LD = HD_COSTS_ATTENTION_TILE | HD_COSTS_ATTENTION_ODD,
    HD_COSTS_ATTENTION_D_MAX = 256
};
struct hd_costs_attention_layout {
    int64_t block_rows, width; /* rows of a block of rows; D rounded up to 16, then | ODD */
    /* offsets of areas for a block of rows */
    int64_t q, out, dout, dq;     /* [block_rows, width] */
    int64_t max, sum, lse, delta; /* [block_rows] */
    int64_t index, bound, slope;  /* [block_rows] int32, int32, float */
    /* offsets of areas for a tile of keys */
    int64_t k, v;          /* [TILE, width] */
    int64_t k_t, v_t;      /* [D, KEYS_LD] */
    int64_t key_index;     /* [TILE] int32 */
    int64_t score, dscore; /* [TILE, TILE] */
    /* offsets of areas for a whole group (the query heads that share a key/value head) */
    int64_t dk, dv; /* [kv_len rounded up to TILE, width] */
    int64_t thread_floats;
};
struct hd_costs_attention_layout
hd_costs_attention_forward_layout(const struct hd_attention_forward_args *args);
struct hd_costs_attention_layout
hd_costs_attention_backward_layout(const struct hd_attention_backward_args *args);

/* Layout of the scratch of attention on the CPU in bf16, on panels of words (kernels/cpu/panel.h),
 * in the same blocks of rows. Offsets are in bytes from the start of the thread's scratch; a word
 * is two bf16.
 */
enum {
    HD_COSTS_ATTENTION_ROWS_MIN = 8,       /* minimum rows of a group for panels: with fewer,
                                              packing costs more than it saves */
    HD_COSTS_ATTENTION_PANEL = 32,         /* largest number of rows of a left panel; number of
                                              columns of a right panel */
    HD_COSTS_ATTENTION_KEYS_FORWARD = 256, /* forward: number of keys of a tile */
    HD_COSTS_ATTENTION_KEYS_BACKWARD = 128,
    HD_COSTS_ATTENTION_QUERIES = 128 /* backward: number of rows whose p and ds are stored at a
                                        time */
};
struct hd_costs_attention_panels {
    int64_t block_rows, width; /* rows of a block of rows, and D, both rounded up to
                                  HD_COSTS_ATTENTION_PANEL */
    int64_t keys;              /* maximum number of keys of a tile */
    /* offsets of areas for a block of rows */
    int64_t q;                   /* [block_rows, width] bf16 */
    int64_t out;                 /* [block_rows, width] fp32 */
    int64_t q_t, dout_t;         /* [block_rows/32][width/2, 32] words: two neighbours in D */
    int64_t q_words, dout_words; /* [width/32][block_rows/2, 32] words: two adjacent rows */
    int64_t dq;                  /* [block_rows/32][width, 32] fp32 */
    int64_t max, sum, lse, delta, slope; /* [block_rows] fp32 */
    int64_t index, bound;                /* [block_rows] int32 */
    /* offsets of areas for a tile of keys */
    int64_t k_t;           /* forward [keys/32][width/2, 32] words, backward [width, keys] bf16 */
    int64_t v_words;       /* [width/32][keys/2, 32] */
    int64_t k, v;          /* [keys, width] bf16 */
    int64_t key_index;     /* [keys] int32 */
    int64_t score, dscore; /* [PANEL, keys], backward [PANEL, PANEL] fp32 */
    int64_t p, ds;         /* [PANEL, keys], backward [keys, QUERIES] bf16 */
    int64_t ds_words;      /* [keys/2, PANEL] */
    /* offsets of areas for a whole group (the query heads that share a key/value head) */
    int64_t dk, dv; /* [kv_len rounded up to keys, width] fp32 */
    int64_t thread_bytes;
};
/* Returns true if attention uses panels: the CPU multiplies bf16 and a group has enough rows to
 * share the packed keys. Else it uses vectors of fp32, which support every dtype and size. */
bool hd_costs_attention_is_on_panels(enum hd_dtype dtype, int64_t group_rows,
                                     const struct hd_traits *traits);
struct hd_costs_attention_panels
hd_costs_attention_forward_panels(const struct hd_attention_forward_args *args);
struct hd_costs_attention_panels
hd_costs_attention_backward_panels(const struct hd_attention_backward_args *args);

/* Layout of the scratch of gated_delta. On the CPU a thread computes one chunk of one key head at a
 * time, with the value heads that share it, n = H / G of them; on a GPU a thread block computes one
 * value head, and the members that only the CPU has for n heads are for one. `rows` is
 * HD_DELTA_CHUNK, `key` and `value` are Dk and Dv rounded up to 16. Offsets are in floats from the
 * start of the thread's or block's scratch. */
struct hd_costs_delta_layout {
    int64_t rows, key, value, chunks; /* chunks: number of chunks of a sequence */
    int64_t q, k;                     /* [rows, key]: normalised, q times 1 / sqrt(Dk) */
    int64_t transposed;               /* [max(key, value), max(rows, key, value)] */
    int64_t qk, kk;                   /* [rows, rows]: products q_i.k_j and k_i.k_j */
    int64_t a, l;                     /* [rows, rows]: A and -L of the contract */
    int64_t u, km;      /* [rows, value]: U and K M; summary [rows, max(key, value)] */
    int64_t wide;       /* [rows, max(rows, key, value)] */
    int64_t state;      /* [n, key, value]; backward [chunks, n, key, value] */
    int64_t transition; /* [n, key, key]; summary only */
    int64_t vectors;    /* [HD_COSTS_DELTA_VECTORS, rows] */
    /* areas that only backward uses, and state_gradient: dout, du and dstate */
    int64_t dout, du, qm; /* [rows, value] */
    int64_t dq, dk;       /* [rows, key] */
    int64_t da, dl;       /* [rows, rows] */
    int64_t dstate;       /* [n, key, value] */
    int64_t floats;       /* floats of a thread or block */
    int64_t dq_of, dk_of; /* GPU: [B*S, H, Dk] each, after the blocks' scratch: gradients of q and k
                               by value head */
    int64_t scratch_floats; /* floats of all threads or blocks, dq_of and dk_of */
};
enum { HD_COSTS_DELTA_VECTORS = 10 }; /* vectors of HD_DELTA_CHUNK floats in `vectors` */
struct hd_costs_delta_layout
hd_costs_delta_forward_layout(const struct hd_gated_delta_forward_args *args,
                              const struct hd_traits *traits);
struct hd_costs_delta_layout
hd_costs_delta_backward_layout(const struct hd_gated_delta_backward_args *args,
                               const struct hd_traits *traits);
struct hd_costs_delta_layout hd_costs_delta_summary_layout(const struct hd_delta_summary_args *args,
                                                           const struct hd_traits *traits);
struct hd_costs_delta_layout
hd_costs_delta_state_gradient_layout(const struct hd_delta_state_gradient_args *args,
                                     const struct hd_traits *traits);
/* Returns the number of segments that delta_prefix goes through, whose matrices it applies. */
int64_t hd_costs_delta_prefix_steps(const struct hd_delta_prefix_args *args);
/* Return HD_UNSUPPORTED for sizes that ops_delta.h forbids. */
enum hd_status hd_costs_check_delta(int64_t G, int64_t H, int64_t Dk, int64_t Dv);
enum hd_status hd_costs_check_conv(int64_t W);

/* Layout of the scratch of attention on a GPU. A first kernel computes, once for all heads, the
 * mask extents: the range of key indices that each query sees, and extremes over granules of 32
 * queries or keys, by which tiles without visible pairs are skipped. Offsets in bytes. Lengths are
 * padded, so a tile never spans two sequences. */
enum {
    HD_COSTS_ATTENTION_GRANULE = 32, /* number of queries, or of keys, of a granule */
    HD_COSTS_ATTENTION_PAD = 128,    /* number of queries or keys of the largest tile */
    HD_COSTS_ATTENTION_KEYS = 128    /* number of keys per thread block that computes dk and dv */
};
struct hd_costs_attention_mask_extents {
    int64_t q_pad, kv_pad; /* q_len and kv_len, rounded up to HD_COSTS_ATTENTION_PAD */
    int64_t keys;          /* [B, kv_pad] int32: index of each key in its sample */
    int64_t key_extents;   /* [B, kv_pad/GRANULE, 2] int32: minimum and maximum index of a granule
                              of keys */
    int64_t queries;       /* [B, q_pad, 2] int32: smallest and largest key index that each query
                              sees */
    int64_t query_extents; /* [B, q_pad/GRANULE, 4] int32: minimum and maximum, over a granule of
                              queries, of both */
    int64_t stats;         /* backward: [B, H, q_pad, 2] float: log-sum-exp and delta of each
                              query */
    /* Backward with few key heads: the query heads that share a key head are split into `parts` of
     * at most part_heads heads, whose dk and dv are summed separately and then added in order. With
     * one part no sums are stored. The split depends on the shape only, so results are repeatable.
     */
    int64_t parts, part_heads;
    int64_t parts_dk, parts_dv; /* [B, G, parts, kv_len, D] float; empty with one part */
    int64_t bytes;              /* bytes of the whole scratch */
};
/* Returns true if attention on a GPU uses tensor cores, which support this dtype and head width;
 * else plain fp32 code runs, which never splits heads. */
bool hd_costs_attention_is_tiled(enum hd_dtype dtype, int64_t D);
/* Returns HD_INVALID for arguments with which ops_attention.h forbids `sums`, if they are given. */
enum hd_status hd_costs_attention_check_sums(const struct hd_attention_backward_args *args);
struct hd_costs_attention_mask_extents
hd_costs_attention_forward_mask_extents(const struct hd_attention_forward_args *args);
struct hd_costs_attention_mask_extents
hd_costs_attention_backward_mask_extents(const struct hd_attention_backward_args *args);

#endif
