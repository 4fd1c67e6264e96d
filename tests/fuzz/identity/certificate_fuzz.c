/* Certificates and requests at random, in their PEM text and, decoded, in their DER bytes: what is
 * looked at has a name and a hash, and no request is signed but the one that was made. */
#include <stdlib.h>
#include <string.h>

#include "pki/pki.h"
#include "tests/fuzz/driver.h"

enum { NOW_MS = 1000 * 1000 * 1000, DAYS_MS = 86400 * 1000 };

static struct hd_text cert, key, request, request_key;
static struct hd_pki_authority *authority;

static void make_once(void)
{
    if (authority)
        return;
    require(!hd_pki_make_authority("fuzz", NOW_MS, &cert, &key));
    require(!hd_pki_authority_open(cert.data, key.data, &authority));
    require(!hd_pki_make_request("n1", &request, &request_key));
}

/* A request that was changed anywhere is not signed by its key any more, unless the change is in
 * what PEM does not count. */
static void try_to_sign(const char *text)
{
    const struct hd_pki_terms terms = {
        .name = "n1", .use = HD_PKI_CLIENT, .from_ms = NOW_MS, .to_ms = NOW_MS + DAYS_MS};
    struct hd_pki_certificate made;
    struct hd_text signed_cert = {0};

    if (hd_pki_sign(authority, text, &terms, &signed_cert)) {
        require(*hd_err_message());
    } else {
        require(!hd_pki_inspect(signed_cert.data, &made));
        require(strcmp(made.name, "n1") == 0);
        require(made.to_ms == NOW_MS + DAYS_MS);
    }
    hd_text_free(&signed_cert);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    char *text = malloc(size_bytes + 1);
    struct hd_pki_certificate looked;
    struct hd_pki_authority *opened = NULL;

    make_once();
    require(text != NULL);
    memcpy(text, bytes, size_bytes);
    text[size_bytes] = '\0';
    if (!hd_pki_inspect(text, &looked))
        require(*looked.name && strlen(looked.name) <= HD_PKI_NAME_MAX &&
                !strchr(looked.name, ' '));
    try_to_sign(text);
    if (!hd_pki_authority_open(text, key.data, &opened))
        hd_pki_authority_free(opened);
    free(text);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    const struct hd_text *seed;
    size_t size;

    make_once();
    seed = index == 0 ? &cert : index == 1 ? &request : index == 2 ? &key : NULL;
    if (!seed)
        return 0;
    size = seed->len_bytes < max_bytes ? seed->len_bytes : max_bytes;
    memcpy(ret_bytes, seed->data, size);
    return size;
}
