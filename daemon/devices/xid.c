#include "daemon/devices/xid.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { RECORD_MAX = 8192, BUS_CHARS = sizeof "0000:3b:00" - 1 };

/* After these a GPU computes nothing until it is reset. NULL: not such an error: a program's fault
 * (13, 31, 43, 45), or one that the GPU survives. */
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

/* "PRIORITY,NUMBER,TIME,FLAGS;NVRM: Xid (PCI:BUS): XID, ..."; BUS with or without ".0". */
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

enum hd_status hd_xid_read(const char *log, struct hd_gpu_list *list)
{
    const int fd = open(log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    char record[RECORD_MAX];
    ssize_t n = 1;

    for (int64_t i = 0; i < list->count; i++)
        list->gpus[i].fault_at = fd < 0 ? -1 : 0;
    if (fd < 0)
        return hd_err(HD_IO, "cannot read %s: %s", log, strerror(errno));
    /* /dev/kmsg gives one record a read, EAGAIN after the last one, EPIPE when the next one was
     * overwritten meanwhile */
    while (n > 0 || errno == EPIPE || errno == EINTR) {
        errno = 0;
        n = read(fd, record, sizeof record - 1);
        record[n > 0 ? n : 0] = '\0';
        for (char *rest = record, *line; n > 0 && (line = strsep(&rest, "\n"));)
            read_record(line, list);
    }
    (void)close(fd);
    return HD_OK;
}
