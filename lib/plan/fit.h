/* fit: chooses the members of `parallel` that a job leaves auto so that its layout fits the memory
 * of its devices.
 *
 * Of zero and pp, those that are auto; all other members stay as hd_plan_size has them. The ladder:
 *
 *     pp 1 with zero 0, 1, 2, 3; pp 2 with zero 0 .. 3; pp 3 ..., pp dividing the devices
 *
 * without the rungs that are not legal on this number of devices, or the same as another one (zero
 * with one replica). Where no pp alone gives a layout, the rungs are those of the tp, cp and pp
 * that hd_plan_decide finds. The first that fits is taken. A rung costs a plan (plan.h):
 * milliseconds, for large models some tenths of a second.
 *
 * Used by: controller (services), the heddle command.   Uses: plan, choose.   Threads: any.
 */
#ifndef HD_PLAN_FIT_H
#define HD_PLAN_FIT_H

#include "base/text.h"
#include "plan/choose.h"
#include "plan/plan.h"

struct hd_fit_asked {
    const struct hd_job *spec;             /* complete; its layout is not looked at */
    const struct hd_plan_request *request; /* with the kind of device */
    int32_t devices;                       /* on which hd_plan_size finds a layout */
    int64_t threads;                       /* of a CPU device */
    bool bf16_fast;
    const struct hd_traits *traits; /* of the device that has least memory */
    int64_t memory_bytes;           /* of that device, for a rank; 0: not known, everything fits */
};

struct hd_fit {
    struct hd_layout_sizes sizes; /* the first that fits; else the one that takes least */
    bool fits, tried;             /* tried: another rung was tried and did not fit */
    int64_t needed_bytes;         /* of a device, for the rank of `sizes` that takes most */
    int64_t first_bytes;          /* the same of the first rung */
    int64_t first_pp, first_zero;
    char unlaid[HD_ERR_MAX]; /* why the first rung that could not be laid out cannot be; "": all
                                could */
};

/* Fails as hd_plan_decide does, or with HD_NO_MEMORY. That nothing fits is no failure. */
enum hd_status hd_fit_choose(const struct hd_fit_asked *asked, struct hd_fit *ret_fit);

/* Says in one line what was chosen and why: "pp 2 and zero 1 were chosen to fit: ..."; or why
 * nothing fits, with both numbers and the keys that would help, or with what cannot be laid out.
 * If the first rung was taken: why an axis that was auto had to be more than 1; else nothing. */
void hd_fit_explain(const struct hd_fit_asked *asked, const struct hd_fit *fit,
                    struct hd_text *ret_text);

#endif
