/* absent: an empty table for an instruction set that this build leaves out
 * (HEDDLE_CPU_KERNELS=native), because the build machine has a wider one. On a machine that
 * needs the table open_cpu() fails. */
#include "kernels/cpu/cpu.h"

#define ABSENT_TABLE(isa)    ABSENT_TABLE_OF(isa)
#define ABSENT_TABLE_OF(isa) const struct hd_cpu_kernels hd_cpu_kernels_##isa = {.fma_rate = NULL}

ABSENT_TABLE(ABSENT_ISA);
