#include "base/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Best effort: errors are ignored. */
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

void hd_notify_stopping(void)
{
    notify("STOPPING=1");
}
