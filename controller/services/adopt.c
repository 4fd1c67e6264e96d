/* adopt: certificates and tokens that a restored database does not know.
 *
 * Nodes renew their certificates, so some are newer than the backup. Such a certificate, signed by
 * the authority, becomes a credential again if all of these hold:
 *
 *  1. This database took over from a copy (store/epoch.c), and the certificate is older than that.
 *  2. The database knew the node before that, by a certificate that was not revoked, and knows no
 *     certificate of a person of that name. (Certificates do not say of which kind they are, but a
 *     name is never of both kinds: identity.h.)
 *  3. The certificate itself was not revoked, nor any certificate of that node since this one was
 *     made or since the takeover, whichever is earlier: a revocation cannot name a certificate that
 *     the database does not know, so it counts for all of the node's. (A node that joined again
 *     after the revocation has a newer certificate, which the database knows.)
 *
 * All others are refused, and the message says what to do: a node that joined after the backup is
 * invited again, and a user gets a new token. Without a restored backup a signature of the
 * authority alone is no identity (pki/pki.h).
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/internal.h"

/* tolerated difference between the clocks of two controllers, ms. Checks of revocations tolerate
 * none: a check by hash reads no clock, a check of the time since the restore reads only one. */
enum { SLACK_MS = 300 * 1000 };

/* Returns the newest certificate of the node that was not revoked, expired or not; NULL: none, or
 * none from before the takeover. */
static const struct hd_credential_record *find_known(const struct controller *c, const char *node)
{
    const struct hd_credential_record *newest = NULL;
    bool is_of_backup = false;

    for (size_t i = 0; i < hd_credentials_count(c->credentials); i++) {
        const struct hd_credential_record *each = hd_credentials_at(c->credentials, i);

        if (each->kind != HD_CREDENTIAL_KIND_NODE || strcmp(each->name, node) != 0)
            continue;
        is_of_backup |= each->made_ms <= c->fence.taken_over_ms;
        if (!newest || each->made_ms > newest->made_ms)
            newest = each;
    }
    return is_of_backup ? newest : NULL;
}

static bool is_of_the_gap(const struct controller *c, const struct hd_pki_certificate *cert)
{
    return c->fence.taken_over_ms && cert->from_ms <= c->fence.taken_over_ms + SLACK_MS &&
           cert->to_ms > hd_clock_wall_ms();
}

static bool was_revoked(const struct controller *c, const struct hd_pki_certificate *cert)
{
    const int64_t since_ms =
        cert->from_ms < c->fence.taken_over_ms ? cert->from_ms : c->fence.taken_over_ms;

    return hd_credentials_was_ended(c->credentials, cert->hash, cert->name, since_ms);
}

/* Adds an event about a certificate that the database lacks; once per certificate in a run of the
 * controller, because the daemon retries. */
static void report_unknown(struct controller *c, const struct hd_pki_certificate *cert)
{
    char message[HD_PKI_NAME_MAX + 256];
    const struct hd_core_event event = {
        .kind = HD_CORE_NOTE,
        .note = {.kind = HD_EVENT_NODE_UNKNOWN, .node = cert->name, .message = message}};

    for (size_t i = 0; i < c->unknown_count; i++)
        if (memcmp(c->unknown[i], cert->hash, sizeof c->unknown[i]) == 0)
            return;
    if (c->unknown_count == CONTROLLER_UNKNOWN_MAX)
        return;
    memcpy(c->unknown[c->unknown_count++], cert->hash, sizeof c->unknown[0]);
    (void)snprintf(message, sizeof message,
                   "%s came with a certificate of this cluster's authority that the restored "
                   "database does not know: it joined after the backup; invite it again: heddle "
                   "node invite %s",
                   cert->name, cert->name);
    hd_log(HD_LOG_WARN, "%s", message);
    transaction_begin(c);
    (void)transaction_step(c, &event);
    transaction_end(c);
}

static enum hd_status keep_credential(struct controller *c, struct hd_credential_record *made)
{
    char message[HD_PKI_NAME_MAX + 128];
    const struct hd_core_event event = {
        .kind = HD_CORE_NOTE,
        .note = {.kind = HD_EVENT_CERTIFICATE_ADOPTED, .node = made->name, .message = message}};
    enum hd_status st;

    (void)snprintf(
        message, sizeof message,
        "node %s came with a certificate that it got after the restored backup was made; "
        "the certificate is accepted",
        made->name);
    transaction_begin(c);
    st = c->transaction ? hd_credentials_add(c->credentials, made)
                        : hd_err(HD_UNAVAILABLE, "the controller is stopping");
    if (!st) {
        hd_batch_add_credential(c->transaction->batch, made);
        st = transaction_step(c, &event);
    }
    transaction_end(c);
    if (!st)
        hd_log(HD_LOG_INFO, "%s", message);
    return st;
}

const struct hd_credential_record *adopt_certificate(struct controller *c, const char *pem,
                                                     const struct hd_pki_certificate *cert)
{
    const struct hd_credential_record *known = find_known(c, cert->name);
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_NODE,
                                        .name = cert->name,
                                        .role = "",
                                        .made_by = "restore",
                                        .made_ms = cert->from_ms,
                                        .expires_ms = cert->to_ms};

    if (!c->authority || !is_of_the_gap(c, cert) || was_revoked(c, cert) ||
        hd_credentials_knows(c->credentials, HD_CREDENTIAL_KIND_PERSON, cert->name) ||
        hd_pki_check_client(c->authority->pki, pem) != HD_OK)
        return NULL;
    if (!known) {
        if (hd_pki_is_node_name(cert->name))
            report_unknown(c, cert);
        return NULL;
    }
    if (cert->from_ms < known->made_ms - SLACK_MS)
        return NULL;
    memcpy(made.hash, cert->hash, sizeof made.hash);
    if (keep_credential(c, &made)) {
        hd_log(HD_LOG_ERROR, "the certificate of %s cannot be kept: %s", cert->name,
               hd_err_message());
        return NULL;
    }
    return hd_credentials_find_id(c->credentials, made.id, 0);
}

/* Writes "restored at T from a backup of T". */
static void describe_takeover(const struct controller *c, char *ret_text, size_t size)
{
    char when[HD_CLOCK_TEXT_MAX], copied[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(c->fence.taken_over_ms, when);
    hd_clock_format_utc(c->fence.copied_ms, copied);
    (void)snprintf(ret_text, size, "restored at %s from a %s%s", when,
                   c->fence.copied_ms ? "backup of " : "copy", c->fence.copied_ms ? copied : "");
}

enum hd_status adopt_refuse_certificate(const struct controller *c,
                                        const struct hd_pki_certificate *cert)
{
    char takeover[128];

    if (!c->fence.taken_over_ms)
        return hd_err(HD_DENIED, "the certificate is not one of this controller's, or was "
                                 "revoked; a node is invited again with heddle node invite");
    describe_takeover(c, takeover, sizeof takeover);
    return hd_err(
        HD_DENIED,
        "the certificate of %s is not one that this controller knows, or was revoked; its "
        "database was %s. A node is invited again with heddle node invite %s, then heddled join "
        "on it; a person gets a new certificate or token of an admin",
        *cert->name ? cert->name : "the caller", takeover, *cert->name ? cert->name : "NAME");
}

enum hd_status adopt_refuse_token(const struct controller *c)
{
    char takeover[128];

    if (!c->fence.taken_over_ms)
        return hd_err(HD_DENIED, "the token is wrong, has expired or was revoked; give a token "
                                 "file with one of the controller's");
    describe_takeover(c, takeover, sizeof takeover);
    return hd_err(HD_DENIED,
                  "the token is wrong, has expired or was revoked; give a token file with one of "
                  "the controller's. Its database was %s: it does not know tokens made after that "
                  "one, which an admin makes anew with heddle token create",
                  takeover);
}
