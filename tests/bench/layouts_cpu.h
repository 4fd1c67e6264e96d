/* layouts_cpu: what its two files share: the driver, which starts the peers in turns and prints the
 * table, and a rank of ours.
 *
 * A rank answers "run N" by N step times in milliseconds and, behind them, where its time went:
 * LAYOUTS_PARTS means per step. It answers "memory" by two numbers of bytes: what its process has
 * taken at most since just before its memory was reserved, less the pages of other ranks that it
 * reads, and what its plan says.
 */
#ifndef HD_TESTS_BENCH_LAYOUTS_CPU_H
#define HD_TESTS_BENCH_LAYOUTS_CPU_H

#include "comm/gloo.h"
#include "comm/shm_control.h"
#include "job/job.h"

enum { LAYOUTS_RANKS = 2 };

/* Milliseconds of a rank's thread. Engines shm and gloo move and add bytes in this thread: in
 * launches and polls as long as computing goes on meanwhile, in waits and joins otherwise. */
enum layouts_part {
    LAYOUTS_FORWARD,  /* kernels of F */
    LAYOUTS_BACKWARD, /* kernels of B and W */
    LAYOUTS_UPDATE,   /* kernels of S and U */
    LAYOUTS_LAUNCH,   /* launches of collectives */
    LAYOUTS_POLL,     /* between two kernels */
    LAYOUTS_WAIT,     /* for a collective of F, B or W */
    LAYOUTS_END,      /* for a collective of S or U, and for everything at the end of a step */
    LAYOUTS_PARTS
};

struct layouts_rank {
    const struct hd_job *job;
    int rank, world;
    struct hd_shm_control *shm; /* NULL: gloo; with one rank neither */
    struct hd_gloo_listener *door;
    const struct hd_gloo_endpoint *cards; /* [world] */
};

/* Serves until its input ends; the exit status. `context` is a struct layouts_rank. */
int layouts_cpu_rank(void *context);

#endif
