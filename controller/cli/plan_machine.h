/* plan_machine: what this machine's devices can do, and what of it a rank may take.
 * `heddle-worker device` measures it in a process of its own.
 *
 * Used by: cmd_plan.c.   Uses: cli.h, plan_show.h, process.h, spec.   Threads: one.
 */
#ifndef HD_CLI_PLAN_MACHINE_H
#define HD_CLI_PLAN_MACHINE_H

#include "controller/cli/plan_show.h"

/* As many devices as the job may have, which share the usable cores as those of heddled do. */
void plan_machine_divide(struct plan_asked *a);
/* Sets traits, rates and between_bytes for the job's kind of device. */
enum hd_status plan_machine_measure(struct plan_asked *a);
/* Sets between_bytes: what messages between nodes take is the same on every machine; not known
 * without heddle-worker. */
void plan_machine_find_between(struct plan_asked *a);
/* What a rank may take: of a GPU its memory; of CPU devices that share this machine their share of
 * its memory, as heddled offers it; of other CPU devices it is not known. */
void plan_machine_find_memory(struct plan_asked *a, bool other_machines);
/* Says on stderr that --device-memory is more than there is. whose: "such a GPU has". */
void plan_machine_note_memory(int64_t given_bytes, int64_t own_bytes, const char *whose);

#endif
