/* probe_where: the differences between measuring on a CPU, whose launches have run when they
 * return, and on a GPU, which has its own memory and whose launches are timed by events. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/plugin.h"
#include "worker/probe.h"

/* Returns the options of this process's backend. A GPU's process sees one GPU (show_gpu of
 * probe.c): its device 0. GEMM algorithms are chosen by time, as in a job. */
struct hd_backend_options probe_options(const struct probe *p)
{
    return (struct hd_backend_options){.threads = (int)p->threads,
                                       .choices_dir = p->is_gpu ? p->dir : NULL};
}

enum hd_status probe_open(struct probe *p)
{
    const struct hd_backend_options options = probe_options(p);
    enum hd_status st = HD_OK;

    if (p->opened++)
        return HD_OK;
    if (p->is_gpu)
        st = hd_plugin_cuda(&p->table);
    if (!st)
        st = p->table->open(&options, &p->backend);
    if (!st)
        st = p->table->stream_open(p->backend, HD_STREAM_FOR_COMPUTE, &p->stream);
    for (int i = 0; p->is_gpu && !st && i < 2; i++)
        st = p->table->device->event_new(p->backend, true, &p->events[i]);
    return st;
}

void probe_close(struct probe *p)
{
    if (--p->opened)
        return;
    for (int i = 0; i < 2; i++)
        if (p->events[i])
            p->table->device->event_free(p->events[i]);
    if (p->stream)
        p->table->stream_close(p->stream);
    if (p->backend)
        p->table->close(p->backend);
    p->events[0] = p->events[1] = NULL;
    p->stream = NULL;
    p->backend = NULL;
}

/* ---- memory ---- */

enum hd_status probe_reserve(struct probe *p, int64_t bytes, void **ret_memory)
{
    const int64_t page = 4096, rounded = (bytes + page - 1) / page * page;

    if (p->is_gpu)
        return p->table->device->reserve(p->backend, bytes, false, ret_memory);
    *ret_memory = aligned_alloc((size_t)page, (size_t)rounded);
    return *ret_memory ? HD_OK
                       : hd_err(HD_NO_MEMORY, "no memory for %lld bytes that are measured with",
                                (long long)bytes);
}

void probe_release(struct probe *p, void *memory)
{
    if (!memory)
        return;
    if (p->is_gpu)
        p->table->device->release(p->backend, memory);
    else
        free(memory);
}

/* Fills memory with numbers other than 0: a GPU that multiplies zeros draws less power and is
 * faster. */
enum hd_status probe_fill(struct probe *p, void *memory, int64_t bytes)
{
    enum { CHUNK = 1 << 20 };
    float *numbers = malloc(CHUNK);
    enum hd_status st = numbers ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for numbers");

    for (int i = 0; !st && i < CHUNK / (int)sizeof *numbers; i++)
        numbers[i] = 0.001f * (float)(i % 997 - 498);
    for (int64_t at = 0; !st && at < bytes; at += CHUNK) {
        const int64_t part = bytes - at < CHUNK ? bytes - at : CHUNK;

        st = p->is_gpu ? p->table->device->write(p->stream, (char *)memory + at, numbers, part)
                       : (memcpy((char *)memory + at, numbers, (size_t)part), HD_OK);
    }
    free(numbers);
    return st;
}

/* ---- time ---- */

enum hd_status probe_begin(struct probe *p)
{
    p->begin_ns = hd_clock_now_ns();
    return p->is_gpu ? p->table->device->event_record(p->events[0], p->stream) : HD_OK;
}

enum hd_status probe_end(struct probe *p, double *ret_seconds)
{
    enum hd_status st;

    if (!p->is_gpu) {
        *ret_seconds = 1e-9 * (double)(hd_clock_now_ns() - p->begin_ns);
        return HD_OK;
    }
    st = p->table->device->event_record(p->events[1], p->stream);
    if (!st)
        st = p->table->device->event_finish(p->events[1]);
    return st ? st : p->table->device->event_elapsed(p->events[0], p->events[1], ret_seconds);
}

/* ---- other processes ---- */

/* Opens shm between CPU processes; between GPUs NCCL, over a shared memory of their processes on
 * the host. */
enum hd_status probe_meet(struct probe *p, struct hd_shm_control *control, int rank, int world,
                          struct hd_opened_rank *ret_opened)
{
    return hd_rank_open(&(struct hd_rank_opening){.table = p->table,
                                                  .instance = p->backend,
                                                  .options = probe_options(p),
                                                  .shm = control,
                                                  .alone = !control,
                                                  .rank = rank,
                                                  .world = world,
                                                  .deadline_ms = PROBE_DEADLINE_MS},
                        ret_opened);
}

/* Waits for a communication stream. On a GPU, hd_comm_wait returns when the work is only enqueued;
 * so the compute stream waits for it, and the host for the compute stream. */
enum hd_status probe_wait(struct probe *p, struct hd_comm_stream *s)
{
    const uint64_t ticket = hd_comm_record(s);
    enum hd_status st;

    if (!p->is_gpu)
        return hd_comm_wait(s, ticket);
    st = hd_comm_wait_on(s, ticket, p->stream);
    if (!st)
        st = p->table->device->event_record(p->events[1], p->stream);
    return st ? st : p->table->device->event_finish(p->events[1]);
}

enum hd_status probe_most(struct probe *p, float *values, int count)
{
    struct hd_comm_stream *s = hd_comm_get_stream(p->peers.comm, HD_COMM_STREAM_REDUCE);
    const int64_t bytes = count * (int64_t)sizeof *values;
    float *at = (float *)p->registered;
    enum hd_status st = HD_OK;

    if (p->is_gpu)
        st = p->table->device->write(p->stream, at, values, bytes);
    else
        memcpy(at, values, (size_t)bytes);
    if (!st)
        st = hd_comm_follow(s, p->stream);
    if (!st)
        st = hd_comm_launch(p->group, s, HD_COMM_ALL_REDUCE,
                            HD_COLLECTIVE(at, at, count, HD_F32, .reduce = HD_COMM_MAX));
    if (!st)
        st = probe_wait(p, s);
    if (!st && p->is_gpu)
        st = p->table->device->read(p->stream, values, at, bytes);
    else if (!st)
        memcpy(values, at, (size_t)bytes);
    return st;
}
