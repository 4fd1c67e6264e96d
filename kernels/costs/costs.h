/* costs: what each kernel needs and costs, as plain C over its arguments and the traits of a
 * device.
 *
 * One pair of functions per kernel, in the file with the stem of its implementations. Where scratch
 * has parts, the layout is a function here and the CPU backend takes its offsets from it, so that
 * what is planned and what is used cannot drift apart.
 *
 * Costs count floating point operations by shape (a multiply and an add are two, an exponential is
 * one) and every tensor once: what a perfect cache would still have to move.
 *
 * Used by: kernels/costs, kernels/cpu, kernels/cuda.   Uses: base, kernels.h.
 * Threads: pure functions.
 */
#ifndef HD_KERNELS_COSTS_COSTS_H
#define HD_KERNELS_COSTS_COSTS_H

#include "kernels/kernels.h"

#define K(name, operands)                                          \
    int64_t hd_scratch_##name(const struct hd_##name##_args *args, \
                              const struct hd_traits *traits);     \
    void hd_cost_##name(struct hd_costs *costs, const struct hd_##name##_args *args);
HD_KERNEL_LIST(K)
#undef K

/* For kernels that need none. */
#define HD_COSTS_NO_SCRATCH(name)                                                                  \
    int64_t hd_scratch_##name(const struct hd_##name##_args *args, const struct hd_traits *traits) \
    {                                                                                              \
        (void)args;                                                                                \
        (void)traits;                                                                              \
        return 0;                                                                                  \
    }

/* Sums over rows are cut into `count` chunks of `rows` rows (the last may be shorter), which depend
 * on R alone; the chunks' partial sums are added in order. */
struct hd_costs_chunks {
    int64_t rows, count;
};
struct hd_costs_chunks hd_costs_row_chunks(int64_t R);
/* The same for a GPU, which needs more chunks to keep busy. */
struct hd_costs_chunks hd_costs_device_row_chunks(int64_t R);
/* Either, by the device. */
struct hd_costs_chunks hd_costs_row_chunks_on(const struct hd_traits *traits, int64_t R);

/* The gradient of an embedding on a GPU: the rows are sorted by the index they name; an index that
 * more than PIECE rows name is summed piece by piece. Offsets in bytes. */
enum { HD_COSTS_EMBEDDING_PIECE = 64 };
struct hd_costs_embedding_layout {
    int64_t begin;  /* [V + 1] int32: where the rows of an index begin */
    int64_t rows;   /* [R] int32, sorted */
    int64_t pieces; /* [2 * ceil(R / PIECE), C] fp32 */
    int64_t scratch_bytes;
};
struct hd_costs_embedding_layout
hd_costs_embedding_layout(const struct hd_embedding_backward_args *args);

int64_t hd_costs_align(int64_t size_bytes); /* up to the next multiple of HD_TENSOR_ALIGN */

/* Own GEMM. A slab of c at a time: for each slice of the depth the threads pack the slab's rows of
 * a and columns of b into panels that they all share, then compute the slab tile by tile. Panels
 * hold 32-bit words: an fp32 value, or a pair of bf16 values that follow each other along the
 * depth. */
enum {
    HD_COSTS_GEMM_ROWS = 1344,    /* of a slab: a multiple of every panel's rows (6, 14, 32) */
    HD_COSTS_GEMM_COLUMNS = 1024, /* of a slab: a multiple of every panel's columns (8, 16, 32) */
    HD_COSTS_GEMM_WORDS = 512,    /* depth of a slice, in words */
    HD_COSTS_GEMM_PANEL = 32,     /* most rows, or columns, of a panel */
    HD_COSTS_GEMM_WORDS_ALIGN = 16
};
struct hd_costs_gemm_layout {
    bool pairs;               /* words are pairs */
    int64_t rows, columns;    /* of a slab */
    int64_t depth, words;     /* of a slice: elements, words */
    int64_t a_words, b_words; /* the slab's panels */
    int64_t sums_floats;      /* [rows, columns] where c cannot hold the sums; else 0 */
    int64_t scratch_bytes;    /* all of them */
};
struct hd_costs_gemm_layout hd_costs_gemm_layout(const struct hd_gemm_args *args,
                                                 const struct hd_traits *traits);
/* HD_INVALID where what stands behind a product means nothing. */
enum hd_status hd_costs_gemm_check(const struct hd_gemm_args *args);
/* True for one contiguous row times a transposed matrix, as decoding has it: own code reads b once,
 * in order, and needs no scratch. */
bool hd_costs_gemm_is_row(const struct hd_gemm_args *args);
/* True if own code computes this product although there is a library. */
bool hd_costs_gemm_is_own(const struct hd_gemm_args *args, const struct hd_traits *traits);

/* The gradient of the bias beside a product, as a launch of its own; its scratch stands behind the
 * product's. */
struct hd_bias_backward_args hd_costs_gemm_dbias(const struct hd_gemm_args *args,
                                                 const struct hd_traits *traits);

/* Operations per element of GELU, x * sigmoid(2u): u (4), twice (1), the sigmoid (3), the product
 * (1); of its backward: the sigmoid of 2u (8), its derivative (2), du/dx (3), and five to combine.
 */
enum { HD_COSTS_GELU_FLOPS = 9, HD_COSTS_GELU_BACKWARD_FLOPS = 18 };

/* Grouped products: own code, expert by expert. All threads share an expert of more rows than
 * SMALL; of smaller ones each thread takes whole experts, with scratch of its own, where there are
 * SMALL_PER_THREAD of them, so that none waits long for the last. So few rows as decoding has are
 * multiplied one by one. */
enum {
    HD_COSTS_GROUPED_SMALL = 512,
    HD_COSTS_GROUPED_SMALL_PER_THREAD = 2,
    HD_COSTS_GROUPED_ONE_BY_ONE = 8
};
struct hd_costs_grouped_layout {
    int64_t begins_bytes; /* where each expert's rows begin: [E + 1] int64 */
    int64_t thread_bytes; /* of one thread with a small expert; 0: no thread ever takes one */
    int64_t scratch_bytes;
};
struct hd_costs_grouped_layout hd_costs_grouped_layout(const struct hd_grouped_gemm_args *args,
                                                       const struct hd_traits *traits);
bool hd_costs_grouped_is_one_by_one(const struct hd_grouped_gemm_args *args);
/* The product of one expert with so many rows; without addresses. */
struct hd_gemm_args hd_costs_grouped_product(const struct hd_grouped_gemm_args *args, int64_t rows);
struct hd_gemm_args hd_costs_grouped_weight_product(const struct hd_grouped_gemm_weight_args *args,
                                                    int64_t rows);

/* Regrouping on a GPU. Offsets in bytes. */
struct hd_costs_regroup_layout {
    int64_t places; /* [P, E] int64: where each rank's rows of each expert go */
    int64_t
        arrivals; /* [P, E] int64, and one more: where they arrive, and how many rows there are */
    int64_t scratch_bytes;
};
struct hd_costs_regroup_layout hd_costs_regroup_layout(const struct hd_regroup_args *args);

/* Attention: a thread works on a block of rows (pairs of a head of one group and a query) against
 * tiles of keys, all as fp32 with the head width padded. Offsets are in floats from the thread's
 * part of the scratch; a member that a direction does not use is 0. */
enum {
    HD_COSTS_ATTENTION_ROWS = 512, /* rows of a block */
    HD_COSTS_ATTENTION_TILE = 64,  /* rows, and keys, of a tile of scores */
    HD_COSTS_ATTENTION_D_MAX = 256
};
struct hd_costs_attention_layout {
    int64_t block_rows, width; /* rows of a block; D rounded up to 16 */
    /* per row */
    int64_t q, out, dout, dq;     /* [block_rows, width] */
    int64_t q_t, dout_t;          /* the same by tiles, each transposed: [width, TILE] */
    int64_t max, sum, lse, delta; /* [block_rows] */
    int64_t index, bound, slope;  /* [block_rows] int32, int32, float */
    /* per tile of keys */
    int64_t k, v;          /* [TILE, width] */
    int64_t k_t, v_t;      /* [width, TILE] */
    int64_t key_index;     /* [TILE] int32 */
    int64_t score, dscore; /* [TILE, TILE] */
    /* per group */
    int64_t dk, dv; /* [kv_len rounded up to TILE, width] */
    int64_t thread_floats;
};
struct hd_costs_attention_layout
hd_costs_attention_forward_layout(const struct hd_attention_forward_args *args);
struct hd_costs_attention_layout
hd_costs_attention_backward_layout(const struct hd_attention_backward_args *args);

/* Attention on panels of bf16 words (kernels/cpu/panel.h), in the same blocks of rows. Offsets are
 * in bytes from the thread's part of the scratch; a word is two values of bf16. */
enum {
    HD_COSTS_ATTENTION_ROWS_MIN = 8,       /* rows of a group: fewer are not worth the packing */
    HD_COSTS_ATTENTION_PANEL = 32,         /* rows of a panel at most; its columns */
    HD_COSTS_ATTENTION_KEYS_FORWARD = 256, /* keys of a tile */
    HD_COSTS_ATTENTION_KEYS_BACKWARD = 128,
    HD_COSTS_ATTENTION_QUERIES = 128 /* rows whose p and ds are kept at a time, backward */
};
struct hd_costs_attention_panels {
    int64_t block_rows, width; /* rows of a block, D: both rounded up to PANEL */
    int64_t keys;              /* of a tile at most */
    /* per block of rows */
    int64_t q;                           /* [block_rows, width] bf16 */
    int64_t out;                         /* [block_rows, width] fp32 */
    int64_t q_t, dout_t;                 /* [block_rows/32][width/2, 32] words along D */
    int64_t q_words, dout_words;         /* [width/32][block_rows/2, 32] words along the rows */
    int64_t dq;                          /* [block_rows/32][width, 32] fp32 */
    int64_t max, sum, lse, delta, slope; /* [block_rows] fp32 */
    int64_t index, bound;                /* [block_rows] int32 */
    /* per tile of keys */
    int64_t k_t;           /* forward [keys/32][width/2, 32] words, backward [width, keys] bf16 */
    int64_t v_words;       /* [width/32][keys/2, 32] */
    int64_t k, v;          /* [keys, width] bf16 */
    int64_t key_index;     /* [keys] int32 */
    int64_t score, dscore; /* [PANEL, keys], backward [PANEL, PANEL] fp32 */
    int64_t p, ds;         /* [PANEL, keys], backward [keys, QUERIES] bf16 */
    int64_t ds_words;      /* [keys/2, PANEL] */
    /* per group */
    int64_t dk, dv; /* [kv_len rounded up to keys, width] fp32 */
    int64_t thread_bytes;
};
/* Who attends: panels where the device multiplies bf16 and a group has enough rows to share what is
 * packed; else vectors of fp32, which take everything. */
bool hd_costs_attention_is_on_panels(enum hd_dtype dtype, int64_t group_rows,
                                     const struct hd_traits *traits);
struct hd_costs_attention_panels
hd_costs_attention_forward_panels(const struct hd_attention_forward_args *args);
struct hd_costs_attention_panels
hd_costs_attention_backward_panels(const struct hd_attention_backward_args *args);

/* Attention on a GPU: a pass of its own writes down, once for all heads, which keys every query
 * sees, as a range of indices, and the extremes over granules of both, by which tiles are left out.
 * Offsets in bytes; lengths padded so that a tile never ends between two sequences. */
enum {
    HD_COSTS_ATTENTION_GRANULE = 32, /* queries, keys */
    HD_COSTS_ATTENTION_PAD = 128,    /* the largest tile of either */
    HD_COSTS_ATTENTION_KEYS = 128    /* of a block that forms dk and dv on tensor cores */
};
struct hd_costs_attention_sights {
    int64_t q_pad, kv_pad; /* q_len, kv_len rounded up to PAD */
    int64_t keys;          /* [B, kv_pad] int32: the key's index */
    int64_t key_extents;   /* [B, kv_pad/GRANULE, 2] int32 */
    int64_t queries;       /* [B, q_pad, 2] int32: the least and the largest index that it sees */
    int64_t query_extents; /* [B, q_pad/GRANULE, 4] int32 */
    int64_t stats;         /* backward: [B, H, q_pad, 2] float, log-sum-exp and delta */
    /* Backward, where few key heads serve many query heads: those that share one are cut into
     * `parts` of at most part_heads, whose dk and dv are summed apart and then added in order. One
     * part: there are no sums of parts. The cut depends on the shape alone, as the bits do on it.
     */
    int64_t parts, part_heads;
    int64_t parts_dk, parts_dv; /* [B, G, parts, kv_len, D] float */
    int64_t bytes;
};
/* Whether tensor cores take these; if not, plain code in fp32 does, which never cuts. */
bool hd_costs_attention_is_tiled(enum hd_dtype dtype, int64_t D);
struct hd_costs_attention_sights
hd_costs_attention_forward_sights(const struct hd_attention_forward_args *args);
struct hd_costs_attention_sights
hd_costs_attention_backward_sights(const struct hd_attention_backward_args *args);

#endif
