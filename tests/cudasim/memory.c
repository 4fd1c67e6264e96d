/* memory: emulated devices and memory allocations.
 *
 * Device memory is host memory, filled with 0xff. Allocations are in a list, so that copies can be
 * checked against the bounds of allocations.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/cudasim/internal.h"

enum { DEVICES_MAX = 16, MEMORY_ALIGN = 256 };

struct block {
    struct block *next;
    unsigned char *base;
    size_t size_bytes;
    enum hd_sim_memory kind;
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static size_t used_bytes[DEVICES_MAX];
static atomic_int fault; /* a cudaError_t, or 0 */
static atomic_size_t total_bytes = (size_t)8 << 30;
static atomic_size_t shared_bytes = HD_SIM_SHARED_MAX; /* per block */
static atomic_int device_count;
static atomic_int multiprocessors = 2, capability = 90;
static atomic_uint_fast64_t allocations;
static __thread int current_device;
static __thread cudaError_t last_error;

/* ---- Errors ---- */

cudaError_t hd_sim_set_error(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define X(name, number, text) \
    case name:                \
        return #name;
        HD_CUDASIM_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define X(name, number, text) \
    case name:                \
        return text;
        HD_CUDASIM_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}

/* ---- Devices ---- */

void hd_cudasim_devices(int count)
{
    atomic_store(&device_count, count < 0 ? -1 : count == 0 ? -1 : count);
}

void hd_cudasim_memory(size_t bytes)
{
    atomic_store(&total_bytes, bytes);
}

int hd_sim_capability(void)
{
    return atomic_load(&capability);
}

void hd_cudasim_kind(int count, int tens_and_ones)
{
    atomic_store(&multiprocessors, count);
    atomic_store(&capability, tens_and_ones);
}

void hd_cudasim_shared_bytes(size_t block_bytes)
{
    atomic_store(&shared_bytes, block_bytes ? block_bytes : (size_t)HD_SIM_SHARED_MAX);
}

int hd_sim_device_count(void)
{
    int count = atomic_load(&device_count);

    if (count == 0) { /* not set */
        const char *wish = getenv("HD_CUDASIM_DEVICES");

        count = wish ? atoi(wish) : 1;
        hd_cudasim_devices(count);
    }
    return count < 0 ? 0 : count < DEVICES_MAX ? count : DEVICES_MAX;
}

int hd_sim_device(void)
{
    return current_device;
}

static bool is_device(int device)
{
    return device >= 0 && device < hd_sim_device_count();
}

/* Does as the driver does at its start in a process: it makes a Unix socket of whole packets, and
 * names its threads by their files below /proc. Where either is refused it does not start (driver
 * 580.159.04, H100). */
static bool starts(void)
{
    char path[64];
    const int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int comm_fd;

    (void)snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)gettid());
    comm_fd = open(path, O_RDWR | O_CLOEXEC);
    if (socket_fd >= 0)
        (void)close(socket_fd);
    if (comm_fd >= 0)
        (void)close(comm_fd);
    return socket_fd >= 0 && comm_fd >= 0;
}

static atomic_int driver_version; /* hd_cudasim_driver; 0: that of the runtime */

cudaError_t cudaGetDeviceCount(int *count)
{
    static _Atomic int started; /* 0: not tried */

    if (!started)
        started = starts() ? 1 : -1;
    if (started < 0)
        return hd_sim_set_error(cudaErrorOperatingSystem);
    if (atomic_load(&driver_version) && atomic_load(&driver_version) / 1000 < CUDART_VERSION / 1000)
        return hd_sim_set_error(cudaErrorInsufficientDriver);
    *count = hd_sim_device_count();
    return *count ? cudaSuccess : hd_sim_set_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (!is_device(device))
        return hd_sim_set_error(hd_sim_device_count() ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    current_device = device;
    return cudaSuccess;
}

void hd_cudasim_fault(int error)
{
    atomic_store(&fault, error);
}

cudaError_t cudaGetDevice(int *device)
{
    const cudaError_t error = (cudaError_t)atomic_load(&fault);

    *device = current_device;
    return error ? hd_sim_set_error(error) : cudaSuccess;
}

/* HD_CUDASIM_NAME: that of a kind that the planner knows. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    const char *wish = getenv("HD_CUDASIM_NAME");

    if (!is_device(device))
        return hd_sim_set_error(cudaErrorInvalidDevice);
    *prop = (struct cudaDeviceProp){
        .totalGlobalMem = atomic_load(&total_bytes),
        .sharedMemPerBlock = HD_SIM_SHARED_DEFAULT,
        .regsPerBlock = 65536,
        .warpSize = HD_CUDASIM_WARP,
        .maxThreadsPerBlock = HD_SIM_THREADS_MAX,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .totalConstMem = 65536,
        .major = atomic_load(&capability) / 10,
        .minor = atomic_load(&capability) % 10,
        .multiProcessorCount = atomic_load(&multiprocessors),
        .canMapHostMemory = 1,
        .concurrentKernels = 1,
        .pciBusID = device + 1,
        .asyncEngineCount = 2,
        .unifiedAddressing = 1,
        .memoryBusWidth = 5120,
        .l2CacheSize = 1 << 16, /* small, so that tests exceed it */
        .maxThreadsPerMultiProcessor = 2048,
        .sharedMemPerMultiprocessor = atomic_load(&shared_bytes) + 1024,
        .regsPerMultiprocessor = 65536,
        .sharedMemPerBlockOptin = atomic_load(&shared_bytes),
        .reservedSharedMemPerBlock = 1024,
    };
    (void)snprintf(prop->name, sizeof prop->name, "%s", wish ? wish : "Emulated device");
    memcpy(prop->uuid.bytes, "heddle-cudasim", 14);
    prop->uuid.bytes[15] = (char)device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    struct cudaDeviceProp prop;
    const cudaError_t error = cudaGetDeviceProperties(&prop, device);

    if (error)
        return error;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = prop.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)prop.sharedMemPerBlock;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = prop.warpSize;
        return cudaSuccess;
    case cudaDevAttrClockRate:
        *value = 1000000;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = prop.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrIntegrated:
        *value = prop.integrated;
        return cudaSuccess;
    case cudaDevAttrConcurrentKernels:
        *value = prop.concurrentKernels;
        return cudaSuccess;
    case cudaDevAttrEccEnabled:
        *value = prop.ECCEnabled;
        return cudaSuccess;
    case cudaDevAttrPciBusId:
        *value = prop.pciBusID;
        return cudaSuccess;
    case cudaDevAttrPciDeviceId:
        *value = prop.pciDeviceID;
        return cudaSuccess;
    case cudaDevAttrPciDomainId:
        *value = prop.pciDomainID;
        return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
        *value = 1000000;
        return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = prop.memoryBusWidth;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = prop.l2CacheSize;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = prop.maxThreadsPerMultiProcessor;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = prop.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = prop.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)prop.sharedMemPerMultiprocessor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)prop.sharedMemPerBlockOptin;
        return cudaSuccess;
    }
    return hd_sim_set_error(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
    if (!is_device(device))
        return hd_sim_set_error(cudaErrorInvalidDevice);
    if (len < 13)
        return hd_sim_set_error(cudaErrorInvalidValue);
    (void)snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", (unsigned)(device + 1) & 0xffu);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    *leastPriority = 0;
    *greatestPriority = -5;
    return cudaSuccess;
}

void hd_cudasim_driver(int version)
{
    atomic_store(&driver_version, version);
}

cudaError_t cudaDriverGetVersion(int *driverVersion)
{
    const int version = atomic_load(&driver_version);

    *driverVersion = version ? version : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

/* Facts about a kernel's shared memory. Static arrays are seen only after the kernel has run once;
 * a device knows them from the start. */
enum { KERNELS_MAX = 1024 };
static struct kernel {
    const void *address;
    size_t static_bytes;
    size_t dynamic_bytes; /* set by cudaFuncSetAttribute; 0: not set */
} kernels[KERNELS_MAX];
static int kernel_count;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

/* The kernel's entry, under the lock; ends the program if there are too many. */
static struct kernel *find_kernel(const void *address)
{
    int i = 0;

    while (i < kernel_count && kernels[i].address != address)
        i++;
    if (i == KERNELS_MAX)
        hd_cudasim_fail((struct hd_cudasim_site){0}, "more than %d kernels", KERNELS_MAX);
    if (i == kernel_count)
        kernels[kernel_count++] = (struct kernel){.address = address};
    return &kernels[i];
}

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value)
{
    struct kernel *k;
    bool fits;

    if (!func)
        return hd_sim_set_error(cudaErrorInvalidDeviceFunction);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    (void)pthread_mutex_lock(&kernels_lock);
    k = find_kernel(func);
    fits = value >= 0 && (size_t)value + k->static_bytes <= atomic_load(&shared_bytes);
    if (fits)
        k->dynamic_bytes = (size_t)value;
    (void)pthread_mutex_unlock(&kernels_lock);
    return fits ? cudaSuccess : hd_sim_set_error(cudaErrorInvalidValue);
}

void hd_sim_note_static_shared(const void *kernel, size_t size_bytes)
{
    struct kernel *k;

    (void)pthread_mutex_lock(&kernels_lock);
    k = find_kernel(kernel);
    if (k->static_bytes < size_bytes)
        k->static_bytes = size_bytes;
    (void)pthread_mutex_unlock(&kernels_lock);
}

struct hd_sim_shared_limits hd_sim_shared_limits(const void *kernel)
{
    struct hd_sim_shared_limits limits = {.all_bytes = atomic_load(&shared_bytes)};
    const struct kernel *k;

    (void)pthread_mutex_lock(&kernels_lock);
    k = find_kernel(kernel);
    if (!k->dynamic_bytes)
        limits.all_bytes = HD_SIM_SHARED_DEFAULT;
    limits.dynamic_bytes =
        limits.all_bytes > k->static_bytes ? limits.all_bytes - k->static_bytes : 0;
    if (k->dynamic_bytes && k->dynamic_bytes < limits.dynamic_bytes)
        limits.dynamic_bytes = k->dynamic_bytes;
    limits.static_bytes = k->static_bytes;
    (void)pthread_mutex_unlock(&kernels_lock);
    return limits;
}

/* Before the kernel has run once, it reports no static shared memory. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func)
{
    struct hd_sim_shared_limits limits;

    if (!attr || !func)
        return hd_sim_set_error(cudaErrorInvalidDeviceFunction);
    limits = hd_sim_shared_limits(func);
    *attr = (struct cudaFuncAttributes){.sharedSizeBytes = limits.static_bytes,
                                        .maxDynamicSharedSizeBytes = (int)limits.dynamic_bytes,
                                        .maxThreadsPerBlock = HD_SIM_THREADS_MAX};
    return cudaSuccess;
}

/* ---- Allocations ---- */

static cudaError_t take(void **ret_memory, size_t size_bytes, enum hd_sim_memory kind)
{
    const cudaError_t refused = hd_sim_refuse_in_capture(NULL);
    struct block *block;
    void *base;

    if (refused)
        return refused;
    if (!ret_memory)
        return hd_sim_set_error(cudaErrorInvalidValue);
    *ret_memory = NULL;
    if (!hd_sim_device_count())
        return hd_sim_set_error(cudaErrorNoDevice);
    if (size_bytes == 0)
        return cudaSuccess;
    atomic_fetch_add(&allocations, 1);
    pthread_mutex_lock(&lock);
    if (kind == HD_SIM_DEVICE &&
        size_bytes > atomic_load(&total_bytes) - used_bytes[current_device]) {
        pthread_mutex_unlock(&lock);
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    }
    block = malloc(sizeof *block);
    if (!block || posix_memalign(&base, MEMORY_ALIGN, size_bytes)) {
        pthread_mutex_unlock(&lock);
        free(block);
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    }
    *block = (struct block){blocks, base, size_bytes, kind, current_device};
    blocks = block;
    if (kind == HD_SIM_DEVICE)
        used_bytes[current_device] += size_bytes;
    pthread_mutex_unlock(&lock);
    memset(base, HD_SIM_POISON, size_bytes);
    *ret_memory = base;
    return cudaSuccess;
}

static cudaError_t give_back(void *memory, bool of_device)
{
    const cudaError_t refused = hd_sim_refuse_in_capture(NULL);
    struct block **link, *block;

    if (refused || !memory)
        return refused;
    hd_sim_drain_all(); /* as CUDA does, because work may still use the memory */
    pthread_mutex_lock(&lock);
    for (link = &blocks; *link && (*link)->base != memory; link = &(*link)->next)
        ;
    block = *link;
    if (!block || (block->kind == HD_SIM_DEVICE) != of_device) {
        pthread_mutex_unlock(&lock);
        return hd_sim_set_error(cudaErrorInvalidValue);
    }
    *link = block->next;
    if (of_device)
        used_bytes[block->device] -= block->size_bytes;
    pthread_mutex_unlock(&lock);
    free(block->base);
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    return take(devPtr, size, HD_SIM_DEVICE);
}

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    return take(ptr, size, HD_SIM_PINNED);
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned flags)
{
    if (flags & ~7u)
        return hd_sim_set_error(cudaErrorInvalidValue);
    return take(pHost, size, HD_SIM_PINNED);
}

cudaError_t cudaFree(void *devPtr)
{
    return give_back(devPtr, true);
}

cudaError_t cudaFreeHost(void *ptr)
{
    return give_back(ptr, false);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    if (!hd_sim_device_count())
        return hd_sim_set_error(cudaErrorNoDevice);
    pthread_mutex_lock(&lock);
    *total = atomic_load(&total_bytes);
    *free_bytes = *total - used_bytes[current_device];
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

bool hd_sim_charge(int device, int64_t bytes)
{
    bool fits;

    pthread_mutex_lock(&lock);
    fits = bytes <= 0 || (size_t)bytes <= atomic_load(&total_bytes) - used_bytes[device];
    if (fits)
        used_bytes[device] += (size_t)bytes;
    pthread_mutex_unlock(&lock);
    return fits;
}

size_t hd_cudasim_allocated(void)
{
    size_t sum = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES_MAX; i++)
        sum += used_bytes[i];
    pthread_mutex_unlock(&lock);
    return sum;
}

uint64_t hd_cudasim_allocations(void)
{
    return atomic_load(&allocations);
}

enum hd_sim_memory hd_sim_memory_of(const void *address, size_t *ret_room)
{
    const unsigned char *at = address;
    enum hd_sim_memory kind = HD_SIM_PAGEABLE;

    *ret_room = SIZE_MAX;
    pthread_mutex_lock(&lock);
    for (const struct block *b = blocks; b; b = b->next)
        if (at >= b->base && at < b->base + b->size_bytes) {
            kind = b->kind;
            *ret_room = (size_t)(b->base + b->size_bytes - at);
            break;
        }
    pthread_mutex_unlock(&lock);
    return kind;
}

size_t hd_sim_memory_leaks(void)
{
    static const char *const names[] = {"pageable", "device", "pinned"};
    size_t count = 0;

    pthread_mutex_lock(&lock);
    for (const struct block *b = blocks; b; b = b->next) {
        fprintf(stderr, "cudasim: %zu bytes of %s memory at %p of device %d were not freed\n",
                b->size_bytes, names[b->kind], (void *)b->base, b->device);
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

size_t hd_cudasim_leaks(void)
{
    return hd_sim_memory_leaks() + hd_sim_stream_leaks() + hd_sim_graph_leaks();
}
