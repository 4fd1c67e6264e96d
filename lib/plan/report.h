/* report: finds the best layouts of a job on groups of machines (search.h), and writes the object
 * Plan of heddle/v1 (docs/planning.md).
 *
 * Used by: the heddle command, controller (services).   Uses: search, rank_map, identity, base.
 * Threads: any. */
#ifndef HD_PLAN_REPORT_H
#define HD_PLAN_REPORT_H

#include "base/text.h"
#include "plan/search.h"

struct hd_report_asked {
    const char *machines;      /* option that described the machines, for messages: "--devices" */
    const char *cluster_file;  /* path as the user typed it; NULL: none */
    const struct hd_job *spec; /* complete spec of the job that is planned */
    /* sizes that the spec requests; hd_report_find sets the kind of device */
    const struct hd_plan_request *request;
    /* [cluster_count] groups of nodes, each with one kind of device */
    const struct hd_cluster *clusters;
    int cluster_count;
    int64_t threads;       /* threads of one CPU device; 1 for a GPU */
    int64_t threads_given; /* threads that the user asked for; 0: none, the device decides */
    int64_t memory_bytes;  /* memory of one device, bytes; 0: that of its kind */
    int top;
    /* time by hd_clock_now_ns at which the searches of all groups end; groups share the remaining
     * time evenly; 0: no limit */
    int64_t deadline_ns;
    /* callback that the search calls repeatedly with the layouts found so far; NULL: none */
    void (*tell)(void *about, const struct hd_search *so_far);
    void *about;
};

struct hd_report {
    const struct hd_cluster *cluster; /* the group of nodes whose layout is fastest */
    int32_t devices;
    int64_t memory_bytes; /* memory of one device for one rank, bytes */
    /* number of groups whose search reached its deadline without a layout; one of them may be
     * faster */
    int unsearched;
    struct hd_search search;
};

/* Finds the fastest layout of the job among all groups of nodes. HD_OK: a layout was found, or
 * nothing fits (search.plan_count is 0). HD_INVALID: no layout is legal, or no group has enough
 * devices. HD_TIMEOUT: the deadline passed before a layout was found. The result lives in
 * `arena`. */
enum hd_status hd_report_find(const struct hd_report_asked *asked, struct hd_arena *arena,
                              struct hd_report *ret_report);

/* Appends the object Plan and a line end. */
void hd_report_json(const struct hd_report_asked *asked, const struct hd_report *report,
                    struct hd_text *out);

/* Returns the device of each rank on its node, [devices]; the caller frees it. NULL: no memory, or
 * all pairs of devices in a node are alike. */
int32_t *hd_report_map(const struct hd_report *report, const struct hd_search_plan *plan);

/* Appends why a faster layout was rejected: "over memory by 12 GiB on stage 0: needs at least 151
 * GiB of 139 GiB, 58% activations". */
void hd_report_reason(const struct hd_report *report, const struct hd_search_rejected *rejected,
                      struct hd_text *out);

/* least compute capability that the GPU kernels are built for */
enum { HD_REPORT_CAPABILITY_MIN = 80 };
bool hd_report_has_kernels(
    /* Returns whether the GPU kernels are built for devices with these traits. */
    const struct hd_traits *traits);
/* Returns whether each tp group lies on one node. A tp that the search chooses always does; a
 * pinned tp may not. */
bool hd_report_keeps_tp(const struct hd_report *report, const struct hd_search_plan *plan);
/* Returns whether the plan can run: the kernels are built for these devices, a communication engine
 * connects that many ranks, and tp groups lie within nodes. plan NULL: the condition on tp groups
 * is not checked. */
bool hd_report_runs(const struct hd_report *report, const struct hd_search_plan *plan);

/* Appends a line for each setting of this process's environment by which ranks on these GPUs would use
 * other kernels than a plan is made of (kernels/plugin.h). */
void hd_report_note_other_kernels(const struct hd_report *report, struct hd_text *notes);

#endif
