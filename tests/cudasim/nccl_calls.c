/* Groups of calls on the emulated NCCL, and its operations (nccl.c says how they wait). */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "nccl_state.h"
#include "tests/cudasim/internal.h"

/* Calls between ncclGroupStart and ncclGroupEnd, of this thread. */
static _Thread_local int depth;
static _Thread_local struct grouped {
    ncclComm_t comm;
    struct post *post;
    struct grouped *next;
} * grouped;

/* ---- posting; under the lock ---- */

/* Sums as a ring does: from the last rank to the first, rounded at every step. */
static void combine(const struct call *call)
{
    static struct hd_backend backend = {.traits.multiprocessors = 2};
    struct hd_cuda_stream stream = {.cuda = &backend, .handle = call->stream};
    const struct hd_combine_args *whole = &call->combine;
    struct hd_combine_args hop = *whole;

    hop.ins = 2;
    hop.in[0] = whole->in[whole->ins - 1];
    for (int m = whole->ins - 2; m >= 0; m--) {
        hop.in[1] = whole->in[m];
        hop.out[0] = m == 0 ? whole->out[0] : call->partial;
        (void)hd_cuda_comm_combine(&stream.stream, &hop);
        hop.in[0] = call->partial;
    }
}

static void end_call(struct call *call)
{
    if (--call->left == 0 && call->combines)
        combine(call);
}

static struct post **find(ncclComm_t comm, bool sends, int peer)
{
    struct post **at = &comm->posts;

    while (*at && ((*at)->sends != sends || (*at)->peer != peer))
        at = &(*at)->next;
    return *at ? at : NULL;
}

static void take_away(ncclComm_t comm, struct post **at)
{
    struct post *post = *at;

    *at = post->next;
    if (post->part) {
        hd_sim_part_release(post->part);
    } else {
        hd_nccl_keep(comm)->event = post->came;
        end_call(post->call);
    }
    free(post);
}

/* Matches the oldest send from `from` to `to` with the oldest receive, if both exist. */
static bool meet(ncclComm_t from, ncclComm_t to)
{
    struct post **send = find(from, true, to->rank), **recv = find(to, false, from->rank);
    cudaEvent_t went;

    if (!send || !recv)
        return false;
    if ((*send)->part && (*recv)->part) {
        if ((*send)->bytes != (*recv)->bytes || (*send)->call->kind != (*recv)->call->kind)
            return false;
        hd_sim_parts_meet((*send)->part, (*recv)->part);
        take_away(from, send);
        take_away(to, find(to, false, from->rank));
        return true;
    }
    if ((*send)->part || (*recv)->part ||
        (*send)->bytes != (*recv)->bytes) /* real NCCL would hang or write out of bounds */
        from->error = to->error = ncclInvalidUsage;
    if (from->error || to->error)
        return false;
    (void)cudaEventCreateWithFlags(&went, cudaEventDisableTiming);
    hd_nccl_keep(to)->event = went;
    (void)cudaStreamWaitEvent((*recv)->stream, (*send)->came, 0);
    (void)cudaMemcpyAsync((*recv)->buf, (*send)->buf, (*recv)->bytes, cudaMemcpyDefault,
                          (*recv)->stream);
    (void)cudaEventRecord(went, (*recv)->stream);
    (void)cudaStreamWaitEvent((*send)->stream, went, 0);
    take_away(from, send);
    take_away(to, find(to, false, from->rank)); /* a send to itself was in the same list */
    return true;
}

static bool is_stuck(const struct ncclComm *comm)
{
    return hd_nccl_defect_of(comm) == HD_NCCL_STUCK;
}

static void meet_pair(ncclComm_t a, ncclComm_t b)
{
    while (a && b && !is_stuck(a) && !is_stuck(b) && meet(a, b))
        ;
}

/* Matches what `comm` has posted; after a defect, also what stayed behind elsewhere. */
static void meet_all(ncclComm_t comm)
{
    struct joined *joined = comm->joined;

    for (int r = 0; r < joined->size; r++) {
        meet_pair(comm, joined->ranks[r]);
        meet_pair(joined->ranks[r], comm);
        for (int to = 0; hd_nccl.had_defects && to < joined->size; to++)
            meet_pair(joined->ranks[r], joined->ranks[to]);
    }
}

/* ---- groups of calls ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_the_end_of_a_thread;

/* Thread destructor: a group during which the communicator was aborted is never ended. */
static void leave_group(void *unused)
{
    while (grouped) {
        struct grouped *g = grouped;

        grouped = g->next;
        free(g->post);
        free(g);
    }
}

static void make_key(void)
{
    if (pthread_key_create(&at_the_end_of_a_thread, leave_group))
        abort();
}

ncclResult_t ncclGroupStart(void)
{
    (void)pthread_once(&once, make_key);
    (void)pthread_setspecific(at_the_end_of_a_thread, &depth);
    depth++;
    return ncclSuccess;
}

/* Only lazy streams can wait. */
static bool waits_on_streams(void)
{
    return hd_nccl.between_processes || (!hd_nccl.waits_on_host && hd_sim_is_lazy());
}

static void keep_part(ncclComm_t comm, struct hd_sim_part *part)
{
    struct part_kept *kept = calloc(1, sizeof *kept), **at = &comm->parts;

    if (!kept)
        abort();
    while (*at) { /* drop the parts that have ended */
        struct part_kept *old = *at;

        if (!hd_sim_part_has_ended(old->part)) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        hd_sim_part_release(old->part);
        free(old);
    }
    *kept = (struct part_kept){.part = hd_sim_part_share(part)};
    *at = kept;
}

/* Multiprocessors that the kernel of a group of calls holds; 0: they are not limited. */
static int blocks_for(const struct grouped *first)
{
    const int blocks = hd_nccl_blocks(first->comm, first->post->call->kind == PAIR);

    return blocks < hd_nccl.multiprocessors ? blocks : hd_nccl.multiprocessors;
}

/* Enqueues, as one unit, the parts of all calls of the group, from `first` on, on its stream. */
static void put_on_stream(const struct grouped *first)
{
    struct hd_sim_part **parts;
    int count = 0;

    for (const struct grouped *g = first; g; g = g->next)
        count++;
    parts = malloc((size_t)count * sizeof(struct hd_sim_part *));
    if (!parts)
        abort();
    count = 0;
    for (const struct grouped *g = first; g; g = g->next) {
        struct post *p = g->post;

        if (p->part || p->stream != first->post->stream)
            continue;
        parts[count++] = p->part = hd_sim_part_new(p->sends, p->buf, p->bytes);
        keep_part(g->comm, p->part);
        if (g->comm->wire)
            hd_sim_part_place(p->part, &p->place);
    }
    hd_sim_parts_enqueue(first->post->stream, parts, count, hd_nccl_world_rank(first->comm),
                         blocks_for(first));
    free(parts);
}

/* Records, for a call that waits on the host, an event for which the peers' streams wait. */
static void note_place(struct post *post)
{
    (void)cudaEventCreateWithFlags(&post->came, cudaEventDisableTiming);
    (void)cudaEventRecord(post->came, post->stream);
}

/* Numbers the messages to and from other processes, in the order of the calls. */
static void number_messages(void)
{
    for (const struct grouped *g = grouped; g; g = g->next) {
        struct post *p = g->post;
        uint64_t *numbers = p->sends ? g->comm->sent : g->comm->received;

        if (g->comm->wire)
            p->place = (struct hd_wire_place){.wire = g->comm->wire,
                                              .peer = p->peer,
                                              .kind = (int)p->call->kind,
                                              .number = numbers[p->peer]++};
    }
}

static void put_on_streams(void)
{
    number_messages();
    for (const struct grouped *g = grouped; g; g = g->next) {
        struct call *call = g->post->call;

        if (!g->post->part)
            put_on_stream(g);
        if (!call->combines)
            continue;
        call->combines = false; /* all its parts are enqueued */
        combine(call);
        (void)hd_sim_enqueue(call->stream, NULL, free, call->room);
    }
}

/* Counts a group of calls, whose posts are of one communicator and one stream. */
static void count_group(const struct grouped *first)
{
    cudaStream_t *last = &first->comm->last_stream;

    hd_nccl.groups++;
    hd_nccl.turns += *last && *last != first->post->stream;
    *last = first->post->stream;
}

/* HD_NCCL_BLOCKED: waits until another thread aborts, as if the device's queue were full.
 */
static void stay_if_blocked(int world_rank, int aborts_before)
{
    for (bool blocked = true; blocked;) {
        pthread_mutex_lock(&hd_nccl.lock);
        blocked = hd_nccl.defects[world_rank] == HD_NCCL_BLOCKED &&
                  hd_nccl.aborts_of[world_rank] == aborts_before;
        pthread_mutex_unlock(&hd_nccl.lock);
        if (blocked)
            (void)usleep(BLOCKED_LOOK_US);
    }
}

/* A call on a blocking communicator: waits until it has come through, as NCCL does while it
 * connects. The communicator is gone when another thread has aborted those of this rank. */
static ncclResult_t wait_for_peers(ncclComm_t comm, int world_rank, int aborts_before)
{
    ncclResult_t result = ncclInProgress;

    while (result == ncclInProgress) {
        pthread_mutex_lock(&hd_nccl.lock);
        if (hd_nccl.aborts_of[world_rank] != aborts_before)
            result = ncclInternalError;
        else if (comm->error)
            result = comm->error;
        else if (hd_nccl_defect_of(comm) == HD_NCCL_BROKEN ||
                 (comm->wire && hd_wire_is_broken(comm->wire)))
            result = ncclRemoteError;
        else if (!hd_nccl_is_coming_through(comm))
            result = ncclSuccess;
        pthread_mutex_unlock(&hd_nccl.lock);
        if (result == ncclInProgress)
            (void)usleep(BLOCKED_LOOK_US);
    }
    return result;
}

/* True if all calls of the group are on blocking communicators, or all on others. */
static bool is_alike(void)
{
    for (const struct grouped *g = grouped; g; g = g->next)
        if (g->comm->blocking != grouped->comm->blocking)
            return false;
    return true;
}

ncclResult_t ncclGroupEnd(void)
{
    int world_rank = -1, aborts_before = 0;
    ncclComm_t blocking = NULL;
    bool wait_on_stream;

    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth)
        return ncclSuccess;
    if (!is_alike()) { /* nothing of the group is begun */
        while (grouped) {
            struct grouped *g = grouped;

            grouped = g->next;
            if (g->comm->wire)
                hd_sim_part_release(g->post->part);
            free(g->post);
            free(g);
        }
        return ncclInvalidArgument;
    }
    pthread_mutex_lock(&hd_nccl.lock);
    wait_on_stream = waits_on_streams();
    if (grouped) {
        blocking = grouped->comm->blocking ? grouped->comm : NULL;
        hd_nccl.threads += !blocking;
        world_rank = hd_nccl_world_rank(grouped->comm);
        aborts_before = hd_nccl.aborts_of[world_rank];
        count_group(grouped);
    }
    if (wait_on_stream)
        put_on_streams();
    for (struct grouped *g = grouped; g; g = g->next) { /* all are posted before any meets */
        struct post **at = &g->comm->posts;

        if (g->comm->wire) { /* its part is on its stream, and nothing meets here */
            hd_sim_part_release(g->post->part);
            free(g->post);
            continue;
        }
        while (*at)
            at = &(*at)->next;
        *at = g->post;
        if (!wait_on_stream)
            note_place(g->post);
    }
    while (grouped) {
        struct grouped *g = grouped;

        grouped = g->next;
        if (!g->comm->wire && (!grouped || grouped->comm != g->comm))
            meet_all(g->comm);
        free(g);
    }
    pthread_mutex_unlock(&hd_nccl.lock);
    if (world_rank >= 0)
        stay_if_blocked(world_rank, aborts_before);
    if (blocking)
        return wait_for_peers(blocking, world_rank, aborts_before);
    return wait_on_stream || world_rank < 0 ? ncclSuccess : ncclInProgress;
}

static struct call *new_call(ncclComm_t comm, enum kind kind, cudaStream_t stream)
{
    struct call *call = calloc(1, sizeof *call);

    if (!call)
        abort();
    call->kind = kind;
    call->stream = stream;
    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl_keep(comm)->call = call;
    pthread_mutex_unlock(&hd_nccl.lock);
    return call;
}

/* Call it inside a group. */
static ncclResult_t post(ncclComm_t comm, struct call *call, bool sends, const void *buf,
                         size_t bytes, int peer)
{
    struct post *p = calloc(1, sizeof *p);
    struct grouped *g = calloc(1, sizeof *g), **tail = &grouped;

    if (!p || !g)
        abort();
    *p = (struct post){.sends = sends,
                       .peer = peer,
                       .buf = (char *)(uintptr_t)buf,
                       .bytes = bytes,
                       .stream = call->stream,
                       .call = call};
    call->left++;
    *g = (struct grouped){.comm = comm, .post = p};
    while (*tail)
        tail = &(*tail)->next;
    *tail = g;
    return ncclSuccess;
}

static ncclResult_t post_one(ncclComm_t comm, bool sends, const void *buf, size_t bytes, int peer,
                             cudaStream_t stream)
{
    if (peer < 0 || peer >= comm->joined->size || (comm->wire && peer == comm->rank))
        return ncclInvalidArgument;
    if (!hd_nccl_connect_peer(comm, sends, peer))
        return ncclUnhandledCudaError;
    (void)ncclGroupStart();
    (void)post(comm, new_call(comm, PAIR, stream), sends, buf, bytes, peer);
    return ncclGroupEnd();
}

/* ---- operations ---- */

static size_t size_of(ncclDataType_t type)
{
    return type == ncclUint8                             ? 1
           : type == ncclFloat16 || type == ncclBfloat16 ? 2
           : type == ncclInt32 || type == ncclFloat32    ? 4
                                                         : 8;
}

static enum hd_dtype dtype_of(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return HD_U8;
    case ncclFloat16:
        return HD_F16;
    case ncclBfloat16:
        return HD_BF16;
    case ncclInt32:
        return HD_I32;
    case ncclFloat32:
        return HD_F32;
    case ncclFloat64:
        return HD_F64;
    default:
        return HD_I64;
    }
}

ncclResult_t ncclSend(const void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return post_one(comm, true, buf, count * size_of(type), peer, stream);
}

ncclResult_t ncclRecv(void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return post_one(comm, false, buf, count * size_of(type), peer, stream);
}

static void copy_own(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    if (to != from)
        (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * size_of(type);
    struct call *call = new_call(comm, GATHER, stream);
    char *out = recv;

    if (!hd_nccl_connect_ring(comm, false))
        return ncclUnhandledCudaError;
    (void)ncclGroupStart();
    for (int m = 0; m < comm->joined->size; m++) {
        if (m == comm->rank)
            continue;
        (void)post(comm, call, true, send, bytes, m);
        (void)post(comm, call, false, out + (size_t)m * bytes, bytes, m);
    }
    copy_own(out + (size_t)comm->rank * bytes, send, bytes, stream);
    return ncclGroupEnd();
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * size_of(type);
    struct call *call = new_call(comm, BROADCAST, stream);

    if (!hd_nccl_connect_ring(comm, false))
        return ncclUnhandledCudaError;
    (void)ncclGroupStart();
    for (int m = 0; m < comm->joined->size && comm->rank == root; m++)
        if (m != root)
            (void)post(comm, call, true, send, bytes, m);
    if (comm->rank != root)
        (void)post(comm, call, false, recv, bytes, root);
    else
        copy_own(recv, send, bytes, stream);
    return ncclGroupEnd();
}

/* A buffer for a sum, and counts the sum. A waiting stream frees it after use; otherwise it is
 * freed with the communicator. */
static char *take_room(ncclComm_t comm, struct call *call, size_t bytes)
{
    void *room = NULL;

    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl.sums++;
    if (waits_on_streams())
        room = call->room = malloc(bytes);
    else if (cudaMalloc(&room, bytes) == cudaSuccess)
        hd_nccl_keep(comm)->memory = room;
    pthread_mutex_unlock(&hd_nccl.lock);
    return room;
}

/* all_reduce, or with `scatter` reduce_scatter: receives the data of all members, then sums. */
static ncclResult_t reduce(const char *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, bool scatter)
{
    const int size = comm->joined->size;
    const size_t bytes = count * size_of(type);
    struct call *call = new_call(comm, scatter ? SCATTER : REDUCE, stream);
    char *all_in = take_room(comm, call, (size_t)size * bytes + 1);

    if (!all_in || !hd_nccl_connect_ring(comm, !scatter))
        return ncclUnhandledCudaError;
    call->combines = true;
    call->combine = (struct hd_combine_args){.outs = 1,
                                             .ins = size,
                                             .count = (int64_t)count,
                                             .dtype = dtype_of(type),
                                             .max = op == ncclMax};
    call->combine.out[0] = recv;
    call->partial = all_in + (size_t)comm->rank * bytes; /* this part receives nothing */
    (void)ncclGroupStart();
    for (int m = 0; m < size; m++) {
        const char *part = send + (scatter ? (size_t)m * bytes : 0);
        char *place = all_in + (size_t)m * bytes;

        call->combine.in[m] = m == comm->rank ? part : place;
        if (m == comm->rank)
            continue;
        (void)post(comm, call, true, part, bytes, m);
        (void)post(comm, call, false, place, bytes, m);
    }
    return ncclGroupEnd();
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return reduce(send, recv, count, type, op, comm, stream, false);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return reduce(send, recv, count, type, op, comm, stream, true);
}
