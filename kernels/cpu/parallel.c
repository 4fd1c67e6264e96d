/* parallel: runs a kernel's pieces on several threads; the only file that starts threads.
 *
 * A pool of (threads - 1) workers waits for jobs. The launching thread posts a job, runs pieces of
 * it, too, and at the end waits only for the workers that joined the job: a worker that gets no
 * core in time does not delay the job, because the other threads take its pieces. Waiting threads
 * spin for SPIN_NS (longer than the time between two jobs of a step, and than the difference
 * between pieces), then sleep on a futex.
 *
 * oneDNN starts OpenMP threads, which spin for milliseconds after each of its GEMMs and would
 * compete with the pool for cores. So after the first GEMM that the library computed, jobs run on
 * OpenMP's threads.
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

/* Bytes that a piece of work reads and writes: this takes some microseconds, longer than waking a
 * thread. */
enum { PIECE_BYTES = 64 * 1024 };

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

/* Time that a waiting thread spins before it sleeps; spins between two readings of the clock. */
enum { SPIN_NS = 100 * 1000, SPINS_PER_CLOCK = 64 };

/* The gate: bit OPEN is set while workers may join the job; the other bits count the workers that
 * have joined and not left. The job's members are written only while the gate is 0. */
static const uint32_t OPEN = 1u << 31;

struct worker {
    struct hd_cpu_pool *pool;
    pthread_t thread;
    int number; /* index of the worker, from 1; 0 is the launching thread */
};

struct hd_cpu_pool {
    struct job job;
    _Atomic int64_t next; /* index of the next piece of the job that a thread takes */
    _Alignas(64) _Atomic uint32_t gate;
    _Atomic uint32_t waiting;           /* 1: the launching thread sleeps until the gate is 0 (no
                                           worker is in the job) */
    _Alignas(64) _Atomic uint32_t jobs; /* number of jobs posted so far; workers sleep on it */
    _Atomic uint32_t sleepers;          /* number of workers that sleep, or are about to */
    _Atomic bool stopping;
    int count; /* number of workers */
    struct worker workers[];
};

/* Spins while *word is `value`, for at most SPIN_NS. Returns true if *word has changed. */
static bool spin_while(const _Atomic uint32_t *word, uint32_t value)
{
    const int64_t begin_ns = hd_clock_now_ns();

    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
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

static void take_pieces(struct hd_cpu_pool *pool, int thread)
{
    int64_t piece;

    while ((piece = atomic_fetch_add(&pool->next, 1)) < pool->job.pieces)
        run_piece(&pool->job, piece, thread);
}

static bool enter(struct hd_cpu_pool *pool)
{
    uint32_t gate = atomic_load(&pool->gate);

    while (gate & OPEN)
        if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1))
            return true;
    return false;
}

static void leave(struct hd_cpu_pool *pool)
{
    if (atomic_fetch_sub(&pool->gate, 1) == 1 && atomic_load(&pool->waiting))
        wake_all(&pool->gate);
}

static void *work(void *argument)
{
    const struct worker *w = argument;
    struct hd_cpu_pool *pool = w->pool;

    for (uint32_t seen = 0; !atomic_load(&pool->stopping);) {
        if (!spin_while(&pool->jobs, seen)) {
            atomic_fetch_add(&pool->sleepers, 1);
            while (atomic_load(&pool->jobs) == seen)
                sleep_while(&pool->jobs, seen);
            atomic_fetch_sub(&pool->sleepers, 1);
        }
        seen = atomic_load(&pool->jobs);
        if (enter(pool)) {
            take_pieces(pool, w->number);
            leave(pool);
        }
    }
    return NULL;
}

static void announce(struct hd_cpu_pool *pool)
{
    atomic_fetch_add(&pool->jobs, 1);
    if (atomic_load(&pool->sleepers))
        wake_all(&pool->jobs);
}

static void run_job(struct hd_cpu_pool *pool, const struct job *job)
{
    uint32_t gate;

    pool->job = *job;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->gate, OPEN);
    announce(pool);
    take_pieces(pool, 0);
    gate = atomic_fetch_and(&pool->gate, ~OPEN) & ~OPEN;
    while (gate && spin_while(&pool->gate, gate))
        gate = atomic_load(&pool->gate);
    if (!gate)
        return;
    atomic_store(&pool->waiting, 1);
    while ((gate = atomic_load(&pool->gate)))
        sleep_while(&pool->gate, gate);
    atomic_store(&pool->waiting, 0);
}

void hd_cpu_pool_free(struct hd_cpu_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stopping, true);
    announce(pool);
    for (int i = 0; i < pool->count; i++)
        (void)pthread_join(pool->workers[i].thread, NULL);
    free(pool);
}

/* Starts the thread of a worker with all signals blocked: only the program's own threads handle
 * signals. */
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

enum hd_status hd_cpu_pool_new(int threads, struct hd_cpu_pool **ret_pool)
{
    const size_t bytes = sizeof(struct hd_cpu_pool) + (size_t)threads * sizeof(struct worker);
    struct hd_cpu_pool *pool = NULL;

    *ret_pool = NULL;
    if (threads < 2)
        return HD_OK;
    if (posix_memalign((void **)&pool, 64, bytes))
        return hd_err(HD_NO_MEMORY, "no memory for the cpu backend's threads");
    memset(pool, 0, bytes);
    for (; pool->count < threads - 1; pool->count++) {
        struct worker *w = &pool->workers[pool->count];

        *w = (struct worker){.pool = pool, .number = pool->count + 1};
        if (start(w)) {
            const int number = w->number;

            hd_cpu_pool_free(pool);
            return hd_err(HD_NO_MEMORY,
                          "cannot start thread %d of %d of the cpu backend; check the limit of "
                          "processes (ulimit -u)",
                          number + 1, threads);
        }
    }
    *ret_pool = pool;
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

    if (!cpu->pool || job.pieces < 2) {
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
    run_job(cpu->pool, &job);
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
