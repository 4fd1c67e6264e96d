/* nccl_watch: how nccl aborts. The thread that detects a failure reports it to the host endpoint,
 * which reports it to all ranks. Each rank then aborts all its communicators, which ends its
 * kernels on the device.
 *
 * The abort must not depend on the thread that owns the endpoint: that thread may be blocked in a
 * call of NCCL or in any launch, because the device's queue is full and only an abort drains it.
 * NCCL allows an abort concurrently with a blocked call. An abort waits for calls that are not
 * blocked (nccl_is_blocked).
 *
 * The abort must not depend on the driver either, because all its calls may block while a launch
 * does. So only the watchdog calls the driver; the listener never does, and can always abort. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl_internal.h"

enum { ABORT_LOOK_US = 1000 };

/* ---- calls of NCCL ---- */

enum hd_status nccl_lock_calls(struct nccl_state *nccl)
{
    (void)pthread_mutex_lock(&nccl->lock);
    if (!atomic_load(&nccl->aborted))
        return HD_OK;
    (void)pthread_mutex_unlock(&nccl->lock);
    return hd_err(HD_ABORTED, "nccl: the communicators of this rank were aborted");
}

void nccl_unlock_calls(struct nccl_state *nccl)
{
    atomic_store(&nccl->calling_since_ms, 0);
    (void)pthread_mutex_unlock(&nccl->lock);
}

void nccl_may_block(struct nccl_state *nccl)
{
    atomic_store(&nccl->calling_since_ms, hd_clock_now_ms());
}

void nccl_note_progress(struct nccl_state *nccl)
{
    if (atomic_load(&nccl->enqueue_since_ms))
        atomic_store(&nccl->enqueue_since_ms, hd_clock_now_ms());
}

/* ---- aborting ---- */

bool nccl_hear_cause(const struct hd_comm *comm)
{
    for (int waited_ms = 0; waited_ms < NCCL_CAUSE_MS && !nccl_has_failed(comm); waited_ms++)
        (void)usleep(1000);
    return nccl_has_failed(comm);
}

/* Takes the lock of NCCL calls. Returns false, without the lock, if the thread that owns the
 * endpoint holds it in a blocked call (nccl_is_blocked). */
static bool lock_or_give_up(struct nccl_state *nccl)
{
    while (pthread_mutex_trylock(&nccl->lock) != 0) {
        if (nccl_is_blocked(nccl, hd_clock_now_ms()))
            return false;
        (void)usleep(ABORT_LOOK_US);
    }
    return true;
}

static void abort_one(struct nccl_state *nccl, struct nccl_communicator *communicator)
{
    if (communicator->comm && !atomic_exchange(&communicator->is_aborted, true))
        nccl->calls->abort(communicator->comm);
}

/* Aborts each communicator once, also if several threads call this. */
static void abort_communicators(struct nccl_state *nccl)
{
    const int count = atomic_load(&nccl->communicator_count);

    if (atomic_load(&nccl->has_maker))
        abort_one(nccl, &nccl->maker);
    for (int i = 0; i < count; i++)
        abort_one(nccl, &nccl->communicators[i]);
}

void nccl_add_maker(struct nccl_state *nccl)
{
    atomic_store(&nccl->has_maker, true);
    if (atomic_load(&nccl->aborted)) /* an abort may have begun while the communicator was being
                                        created */
        abort_communicators(nccl);
}

void nccl_add_communicator(struct nccl_state *nccl)
{
    atomic_fetch_add(&nccl->communicator_count, 1);
    if (atomic_load(&nccl->aborted)) /* an abort may have begun while the communicator was being
                                        created */
        abort_communicators(nccl);
}

void nccl_abort_all(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);
    bool locked;

    if (atomic_exchange(&nccl->aborted, true))
        return; /* another thread aborts the communicators */
    hd_comm_streams_begin_abort(comm);
    locked = lock_or_give_up(nccl);
    abort_communicators(nccl);
    if (locked)
        (void)pthread_mutex_unlock(&nccl->lock);
}

void nccl_abort(struct hd_comm *comm, enum hd_status st, const char *reason)
{
    struct nccl_state *nccl = nccl_of(comm);

    nccl->host->engine->abort(nccl->host, st, reason);
    nccl_abort_all(comm);
}

/* ---- the watchdog ---- */

/* Returns the first asynchronous error of any communicator, or HD_OK; HD_OK also while the thread
 * that owns the endpoint is in an NCCL call. */
static enum hd_status look_at_comms(struct nccl_state *nccl)
{
    enum hd_status st = HD_OK;
    bool busy;

    if (pthread_mutex_trylock(&nccl->lock) != 0)
        return HD_OK;
    for (int i = 0; i < nccl->communicator_count && !atomic_load(&nccl->aborted) && !st; i++) {
        if (nccl->communicators[i].comm)
            st = nccl->calls->poll(nccl->communicators[i].comm, &busy);
    }
    (void)pthread_mutex_unlock(&nccl->lock);
    return st;
}

/* Sets *ret_still_ms to the time (hd_clock_now_ms) since which a stream has made no progress, if
 * operations of the stream are pending on the device or one is being enqueued; otherwise to 0. Sets
 * *ret_launch to that operation's number. */
static enum hd_status look_at_stream(struct hd_comm *comm, enum hd_comm_stream_name s,
                                     struct hd_comm_stream_clock *clock, int64_t now_ms,
                                     int64_t *ret_still_ms, uint64_t *ret_launch)
{
    struct nccl_state *nccl = nccl_of(comm);
    const uint64_t run = clock->run;
    enum hd_status st = hd_comm_streams_query(comm, s, clock, now_ms);
    const bool pending = clock->run < atomic_load(&comm->device_streams->newest[s]);
    const int64_t enqueue_ms =
        atomic_load(&nccl->enqueue_stream) == (int)s ? atomic_load(&nccl->enqueue_since_ms) : 0;

    if (clock->run > run && !clock->is_guess)
        atomic_store(&nccl->moved_ms, now_ms);
    *ret_still_ms = 0;
    *ret_launch = pending ? hd_comm_streams_launch(comm->device_streams, s, clock->run + 1)
                          : atomic_load(&nccl->enqueue_launch);
    if (st)
        return st;
    if (!pending && !enqueue_ms)
        clock->still_since_ms = now_ms;
    else if (pending)
        *ret_still_ms = now_ms - clock->still_since_ms;
    else
        *ret_still_ms = now_ms - NCCL_GRACE_MS -
                        (enqueue_ms > clock->still_since_ms ? enqueue_ms : clock->still_since_ms);
    return HD_OK;
}

/* Makes one check of the watchdog thread. Returns false if it found a failure; then it has aborted
 * all communicators. */
static bool look(struct hd_comm *comm, struct hd_comm_stream_clock clocks[HD_COMM_STREAM_COUNT])
{
    struct nccl_state *nccl = nccl_of(comm);
    const int64_t now_ms = hd_clock_now_ms();
    enum hd_status st;

    if (nccl_has_failed(comm)) {
        nccl_abort_all(comm);
        return false;
    }
    if (look_at_comms(nccl)) {
        if (nccl_hear_cause(comm))
            nccl_abort_all(comm);
        else
            nccl_abort(comm, HD_ABORTED, hd_err_message());
        return false;
    }
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        char what[HD_COMM_REASON_MAX], text[HD_COMM_REASON_MAX];
        int64_t still_ms;
        uint64_t launch;

        atomic_store(&nccl->query_since_ms, now_ms);
        st = look_at_stream(comm, (enum hd_comm_stream_name)s, &clocks[s], now_ms, &still_ms,
                            &launch);
        atomic_store(&nccl->query_since_ms, 0);
        if (st) {
            nccl_abort(comm, st, hd_err_message());
            return false;
        }
        if (still_ms < atomic_load(&comm->deadline_ms))
            continue;
        hd_comm_describe_launch(comm, launch, what, sizeof what);
        (void)snprintf(text, sizeof text, HD_COMM_LATE_FORMAT, comm->rank, (long long)still_ms,
                       clocks[s].is_guess ? "or before " : "", what);
        nccl_abort(comm, HD_TIMEOUT, text);
        return false;
    }
    return true;
}

static bool wait_a_look(struct nccl_state *nccl)
{
    struct timespec until;
    bool stop;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)NCCL_LOOK_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&nccl->stop_lock);
    while (!nccl->stop &&
           pthread_cond_timedwait(&nccl->stop_cond, &nccl->stop_lock, &until) != ETIMEDOUT)
        ;
    stop = nccl->stop;
    (void)pthread_mutex_unlock(&nccl->stop_lock);
    return !stop;
}

static void *watch(void *arg)
{
    struct hd_comm *comm = arg;
    struct hd_comm_stream_clock clocks[HD_COMM_STREAM_COUNT];

    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++)
        clocks[s] = (struct hd_comm_stream_clock){.still_since_ms = hd_clock_now_ms()};
    while (wait_a_look(nccl_of(comm)) && look(comm, clocks))
        ;
    return NULL;
}

/* Makes one check of the listener thread. Returns false if it found a failure; then it has aborted
 * all communicators. */
static bool listen(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);
    const int64_t since_ms = atomic_load(&nccl->query_since_ms);
    const int64_t asked_ms = since_ms ? hd_clock_now_ms() - since_ms : 0;
    char text[HD_COMM_REASON_MAX];

    if (nccl_has_failed(comm)) {
        nccl_abort_all(comm);
        return false;
    }
    if (asked_ms < atomic_load(&comm->deadline_ms) + NCCL_GRACE_MS)
        return true;
    (void)snprintf(text, sizeof text,
                   "the driver of the device of rank %d has not responded for %lld ms; see the "
                   "kernel log (dmesg) of its node",
                   comm->rank, (long long)asked_ms);
    nccl_abort(comm, HD_TIMEOUT, text);
    return false;
}

static void *keep_listening(void *arg)
{
    struct hd_comm *comm = arg;

    while (wait_a_look(nccl_of(comm)) && listen(comm))
        ;
    return NULL;
}

enum hd_status nccl_start_watchdog(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);
    int error = pthread_create(&nccl->watchdog, NULL, watch, comm);

    nccl->watching = !error;
    if (!error)
        error = pthread_create(&nccl->listener, NULL, keep_listening, comm);
    nccl->listening = !error;
    return error ? hd_err(HD_LIMIT, "nccl: cannot start the watchdog: %s", strerror(error)) : HD_OK;
}

void nccl_stop_watchdog(struct nccl_state *nccl)
{
    (void)pthread_mutex_lock(&nccl->stop_lock);
    nccl->stop = true;
    (void)pthread_cond_broadcast(&nccl->stop_cond);
    (void)pthread_mutex_unlock(&nccl->stop_lock);
    if (nccl->listening)
        (void)pthread_join(nccl->listener, NULL);
    if (nccl->watching)
        (void)pthread_join(nccl->watchdog, NULL);
    nccl->listening = nccl->watching = false;
}
