/* doctor: heddled --doctor checks what a node needs and prints problems and their remedies.
 *
 * It changes nothing, takes no lock of the state directory and may run beside a heddled. A finding
 * is `ok`, a `note` (something optional is missing, or slower than possible) or a `problem` with a
 * hint how to fix it.
 *
 * Used by: agent.   Uses: base, rpc, daemon/devices.   Threads: one.
 */
#ifndef HD_DAEMON_AGENT_DOCTOR_H
#define HD_DAEMON_AGENT_DOCTOR_H

#include <stdbool.h>

#include "base/text.h"
#include "daemon/devices/gpu.h"

enum doctor_level { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_PROBLEM };

enum { DOCTOR_FINDINGS_MAX = 256 };

struct doctor_finding {
    char area[16]; /* part of the node that the finding is about: "driver", "gpu 0", "memory" .. */
    enum doctor_level level;
    char text[HD_ERR_MAX], hint[HD_ERR_MAX]; /* the finding, and how to fix it; hint "": none */
};

struct doctor_findings {
    int count, problems;
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
    struct hd_gpu_list gpus;
};

struct doctor_options {
    const char *worker; /* path of the heddle-worker */
    const char *supervisor;
    /* settings of heddled to check; NULL: not given */
    const char *controller, *state_dir, *data_address, *jobs_dir;
};

struct doctor_findings *doctor_new(void); /* returns NULL if out of memory; free() the result */
void doctor_check(struct doctor_findings *doctor, const struct doctor_options *options);
void doctor_add(struct doctor_findings *doctor, enum doctor_level level, const char *area,
                const char *hint, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void doctor_print(const struct doctor_findings *doctor, bool json, struct hd_text *ret_text);

/* Adds the findings about the GPUs in doctor->gpus. on_the_bus: number of GPUs on the PCI bus. */
void doctor_check_gpus(struct doctor_findings *doctor, int on_the_bus);
/* Adds the finding about the adapters that NCCL uses between nodes. sys: "/sys", another folder in
 * tests. */
void doctor_check_adapters(struct doctor_findings *doctor, const char *data_address,
                           const char *sys);
/* Returns the number of NVIDIA's GPUs in a folder like /sys/bus/pci/devices; 0 also if the folder
 * is missing. */
int doctor_count_on_bus(const char *devices);

#endif
