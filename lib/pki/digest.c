/* digest: hashes of bytes that come in pieces. */
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdlib.h>

#include "base/digits.h"
#include "pki/pki.h"

struct hd_pki_digest {
    EVP_MD_CTX *context;
    bool failed;
};

static const struct {
    const char *name;
    const EVP_MD *(*get)(void);
} kinds[] = {[HD_PKI_SHA1] = {"SHA-1", EVP_sha1},
             [HD_PKI_SHA256] = {"SHA-256", EVP_sha256},
             [HD_PKI_MD5] = {"MD5", EVP_md5}};

enum hd_status hd_pki_digest_new(enum hd_pki_digest_kind kind, struct hd_pki_digest **ret_digest)
{
    struct hd_pki_digest *d = calloc(1, sizeof *d);

    if (d)
        d->context = EVP_MD_CTX_new();
    if (!d || !d->context) {
        free(d);
        return hd_err(HD_NO_MEMORY, "no memory for a hash");
    }
    if (EVP_DigestInit_ex(d->context, kinds[kind].get(), NULL) != 1) {
        hd_pki_digest_free(d);
        ERR_clear_error();
        return hd_err(HD_UNSUPPORTED, "OpenSSL of this machine does not allow %s",
                      kinds[kind].name);
    }
    *ret_digest = d;
    return HD_OK;
}

void hd_pki_digest_add(struct hd_pki_digest *digest, const void *bytes, size_t count)
{
    digest->failed |= EVP_DigestUpdate(digest->context, bytes, count) != 1;
}

enum hd_status hd_pki_digest_end(struct hd_pki_digest *digest, char ret_text[HD_PKI_HASH_TEXT_MAX])
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned count = 0;

    if (digest->failed || EVP_DigestFinal_ex(digest->context, hash, &count) != 1 ||
        count > HD_PKI_HASH_BYTES)
        return hd_err(HD_INTERNAL, "OpenSSL cannot compute a hash");
    hd_hex_format(hash, count, ret_text);
    return HD_OK;
}

void hd_pki_digest_free(struct hd_pki_digest *digest)
{
    if (!digest)
        return;
    EVP_MD_CTX_free(digest->context);
    free(digest);
}
