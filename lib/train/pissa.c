#include "train/pissa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "train/principal.h"

enum { PARTS_MAX = 3, STRIP = 8 };

struct pissa_matrix {
    int weights[PARTS_MAX],
        b[PARTS_MAX]; /* parameters, whose rows follow each other in the matrix */
    int a, count;
    int64_t rows, columns;
    float *first_a, *first_b; /* A0 [r, columns] and B0 [rows, r]; NULL: not computed yet */
};

struct hd_pissa {
    struct hd_arena arena;
    const struct hd_registry *registry;
    struct pissa_matrix *list;
    int count, threads;
    int *matrix; /* [parameters], index in `list` of a weight or factor; -1: none */
    int64_t rank;
    double scale;
    hd_pissa_read_fn *read;
    void *from;
};

static int find_param(const struct hd_registry *r, const char *name)
{
    for (int i = 0; i < r->param_count; i++)
        if (strcmp(r->params[i].name, name) == 0)
            return i;
    return -1;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);

    return n > k && strcmp(name + n - k, end) == 0;
}

/* Finds the factor A of the target with this factor B: its own, or that of several targets. */
static int find_a(const struct hd_registry *r, const char *b)
{
    const size_t stem = strlen(b) - strlen("lora_b");
    char name[HD_PARAM_NAME_MAX + 16];
    char *last;
    int found;

    (void)snprintf(name, sizeof name, "%.*slora_a", (int)stem, b);
    found = find_param(r, name);
    for (int i = 0; found < 0 && i < 2; i++) {
        (void)snprintf(name, sizeof name, "%.*s", (int)stem - 1, b);
        last = strrchr(name, '.');
        if (last)
            (void)snprintf(last, sizeof name - (size_t)(last - name), ".%s.lora_a",
                           i ? "gate_up" : "qkv");
        found = find_param(r, name);
    }
    return found;
}

/* Adds the weight with factor B `b` to the matrix of its A, in the order of the registry. */
static enum hd_status add_target(struct hd_pissa *p, int b)
{
    const struct hd_param *params = p->registry->params;
    char name[HD_PARAM_NAME_MAX + 16];
    struct pissa_matrix *x;
    int weight, a;

    if (params[b].dim_count != 2)
        return hd_err(HD_UNSUPPORTED,
                      "train.adapter.init: pissa is not there for the adapters of experts; name "
                      "other modules in train.adapter.targets, or remove the line");
    (void)snprintf(name, sizeof name, "%.*sweight",
                   (int)(strlen(params[b].name) - strlen("lora_b")), params[b].name);
    weight = find_param(p->registry, name);
    a = find_a(p->registry, params[b].name);
    if (weight < 0 || a < 0)
        return hd_err(HD_INTERNAL, "%s has no weight or no other factor", params[b].name);
    if (p->matrix[a] < 0)
        p->matrix[a] = p->count++;
    x = &p->list[p->matrix[a]];
    x->a = a;
    x->columns = params[weight].shape[1];
    x->rows += params[weight].shape[0];
    x->b[x->count] = b;
    x->weights[x->count++] = weight;
    p->matrix[b] = p->matrix[weight] = p->matrix[a];
    return HD_OK;
}

enum hd_status hd_pissa_new(const struct hd_registry *registry, const struct hd_job *job,
                            hd_pissa_read_fn *read, void *from, struct hd_pissa **ret_pissa)
{
    struct hd_pissa *p = calloc(1, sizeof *p);
    enum hd_status st = HD_OK;

    if (!p)
        return hd_err(HD_NO_MEMORY, "no memory to begin an adapter");
    hd_arena_init(&p->arena, 0);
    p->registry = registry;
    p->threads = (int)job->threads;
    p->rank = job->adapter_rank;
    p->scale = hd_job_adapter_scale(job);
    p->read = read;
    p->from = from;
    p->list = hd_arena_array(&p->arena, (size_t)registry->param_count, sizeof *p->list);
    p->matrix = hd_arena_array(&p->arena, (size_t)registry->param_count, sizeof *p->matrix);
    if (hd_arena_failed(&p->arena))
        st = hd_err(HD_NO_MEMORY, "no memory to begin an adapter");
    for (int i = 0; !st && i < registry->param_count; i++)
        p->matrix[i] = -1;
    for (int i = 0; !st && i < registry->param_count; i++)
        if (ends_with(registry->params[i].name, ".lora_b"))
            st = add_target(p, i);
    for (int i = 0; !st && i < p->count; i++)
        if (p->rank > hd_min(p->list[i].rows, p->list[i].columns))
            st = hd_err(HD_INVALID,
                        "train.adapter.rank: with init: pissa %lld is above the %lld singular "
                        "directions of %s; lower it",
                        (long long)p->rank, (long long)hd_min(p->list[i].rows, p->list[i].columns),
                        registry->params[p->list[i].weights[0]].name);
    if (st)
        hd_pissa_free(p);
    else
        *ret_pissa = p;
    return st;
}

void hd_pissa_free(struct hd_pissa *p)
{
    if (!p)
        return;
    hd_arena_done(&p->arena);
    free(p);
}

bool hd_pissa_is_weight(const struct hd_pissa *p, int param)
{
    return p->matrix[param] >= 0 && !p->registry->params[param].adapter;
}

bool hd_pissa_is_factor(const struct hd_pissa *p, int param)
{
    return p->matrix[param] >= 0 && p->registry->params[param].adapter;
}

/* Computes A0 and B0 of a matrix. W is s B0 A0 and a rest, so each has a share of 1 / sqrt(s). */
static enum hd_status decompose(struct hd_pissa *p, struct pissa_matrix *x)
{
    const float share = (float)(1 / sqrt(p->scale));
    float *w = calloc((size_t)(x->rows * x->columns), sizeof *w), *at = w;
    enum hd_status st = HD_OK;

    x->first_a = hd_arena_array(&p->arena, (size_t)(p->rank * x->columns), sizeof *x->first_a);
    x->first_b = hd_arena_array(&p->arena, (size_t)(p->rank * x->rows), sizeof *x->first_b);
    if (!w || hd_arena_failed(&p->arena))
        st = hd_err(HD_NO_MEMORY, "no memory to decompose %s",
                    p->registry->params[x->weights[0]].name);
    for (int i = 0; !st && i < x->count; i++) {
        st = p->read(p->from, x->weights[i], at);
        at += p->registry->params[x->weights[i]].shape[0] * x->columns;
    }
    if (!st)
        st = hd_principal_find(w, x->rows, x->columns, p->rank, p->threads, x->first_a, x->first_b);
    for (int64_t i = 0; !st && i < p->rank * x->columns; i++)
        x->first_a[i] *= share;
    for (int64_t i = 0; !st && i < p->rank * x->rows; i++)
        x->first_b[i] *= share;
    if (st)
        x->first_a = NULL;
    free(w);
    return st;
}

/* Sets *ret to the decomposed matrix of a parameter, and *ret_row to the first of the parameter's rows in
 * it. */
static enum hd_status need(struct hd_pissa *p, int param, struct pissa_matrix **ret,
                           int64_t *ret_row)
{
    struct pissa_matrix *x = &p->list[p->matrix[param]];

    *ret = x;
    *ret_row = 0;
    for (int i = 0; i < x->count && x->weights[i] != param && x->b[i] != param; i++)
        *ret_row += p->registry->params[x->weights[i]].shape[0];
    return x->first_a ? HD_OK : decompose(p, x);
}

enum hd_status hd_pissa_factor(struct hd_pissa *p, int param, const struct hd_ckpt_entry *want,
                               float *ret_values)
{
    struct pissa_matrix *x;
    const float *from;
    int64_t row;
    enum hd_status st = need(p, param, &x, &row);

    if (st)
        return st;
    from = param == x->a ? x->first_a : x->first_b + row * p->rank;
    for (int64_t i = 0; i < want->flat_count; i++) {
        const int64_t at = want->flat_first + i;
        const int64_t r = want->start[0] + at / want->extent[1],
                      c = want->start[1] + at % want->extent[1];

        ret_values[i] = from[r * want->shape[1] + c];
    }
    return HD_OK;
}

/* Subtracts s b A0[:, first .. first + count - 1] from the values of a row, in double. */
static void subtract_row(const struct hd_pissa *p, const struct pissa_matrix *x, const float *b,
                         int64_t first, int64_t count, float *values)
{
    for (int64_t at = 0; at < count; at += STRIP) {
        const int64_t n = hd_min(STRIP, count - at);
        double sum[STRIP] = {0};

        for (int64_t k = 0; k < p->rank; k++) {
            const float *a = x->first_a + k * x->columns + first + at;

            for (int64_t c = 0; c < n; c++)
                sum[c] += (double)b[k] * (double)a[c];
        }
        for (int64_t c = 0; c < n; c++)
            values[at + c] = (float)((double)values[at + c] - p->scale * sum[c]);
    }
}

enum hd_status hd_pissa_subtract(struct hd_pissa *p, int param, const struct hd_ckpt_entry *want,
                                 float *values)
{
    const int64_t width = want->extent[1], end = want->flat_first + want->flat_count;
    struct pissa_matrix *x;
    int64_t row;
    enum hd_status st = need(p, param, &x, &row);

    for (int64_t at = want->flat_first, n; !st && at < end; at += n) {
        const int64_t c = at % width;

        n = hd_min(width - c, end - at);
        subtract_row(p, x, x->first_b + (row + want->start[0] + at / width) * p->rank,
                     want->start[1] + c, n, values + (at - want->flat_first));
    }
    return st;
}
