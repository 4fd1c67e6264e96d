/* gpu_clocks: a line that says how fast a GPU runs, how warm it is and what it draws, beside which
 * a measurement can be understood.
 *
 * Used by: the benchmarks of GPUs.
 */
#ifndef HD_TESTS_BENCH_GPU_CLOCKS_H
#define HD_TESTS_BENCH_GPU_CLOCKS_H

#include <stdio.h>

/* bus: "0000:3B:00.0". Where nvidia-smi is not there the line says so. */
void gpu_clocks_print(const char *bus, FILE *out);

#endif
