/* Lines of NCCL's log at level INFO, subsystem INIT, of NCCL 2.18 to 2.28:
 *
 *   node-a:123:456 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
 *   node-a:123:456 [0] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct/direct
 *   node-a:123:456 [0] NCCL INFO Channel 02/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
 *   node-a:123:456 [0] NCCL WARN Call to ibv_reg_mr failed
 *
 * A connection has a line at either end, and each rank has a log of its own. */
#include "comm/nccl_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRANSPORTS_MAX = 8, NAME_MAX_BYTES = 32, LOG_MAX_BYTES = 4 << 20 };

int hd_comm_nccl_log_open(void)
{
    char path[32];
    int fd;

    if (getenv("NCCL_DEBUG") || getenv("NCCL_DEBUG_FILE"))
        return -1;
    fd = memfd_create("nccl-log", MFD_CLOEXEC);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd >= 0 && (setenv("NCCL_DEBUG", "INFO", 1) || setenv("NCCL_DEBUG_SUBSYS", "INIT", 0) ||
                    setenv("NCCL_DEBUG_FILE", path, 1))) {
        (void)unsetenv("NCCL_DEBUG");
        (void)close(fd);
        return -1;
    }
    return fd;
}

struct transport {
    char name[NAME_MAX_BYTES];
    int count;
};

/* Returns the length of a transport's name in "NET/IB/0/GDRDMA": without the numbers of adapters. */
static void read_name(const char *from, size_t length, char ret_name[NAME_MAX_BYTES])
{
    size_t used = 0;

    for (size_t i = 0; i < length;) {
        const char *slash = memchr(from + i, '/', length - i);
        const size_t part = slash ? (size_t)(slash - from) - i : length - i;
        const size_t digits = strspn(from + i, "0123456789");

        if (digits < part && used + part + 2 < NAME_MAX_BYTES) {
            if (used)
                ret_name[used++] = '/';
            memcpy(ret_name + used, from + i, part);
            used += part;
        }
        i += part + 1;
    }
    ret_name[used] = '\0';
}

static void count_line(struct transport list[TRANSPORTS_MAX], const char *via, size_t length)
{
    char name[NAME_MAX_BYTES];

    read_name(via, length, name);
    for (int i = 0; i < TRANSPORTS_MAX; i++) {
        if (!list[i].count)
            (void)snprintf(list[i].name, sizeof list[i].name, "%s", name);
        if (strcmp(list[i].name, name) == 0) {
            list[i].count++;
            return;
        }
    }
}

/* Adds the text of a warning, without host and process, as a sentence of its own. */
static void add_warning(struct hd_text *text, const char *warning, size_t length)
{
    hd_text_add(text, "%s%.*s", text->len_bytes ? "; " : "", (int)(length < 200 ? length : 200),
                warning);
}

void hd_comm_nccl_log_read(const char *log, struct hd_text *ret_transports,
                           struct hd_text *ret_warnings)
{
    static const char via[] = " via ", channel[] = "NCCL INFO Channel ", warn[] = "NCCL WARN ";
    struct transport list[TRANSPORTS_MAX] = {{"", 0}};

    for (const char *line = log; *line;) {
        const size_t length = strcspn(line, "\n");
        const char *found = memmem(line, length, channel, sizeof channel - 1);
        const char *name =
            found ? memmem(found, length - (size_t)(found - line), via, sizeof via - 1) : NULL;
        const char *warning = memmem(line, length, warn, sizeof warn - 1);

        if (name) {
            name += sizeof via - 1;
            count_line(list, name, strcspn(name, " \n"));
        }
        if (warning) {
            warning += sizeof warn - 1;
            add_warning(ret_warnings, warning, length - (size_t)(warning - line));
        }
        line += length + (line[length] == '\n');
    }
    for (int i = 0; i < TRANSPORTS_MAX && list[i].count; i++)
        hd_text_add(ret_transports, "%s%s %d", i ? ", " : "", list[i].name, list[i].count);
}

void hd_comm_nccl_log_take(int fd, struct hd_text *ret_transports, struct hd_text *ret_warnings)
{
    struct stat info;
    size_t used = 0;
    char *log;

    if (fd < 0 || fstat(fd, &info) < 0 || info.st_size <= 0)
        return;
    log = malloc(LOG_MAX_BYTES + 1);
    while (log && used < LOG_MAX_BYTES) {
        const ssize_t got = pread(fd, log + used, LOG_MAX_BYTES - used, (off_t)used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    if (log) {
        log[used] = '\0';
        hd_comm_nccl_log_read(log, ret_transports, ret_warnings);
    }
    free(log);
}
