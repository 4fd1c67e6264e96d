/* cuda_runtime_api: the part of the CUDA runtime that Heddle uses, declared for the emulator.
 *
 * Names, numbers and meaning are NVIDIA's; the comments and the selection are ours. Functions that
 * are not declared here do not exist under HD_CUDASIM. If one is needed, add it here and in
 * memory.c or stream.c, with a case in cudasim_runtime_test.c.
 *
 * Used by: kernels/cuda compiled with HD_CUDASIM; found before the toolkit's header of this name.
 * Threads: as in the runtime: any; the current device and the last error belong to a thread.
 */
#ifndef HD_CUDASIM_CUDA_RUNTIME_API_H
#define HD_CUDASIM_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000

#ifdef __cplusplus
#define HD_CUDASIM_DEFAULT(value) = value
extern "C" {
#else
#define HD_CUDASIM_DEFAULT(value)
#endif

/* ---- Vector types ---- */

struct __attribute__((aligned(8))) int2 {
    int x, y;
};
struct __attribute__((aligned(16))) int4 {
    int x, y, z, w;
};
struct uint3 {
    unsigned x, y, z;
};
struct __attribute__((aligned(8))) uint2 {
    unsigned x, y;
};
struct __attribute__((aligned(16))) uint4 {
    unsigned x, y, z, w;
};
struct __attribute__((aligned(8))) float2 {
    float x, y;
};
struct float3 {
    float x, y, z;
};
struct __attribute__((aligned(16))) float4 {
    float x, y, z, w;
};
struct __attribute__((aligned(16))) double2 {
    double x, y;
};
struct __attribute__((aligned(16))) longlong2 {
    long long x, y;
};
struct __attribute__((aligned(16))) ulonglong2 {
    unsigned long long x, y;
};
struct dim3 {
    unsigned x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned columns = 1, unsigned rows = 1, unsigned layers = 1)
        : x(columns), y(rows), z(layers)
    {
    }
#endif
};

typedef struct int2 int2;
typedef struct int4 int4;
typedef struct uint3 uint3;
typedef struct uint2 uint2;
typedef struct uint4 uint4;
typedef struct float2 float2;
typedef struct float3 float3;
typedef struct float4 float4;
typedef struct double2 double2;
typedef struct longlong2 longlong2;
typedef struct ulonglong2 ulonglong2;
typedef struct dim3 dim3;

/* ---- Errors ---- */

#define HD_CUDASIM_ERRORS(X)                                                                      \
    X(cudaSuccess, 0, "no error")                                                                 \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                               \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                              \
    X(cudaErrorInitializationError, 3, "initialization error")                                    \
    X(cudaErrorCudartUnloading, 4, "driver shutting down")                                        \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                         \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                   \
    X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")       \
    X(cudaErrorInsufficientDriver, 35, "driver version is insufficient for runtime")              \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                              \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                               \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                      \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for device")            \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                      \
    X(cudaErrorOperatingSystem, 304, "OS call failed or operation not supported on this OS")      \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                             \
    X(cudaErrorNotReady, 600, "device not ready")                                                 \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                   \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")              \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                     \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                  \
    X(cudaErrorNotSupported, 801, "operation not supported")                                      \
    X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
    X(cudaErrorStreamCaptureInvalidated, 901,                                                     \
      "operation failed due to a previous error during capture")                                  \
    X(cudaErrorStreamCaptureUnmatched, 903, "capture was not initiated in this stream")           \
    X(cudaErrorStreamCaptureImplicit, 906,                                                        \
      "operation would make the legacy stream depend on a capturing blocking stream")             \
    X(cudaErrorStreamCaptureWrongThread, 908,                                                     \
      "attempt to terminate a thread-local capture sequence from another thread")                 \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define X(name, number, text) name = number,
    HD_CUDASIM_ERRORS(X)
#undef X
};
typedef enum cudaError cudaError_t;

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void); /* and clears it */
cudaError_t cudaPeekAtLastError(void);

/* ---- Devices ---- */

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrConcurrentKernels = 31,
    cudaDevAttrEccEnabled = 32,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrPciDeviceId = 34,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrPciDomainId = 50,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

typedef struct CUuuid_st {
    char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    size_t totalConstMem;
    int major;
    int minor;
    int multiProcessorCount;
    int integrated;
    int canMapHostMemory;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int asyncEngineCount;
    int unifiedAddressing;
    int memoryBusWidth;
    int l2CacheSize;
    int maxThreadsPerMultiProcessor;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor;
    size_t sharedMemPerBlockOptin;
    size_t reservedSharedMemPerBlock;
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *driverVersion);
cudaError_t cudaRuntimeGetVersion(int *runtimeVersion);

/* ---- Memory ---- */

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

#define cudaHostAllocDefault       0x00
#define cudaHostAllocPortable      0x01
#define cudaHostAllocMapped        0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaStreamDefault          0x00
#define cudaStreamNonBlocking      0x01
#define cudaStreamLegacy           ((cudaStream_t)0x1)
#define cudaEventDefault           0x00
#define cudaEventBlockingSync      0x01
#define cudaEventDisableTiming     0x02
#define cudaEventWaitDefault       0x00

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *userData);

cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaMallocHost(void **ptr, size_t size);
cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total); /* of the current device */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream HD_CUDASIM_DEFAULT(0));
cudaError_t cudaMemset(void *devPtr, int value, size_t count);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t stream HD_CUDASIM_DEFAULT(0));

/* ---- Streams and events ---- */

cudaError_t cudaStreamCreate(cudaStream_t *pStream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned flags, int priority);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags HD_CUDASIM_DEFAULT(0));
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream HD_CUDASIM_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

/* ---- Graphs (graph.c); of the modes of capture only the thread's own ---- */

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                          unsigned long long flags HD_CUDASIM_DEFAULT(0));
cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* ---- Kernels ---- */

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value);

/* A part of the toolkit's members. */
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, maxDynamicSharedSizeBytes;
};
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func);

#ifdef __cplusplus
}
#endif

#endif
