#include "link/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

static void put_le(uint8_t *bytes, uint64_t value, int count)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *bytes, int count)
{
    uint64_t value = 0;

    for (int i = 0; i < count; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

/* Returns the checksum of a frame: FNV-1a over type and payload, which detects damage, not
 * forgery. */
static uint32_t check_of(uint16_t type, const uint8_t *payload, size_t count)
{
    uint32_t h = 2166136261u;

    h = (h ^ (type & 0xff)) * 16777619u;
    h = (h ^ (type >> 8)) * 16777619u;
    for (size_t i = 0; i < count; i++)
        h = (h ^ payload[i]) * 16777619u;
    return h;
}

void hd_pack_begin(struct hd_pack *pack, void *bytes, size_t size_bytes)
{
    *pack = (struct hd_pack){.bytes = bytes, .len_bytes = HD_FRAME_HEAD_BYTES};
    pack->size_bytes = size_bytes < HD_FRAME_BYTES_MAX ? size_bytes : HD_FRAME_BYTES_MAX;
    pack->failed = size_bytes < HD_FRAME_HEAD_BYTES;
}

static uint8_t *append_space(struct hd_pack *pack, size_t count)
{
    uint8_t *at = pack->bytes + pack->len_bytes;

    if (pack->failed || count > pack->size_bytes - pack->len_bytes) {
        pack->failed = true;
        return NULL;
    }
    pack->len_bytes += count;
    return at;
}

void hd_pack_int(struct hd_pack *pack, int64_t value)
{
    uint8_t *at = append_space(pack, 8);

    if (at)
        put_le(at, (uint64_t)value, 8);
}

void hd_pack_real(struct hd_pack *pack, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    hd_pack_int(pack, (int64_t)bits);
}

void hd_pack_bytes(struct hd_pack *pack, const void *bytes, size_t count)
{
    uint8_t *at = count <= HD_FRAME_PAYLOAD_MAX ? append_space(pack, 4 + count) : NULL;

    if (!at) {
        pack->failed = true;
        return;
    }
    put_le(at, count, 4);
    if (count)
        memcpy(at + 4, bytes, count);
}

void hd_pack_text(struct hd_pack *pack, const char *text)
{
    hd_pack_bytes(pack, text, strlen(text));
}

size_t hd_pack_end(struct hd_pack *pack, uint16_t type)
{
    const size_t payload_bytes = pack->len_bytes - HD_FRAME_HEAD_BYTES;

    if (pack->failed)
        return 0;
    put_le(pack->bytes, payload_bytes, 4);
    put_le(pack->bytes + 4, type, 2);
    put_le(pack->bytes + 6, 0, 2);
    put_le(pack->bytes + 8, check_of(type, pack->bytes + HD_FRAME_HEAD_BYTES, payload_bytes), 4);
    return pack->len_bytes;
}

void hd_unpack_begin(struct hd_unpack *unpack, const struct hd_frame *frame)
{
    *unpack = (struct hd_unpack){.bytes = frame->payload, .len_bytes = frame->payload_bytes};
}

static const uint8_t *consume(struct hd_unpack *unpack, size_t count)
{
    const uint8_t *at = unpack->bytes + unpack->at_bytes;

    if (unpack->failed || count > unpack->len_bytes - unpack->at_bytes) {
        unpack->failed = true;
        return NULL;
    }
    unpack->at_bytes += count;
    return at;
}

int64_t hd_unpack_int(struct hd_unpack *unpack)
{
    const uint8_t *at = consume(unpack, 8);

    return at ? (int64_t)get_le(at, 8) : 0;
}

double hd_unpack_real(struct hd_unpack *unpack)
{
    const int64_t bits = hd_unpack_int(unpack);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

const uint8_t *hd_unpack_bytes(struct hd_unpack *unpack, size_t max, size_t *ret_count)
{
    const uint8_t *at = consume(unpack, 4);
    const size_t count = at ? (size_t)get_le(at, 4) : 0;

    *ret_count = 0;
    if (count > max)
        unpack->failed = true;
    at = consume(unpack, count);
    if (at)
        *ret_count = count;
    return at;
}

void hd_unpack_text(struct hd_unpack *unpack, char *ret_text, size_t size_bytes)
{
    size_t count;
    const uint8_t *at = hd_unpack_bytes(unpack, size_bytes - 1, &count);

    ret_text[0] = '\0';
    if (at && count && memchr(at, '\0', count))
        unpack->failed = true;
    if (!at || unpack->failed)
        return;
    memcpy(ret_text, at, count);
    ret_text[count] = '\0';
}

enum hd_status hd_unpack_end(const struct hd_unpack *unpack)
{
    if (unpack->failed)
        return hd_err(HD_CORRUPT, "a message ends before its last field");
    if (unpack->at_bytes != unpack->len_bytes)
        return hd_err(HD_CORRUPT, "a message has %zu bytes after its last field",
                      unpack->len_bytes - unpack->at_bytes);
    return HD_OK;
}

enum hd_status hd_frame_decode(const uint8_t *bytes, size_t count, struct hd_frame *ret_frame,
                               size_t *ret_size)
{
    size_t payload_bytes;
    uint16_t type;

    if (count >= 4 && get_le(bytes, 4) > HD_FRAME_PAYLOAD_MAX)
        return hd_err(HD_CORRUPT, "a frame claims %llu bytes, the limit is %d",
                      (unsigned long long)get_le(bytes, 4), HD_FRAME_PAYLOAD_MAX);
    if (count < HD_FRAME_HEAD_BYTES)
        return hd_err(HD_UNAVAILABLE, "the head of a frame is incomplete");
    payload_bytes = (size_t)get_le(bytes, 4);
    type = (uint16_t)get_le(bytes + 4, 2);
    if (get_le(bytes + 6, 2) != 0)
        return hd_err(HD_CORRUPT, "a frame's reserved bytes are not zero");
    if (count - HD_FRAME_HEAD_BYTES < payload_bytes)
        return hd_err(HD_UNAVAILABLE, "the payload of a frame is incomplete");
    if (get_le(bytes + 8, 4) != check_of(type, bytes + HD_FRAME_HEAD_BYTES, payload_bytes))
        return hd_err(HD_CORRUPT, "the checksum of a frame does not match its bytes");
    *ret_frame = (struct hd_frame){type, bytes + HD_FRAME_HEAD_BYTES, payload_bytes};
    *ret_size = HD_FRAME_HEAD_BYTES + payload_bytes;
    return HD_OK;
}

/* Waits until poll reports `events` on fd. HD_TIMEOUT: the deadline passed before that. */
static enum hd_status wait_for(int fd, short events, int64_t deadline_ms)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int64_t left = deadline_ms - hd_clock_now_ms();
        int n;

        if (left < 0)
            left = 0;
        n = poll(&p, 1, (int)left);
        if (n > 0)
            return HD_OK;
        if (n < 0 && errno != EINTR)
            return hd_err(HD_IO, "cannot wait on a local socket: %s", strerror(errno));
        if (n == 0)
            return hd_err(HD_TIMEOUT, "the other end of a local socket did not respond in time");
    }
}

enum hd_status hd_frame_send(int fd, const void *frame, size_t frame_bytes, int timeout_ms)
{
    const int64_t deadline_ms = hd_clock_now_ms() + timeout_ms;
    enum hd_status st;

    for (;;) {
        if (send(fd, frame, frame_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return HD_OK;
        if (errno == EINTR)
            continue;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return hd_err(HD_ABORTED, "the other end of a local socket is gone");
        if (errno != EAGAIN && errno != ENOBUFS)
            return hd_err(HD_IO, "cannot send on a local socket: %s", strerror(errno));
        if (timeout_ms == 0)
            return hd_err(HD_UNAVAILABLE, "the buffer of a local socket is full");
        st = wait_for(fd, POLLOUT, deadline_ms);
        if (st)
            return st;
    }
}

enum hd_status hd_frame_receive(int fd, uint8_t *bytes, int timeout_ms, struct hd_frame *ret_frame)
{
    const int64_t deadline_ms = hd_clock_now_ms() + timeout_ms;
    enum hd_status st;
    size_t size;
    ssize_t n;

    for (;;) {
        n = recv(fd, bytes, HD_FRAME_BYTES_MAX, MSG_DONTWAIT | MSG_TRUNC);
        if (n >= 0)
            break;
        if (errno == EINTR)
            continue;
        if (errno == ECONNRESET || errno == ENOTCONN)
            return hd_err(HD_ABORTED, "the other end of a local socket is gone");
        if (errno != EAGAIN)
            return hd_err(HD_IO, "cannot receive on a local socket: %s", strerror(errno));
        if (timeout_ms == 0)
            return hd_err(HD_UNAVAILABLE, "the local socket has no message");
        st = wait_for(fd, POLLIN, deadline_ms);
        if (st)
            return st;
    }
    if (n == 0)
        return hd_err(HD_ABORTED, "the other end closed the local socket");
    if (n > HD_FRAME_BYTES_MAX)
        return hd_err(HD_CORRUPT, "a packet of %zd bytes is over the limit of %d", n,
                      HD_FRAME_BYTES_MAX);
    st = hd_frame_decode(bytes, (size_t)n, ret_frame, &size);
    if (st == HD_UNAVAILABLE || (!st && size != (size_t)n))
        return hd_err(HD_CORRUPT, "a packet of %zd bytes is not one whole frame", n);
    return st;
}

/* Returns the address of dir/name, valid while the caller keeps *ret_dir_fd open. */
static enum hd_status address_of(const char *dir, const char *name, struct sockaddr_un *ret_address,
                                 int *ret_dir_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int n;

    if (fd < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open the directory %s: %s",
                      dir, strerror(errno));
    n = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", fd, name);
    if (n >= (int)sizeof address.sun_path) {
        (void)close(fd);
        return hd_err(HD_INVALID, "the socket name %s is too long", name);
    }
    *ret_address = address;
    *ret_dir_fd = fd;
    return HD_OK;
}

static enum hd_status new_socket(int *ret_fd)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return hd_err(HD_IO, "cannot create a local socket: %s", strerror(errno));
    *ret_fd = fd;
    return HD_OK;
}

enum hd_status hd_frame_listen(const char *dir, const char *name, uid_t other, int *ret_fd)
{
    struct sockaddr_un address;
    int dir_fd = -1, fd = -1;
    enum hd_status st = address_of(dir, name, &address, &dir_fd);

    if (st)
        return st;
    st = new_socket(&fd);
    if (!st && unlink(address.sun_path) < 0 && errno != ENOENT)
        st = hd_err(HD_IO, "cannot remove the old socket %s/%s: %s", dir, name, strerror(errno));
    /* fchmod before bind sets the mode of the socket file, so no other user can ever connect */
    if (!st && fchmod(fd, other == (uid_t)-1 ? 0600 : 0660) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot protect the socket %s/%s: %s", dir, name,
                    strerror(errno));
    if (!st && bind(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot create the socket %s/%s: %s", dir, name,
                    strerror(errno));
    /* bind removed the umask's bits from that mode, and so from the mask of an access list */
    if (!st && other != (uid_t)-1 && chmod(address.sun_path, 0660) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot open the socket %s/%s to uid %u: %s", dir,
                    name, (unsigned)other, strerror(errno));
    if (!st && listen(fd, 8) < 0)
        st = hd_err(HD_IO, "cannot listen on %s/%s: %s", dir, name, strerror(errno));

    (void)close(dir_fd);
    if (st && fd >= 0)
        (void)close(fd);
    if (!st)
        *ret_fd = fd;
    return st;
}

enum hd_status hd_frame_connect(const char *dir, const char *name, int *ret_fd)
{
    struct sockaddr_un address;
    int dir_fd = -1, fd = -1;
    enum hd_status st = address_of(dir, name, &address, &dir_fd);

    if (st)
        return st;
    st = new_socket(&fd);
    if (!st && connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        st = hd_err(HD_UNAVAILABLE, "cannot connect to %s/%s: %s", dir, name, strerror(errno));

    (void)close(dir_fd);
    if (st && fd >= 0)
        (void)close(fd);
    if (!st)
        *ret_fd = fd;
    return st;
}

enum hd_status hd_frame_accept(int listen_fd, uid_t other, int *ret_fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    int fd;

    do
        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED))
        return hd_err(HD_UNAVAILABLE, "no connection is waiting at the local socket");
    if (fd < 0)
        return hd_err(HD_IO, "cannot accept on a local socket: %s", strerror(errno));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
        (peer.uid != geteuid() && peer.uid != 0 && (other == (uid_t)-1 || peer.uid != other))) {
        (void)close(fd);
        return hd_err(HD_DENIED, "a process of another user tried to connect");
    }
    *ret_fd = fd;
    return HD_OK;
}
