#include "daemon/isolation/cpus.h"

#include <ctype.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static enum hd_status parse(const char *list, cpu_set_t *ret_set)
{
    const char *at = list;

    CPU_ZERO(ret_set);
    do {
        char *end = (char *)at;
        long first = -1, last;

        if (isdigit((unsigned char)*at))
            first = strtol(at, &end, 10);
        last = first;
        if (first >= 0 && *end == '-' && isdigit((unsigned char)end[1]))
            last = strtol(end + 1, &end, 10);
        if (first < 0 || last < first || last >= CPU_SETSIZE || (*end && (*end != ',' || !end[1])))
            return hd_err(HD_INVALID, "%.64s: write processors as 0-3,8, below %d", list,
                          CPU_SETSIZE);
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET((size_t)cpu, ret_set);
        at = *end ? end + 1 : end;
    } while (*at);
    return HD_OK;
}

enum hd_status hd_cpus_check(const char *list)
{
    cpu_set_t set;

    return parse(list, &set);
}

enum hd_status hd_cpus_use(const char *list)
{
    cpu_set_t wanted, had;
    enum hd_status st = parse(list, &wanted);

    if (st)
        return st;
    if (sched_getaffinity(0, sizeof had, &had) == 0)
        CPU_AND(&wanted, &wanted, &had);
    if (CPU_COUNT(&wanted) == 0 || sched_setaffinity(0, sizeof wanted, &wanted) < 0)
        return hd_err(HD_INVALID, "this process may use none of the processors %.64s", list);
    return HD_OK;
}
