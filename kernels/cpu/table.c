/* table: the table of kernels (struct hd_cpu_kernels) for the instruction set of this
 * compilation. */
#include "kernels/cpu/cpu.h"

#define HD_CPU_TABLE2(isa) hd_cpu_kernels_##isa
#define HD_CPU_TABLE(isa)  HD_CPU_TABLE2(isa)

const struct hd_cpu_kernels HD_CPU_TABLE(HD_CPU_ISA) = {
#define K(name, ...) .name = KERNEL(name),
#include "kernels/kernels.def"
    .fma_rate = KERNEL(fma_rate),
};
