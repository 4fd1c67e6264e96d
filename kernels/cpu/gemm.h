/* gemm: own code for GEMMs. Used by: gemm.c, moe_gemm.c. */
#ifndef HD_KERNELS_CPU_GEMM_H
#define HD_KERNELS_CPU_GEMM_H

#include "kernels/cpu/cpu.h"

/* Computes a GEMM of any shape by Heddle's own code; args->scratch has the layout of
 * hd_costs_lay_out_gemm(). */
void KERNEL(gemm_blocked)(struct hd_backend *cpu, const struct hd_gemm_args *args);

/* Computes a GEMM for which hd_costs_gemm_is_row() returns true (one row times a transposed
 * matrix); uses no scratch. */
void KERNEL(gemm_row)(struct hd_backend *cpu, const struct hd_gemm_args *args);

#endif
