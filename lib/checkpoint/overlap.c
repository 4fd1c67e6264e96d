/* overlap: the runs of elements that two pieces of one tensor have in common.
 *
 * Each piece is a box and a range of that box. First, a dimension in which both boxes have equal
 * bounds is joined with the one before it, so that pieces of one layout usually overlap in a single
 * run. Then the dimensions are walked recursively; slices outside of either range are skipped. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "checkpoint/checkpoint_internal.h"

struct side {
    int64_t start[HD_CKPT_DIMS_MAX], extent[HD_CKPT_DIMS_MAX];
    int64_t stride[HD_CKPT_DIMS_MAX]; /* elements of the box between neighbouring coordinates of
                                         each dimension */
    int64_t first, end;               /* the piece is elements first to end - 1 of its box */
};

struct overlap_walk {
    struct side side[2]; /* [0] the entry, [1] the wanted piece */
    int dim_count;
    hd_ckpt_run_fn *run;
    void *context;
};

static void load_side(struct side *side, const struct hd_ckpt_entry *piece)
{
    for (int d = 0; d < piece->dim_count; d++) {
        side->start[d] = piece->start[d];
        side->extent[d] = piece->extent[d];
    }
    if (piece->dim_count == 0) /* a scalar counts as a row of one element */
        side->extent[0] = 1;
    side->first = piece->flat_first;
    side->end = piece->flat_first + piece->flat_count;
}

/* Joins dimension d with d - 1: coordinates (x, y) become x * extent[d] + (y - start[d]). */
static void join_dimension(struct side *side, int d, int dim_count)
{
    side->start[d - 1] *= side->extent[d];
    side->extent[d - 1] *= side->extent[d];
    for (int i = d; i + 1 < dim_count; i++) {
        side->start[i] = side->start[i + 1];
        side->extent[i] = side->extent[i + 1];
    }
}

static void join_dimensions(struct overlap_walk *w)
{
    struct side *a = &w->side[0], *b = &w->side[1];

    for (int d = w->dim_count - 1; d > 0; d--)
        if (a->start[d] == b->start[d] && a->extent[d] == b->extent[d]) {
            join_dimension(a, d, w->dim_count);
            join_dimension(b, d, w->dim_count);
            w->dim_count--;
        }
    for (int s = 0; s < 2; s++) {
        int64_t stride = 1;

        for (int d = w->dim_count - 1; d >= 0; d--) {
            w->side[s].stride[d] = stride;
            stride *= w->side[s].extent[d];
        }
    }
}

/* Narrows [*lo, *hi) to those coordinates of dimension d for which piece `s` has elements. `base`:
 * index, among the elements of the piece's box, of the first element of the slice that is being
 * walked. */
static void clip(const struct side *s, int d, int64_t base, int64_t *lo, int64_t *hi)
{
    const int64_t stride = s->stride[d];
    int64_t from = s->start[d], to = s->start[d] + s->extent[d];

    if (s->first > base)
        from = s->start[d] + (s->first - base) / stride;
    if (s->end <= base)
        to = from;
    else if ((s->end - base - 1) / stride + 1 < s->extent[d])
        to = s->start[d] + (s->end - base - 1) / stride + 1;
    *lo = *lo > from ? *lo : from;
    *hi = *hi < to ? *hi : to;
}

static enum hd_status walk_dimension(const struct overlap_walk *w, int d, const int64_t base[2])
{
    int64_t lo = 0, hi = INT64_MAX;
    enum hd_status st = HD_OK;

    for (int s = 0; s < 2; s++)
        clip(&w->side[s], d, base[s], &lo, &hi);
    /* innermost dimension: the stride is 1, so lo .. hi is one exact run */
    if (d == w->dim_count - 1 || d == HD_CKPT_DIMS_MAX - 1) {
        int64_t at[2];

        if (lo >= hi)
            return HD_OK;
        for (int s = 0; s < 2; s++)
            at[s] = base[s] + (lo - w->side[s].start[d]) - w->side[s].first;
        return w->run(w->context, at[0], at[1], hi - lo);
    }
    for (int64_t x = lo; !st && x < hi; x++) {
        int64_t inner[2];

        for (int s = 0; s < 2; s++)
            inner[s] = base[s] + (x - w->side[s].start[d]) * w->side[s].stride[d];
        st = walk_dimension(w, d + 1, inner);
    }
    return st;
}

enum hd_status hd_ckpt_overlap(const struct hd_ckpt_entry *entry, const struct hd_ckpt_entry *want,
                               hd_ckpt_run_fn *run, void *context)
{
    struct overlap_walk w = {.run = run, .context = context};
    const int64_t base[2] = {0, 0};

    assert(entry->dim_count == want->dim_count);
    load_side(&w.side[0], entry);
    load_side(&w.side[1], want);
    w.dim_count = entry->dim_count ? entry->dim_count : 1;
    join_dimensions(&w);
    return walk_dimension(&w, 0, base);
}

/* ---- cover ---- */

enum hd_status hd_ckpt_cover_add(struct hd_ckpt_cover *cover, int64_t first, int64_t count)
{
    if (cover->count && cover->runs[cover->count - 1].end == first) {
        cover->runs[cover->count - 1].end += count;
        return HD_OK;
    }
    if (cover->count == cover->max) {
        const size_t max = cover->max ? 2 * cover->max : 64;
        struct hd_ckpt_run *runs = realloc(cover->runs, max * sizeof *runs);

        if (!runs)
            return hd_err(HD_NO_MEMORY, "no memory for %zu runs of elements", max);
        cover->runs = runs;
        cover->max = max;
    }
    cover->runs[cover->count++] = (struct hd_ckpt_run){.first = first, .end = first + count};
    return HD_OK;
}

void hd_ckpt_cover_free(struct hd_ckpt_cover *cover)
{
    free(cover->runs);
    *cover = (struct hd_ckpt_cover){0};
}

static int compare_runs(const void *a, const void *b)
{
    const struct hd_ckpt_run *x = a, *y = b;

    return x->first < y->first ? -1 : x->first > y->first;
}

/* Appends to the text the coordinates, in the whole tensor, of element `index` of a piece:
 * "[3,17]". */
static void add_coordinates(struct hd_text *text, const struct hd_ckpt_entry *piece, int64_t index)
{
    int64_t at[HD_CKPT_DIMS_MAX] = {0};

    index += piece->flat_first;
    for (int d = piece->dim_count - 1; d >= 0; d--) {
        at[d] = piece->start[d] + index % piece->extent[d];
        index /= piece->extent[d];
    }
    hd_text_add(text, "[");
    for (int d = 0; d < piece->dim_count; d++)
        hd_text_add(text, "%s%" PRId64, d ? "," : "", at[d]);
    hd_text_add(text, "]");
}

static enum hd_status missing(const struct hd_ckpt_entry *want, int64_t first, int64_t end)
{
    struct hd_text from = {0}, to = {0};
    enum hd_status st;

    add_coordinates(&from, want, first);
    add_coordinates(&to, want, end - 1);
    st = hd_err(HD_CORRUPT, "%s: the elements %s to %s (%" PRId64 " of them) are in no shard",
                want->name, from.data ? from.data : "?", to.data ? to.data : "?", end - first);
    hd_text_free(&from);
    hd_text_free(&to);
    return st;
}

enum hd_status hd_ckpt_cover_check(struct hd_ckpt_cover *cover, const struct hd_ckpt_entry *want,
                                   bool *ret_overlaps)
{
    int64_t covered = 0; /* elements 0 to covered - 1 of the wanted piece are in a run */
    bool overlaps = false;

    if (cover->count)
        qsort(cover->runs, cover->count, sizeof cover->runs[0], compare_runs);
    for (size_t i = 0; i < cover->count; i++) {
        const struct hd_ckpt_run *run = &cover->runs[i];

        if (run->first > covered)
            return missing(want, covered, run->first);
        overlaps = overlaps || run->first < covered;
        covered = run->end > covered ? run->end : covered;
    }
    if (covered < want->flat_count)
        return missing(want, covered, want->flat_count);
    *ret_overlaps = overlaps;
    return HD_OK;
}
