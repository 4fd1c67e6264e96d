/* nccl: implements kernels/nccl.h with NCCL. The library is loaded at first use, so a program with
 * one GPU does not need it; HEDDLE_NCCL may contain its path. */
#include "kernels/cuda/nccl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "kernels/library.h"
#include "kernels/nccl.h"

_Static_assert(sizeof(ncclUniqueId) == HD_NCCL_ID_BYTES, "an id is sent as these bytes");

#define CALL_LIST(X)          \
    X(ncclGetVersion)         \
    X(ncclGetUniqueId)        \
    X(ncclCommInitRankConfig) \
    X(ncclCommSplit)          \
    X(ncclCommGetAsyncError)  \
    X(ncclCommAbort)          \
    X(ncclCommFinalize)       \
    X(ncclCommDestroy)        \
    X(ncclGetErrorString)     \
    X(ncclGetLastError)       \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)           \
    X(ncclSend)               \
    X(ncclRecv)               \
    X(ncclAllGather)          \
    X(ncclBroadcast)          \
    X(ncclAllReduce)          \
    X(ncclReduceScatter)

/* Functions of later NCCL versions; a pointer is NULL if the library lacks the function. */
#define LATER_CALL_LIST(X) \
    X(ncclMemAlloc)        \
    X(ncclMemFree)         \
    X(ncclCommRegister)    \
    X(ncclCommDeregister)

static struct {
#define X(name) __typeof__(&name) name;
    CALL_LIST(X)
    LATER_CALL_LIST(X)
#undef X
} nccl;

/* ---- loading ---- */

static char load_error[256];
static int loaded_version;

/* First version with ncclCommSplit and with this layout of ncclConfig_t. */
enum { VERSION_MIN = 21800 };

static void load(void)
{
#ifdef HD_CUDASIM
#define X(name) nccl.name = name;
    CALL_LIST(X)
    LATER_CALL_LIST(X)
#undef X
#else
    const char *named = getenv("HEDDLE_NCCL");
    void *library = named ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : hd_library_open("libnccl.so.2");

    if (!library) {
        (void)snprintf(load_error, sizeof load_error, "%s", dlerror());
        return;
    }
#define X(name)                                                                      \
    *(void **)&nccl.name = dlsym(library, #name);                                    \
    if (!nccl.name) {                                                                \
        (void)snprintf(load_error, sizeof load_error, "libnccl.so.2 has no " #name); \
        return;                                                                      \
    }
    CALL_LIST(X)
#undef X
#define X(name) *(void **)&nccl.name = dlsym(library, #name);
    LATER_CALL_LIST(X)
#undef X
#endif
    if (nccl.ncclGetVersion(&loaded_version) != ncclSuccess || loaded_version < VERSION_MIN)
        (void)snprintf(load_error, sizeof load_error,
                       "its version code is %d; %d (NCCL 2.18) or later is needed", loaded_version,
                       (int)VERSION_MIN);
}

/* ---- errors ---- */

static enum hd_status nccl_status(ncclResult_t result, ncclComm_t comm, const char *what)
{
    if (result == ncclSuccess)
        return HD_OK;
    /* an unfinished call: later work on the stream would run too early */
    if (result == ncclInProgress)
        return hd_err(HD_INTERNAL, "NCCL: %s: the communicator does not block", what);
    return hd_err(
        result == ncclInvalidArgument || result == ncclInvalidUsage ? HD_INVALID : HD_ABORTED,
        "NCCL: %s: %s (%s)", what, nccl.ncclGetErrorString(result), nccl.ncclGetLastError(comm));
}

/* Checks the result of a call on a non-blocking communicator, which may still be in progress
 * (poll_comm). */
static enum hd_status check_begun(ncclResult_t result, ncclComm_t comm, const char *what)
{
    return result == ncclInProgress ? HD_OK : nccl_status(result, comm, what);
}

static ncclComm_t of(struct hd_nccl_comm *comm)
{
    return (ncclComm_t)comm;
}

static cudaStream_t handle(struct hd_stream *stream)
{
    return ((struct hd_cuda_stream *)stream)->handle;
}

/* ---- the table ---- */

static enum hd_status unique_id(struct hd_nccl_id *ret_id)
{
    ncclUniqueId id;
    const enum hd_status st =
        nccl_status(nccl.ncclGetUniqueId(&id), NULL, "cannot create a unique id");

    if (!st)
        memcpy(ret_id->bytes, &id, sizeof id);
    return st;
}

static enum hd_status init(const struct hd_nccl_id *id, int world, int rank,
                           struct hd_nccl_comm **ret_comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId own;

    config.blocking = 0;
    config.minCTAs = config.maxCTAs = 1; /* it moves nothing; children have their own limits */
    memcpy(&own, id->bytes, sizeof own);
    return check_begun(
        nccl.ncclCommInitRankConfig((ncclComm_t *)ret_comm, world, own, rank, &config), NULL,
        "cannot create a communicator");
}

/* Splits an NCCL communicator. The child is blocking, so its groups of calls cost no thread. It
 * shares no resources with the parent, so the parent may be destroyed. */
static enum hd_status split(struct hd_nccl_comm *parent, int color, int key, int blocks_max,
                            struct hd_nccl_comm **ret_comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 1;
    config.minCTAs = 1;
    config.maxCTAs = blocks_max;
    return check_begun(nccl.ncclCommSplit(of(parent), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                                          (ncclComm_t *)ret_comm, &config),
                       of(parent), "cannot split a communicator");
}

static enum hd_status poll_comm(struct hd_nccl_comm *comm, bool *ret_busy)
{
    ncclResult_t state = ncclSuccess;
    enum hd_status st = nccl_status(nccl.ncclCommGetAsyncError(of(comm), &state), of(comm),
                                    "cannot read the state of a communicator");

    if (!st)
        st = check_begun(state, of(comm), "a communicator failed");
    if (!st)
        *ret_busy = state == ncclInProgress;
    return st;
}

static void abort_comm(struct hd_nccl_comm *comm)
{
    (void)nccl.ncclCommAbort(of(comm));
}

/* ---- buffers ---- */

static cudaError_t take_memory(void **ret_memory, size_t bytes)
{
    return nccl.ncclMemAlloc(ret_memory, bytes) == ncclSuccess ? cudaSuccess
                                                               : cudaErrorMemoryAllocation;
}

static void give_back(void *memory)
{
    (void)nccl.ncclMemFree(memory);
}

static enum hd_status reserve_nccl_memory(struct hd_backend *cuda, int64_t size_bytes,
                                          void **ret_base)
{
    return hd_cuda_reserve_by(cuda, size_bytes, take_memory, give_back, ret_base);
}

static enum hd_status register_buffer(struct hd_nccl_comm *comm, void *base, int64_t size_bytes,
                                      struct hd_nccl_buffer **ret_buffer)
{
    void *handle = NULL;
    const enum hd_status st =
        nccl_status(nccl.ncclCommRegister(of(comm), base, (size_t)size_bytes, &handle), of(comm),
                    "cannot register memory");

    if (!st)
        *ret_buffer = handle;
    return st;
}

static void deregister(struct hd_nccl_comm *comm, struct hd_nccl_buffer *buffer)
{
    (void)nccl.ncclCommDeregister(of(comm), buffer);
}

/* ---- destroying ---- */

enum { DESTROY_LOOK_US = 1000, DESTROY_LOOKS_MAX = 5000, DESTROY_WAIT_S = 6 };

/* State shared by destroy and its thread; each holds one reference. */
struct destruction {
    ncclComm_t comm;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int references;
};

static void leave(struct destruction *d)
{
    const bool last = --d->references == 0;

    (void)pthread_mutex_unlock(&d->lock);
    if (!last)
        return;
    (void)pthread_cond_destroy(&d->changed);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

/* Finalizes and destroys a communicator. If a peer dies during finalize, the other ranks would wait
 * for it: a non-blocking communicator is polled, and aborted after a limit; a blocking one does not
 * return then. */
static void *finalize(void *arg)
{
    struct destruction *d = arg;
    ncclResult_t state = nccl.ncclCommFinalize(d->comm);

    for (int looks = 0; state == ncclInProgress && looks < DESTROY_LOOKS_MAX; looks++) {
        if (nccl.ncclCommGetAsyncError(d->comm, &state) != ncclSuccess)
            break;
        if (state == ncclInProgress)
            (void)usleep(DESTROY_LOOK_US);
    }
    if (state == ncclSuccess)
        (void)nccl.ncclCommDestroy(d->comm);
    else
        (void)nccl.ncclCommAbort(d->comm);
    (void)pthread_mutex_lock(&d->lock);
    d->done = true;
    (void)pthread_cond_signal(&d->changed);
    leave(d);
    return NULL;
}

static void wait_for(struct destruction *d)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DESTROY_WAIT_S;
    (void)pthread_mutex_lock(&d->lock);
    while (!d->done && pthread_cond_timedwait(&d->changed, &d->lock, &until) == 0)
        ;
    leave(d);
}

/* Destroys a communicator on a separate thread and waits DESTROY_WAIT_S at most; a thread that
 * hangs is left behind, because communicators are closed at the end of a process. */
static void destroy(struct hd_nccl_comm *comm)
{
    struct destruction *d = calloc(1, sizeof *d);
    pthread_t thread;

    if (!d) {
        (void)nccl.ncclCommAbort(of(comm));
        return;
    }
    *d = (struct destruction){.comm = of(comm), .references = 2};
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->changed, NULL);
    /* no thread: finalize here, without a time limit */
    if (pthread_create(&thread, NULL, finalize, d)) {
        (void)finalize(d);
        (void)pthread_mutex_lock(&d->lock);
        leave(d);
        return;
    }
    (void)pthread_detach(thread);
    wait_for(d);
}

/* ---- data transfer ---- */

static enum hd_status group_begin(void)
{
    return nccl_status(nccl.ncclGroupStart(), NULL, "cannot begin a group of calls");
}

static enum hd_status group_end(void)
{
    return nccl_status(nccl.ncclGroupEnd(), NULL, "cannot end a group of calls");
}

static enum hd_status send_bytes(struct hd_nccl_comm *comm, struct hd_stream *stream,
                                 const void *buf, int64_t bytes, int peer)
{
    return nccl_status(nccl.ncclSend(buf, (size_t)bytes, ncclUint8, peer, of(comm), handle(stream)),
                       of(comm), "cannot send");
}

static enum hd_status recv_bytes(struct hd_nccl_comm *comm, struct hd_stream *stream, void *buf,
                                 int64_t bytes, int peer)
{
    return nccl_status(nccl.ncclRecv(buf, (size_t)bytes, ncclUint8, peer, of(comm), handle(stream)),
                       of(comm), "cannot receive");
}

static enum hd_status all_gather(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                 const void *own, int64_t bytes)
{
    return nccl_status(
        nccl.ncclAllGather(own, out, (size_t)bytes, ncclUint8, of(comm), handle(stream)), of(comm),
        "cannot gather");
}

static enum hd_status broadcast(struct hd_nccl_comm *comm, struct hd_stream *stream, void *buf,
                                int64_t bytes, int root)
{
    return nccl_status(
        nccl.ncclBroadcast(buf, buf, (size_t)bytes, ncclUint8, root, of(comm), handle(stream)),
        of(comm), "cannot broadcast");
}

static ncclDataType_t nccl_type_of(enum hd_dtype dtype)
{
    static const ncclDataType_t types[] = {
        [HD_F32] = ncclFloat32, [HD_BF16] = ncclBfloat16, [HD_F16] = ncclFloat16,
        [HD_F64] = ncclFloat64, [HD_I32] = ncclInt32,     [HD_I64] = ncclInt64,
        [HD_U8] = ncclUint8,
    };

    return types[dtype];
}

static enum hd_status all_reduce(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                 const void *inp, int64_t count, enum hd_dtype dtype, bool max)
{
    return nccl_status(nccl.ncclAllReduce(inp, out, (size_t)count, nccl_type_of(dtype),
                                          max ? ncclMax : ncclSum, of(comm), handle(stream)),
                       of(comm), "cannot reduce");
}

static enum hd_status reduce_scatter(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                     const void *inp, int64_t count, enum hd_dtype dtype, bool max)
{
    return nccl_status(nccl.ncclReduceScatter(inp, out, (size_t)count, nccl_type_of(dtype),
                                              max ? ncclMax : ncclSum, of(comm), handle(stream)),
                       of(comm), "cannot reduce");
}

static struct hd_nccl_table table = {
    .unique_id = unique_id,
    .init = init,
    .split = split,
    .poll = poll_comm,
    .abort = abort_comm,
    .destroy = destroy,
    .group_begin = group_begin,
    .group_end = group_end,
    .send = send_bytes,
    .recv = recv_bytes,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
};

/* Loads the NCCL library and fills in the function table, whose members depend on the version. */
static void load_and_fill(void)
{
    load();
    table.version = loaded_version;
    if (load_error[0] || loaded_version < HD_NCCL_REGISTERS_FROM || !nccl.ncclMemAlloc ||
        !nccl.ncclMemFree || !nccl.ncclCommRegister || !nccl.ncclCommDeregister)
        return;
    table.reserve = reserve_nccl_memory;
    table.register_buffer = register_buffer;
    table.deregister = deregister;
}

enum hd_status hd_cuda_nccl(const struct hd_nccl_table **ret_table)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, load_and_fill);
    if (load_error[0])
        return hd_err(HD_UNSUPPORTED,
                      "several GPUs need NCCL: %s; install it (package libnccl2, or pip install "
                      "nvidia-nccl-cu13), or set HEDDLE_NCCL to its path, or HEDDLE_CUDA_LIBRARIES "
                      "to its folder",
                      load_error);
    *ret_table = &table;
    return HD_OK;
}
