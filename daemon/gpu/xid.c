#include "daemon/gpu/xid.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_MAX = 8192, LOG_BYTES_MAX = 64 << 20 };

/* "PCI:0000:3b:00" or "PCI:0000:3b:00.0" names 0000:3b:00.0. */
static bool same_bus(const char *at, size_t length, const char *bus)
{
    const size_t dot = strcspn(bus, ".");

    if (memchr(at, '.', length))
        length = (size_t)((const char *)memchr(at, '.', length) - at);
    if (length != dot)
        return false;
    for (size_t i = 0; i < length; i++)
        if (tolower((unsigned char)at[i]) != bus[i])
            return false;
    return true;
}

/* The number of a record, "PRIORITY,NUMBER,TIME,FLAGS;TEXT"; 0: it tells none. */
static int64_t number_of(const char *line)
{
    const char *comma = strchr(line, ',');

    return comma && isdigit((unsigned char)comma[1]) ? strtoll(comma + 1, NULL, 10) : 0;
}

static void take_line(const char *line, struct hd_gpu_list *list)
{
    static const char mark[] = "NVRM: Xid (PCI:";
    const char *at = strstr(line, mark), *end;
    char *rest;
    long xid;

    end = at ? strchr(at, ')') : NULL;
    if (!end || end[1] != ':')
        return;
    at += strlen(mark);
    xid = strtol(end + 2, &rest, 10);
    if (rest == end + 2 || xid <= 0)
        return;
    for (int64_t i = 0; i < list->count; i++)
        if (same_bus(at, (size_t)(end - at), list->gpus[i].bus)) {
            list->gpus[i].xid = xid;
            list->gpus[i].xid_count++;
            if (!hd_xid_explain(xid).fatal)
                continue;
            list->gpus[i].xid_fatal = xid;
            list->gpus[i].xid_fatal_at = number_of(line);
        }
}

/* /dev/kmsg gives one record per read and EAGAIN behind the last; a file gives what fits. */
static enum hd_status read_all(const char *log, struct hd_text *text)
{
    char record[RECORD_MAX];
    int fd = open(log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = 1;

    if (fd < 0)
        return hd_err(errno == EPERM || errno == EACCES ? HD_DENIED : HD_IO, "cannot read %s: %s",
                      log, strerror(errno));
    while (n > 0 && text->len_bytes < LOG_BYTES_MAX) {
        n = read(fd, record, sizeof record);
        if (n > 0)
            hd_text_add_bytes(text, record, (size_t)n);
        if (n < 0 && (errno == EPIPE || errno == EINTR)) /* overwritten while we read */
            n = 1;
    }
    (void)close(fd);
    if (n < 0 && errno != EAGAIN)
        return hd_err(HD_IO, "cannot read %s: %s", log, strerror(errno));
    return text->failed ? hd_err(HD_NO_MEMORY, "no memory for %s", log) : HD_OK;
}

enum hd_status hd_xid_read(const char *log, struct hd_gpu_list *list)
{
    struct hd_text text = {0};
    enum hd_status st = read_all(log, &text);
    char *rest = text.data;

    for (int64_t i = 0; !st && i < list->count; i++) {
        list->gpus[i].xid = list->gpus[i].xid_count = 0;
        list->gpus[i].xid_fatal = list->gpus[i].xid_fatal_at = 0;
    }
    for (char *line; !st && (line = strsep(&rest, "\n")) != NULL;)
        take_line(line, list);
    hd_text_free(&text);
    return st;
}

struct hd_xid_meaning hd_xid_explain(int64_t xid)
{
    switch (xid) {
    case 13:
    case 31:
    case 43:
    case 45:
        return (struct hd_xid_meaning){.text = "a program's fault"};
    case 48:
    case 95:
        return (struct hd_xid_meaning){
            true, true,
            "memory error that could not be corrected; reset the GPU, replace it if it comes back"};
    case 94:
        return (struct hd_xid_meaning){
            true, false,
            "memory error that could not be corrected, of one program; replace the GPU if it comes "
            "back"};
    case 63:
        return (struct hd_xid_meaning){
            true, false, "a row of memory was remapped; reset the GPU when nothing runs on it"};
    case 64:
        return (struct hd_xid_meaning){true, true,
                                       "a row of memory could not be remapped; reset the GPU"};
    case 74:
        return (struct hd_xid_meaning){true, false,
                                       "NVLink error; check cables, bridges and switches"};
    case 79:
        return (struct hd_xid_meaning){true, true,
                                       "it fell off the bus; check power and seat, reboot"};
    case 119:
    case 120:
        return (struct hd_xid_meaning){true, true,
                                       "its GSP does not answer; reset the GPU or reboot"};
    default:
        return (struct hd_xid_meaning){true, false, "see NVIDIA's list of Xid errors"};
    }
}
