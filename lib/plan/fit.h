/* fit: chooses parallel.zero and parallel.pp, where the job leaves them auto, so that the layout
 * fits the memory of its devices. All other members are as hd_plan_size decides them.
 *
 * Layouts are tried in this order, and the first that fits is taken:
 *
 *     pp 1 with zero 0, 1, 2, 3; pp 2 with zero 0 .. 3; pp 3 ..., pp dividing the devices
 *
 * Layouts that are illegal on this number of devices are skipped, and so is zero > 0 with one
 * replica, which is the same as zero 0. If no pp gives a layout by itself, the tp, cp and pp of
 * hd_plan_decide are tried with each zero. Each try costs a plan (plan.h): milliseconds, for large
 * models some tenths of a second.
 *
 * Used by: controller (services), the heddle command.   Uses: plan, choose.   Threads: any.
 */
#ifndef HD_PLAN_FIT_H
#define HD_PLAN_FIT_H

#include "base/text.h"
#include "plan/choose.h"
#include "plan/plan.h"

struct hd_fit_asked {
    const struct hd_job *spec;             /* complete spec of the job; its layout is ignored */
    const struct hd_plan_request *request; /* requested sizes; device: cpu or cuda, not auto */
    int32_t devices; /* number of devices; hd_plan_size must find a layout on it */
    int64_t threads; /* threads of one CPU device */
    bool bf16_fast;
    const struct hd_traits *traits; /* traits of the device that has least memory */
    /* memory of that device for one rank, bytes; 0: unknown, and every layout fits */
    int64_t memory_bytes;
};

struct hd_fit {
    /* the first layout that fits the device memory; else the one that needs least */
    struct hd_layout_sizes sizes;
    /* fits: `sizes` fits the memory; tried: an earlier layout was tried and did not fit */
    bool fits, tried;
    int64_t needed_bytes; /* memory of one device for the rank of `sizes` that needs most */
    int64_t first_bytes;  /* memory that the first layout tried would have needed */
    int64_t first_pp, first_zero;
    char unlaid[HD_ERR_MAX]; /* error of the first layout that could not be built; "": all could */
};

/* Chooses zero and pp where they are auto, so that the layout fits the device memory. Fails as
 * hd_plan_decide does, or with HD_NO_MEMORY; if no layout fits, returns HD_OK with ret_fit->fits
 * false. */
enum hd_status hd_fit_choose(const struct hd_fit_asked *asked, struct hd_fit *ret_fit);

/* Appends one line: what was chosen and why ("pp 2 and zero 1 chosen to fit: ..."); or why no
 * layout fits, with the bytes needed and available and the keys that would help; or why no layout
 * can be built. If the first layout tried was taken: why an axis that was auto had to be more than
 * 1; appends nothing if none had to. */
void hd_fit_explain(const struct hd_fit_asked *asked, const struct hd_fit *fit,
                    struct hd_text *ret_text);

#endif
