/* choose_internal: declarations that the files behind choose.h share.
 *
 *     choose_rules.def   the rules and their messages
 *     choose.c           the layout of a request
 *     choose_matrices.c  the matrices of attention
 *     choose_refuse.c    the error messages
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

/* Returns whether sizes without auto break a rule of a request on this number of devices. */
bool choose_breaks(const struct hd_plan_request *w, const struct hd_layout_sizes *s,
                   int32_t devices, enum hd_plan_obstacle rule);
/* Returns the first rule from `first` to `last` that the sizes break; HD_PLAN_FITS: none. */
enum hd_plan_obstacle choose_first_broken(const struct hd_plan_request *w,
                                          const struct hd_layout_sizes *s, int32_t devices,
                                          enum hd_plan_obstacle first, enum hd_plan_obstacle last);
/* Replaces auto in all members that do not depend on the number of devices. */
void choose_axes(struct hd_layout_sizes *s);
/* Returns whether the schedule is from a file. */
bool choose_is_from_file(const struct hd_layout_sizes *s);
/* Returns whether tp cuts a quantization block of some matrix, with matrices split as lib/model
 * declares them: inputs of attention and feed-forward layers by rows, their outputs by columns. The
 * registry refuses this too, but only after the first rank has started. */
bool choose_cuts_codes(const struct hd_plan_request *w, int64_t tp);
/* Returns the most chunks that a pipeline may have: one for each unit of the model. */
int64_t choose_most_chunks(const struct hd_plan_request *w);
/* Returns whether the word names a schedule, and whether the schedule may have several chunks per stage. */
bool choose_is_schedule(const char *word);
bool choose_has_chunks(const struct hd_layout_sizes *s);
/* Checks the number of layers of each chunk, if they are given. */
enum hd_status choose_check_stages(const struct hd_plan_request *w,
                                   const struct hd_layout_sizes *s);
/* A weight matrix of attention, of a gated delta layer or of a short convolution, and how tp splits it. */
struct choose_matrix {
    int64_t rows, columns;
    enum { CHOOSE_WHOLE, CHOOSE_ROWS, CHOOSE_COLUMNS } split;
    int64_t shares_max; /* most shares; further ranks of a tp group have copies; 0: no limit */
};
enum { CHOOSE_MATRICES_MAX = 5 };

/* List the matrices of a block's attention, of latents or not, and those of a gated delta layer and
 * of a short convolution, as lib/model declares them. Return their number. */
int choose_attention(const struct hd_plan_request *w,
                     struct choose_matrix ret_list[CHOOSE_MATRICES_MAX]);
int choose_delta(const struct hd_plan_request *w,
                 struct choose_matrix ret_list[CHOOSE_MATRICES_MAX]);
int choose_conv(const struct hd_plan_request *w,
                struct choose_matrix ret_list[CHOOSE_MATRICES_MAX]);

#endif
