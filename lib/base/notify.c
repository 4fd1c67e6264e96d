#include "base/notify.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

enum { TEXT_MAX = 512 };

/* Sends a message to systemd. Ignores errors. */
static void notify(const char *text)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = getenv("NOTIFY_SOCKET");
    const size_t n = name ? strlen(name) : 0;
    int fd;

    if (n < 2 || n >= sizeof address.sun_path || (name[0] != '/' && name[0] != '@'))
        return;
    memcpy(address.sun_path, name, n);
    if (name[0] == '@')
        address.sun_path[0] = '\0'; /* an abstract socket address */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)!sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&address,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    (void)close(fd);
}

void hd_notify_ready(void)
{
    notify("READY=1");
}

/* Reports that a reload has begun. From version 253 on, systemd uses the time to tell this reload
 * from an earlier one. */
void hd_notify_reloading(void)
{
    char text[TEXT_MAX];
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRId64,
                   (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    notify(text);
}

void hd_notify_stopping(void)
{
    notify("STOPPING=1");
}

void hd_notify_watchdog(void)
{
    notify("WATCHDOG=1");
}

int64_t hd_notify_watchdog_ms(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    int64_t value, meant;

    if (!getenv("NOTIFY_SOCKET") || !usec || hd_text_to_int64(usec, 1, INT64_MAX, &value))
        return 0;
    if (pid && (hd_text_to_int64(pid, 1, INT32_MAX, &meant) || meant != getpid()))
        return 0; /* WATCHDOG_PID names another process, so the watchdog is not for this one */
    return value / 1000 > 0 ? value / 1000 : 1;
}

void hd_notify_status(const char *text)
{
    char line[TEXT_MAX];

    (void)snprintf(line, sizeof line, "STATUS=%s", text);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    notify(line);
}
