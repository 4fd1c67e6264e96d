/* credential_find: finds certificates of nodes, and checks credentials of open connections; calls
 * nothing else of this folder.
 */
#include <string.h>

#include "base/clock.h"
#include "controller/services/internal.h"
#include "pki/pki.h"

bool credential_is_from_future(const struct hd_credential_record *cert, int64_t now_ms)
{
    return cert->made_ms > now_ms + HD_PKI_EARLY_MS;
}

/* Returns whether `cert` is the better certificate to renew. One made while the clock was ahead is
 * not valid yet, so it loses, however late it expires. */
static bool is_better(const struct hd_credential_record *cert,
                      const struct hd_credential_record *than, int64_t now_ms)
{
    if (credential_is_from_future(cert, now_ms) != credential_is_from_future(than, now_ms))
        return credential_is_from_future(than, now_ms);
    return cert->expires_ms > than->expires_ms;
}

const struct hd_credential_record *credential_newest_of_node(const struct controller *c,
                                                             const char *node, int64_t now_ms)
{
    const struct hd_credential_record *newest = NULL;

    for (size_t i = 0; i < hd_credentials_count(c->credentials); i++) {
        const struct hd_credential_record *each = hd_credentials_at(c->credentials, i);

        if (each->kind == HD_CREDENTIAL_KIND_NODE && each->expires_ms > now_ms &&
            strcmp(each->name, node) == 0 && (!newest || is_better(each, newest, now_ms)))
            newest = each;
    }
    return newest;
}

const struct hd_credential_record *credential_of_cert(const struct controller *c,
                                                      const unsigned char *hash)
{
    const int64_t now_ms = hd_clock_wall_ms();
    const struct hd_credential_record *found = hd_credentials_find(c->credentials, hash, 0);

    if (found && found->expires_ms <= now_ms &&
        (found->kind != HD_CREDENTIAL_KIND_NODE ||
         !credential_newest_of_node(c, found->name, now_ms)))
        found = NULL;
    return found;
}

bool credential_is_valid(const struct controller *c, const struct hd_rpc_principal *caller)
{
    const int64_t now_ms = hd_clock_wall_ms();

    if (!caller->credential || hd_credentials_find_id(c->credentials, caller->credential, now_ms))
        return true;
    return caller->party == HD_RPC_PARTY_NODE &&
           credential_newest_of_node(c, caller->token_name, now_ms);
}
