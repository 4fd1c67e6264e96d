/* now: reads the wall clock and the monotonic clock together; calls nothing of this folder. */
#include "base/clock.h"
#include "controller/services/internal.h"

struct hd_now controller_now(void)
{
    return (struct hd_now){.mono_ms = hd_clock_now_ms(), .wall_ms = hd_clock_wall_ms()};
}
