/* doorbell: a futex on which a thread sleeps until another thread or process wakes it. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm_internal.h"

void hd_comm_doorbell_wake(struct hd_comm_doorbell *doorbell)
{
    atomic_fetch_add(&doorbell->rings, 1);
    (void)syscall(SYS_futex, &doorbell->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void hd_comm_doorbell_ring(struct hd_comm_doorbell *doorbell)
{
    if (atomic_load(&doorbell->asleep))
        hd_comm_doorbell_wake(doorbell);
}

void hd_comm_doorbell_sleep(struct hd_comm_doorbell *doorbell, uint32_t rings, int64_t timeout_ms)
{
    const struct timespec span = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};

    /* EAGAIN (already rung), EINTR and ETIMEDOUT are ignored: the caller checks its condition again
     * anyway */
    (void)syscall(SYS_futex, &doorbell->rings, FUTEX_WAIT, rings, &span, NULL, 0);
}
