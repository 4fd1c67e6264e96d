/* inspect: reads the state of ranks without their help: their collectives and waits in shared
 * memory, and the states of their processes. */
#include <unistd.h>

#include "base/clock.h"
#include "base/proc.h"
#include "daemon/supervisor/supervisor.h"

enum { BUSY_SAMPLES = 10, BUSY_SAMPLE_US = 20 * 1000 };

const char *sup_phase_text(const struct sup_rank *rank)
{
    return rank->phase == HD_LINK_PHASE_SETUP ? "setting up" : hd_link_phase_name(rank->phase);
}

/* ---- collectives ---- */

bool sup_find_flight(const struct sup *sup, const struct sup_rank *rank,
                     struct hd_flight_record *ret_record)
{
    struct hd_flight_record records[HD_FLIGHT_MAX];
    const int count = hd_shm_control_flight(sup->shm, (int)(rank - sup->ranks), records);
    int i = 0;

    if (count == 0)
        return false;
    while (i + 1 < count && records[i].state == HD_FLIGHT_COMPLETE)
        i++;
    *ret_record = records[i];
    return true;
}

void sup_describe_flight(const struct sup *sup, const struct sup_rank *rank,
                         char ret_text[SUP_FLIGHT_MAX])
{
    struct hd_flight_record records[HD_FLIGHT_MAX];
    const int count = hd_shm_control_flight(sup->shm, (int)(rank - sup->ranks), records);

    hd_flight_describe_open(records, count, ret_text, SUP_FLIGHT_MAX);
}

/* ---- processes ---- */

bool sup_is_stopped(const struct sup_rank *rank)
{
    struct hd_proc_stat stat;

    return rank->pid && !hd_proc_stat_read(rank->pid, &stat) &&
           (stat.state == 'T' || stat.state == 't');
}

bool sup_is_busy(const struct sup_rank *rank)
{
    struct hd_proc_stat stat;

    if (!rank->pid)
        return false;
    /* samples the rank several times: if it is seen asleep once, it is not busy */
    for (int i = 0; i < BUSY_SAMPLES; i++) {
        if (hd_proc_stat_read(rank->pid, &stat) || stat.state == 'S')
            return false;
        (void)usleep(BUSY_SAMPLE_US);
    }
    return true;
}
