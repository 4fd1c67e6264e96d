/* principal: what is found are singular values and vectors, and the largest ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/program/cases.h"
#include "tests/program/test.h"
#include "train/principal.h"

static double at(const float *w, int64_t columns, int64_t i, int64_t k)
{
    return (double)w[i * columns + k];
}

/* Returns the largest singular value of x [m, n], by power iteration. */
static double largest(const double *x, int64_t m, int64_t n)
{
    double *v = calloc((size_t)n, sizeof *v), *u = calloc((size_t)m, sizeof *u), norm = 0;

    for (int64_t k = 0; k < n; k++)
        v[k] = sin((double)k + 1);
    for (int round = 0; round < 300; round++) {
        memset(u, 0, (size_t)m * sizeof *u);
        for (int64_t i = 0; i < m; i++)
            for (int64_t k = 0; k < n; k++)
                u[i] += x[i * n + k] * v[k];
        memset(v, 0, (size_t)n * sizeof *v);
        for (int64_t i = 0; i < m; i++)
            for (int64_t k = 0; k < n; k++)
                v[k] += x[i * n + k] * u[i];
        norm = 0;
        for (int64_t k = 0; k < n; k++)
            norm += v[k] * v[k];
        norm = sqrt(norm);
        for (int64_t k = 0; k < n && norm > 0; k++)
            v[k] /= norm;
    }
    free(v);
    free(u);
    return sqrt(norm);
}

/* Goal: b a is the part of w with its r largest singular values (Eckart & Young). Method: the vectors are
 * orthogonal, and a and b share each value evenly; the rest of w is orthogonal to them on both sides, and has no
 * value above the least that was taken. */
static void check(int64_t m, int64_t n, int64_t r)
{
    float *w = calloc((size_t)(m * n), sizeof *w), *a = calloc((size_t)(r * n), sizeof *a),
          *b = calloc((size_t)(m * r), sizeof *b), *again = calloc((size_t)(r * n), sizeof *a);
    double *rest = calloc((size_t)(m * n), sizeof *rest), least = INFINITY;

    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < n; k++)
            w[i * n + k] = (float)(sin((double)(i * n + k) * (double)(i + k + 3)) +
                                   3 * cos((double)i) * cos((double)(2 * k)) +
                                   2 * sin((double)(3 * i)) * cos((double)k));
    must(hd_principal_find(w, m, n, r, 1, a, b));
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < n; k++) {
            rest[i * n + k] = at(w, n, i, k);
            for (int64_t j = 0; j < r; j++)
                rest[i * n + k] -= at(b, r, i, j) * at(a, n, j, k);
        }
    for (int64_t j = 0; j < r; j++)
        for (int64_t l = 0; l < r; l++) {
            double of_a = 0, of_b = 0;

            for (int64_t k = 0; k < n; k++)
                of_a += at(a, n, j, k) * at(a, n, l, k);
            for (int64_t i = 0; i < m; i++)
                of_b += at(b, r, i, j) * at(b, r, i, l);
            assert_true(fabs(of_a - of_b) < 1e-4 && (j == l) == (of_a > 1e-3));
            least = j == l ? fmin(least, of_a) : least;
        }
    for (int64_t j = 0; j < r; j++) {
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;

            for (int64_t k = 0; k < n; k++)
                sum += rest[i * n + k] * at(a, n, j, k);
            assert_true(fabs(sum) < 2e-4);
        }
        for (int64_t k = 0; k < n; k++) {
            double sum = 0;

            for (int64_t i = 0; i < m; i++)
                sum += rest[i * n + k] * at(b, r, i, j);
            assert_true(fabs(sum) < 2e-4);
        }
    }
    assert_true(largest(rest, m, n) < least * (1 + 1e-4));
    must(hd_principal_find(w, m, n, r, 3, again, b));
    assert_memory_equal(a, again, (size_t)(r * n) * sizeof *a); /* whatever the threads */
    free(w);
    free(a);
    free(b);
    free(again);
    free(rest);
}

static void the_largest_directions_are_found(void **state)
{
    (void)state;
    check(40, 24, 3); /* exactly */
    check(24, 70, 24);
    check(190, 150, 2); /* two values that lead, by iteration */
}

RUN_CASES()
