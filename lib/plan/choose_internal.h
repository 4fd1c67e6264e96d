/* choose_internal: declarations that the files behind choose.h share.
 *
 *     choose.c          the rules
 *     choose_refuse.c   the error messages
 */
#ifndef HD_PLAN_CHOOSE_INTERNAL_H
#define HD_PLAN_CHOOSE_INTERNAL_H

#include "plan/choose.h"

/* Returns a requested size of a layout (tp, pp, cp ...), or 1 if it is auto. */
int64_t choose_or_one(int64_t size);
/* Returns the most devices that the request may have. */
int32_t choose_most_ranks(const struct hd_plan_request *w);
/* Returns the number of devices that hold one replica of the model: tp x cp x pp, with auto as
 * 1. */
int64_t choose_replica(const struct hd_plan_request *w);

/* Replaces auto in schedule, stages and virtual_stages. With one pipeline stage, a schedule that
 * has one chunk per stage becomes "none", which runs the same programs. */
void choose_pipeline(struct hd_layout_sizes *s);
/* Returns the most chunks that a pipeline may have: one for each unit of the model. */
int64_t choose_most_chunks(const struct hd_plan_request *w);
bool choose_too_many_chunks(const struct hd_plan_request *w, const struct hd_layout_sizes *s);
/* Checks schedule, virtual_stages and stages. choose_pipeline must have replaced auto in `s`. */
enum hd_status choose_check_pipeline(const struct hd_plan_request *w,
                                     const struct hd_layout_sizes *s);
/* Checks whether the model can be split over `tp` ranks of a tp group. */
enum hd_plan_obstacle choose_check_tp(const struct hd_plan_request *w, int64_t tp);

#endif
