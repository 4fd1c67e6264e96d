/* pack: few layouts that together have every pair, or every triple, of values; of a tuned model
 * those of which one says what is trained. Greedy: begin with a combination that no layout has yet,
 * then change one axis at a time as long as that brings more of them in. (Cohen et al. 1997, "The
 * AETG system", builds covering arrays in this way.)
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cover.h"

enum { WISHES_MAX = 16384 };

struct combination {
    int axis[3], value[3], size;
    bool met;
};

struct packing {
    const struct grid_model *model;
    struct combination *list;
    int count;
};

static bool is_met_by(const struct combination *wish, const struct grid_layout *layout)
{
    for (int i = 0; i < wish->size; i++)
        if (layout->value[wish->axis[i]] != wish->value[i])
            return false;
    return true;
}

static bool least(const struct packing *p, const struct combination *wish,
                  struct grid_layout *ret_layout)
{
    struct grid_layout words;

    memset(words.value, -1, sizeof words.value);
    for (int i = 0; i < wish->size; i++)
        words.value[wish->axis[i]] = (signed char)wish->value[i];
    return grid_least(p->model, &words, ret_layout);
}

/* Combinations of `size` values; of a tuned model those of which one at least is a value of tuning
 * that is not at rest. */
static void list_wishes(struct packing *p, struct combination *wish, int axis, int size)
{
    struct grid_layout layout;
    bool wanted = !p->model->tuned;

    if (wish->size == size) {
        for (int i = 0; i < size; i++)
            wanted = wanted || (wish->axis[i] >= GRID_FIRST_OF_TUNING && wish->value[i]);
        if (wanted && least(p, wish, &layout)) {
            assert(p->count < WISHES_MAX);
            p->list[p->count++] = *wish;
        }
        return;
    }
    for (int a = axis; a < GRID_AXES; a++)
        for (int v = 0; v < grid_axes[a].count && (grid_axes_of(p->model) >> a & 1); v++) {
            if (!v && size > 2)
                continue; /* of three values each is off rest */
            wish->axis[wish->size] = a;
            wish->value[wish->size++] = v;
            list_wishes(p, wish, a + 1, size);
            wish->size--;
        }
}

static int gain_of(const struct packing *p, const struct grid_layout *layout)
{
    int gain = 0;

    for (int i = 0; i < p->count; i++)
        gain += !p->list[i].met && is_met_by(&p->list[i], layout);
    return gain;
}

/* The best change of one axis that keeps the wish; false: none brings more. */
static bool improve(const struct packing *p, const struct combination *wish,
                    struct grid_layout *layout)
{
    struct grid_layout best = *layout;
    int most = gain_of(p, layout);
    const int before = most;

    for (int a = 0; a < GRID_AXES; a++)
        for (int v = 0; v < grid_axes[a].count && (grid_axes_of(p->model) >> a & 1); v++) {
            struct grid_layout changed = *layout;
            int gain;

            changed.value[a] = (signed char)v;
            if (!is_met_by(wish, &changed) || grid_exclusion(&changed))
                continue;
            gain = gain_of(p, &changed);
            if (gain > most) {
                most = gain;
                best = changed;
            }
        }
    *layout = best;
    return most > before;
}

static void meet(struct packing *p, const struct grid_layout *layout)
{
    for (int i = 0; i < p->count; i++)
        p->list[i].met = p->list[i].met || is_met_by(&p->list[i], layout);
}

void grid_pack(const struct grid_model *model, int size, struct grid_cover *cover)
{
    struct packing p = {model, malloc(WISHES_MAX * sizeof(struct combination)), 0};
    struct combination none = {.size = 0};

    if (!p.list)
        abort();
    list_wishes(&p, &none, 0, size);
    for (int i = 0; i < cover->count; i++)
        meet(&p, &cover->list[i]);
    for (int i = 0; i < p.count; i++) {
        struct grid_layout layout;

        if (p.list[i].met || !least(&p, &p.list[i], &layout))
            continue;
        while (improve(&p, &p.list[i], &layout))
            continue;
        meet(&p, &layout);
        assert(cover->count < GRID_LAYOUTS_MAX);
        cover->list[cover->count++] = layout;
    }
    free(p.list);
}
