/* authority: certificates: P-256 keys, ECDSA with SHA-256. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "base/clock.h"
#include "pki/pki.h"

enum { SERIAL_BYTES = 16 };

struct hd_pki_authority {
    X509 *cert;
    EVP_PKEY *key;
};

/* Returns st with a message made from `what` and OpenSSL's newest error; empties OpenSSL's error
 * queue. */
static enum hd_status fail(enum hd_status st, const char *what)
{
    const unsigned long code = ERR_get_error();
    char text[160] = "out of memory";

    if (code)
        ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return hd_err(st, "%s: %s", what, text);
}

/* ---- PEM --------------------------------------------------------------------------------------*/

static enum hd_status take_pem(BIO *bio, bool written, struct hd_text *ret_text)
{
    char *bytes = NULL;
    const long count = written ? BIO_get_mem_data(bio, &bytes) : 0;

    if (!written || count <= 0)
        return fail(HD_INTERNAL, "cannot write a PEM text");
    hd_text_add_bytes(ret_text, bytes, (size_t)count);
    return ret_text->failed ? hd_err(HD_NO_MEMORY, "no memory for a certificate") : HD_OK;
}

static enum hd_status write_cert(X509 *cert, struct hd_text *ret_text)
{
    BIO *bio = BIO_new(BIO_s_mem());
    enum hd_status st = take_pem(bio, bio && PEM_write_bio_X509(bio, cert), ret_text);

    BIO_free(bio);
    return st;
}

static enum hd_status write_key(EVP_PKEY *key, struct hd_text *ret_text)
{
    BIO *bio = BIO_new(BIO_s_mem());
    enum hd_status st = take_pem(
        bio, bio && PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL), ret_text);

    BIO_free(bio);
    return st;
}

static BIO *open_text(const char *text)
{
    const size_t length = strlen(text);

    return length <= HD_PKI_PEM_BYTES_MAX * 4 ? BIO_new_mem_buf(text, (int)length) : NULL;
}

/* Called by OpenSSL for the passphrase of an encrypted key: refuses it, because OpenSSL would ask
 * for one on the terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *user)
{
    (void)buffer, (void)size, (void)writing, (void)user;
    return 0;
}

static X509 *read_cert(const char *text)
{
    BIO *bio = open_text(text);
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, no_passphrase, NULL) : NULL;

    BIO_free(bio);
    return cert;
}

/* ---- keys and names ---------------------------------------------------------------------------*/

static bool is_p256(EVP_PKEY *key)
{
    char group[32] = "";

    return key && EVP_PKEY_get_base_id(key) == EVP_PKEY_EC &&
           EVP_PKEY_get_group_name(key, group, sizeof group, NULL) &&
           (strcmp(group, "prime256v1") == 0 || strcmp(group, "P-256") == 0);
}

/* Copies the common name of a certificate's subject. Returns false if there is not exactly one, or
 * it is not printable or too long. */
static bool read_name(const X509_NAME *subject, char ret_name[HD_PKI_NAME_MAX + 1])
{
    const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    const ASN1_STRING *text;
    int length;

    if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0)
        return false;
    text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    length = ASN1_STRING_length(text);
    if (length < 1 || length > HD_PKI_NAME_MAX)
        return false;
    for (int i = 0; i < length; i++) {
        const unsigned char c = ASN1_STRING_get0_data(text)[i];

        if (c <= ' ' || c > '~')
            return false;
    }
    memcpy(ret_name, ASN1_STRING_get0_data(text), (size_t)length);
    ret_name[length] = '\0';
    return true;
}

static X509_NAME *make_name(const char *common)
{
    X509_NAME *name = X509_NAME_new();

    if (name &&
        X509_NAME_add_entry_by_NID(name, NID_organizationName, MBSTRING_UTF8,
                                   (const unsigned char *)"heddle", -1, -1, 0) &&
        X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8,
                                   (const unsigned char *)common, -1, -1, 0))
        return name;
    X509_NAME_free(name);
    return NULL;
}

/* ---- making a certificate ---------------------------------------------------------------------*/

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509_EXTENSION *extension;
    bool added;

    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    X509V3_set_ctx_nodb(&context);
    extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    added = extension && X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
    return added;
}

static bool set_serial(X509 *cert)
{
    unsigned char bytes[SERIAL_BYTES];
    BIGNUM *number;
    bool set;

    if (RAND_bytes(bytes, sizeof bytes) != 1)
        return false;
    bytes[0] &= 0x7f; /* serial numbers are positive */
    number = BN_bin2bn(bytes, sizeof bytes, NULL);
    set = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert));
    BN_free(number);
    return set;
}

static bool set_times(X509 *cert, int64_t from_ms, int64_t to_ms)
{
    return ASN1_TIME_set(X509_getm_notBefore(cert), (time_t)((from_ms - HD_PKI_EARLY_MS) / 1000)) &&
           ASN1_TIME_set(X509_getm_notAfter(cert), (time_t)(to_ms / 1000));
}

static bool is_numeric(const char *host)
{
    unsigned char bytes[16];

    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

static bool add_hosts(X509 *cert, X509 *issuer, const struct hd_pki_terms *terms)
{
    struct hd_text names = {0};
    bool added;

    if (!terms->host_count)
        return true;
    for (size_t i = 0; i < terms->host_count; i++) {
        if (!terms->hosts[i][0] ||
            /* characters that would start another extension in OpenSSL's syntax */
            terms->hosts[i][strcspn(terms->hosts[i], ", \t\n\r=")])
            names.failed = true;
        hd_text_add(&names, "%s%s:%s", i ? "," : "", is_numeric(terms->hosts[i]) ? "IP" : "DNS",
                    terms->hosts[i]);
    }
    added = !names.failed && add_extension(cert, issuer, NID_subject_alt_name, names.data);
    hd_text_free(&names);
    return added;
}

static X509 *make_cert(const char *name, EVP_PKEY *key, int64_t from_ms, int64_t to_ms)
{
    X509 *cert = X509_new();
    X509_NAME *subject = make_name(name);

    if (cert && subject && X509_set_version(cert, X509_VERSION_3) && set_serial(cert) &&
        set_times(cert, from_ms, to_ms) && X509_set_subject_name(cert, subject) &&
        X509_set_pubkey(cert, key)) {
        X509_NAME_free(subject);
        return cert;
    }
    X509_NAME_free(subject);
    X509_free(cert);
    return NULL;
}

/* ---- the authority ----------------------------------------------------------------------------*/

enum hd_status hd_pki_make_authority(const char *cluster, int64_t now_ms, struct hd_text *ret_cert,
                                     struct hd_text *ret_key)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert =
        key ? make_cert(cluster, key, now_ms, now_ms + HD_PKI_AUTHORITY_DAYS * INT64_C(86400000))
            : NULL;
    enum hd_status st = HD_OK;

    if (!cert || !X509_set_issuer_name(cert, X509_get_subject_name(cert)) ||
        !add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
        !add_extension(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") ||
        !add_extension(cert, cert, NID_subject_key_identifier, "hash") ||
        !X509_sign(cert, key, EVP_sha256()))
        st = fail(HD_INTERNAL, "cannot make a certificate authority");
    if (!st)
        st = write_cert(cert, ret_cert);
    if (!st)
        st = write_key(key, ret_key);
    X509_free(cert);
    EVP_PKEY_free(key);
    return st;
}

enum hd_status hd_pki_authority_open(const char *cert, const char *key,
                                     struct hd_pki_authority **ret_authority)
{
    struct hd_pki_authority *made = calloc(1, sizeof *made);
    BIO *bio = open_text(key);
    enum hd_status st = HD_OK;

    if (!made) {
        BIO_free(bio);
        return hd_err(HD_NO_MEMORY, "no memory for a certificate authority");
    }
    made->cert = read_cert(cert);
    made->key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
    BIO_free(bio);
    if (!made->cert || !made->key)
        st = fail(HD_INVALID, "the certificate authority cannot be read");
    else if (X509_check_private_key(made->cert, made->key) != 1)
        st = fail(HD_INVALID, "the authority's key does not belong to its certificate");
    else if (X509_check_ca(made->cert) != 1)
        st = hd_err(HD_INVALID, "the authority's certificate is not that of an authority");
    if (st)
        hd_pki_authority_free(made);
    else
        *ret_authority = made;
    return st;
}

void hd_pki_authority_free(struct hd_pki_authority *authority)
{
    if (!authority)
        return;
    X509_free(authority->cert);
    EVP_PKEY_free(authority->key);
    free(authority);
}

/* ---- requests ---------------------------------------------------------------------------------*/

enum hd_status hd_pki_make_request(const char *name, struct hd_text *ret_request,
                                   struct hd_text *ret_key)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509_REQ *request = X509_REQ_new();
    X509_NAME *subject = make_name(name);
    BIO *bio = BIO_new(BIO_s_mem());
    enum hd_status st = HD_OK;

    if (!key || !request || !subject || !bio || !X509_REQ_set_subject_name(request, subject) ||
        !X509_REQ_set_pubkey(request, key) || !X509_REQ_sign(request, key, EVP_sha256()))
        st = fail(HD_INTERNAL, "cannot make a certificate request");
    if (!st)
        st = take_pem(bio, PEM_write_bio_X509_REQ(bio, request), ret_request);
    if (!st)
        st = write_key(key, ret_key);
    BIO_free(bio);
    X509_NAME_free(subject);
    X509_REQ_free(request);
    EVP_PKEY_free(key);
    return st;
}

static enum hd_status check_request(X509_REQ *request, const char *name)
{
    char asked[HD_PKI_NAME_MAX + 1];
    EVP_PKEY *key = request ? X509_REQ_get0_pubkey(request) : NULL;

    if (!request)
        return fail(HD_INVALID, "the certificate request cannot be read");
    if (!is_p256(key))
        return hd_err(HD_INVALID, "the certificate request has no P-256 key");
    if (X509_REQ_verify(request, key) != 1)
        return fail(HD_INVALID, "the certificate request is not signed by its own key");
    if (!read_name(X509_REQ_get_subject_name(request), asked))
        return hd_err(HD_INVALID, "the certificate request has no usable name");
    if (strcmp(asked, name) != 0)
        return hd_err(HD_INVALID, "the certificate request is for %s, not for %s", asked, name);
    return HD_OK;
}

static bool sign(const struct hd_pki_authority *authority, X509 *cert,
                 const struct hd_pki_terms *terms)
{
    return X509_set_issuer_name(cert, X509_get_subject_name(authority->cert)) &&
           add_extension(cert, authority->cert, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(cert, authority->cert, NID_key_usage, "critical,digitalSignature") &&
           add_extension(cert, authority->cert, NID_ext_key_usage,
                         terms->use == HD_PKI_SERVER ? "serverAuth" : "clientAuth") &&
           add_extension(cert, authority->cert, NID_authority_key_identifier, "keyid") &&
           add_hosts(cert, authority->cert, terms) && X509_sign(cert, authority->key, EVP_sha256());
}

enum hd_status hd_pki_sign(const struct hd_pki_authority *authority, const char *request,
                           const struct hd_pki_terms *terms, struct hd_text *ret_cert)
{
    BIO *bio = strlen(request) <= HD_PKI_PEM_BYTES_MAX ? open_text(request) : NULL;
    X509_REQ *asked = bio ? PEM_read_bio_X509_REQ(bio, NULL, no_passphrase, NULL) : NULL;
    enum hd_status st = check_request(asked, terms->name);
    X509 *cert =
        st ? NULL
           : make_cert(terms->name, X509_REQ_get0_pubkey(asked), terms->from_ms, terms->to_ms);

    if (!st && (!cert || !sign(authority, cert, terms)))
        st = fail(HD_INTERNAL, "cannot sign a certificate");
    if (!st)
        st = write_cert(cert, ret_cert);
    X509_free(cert);
    X509_REQ_free(asked);
    BIO_free(bio);
    return st;
}

/* ---- looking at one ---------------------------------------------------------------------------*/

static int64_t to_ms(const ASN1_TIME *time)
{
    struct tm parts;

    return ASN1_TIME_to_tm(time, &parts) ? (int64_t)timegm(&parts) * 1000 : 0;
}

enum hd_status hd_pki_inspect(const char *text, struct hd_pki_certificate *ret_certificate)
{
    X509 *cert = read_cert(text);
    struct hd_pki_certificate made = {.name = ""};
    unsigned int count = 0;
    enum hd_status st = HD_OK;

    if (!cert)
        return fail(HD_INVALID, "the certificate cannot be read");
    if (!read_name(X509_get_subject_name(cert), made.name))
        st = hd_err(HD_INVALID, "the certificate has no usable name");
    else if (!X509_digest(cert, EVP_sha256(), made.hash, &count) || count != sizeof made.hash)
        st = fail(HD_INTERNAL, "cannot hash a certificate");
    made.from_ms = to_ms(X509_get0_notBefore(cert)) + HD_PKI_EARLY_MS;
    made.to_ms = to_ms(X509_get0_notAfter(cert));
    if (!st)
        *ret_certificate = made;
    X509_free(cert);
    return st;
}

enum hd_status hd_pki_check_client(const struct hd_pki_authority *authority, const char *text)
{
    X509 *cert = read_cert(text);
    EVP_PKEY *key = X509_get0_pubkey(authority->cert);
    enum hd_status st = HD_OK;

    if (!cert)
        return fail(HD_INVALID, "the certificate cannot be read");
    if (!key || X509_verify(cert, key) != 1)
        st = hd_err(HD_DENIED, "the certificate is signed by another authority");
    else if (!(X509_get_extended_key_usage(cert) & XKU_SSL_CLIENT) || X509_check_ca(cert))
        st = hd_err(HD_DENIED, "the certificate is not one of a client");
    ERR_clear_error();
    X509_free(cert);
    return st;
}

static enum hd_status check_dates(X509 *cert, const char *path, int64_t now_ms)
{
    char subject[128] = "?", when[HD_CLOCK_TEXT_MAX];
    const int64_t from_ms = to_ms(X509_get0_notBefore(cert));
    const int64_t until_ms = to_ms(X509_get0_notAfter(cert));

    (void)X509_NAME_oneline(X509_get_subject_name(cert), subject, sizeof subject);
    hd_clock_format_utc(until_ms <= now_ms ? until_ms : from_ms, when);
    if (until_ms <= now_ms)
        return hd_err(HD_INVALID, "%s: the certificate of %s has expired at %s; renew it", path,
                      subject, when);
    return from_ms > now_ms ? hd_err(HD_INVALID,
                                     "%s: the certificate of %s is not valid before %s; set this "
                                     "machine's clock, or make a new one",
                                     path, subject, when)
                            : HD_OK;
}

enum hd_status hd_pki_check_dates(const char *path, int64_t now_ms)
{
    BIO *bio = BIO_new_file(path, "r");
    enum hd_status st = HD_OK;
    X509 *cert;

    while (!st && bio && (cert = PEM_read_bio_X509(bio, NULL, no_passphrase, NULL)) != NULL) {
        st = check_dates(cert, path, now_ms);
        X509_free(cert);
    }
    BIO_free(bio);
    ERR_clear_error();
    return st;
}
