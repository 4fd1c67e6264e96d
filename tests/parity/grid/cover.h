/* cover: which layouts of a model are tried, and whether these are enough.
 *
 * Chosen are: everything at rest, the stated triples, and layouts that hold as many of the other
 * pairs as they can; with all triples each value of each axis alone, each pair and each triple by
 * itself. What is not named stays at rest, as far as there is such a layout: sequence=on with dp=2
 * brings a tp with it. Whether every pair is there is computed apart, from what was chosen.
 *
 * Of a tuned model only combinations matter that say what is trained; the others are those of the
 * other models. They are packed also with all triples, beside each pair by itself. Layouts with the
 * same reference are neighbours in the list.
 */
#ifndef HD_TESTS_GRID_COVER_H
#define HD_TESTS_GRID_COVER_H

#include "axes.h"

struct grid_cover {
    int count;
    struct grid_layout list[GRID_LAYOUTS_MAX];
};

/* all_triples: of all axes; else the stated ones, at their first value off rest. */
void grid_choose(const struct grid_model *model, bool all_triples, struct grid_cover *ret_cover);

/* Adds layouts that with those of the cover have every combination of `size` values, 2 or 3. */
void grid_pack(const struct grid_model *model, int size, struct grid_cover *cover);

/* Pairs of values, values at rest included (of a tuned model: with one off rest that says what is
 * trained), that some legal layout has and none of the cover; each
 * is printed. */
int grid_uncovered_pairs(const struct grid_model *model, const struct grid_cover *cover);

/* A line per reason: how many layouts of the whole, with what is trained at rest, it excludes.
 * Returns how many remain. */
int grid_print_exclusions(const struct grid_model *model);

#endif
