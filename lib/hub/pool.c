/* pool: threads that download files beside one another, with progress. */
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "hub_internal.h"

enum { PROGRESS_MS = 100 };

/* State that the threads share, under the mutex but for `next`. */
struct pool_run {
    struct hub_pool *pool;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a thread has ended */
    size_t next, running, count;
    struct hd_error error; /* first failure */
};

static void *run_thread(void *user)
{
    struct pool_run *run = user;
    struct hub_pool *p = run->pool;
    struct hub_client *client = NULL;
    enum hd_status st = hub_client_new(p->settings, &p->end, &client);

    while (!st && !hub_is_stopped(&p->end)) {
        const size_t i = __atomic_fetch_add(&run->next, 1, __ATOMIC_RELAXED);

        if (i >= run->count)
            break;
        st = p->get(p->owner, client, i);
        if (!st)
            (void)__atomic_add_fetch(&p->meter.files, 1, __ATOMIC_RELAXED);
        if (p->slow && __atomic_load_n(p->slow, __ATOMIC_RELAXED) && i % 2)
            break;
    }
    hub_client_free(client);
    (void)pthread_mutex_lock(&run->mutex);
    if (st && !run->error.status) {
        hd_err_save(st, &run->error);
        __atomic_store_n(&p->end, 1, __ATOMIC_RELAXED);
    }
    run->running--;
    (void)pthread_cond_signal(&run->changed);
    (void)pthread_mutex_unlock(&run->mutex);
    return NULL;
}

static void report(const struct hub_pool *p, int64_t begin_ms)
{
    const int64_t span_ms = hd_clock_now_ms() - begin_ms;
    const int64_t fetched = __atomic_load_n(&p->meter.fetched, __ATOMIC_RELAXED);
    const struct hd_hub_progress progress = {
        .done_bytes = __atomic_load_n(&p->meter.bytes, __ATOMIC_RELAXED),
        .total_bytes = p->total_bytes,
        .done_files = (size_t)__atomic_load_n(&p->meter.files, __ATOMIC_RELAXED),
        .total_files = p->total_files,
        .bytes_per_s = span_ms > 0 ? fetched * 1000 / span_ms : 0,
        .note = __atomic_load_n(&p->meter.waits, __ATOMIC_RELAXED)
                    ? "another process downloads a file of it"
                    : NULL};

    if (p->progress)
        p->progress(p->user, &progress);
}

/* Waits for the threads, and has them end when the caller's flag is set. */
static void await_threads(struct pool_run *run)
{
    const int64_t begin_ms = hd_clock_now_ms();

    (void)pthread_mutex_lock(&run->mutex);
    while (run->running) {
        struct timespec until;

        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PROGRESS_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&run->changed, &run->mutex, &until);
        if (hub_is_stopped(run->pool->stop))
            __atomic_store_n(&run->pool->end, 1, __ATOMIC_RELAXED);
        (void)pthread_mutex_unlock(&run->mutex);
        report(run->pool, begin_ms);
        (void)pthread_mutex_lock(&run->mutex);
    }
    (void)pthread_mutex_unlock(&run->mutex);
}

enum hd_status hub_pool_run(struct hub_pool *pool, size_t count)
{
    struct pool_run run = {.pool = pool, .count = count};
    pthread_t threads[HUB_THREADS];
    const size_t wanted = count < HUB_THREADS ? count : HUB_THREADS;
    size_t started = 0;

    (void)pthread_mutex_init(&run.mutex, NULL);
    (void)pthread_cond_init(&run.changed, NULL);
    (void)pthread_mutex_lock(&run.mutex);
    for (; started < wanted; started++, run.running++)
        if (pthread_create(&threads[started], NULL, run_thread, &run) != 0)
            break;
    (void)pthread_mutex_unlock(&run.mutex);
    await_threads(&run);
    for (size_t i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    (void)pthread_cond_destroy(&run.changed);
    (void)pthread_mutex_destroy(&run.mutex);
    if (hub_is_stopped(pool->stop))
        return hd_err(HD_ABORTED, "interrupted; the same command goes on where this one stopped");
    if (run.error.status)
        return hd_err_restore(&run.error);
    return started || !count ? HD_OK : hd_err(HD_NO_MEMORY, "cannot start a thread");
}
