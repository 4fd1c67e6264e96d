/* choose_internal: what the files of choose.h share.
 *
 *     choose.c          the rules
 *     choose_refuse.c   the messages
 */
#ifndef HD_PLAN_CHOOSE_INTERNAL_H
#define HD_PLAN_CHOOSE_INTERNAL_H

#include "plan/choose.h"

/* 1 for a size that is auto. */
int64_t choose_or_one(int64_t size);
/* The most devices that a request may have. */
int32_t choose_most_ranks(const struct hd_plan_request *w);
/* Devices of one replica of the model. */
int64_t choose_replica(const struct hd_plan_request *w);

/* Replaces auto; with one stage all schedules of one chunk per stage are the same, "none". */
void choose_pipeline(struct hd_layout_sizes *s);
/* The most chunks of a pipeline: one for each unit of the model. */
int64_t choose_most_chunks(const struct hd_plan_request *w);
bool choose_too_many_chunks(const struct hd_plan_request *w, const struct hd_layout_sizes *s);
/* s: choose_pipeline has replaced auto. */
enum hd_status choose_check_pipeline(const struct hd_plan_request *w,
                                     const struct hd_layout_sizes *s);
/* Whether the model can be shared by so many ranks of a tp group. */
enum hd_plan_obstacle choose_check_tp(const struct hd_plan_request *w, int64_t tp);

#endif
