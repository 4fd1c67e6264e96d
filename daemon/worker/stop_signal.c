/* stop_signal: the signal that asks a verb to stop. */
#include <signal.h>

#include "daemon/worker/worker.h"

/* number of the signal; 0: none came. Set by the signal handler, which does nothing else. */
static volatile sig_atomic_t stop;

static void on_stop_signal(int number)
{
    stop = number;
}

void hd_worker_catch_stop(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction action = {.sa_handler = on_stop_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;

    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(signals[i], &action, NULL);
}

int hd_worker_stop_signal(void)
{
    return stop;
}
