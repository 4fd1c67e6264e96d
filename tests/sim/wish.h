/* wish: the layout that a simulated job leaves open, for a small model: what every simulated cluster
 * submits.
 *
 * Used by: tests of the controller, sim, bench.   Uses: controller/core.
 */
#ifndef HD_SIM_WISH_H
#define HD_SIM_WISH_H

#include "controller/core/core.h"

#define SIM_OPEN_WISH(batch)                                                                \
    {                                                                                       \
        .sizes = {.precision = HD_JOB_PRECISION_AUTO,                                       \
                  .zero = -1,                                                               \
                  .schedule = "auto",                                                       \
                  .recompute = "auto",                                                      \
                  .offload = HD_JOB_OFFLOAD_NONE,                                           \
                  .stages = "auto",                                                         \
                  .sequence = -1,                                                           \
                  .cp_exchange = HD_JOB_CP_EXCHANGE_AUTO,                                   \
                  .device = HD_JOB_DEVICE_AUTO},                                            \
        .global_batch = (batch), .heads = 8, .kv_heads = 4, .ffn_hidden = 64, .context = 64 \
    }

#endif
