/* absent: the table of an instruction set that this build leaves out (HEDDLE_CPU_KERNELS=native):
 * it is empty. The machine that the build is for has a wider set, which is chosen instead.
 */
#include "kernels/cpu/cpu.h"

#define ABSENT_TABLE(isa)    ABSENT_TABLE_OF(isa)
#define ABSENT_TABLE_OF(isa) const struct hd_cpu_kernels hd_cpu_kernels_##isa = {.fma_rate = NULL}

ABSENT_TABLE(ABSENT_ISA);
