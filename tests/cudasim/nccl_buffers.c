/* nccl_buffers: memory of the emulated NCCL, and its registrations.
 *
 * The program is ended for what the manual forbids: memory that is freed while it is registered or
 * that NCCL did not allocate, a registration that is ended twice, and a communicator that is
 * destroyed before its registrations. Registering memory that is not NCCL's, that does not begin on
 * a page, or that this communicator has registered already, is refused.
 */
#include "nccl_buffers.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE_BYTES = 4096, GRANULARITY_BYTES = 2 << 20 };

struct memory {
    char *base;
    size_t bytes;
    struct memory *next;
};

struct registration {
    ncclComm_t comm;
    const char *base;
    size_t bytes;
    struct registration *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
static struct registration *registrations;
static int registered_ever;

static void end_program(const char *why)
{
    fprintf(stderr, "cudasim: NCCL: %s\n", why);
    abort();
}

ncclResult_t ncclMemAlloc(void **memory, size_t size)
{
    struct memory *m = calloc(1, sizeof *m);

    if (!m)
        abort();
    m->bytes = (size + GRANULARITY_BYTES - 1) / GRANULARITY_BYTES * GRANULARITY_BYTES;
    if (size == 0 || cudaMalloc(memory, m->bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        free(m);
        return ncclUnhandledCudaError;
    }
    m->base = *memory;
    pthread_mutex_lock(&lock);
    m->next = memories;
    memories = m;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    struct memory **at = &memories, *m;

    pthread_mutex_lock(&lock);
    while (*at && (*at)->base != memory)
        at = &(*at)->next;
    m = *at;
    if (!m)
        end_program("ncclMemFree of memory that ncclMemAlloc did not allocate");
    for (const struct registration *r = registrations; r; r = r->next)
        if (r->base >= m->base && r->base < m->base + m->bytes)
            end_program("ncclMemFree of memory that is registered");
    *at = m->next;
    pthread_mutex_unlock(&lock);
    free(m);
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *buffer, size_t size, void **handle)
{
    const char *base = buffer;
    const struct memory *m;
    struct registration *r;
    bool is_known = false;

    pthread_mutex_lock(&lock);
    m = memories;
    while (m && !(base >= m->base && base + size <= m->base + m->bytes))
        m = m->next;
    for (r = registrations; r; r = r->next)
        is_known |= r->comm == comm && r->base == base;
    r = m && size && !is_known && (base - m->base) % PAGE_BYTES == 0 ? calloc(1, sizeof *r) : NULL;
    if (r) {
        *r = (struct registration){comm, base, size, registrations};
        registrations = r;
        registered_ever++;
        *handle = r;
    }
    pthread_mutex_unlock(&lock);
    return r ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle)
{
    struct registration **at = &registrations, *r;

    pthread_mutex_lock(&lock);
    while (*at && *at != handle)
        at = &(*at)->next;
    r = *at;
    if (!r || r->comm != comm)
        end_program("ncclCommDeregister of what this communicator has not registered");
    *at = r->next;
    pthread_mutex_unlock(&lock);
    free(r);
    return ncclSuccess;
}

void hd_sim_nccl_forget(ncclComm_t comm, bool clean)
{
    pthread_mutex_lock(&lock);
    for (struct registration **at = &registrations; *at;) {
        struct registration *r = *at;

        if (r->comm != comm) {
            at = &r->next;
            continue;
        }
        if (clean)
            end_program("a communicator is destroyed that has registered memory");
        *at = r->next;
        free(r);
    }
    pthread_mutex_unlock(&lock);
}

int hd_nccl_stand_in_registered(void)
{
    int count;

    pthread_mutex_lock(&lock);
    count = registered_ever;
    pthread_mutex_unlock(&lock);
    return count;
}
