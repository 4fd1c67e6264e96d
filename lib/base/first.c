#include "base/first.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reaps all processes that have ended. Ends this process if `program` is one of them. */
static void collect(pid_t program)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == program)
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static _Noreturn void wait_for(pid_t program, const sigset_t *all)
{
    for (;;) {
        const int number = sigwaitinfo(all, NULL);

        if (number == SIGCHLD)
            collect(program);
        else if (number > 0)
            (void)kill(program, number);
    }
}

enum hd_status hd_first_split(void)
{
    sigset_t all, before;
    pid_t program;

    if (getpid() != 1)
        return HD_OK;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before); /* no signal is lost: blocked ones wait for
                                                      sigwaitinfo */
    program = fork();
    if (program < 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        return hd_err(HD_NO_MEMORY, "cannot start as the first process of a container: %s",
                      strerror(errno));
    }
    if (program > 0)
        wait_for(program, &all);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return HD_OK;
}
