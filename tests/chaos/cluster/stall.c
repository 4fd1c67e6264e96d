/* Loaded into a rank (LD_PRELOAD): SIGUSR1 makes the thread that was computing wait for ever, as
 * one does in a call of a driver or of a file system that does not answer. The process sleeps, and
 * is not stopped. With a file $STALL_AT_END/RANK the rank does so when it has left main. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void stall(int signal)
{
    (void)signal;
    for (;;)
        (void)pause();
}

/* The number after --rank; -1: this is no rank. */
static int rank_of_this_process(void)
{
    char line[8192];
    FILE *f = fopen("/proc/self/cmdline", "re");
    const size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;

    if (f)
        (void)fclose(f);
    line[n] = '\0';
    for (const char *at = line; at < line + n; at += strlen(at) + 1)
        if (strcmp(at, "--rank") == 0)
            return atoi(at + strlen(at) + 1);
    return -1;
}

static void __attribute__((constructor)) begin(void)
{
    if (rank_of_this_process() >= 0)
        (void)signal(SIGUSR1, stall);
}

static void __attribute__((destructor)) end(void)
{
    const char *folder = getenv("STALL_AT_END");
    char path[512];

    if (!folder || rank_of_this_process() < 0)
        return;
    (void)snprintf(path, sizeof path, "%s/%d", folder, rank_of_this_process());
    if (access(path, F_OK) == 0)
        stall(0);
}
