#include "plan/choose.h"

int32_t hd_plan_micro_batch(int64_t share)
{
    for (int32_t size = HD_MICRO_BATCH_AUTO_MAX; size > 1; size--)
        if (share % size == 0)
            return size;
    return 1;
}
