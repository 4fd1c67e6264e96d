/* cover: which layouts of a model are tried, and whether these are enough.
 *
 * Chosen are: everything at rest, each value of each axis alone, each pair of values, and some or
 * all triples. What is not named stays at rest, as far as there is such a layout: sequence=on with
 * dp=2 brings a tp with it. Whether every pair is there is computed apart, from what was chosen.
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

/* Pairs of values, values at rest included, that some legal layout has and none of the cover; each
 * is printed. */
int grid_uncovered_pairs(const struct grid_model *model, const struct grid_cover *cover);

/* A line per reason: how many layouts of the whole it excludes. Returns how many remain. */
int grid_print_exclusions(const struct grid_model *model);

#endif
