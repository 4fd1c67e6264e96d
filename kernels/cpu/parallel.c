/* parallel: the only place that knows of threads inside a launch. */
#include "kernels/cpu/cpu.h"

#ifdef HEDDLE_HAVE_OPENMP
#include <omp.h>
#endif

enum { PIECE_BYTES = 64 * 1024 }; /* a few microseconds of memory traffic: more than a hand-over */

void hd_cpu_parallel(const struct hd_backend *cpu, int64_t count, int64_t grain, hd_cpu_body *body,
                     const void *args)
{
    const int64_t pieces = (count + grain - 1) / grain;

#ifdef HEDDLE_HAVE_OPENMP
    if (cpu->traits.threads > 1 && pieces > 1) {
        const int threads = pieces < cpu->traits.threads ? (int)pieces : cpu->traits.threads;

#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t p = 0; p < pieces; p++) {
            const int64_t begin = p * grain;
            const int64_t end = begin + grain < count ? begin + grain : count;

            body(args, begin, end, omp_get_thread_num());
        }
        return;
    }
#else
    (void)cpu;
#endif
    for (int64_t p = 0; p < pieces; p++) {
        const int64_t begin = p * grain;
        const int64_t end = begin + grain < count ? begin + grain : count;

        body(args, begin, end, 0);
    }
}

int64_t hd_cpu_row_grain(int64_t row_bytes)
{
    return row_bytes >= PIECE_BYTES ? 1 : PIECE_BYTES / (row_bytes > 0 ? row_bytes : 1);
}
