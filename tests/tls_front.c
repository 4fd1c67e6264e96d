#include "tests/tls_front.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "base/clock.h"
#include "base/file.h"
#include "pki/pki.h"

struct front_connection {
    struct tls_front *front;
    int fd;
};

static void die(const char *what)
{
    perror(what);
    abort();
}

static void need(enum hd_status st)
{
    if (st)
        die(hd_err_message());
}

static int connect_behind(const struct tls_front *front)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)front->behind_port),
                                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    return fd;
}

/* Passes bytes both ways until a side ends. */
static void pass(SSL *ssl, int fd, int behind)
{
    struct pollfd ends[2] = {{.fd = fd, .events = POLLIN}, {.fd = behind, .events = POLLIN}};
    char bytes[16384];

    for (;;) {
        int n;

        if (!SSL_pending(ssl) && poll(ends, 2, -1) < 0)
            return;
        if (SSL_pending(ssl) || (ends[0].revents & (POLLIN | POLLHUP))) {
            n = SSL_read(ssl, bytes, sizeof bytes);
            if (n <= 0 || send(behind, bytes, (size_t)n, MSG_NOSIGNAL) != n)
                return;
        }
        if (ends[1].revents & (POLLIN | POLLHUP)) {
            n = (int)recv(behind, bytes, sizeof bytes, 0);
            if (n <= 0 || SSL_write(ssl, bytes, n) != n)
                return;
        }
    }
}

static void *run_connection(void *user)
{
    struct front_connection *c = user;
    SSL *ssl = SSL_new(c->front->context);

    if (!ssl || SSL_set_fd(ssl, c->fd) != 1)
        die("SSL_new");
    if (SSL_accept(ssl) == 1) {
        const int behind = connect_behind(c->front);

        pass(ssl, c->fd, behind);
        (void)SSL_shutdown(ssl);
        (void)close(behind);
    }
    SSL_free(ssl);
    (void)close(c->fd);
    (void)__atomic_sub_fetch(&c->front->connections, 1, __ATOMIC_RELEASE);
    free(c);
    return NULL;
}

static void *run_listener(void *user)
{
    struct tls_front *front = user;

    for (;;) {
        struct front_connection *c = malloc(sizeof *c);
        pthread_t thread;

        if (!c)
            die("malloc");
        *c = (struct front_connection){front, accept(front->listener, NULL, NULL)};
        if (c->fd < 0) {
            free(c);
            return NULL; /* the socket was shut down */
        }
        (void)__atomic_add_fetch(&front->connections, 1, __ATOMIC_RELAXED);
        if (pthread_create(&thread, NULL, run_connection, c) != 0)
            die("thread");
        (void)pthread_detach(thread);
    }
}

/* Makes an authority and a certificate of 127.0.0.1 that it signed. */
static void make_context(struct tls_front *front, const char *ca_file)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost"};
    const int64_t now_ms = hd_clock_wall_ms();
    const struct hd_pki_terms terms = {.name = "front",
                                       .use = HD_PKI_SERVER,
                                       .from_ms = now_ms,
                                       .to_ms = now_ms + 3600 * 1000,
                                       .hosts = hosts,
                                       .host_count = 2};
    struct hd_text ca = {0}, ca_key = {0}, request = {0}, key = {0}, cert = {0};
    struct hd_pki_authority *authority = NULL;
    BIO *cert_bio, *key_bio;
    X509 *x509;
    EVP_PKEY *pkey;

    need(hd_pki_make_authority("test", now_ms, &ca, &ca_key));
    need(hd_pki_authority_open(ca.data, ca_key.data, &authority));
    need(hd_pki_make_request("front", &request, &key));
    need(hd_pki_sign(authority, request.data, &terms, &cert));
    need(hd_file_write_atomic(ca_file, ca.data, ca.len_bytes, 0644));
    cert_bio = BIO_new_mem_buf(cert.data, -1);
    key_bio = BIO_new_mem_buf(key.data, -1);
    x509 = PEM_read_bio_X509(cert_bio, NULL, NULL, NULL);
    pkey = PEM_read_bio_PrivateKey(key_bio, NULL, NULL, NULL);
    front->context = SSL_CTX_new(TLS_server_method());
    if (!front->context || SSL_CTX_use_certificate(front->context, x509) != 1 ||
        SSL_CTX_use_PrivateKey(front->context, pkey) != 1)
        die("SSL_CTX");
    X509_free(x509);
    EVP_PKEY_free(pkey);
    BIO_free(cert_bio);
    BIO_free(key_bio);
    hd_pki_authority_free(authority);
    for (struct hd_text *t[] = {&ca, &ca_key, &request, &key, &cert, NULL}, **at = t; *at; at++)
        hd_text_free(*at);
}

void tls_front_start(struct tls_front *front, int behind_port, const char *ca_file)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;

    (void)signal(SIGPIPE, SIG_IGN); /* a caller that refuses the certificate closes */
    *front = (struct tls_front){.behind_port = behind_port};
    make_context(front, ca_file);
    front->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (front->listener < 0 ||
        bind(front->listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(front->listener, 64) < 0 ||
        getsockname(front->listener, (struct sockaddr *)&address, &size) < 0)
        die("socket");
    front->port = ntohs(address.sin_port);
    if (pthread_create(&front->thread, NULL, run_listener, front) != 0)
        die("thread");
}

void tls_front_stop(struct tls_front *front)
{
    (void)shutdown(front->listener, SHUT_RDWR);
    (void)pthread_join(front->thread, NULL);
    while (__atomic_load_n(&front->connections, __ATOMIC_ACQUIRE))
        (void)usleep(1000);
    (void)close(front->listener);
    SSL_CTX_free(front->context);
}
