/* Which authority a server shows. OpenSSL speaks TLS here, not gRPC: gRPC cannot connect to a
 * server whose authority it does not have. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "pki/pki.h"

/* HOST and PORT of "HOST:PORT" or "[HOST]:PORT". */
static enum hd_status split(const char *address, char ret_host[256], char ret_port[8])
{
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : 0;

    if (!length || length >= 256 || strlen(colon + 1) >= 8)
        return hd_err(HD_INVALID, "%s is not HOST:PORT", address);
    if (address[0] == '[' && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    (void)snprintf(ret_host, 256, "%.*s", (int)length, address);
    (void)snprintf(ret_port, 8, "%s", colon + 1);
    return HD_OK;
}

static int connect_one(const struct addrinfo *to, int64_t timeout_ms)
{
    const struct timeval wait = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    const int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait); /* connect waits so long */
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static enum hd_status connect_to(const char *address, int64_t timeout_ms, int *ret_fd)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    char host[256], port[8];
    enum hd_status st = split(address, host, port);
    int code, fd = -1;

    if (st)
        return st;
    code = getaddrinfo(host, port, &hints, &all);
    if (code)
        return hd_err(HD_UNAVAILABLE, "cannot find %s: %s", host, gai_strerror(code));
    for (const struct addrinfo *to = all; to && fd < 0; to = to->ai_next)
        fd = connect_one(to, timeout_ms);
    freeaddrinfo(all);
    if (fd < 0)
        return hd_err(errno == EINPROGRESS || errno == EAGAIN ? HD_TIMEOUT : HD_UNAVAILABLE,
                      "cannot connect to %s: %s", address, strerror(errno));
    *ret_fd = fd;
    return HD_OK;
}

/* The certificate with this hash, among those that the server has shown. */
static X509 *find(SSL *ssl, const unsigned char hash[HD_PKI_HASH_BYTES])
{
    STACK_OF(X509) *shown = SSL_get_peer_cert_chain(ssl);
    unsigned char each[EVP_MAX_MD_SIZE];
    unsigned int count;

    for (int i = 0; i < sk_X509_num(shown); i++) {
        X509 *cert = sk_X509_value(shown, i);

        if (X509_digest(cert, EVP_sha256(), each, &count) && count == HD_PKI_HASH_BYTES &&
            memcmp(each, hash, count) == 0)
            return cert;
    }
    return NULL;
}

static enum hd_status write_pem(X509 *cert, struct hd_text *ret_cert)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *bytes = NULL;
    long count = 0;

    if (bio && PEM_write_bio_X509(bio, cert))
        count = BIO_get_mem_data(bio, &bytes);
    if (count > 0)
        hd_text_add_bytes(ret_cert, bytes, (size_t)count);
    BIO_free(bio);
    return ret_cert->len_bytes && !ret_cert->failed
               ? HD_OK
               : hd_err(HD_NO_MEMORY, "no memory for a certificate");
}

static enum hd_status shake_hands(SSL *ssl, const char *address)
{
    static const unsigned char protocol[] = {2, 'h', '2'};
    unsigned long code;
    char text[160];

    (void)SSL_set_alpn_protos(ssl, protocol, sizeof protocol);
    if (SSL_connect(ssl) == 1)
        return HD_OK;
    code = ERR_get_error();
    ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return hd_err(HD_UNAVAILABLE, "%s does not speak TLS 1.3: %s", address,
                  code ? text : "it says nothing");
}

enum hd_status hd_pki_fetch_authority(const char *address,
                                      const unsigned char hash[HD_PKI_HASH_BYTES],
                                      int64_t timeout_ms, struct hd_text *ret_cert)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = NULL;
    X509 *cert;
    int fd = -1;
    enum hd_status st = connect_to(address, timeout_ms, &fd);

    if (!st && (!context || !SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) ||
                !(ssl = SSL_new(context)) || !SSL_set_fd(ssl, fd)))
        st = hd_err(HD_NO_MEMORY, "no memory for a TLS connection");
    if (!st)
        st = shake_hands(ssl, address);
    if (!st) {
        cert = find(ssl, hash);
        st = cert ? write_pem(cert, ret_cert)
                  : hd_err(HD_DENIED,
                           "%s is not the controller of the invitation: it shows no certificate "
                           "with the hash that the invitation has; make a new invitation on the "
                           "right controller, or look who answers at that address",
                           address);
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
    if (fd >= 0)
        (void)close(fd);
    return st;
}
