/* pki: the cluster's certificate authority, its certificates, and secrets.
 *
 * An authority is a P-256 key and a self-signed certificate. It signs certificates for two uses:
 * SERVER (the controller, checked by its names) and CLIENT (nodes and users). The owner of a client
 * certificate is not read from the certificate: the controller stores the hash of each one that it
 * signed, with name, role and expiry (controller/identity). So a stolen key of the authority alone
 * creates no identity. (Exception: after a database was restored from a backup, certificates of its
 * nodes that were signed between backup and restore are accepted by their signature:
 * services/adopt.c.)
 *
 * Certificates, keys and requests are PEM texts. Errors of OpenSSL are in the message.
 *
 * Used by: identity, store, controller, agent, cli, tests.   Uses: base, OpenSSL (its headers are
 * included only here).   Threads: any; an authority belongs to one thread.
 */
#ifndef HD_PKI_PKI_H
#define HD_PKI_PKI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
    HD_PKI_HASH_BYTES = 32, /* SHA-256 */
    /* lower-case hexadecimal digits of a hash, and NUL */
    HD_PKI_HASH_TEXT_MAX = 2 * HD_PKI_HASH_BYTES + 1,
    HD_PKI_NAME_MAX = 64, /* bytes of a certificate's name */
    /* limit of the bytes of one PEM text received from others */
    HD_PKI_PEM_BYTES_MAX = 16 * 1024,
    HD_PKI_AUTHORITY_DAYS = 10 * 365,
    HD_PKI_CERTIFICATE_DAYS = 30, /* life of a certificate; renewed after two thirds */
    /* a certificate is valid this long before its from_ms, because clocks may be slow */
    HD_PKI_EARLY_MS = 5 * 60 * 1000,
};

/* ---- hashes and secrets (secret.c) ---- */

void hd_pki_hash(const void *bytes, size_t count, unsigned char ret_hash[HD_PKI_HASH_BYTES]);
void hd_pki_format_hash(const unsigned char hash[HD_PKI_HASH_BYTES],
                        char ret_text[HD_PKI_HASH_TEXT_MAX]);
bool hd_pki_parse_hash(const char *text, unsigned char ret_hash[HD_PKI_HASH_BYTES]);
/* Makes a secret of 256 random bits, as 64 hexadecimal digits: a token, or the secret of an
 * invitation. */
enum hd_status hd_pki_make_secret(char ret_text[HD_PKI_HASH_TEXT_MAX]);

/* ---- hashes of what comes in pieces (digest.c) ---- */

/* Computes the HMAC-SHA-256 of the bytes. ret_hash may be the key. */
void hd_pki_hmac(const void *key, size_t key_bytes, const void *bytes, size_t count,
                 unsigned char ret_hash[HD_PKI_HASH_BYTES]);

enum hd_pki_digest_kind {
    HD_PKI_SHA1, /* for the names that git gives to files, not for security */
    HD_PKI_SHA256,
    HD_PKI_MD5 /* for the ETags of object stores, not for security */
};
struct hd_pki_digest;
/* HD_UNSUPPORTED: OpenSSL's policy on this machine forbids the hash. */
enum hd_status hd_pki_digest_new(enum hd_pki_digest_kind kind, struct hd_pki_digest **ret_digest);
void hd_pki_digest_add(struct hd_pki_digest *digest, const void *bytes, size_t count);
/* Writes the hash as lower-case hexadecimal digits: 40 of SHA-1, 64 of SHA-256, 32 of MD5. Nothing
 * can be added afterwards. */
enum hd_status hd_pki_digest_end(struct hd_pki_digest *digest, char ret_text[HD_PKI_HASH_TEXT_MAX]);
void hd_pki_digest_free(struct hd_pki_digest *digest); /* NULL: does nothing */

/* ---- a chain of hashes (chain.c) ---- */

/* Computes the hash of a link of a hash chain: ret_hash = SHA-256(before, number, time_ms, each
 * text with its length). before: hash of the previous link, zeros for the first; ret_hash may be
 * `before`. A changed, removed or moved link changes all hashes after it. */
void hd_pki_chain(const unsigned char before[HD_PKI_HASH_BYTES], uint64_t number, int64_t time_ms,
                  const char *const *texts, size_t count,
                  unsigned char ret_hash[HD_PKI_HASH_BYTES]);

/* ---- certificates (authority.c) ---- */

struct hd_pki_authority;

/* Makes a new authority for this cluster, valid for HD_PKI_AUTHORITY_DAYS from now. */
enum hd_status hd_pki_make_authority(const char *cluster, int64_t now_ms, struct hd_text *ret_cert,
                                     struct hd_text *ret_key);
/* Opens an authority from its PEM texts. HD_INVALID: a text is malformed, or certificate and key do
 * not belong together. */
enum hd_status hd_pki_authority_open(const char *cert, const char *key,
                                     struct hd_pki_authority **ret_authority);
void hd_pki_authority_free(struct hd_pki_authority *authority); /* NULL: does nothing */

/* Makes a new P-256 key, and a signing request for `name` with that key. */
enum hd_status hd_pki_make_request(const char *name, struct hd_text *ret_request,
                                   struct hd_text *ret_key);

enum hd_pki_use { HD_PKI_SERVER, HD_PKI_CLIENT };

struct hd_pki_terms {
    const char *name; /* name in the certificate; must equal the request's name */
    enum hd_pki_use use;
    int64_t from_ms, to_ms;   /* validity, wall clock */
    const char *const *hosts; /* host names and numeric addresses; SERVER only */
    size_t host_count;
};

/* Signs a certificate request. HD_INVALID: the request is malformed, is not signed by its own key,
 * has a key that is not P-256, or has another name. Only name and key of the request get into the
 * certificate. */
enum hd_status hd_pki_sign(const struct hd_pki_authority *authority, const char *request,
                           const struct hd_pki_terms *terms, struct hd_text *ret_cert);

struct hd_pki_certificate {
    char name[HD_PKI_NAME_MAX + 1];
    /* validity, wall clock, ms; the certificate is valid from HD_PKI_EARLY_MS before from_ms */
    int64_t from_ms, to_ms;
    unsigned char hash[HD_PKI_HASH_BYTES]; /* SHA-256 of the certificate's DER form */
};

/* Reads the first certificate of a PEM text, which may also contain a key. HD_INVALID: it has none,
 * or the certificate's name is malformed. */
enum hd_status hd_pki_inspect(const char *cert, struct hd_pki_certificate *ret_certificate);

/* Checks the certificates of the PEM file `path` for expiry. HD_INVALID: one has expired or is not
 * valid yet; the message says which and when. HD_OK also for a file without a certificate, or an
 * unreadable one. */
enum hd_status hd_pki_check_dates(const char *path, int64_t now_ms);

/* Checks that the authority has signed the first certificate in the PEM text `cert`, for use by a
 * client. Does not check its dates. */
enum hd_status hd_pki_check_client(const struct hd_pki_authority *authority, const char *cert);

/* ---- invitations (invitation.c) ---- */

/* Contents of the line with which a node joins: heddle-invite/1/NAME/HOST:PORT/CAHASH/SECRET. */
struct hd_pki_invitation {
    char node[HD_PKI_NAME_MAX + 1]; /* name of the invited node, or pattern of names */
    char address[256];              /* HOST:PORT of the controller */
    unsigned char ca_hash[HD_PKI_HASH_BYTES];
    char secret[HD_PKI_HASH_TEXT_MAX];
};

/* Appends the invitation line, without a newline. */
void hd_pki_invitation_write(const struct hd_pki_invitation *invitation, struct hd_text *ret_line);
/* Parses an invitation line. HD_INVALID: the message says what is wrong; it never contains the
 * secret. */
enum hd_status hd_pki_invitation_read(const char *line, struct hd_pki_invitation *ret_invitation);
/* Returns whether the name matches [a-z0-9][-a-z0-9.]*, the form of nodes' names. */
bool hd_pki_is_node_name(const char *name);
/* Returns whether `name` is a pattern: a prefix of node names, which may be empty, followed by *,
 * such as "gpu-*". */
bool hd_pki_is_node_pattern(const char *name);
/* Returns whether `invited` is the node's name or a pattern that matches it. */
bool hd_pki_is_invited(const char *invited, const char *node);

/* ---- the authority of a server (fetch.c) ---- */

/* Connects to HOST:PORT by TLS 1.3 and copies the certificate with this hash from those that the
 * server presents. The server is not authenticated by this, so the caller must connect again with
 * that certificate as authority. HD_DENIED: the server presents no such certificate, so it is
 * another machine. HD_UNAVAILABLE, HD_TIMEOUT: no server answers. Blocks up to timeout_ms. */
enum hd_status hd_pki_fetch_authority(const char *address,
                                      const unsigned char hash[HD_PKI_HASH_BYTES],
                                      int64_t timeout_ms, struct hd_text *ret_cert);

/* Finds out why a client with the authority in ca_path refuses the certificate of HOST:PORT:
 * expired, not valid yet, of another authority, for another name. HD_UNAVAILABLE: the message says
 * the reason, whose certificate it is, and what to do. HD_OK: no reason was found. Blocks up to
 * timeout_ms.
 */
enum hd_status hd_pki_explain_server(const char *address, const char *ca_path, int64_t timeout_ms);

#endif
