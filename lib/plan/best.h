/* best: chooses the layout of an attempt on the devices that the scheduler has given it.
 *
 * If the speed of the devices and of their links is known (`cluster`), the result is the fastest
 * layout that fits their memory, among all that the job's `auto` members allow (search.h).
 * Otherwise the result is data parallelism, with as much ZeRO and as many pipeline stages as the
 * memory demands (fit.h).
 *
 * Used by: controller (services).   Uses: search, fit.   Threads: any. */
#ifndef HD_PLAN_BEST_H
#define HD_PLAN_BEST_H

#include "plan/fit.h"
#include "plan/search.h"

struct hd_best_asked {
    struct hd_fit_asked fit;
    /* speeds of exactly fit.devices devices and of their links; NULL: unknown, so the layout is
     * chosen by memory */
    const struct hd_cluster *cluster;
    double peak_flops; /* peak FLOP/s of one device, for MFU; 0: unknown */
    /* time by hd_clock_now_ns at which the search for the fastest layout ends; the layout is then
     * chosen by memory; 0: no limit */
    int64_t deadline_ns;
};

struct hd_best {
    /* the chosen layout, without auto; if no layout fits the devices' memory, the one that needs
     * least */
    struct hd_layout_sizes sizes;
    bool fits;
    double step_s; /* predicted seconds of a step; 0: unknown */
    /* memory of one device, bytes, for the rank that needs most; 0: unknown */
    int64_t needed_bytes;
    /* the search reached deadline_ns: before the fastest layout was found, so the layout was chosen by
     * memory, or before a simpler one that is nearly as fast could be found */
    bool hasty;
};

/* Chooses the layout. Fails as hd_plan_decide does, or with HD_NO_MEMORY; if no layout fits,
 * returns HD_OK with `fits` false. Appends to ret_why what was chosen and its cost, or why nothing
 * fits; appends nothing if there was no choice to explain. */
enum hd_status hd_best_choose(const struct hd_best_asked *asked, struct hd_best *ret_best,
                              struct hd_text *ret_why);

/* Appends that a layout of more axes would be faster, and by how much, if the search has taken a simpler
 * one: "micro-batch 1, pp 2 (1f1b), dp 4 would take 0.8% less, .."; else nothing. */
void hd_best_explain(const struct hd_search *search, struct hd_text *text);

#endif
