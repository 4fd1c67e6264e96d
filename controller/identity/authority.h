/* authority: the cluster's certificate authority in the controller's state directory.
 *
 *     STATE_DIR/pki/ca.pem       its certificate; people and nodes may have it
 *     STATE_DIR/pki/ca.key       its key
 *     STATE_DIR/pki/server.pem   the controller's certificate, that of the authority, and its key
 *     STATE_DIR/pki/hosts        the names for which the controller's certificate is, a line each
 *
 * heddle-controller init makes them once. The controller renews server.pem after two thirds of its
 * life; connections go on.
 *
 * Used by: services, init.c, tests.   Uses: base, pki.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_IDENTITY_AUTHORITY_H
#define HD_CONTROLLER_IDENTITY_AUTHORITY_H

#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"
#include "pki/pki.h"

/* A name that is in every controller's certificate: nodes check it in place of an address, which
 * may change. */
#define HD_AUTHORITY_SERVER_NAME "heddle-controller"

enum { HD_AUTHORITY_HOSTS_MAX = 64 };

struct hd_authority {
    struct hd_pki_authority *pki;
    struct hd_text cert; /* PEM */
    unsigned char hash[HD_PKI_HASH_BYTES];
    char server_path[4096], ca_path[4096];
    int64_t from_ms, renew_ms; /* server.pem is valid from here on, and due; wall clock */
};

/* HD_EXISTS: there is one already. Makes the folder, with mode 0700. */
enum hd_status hd_authority_init(const char *state_dir, const char *const *hosts, size_t count,
                                 int64_t now_ms);
bool hd_authority_exists(const char *state_dir);
/* Reads it, and renews server.pem if that is due, or is not valid yet: it was made while the clock
 * was ahead. */
enum hd_status hd_authority_open(const char *state_dir, int64_t now_ms,
                                 struct hd_authority **ret_authority);
void hd_authority_free(struct hd_authority *authority); /* NULL is fine */
/* *ret_renewed: server.pem is new, and to be read again. */
enum hd_status hd_authority_renew(struct hd_authority *authority, int64_t now_ms,
                                  bool *ret_renewed);
/* Signs the request of a client for `name`; ret_hash is that of the certificate. */
enum hd_status hd_authority_sign(const struct hd_authority *authority, const char *request,
                                 const char *name, int64_t from_ms, int64_t to_ms,
                                 struct hd_text *ret_cert, unsigned char *ret_hash);

#endif
