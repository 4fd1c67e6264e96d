#include "rpc/credentials.h"

#include <string.h>

#include "base/file.h"
#include "base/text.h"

enum { PEM_BYTES_MAX = 1024 * 1024 };

static enum hd_status read_pem(const char *path, const char *what, struct hd_text *ret_pem)
{
    enum hd_status st = hd_file_read(path, PEM_BYTES_MAX, ret_pem);

    if (st)
        return hd_err_prefix(st, "TLS %s", what);
    if (!strstr(ret_pem->data, "-----BEGIN "))
        return hd_err(HD_INVALID, "TLS %s: %s is not a PEM file", what, path);
    return HD_OK;
}

struct pem_files {
    struct hd_text cert, key, ca;
};

static enum hd_status read_pems(const struct hd_rpc_tls *tls, struct pem_files *ret)
{
    enum hd_status st = HD_OK;

    if (!tls->cert_path != !tls->key_path)
        return hd_err(HD_INVALID, "TLS needs a certificate and its key, or neither");
    if (tls->cert_path)
        st = read_pem(tls->cert_path, "certificate", &ret->cert);
    if (!st && tls->key_path)
        st = read_pem(tls->key_path, "key", &ret->key);
    if (!st && tls->ca_path)
        st = read_pem(tls->ca_path, "CA certificate", &ret->ca);
    return st;
}

static void free_pems(struct pem_files *pems)
{
    if (pems->key.data)
        explicit_bzero(pems->key.data, pems->key.size_bytes);
    hd_text_free(&pems->cert);
    hd_text_free(&pems->key);
    hd_text_free(&pems->ca);
}

enum hd_status hd_rpc_load_server_tls(const struct hd_rpc_tls *tls,
                                      grpc_server_credentials **ret_credentials)
{
    grpc_ssl_pem_key_cert_pair pair;
    grpc_server_credentials *made;
    struct pem_files pems = {0};
    enum hd_status st;

    st = read_pems(tls, &pems);
    if (!st && !pems.cert.data)
        st = hd_err(HD_INVALID, "a TLS server needs a certificate and a key");
    if (!st) {
        pair.private_key = pems.key.data;
        pair.cert_chain = pems.cert.data;
        made = grpc_ssl_server_credentials_create_ex(
            pems.ca.data, &pair, 1,
            pems.ca.data ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                         : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            NULL);
        if (made)
            *ret_credentials = made;
        else
            st = hd_err(HD_INVALID, "TLS: the certificate %s or its key was not accepted",
                        tls->cert_path);
    }
    free_pems(&pems);
    return st;
}

enum hd_status hd_rpc_load_client_tls(const struct hd_rpc_tls *tls,
                                      grpc_channel_credentials **ret_credentials)
{
    grpc_ssl_pem_key_cert_pair pair;
    grpc_channel_credentials *made;
    struct pem_files pems = {0};
    enum hd_status st;

    st = read_pems(tls, &pems);
    if (!st && !pems.ca.data)
        st = hd_err(HD_INVALID, "a TLS client needs the CA certificate that signed the server's");
    if (!st) {
        pair.private_key = pems.key.data;
        pair.cert_chain = pems.cert.data;
        made =
            grpc_ssl_credentials_create_ex(pems.ca.data, pems.cert.data ? &pair : NULL, NULL, NULL);
        if (made)
            *ret_credentials = made;
        else
            st = hd_err(HD_INVALID, "TLS: the CA certificate %s was not accepted", tls->ca_path);
    }
    free_pems(&pems);
    return st;
}

enum hd_status hd_rpc_check_tls(const struct hd_rpc_tls *tls)
{
    grpc_server_credentials *made = NULL;
    enum hd_status st = hd_rpc_load_server_tls(tls, &made);

    if (made)
        grpc_server_credentials_release(made);
    return st;
}

enum hd_status hd_rpc_check_client_tls(const struct hd_rpc_tls *tls)
{
    grpc_channel_credentials *made = NULL;
    enum hd_status st = hd_rpc_load_client_tls(tls, &made);

    if (made)
        grpc_channel_credentials_release(made);
    return st;
}
