/* best: the layout that an attempt gets on the devices that were found for it.
 *
 * Where it is known how fast the devices compute and reach one another (`cluster`), it is the
 * fastest layout that fits their memory, of all that the job leaves open (search.h). Elsewhere it
 * is data parallelism, with as much ZeRO and as many stages as the memory demands (fit.h).
 *
 * Used by: controller (services).   Uses: search, fit.   Threads: any.
 */
#ifndef HD_PLAN_BEST_H
#define HD_PLAN_BEST_H

#include "plan/fit.h"
#include "plan/search.h"

struct hd_best_asked {
    struct hd_fit_asked fit;
    const struct hd_cluster *cluster; /* exactly fit.devices devices; NULL: not known */
    double peak_flops;                /* of a device, for MFU; 0: not known */
    int64_t deadline_ns; /* of the search: then the layout is chosen by memory; 0: none */
};

struct hd_best {
    struct hd_layout_sizes sizes; /* complete; if nothing fits, the layout that needs least */
    bool fits;
    double step_s;        /* predicted; 0: not known */
    int64_t needed_bytes; /* of a device, for the rank that takes most; 0: not known */
    bool hasty;           /* the search ended at its deadline: chosen by memory */
};

/* Fails as hd_plan_decide does, or with HD_NO_MEMORY. That nothing fits is no failure. Appends to
 * ret_why what was chosen and what it costs, or why nothing fits; nothing where there was no choice
 * to explain. */
enum hd_status hd_best_choose(const struct hd_best_asked *asked, struct hd_best *ret_best,
                              struct hd_text *ret_why);

#endif
