/* Connections between processes of the emulated NCCL (nccl_link.h, nccl_ring.h): in a node messages
 * go through shared memory, in pieces if they are larger than a ring; and what a process had sent
 * before it ended arrives. Both ends are in this process, which makes their order certain. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nccl_address.h"
#include "nccl_link.h"
#include "nccl_ring.h"
#include "tests/program/test.h"

enum { ODD = 1009, LARGE = 3 * HD_RING_BYTES + 5 };

struct ends {
    struct hd_link a, b; /* a has made the memory */
};

static void connect_ends(struct ends *ends)
{
    const int memory_fd = hd_rings_make();
    int fds[2];

    assert_true(memory_fd >= 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    hd_link_init(&ends->a);
    hd_link_init(&ends->b);
    hd_link_set(&ends->a, fds[0], hd_rings_map(memory_fd, true));
    hd_link_set(&ends->b, fds[1], hd_rings_map(memory_fd, false));
    assert_non_null(ends->a.rings);
    assert_non_null(ends->b.rings);
    (void)close(memory_fd);
}

static char *numbers(size_t size, unsigned seed)
{
    char *bytes = malloc(size);

    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(seed = seed * 1664525u + 1013904223u, seed >> 24);
    return bytes;
}

static void send_numbers(struct hd_link *link, uint64_t number, size_t size)
{
    const struct hd_link_header header = {
        .type = HD_LINK_DATA, .number = number, .bytes = size, .kind = 7, .from = 2};
    char *bytes = numbers(size, (unsigned)number);

    hd_link_send(link, &header, bytes);
    free(bytes);
}

static void assert_is_next(struct hd_link *link, uint64_t number, size_t size)
{
    char *bytes = numbers(size, (unsigned)number);
    struct hd_link_header header;
    struct hd_wire_message *message = hd_link_take(link, &header);

    assert_non_null(message);
    assert_int_equal(header.type, HD_LINK_DATA);
    assert_int_equal(message->number, number);
    assert_int_equal(message->peer, 2);
    assert_int_equal(message->kind, 7);
    assert_int_equal(message->bytes, size);
    assert_memory_equal(message->data, bytes, size);
    free(message);
    free(bytes);
}

static bool has_byte(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) == 1;
}

/* A ring keeps HD_RING_BYTES: of 3 of them the sender puts one in, and waits. Bytes are taken in
 * pieces of an odd size, so that they lie over the ring's end. */
static void bytes_come_in_order_and_a_full_ring_is_waited_for(void **state)
{
    const int fd = hd_rings_make();
    struct hd_rings *a = hd_rings_map(fd, true), *b = hd_rings_map(fd, false);
    const size_t size = (size_t)3 * HD_RING_BYTES;
    char *bytes = numbers(size, 1), piece[ODD];
    size_t put = 0, taken = 0;
    bool wake = false;

    while (taken < size) {
        size_t n;

        put += hd_rings_put(a, bytes + put, size - put);
        assert_int_equal(put - taken, size - taken < HD_RING_BYTES ? size - taken : HD_RING_BYTES);
        wake = false;
        n = hd_rings_take(b, piece, ODD, &wake);
        assert_memory_equal(piece, bytes + taken, n);
        taken += n;
        if (put < size)
            assert_true(wake);
        wake = false;
        (void)hd_rings_take(b, piece, 0, &wake);
        assert_false(wake); /* once */
    }
    assert_int_equal(hd_rings_take(b, piece, ODD, &wake), 0);
    assert_int_equal(hd_rings_take(a, piece, ODD, &wake), 0); /* the other direction has its own */
    free(bytes);
    hd_rings_unmap(a);
    hd_rings_unmap(b);
    (void)close(fd);
}

static void other_memory_is_refused(void **state)
{
    char path[] = "/tmp/hdXXXXXX";
    const int fd = mkstemp(path);

    assert_true(fd >= 0);
    (void)unlink(path);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    assert_null(hd_rings_map(fd, false)); /* it is not sealed: its maker could take it away */
    assert_null(hd_rings_map(-1, false));
    (void)close(fd);
}

/* Only wakes go through the socket: the message is 3 rings large, so it comes in at least 4 pieces,
 * and each wakes. */
static void a_large_message_goes_through_memory(void **state)
{
    struct ends ends;
    struct hd_link_header header;
    int looks = 0;

    connect_ends(&ends);
    send_numbers(&ends.a, 3, LARGE);
    assert_false(hd_link_is_flushed(&ends.a));
    while (!hd_link_is_flushed(&ends.a)) {
        assert_true(has_byte(ends.b.fd)); /* there is something new */
        assert_null(hd_link_take(&ends.b, &header));
        assert_false(ends.b.ended);
        assert_true(has_byte(ends.a.fd)); /* there is room */
        hd_link_flush(&ends.a);
        looks++;
    }
    assert_int_equal(looks, 3);
    assert_is_next(&ends.b, 3, LARGE);
    assert_int_equal(ends.a.sent, LARGE + sizeof header);
    hd_link_close(&ends.a);
    hd_link_close(&ends.b);
}

static void what_was_sent_before_the_end_arrives(void **state)
{
    struct ends ends;
    struct hd_link_header header;

    connect_ends(&ends);
    send_numbers(&ends.b, 0, 1); /* not read: the socket's end is an error then */
    send_numbers(&ends.a, 4, ODD);
    send_numbers(&ends.a, 5, 0);
    send_numbers(&ends.a, 6, LARGE); /* in part */
    hd_link_close(&ends.a);
    send_numbers(&ends.b, 1, ODD); /* into nothing; it is no news of a's end */
    assert_is_next(&ends.b, 4, ODD);
    assert_is_next(&ends.b, 5, 0);
    assert_false(ends.b.ended);
    assert_null(hd_link_take(&ends.b, &header));
    assert_true(ends.b.ended);
    hd_link_close(&ends.b);
}

/* NCCL_SOCKET_IFNAME: "=lo" is that name, "lo" what begins so. */
static void an_interface_is_named_whole_or_by_its_beginning(void **state)
{
    static const char *const cases[][2] = {
        {"=lo", "127.0.0.1"}, {"lo", "127.0.0.1"}, {"=l", "no address"}, {"no-such", "no address"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_address self;
        int listeners[HD_LISTENERS];
        char text[64];

        assert_int_equal(setenv("NCCL_SOCKET_IFNAME", cases[i][0], 1), 0);
        assert_true(hd_address_listen(&self, listeners));
        hd_address_text(&self, text, sizeof text);
        assert_string_equal(text, cases[i][1]);
        assert_int_equal(listeners[1] >= 0, cases[i][1][0] == '1');
        for (int l = 0; l < HD_LISTENERS; l++)
            if (listeners[l] >= 0)
                (void)close(listeners[l]);
    }
    assert_int_equal(unsetenv("NCCL_SOCKET_IFNAME"), 0);
}

RUN_CASES()
