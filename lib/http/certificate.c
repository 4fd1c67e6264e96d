#include "http/certificate.h"

#include <string.h>

#include <gnutls/gnutls.h>

#include "base/file.h"

enum {
    PEM_BYTES_MAX = 1 << 20,
    CHAIN_MAX = 16,
};

static void forget(struct hd_text *chain, struct hd_text *key)
{
    if (key->data)
        explicit_bzero(key->data, key->size_bytes);
    hd_text_free(chain);
    hd_text_free(key);
}

static gnutls_datum_t datum_of(const struct hd_text *pem)
{
    return (gnutls_datum_t){.data = (unsigned char *)pem->data, .size = (unsigned)pem->len_bytes};
}

enum hd_status hd_http_certificate_init(struct hd_http_certificate *certificate)
{
    *certificate = (struct hd_http_certificate){0};
    return uv_mutex_init(&certificate->lock) ? hd_err(HD_NO_MEMORY, "no lock for a certificate")
                                             : HD_OK;
}

void hd_http_certificate_done(struct hd_http_certificate *certificate)
{
    forget(&certificate->chain, &certificate->key);
    uv_mutex_destroy(&certificate->lock);
    *certificate = (struct hd_http_certificate){0};
}

/* Checks that the files can be used together; GnuTLS compares the key with the first certificate.
 */
static enum hd_status check(const struct hd_text *chain, const struct hd_text *key,
                            const char *cert_path, const char *key_path)
{
    const gnutls_datum_t certs = datum_of(chain), secret = datum_of(key);
    gnutls_certificate_credentials_t trial;
    int error = gnutls_certificate_allocate_credentials(&trial);

    if (error)
        return hd_err(HD_NO_MEMORY, "no memory for a certificate");
    error = gnutls_certificate_set_x509_key_mem(trial, &certs, &secret, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(trial);
    if (error >= 0)
        return HD_OK;
    return hd_err(HD_INVALID, "the certificate %s and the key %s cannot be used together: %s",
                  cert_path, key_path, gnutls_strerror(error));
}

enum hd_status hd_http_certificate_read(struct hd_http_certificate *certificate,
                                        const char *cert_path, const char *key_path)
{
    struct hd_text chain = {0}, key = {0};
    enum hd_status st = hd_file_read(cert_path, PEM_BYTES_MAX, &chain);

    if (st)
        st = hd_err_prefix(st, "TLS certificate");
    else if ((st = hd_file_read(key_path, PEM_BYTES_MAX, &key)))
        st = hd_err_prefix(st, "TLS key");
    if (!st)
        st = check(&chain, &key, cert_path, key_path);
    if (!st) {
        struct hd_text before;

        uv_mutex_lock(&certificate->lock);
        before = certificate->chain;
        certificate->chain = chain;
        chain = before;
        before = certificate->key;
        certificate->key = key;
        key = before;
        uv_mutex_unlock(&certificate->lock);
    }
    forget(&chain, &key);
    return st;
}

int hd_http_certificate_give(struct hd_http_certificate *certificate, gnutls_pcert_st **ret_certs,
                             unsigned *ret_count, gnutls_privkey_t *ret_key)
{
    unsigned count = CHAIN_MAX;
    gnutls_pcert_st *certs = gnutls_calloc(CHAIN_MAX, sizeof *certs);
    gnutls_datum_t pem;
    int error = certs ? gnutls_privkey_init(ret_key) : GNUTLS_E_MEMORY_ERROR;

    if (error) {
        gnutls_free(certs);
        return -1;
    }
    uv_mutex_lock(&certificate->lock);
    pem = datum_of(&certificate->chain);
    error = gnutls_pcert_list_import_x509_raw(certs, &count, &pem, GNUTLS_X509_FMT_PEM, 0);
    if (error < 0)
        count = 0;
    pem = datum_of(&certificate->key);
    if (error >= 0)
        error = gnutls_privkey_import_x509_raw(*ret_key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    uv_mutex_unlock(&certificate->lock);
    if (error >= 0) {
        *ret_certs = certs;
        *ret_count = count;
        return 0;
    }
    for (unsigned i = 0; i < count; i++)
        gnutls_pcert_deinit(&certs[i]);
    gnutls_free(certs);
    gnutls_privkey_deinit(*ret_key);
    return -1;
}
