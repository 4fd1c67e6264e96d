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
        .sizes = {.precision = "auto",                                                      \
                  .zero = -1,                                                               \
                  .schedule = "auto",                                                       \
                  .recompute = "auto",                                                      \
                  .offload = "none",                                                        \
                  .stages = "auto",                                                         \
                  .sequence = -1,                                                           \
                  .cp_exchange = "auto",                                                    \
                  .device = "auto"},                                                        \
        .global_batch = (batch), .heads = 8, .kv_heads = 4, .ffn_hidden = 64, .context = 64 \
    }

#endif
