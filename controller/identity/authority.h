/* authority: the cluster's certificate authority in the controller's state directory.
 *
 *     STATE_DIR/pki/ca.pem       its certificate; not secret
 *     STATE_DIR/pki/ca.key       its private key
 *     STATE_DIR/pki/server.pem   the controller's certificate, that of the authority, and its key
 *     STATE_DIR/pki/hosts        the names in the controller's certificate, one per line
 *
 * heddle-controller init creates them once. The controller renews server.pem after two thirds of
 * its life; open connections continue.
 *
 * Used by: services, init.c, tests.   Uses: base, pki.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_IDENTITY_AUTHORITY_H
#define HD_CONTROLLER_IDENTITY_AUTHORITY_H

#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"
#include "pki/pki.h"

/* A host name that every controller's certificate has: nodes check it instead of an address, which
 * may change. */
#define HD_AUTHORITY_SERVER_NAME "heddle-controller"

enum { HD_AUTHORITY_HOSTS_MAX = 64 };

struct hd_authority {
    struct hd_pki_authority *pki;
    struct hd_text cert; /* ca.pem, as PEM text */
    unsigned char hash[HD_PKI_HASH_BYTES];
    char server_path[4096], ca_path[4096];
    int64_t from_ms, renew_ms; /* wall-clock times: begin of validity of server.pem, and when to
                                * renew it */
};

/* Creates a certificate authority and its folder STATE_DIR/pki, with mode 0700. HD_EXISTS: there is
 * one already. */
enum hd_status hd_authority_init(const char *state_dir, const char *const *hosts, size_t count,
                                 int64_t now_ms);
bool hd_authority_exists(const char *state_dir);
/* Reads the certificate authority from STATE_DIR/pki; renews server.pem if that is due, or if it is
 * not valid yet because it was made while the clock was ahead. */
enum hd_status hd_authority_open(const char *state_dir, int64_t now_ms,
                                 struct hd_authority **ret_authority);
void hd_authority_free(struct hd_authority *authority); /* NULL is fine */
/* Renews server.pem if due. Sets *ret_renewed to true if server.pem is new and must be read
 * again. */
enum hd_status hd_authority_renew(struct hd_authority *authority, int64_t now_ms,
                                  bool *ret_renewed);
/* Signs a client's certificate request for `name`; sets ret_hash to the hash of the certificate. */
enum hd_status hd_authority_sign(const struct hd_authority *authority, const char *request,
                                 const char *name, int64_t from_ms, int64_t to_ms,
                                 struct hd_text *ret_cert, unsigned char *ret_hash);

#endif
