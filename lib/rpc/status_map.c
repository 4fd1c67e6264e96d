/* Conversion between hd_status and gRPC status codes. */
#include "rpc/rpc.h"

#include <grpc/status.h>

int hd_rpc_status_to_grpc(enum hd_status st)
{
    switch (st) {
    case HD_OK:
        return GRPC_STATUS_OK;
    case HD_INVALID:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case HD_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case HD_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case HD_DENIED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case HD_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case HD_CORRUPT:
        return GRPC_STATUS_DATA_LOSS;
    case HD_LIMIT:
    case HD_NO_MEMORY:
    case HD_STORAGE:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case HD_UNAVAILABLE:
        return GRPC_STATUS_UNAVAILABLE;
    case HD_TIMEOUT:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case HD_ABORTED:
        return GRPC_STATUS_ABORTED;
    case HD_CONFLICT:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case HD_IO:
        return GRPC_STATUS_UNKNOWN;
    case HD_INTERNAL:
    case HD_STATUS_COUNT:
        break;
    }
    return GRPC_STATUS_INTERNAL;
}

enum hd_status hd_rpc_status_from_grpc(int code)
{
    switch (code) {
    case GRPC_STATUS_OK:
        return HD_OK;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_OUT_OF_RANGE:
        return HD_INVALID;
    case GRPC_STATUS_NOT_FOUND:
        return HD_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return HD_EXISTS;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED:
        return HD_DENIED;
    case GRPC_STATUS_UNIMPLEMENTED:
        return HD_UNSUPPORTED;
    case GRPC_STATUS_DATA_LOSS:
        return HD_CORRUPT;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return HD_LIMIT;
    case GRPC_STATUS_UNAVAILABLE:
        return HD_UNAVAILABLE;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return HD_TIMEOUT;
    case GRPC_STATUS_ABORTED:
    case GRPC_STATUS_CANCELLED:
        return HD_ABORTED;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return HD_CONFLICT;
    case GRPC_STATUS_UNKNOWN:
        return HD_IO;
    default:
        return HD_INTERNAL;
    }
}
