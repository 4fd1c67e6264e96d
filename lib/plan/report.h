/* report: the best layouts of a job on groups of machines (search.h), and what is said of them: the
 * object Plan of heddle/v1 (docs/planning.md).
 *
 * Used by: the heddle command, controller (services).   Uses: search, rank_map, identity, base.
 * Threads: any.
 */
#ifndef HD_PLAN_REPORT_H
#define HD_PLAN_REPORT_H

#include "base/text.h"
#include "plan/search.h"

struct hd_report_asked {
    const char *machines;                  /* where these come from, for messages: "--devices" */
    const char *cluster_file;              /* as the user named it; NULL: none */
    const struct hd_job *spec;             /* complete */
    const struct hd_plan_request *request; /* of the spec; the kind of device is set here */
    const struct hd_cluster *clusters;     /* [cluster_count] groups of nodes, each with one kind */
    int cluster_count;
    int64_t threads;       /* of a CPU device; 1 of a GPU */
    int64_t threads_given; /* those that the user asked for; 0: none, the device decides */
    int64_t memory_bytes;  /* of a device; 0: the kind's */
    int top;
    int64_t deadline_ns; /* by hd_clock_now_ns, of all searches together; groups share the time
                          * that is left evenly; 0: none */
    void (*tell)(void *about, const struct hd_search *so_far); /* of struct hd_search_asked */
    void *about;
};

struct hd_report {
    const struct hd_cluster *cluster; /* the chosen group of nodes */
    int32_t devices;
    int64_t memory_bytes; /* of a device, for a rank */
    int unsearched;       /* groups whose search ended at its deadline before it found a plan: one
                           * of them may be faster */
    struct hd_search search;
};

/* HD_OK: something was costed, or nothing fits (search.plan_count 0). HD_INVALID: no layout is
 * legal, or no group has enough devices. HD_TIMEOUT: as hd_search_layouts. The result lives in
 * `arena`. */
enum hd_status hd_report_find(const struct hd_report_asked *asked, struct hd_arena *arena,
                              struct hd_report *ret_report);

/* Appends the object, with a line end. */
void hd_report_json(const struct hd_report_asked *asked, const struct hd_report *report,
                    struct hd_text *out);

/* The device of each rank on its node: [devices], of the caller; NULL: no memory, or the links of a
 * node make no difference. */
int32_t *hd_report_map(const struct hd_report *report, const struct hd_search_plan *plan);

/* Appends "over memory by 12 GiB on stage 0: needs at least 151 GiB of 139 GiB, 58% activations".
 */
void hd_report_reason(const struct hd_report *report, const struct hd_search_rejected *rejected,
                      struct hd_text *out);

enum { HD_REPORT_CAPABILITY_MIN = 80 }; /* of GPUs that the kernels are built for */
bool hd_report_has_kernels(
    const struct hd_traits *traits); /* the kernels are built for such GPUs */
/* Its tp groups are within nodes, as a search chooses them; pinned ones may not be. */
bool hd_report_keeps_tp(const struct hd_report *report, const struct hd_search_plan *plan);
/* An engine connects so many ranks, of devices that the kernels are built for, and places the plan
 * (NULL: any). */
bool hd_report_runs(const struct hd_report *report, const struct hd_search_plan *plan);

/* What a plan depends on besides the job: keys of a job, and kernels. */
void hd_report_build(char ret_build[32]);

#endif
