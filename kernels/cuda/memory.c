/* memory: device memory reservations, copies between host and device, and events.  Copies go in
 * pieces through pinned host buffers (slots), because the device cannot access pageable memory at
 * full speed. Each slot has an event that completes when the device has finished with the slot. So
 * write may return early, and the caller may then reuse its memory. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

enum { SLOTS = 16, SLOT_BYTES = 512 * 1024 };

struct hd_event {
    cudaEvent_t handle;
    int device;
};

struct hd_cuda_reservation {
    struct hd_cuda_reservation *next;
    void *base;
    int64_t size_bytes;
    bool is_mapped; /* `base` is host memory that the device accesses by the same addresses */
    void (*give_back)(void *memory); /* frees `base` */
};

struct hd_cuda_staging {
    char *memory; /* the pinned buffers, SLOTS of SLOT_BYTES */
    cudaEvent_t done[SLOTS];
    int next; /* index of the pinned buffer to use next: the least recently used one */
};

enum hd_status hd_cuda_staging_new(struct hd_cuda_staging **ret_staging)
{
    struct hd_cuda_staging *s = calloc(1, sizeof *s);
    enum hd_status st;

    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory for the cuda backend");
    st = hd_cuda_check(
        cudaHostAlloc((void **)&s->memory, (size_t)SLOTS * SLOT_BYTES, cudaHostAllocDefault),
        "cannot pin 8 MiB of host memory");
    for (int i = 0; !st && i < SLOTS; i++)
        st = hd_cuda_check(cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming),
                           "cannot create an event");
    if (st) {
        hd_cuda_staging_free(s);
        return st;
    }
    *ret_staging = s;
    return HD_OK;
}

void hd_cuda_staging_free(struct hd_cuda_staging *s)
{
    if (!s)
        return;
    for (int i = 0; i < SLOTS; i++)
        if (s->done[i]) {
            (void)cudaEventSynchronize(s->done[i]);
            (void)cudaEventDestroy(s->done[i]);
        }
    if (s->memory)
        (void)cudaFreeHost(s->memory);
    free(s);
}

static char *slot_memory(const struct hd_cuda_staging *s, int slot)
{
    return s->memory + (size_t)slot * SLOT_BYTES;
}

/* Waits until the device has finished with the next pinned buffer (slot), and returns its index in
 * *ret_slot. */
static enum hd_status take_slot(struct hd_cuda_staging *s, int *ret_slot)
{
    *ret_slot = s->next;
    s->next = (s->next + 1) % SLOTS;
    return hd_cuda_check(cudaEventSynchronize(s->done[*ret_slot]),
                         "a copy between host and device failed");
}

static bool is_mapped(const struct hd_backend *cuda, const void *address)
{
    const struct hd_cuda_reservation *r = cuda->reservations;

    while (r && !((const char *)address >= (const char *)r->base &&
                  (const char *)address < (const char *)r->base + r->size_bytes))
        r = r->next;
    return r && r->is_mapped;
}

/* Enqueues a copy. kind: used only if neither address is mapped host memory, which ops use as
 * device memory: for it CUDA must find out the kind itself. */
static enum hd_status enqueue(struct hd_cuda_stream *stream, void *out, const void *inp,
                              int64_t size_bytes, enum cudaMemcpyKind kind, const char *what)
{
    const enum hd_status st = hd_cuda_use(stream->cuda->device);

    if (is_mapped(stream->cuda, out) || is_mapped(stream->cuda, inp))
        kind = cudaMemcpyDefault;
    return st ? st
              : hd_cuda_check(cudaMemcpyAsync(out, inp, (size_t)size_bytes, kind, stream->handle),
                              what);
}

static int64_t piece_at(int64_t at, int64_t size_bytes)
{
    return size_bytes - at < SLOT_BYTES ? size_bytes - at : SLOT_BYTES;
}

static enum hd_status write_bytes(struct hd_stream *stream, void *device, const void *host,
                                  int64_t size_bytes)
{
    struct hd_cuda_stream *cuda = (struct hd_cuda_stream *)stream;
    struct hd_cuda_staging *s = cuda->cuda->staging;
    enum hd_status st = HD_OK;

    for (int64_t at = 0; !st && at < size_bytes; at += SLOT_BYTES) {
        const int64_t piece = piece_at(at, size_bytes);
        int slot;

        st = take_slot(s, &slot);
        if (st)
            return st;
        memcpy(slot_memory(s, slot), (const char *)host + at, (size_t)piece);
        st = enqueue(cuda, (char *)device + at, slot_memory(s, slot), piece, cudaMemcpyHostToDevice,
                     "cannot write to the device");
        if (!st)
            st = hd_cuda_check(cudaEventRecord(s->done[slot], cuda->handle),
                               "cannot record an event");
    }
    return st;
}

/* Copies device memory to the host. While the host copies one piece out of its pinned buffer, the
 * device copies the next pieces. */
static enum hd_status read_bytes(struct hd_stream *stream, void *host, const void *device,
                                 int64_t size_bytes)
{
    struct hd_cuda_stream *cuda = (struct hd_cuda_stream *)stream;
    struct hd_cuda_staging *s = cuda->cuda->staging;
    const int64_t pieces = (size_bytes + SLOT_BYTES - 1) / SLOT_BYTES;
    int64_t begun = 0;
    int slots[SLOTS];

    for (int64_t ended = 0; ended < pieces; ended++) {
        const int64_t at = ended * SLOT_BYTES;
        enum hd_status st = HD_OK;

        for (; !st && begun < pieces && begun < ended + SLOTS; begun++) {
            int *slot = &slots[begun % SLOTS];

            st = take_slot(s, slot);
            if (!st)
                st = enqueue(cuda, slot_memory(s, *slot), (const char *)device + begun * SLOT_BYTES,
                             piece_at(begun * SLOT_BYTES, size_bytes), cudaMemcpyDeviceToHost,
                             "cannot read from the device");
            if (!st)
                st = hd_cuda_check(cudaEventRecord(s->done[*slot], cuda->handle),
                                   "cannot record an event");
        }
        if (!st)
            st = hd_cuda_check(cudaEventSynchronize(s->done[slots[ended % SLOTS]]),
                               "cannot read from the device");
        if (st)
            return st;
        memcpy((char *)host + at, slot_memory(s, slots[ended % SLOTS]),
               (size_t)piece_at(at, size_bytes));
    }
    return HD_OK;
}

static enum hd_status copy_bytes(struct hd_stream *stream, void *out, const void *inp,
                                 int64_t size_bytes)
{
    if (size_bytes <= 0)
        return HD_OK;
    return enqueue((struct hd_cuda_stream *)stream, out, inp, size_bytes, cudaMemcpyDeviceToDevice,
                   "cannot copy on the device");
}

static enum hd_status ask_memory(struct hd_backend *cuda, struct hd_device_memory *ret_memory)
{
    size_t free_bytes = 0, total_bytes = 0;
    enum hd_status st = hd_cuda_use(cuda->device);

    if (!st)
        st = hd_cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes),
                           "cannot read the device's memory use");
    if (st)
        return st;
    *ret_memory = (struct hd_device_memory){.total_bytes = (int64_t)total_bytes,
                                            .free_bytes = (int64_t)free_bytes};
    for (const struct hd_cuda_reservation *r = cuda->reservations; r; r = r->next)
        ret_memory->reserved_bytes += r->is_mapped ? 0 : r->size_bytes;
    return HD_OK;
}

static cudaError_t take_device(void **ret_memory, size_t bytes)
{
    return cudaMalloc(ret_memory, bytes);
}

static cudaError_t take_mapped(void **ret_memory, size_t bytes)
{
    return cudaHostAlloc(ret_memory, bytes, cudaHostAllocMapped);
}

static void give_back_device(void *memory)
{
    (void)cudaFree(memory);
}

static void give_back_mapped(void *memory)
{
    (void)cudaFreeHost(memory);
}

static enum hd_status allocate(const struct hd_backend *cuda, const struct hd_device_memory *there,
                               struct hd_cuda_reservation *r,
                               cudaError_t (*take)(void **ret_memory, size_t bytes))
{
    const cudaError_t error = take(&r->base, (size_t)r->size_bytes);

    if (error != cudaErrorMemoryAllocation)
        return hd_cuda_check(error, "cannot reserve device memory");
    (void)cudaGetLastError();
    if (r->is_mapped)
        return hd_err(HD_NO_MEMORY, "cannot pin %.2f GiB of host memory for device %d",
                      (double)r->size_bytes / 0x1p30, cuda->device);
    return hd_err(HD_NO_MEMORY,
                  "device %d has %.2f GiB of memory, %.2f GiB of it free; %.2f GiB are needed",
                  cuda->device, (double)there->total_bytes / 0x1p30,
                  (double)there->free_bytes / 0x1p30, (double)r->size_bytes / 0x1p30);
}

static void deallocate(const struct hd_cuda_reservation *r)
{
    (void)cudaDeviceSynchronize(); /* cudaFree would wait by itself, other functions do not */
    r->give_back(r->base);
}

/* Reserves memory in whole pages, as the driver does, so that its reports agree with the plan.
 * Takes ownership of `r`. */
static enum hd_status reserve_pages(struct hd_backend *cuda, struct hd_cuda_reservation *r,
                                    int64_t size_bytes,
                                    cudaError_t (*take)(void **ret_memory, size_t bytes),
                                    void **ret_base)
{
    const int64_t page = cuda->traits.page_bytes;
    const int64_t pages = size_bytes > 0 ? (size_bytes + page - 1) / page : 1;
    struct hd_device_memory there;
    enum hd_status st;

    r->size_bytes = pages * page;
    st = ask_memory(cuda, &there);
    if (!st)
        st = allocate(cuda, &there, r, take);
    if (st) {
        free(r);
        return st;
    }
    if (r->is_mapped)
        memset(r->base, 0, (size_t)r->size_bytes);
    else
        st = hd_cuda_check(cudaMemset(r->base, 0, (size_t)r->size_bytes),
                           "cannot clear device memory");
    if (!st) /* our non-blocking streams do not wait for the default stream's memset */
        st = hd_cuda_check(cudaDeviceSynchronize(), "cannot clear device memory");
    if (st) {
        deallocate(r);
        free(r);
        return st;
    }
    r->next = cuda->reservations;
    cuda->reservations = r;
    *ret_base = r->base;
    return HD_OK;
}

enum hd_status hd_cuda_reserve_by(struct hd_backend *cuda, int64_t size_bytes,
                                  cudaError_t (*take)(void **ret_memory, size_t bytes),
                                  void (*give_back)(void *memory), void **ret_base)
{
    struct hd_cuda_reservation *r = calloc(1, sizeof *r);

    if (!r)
        return hd_err(HD_NO_MEMORY, "no memory for the cuda backend");
    r->give_back = give_back;
    return reserve_pages(cuda, r, size_bytes, take, ret_base);
}

static enum hd_status reserve_memory(struct hd_backend *cuda, int64_t size_bytes,
                                     bool host_reachable, void **ret_base)
{
    struct hd_cuda_reservation *r;

    if (!host_reachable)
        return hd_cuda_reserve_by(cuda, size_bytes, take_device, give_back_device, ret_base);
    r = calloc(1, sizeof *r);
    if (!r)
        return hd_err(HD_NO_MEMORY, "no memory for the cuda backend");
    r->is_mapped = true;
    r->give_back = give_back_mapped;
    return reserve_pages(cuda, r, size_bytes, take_mapped, ret_base);
}

static void release(struct hd_backend *cuda, void *base)
{
    struct hd_cuda_reservation **link = &cuda->reservations, *r;

    if (!base)
        return;
    while ((r = *link) && r->base != base)
        link = &r->next;
    assert(r); /* base must come from reserve */
    if (!r)
        return;
    *link = r->next;
    (void)cudaSetDevice(cuda->device);
    deallocate(r);
    free(r);
}

static enum hd_status event_new(struct hd_backend *cuda, bool timed, struct hd_event **ret_event)
{
    struct hd_event *e = calloc(1, sizeof *e);
    enum hd_status st;

    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory for an event of the cuda backend");
    st = hd_cuda_use(cuda->device);
    if (!st)
        st = hd_cuda_check(
            cudaEventCreateWithFlags(&e->handle, timed ? cudaEventDefault : cudaEventDisableTiming),
            "cannot create an event");
    if (st) {
        free(e);
        return st;
    }
    e->device = cuda->device;
    *ret_event = e;
    return HD_OK;
}

static void event_free(struct hd_event *event)
{
    if (!event)
        return;
    (void)cudaEventDestroy(event->handle);
    free(event);
}

static enum hd_status event_record(struct hd_event *event, struct hd_stream *stream)
{
    const enum hd_status st = hd_cuda_use(event->device);

    return st ? st
              : hd_cuda_check(
                    cudaEventRecord(event->handle, ((struct hd_cuda_stream *)stream)->handle),
                    "cannot record an event");
}

static enum hd_status event_wait(struct hd_stream *stream, struct hd_event *event)
{
    struct hd_cuda_stream *s = (struct hd_cuda_stream *)stream;
    const enum hd_status st = hd_cuda_use(s->cuda->device);

    return st ? st
              : hd_cuda_check(cudaStreamWaitEvent(s->handle, event->handle, 0),
                              "cannot wait for an event");
}

static enum hd_status event_done(struct hd_event *event, bool *ret_done)
{
    cudaError_t error = hd_cuda_turn(event->device);

    if (!error)
        error = cudaEventQuery(event->handle);
    if (error != cudaSuccess && error != cudaErrorNotReady)
        return hd_cuda_check(error, HD_CUDA_LAUNCHED_FAILED);
    if (error == cudaErrorNotReady)
        /* "not ready" is no error: it is cleared, so that no later call reports it */
        (void)cudaGetLastError();
    *ret_done = error == cudaSuccess;
    return HD_OK;
}

static enum hd_status event_finish(struct hd_event *event)
{
    cudaError_t error = hd_cuda_turn(event->device);

    if (!error)
        error = cudaEventSynchronize(event->handle);
    return hd_cuda_check(error, HD_CUDA_LAUNCHED_FAILED);
}

static enum hd_status event_elapsed(struct hd_event *begin, struct hd_event *end,
                                    double *ret_seconds)
{
    float ms = 0;
    const enum hd_status st = hd_cuda_check(cudaEventElapsedTime(&ms, begin->handle, end->handle),
                                            "cannot read the time between two events");

    if (!st)
        *ret_seconds = (double)ms * 1e-3;
    return st;
}

const struct hd_device_table hd_cuda_device_table = {
    .reserve = reserve_memory,
    .release = release,
    .memory = ask_memory,
    .write = write_bytes,
    .read = read_bytes,
    .copy = copy_bytes,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_finish = event_finish,
    .event_elapsed = event_elapsed,
    .takes_graphs = hd_cuda_takes_graphs,
    .capture_begin = hd_cuda_capture_begin,
    .capture_end = hd_cuda_capture_end,
    .graph_launch = hd_cuda_graph_launch,
    .combine = hd_cuda_comm_combine,
    .exchange_rows = hd_cuda_comm_exchange_rows,
    .nccl = hd_cuda_nccl,
};
