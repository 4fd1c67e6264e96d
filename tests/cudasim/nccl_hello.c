#include "nccl_hello.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAGIC = 0x6e636831 };

/* Room for one descriptor beside the bytes. */
union control {
    struct cmsghdr header; /* aligns it */
    char bytes[CMSG_SPACE(sizeof(int))];
};

bool hd_hello_send(int fd, const struct hd_hello *hello, int memory_fd)
{
    struct hd_hello copy;
    struct iovec bytes = {.iov_base = &copy, .iov_len = sizeof copy};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    union control control;

    memcpy(&copy, hello, sizeof copy); /* with what is between its members */
    copy.magic = MAGIC;
    if (memory_fd >= 0) {
        memset(&control, 0, sizeof control);
        control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof memory_fd),
                                          .cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &memory_fd, sizeof memory_fd);
        message.msg_control = &control;
        message.msg_controllen = sizeof control.bytes;
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof copy;
}

void hd_hello_accept(int listener, struct hd_guest **list)
{
    int fd;

    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct hd_guest *guest = calloc(1, sizeof *guest);

        if (!guest)
            abort();
        guest->fd = fd;
        guest->memory_fd = -1;
        guest->next = *list;
        *list = guest;
    }
}

static void take_descriptor(struct hd_guest *guest, struct msghdr *message)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(message);

    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS ||
        c->cmsg_len != CMSG_LEN(sizeof guest->memory_fd))
        return;
    if (guest->memory_fd >= 0)
        (void)close(guest->memory_fd);
    memcpy(&guest->memory_fd, CMSG_DATA(c), sizeof guest->memory_fd);
}

enum hd_heard hd_hello_hear(struct hd_guest *guest)
{
    union control control;
    struct iovec rest = {.iov_base = (char *)&guest->hello + guest->got,
                         .iov_len = sizeof guest->hello - guest->got};
    struct msghdr message = {.msg_iov = &rest,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.bytes};
    const ssize_t n = recvmsg(guest->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return HD_HEARD_PART;
    if (n <= 0)
        return HD_HEARD_NONSENSE;
    take_descriptor(guest, &message);
    guest->got += (size_t)n;
    if (guest->got < sizeof guest->hello)
        return HD_HEARD_PART;
    return guest->hello.magic == MAGIC ? HD_HEARD_ALL : HD_HEARD_NONSENSE;
}

void hd_hello_free(struct hd_guest *guest)
{
    if (guest->fd >= 0)
        (void)close(guest->fd);
    if (guest->memory_fd >= 0)
        (void)close(guest->memory_fd);
    free(guest);
}
