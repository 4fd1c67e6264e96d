/* nccl_api: declarations of the NCCL functions that nccl.c calls, so that the plug-in is built
 * without NCCL's header and needs the library only if several GPUs are used. Names, values and the
 * layout of ncclConfig_t are those of NCCL 2.18; later versions read no more of it than `size` and
 * `version` allow.
 *
 * Used by: nccl.c, and tests/cudasim/nccl.c, which replaces the library in tests.
 */
#ifndef HD_CUDA_NCCL_API_H
#define HD_CUDA_NCCL_API_H

#include <limits.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t; /* all other values are errors */

typedef enum {
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt64 = 4,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
} ncclDataType_t;

typedef enum { ncclSum = 0, ncclMax = 2 } ncclRedOp_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                    \
    {                                                                                              \
        sizeof(ncclConfig_t), 0xcafebeef, 21800, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN \
    }
#define NCCL_SPLIT_NOCOLOR (-1)

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                           ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
/* Functions that some supported versions of NCCL lack: nccl.c looks up their addresses when it
 * loads the library. */
ncclResult_t ncclMemAlloc(void **memory, size_t size);
ncclResult_t ncclMemFree(void *memory);
ncclResult_t ncclCommRegister(ncclComm_t comm, void *buffer, size_t size, void **handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

#endif
