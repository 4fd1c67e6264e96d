/* certificate: what a listener with TLS shows, replaced while it serves. Only for lib/http.
 *
 * GnuTLS asks for the certificate in each handshake, so that a renewed one is shown to the next
 * caller, and no connection ends for it.
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
    struct hd_text chain, key; /* PEM */
};

enum hd_status hd_http_certificate_init(struct hd_http_certificate *certificate);
void hd_http_certificate_done(struct hd_http_certificate *certificate);

/* Reads both files. HD_INVALID: not PEM, or the key is another's; what was shown before stays. */
enum hd_status hd_http_certificate_read(struct hd_http_certificate *certificate,
                                        const char *cert_path, const char *key_path);

/* Copies for one handshake, which frees them. 0, or -1: the handshake fails. */
int hd_http_certificate_give(struct hd_http_certificate *certificate, gnutls_pcert_st **ret_certs,
                             unsigned *ret_count, gnutls_privkey_t *ret_key);

#endif
