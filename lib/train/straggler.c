#include "train/straggler.h"

#include <stdlib.h>
#include <string.h>

#include "base/order.h"

/* a rank is late if its busy time exceeds the median of its peers by this fraction of the step */
#define LATE_SHARE 0.1

struct hd_stragglers {
    int world, stages;
    int *stage_of; /* [world] */
    /* [world], ms of each rank without waits, summed since the last judgement */
    double *busy_ms;
    double *others_ms;  /* [world], median busy_ms of each rank's peers in the newest judgement */
    double *seen_ms;    /* [world], busy_ms of the newest judgement */
    double *sorted;     /* [world], scratch for the ranks of one stage */
    int *late;          /* [world], remembered judgements in which the rank was late */
    bool *is, *changed; /* [world] */
    bool *was_late;     /* [HD_STRAGGLER_STEPS, world], ring buffer of judgements */
    double step_ms, steps, seen_steps;
    int looks, next; /* judgements in the ring, and the next index in it */
};

enum hd_status hd_stragglers_new(int world, const int *stage_of, struct hd_stragglers **ret_watch)
{
    struct hd_stragglers *w = calloc(1, sizeof *w);
    const size_t n = (size_t)world;

    if (w) {
        w->stage_of = calloc(n, sizeof *w->stage_of);
        w->busy_ms = calloc(4 * n, sizeof *w->busy_ms);
        w->late = calloc(n, sizeof *w->late);
        w->is = calloc((2 + HD_STRAGGLER_STEPS) * n, sizeof *w->is);
    }
    if (!w || !w->stage_of || !w->busy_ms || !w->late || !w->is) {
        hd_stragglers_free(w);
        return hd_err(HD_NO_MEMORY, "no memory to look for stragglers among %d ranks", world);
    }
    w->world = world;
    w->others_ms = w->busy_ms + n;
    w->seen_ms = w->busy_ms + 2 * n;
    w->sorted = w->busy_ms + 3 * n;
    w->changed = w->is + n;
    w->was_late = w->is + 2 * n;
    memcpy(w->stage_of, stage_of, n * sizeof *stage_of);
    for (int r = 0; r < world; r++)
        if (stage_of[r] >= w->stages)
            w->stages = stage_of[r] + 1;
    *ret_watch = w;
    return HD_OK;
}

void hd_stragglers_free(struct hd_stragglers *w)
{
    if (!w)
        return;
    free(w->stage_of);
    free(w->busy_ms);
    free(w->late);
    free(w->is);
    free(w);
}

/* ---- one judgement ---- */

/* Computes the median busy time of each rank's peers; for an even number of peers the lower one, so
 * that of three ranks two may be late. A rank alone in its stage is its own peer. */
static void find_medians(struct hd_stragglers *w, int stage)
{
    int count = 0, middle;

    for (int r = 0; r < w->world; r++)
        if (w->stage_of[r] == stage)
            w->sorted[count++] = w->busy_ms[r];
    if (!count)
        return;
    qsort(w->sorted, (size_t)count, sizeof *w->sorted, hd_order_numbers);
    middle = count > 1 ? (count - 2) / 2 : 0;
    for (int r = 0; r < w->world; r++)
        if (w->stage_of[r] == stage)
            w->others_ms[r] = count > 1 && w->busy_ms[r] <= w->sorted[middle]
                                  ? w->sorted[middle + 1]
                                  : w->sorted[middle];
}

static void take_look(struct hd_stragglers *w)
{
    bool *late = w->was_late + (size_t)w->next * (size_t)w->world;

    for (int s = 0; s < w->stages; s++)
        find_medians(w, s);
    for (int r = 0; r < w->world; r++) {
        w->late[r] -= late[r]; /* the judgement that leaves the ring */
        late[r] = w->busy_ms[r] - w->others_ms[r] >= LATE_SHARE * w->step_ms;
        w->late[r] += late[r];
        w->seen_ms[r] = w->busy_ms[r];
        w->busy_ms[r] = 0;
    }
    w->next = (w->next + 1) % HD_STRAGGLER_STEPS;
    w->looks += w->looks < HD_STRAGGLER_STEPS;
    w->seen_steps = w->steps;
    w->step_ms = w->steps = 0;
}

/* ---- who is a straggler ---- */

static bool may_be(const struct hd_stragglers *w, int rank)
{
    return w->late[rank] >= (w->is[rank] ? HD_STRAGGLER_OVER : HD_STRAGGLER_LATE_MIN);
}

/* Counts the remembered judgements in which at least one rank was late that was late too seldom to
 * be a straggler. */
static int count_noise(const struct hd_stragglers *w)
{
    int noise = 0;

    for (int l = 0; l < w->looks; l++) {
        const bool *late = w->was_late + (size_t)l * (size_t)w->world;
        bool other = false;

        for (int r = 0; r < w->world && !other; r++)
            other = late[r] && !may_be(w, r);
        noise += other;
    }
    return noise;
}

static bool judge(struct hd_stragglers *w)
{
    bool any = false, changed = false, quiet;

    for (int r = 0; r < w->world; r++)
        any |= may_be(w, r);
    quiet = any && count_noise(w) <= HD_STRAGGLER_NOISE_MAX;
    for (int r = 0; r < w->world; r++) {
        const bool is = may_be(w, r) && (w->is[r] || quiet);

        w->changed[r] = is != w->is[r];
        changed |= w->changed[r];
    }
    for (int r = 0; r < w->world; r++)
        w->is[r] ^= w->changed[r];
    return changed;
}

bool hd_stragglers_add(struct hd_stragglers *w, const double *busy_ms, double step_ms)
{
    for (int r = 0; r < w->world; r++)
        if (!(busy_ms[r] >= 0))
            return false;
    for (int r = 0; r < w->world; r++)
        w->busy_ms[r] += busy_ms[r];
    w->step_ms += step_ms;
    w->steps++;
    if (w->step_ms < HD_STRAGGLER_SPAN_MS)
        return false;
    take_look(w);
    return w->looks == HD_STRAGGLER_STEPS && judge(w);
}

struct hd_straggler hd_stragglers_get(const struct hd_stragglers *w, int rank)
{
    return (struct hd_straggler){
        .is = w->is[rank],
        .changed = w->changed[rank],
        .late = w->late[rank],
        .of = w->looks,
        .steps = w->seen_steps,
        .busy_ms = w->seen_steps > 0 ? w->seen_ms[rank] / w->seen_steps : 0,
        .others_ms = w->seen_steps > 0 ? w->others_ms[rank] / w->seen_steps : 0};
}
