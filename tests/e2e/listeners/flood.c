/* flood: a client without a token that costs a listener as much as it can. For this project's own
 * tests, on loopback: it refuses any other address, and ends after --seconds.
 *
 *   flood KIND PORT [--seconds S] [--connections N] [--from A,B..] [--tls] [--kib-per-s K]
 *
 * N connections (8) are kept open, from the addresses in turn (127.0.0.1); one that the listener
 * closes is opened anew at once. Each sends what KIND says as fast as it is taken, at most K KiB/s
 * of all connections. Prints in the end: KIND connections=OPENED closed=N bytes=N.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gnutls/gnutls.h>

#include "base/clock.h"

enum {
    BLOCK_BYTES = 64 * 1024,
    CONNECTIONS_MAX = 4096,
    ADDRESSES_MAX = 16,
    FRAME_HEAD = 9,
    DATA = 0,
    HEADERS = 1,
    RST_STREAM = 3,
    SETTINGS = 4,
    PING = 6,
    CONTINUATION = 9,
    END_STREAM = 1,
    END_HEADERS = 4,
};

struct block {
    unsigned char bytes[BLOCK_BYTES];
    size_t count, sent;
};

struct flood {
    int fd; /* -1: none */
    bool connected, shaken;
    gnutls_session_t tls;
    uint32_t stream; /* of HTTP/2, the next one */
    long blocks;
    struct block block;
    int64_t next_ms; /* of slow kinds: the next byte */
};

struct kind {
    const char *name;
    void (*fill)(struct flood *f); /* the next block; NULL: nothing is ever sent */
    bool slow;                     /* a byte each 5 ms */
};

static const struct kind *kind;
static struct sockaddr_in to = {.sin_family = AF_INET};
static struct in_addr from[ADDRESSES_MAX];
static size_t from_count, opened, closed;
static uint64_t sent_bytes;
static bool tls;
static gnutls_certificate_credentials_t credentials;

/* ---- HTTP/2 ---- */

static void put(struct flood *f, const void *bytes, size_t count)
{
    if (f->block.count + count > BLOCK_BYTES)
        abort();
    memcpy(f->block.bytes + f->block.count, bytes, count);
    f->block.count += count;
}

static void put_frame(struct flood *f, int type, int flags, uint32_t stream, const void *bytes,
                      size_t count)
{
    const unsigned char head[FRAME_HEAD] = {
        (unsigned char)(count >> 16),  (unsigned char)(count >> 8),  (unsigned char)count,
        (unsigned char)type,           (unsigned char)flags,         (unsigned char)(stream >> 24),
        (unsigned char)(stream >> 16), (unsigned char)(stream >> 8), (unsigned char)stream};

    put(f, head, sizeof head);
    put(f, bytes, count);
}

static void put_preface(struct flood *f)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    if (f->blocks)
        return;
    put(f, preface, sizeof preface - 1);
    put_frame(f, SETTINGS, 0, 0, "", 0);
    f->stream = 1;
}

/* HPACK of a call of /heddle.v1.Control/ListJobs without a token. */
static const unsigned char call_head[] = "\x83\x86\x04\x1b/heddle.v1.Control/ListJobs"
                                         "\x01\x01x"
                                         "\x0f\x10\x10"
                                         "application/grpc"
                                         "\x00\x02te\x08trailers";

static void put_call(struct flood *f, int flags)
{
    put_frame(f, HEADERS, flags, f->stream, call_head, sizeof call_head - 1);
}

/* Fills the rest of the block with CONTINUATION frames of this payload. */
static void put_continuations(struct flood *f, const void *bytes, size_t count)
{
    while (f->block.count + FRAME_HEAD + count <= BLOCK_BYTES)
        put_frame(f, CONTINUATION, 0, 1, bytes, count);
}

static void fill_preface(struct flood *f)
{
    put_preface(f);
}

/* The length of a header's name, which goes on without an end: 0x7f, then digits of value 0. */
static void fill_padded(struct flood *f)
{
    unsigned char zeros[8192];
    static const unsigned char begin[] = {0x00, 0x7f};

    memset(zeros, 0x80, sizeof zeros);
    put_preface(f);
    if (!f->blocks)
        put_frame(f, HEADERS, 0, 1, begin, sizeof begin);
    put_continuations(f, zeros, sizeof zeros);
}

/* Sends padded frames of a few bytes. */
static void fill_padded_thin(struct flood *f)
{
    static const unsigned char begin[] = {0x00, 0x7f}, zeros[4] = {0x80, 0x80, 0x80, 0x80};

    put_preface(f);
    if (!f->blocks)
        put_frame(f, HEADERS, 0, 1, begin, sizeof begin);
    put_continuations(f, zeros, sizeof zeros);
}

/* A small header in each frame, and no last one. */
static void fill_continuation(struct flood *f)
{
    static const unsigned char header[] = {0x00, 1, 'a', 1, '1'};

    put_preface(f);
    if (!f->blocks)
        put_call(f, 0);
    put_continuations(f, header, sizeof header);
}

/* Headers of one byte: an entry of the static table. */
static void fill_indexed(struct flood *f)
{
    unsigned char entries[8192];

    memset(entries, 0x80 | 17, sizeof entries); /* accept-language, with no value */
    put_preface(f);
    if (!f->blocks)
        put_call(f, 0);
    put_continuations(f, entries, sizeof entries);
}

/* Calls without a token, which are refused. */
static void fill_calls(struct flood *f)
{
    put_preface(f);
    for (int i = 0; i < 400; i++, f->stream += 2)
        put_call(f, END_HEADERS | END_STREAM);
}

/* Calls whose messages never come. */
static void fill_streams(struct flood *f)
{
    put_preface(f);
    for (int i = 0; i < 400; i++, f->stream += 2)
        put_call(f, END_HEADERS);
}

static void fill_resets(struct flood *f)
{
    static const unsigned char cancel[4] = {[3] = 8};

    put_preface(f);
    for (int i = 0; i < 400; i++, f->stream += 2) {
        put_call(f, END_HEADERS);
        put_frame(f, RST_STREAM, 0, f->stream, cancel, sizeof cancel);
    }
}

static void fill_pings(struct flood *f)
{
    put_preface(f);
    for (int i = 0; i < 3000; i++)
        put_frame(f, PING, 0, 0, "12345678", 8);
}

static void fill_settings(struct flood *f)
{
    static const unsigned char window[6] = {[1] = 4, [3] = 1}; /* the first window: 65,536 */

    put_preface(f);
    for (int i = 0; i < 3000; i++)
        put_frame(f, SETTINGS, 0, 0, window, sizeof window);
}

static void fill_data(struct flood *f)
{
    static const unsigned char zeros[8192];

    put_preface(f);
    if (!f->blocks)
        put_call(f, END_HEADERS);
    for (int i = 0; i < 7; i++)
        put_frame(f, DATA, 0, 1, zeros, sizeof zeros);
}

static void fill_noise(struct flood *f)
{
    for (size_t i = 0; i < BLOCK_BYTES; i++)
        f->block.bytes[i] = (unsigned char)rand();
    f->block.count = BLOCK_BYTES;
}

/* The first record of a TLS handshake says that 16 KiB come; they do not. */
static void fill_half_hello(struct flood *f)
{
    static const unsigned char record[] = {22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3};

    if (!f->blocks)
        put(f, record, sizeof record);
}

/* ---- HTTP/1.1 ---- */

static void fill_http_slow(struct flood *f)
{
    static const char head[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ";

    if (!f->blocks)
        put(f, head, sizeof head - 1);
    put(f, "x", 1);
}

static void fill_http_head(struct flood *f)
{
    static const char head[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ";

    if (!f->blocks)
        put(f, head, sizeof head - 1);
    for (int i = 0; i < 1000; i++)
        put(f, "x: y\r\n", 6);
}

static void fill_http_body(struct flood *f)
{
    static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n";

    if (!f->blocks)
        put(f, head, sizeof head - 1);
    for (int i = 0; i < 8000; i++)
        put(f, "[", 1);
}

static const struct kind kinds[] = {
    {"silent", NULL, false},
    {"preface", fill_preface, false},
    {"padded", fill_padded, false},
    {"padded-thin", fill_padded_thin, false},
    {"padded-slow", fill_padded_thin, true},
    {"continuation", fill_continuation, false},
    {"continuation-slow", fill_continuation, true},
    {"indexed", fill_indexed, false},
    {"calls", fill_calls, false},
    {"streams", fill_streams, false},
    {"resets", fill_resets, false},
    {"pings", fill_pings, false},
    {"settings", fill_settings, false},
    {"data", fill_data, false},
    {"noise", fill_noise, false},
    {"half-hello", fill_half_hello, false},
    {"http-slow", fill_http_slow, true},
    {"http-head", fill_http_head, false},
    {"http-body", fill_http_body, false},
};

/* ---- connections ---- */

static void open_one(struct flood *f)
{
    struct sockaddr_in own = {.sin_family = AF_INET};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return;
    own.sin_addr = from[opened % from_count];
    if (bind(fd, (const struct sockaddr *)&own, sizeof own) < 0 ||
        (connect(fd, (const struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)) {
        (void)close(fd);
        return;
    }
    memset(f, 0, offsetof(struct flood, block));
    f->block.count = f->block.sent = 0;
    f->next_ms = 0;
    f->fd = fd;
    opened++;
    if (!tls || !kind->fill || kind->fill == fill_half_hello)
        return;
    (void)gnutls_init(&f->tls, GNUTLS_CLIENT | GNUTLS_NONBLOCK);
    (void)gnutls_set_default_priority(f->tls);
    (void)gnutls_credentials_set(f->tls, GNUTLS_CRD_CERTIFICATE, credentials);
    (void)gnutls_alpn_set_protocols(f->tls, &(gnutls_datum_t){(unsigned char *)"h2", 2}, 1, 0);
    gnutls_transport_set_int(f->tls, fd);
}

static void close_one(struct flood *f)
{
    if (f->tls)
        gnutls_deinit(f->tls);
    f->tls = NULL;
    (void)close(f->fd);
    f->fd = -1;
    closed++;
}

/* Bytes written; 0: not now; below 0: the connection has ended. */
static ssize_t write_some(struct flood *f, const void *bytes, size_t count)
{
    ssize_t n;

    if (f->tls) {
        n = gnutls_record_send(f->tls, bytes, count);
        return n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED ? 0 : n;
    }
    n = send(f->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 && errno == EAGAIN ? 0 : n;
}

/* False: it has ended. What the listener sends is thrown away. */
static bool read_away(struct flood *f)
{
    char bytes[4096];
    ssize_t n;

    do
        n = recv(f->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    while (n > 0);
    return n < 0 && errno == EAGAIN;
}

/* False: it has ended. */
static bool step(struct flood *f, int64_t now_ms, uint64_t *allowed)
{
    const bool shaking = f->tls && !f->shaken;
    size_t count;
    ssize_t n;

    if (shaking) {
        const int code = gnutls_handshake(f->tls);

        if (code == GNUTLS_E_AGAIN || code == GNUTLS_E_INTERRUPTED)
            return true;
        f->shaken = code == GNUTLS_E_SUCCESS;
        return f->shaken;
    }
    if (!read_away(f))
        return false;
    if (!kind->fill || now_ms < f->next_ms)
        return true;
    if (f->block.sent == f->block.count) {
        f->block.count = f->block.sent = 0;
        kind->fill(f);
        f->blocks++;
        if (!f->block.count)
            return true;
    }
    count = f->block.count - f->block.sent;
    if (kind->slow) {
        count = 1;
        f->next_ms = now_ms + 5;
    }
    if (count > *allowed)
        count = *allowed;
    if (!count)
        return true;
    n = write_some(f, f->block.bytes + f->block.sent, count);
    if (n < 0)
        return false;
    f->block.sent += (size_t)n;
    sent_bytes += (uint64_t)n;
    *allowed -= (uint64_t)n;
    return true;
}

static void run(struct flood **floods, struct pollfd *polls, size_t count, int64_t end_ms,
                uint64_t bytes_per_s)
{
    const int64_t begin_ms = hd_clock_now_ms();
    int64_t now_ms;

    while ((now_ms = hd_clock_now_ms()) < end_ms) {
        const uint64_t due = bytes_per_s * (uint64_t)(now_ms - begin_ms + 1) / 1000;
        uint64_t allowed = !bytes_per_s ? UINT64_MAX : due > sent_bytes ? due - sent_bytes : 0;

        for (size_t i = 0; i < count; i++) {
            struct flood *f = floods[i];

            if (f->fd < 0)
                open_one(f);
            polls[i] = (struct pollfd){.fd = f->fd, .events = POLLIN};
            if (f->fd >= 0 &&
                (!f->connected || (f->block.sent < f->block.count && allowed && !kind->slow)))
                polls[i].events |= POLLOUT;
        }
        (void)poll(polls, count, kind->slow || bytes_per_s ? 2 : 20);
        for (size_t i = 0; i < count; i++) {
            struct flood *f = floods[i];

            if (f->fd < 0 || (!polls[i].revents && !f->connected))
                continue;
            f->connected = true;
            if (!step(f, now_ms, &allowed))
                close_one(f);
        }
    }
}

/* ---- arguments ---- */

static void read_addresses(char *list)
{
    char *rest = NULL;

    from_count = 0;
    for (char *a = strtok_r(list, ",", &rest); a && from_count < ADDRESSES_MAX;
         a = strtok_r(NULL, ",", &rest))
        if (inet_pton(AF_INET, a, &from[from_count]) == 1 &&
            ntohl(from[from_count].s_addr) >> 24 == 127)
            from_count++;
}

int main(int argc, char **argv)
{
    const struct rlimit files = {CONNECTIONS_MAX + 64, CONNECTIONS_MAX + 64};
    double seconds = 2;
    size_t count = 8;
    uint64_t kib_per_s = 0;
    struct flood **floods;
    struct pollfd *polls;

    (void)signal(SIGPIPE, SIG_IGN);
    from[from_count++].s_addr = to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; argc > 2 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(argv[1], kinds[i].name) == 0)
            kind = &kinds[i];
    if (!kind) {
        (void)fprintf(stderr, "usage: flood KIND PORT [--seconds S] [--connections N] [--from A,B] "
                              "[--tls] [--kib-per-s K]\n");
        return 2;
    }
    to.sin_port = htons((uint16_t)atoi(argv[2]));
    for (int i = 3; i < argc; i++) {
        const bool has = i + 1 < argc;

        if (strcmp(argv[i], "--tls") == 0)
            tls = true;
        else if (has && strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[++i]);
        else if (has && strcmp(argv[i], "--connections") == 0)
            count = (size_t)atoi(argv[++i]);
        else if (has && strcmp(argv[i], "--from") == 0)
            read_addresses(argv[++i]);
        else if (has && strcmp(argv[i], "--kib-per-s") == 0)
            kib_per_s = (uint64_t)atoi(argv[++i]);
    }
    if (!from_count || count < 1 || count > CONNECTIONS_MAX || seconds > 120)
        return 2;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    (void)gnutls_certificate_allocate_credentials(&credentials);
    floods = calloc(count, sizeof(struct flood *));
    polls = calloc(count, sizeof *polls);
    for (size_t i = 0; floods && i < count; i++) {
        floods[i] = calloc(1, sizeof **floods);
        if (!floods[i])
            return 1;
        floods[i]->fd = -1;
    }
    if (!floods || !polls)
        return 1;
    run(floods, polls, count, hd_clock_now_ms() + (int64_t)(seconds * 1e3), kib_per_s * 1024);
    (void)printf("%s connections=%zu closed=%zu bytes=%llu\n", kind->name, opened, closed,
                 (unsigned long long)sent_bytes);
    return 0;
}
