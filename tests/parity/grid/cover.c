#include "cover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- choosing ---- */

static bool holds(const struct grid_cover *cover, const struct grid_layout *layout)
{
    for (int i = 0; i < cover->count; i++)
        if (memcmp(&cover->list[i], layout, sizeof *layout) == 0)
            return true;
    return false;
}

/* Adds the simplest layout with this wish, if there is one. */
static void add(const struct grid_model *model, const struct grid_layout *wish,
                struct grid_cover *cover)
{
    struct grid_layout layout;

    if (grid_least(model, wish, &layout) && !holds(cover, &layout) &&
        cover->count < GRID_LAYOUTS_MAX)
        cover->list[cover->count++] = layout;
}

/* All values off rest of `left` more axes from `axis` on. */
static void add_each(const struct grid_model *model, struct grid_layout *wish, int axis, int left,
                     struct grid_cover *cover)
{
    if (!left) {
        add(model, wish, cover);
        return;
    }
    for (int a = axis; a < GRID_AXES; a++) {
        for (int v = 1; v < grid_axes[a].count; v++) {
            wish->value[a] = (signed char)v;
            add_each(model, wish, a + 1, left - 1, cover);
        }
        wish->value[a] = -1;
    }
}

/* Groups of three axes that meet in one tensor or in one sum. */
static const enum grid_axis_name triples[][3] = {
    {GRID_TP, GRID_CP, GRID_DP},
    {GRID_TP, GRID_SEQUENCE, GRID_DP},
    {GRID_TP, GRID_SEQUENCE, GRID_CP},
    {GRID_TP, GRID_CP, GRID_EXCHANGE},
    {GRID_CP, GRID_EXCHANGE, GRID_DP},
    {GRID_SEQUENCE, GRID_DP, GRID_SCHEDULE},
    {GRID_CP, GRID_MICRO_BATCHES, GRID_SCHEDULE},
    {GRID_TP, GRID_EP, GRID_DP},
    {GRID_CP, GRID_EP, GRID_DP},
    {GRID_TP, GRID_EP, GRID_CP},
    {GRID_SEQUENCE, GRID_EP, GRID_DP},
};

/* By what is trained, then as they are: each value is less than 8. */
static int compare_layouts(const void *one, const void *other)
{
    const struct grid_layout *a = one, *b = other;
    const size_t first = GRID_FIRST_OF_TUNING;
    const int order = memcmp(a->value + first, b->value + first, GRID_AXES - first);

    return order ? order : memcmp(a->value, b->value, first);
}

static void choose_tuned(const struct grid_model *model, bool all_triples, struct grid_cover *cover)
{
    struct grid_layout wish;

    memset(wish.value, -1, sizeof wish.value);
    for (int a = GRID_FIRST_OF_TUNING; all_triples && a < GRID_AXES; a++)
        for (int v = 1; v < grid_axes[a].count; v++) {
            wish.value[a] = (signed char)v;
            add(model, &wish, cover);
            for (int b = 0; b < GRID_AXES; b++)
                for (int w = 1; w < grid_axes[b].count && b != a; w++) {
                    wish.value[b] = (signed char)w;
                    add(model, &wish, cover);
                    wish.value[b] = -1;
                }
            wish.value[a] = -1;
        }
    grid_pack(model, all_triples ? 3 : 2, cover);
    qsort(cover->list, (size_t)cover->count, sizeof cover->list[0], compare_layouts);
}

void grid_choose(const struct grid_model *model, bool all_triples, struct grid_cover *ret_cover)
{
    struct grid_layout wish;

    memset(wish.value, -1, sizeof wish.value);
    ret_cover->count = 0;
    if (model->tuned) {
        choose_tuned(model, all_triples, ret_cover);
        return;
    }
    for (int size = 0; size <= (all_triples ? 3 : 0); size++)
        add_each(model, &wish, 0, size, ret_cover);
    for (size_t t = 0; t < sizeof triples / sizeof triples[0]; t++) {
        memset(wish.value, -1, sizeof wish.value);
        for (int i = 0; i < 3; i++)
            wish.value[triples[t][i]] = 1;
        add(model, &wish, ret_cover);
    }
    if (!all_triples)
        grid_pack(model, 2, ret_cover);
}

/* ---- judging ---- */

static bool has_pair(const struct grid_layout *l, const int axis[2], const int value[2])
{
    return l->value[axis[0]] == value[0] && l->value[axis[1]] == value[1];
}

static bool is_legal_pair(const struct grid_model *model, const int axis[2], const int value[2])
{
    struct grid_layout wish, layout;

    memset(wish.value, -1, sizeof wish.value);
    for (int i = 0; i < 2; i++)
        wish.value[axis[i]] = (signed char)value[i];
    return grid_least(model, &wish, &layout);
}

static bool is_covered(const struct grid_cover *cover, const int axis[2], const int value[2])
{
    for (int i = 0; i < cover->count; i++)
        if (has_pair(&cover->list[i], axis, value))
            return true;
    return false;
}

static int uncovered_of_axes(const struct grid_model *model, const struct grid_cover *cover,
                             const int axis[2])
{
    const struct grid_axis *a = &grid_axes[axis[0]], *b = &grid_axes[axis[1]];
    int count = 0;

    for (int i = 0; i < a->count * b->count; i++) {
        const int value[2] = {i / b->count, i % b->count};

        if (model->tuned && !(axis[1] >= GRID_FIRST_OF_TUNING && value[1]) &&
            !(axis[0] >= GRID_FIRST_OF_TUNING && value[0]))
            continue;
        if (is_covered(cover, axis, value) || !is_legal_pair(model, axis, value))
            continue;
        (void)printf("UNCOVERED %s %s=%s %s=%s\n", model->name, a->name, a->values[value[0]].text,
                     b->name, b->values[value[1]].text);
        count++;
    }
    return count;
}

int grid_uncovered_pairs(const struct grid_model *model, const struct grid_cover *cover)
{
    int count = 0;

    for (int a = 0; a < GRID_AXES; a++)
        for (int b = a + 1; b < GRID_AXES; b++)
            count += uncovered_of_axes(model, cover, (const int[2]){a, b});
    return count;
}

enum { REASONS_MAX = 32 };

int grid_print_exclusions(const struct grid_model *model)
{
    const char *reasons[REASONS_MAX];
    int counts[REASONS_MAX] = {0}, reason_count = 0, legal = 0;
    struct grid_layout l = {{0}};

    do {
        const char *reason = grid_exclusion(&l);
        int i = 0;

        legal += !reason;
        while (reason && i < reason_count && reasons[i] != reason)
            i++;
        if (!reason || i == REASONS_MAX)
            continue;
        reasons[i] = reason;
        reason_count += i == reason_count;
        counts[i]++;
    } while (grid_next(model, &l));
    for (int i = 0; i < reason_count; i++)
        (void)printf("EXCLUDED %s %d layouts: %s\n", model->name, counts[i], reasons[i]);
    return legal;
}
