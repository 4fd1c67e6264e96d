#include "daemon/devices/xid.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { RECORD_MAX = 8192, BUS_CHARS = sizeof "0000:3b:00" - 1 };
enum { MEMORY_DEVICES = 1, KERNEL_LOG = 11 }; /* device numbers of /dev/kmsg in Linux' list */

/* Returns the meaning of an error after which a GPU computes nothing until it is reset; NULL: the
 * fault of a program (13, 31, 43, 45), or an error that the GPU survives. */
static const char *explain(long xid)
{
    switch (xid) {
    case 48:
    case 95:
        return "memory error that could not be corrected; reset the GPU, replace it if the error "
               "comes back";
    case 64:
        return "a row of memory could not be remapped; reset the GPU";
    case 79:
        return "it fell off the bus; check power and seat, reboot";
    case 119:
    case 120:
        return "its GSP does not answer; reset the GPU or reboot";
    default:
        return NULL;
    }
}

/* Parses a record, "PRIORITY,NUMBER,TIME,FLAGS;NVRM: Xid (PCI:BUS): XID, ..." (BUS may end in
 * ".0"), and records a fatal error at its GPU. */
static void read_record(const char *record, struct hd_gpu_list *list)
{
    static const char mark[] = "NVRM: Xid (PCI:";
    const char *comma = strchr(record, ','), *bus = strstr(record, mark), *end, *meaning;
    long xid;

    end = bus ? strstr(bus, "): ") : NULL;
    if (!end || !comma)
        return;
    bus += strlen(mark);
    xid = strtol(end + strlen("): "), NULL, 10);
    meaning = explain(xid);
    for (int64_t i = 0; meaning && i < list->count; i++) {
        struct hd_gpu *gpu = &list->gpus[i];

        if (!gpu->bus[0] || strncasecmp(bus, gpu->bus, BUS_CHARS) != 0)
            continue;
        gpu->fault_at = strtoll(comma + 1, NULL, 10);
        (void)snprintf(gpu->fault, sizeof gpu->fault, "Xid %ld: %s", xid, meaning);
    }
}

/* Returns whether standard input is the kernel's log, which systemd opens for heddled's unit.
 * Compares device numbers, because the unit hides the name /dev/kmsg. */
static bool is_given(const char *log)
{
    struct stat given, named;

    if (fstat(STDIN_FILENO, &given) < 0)
        return false;
    if (S_ISCHR(given.st_mode))
        return given.st_rdev == makedev(MEMORY_DEVICES, KERNEL_LOG);
    return S_ISREG(given.st_mode) && stat(log, &named) == 0 && given.st_dev == named.st_dev &&
           given.st_ino == named.st_ino;
}

/* Rewinds the kernel's log on standard input. All programs that heddled starts share its file
 * position, so a lock lets one read at a time; the caller must close *ret_round after reading to
 * release the lock. */
static enum hd_status begin_given(int *ret_round)
{
    const int round = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int flags = fcntl(STDIN_FILENO, F_GETFL);

    if (round < 0 || flock(round, LOCK_EX) < 0 || flags < 0 ||
        fcntl(STDIN_FILENO, F_SETFL, flags | O_NONBLOCK) < 0 ||
        lseek(STDIN_FILENO, 0, SEEK_SET) < 0) {
        const int error = errno;

        if (round >= 0)
            (void)close(round);
        return hd_err(HD_IO, "cannot read the kernel's log: %s", strerror(error));
    }
    *ret_round = round;
    return HD_OK;
}

/* Opens the log as *ret_fd. The caller must close *ret_close, which may be another descriptor,
 * after reading. */
static enum hd_status open_log(const char *log, int *ret_fd, int *ret_close)
{
    if (is_given(log)) {
        *ret_fd = STDIN_FILENO;
        return begin_given(ret_close);
    }
    *ret_fd = *ret_close = open(log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return *ret_fd < 0 ? hd_err(HD_IO, "cannot read %s: %s", log, strerror(errno)) : HD_OK;
}

enum hd_status hd_xid_read(const char *log, struct hd_gpu_list *list)
{
    char record[RECORD_MAX];
    int fd = -1, to_close = -1;
    enum hd_status st = open_log(log, &fd, &to_close);
    ssize_t n = 1;

    for (int64_t i = 0; i < list->count; i++)
        list->gpus[i].fault_at = st ? -1 : 0;
    if (st)
        return st;
    /* a read of /dev/kmsg returns one record; EAGAIN after the last one; EPIPE if the next record
     * was overwritten */
    while (n > 0 || errno == EPIPE || errno == EINTR) {
        errno = 0;
        n = read(fd, record, sizeof record - 1);
        record[n > 0 ? n : 0] = '\0';
        for (char *rest = record, *line; n > 0 && (line = strsep(&rest, "\n"));)
            read_record(line, list);
    }
    (void)close(to_close);
    return HD_OK;
}
