/* The engine shm: ranks of one node on memory that they all map, and its degenerate case self,
 * which runs the same code on private memory. There is no engine thread: a rank moves its own
 * operations in small steps whenever it launches, polls or waits. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/shm_internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels answer EINVAL */
#endif

enum { LAUNCHES_PER_STEP = 8 };
enum { SLEEP_SLICE_MS = 100, SPIN_LOOKS = 2000, SPIN_LOOKS_YIELDING = 50 };
enum { SELF_DEADLINE_MS = 5000 }; /* only a receive that nothing was sent to can wait */

/* ---- failing ---- */

/* An operation that is under way, one that waits for another rank if there is one; else NULL.
 * *ret_rank is that other rank, -1 when it waits for none, *ret_what what it has not done. */
static struct hd_comm_op *find_waiting(struct hd_comm *comm,
                                       const struct hd_comm_stream **ret_stream, int *ret_rank,
                                       const char **ret_what)
{
    struct hd_comm_op *begun = NULL;

    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        const struct hd_comm_stream *stream = &comm->streams[s];

        for (uint64_t i = stream->completed; i < stream->sealed; i++) {
            struct hd_comm_op *op = hd_comm_op_at(stream, i);
            const bool pair = op->kind == HD_COMM_SEND || op->kind == HD_COMM_RECV;
            int rank;

            if (op->kind == HD_COMM_AFTER || op->state == HD_COMM_QUEUED)
                break; /* what comes later has not begun */
            if (op->state == HD_COMM_COMPLETE)
                continue;
            rank = pair ? shm_pair_missing(op, ret_what) : shm_collective_missing(op, ret_what);
            if (begun && rank < 0)
                continue;
            begun = op;
            *ret_stream = stream;
            *ret_rank = rank;
            if (rank >= 0)
                return op;
        }
    }
    return begun;
}

/* "all_reduce #7 of group dp (1000 x f32, stream reduce): rank 2 has not entered"; "" for none. */
static void describe_waiting(struct hd_comm *comm, char *ret_text, size_t size_bytes)
{
    const struct hd_comm_stream *stream;
    const struct hd_comm_op *op;
    const char *what;
    int rank, n;

    ret_text[0] = '\0';
    op = find_waiting(comm, &stream, &rank, &what);
    if (!op)
        return;
    n = snprintf(ret_text, size_bytes, "%s #%llu of group %s (%lld x %s, stream %s)",
                 hd_comm_op_name(op), (unsigned long long)op->seq, op->group->name,
                 (long long)op->count, hd_dtype_name(op->dtype), hd_comm_stream_text(stream->name));
    if (rank >= 0 && n >= 0 && (size_t)n < size_bytes)
        (void)snprintf(ret_text + n, size_bytes - (size_t)n, ": rank %d %s", rank, what);
}

/* What a rank did last, from its flight record; it may be writing it just now. */
static void describe_latest(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes)
{
    const struct shm_area *area = shm_area_of(comm, rank);
    const uint64_t launch = atomic_load(&area->launch_newest);
    struct hd_shm_flight record;

    shm_read_flight(&area->flight[launch % HD_SHM_FLIGHT_MAX], &record);
    if (!atomic_load(&area->attached))
        (void)snprintf(ret_text, size_bytes, "rank %d has not even attached", rank);
    else if (launch == 0)
        (void)snprintf(ret_text, size_bytes, "rank %d has launched nothing yet", rank);
    else
        (void)snprintf(ret_text, size_bytes, "the latest of rank %d is %s #%llu of group %s, %s",
                       rank, record.kind, (unsigned long long)record.seq, record.group,
                       hd_shm_flight_state_name(record.state));
}

/* HD_OK or the job's first failure; composes its story once. */
static enum hd_status check_failure(struct hd_comm *comm)
{
    char here[256];
    const char *text;
    int index;
    enum hd_status st;

    if (comm->failure.status)
        return hd_err_restore(&comm->failure);
    st = shm_failure(shm_of(comm)->block, &index, &text);
    if (!st)
        return HD_OK;
    describe_waiting(comm, here, sizeof here);
    if (index == SHM_REASON_PARENT)
        st = hd_err(st, "stopped from outside: %s", text);
    else if (index >= SHM_REASON_DEATH)
        st = hd_err(st, "rank %d died first: %s", index - SHM_REASON_DEATH, text);
    else
        st = hd_err(st, "rank %d failed first: %s", index, text);
    if (here[0]) {
        char first[HD_ERR_MAX];

        (void)snprintf(first, sizeof first, "%s", hd_err_message());
        st = hd_err(st, "%s (rank %d was in %s)", first, comm->rank, here);
    }
    hd_err_save(st, &comm->failure);
    return st;
}

enum hd_status shm_fail_here(struct hd_comm *comm, enum hd_status st, const char *fmt, ...)
{
    char text[HD_SHM_REASON_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    shm_fail(shm_of(comm)->block, SHM_REASON_OWN + comm->rank, st, text);
    st = check_failure(comm);
    return st ? st : hd_err(HD_ABORTED, "%s", text); /* another thread of this rank is reporting */
}

static void engine_abort(struct hd_comm *comm, enum hd_status st, const char *reason)
{
    shm_fail(shm_of(comm)->block, SHM_REASON_OWN + comm->rank, st, reason);
}

/* ---- visible memory ---- */

/* Backs every page now, from this thread, so that no later store can fail or be slow. */
static enum hd_status touch(char *base, size_t size_bytes, int fd)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    (void)madvise(base, size_bytes, MADV_HUGEPAGE); /* advice: without it pages are small */
    while (madvise(base, size_bytes, MADV_POPULATE_WRITE) < 0) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL)
            return hd_err(HD_NO_MEMORY, "comm: cannot back %zu bytes of visible memory: %s",
                          size_bytes, strerror(errno));
        /* an old kernel; reserve first, so that a shortage is an error and not a signal */
        if (fd >= 0 && fallocate(fd, 0, 0, (off_t)size_bytes) < 0)
            return hd_err(HD_NO_MEMORY, "comm: cannot back %zu bytes of visible memory: %s",
                          size_bytes, strerror(errno));
        for (size_t at = 0; at < size_bytes; at += page)
            ((volatile char *)base)[at] = 0;
        break;
    }
    return HD_OK;
}

static size_t whole_pages(size_t size_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (size_bytes + page - 1) / page * page;
}

static enum hd_status map_visible(struct hd_comm *comm, size_t size_bytes, int fd, void **ret_base)
{
    const size_t bytes = whole_pages(size_bytes);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    enum hd_status st;

    if (base == MAP_FAILED)
        return hd_err(HD_NO_MEMORY, "comm: cannot map %zu bytes of visible memory: %s", bytes,
                      strerror(errno));
    st = touch(base, bytes, fd);
    if (st) {
        (void)munmap(base, bytes);
        return st;
    }
    atomic_store(&shm_of(comm)->area->visible_bytes, bytes);
    *ret_base = base;
    return HD_OK;
}

static enum hd_status self_visible(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    return map_visible(comm, size_bytes, -1, ret_base);
}

static enum hd_status shm_visible(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    const int fd = shm_of(comm)->rank_fds[comm->rank];

    /* sealed, so that no mistake can cut it under the feet of the peers */
    if (ftruncate(fd, (off_t)whole_pages(size_bytes)) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return hd_err(HD_NO_MEMORY, "comm: cannot size the visible memory of rank %d to %zu: %s",
                      comm->rank, size_bytes, strerror(errno));
    return map_visible(comm, size_bytes, fd, ret_base);
}

enum hd_status shm_reach(struct hd_comm *comm, int rank, uint64_t offset, int64_t bytes,
                         char **ret_at)
{
    struct shm_state *shm = shm_of(comm);

    if (bytes == 0) {
        *ret_at = NULL;
        return HD_OK;
    }
    if (rank == comm->rank) {
        *ret_at = comm->visible + offset;
        return HD_OK;
    }
    if (!shm->peer_base[rank]) {
        const uint64_t size = atomic_load(&shm_area_of(comm, rank)->visible_bytes);
        void *base = size == 0 ? MAP_FAILED
                               : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                                      shm->rank_fds[rank], 0);

        if (base == MAP_FAILED)
            return shm_fail_here(
                comm, HD_NO_MEMORY, "cannot map the visible memory of rank %d (%llu bytes): %s",
                rank, (unsigned long long)size, size ? strerror(errno) : "it has announced none");
        shm->peer_base[rank] = base;
        shm->peer_bytes[rank] = size;
        (void)close(shm->rank_fds[rank]);
        shm->rank_fds[rank] = -1;
    }
    if (offset > shm->peer_bytes[rank] || (uint64_t)bytes > shm->peer_bytes[rank] - offset)
        return shm_fail_here(comm, HD_CORRUPT,
                             "rank %d announced %lld bytes at offset %llu of its %llu bytes of "
                             "visible memory",
                             rank, (long long)bytes, (unsigned long long)offset,
                             (unsigned long long)shm->peer_bytes[rank]);
    *ret_at = shm->peer_base[rank] + offset;
    return HD_OK;
}

/* ---- the streams ---- */

void shm_set_state(struct hd_comm_op *op, enum hd_comm_state state)
{
    struct shm_flight_slot *slot =
        &shm_of(op->group->comm)->area->flight[op->launch % HD_SHM_FLIGHT_MAX];

    op->state = state;
    if (atomic_load_explicit(&slot->launch, memory_order_relaxed) == op->launch)
        atomic_store_explicit(&slot->state, (uint32_t)state, memory_order_release);
    if (state == HD_COMM_COMPLETE)
        op->group->counts[op->kind].calls++;
}

_Static_assert(HD_COMM_GROUP_NAME_MAX == 2 * sizeof(uint64_t), "a name is two words on record");

static void note_launch(struct hd_comm_op *op, const struct hd_comm_stream *stream)
{
    struct shm_area *area = shm_of(stream->comm)->area;
    struct shm_flight_slot *slot = &area->flight[op->launch % HD_SHM_FLIGHT_MAX];
    uint64_t name[2];

    memcpy(name, op->group->name, sizeof name);
    atomic_store(&slot->launch, 0); /* while it is written it is nobody's */
    atomic_store_explicit(&slot->seq, op->seq, memory_order_relaxed);
    atomic_store_explicit(&slot->bytes, (uint64_t)op->count * hd_dtype_size(op->dtype),
                          memory_order_relaxed);
    atomic_store_explicit(&slot->name[0], name[0], memory_order_relaxed);
    atomic_store_explicit(&slot->name[1], name[1], memory_order_relaxed);
    atomic_store_explicit(&slot->kind, (uint32_t)op->kind, memory_order_relaxed);
    atomic_store_explicit(&slot->stream, (uint32_t)stream->name, memory_order_relaxed);
    atomic_store_explicit(&slot->peer, op->peer < 0 ? -1 : op->group->members[op->peer],
                          memory_order_relaxed);
    atomic_store_explicit(&slot->state, HD_COMM_QUEUED, memory_order_relaxed);
    atomic_store(&slot->launch, op->launch);
    atomic_store(&area->launch_newest, op->launch);
}

static enum hd_status step_op(struct hd_comm_op *op, bool *moved)
{
    switch (op->kind) {
    case HD_COMM_AFTER:
        if (hd_comm_done(op->other, op->other_ticket)) {
            op->state = HD_COMM_COMPLETE;
            *moved = true;
        }
        return HD_OK;
    case HD_COMM_SEND:
        return shm_send_step(op, moved);
    case HD_COMM_RECV:
        return shm_recv_step(op, moved);
    default:
        return shm_collective_step(op, moved);
    }
}

/* One step of every operation of the launch that begins at `place`. *ret_end is where the next one
 * begins, *ret_complete whether all have ended, *ret_blocking whether one of those that have not is
 * anything but a posted send. */
static enum hd_status step_launch(struct hd_comm_stream *stream, uint64_t place, bool *moved,
                                  uint64_t *ret_end, bool *ret_complete, bool *ret_blocking)
{
    bool complete = true, blocking = false, last;

    do {
        struct hd_comm_op *op = hd_comm_op_at(stream, place++);

        if (op->state != HD_COMM_COMPLETE) {
            const enum hd_status st = step_op(op, moved);

            if (st)
                return st;
        }
        if (op->state != HD_COMM_COMPLETE) {
            complete = false;
            blocking = blocking || op->kind != HD_COMM_SEND || op->state != HD_COMM_LEAVING;
        }
        last = op->last;
    } while (!last);
    *ret_end = place;
    *ret_complete = complete;
    *ret_blocking = blocking;
    return HD_OK;
}

static bool overlap(const struct hd_comm_op *send, const struct hd_comm_op *recv)
{
    const uintptr_t s = (uintptr_t)send->send, r = (uintptr_t)recv->recv;

    return s < r + (uintptr_t)recv->count * hd_dtype_size(recv->dtype) &&
           r < s + (uintptr_t)send->count * hd_dtype_size(send->dtype);
}

/* Sends that are posted need nothing more from this rank, so what follows them may begin, or two
 * ranks that first send and then receive would wait for each other. Only sends and receives follow
 * so early, and no receive into memory that a posted send still offers. */
static bool may_overtake(const struct hd_comm_stream *stream, uint64_t place)
{
    bool last;

    do {
        const struct hd_comm_op *op = hd_comm_op_at(stream, place++);

        if (op->kind != HD_COMM_SEND && op->kind != HD_COMM_RECV)
            return false;
        for (uint64_t i = stream->completed; op->kind == HD_COMM_RECV && i < place - 1; i++) {
            const struct hd_comm_op *before = hd_comm_op_at(stream, i);

            if (before->state != HD_COMM_COMPLETE && before->kind == HD_COMM_SEND &&
                before->launch < op->launch && overlap(before, op))
                return false;
        }
        last = op->last;
    } while (!last);
    return true;
}

/* Steps the launch at the head of the stream, and what may begin beside it. */
static enum hd_status step_stream(struct hd_comm_stream *stream, bool *moved)
{
    uint64_t place = stream->completed;

    /* when a launch ends, the next enters at once; few of them keep a poll short */
    for (int n = 0; n < LAUNCHES_PER_STEP && place < stream->sealed; n++) {
        bool complete, blocking;
        enum hd_status st;
        uint64_t end;

        if (place > stream->completed && !may_overtake(stream, place))
            return HD_OK;
        st = step_launch(stream, place, moved, &end, &complete, &blocking);
        if (st || blocking)
            return st;
        if (complete && place == stream->completed)
            stream->completed = end;
        place = end;
    }
    return HD_OK;
}

static enum hd_status progress(struct hd_comm *comm, bool *moved)
{
    enum hd_status st = check_failure(comm);

    for (int s = 0; s < HD_COMM_STREAM_COUNT && !st; s++)
        st = step_stream(&comm->streams[s], moved);
    return st;
}

static enum hd_status poll_once(struct hd_comm *comm)
{
    bool moved = false;

    return progress(comm, &moved);
}

/* ---- waiting ---- */

/* A peer that closed its endpoint will never do what an operation of ours waits for. */
static enum hd_status check_absent(struct hd_comm *comm)
{
    const struct hd_comm_stream *stream;
    const char *what;
    struct hd_comm_op *op;
    int rank, suspect;

    op = find_waiting(comm, &stream, &rank, &what);
    if (!op || rank < 0 || !atomic_load(&shm_area_of(comm, rank)->left))
        return HD_OK;
    suspect = rank;
    op = find_waiting(comm, &stream, &rank, &what); /* it may have acted before it left */
    if (!op || rank != suspect)
        return HD_OK;
    return shm_fail_here(comm, HD_ABORTED, "%s #%llu of group %s: rank %d %s and has left",
                         hd_comm_op_name(op), (unsigned long long)op->seq, op->group->name, rank,
                         what);
}

static enum hd_status fail_late(struct hd_comm *comm, int64_t waited_ms)
{
    char waiting[256], latest[128] = "";
    const struct hd_comm_stream *stream;
    const char *what;
    int rank;

    describe_waiting(comm, waiting, sizeof waiting);
    if (find_waiting(comm, &stream, &rank, &what) && rank >= 0)
        describe_latest(comm, rank, latest, sizeof latest);
    return shm_fail_here(comm, HD_TIMEOUT, "nothing moved for %lld ms in %s%s%s",
                         (long long)waited_ms,
                         waiting[0] ? waiting : "an operation that waits for another stream",
                         latest[0] ? "; " : "", latest);
}

static void give_way(const struct shm_state *shm)
{
    if (shm->yielding)
        (void)sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Says that this rank sleeps, looks once more, and sleeps until somebody rings or left_ms passed.
 */
static enum hd_status sleep_once(struct hd_comm_stream *stream, uint64_t ticket, int64_t left_ms,
                                 bool *moved)
{
    struct hd_comm *comm = stream->comm;
    struct shm_area *area = shm_of(comm)->area;
    const uint32_t bell = atomic_load(&area->bell);
    enum hd_status st;

    atomic_store(&area->asleep, 1);
    st = progress(comm, moved);
    if (!st && !*moved)
        st = check_absent(comm);
    if (!st && !*moved && !hd_comm_done(stream, ticket))
        shm_sleep(area, bell, left_ms < SLEEP_SLICE_MS ? left_ms : SLEEP_SLICE_MS);
    atomic_store(&area->asleep, 0);
    return st;
}

static enum hd_status wait_for(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm *comm = stream->comm;
    const struct shm_state *shm = shm_of(comm);
    int64_t still_since_ms = 0;
    int looks = 0; /* since something moved */

    for (;;) {
        bool moved = false;
        enum hd_status st = progress(comm, &moved);

        if (st || hd_comm_done(stream, ticket))
            return st;
        if (!moved && looks >= shm->spin_max) {
            const int64_t still_ms = hd_clock_now_ms() - still_since_ms;

            if (still_ms >= comm->deadline_ms)
                return fail_late(comm, still_ms);
            st = sleep_once(stream, ticket, comm->deadline_ms - still_ms, &moved);
            if (st)
                return st;
        } else if (!moved) {
            if (looks++ == 0)
                still_since_ms = hd_clock_now_ms();
            give_way(shm);
        }
        if (moved)
            looks = 0;
    }
}

/* ---- opening and closing ---- */

static void unmap(struct hd_comm *comm)
{
    struct shm_state *shm = shm_of(comm);

    for (int r = 0; r < comm->world; r++) {
        if (shm->peer_base[r])
            (void)munmap(shm->peer_base[r], shm->peer_bytes[r]);
        if (shm->rank_fds[r] >= 0)
            (void)close(shm->rank_fds[r]);
    }
    if (comm->visible)
        (void)munmap(comm->visible, whole_pages(comm->visible_bytes));
    if (shm->block != MAP_FAILED)
        (void)munmap(shm->block, shm->block_bytes);
    free(shm);
    comm->engine_state = NULL;
}

static void engine_close(struct hd_comm *comm, bool clean)
{
    struct shm_state *shm = shm_of(comm);

    if (!clean)
        engine_abort(comm, HD_ABORTED, "it closed its endpoint with operations in flight");
    atomic_store(&shm->area->left, 1);
    for (int r = 0; r < comm->world; r++)
        shm_ring(&shm->block->areas[r]);
    unmap(comm);
}

static const struct hd_comm_engine shm_engine = {
    .name = "shm",
    .visible = shm_visible,
    .group_open = shm_group_open,
    .launched = note_launch,
    .poll = poll_once,
    .wait = wait_for,
    .failure = check_failure,
    .abort = engine_abort,
    .close = engine_close,
};

static const struct hd_comm_engine self_engine = {
    .name = "self",
    .visible = self_visible,
    .group_open = shm_group_open,
    .launched = note_launch,
    .poll = poll_once,
    .wait = wait_for,
    .failure = check_failure,
    .abort = engine_abort,
    .close = engine_close,
};

/* The endpoint with its state, nothing mapped yet. */
static enum hd_status open_engine(const struct hd_comm_engine *engine, int rank, int world,
                                  int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct shm_state *shm;
    struct hd_comm *comm;
    cpu_set_t cpus;
    enum hd_status st;

    st = hd_comm_new(engine, rank, world, deadline_ms, &comm);
    if (st)
        return st;
    shm = calloc(1, sizeof *shm);
    if (!shm) {
        hd_comm_delete(comm);
        return hd_err(HD_NO_MEMORY, "comm: no memory for an endpoint");
    }
    for (int r = 0; r < HD_SHM_WORLD_MAX; r++)
        shm->rank_fds[r] = -1;
    shm->block = MAP_FAILED;
    shm->block_bytes = shm_block_bytes(world);
    shm->yielding = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < world;
    shm->spin_max = shm->yielding ? SPIN_LOOKS_YIELDING : SPIN_LOOKS;
    comm->engine_state = shm;
    *ret_comm = comm;
    return HD_OK;
}

static enum hd_status check_block(const struct hd_comm *comm, int control_fd)
{
    struct {
        uint64_t magic;
        uint32_t version, world;
        uint64_t area_bytes;
    } head = {0}; /* as struct shm_block begins */
    struct stat stat;

    _Static_assert(offsetof(struct shm_block, failure) == sizeof head, "the head of the block");

    if (fstat(control_fd, &stat) < 0)
        return hd_err(HD_INVALID, "shm: descriptor %d: %s", control_fd, strerror(errno));
    if (pread(control_fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != SHM_MAGIC)
        return hd_err(HD_INVALID, "shm: descriptor %d is not a control block of Heddle",
                      control_fd);
    if (head.version != SHM_VERSION || head.area_bytes != sizeof(struct shm_area))
        return hd_err(
            HD_INVALID,
            "shm: the control block has version %u with areas of %llu bytes, this program "
            "version %d with %zu; start all parts from one build",
            head.version, (unsigned long long)head.area_bytes, SHM_VERSION,
            sizeof(struct shm_area));
    if (head.world != (uint32_t)comm->world || stat.st_size < (off_t)shm_block_bytes(comm->world))
        return hd_err(HD_INVALID, "shm: the control block is for %u ranks, not %d", head.world,
                      comm->world);
    return HD_OK;
}

static enum hd_status attach(struct hd_comm *comm, int control_fd, const int *rank_fds)
{
    struct shm_state *shm = shm_of(comm);
    enum hd_status st = check_block(comm, control_fd);

    if (st)
        return st;
    shm->block = mmap(NULL, shm->block_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (shm->block == MAP_FAILED)
        return hd_err(HD_NO_MEMORY, "shm: cannot map the control block: %s", strerror(errno));
    shm->area = &shm->block->areas[comm->rank];
    for (int r = 0; r < comm->world; r++) {
        shm->rank_fds[r] = fcntl(rank_fds[r], F_DUPFD_CLOEXEC, 3);
        if (shm->rank_fds[r] < 0)
            return hd_err(HD_IO, "shm: the descriptor %d of rank %d: %s", rank_fds[r], r,
                          strerror(errno));
    }
    if (atomic_exchange(&shm->area->attached, 1))
        return hd_err(HD_CONFLICT, "shm: rank %d is attached already", comm->rank);
    return HD_OK;
}

enum hd_status hd_comm_open_shm(int control_fd, const int *rank_fds, int rank, int world,
                                int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct hd_comm *comm;
    enum hd_status st;

    if (world < 1 || world > HD_COMM_WORLD_MAX || rank < 0 || rank >= world)
        return hd_err(HD_INVALID, "shm: rank %d of %d; use 0 <= rank < world <= %d", rank, world,
                      HD_COMM_WORLD_MAX);
    st = open_engine(&shm_engine, rank, world, deadline_ms, &comm);
    if (st)
        return st;
    st = attach(comm, control_fd, rank_fds);
    if (st) {
        unmap(comm);
        hd_comm_delete(comm);
        return st;
    }
    *ret_comm = comm;
    return HD_OK;
}

enum hd_status hd_comm_open_self(struct hd_comm **ret_comm)
{
    struct hd_comm *comm;
    struct shm_state *shm;
    enum hd_status st;

    st = open_engine(&self_engine, 0, 1, SELF_DEADLINE_MS, &comm);
    if (st)
        return st;
    shm = shm_of(comm);
    shm->block =
        mmap(NULL, shm->block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (shm->block == MAP_FAILED) {
        st = hd_err(HD_NO_MEMORY, "comm: cannot map an endpoint: %s", strerror(errno));
        unmap(comm);
        hd_comm_delete(comm);
        return st;
    }
    shm_block_init(shm->block, 1);
    shm->area = &shm->block->areas[0];
    atomic_store(&shm->area->attached, 1);
    *ret_comm = comm;
    return HD_OK;
}
