/* distill: the divergence of one row from its teacher (hd_distill_args in ops_loss.h); one code for every
 * backend.
 *
 * Used by: kernels/cpu, kernels/cuda.   Uses: kernels.h.   Threads: pure functions.
 */
#ifndef HD_KERNELS_DISTILL_H
#define HD_KERNELS_DISTILL_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
#define HD_DISTILL_FUNCTION static __device__ __forceinline__
#else
#define HD_DISTILL_FUNCTION static inline
#endif

/* Smallest mass of the teacher in the tail bucket for reverse KL and JSD, which take its logarithm:
 * the mass is 1 - sum of kept q, and errors of log q in fp16 move it by about as much. */
#define HD_DISTILL_TAIL_MIN 1e-4

/* A bucket's term of the divergence, and p times the term's derivative by p. */
struct hd_distill_term {
    double loss, pf;
};

/* lp, lq: logarithms of the student's and the teacher's mass of the bucket. */
HD_DISTILL_FUNCTION struct hd_distill_term hd_distill_bucket(enum hd_distill_loss loss, double beta,
                                                             double lp, double lq)
{
    const double p = exp(lp), q = exp(lq);
    struct hd_distill_term t;
    double lm;

    switch (loss) {
    case HD_DISTILL_FORWARD:
        t.loss = q * (lq - lp);
        t.pf = -q;
        return t;
    case HD_DISTILL_REVERSE:
        t.loss = p * (lp - lq);
        t.pf = p * (lp - lq + 1);
        return t;
    case HD_DISTILL_JSD:
        break;
    }
    lm = log((1 - beta) * p + beta * q);
    t.loss = beta * q * (lq - lm) + (1 - beta) * (p > 0 ? p * (lp - lm) : 0);
    t.pf = (1 - beta) * (p > 0 ? p * (lp - lm) : 0);
    return t;
}

/* Softmax of a row over all ranks, from their stats. */
struct hd_distill_row {
    bool valid;        /* the target is in some rank's shard */
    double label_loss; /* -log p of the target */
    double label_max;  /* maximum and sum of exponentials of all mapped logits, */
    double label_sum;
    double target_logit; /* and the target's mapped logit */
    double max, sum;     /* of y over all real ids; sum of exp(y - max) */
    double rest;         /* part of `sum` of the ids that are not kept */
    bool taught;         /* the row has a teacher's record; else the members below are 0 */
    double divergence;   /* D */
    double pull;         /* F = sum_b p_b f_b */
    double rest_f;       /* f of the tail bucket; 0 without one */
};

/* Returns y of kept id number j of row r, from the rank that has it. */
HD_DISTILL_FUNCTION double hd_distill_kept(const struct hd_distill_args *a, int64_t r, int64_t j)
{
    double y = 0;

    for (int64_t p = 0; p < a->P; p++)
        y += (double)a->stats[(p * a->R + r) * HD_DISTILL_WORDS(a->k) + 6 + j];
    return y;
}

/* Returns the term of kept id number j. */
HD_DISTILL_FUNCTION struct hd_distill_term hd_distill_kept_term(const struct hd_distill_args *a,
                                                                const struct hd_distill_row *row,
                                                                int64_t r, int64_t j)
{
    return hd_distill_bucket(a->loss, (double)a->beta,
                             hd_distill_kept(a, r, j) - row->max - log(row->sum),
                             (double)a->logq[r * a->k + j]);
}

HD_DISTILL_FUNCTION void hd_distill_teach(const struct hd_distill_args *a, int64_t r,
                                          struct hd_distill_row *row)
{
    const int32_t *ids = a->ids + r * a->k;
    double mass = 0;

    for (int64_t j = 0; j < a->k && ids[j] >= 0; j++)
        row->sum += exp(hd_distill_kept(a, r, j) - row->max);
    for (int64_t j = 0; j < a->k && ids[j] >= 0; j++) {
        const struct hd_distill_term t = hd_distill_kept_term(a, row, r, j);

        row->divergence += t.loss;
        row->pull += t.pf;
        mass += exp((double)a->logq[r * a->k + j]);
    }
    if (a->tail && row->rest > 0) {
        const double least = a->loss == HD_DISTILL_FORWARD ? 0 : HD_DISTILL_TAIL_MIN;
        const double left = 1 - mass > least ? 1 - mass : least;
        struct hd_distill_term t = {0, 0};

        if (left > 0)
            t = hd_distill_bucket(a->loss, (double)a->beta, log(row->rest) - log(row->sum),
                                  log(left));
        row->divergence += t.loss;
        row->pull += t.pf;
        row->rest_f = t.pf * row->sum / row->rest;
    }
}

/* Computes all of a row whose target is not masked. */
HD_DISTILL_FUNCTION struct hd_distill_row hd_distill_row_of(const struct hd_distill_args *a,
                                                            int64_t r)
{
    struct hd_distill_row row;
    double owners = 0;

    memset(&row, 0, sizeof row);
    row.taught = a->ids[r * a->k] >= 0;
    row.label_max = row.max = -INFINITY;
    for (int64_t p = 0; p < a->P; p++) {
        const float *stats = a->stats + (p * a->R + r) * HD_DISTILL_WORDS(a->k);

        row.label_max = (double)stats[0] > row.label_max ? (double)stats[0] : row.label_max;
        row.max = (double)stats[4] > row.max ? (double)stats[4] : row.max;
        row.target_logit += (double)stats[2];
        owners += (double)stats[3];
    }
    for (int64_t p = 0; p < a->P; p++) {
        const float *stats = a->stats + (p * a->R + r) * HD_DISTILL_WORDS(a->k);

        row.label_sum += (double)stats[1] * exp((double)stats[0] - row.label_max);
        row.rest += stats[5] > 0 ? (double)stats[5] * exp((double)stats[4] - row.max) : 0;
    }
    row.sum = row.rest;
    row.valid = owners > 0;
    row.label_loss = log(row.label_sum) + (row.label_max - row.target_logit);
    if (row.valid && row.taught)
        hd_distill_teach(a, r, &row);
    return row;
}

/* Factors of a row's gradient by the raw logits, without the slope of a cap. The gradient of a column
 * is label * exp(z' - label_max) - (target: less) + rest * exp(y - max), z' the mapped logit; `rest`
 * is for real ids that are not kept. */
struct hd_distill_factors {
    double label, less, rest;
    double kept; /* of the kept: factor of p f - p F */
};

HD_DISTILL_FUNCTION struct hd_distill_factors
hd_distill_factors_of(const struct hd_distill_args *a, const struct hd_distill_row *row)
{
    const double scale = a->map.scale == 0 ? 1 : (double)a->map.scale;
    const double unit = (double)a->block->loss_scale * scale;
    const double w = row->taught ? (double)a->weight : 0;
    struct hd_distill_factors f;

    f.less = unit * (1 - w);
    f.label = f.less / row->label_sum;
    f.kept = unit * w / (double)a->temperature;
    f.rest = row->taught ? f.kept * (row->rest_f - row->pull) / row->sum : 0;
    return f;
}

/* Returns the gradient of kept id number j. */
HD_DISTILL_FUNCTION double hd_distill_kept_gradient(const struct hd_distill_args *a,
                                                    const struct hd_distill_row *row,
                                                    const struct hd_distill_factors *f, int64_t r,
                                                    int64_t j)
{
    const double y = hd_distill_kept(a, r, j), p = exp(y - row->max) / row->sum;
    const struct hd_distill_term t = hd_distill_kept_term(a, row, r, j);

    return f->label * exp(y * (double)a->temperature - row->label_max) -
           (a->ids[r * a->k + j] == a->target[r] ? f->less : 0) + f->kept * (t.pf - p * row->pull);
}

#endif
