/* attention_problem: one problem of attention for the tests of its kernels: operands, what they
 * give in double, the arguments of a launch over rows that are apart, and the comparison.
 */
#ifndef HD_TESTS_ATTENTION_PROBLEM_H
#define HD_TESTS_ATTENTION_PROBLEM_H

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

struct shape {
    int64_t B, q_len, kv_len, kv_stride, H, G, D;
    int64_t window, kv_filled; /* 0: none; -1: none, else of sequence 0 */
    int64_t pad;               /* elements between rows */
    int64_t chunk;             /* 0: none */
    double spread;             /* of q; 0: 1 */
    double cap;                /* of scores; 0: none */
    bool causal, bound, slopes, sinks;
};

/* One problem: dense values for the reference, spread rows for the kernel. */
struct problem {
    const struct shape *s;
    enum hd_dtype dtype;
    struct ref_attention ref;
    const struct tensor *q, *k, *v, *dout; /* dense */
    const struct tensor *q_index, *kv_index, *q_bound, *slopes, *kv_filled, *kv_slot;
    const struct tensor *sinks;     /* of the encoding */
    struct tensor *out_dense, *lse; /* of the reference, rounded */
    double *out, *lse_exact;
    int64_t ldq, ldkv; /* of the kernel's tensors */
};

/* Queries are the last q_len of kv_len positions; with bounds documents of 33 positions follow one
 * another, so that one begins at the last key of a tile. All until tensors_free(). */
struct problem attention_problem(const struct shape *s, enum hd_dtype dtype);
/* Returns the reference with the errors that low precision may have. */
struct ref_attention attention_naive(const struct problem *p);

/* The kernel's rows back to dense ones; between them nothing was written. */
struct tensor *gather_rows(const struct tensor *spread, int64_t rows, int64_t width, int64_t ld);

/* Rows of keys or values as the kernel has them: sequence b of a cache, which has 20 b keys
 * less than the first one, is in slot B - 1 - b; rows of a cache that are not filled, and those
 * past kv_len, hold NaN. */
struct hd_attention_forward_args attention_forward_args(const struct problem *p, struct tensor *out,
                                                        struct tensor *lse);
/* Without the gradients. */
struct hd_attention_backward_args attention_backward_args(const struct problem *p);

/* Compares by the rule of the encoding and the device. */
void attention_check(const char *what, const struct device *device, const struct problem *p,
                     const struct tensor *got, const double *want, const double *naive,
                     double fp32_units);

/* The gradients of q, k and v: as they should be, as the naive ones are, and what was there. */
struct gradient {
    double *want, *naive;
    const struct tensor *old;
    struct tensor *got; /* spread */
};

/* `dtype`: of the old values, which are in what is wanted if they are added to. */
void attention_gradients(const struct problem *p, enum hd_dtype dtype, bool accumulate,
                         struct gradient g[3]);
/* Launches backward in a setting and compares. */
void attention_check_backward(const struct setting *setting, const struct problem *p,
                              enum hd_dtype grad_dtype, bool accumulate, struct gradient g[3]);

#endif
