/* bell: a futex on which a thread sleeps until another thread or process wakes it. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm_internal.h"

void hd_comm_wake(struct hd_comm_bell *bell)
{
    atomic_fetch_add(&bell->rung, 1);
    (void)syscall(SYS_futex, &bell->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void hd_comm_ring(struct hd_comm_bell *bell)
{
    if (atomic_load(&bell->asleep))
        hd_comm_wake(bell);
}

void hd_comm_sleep(struct hd_comm_bell *bell, uint32_t rung, int64_t timeout_ms)
{
    const struct timespec span = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};

    /* EAGAIN (it was rung), EINTR and ETIMEDOUT: the caller checks its condition in any case */
    (void)syscall(SYS_futex, &bell->rung, FUTEX_WAIT, rung, &span, NULL, 0);
}
