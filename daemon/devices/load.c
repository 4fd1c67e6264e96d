#include "daemon/devices/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/proc.h"

static int64_t ticks_of(const struct timeval *time)
{
    const long per_second = sysconf(_SC_CLK_TCK);

    return (time->tv_sec * 1000000 + time->tv_usec) * per_second / 1000000;
}

struct hd_load hd_load_read(const char *path)
{
    enum { USER, NICE, SYSTEM, IDLE, IO_WAIT, IRQ, SOFT_IRQ, STOLEN, TIMES };
    int64_t t[TIMES] = {0};
    struct hd_load load = {0};
    struct rusage children;
    char line[256];

    if (hd_proc_line(path, line, sizeof line) &&
        sscanf(line,
               "cpu %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
               " %" SCNd64 " %" SCNd64,
               &t[USER], &t[NICE], &t[SYSTEM], &t[IDLE], &t[IO_WAIT], &t[IRQ], &t[SOFT_IRQ],
               &t[STOLEN]) >= IDLE + 1) {
        load.busy = t[USER] + t[NICE] + t[SYSTEM] + t[IRQ] + t[SOFT_IRQ] + t[STOLEN];
        load.total = load.busy + t[IDLE] + t[IO_WAIT];
        if (getrusage(RUSAGE_CHILDREN, &children) == 0)
            load.own = ticks_of(&children.ru_utime) + ticks_of(&children.ru_stime);
    }
    return load;
}

double hd_load_of_others(const struct hd_load *from, const struct hd_load *to)
{
    const int64_t total = to->total - from->total;
    const int64_t others = to->busy - from->busy - (to->own - from->own);

    return !from->total || total <= 0 || others <= 0 ? 0
           : others >= total                         ? 1
                                                     : (double)others / (double)total;
}
