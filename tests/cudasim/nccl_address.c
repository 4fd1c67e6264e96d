#include "nccl_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128 };

static const uint64_t hash_basis = 14695981039346656037u;

uint64_t hd_address_hash(uint64_t h, const void *bytes, size_t size)
{
    const unsigned char *p = bytes;

    h = h ? h : hash_basis;
    for (size_t i = 0; i < size; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static uint64_t node_id(void)
{
    const char *id = getenv("NCCL_HOSTID");
    char text[512] = "";
    FILE *boot;

    if (id)
        return hd_address_hash(0, id, strlen(id));
    (void)gethostname(text, 255);
    boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot) {
        (void)!fgets(text + strlen(text), 64, boot);
        (void)fclose(boot);
    }
    return hd_address_hash(0, text, strlen(text));
}

static socklen_t local_address(uint64_t name, struct sockaddr_un *ret_address)
{
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)snprintf(ret_address->sun_path + 1, sizeof ret_address->sun_path - 1,
                                        "emulated-nccl-%016llx", (unsigned long long)name));
}

static socklen_t tcp_address(const struct hd_address *a, bool any_port,
                             struct sockaddr_storage *ret)
{
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret;
    struct sockaddr_in *four = (struct sockaddr_in *)ret;

    memset(ret, 0, sizeof *ret);
    ret->ss_family = a->family;
    if (a->family == AF_INET6) {
        memcpy(&six->sin6_addr, a->ip, 16);
        six->sin6_port = any_port ? 0 : a->port;
        return sizeof *six;
    }
    memcpy(&four->sin_addr, a->ip, 4);
    four->sin_port = any_port ? 0 : a->port;
    return sizeof *four;
}

/* The first address of the interface that NCCL_SOCKET_IFNAME names; only the form "=NAME". */
static bool find_interface(struct hd_address *a)
{
    const char *name = getenv("NCCL_SOCKET_IFNAME"), *family = getenv("NCCL_SOCKET_FAMILY");
    const int wanted = family && strcmp(family, "AF_INET6") == 0 ? AF_INET6 : AF_INET;
    struct ifaddrs *all = NULL;

    if (!name || name[0] != '=' || getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i && !a->family; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != wanted || strcmp(i->ifa_name, name + 1) != 0)
            continue;
        a->family = (uint16_t)wanted;
        if (wanted == AF_INET)
            memcpy(a->ip, &((const struct sockaddr_in *)i->ifa_addr)->sin_addr, 4);
        else
            memcpy(a->ip, &((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, 16);
    }
    freeifaddrs(all);
    return a->family;
}

static int listen_at(const void *address, socklen_t size, int family)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && bind(fd, address, size) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

bool hd_address_listen(struct hd_address *ret_self, int ret_listeners[HD_LISTENERS])
{
    struct hd_address self = {.node = node_id()};
    struct sockaddr_storage there;
    struct sockaddr_un here;
    socklen_t size;

    ret_listeners[1] = -1;
    if (getrandom(&self.local, sizeof self.local, 0) != (ssize_t)sizeof self.local)
        return false;
    size = local_address(self.local, &here);
    ret_listeners[0] = listen_at(&here, size, AF_UNIX);
    if (find_interface(&self)) {
        size = tcp_address(&self, true, &there);
        ret_listeners[1] = listen_at(&there, size, self.family);
        if (getsockname(ret_listeners[1], (struct sockaddr *)&there, &size) == 0)
            self.port = self.family == AF_INET6 ? ((struct sockaddr_in6 *)&there)->sin6_port
                                                : ((struct sockaddr_in *)&there)->sin_port;
    }
    *ret_self = self;
    return ret_listeners[0] >= 0;
}

static int connect_in_node(const struct hd_address *to)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un there;
    const socklen_t size = local_address(to->local, &there);

    if (fd < 0 || connect(fd, (struct sockaddr *)&there, size) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

int hd_address_connect(const struct hd_address *self, const struct hd_address *to)
{
    struct sockaddr_storage there, here;
    socklen_t size;
    int fd;

    if (to->node == self->node)
        return connect_in_node(to);
    if (!self->family || self->family != to->family)
        return -1;
    fd = socket(to->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size = tcp_address(self, true, &here);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&here, size) == 0) {
        size = tcp_address(to, false, &there);
        if (connect(fd, (struct sockaddr *)&there, size) == 0)
            return fd;
    }
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

void hd_address_text(const struct hd_address *a, char *text, size_t size)
{
    if (!a->family || !inet_ntop(a->family, a->ip, text, (socklen_t)size))
        (void)snprintf(text, size, "no address");
}
