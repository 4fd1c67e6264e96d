/* fetch: reads a server's certificates, and explains what is wrong with them. By OpenSSL, because
 * gRPC cannot connect to a server whose authority it does not have, and does not report why it
 * refuses a certificate. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include "base/clock.h"
#include "pki/pki.h"

/* Splits "HOST:PORT" or "[HOST]:PORT". */
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
    /* SO_SNDTIMEO limits the time of connect, too. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
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

/* Returns the certificate with this hash among those that the server presented; NULL: none. */
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

struct talk {
    SSL_CTX *context;
    SSL *ssl;
    int fd;
};

static void end_talk(struct talk *t)
{
    SSL_free(t->ssl);
    SSL_CTX_free(t->context);
    if (t->fd >= 0)
        (void)close(t->fd);
}

/* Connects to a server and completes the TLS handshake. The caller must end *ret even after a
 * failure. */
static enum hd_status begin_talk(const char *address, int64_t timeout_ms, struct talk *ret)
{
    enum hd_status st;

    *ret = (struct talk){.context = SSL_CTX_new(TLS_client_method()), .fd = -1};
    st = connect_to(address, timeout_ms, &ret->fd);
    if (!st && (!ret->context || !SSL_CTX_set_min_proto_version(ret->context, TLS1_3_VERSION) ||
                !(ret->ssl = SSL_new(ret->context)) || !SSL_set_fd(ret->ssl, ret->fd)))
        st = hd_err(HD_NO_MEMORY, "no memory for a TLS connection");
    return st ? st : shake_hands(ret->ssl, address);
}

enum hd_status hd_pki_fetch_authority(const char *address,
                                      const unsigned char hash[HD_PKI_HASH_BYTES],
                                      int64_t timeout_ms, struct hd_text *ret_cert)
{
    struct talk t;
    X509 *cert;
    enum hd_status st = begin_talk(address, timeout_ms, &t);

    if (!st) {
        cert = find(t.ssl, hash);
        st = cert ? write_pem(cert, ret_cert)
                  : hd_err(HD_DENIED,
                           "%s is not the controller of the invitation: it shows no certificate "
                           "with the hash that the invitation has; make a new invitation on the "
                           "right controller, or check which machine answers at that address",
                           address);
    }
    end_talk(&t);
    return st;
}

/* ---- what is wrong with a server's certificate ----------------------------------------------- */

static void write_time(const ASN1_TIME *time, char ret_text[HD_CLOCK_TEXT_MAX])
{
    struct tm parts;

    ret_text[0] = '\0';
    if (ASN1_TIME_to_tm(time, &parts))
        hd_clock_format_utc((int64_t)timegm(&parts) * 1000, ret_text);
}

static void write_name(const X509_NAME *name, char ret_text[128])
{
    if (X509_NAME_get_text_by_NID((X509_NAME *)(uintptr_t)name, NID_commonName, ret_text, 128) < 0)
        (void)snprintf(ret_text, 128, "?");
}

/* Checks that a server's certificate, whose authority and dates are right, is for the host in
 * `address`. */
static enum hd_status judge_name(X509 *leaf, const char *address)
{
    char host[256], port[8];

    if (split(address, host, port) || X509_check_ip_asc(leaf, host, 0) == 1 ||
        X509_check_host(leaf, host, 0, 0, NULL) == 1)
        return HD_OK;
    return hd_err(HD_UNAVAILABLE,
                  "the certificate of %s is not for the name %s; use a name that it was made for",
                  address, host);
}

static enum hd_status judge(X509_STORE_CTX *verified, X509 *leaf, const char *address,
                            const char *ca_path)
{
    const int error = X509_STORE_CTX_get_error(verified);
    X509 *bad = X509_STORE_CTX_get_current_cert(verified);
    const char *whose = bad && bad != leaf ? "the authority of the certificate" : "the certificate";
    char now[HD_CLOCK_TEXT_MAX], from[HD_CLOCK_TEXT_MAX], to[HD_CLOCK_TEXT_MAX], issuer[128];

    bad = bad ? bad : leaf;
    hd_clock_format_utc(hd_clock_wall_ms(), now);
    write_time(X509_get0_notBefore(bad), from);
    write_time(X509_get0_notAfter(bad), to);
    write_name(X509_get_issuer_name(leaf), issuer);
    switch (error) {
    case X509_V_OK:
        return judge_name(leaf, address);
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return hd_err(HD_UNAVAILABLE,
                      "%s of %s ended at %s, and this machine's clock says %s: correct the clock, "
                      "or have the controller renew it",
                      whose, address, to, now);
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return hd_err(HD_UNAVAILABLE,
                      "%s of %s is not valid before %s, and this machine's clock says %s: correct "
                      "the clock of this machine or of the controller's",
                      whose, address, from, now);
    default:
        return hd_err(
            HD_UNAVAILABLE,
            "the certificate of %s is signed by \"%s\", and not by the authority in %s "
            "(%s): give that of this controller, or check which machine answers at that address",
            address, issuer, ca_path, X509_verify_cert_error_string(error));
    }
}

enum hd_status hd_pki_explain_server(const char *address, const char *ca_path, int64_t timeout_ms)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *verified = X509_STORE_CTX_new();
    X509 *leaf = NULL;
    struct talk t;
    enum hd_status st = begin_talk(address, timeout_ms, &t);

    if (!st)
        leaf = SSL_get1_peer_certificate(t.ssl);
    if (!st && leaf && store && verified && X509_STORE_load_file(store, ca_path) &&
        X509_STORE_CTX_init(verified, store, leaf, SSL_get_peer_cert_chain(t.ssl))) {
        (void)X509_verify_cert(verified);
        st = judge(verified, leaf, address, ca_path);
    } else {
        st = HD_OK; /* the check was not possible, so no reason is known */
    }
    ERR_clear_error();
    X509_free(leaf);
    X509_STORE_CTX_free(verified);
    X509_STORE_free(store);
    end_talk(&t);
    return st;
}
