/* certificate: the TLS certificate of a listener, replaceable while it serves. Only for lib/http.
 *
 * GnuTLS asks for the certificate in each handshake, so later connections get a renewed one, and no
 * open connection ends.
 *
 * Threads: hd_http_certificate_give on the listener's, the others on the loop's.
 */
#ifndef HD_HTTP_CERTIFICATE_H
#define HD_HTTP_CERTIFICATE_H

#include <gnutls/abstract.h>
#include <uv.h>

#include "base/status.h"
#include "base/text.h"

struct hd_http_certificate {
    uv_mutex_t lock;
    struct hd_text chain, key; /* certificate chain and its private key, PEM texts */
};

enum hd_status hd_http_certificate_init(struct hd_http_certificate *certificate);
void hd_http_certificate_done(struct hd_http_certificate *certificate);

/* Reads certificate chain and key from two PEM files. HD_INVALID: not PEM, or the key belongs to
 * another certificate. After a failure the previous certificate stays in use. */
enum hd_status hd_http_certificate_read(struct hd_http_certificate *certificate,
                                        const char *cert_path, const char *key_path);

/* Copies certificates and key for one TLS handshake, which frees them. Returns 0; -1: the handshake
 * fails. */
int hd_http_certificate_give(struct hd_http_certificate *certificate, gnutls_pcert_st **ret_certs,
                             unsigned *ret_count, gnutls_privkey_t *ret_key);

#endif
