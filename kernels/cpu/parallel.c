/* parallel: the only place that knows of threads inside a launch.
 *
 * A crew of own threads, one fewer than share a launch, waits for jobs. Who opens a job works on it
 * too, and at its end waits only for those who came: a thread that another program keeps from its
 * core in that moment is not missed, its pieces are done by the others. Who waits spins for
 * SPIN_NS, which is more than lies between two jobs of a step or than pieces differ by, then
 * sleeps, which leaves the core to whoever needs it.
 *
 * The library brings OpenMP's threads, which spin for milliseconds behind each of its products.
 * Beside them the crew would find no core: from the first product that the library computes, jobs
 * are OpenMP's.
 */
#include "kernels/cpu/cpu.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef HEDDLE_HAVE_DNNL
#include <omp.h>
#endif

#include "base/clock.h"

enum { PIECE_BYTES = 64 * 1024 }; /* a few microseconds of memory traffic: more than a hand-over */

struct job {
    hd_cpu_body *body;
    const void *args;
    int64_t count, grain, pieces;
};

static void run_piece(const struct job *job, int64_t piece, int thread)
{
    const int64_t begin = piece * job->grain;
    const int64_t end = begin + job->grain < job->count ? begin + job->grain : job->count;

    job->body(job->args, begin, end, thread);
}

enum { SPIN_NS = 100 * 1000, SPINS_PER_LOOK = 64 };

/* The gate: OPEN while a job takes threads, plus the number of those inside. The job's members are
 * written while it is closed and empty, and read inside. */
static const uint32_t OPEN = 1u << 31;

struct worker {
    struct hd_cpu_crew *crew;
    pthread_t thread;
    int number; /* from 1; 0 is who opens the job */
};

struct hd_cpu_crew {
    struct job job;
    _Atomic int64_t next; /* piece */
    _Alignas(64) _Atomic uint32_t gate;
    _Atomic uint32_t waiting;           /* somebody sleeps until the gate is empty */
    _Alignas(64) _Atomic uint32_t jobs; /* that were opened; what the workers sleep on */
    _Atomic uint32_t sleepers;
    _Atomic bool dismissed;
    int count;
    struct worker workers[];
};

/* Spins until *word is not `value`, for SPIN_NS at most. */
static bool spin_while(const _Atomic uint32_t *word, uint32_t value)
{
    const int64_t begin_ns = hd_clock_now_ns();

    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (atomic_load(word) != value)
                return true;
#ifdef HEDDLE_CPU_X86
            __builtin_ia32_pause();
#endif
        }
    } while (hd_clock_now_ns() - begin_ns < SPIN_NS);
    return false;
}

static void sleep_while(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void take_pieces(struct hd_cpu_crew *crew, int thread)
{
    int64_t piece;

    while ((piece = atomic_fetch_add(&crew->next, 1)) < crew->job.pieces)
        run_piece(&crew->job, piece, thread);
}

static bool enter(struct hd_cpu_crew *crew)
{
    uint32_t gate = atomic_load(&crew->gate);

    while (gate & OPEN)
        if (atomic_compare_exchange_weak(&crew->gate, &gate, gate + 1))
            return true;
    return false;
}

static void leave(struct hd_cpu_crew *crew)
{
    if (atomic_fetch_sub(&crew->gate, 1) == 1 && atomic_load(&crew->waiting))
        wake_all(&crew->gate);
}

static void *work(void *argument)
{
    const struct worker *w = argument;
    struct hd_cpu_crew *crew = w->crew;

    for (uint32_t seen = 0; !atomic_load(&crew->dismissed);) {
        if (!spin_while(&crew->jobs, seen)) {
            atomic_fetch_add(&crew->sleepers, 1);
            while (atomic_load(&crew->jobs) == seen)
                sleep_while(&crew->jobs, seen);
            atomic_fetch_sub(&crew->sleepers, 1);
        }
        seen = atomic_load(&crew->jobs);
        if (enter(crew)) {
            take_pieces(crew, w->number);
            leave(crew);
        }
    }
    return NULL;
}

static void announce(struct hd_cpu_crew *crew)
{
    atomic_fetch_add(&crew->jobs, 1);
    if (atomic_load(&crew->sleepers))
        wake_all(&crew->jobs);
}

static void run_job(struct hd_cpu_crew *crew, const struct job *job)
{
    uint32_t gate;

    crew->job = *job;
    atomic_store(&crew->next, 0);
    atomic_store(&crew->gate, OPEN);
    announce(crew);
    take_pieces(crew, 0);
    gate = atomic_fetch_and(&crew->gate, ~OPEN) & ~OPEN;
    while (gate && spin_while(&crew->gate, gate))
        gate = atomic_load(&crew->gate);
    if (!gate)
        return;
    atomic_store(&crew->waiting, 1);
    while ((gate = atomic_load(&crew->gate)))
        sleep_while(&crew->gate, gate);
    atomic_store(&crew->waiting, 0);
}

void hd_cpu_crew_free(struct hd_cpu_crew *crew)
{
    if (!crew)
        return;
    atomic_store(&crew->dismissed, true);
    announce(crew);
    for (int i = 0; i < crew->count; i++)
        (void)pthread_join(crew->workers[i].thread, NULL);
    free(crew);
}

/* Signals are for the program's own threads: the crew takes none, whenever it was made. */
static int start(struct worker *w)
{
    sigset_t all, old;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    failed = pthread_create(&w->thread, NULL, work, w);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed;
}

enum hd_status hd_cpu_crew_new(int threads, struct hd_cpu_crew **ret_crew)
{
    const size_t bytes = sizeof(struct hd_cpu_crew) + (size_t)threads * sizeof(struct worker);
    struct hd_cpu_crew *crew = NULL;

    *ret_crew = NULL;
    if (threads < 2)
        return HD_OK;
    if (posix_memalign((void **)&crew, 64, bytes))
        return hd_err(HD_NO_MEMORY, "no memory for the cpu backend's threads");
    memset(crew, 0, bytes);
    for (; crew->count < threads - 1; crew->count++) {
        struct worker *w = &crew->workers[crew->count];

        *w = (struct worker){.crew = crew, .number = crew->count + 1};
        if (start(w)) {
            const int number = w->number;

            hd_cpu_crew_free(crew);
            return hd_err(HD_NO_MEMORY,
                          "cannot start thread %d of %d of the cpu backend; is there a limit of "
                          "processes (ulimit -u)?",
                          number + 1, threads);
        }
    }
    *ret_crew = crew;
    return HD_OK;
}

#ifdef HEDDLE_HAVE_DNNL
static void run_by_openmp(const struct job *job, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t p = 0; p < job->pieces; p++)
        run_piece(job, p, omp_get_thread_num());
}
#endif

void hd_cpu_parallel(const struct hd_backend *cpu, int64_t count, int64_t grain, hd_cpu_body *body,
                     const void *args)
{
    const struct job job = {body, args, count, grain, (count + grain - 1) / grain};

    if (!cpu->crew || job.pieces < 2) {
        for (int64_t p = 0; p < job.pieces; p++)
            run_piece(&job, p, 0);
        return;
    }
#ifdef HEDDLE_HAVE_DNNL
    if (cpu->library_ran) {
        run_by_openmp(&job,
                      job.pieces < cpu->traits.threads ? (int)job.pieces : cpu->traits.threads);
        return;
    }
#endif
    run_job(cpu->crew, &job);
}

int64_t hd_cpu_row_grain(int64_t row_bytes)
{
    return row_bytes >= PIECE_BYTES ? 1 : PIECE_BYTES / (row_bytes > 0 ? row_bytes : 1);
}

int64_t hd_cpu_rows_in_use(const int32_t *counts, int64_t groups, int64_t bound)
{
    int64_t rows = 0;

    for (int64_t i = 0; counts && i < groups; i++)
        rows += counts[i];
    return counts && rows < bound ? rows : bound;
}
