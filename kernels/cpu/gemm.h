/* gemm: what gemm.c chooses from.
 *
 * Used by: kernels/cpu only.
 */
#ifndef HD_KERNELS_CPU_GEMM_H
#define HD_KERNELS_CPU_GEMM_H

#include "kernels/cpu/cpu.h"

/* Own code: any shape, within hd_dry_gemm_layout(). */
void KERNEL(gemm_blocked)(struct hd_backend *cpu, const struct hd_gemm_args *args);

#endif
