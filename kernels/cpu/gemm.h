/* gemm: what gemm.c chooses from, and how own code multiplies panels.
 *
 * Used by: kernels/cpu only.
 */
#ifndef HD_KERNELS_CPU_GEMM_H
#define HD_KERNELS_CPU_GEMM_H

#include "kernels/cpu/cpu.h"

/* Own code: any shape, within hd_costs_gemm_layout(). */
void KERNEL(gemm_blocked)(struct hd_backend *cpu, const struct hd_gemm_args *args);

/* Own code where hd_costs_gemm_is_row(). */
void KERNEL(gemm_row)(struct hd_backend *cpu, const struct hd_gemm_args *args);

#endif
