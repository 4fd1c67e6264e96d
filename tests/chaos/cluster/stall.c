/* Loaded into a rank (LD_PRELOAD): SIGUSR1 makes the thread that was computing wait for ever, as
 * one does in a call of a driver or of a file system that does not answer. The process sleeps, and
 * is not stopped. With a file end/RANK beside the jobs directory the rank does so when it has left
 * main, and with connect/RANK when it connects to a rank of another node, or one to it. (Ranks do
 * not get all of the environment.) */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void stall(int signal)
{
    for (;;)
        (void)pause();
}

/* The word after `flag` in this process's command line; "": there is none. */
static void find_word(const char *flag, char ret_word[512])
{
    char line[8192];
    FILE *f = fopen("/proc/self/cmdline", "re");
    const size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;

    if (f)
        (void)fclose(f);
    line[n] = '\0';
    ret_word[0] = '\0';
    for (const char *at = line; at < line + n; at += strlen(at) + 1)
        if (strcmp(at, flag) == 0 && at + strlen(at) + 1 < line + n)
            (void)snprintf(ret_word, 512, "%s", at + strlen(at) + 1);
}

static void __attribute__((constructor)) begin(void)
{
    char rank[512];

    find_word("--rank", rank);
    if (rank[0])
        (void)signal(SIGUSR1, stall);
}

/* The job file is DIR/jobs/JOB/attempt-K/nodes/NODE/job. */
static void stall_if(const char *where)
{
    char rank[512], job[512], path[1100];

    find_word("--rank", rank);
    find_word("--job", job);
    for (int i = 0; i < 6 && strrchr(job, '/'); i++)
        *strrchr(job, '/') = '\0';
    (void)snprintf(path, sizeof path, "%s/%s/%s", job, where, rank);
    if (rank[0] && access(path, F_OK) == 0)
        stall(0);
}

static void __attribute__((destructor)) end(void)
{
    stall_if("end");
}

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *to,
                                                   socklen_t bytes)
{
    int (*real)(int, const struct sockaddr *, socklen_t);

    *(void **)&real = dlsym(RTLD_NEXT, "connect");
    if (to->sa_family == AF_INET)
        stall_if("connect");
    return real(fd, to, bytes);
}

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *from, socklen_t *bytes,
                                                   int flags)
{
    int (*real)(int, struct sockaddr *, socklen_t *, int);

    *(void **)&real = dlsym(RTLD_NEXT, "accept4");
    stall_if("connect"); /* a rank listens on its door alone */
    return real(fd, from, bytes, flags);
}
