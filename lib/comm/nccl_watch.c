/* How nccl ends when something fails. Whoever finds a failure tells the host endpoint, which tells
 * all ranks; each aborts all its communicators, and what was under way on its device ends. That
 * must not depend on the thread that owns the endpoint: it may stand in a call of NCCL, or in any
 * launch, that waits for room in a queue which only an abort drains. NCCL allows an abort beside a
 * call that does not return; calls that return within NCCL_BLOCKED_MS, or while the device moves,
 * are waited for.
 *
 * Nor may it depend on the driver, which may keep everybody waiting whom such a launch keeps out.
 * So the watchdog asks the driver, and a listener, which never does, hears failures and aborts. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl_internal.h"

enum { ABORT_LOOK_US = 1000 };

/* ---- calls of NCCL ---- */

enum hd_status nccl_enter(struct nccl_state *nccl)
{
    (void)pthread_mutex_lock(&nccl->lock);
    if (!atomic_load(&nccl->aborted))
        return HD_OK;
    (void)pthread_mutex_unlock(&nccl->lock);
    return hd_err(HD_ABORTED, "nccl: the communicators of this rank were aborted");
}

void nccl_leave(struct nccl_state *nccl)
{
    atomic_store(&nccl->calling_since_ms, 0);
    (void)pthread_mutex_unlock(&nccl->lock);
}

void nccl_may_block(struct nccl_state *nccl)
{
    atomic_store(&nccl->calling_since_ms, hd_clock_now_ms());
}

void nccl_note_life(struct nccl_state *nccl)
{
    if (atomic_load(&nccl->handing_since_ms))
        atomic_store(&nccl->handing_since_ms, hd_clock_now_ms());
}

/* ---- aborting ---- */

/* True: the lock is taken. False: its owner is in a call that does not come back. */
static bool lock_or_give_up(struct nccl_state *nccl)
{
    while (pthread_mutex_trylock(&nccl->lock) != 0) {
        if (nccl_is_blocked(nccl, hd_clock_now_ms()))
            return false;
        (void)usleep(ABORT_LOOK_US);
    }
    return true;
}

/* Each once, whoever else does it. */
static void abort_joined(struct nccl_state *nccl)
{
    const int count = atomic_load(&nccl->joined_count);

    for (int i = 0; i < count; i++) {
        if (nccl->joined[i].comm && !atomic_exchange(&nccl->joined[i].gone, true))
            nccl->calls->abort(nccl->joined[i].comm);
    }
}

void nccl_add_joined(struct nccl_state *nccl)
{
    atomic_fetch_add(&nccl->joined_count, 1);
    if (atomic_load(&nccl->aborted)) /* beside the call that made it, perhaps */
        abort_joined(nccl);
}

void nccl_abort_all(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);
    bool locked;

    if (atomic_exchange(&nccl->aborted, true))
        return; /* somebody does it */
    hd_comm_side_stand(comm);
    locked = lock_or_give_up(nccl);
    abort_joined(nccl);
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

/* HD_OK, or what a communicator has met; nothing is asked while the owner is in a call. */
static enum hd_status look_at_comms(struct nccl_state *nccl)
{
    enum hd_status st = HD_OK;
    bool busy;

    if (pthread_mutex_trylock(&nccl->lock) != 0)
        return HD_OK;
    for (int i = 0; i < nccl->joined_count && !atomic_load(&nccl->aborted) && !st; i++) {
        if (nccl->joined[i].comm)
            st = nccl->calls->poll(nccl->joined[i].comm, &busy);
    }
    (void)pthread_mutex_unlock(&nccl->lock);
    return st;
}

/* For how long nothing has moved on a stream of which the device has not run all, or to which the
 * owner is just handing something, and what that is; 0 else. */
static enum hd_status look_at_stream(struct hd_comm *comm, enum hd_comm_stream_name s,
                                     struct hd_comm_side_clock *clock, int64_t now_ms,
                                     int64_t *ret_still_ms, uint64_t *ret_launch)
{
    struct nccl_state *nccl = nccl_of(comm);
    const uint64_t run = clock->run;
    enum hd_status st = hd_comm_side_look(comm, s, clock, now_ms);
    const bool standing = clock->run < atomic_load(&comm->side->newest[s]);
    const int64_t handing_ms =
        atomic_load(&nccl->handing_on) == (int)s ? atomic_load(&nccl->handing_since_ms) : 0;

    if (clock->run > run && !clock->is_guess)
        atomic_store(&nccl->moved_ms, now_ms);
    *ret_still_ms = 0;
    *ret_launch = standing ? hd_comm_side_launch(comm->side, s, clock->run + 1)
                           : atomic_load(&nccl->handing_launch);
    if (st)
        return st;
    if (!standing && !handing_ms)
        clock->still_since_ms = now_ms;
    else if (standing)
        *ret_still_ms = now_ms - clock->still_since_ms;
    else
        *ret_still_ms = now_ms - NCCL_GRACE_MS -
                        (handing_ms > clock->still_since_ms ? handing_ms : clock->still_since_ms);
    return HD_OK;
}

/* False: there is a failure, and everything is aborted. */
static bool look(struct hd_comm *comm, struct hd_comm_side_clock clocks[HD_COMM_STREAM_COUNT])
{
    struct nccl_state *nccl = nccl_of(comm);
    const int64_t now_ms = hd_clock_now_ms();
    enum hd_status st;

    if (nccl_has_failed(comm)) {
        nccl_abort_all(comm);
        return false;
    }
    if (look_at_comms(nccl)) {
        nccl_abort(comm, HD_ABORTED, hd_err_message());
        return false;
    }
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        char what[HD_COMM_REASON_MAX], text[HD_COMM_REASON_MAX];
        int64_t still_ms;
        uint64_t launch;

        atomic_store(&nccl->asking_since_ms, now_ms);
        st = look_at_stream(comm, (enum hd_comm_stream_name)s, &clocks[s], now_ms, &still_ms,
                            &launch);
        atomic_store(&nccl->asking_since_ms, 0);
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
    struct hd_comm_side_clock clocks[HD_COMM_STREAM_COUNT];

    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++)
        clocks[s] = (struct hd_comm_side_clock){.still_since_ms = hd_clock_now_ms()};
    while (wait_a_look(nccl_of(comm)) && look(comm, clocks))
        ;
    return NULL;
}

/* False: there is a failure, and everything is aborted. */
static bool listen(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);
    const int64_t since_ms = atomic_load(&nccl->asking_since_ms);
    const int64_t asked_ms = since_ms ? hd_clock_now_ms() - since_ms : 0;
    char text[HD_COMM_REASON_MAX];

    if (nccl_has_failed(comm)) {
        nccl_abort_all(comm);
        return false;
    }
    if (asked_ms < atomic_load(&comm->deadline_ms) + NCCL_GRACE_MS)
        return true;
    (void)snprintf(text, sizeof text,
                   "the driver of rank %d's device has not answered for %lld ms; see the log of "
                   "the kernel on its node",
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
