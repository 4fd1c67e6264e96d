/* plan_machine: speed and memory of this machine's devices, and how much memory a rank may take.
 * `heddle-worker device` measures in a process of its own.
 *
 * Used by: cmd_plan.c.   Uses: cli.h, plan_show.h, process.h, spec.   Threads: one.
 */
#ifndef HD_CLI_PLAN_MACHINE_H
#define HD_CLI_PLAN_MACHINE_H

#include "controller/cli/plan_show.h"

/* Sets the number of devices to the most that the job may have; and their threads, unless given, to
 * equal shares of the usable cores, as heddled does. */
void plan_machine_divide(struct plan_asked *a);
/* Sets traits, rates and between_bytes of `a` for the kind of device that the job runs on, as
 * measured by heddle-worker. */
enum hd_status plan_machine_measure(struct plan_asked *a);
/* Sets between_bytes, the memory for messages between nodes, which is equal on every machine;
 * unknown without heddle-worker. */
void plan_machine_find_between(struct plan_asked *a);
/* Sets memory_bytes, the memory that a rank may take on the device: for a GPU its memory; for CPU
 * devices of this machine their share of its memory, as heddled computes it; for other CPU devices
 * unknown. */
void plan_machine_find_memory(struct plan_asked *a, bool other_machines);
/* Notes on stderr that --device-memory exceeds the device's memory. whose: subject of the note,
 * "such a GPU has". */
void plan_machine_note_memory(int64_t given_bytes, int64_t own_bytes, const char *whose);

#endif
