#include "rpc/credentials.h"

#include <stdlib.h>
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

/* ---- a server's ---- */

struct hd_rpc_server_tls {
    uv_mutex_t mutex; /* guards pems and is_new */
    struct pem_files pems;
    bool is_new; /* `pems` were replaced and are not yet passed to gRPC */
};

static enum hd_status read_server_pems(const struct hd_rpc_tls *tls, struct pem_files *ret)
{
    enum hd_status st = read_pems(tls, ret);

    if (!st && !ret->cert.data)
        st = hd_err(HD_INVALID, "a TLS server needs a certificate and a key");
    if (st)
        free_pems(ret);
    return st;
}

/* Makes gRPC's TLS configuration from PEM texts. gRPC requires a root certificate even if clients
 * are asked for none; then the server's own certificate is set as root, which is never used for a
 * check. */
static grpc_ssl_server_certificate_config *make_config(const struct pem_files *pems)
{
    const char *root = pems->ca.data ? pems->ca.data : pems->cert.data;
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = pems->key.data,
                                             .cert_chain = pems->cert.data};

    return grpc_ssl_server_certificate_config_create(root, &pair, 1);
}

/* Called by gRPC on one of its threads at a handshake: passes certificates to gRPC that were
 * replaced. */
static grpc_ssl_certificate_config_reload_status
give_config(void *user, grpc_ssl_server_certificate_config **ret_config)
{
    struct hd_rpc_server_tls *server = user;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;

    uv_mutex_lock(&server->mutex);
    if (server->is_new) {
        *ret_config = make_config(&server->pems);
        server->is_new = false;
        status = *ret_config ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                             : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
    uv_mutex_unlock(&server->mutex);
    return status;
}

static grpc_ssl_client_certificate_request_type asks_for(const struct hd_rpc_tls *tls)
{
    if (!tls->ca_path)
        return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    return tls->cert_optional ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                              : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

/* Checks that certificate and private key belong together; gRPC itself would accept others and then
 * fail every handshake. */
static enum hd_status try_pems(const struct pem_files *pems, const struct hd_rpc_tls *tls)
{
    grpc_ssl_pem_key_cert_pair pair = {.private_key = pems->key.data,
                                       .cert_chain = pems->cert.data};
    grpc_server_credentials *made =
        grpc_ssl_server_credentials_create_ex(pems->ca.data, &pair, 1, asks_for(tls), NULL);

    if (!made)
        return hd_err(HD_INVALID, "TLS: the certificate %s or its key was not accepted",
                      tls->cert_path);
    grpc_server_credentials_release(made);
    return HD_OK;
}

enum hd_status hd_rpc_server_tls_open(const struct hd_rpc_tls *tls,
                                      struct hd_rpc_server_tls **ret_tls,
                                      grpc_server_credentials **ret_credentials)
{
    struct hd_rpc_server_tls *server = calloc(1, sizeof *server);
    grpc_server_credentials *made;
    enum hd_status st;

    if (!server || uv_mutex_init(&server->mutex)) {
        free(server);
        return hd_err(HD_NO_MEMORY, "no memory for TLS");
    }
    st = read_server_pems(tls, &server->pems);
    if (!st)
        st = try_pems(&server->pems, tls);
    server->is_new = true;
    made = st ? NULL
              : grpc_ssl_server_credentials_create_with_options(
                    grpc_ssl_server_credentials_create_options_using_config_fetcher(
                        asks_for(tls), give_config, server));
    if (!st && !made)
        st = hd_err(HD_INVALID, "TLS: the certificate %s or its key was not accepted",
                    tls->cert_path);
    if (st) {
        hd_rpc_server_tls_free(server);
        return st;
    }
    *ret_tls = server;
    *ret_credentials = made;
    return HD_OK;
}

enum hd_status hd_rpc_server_tls_replace(struct hd_rpc_server_tls *server,
                                         const struct hd_rpc_tls *tls)
{
    struct pem_files pems = {0}, old;
    enum hd_status st = read_server_pems(tls, &pems);

    if (!st)
        st = try_pems(&pems, tls);
    if (st) {
        free_pems(&pems);
        return st;
    }
    uv_mutex_lock(&server->mutex);
    old = server->pems;
    server->pems = pems;
    server->is_new = true;
    uv_mutex_unlock(&server->mutex);
    free_pems(&old);
    return HD_OK;
}

void hd_rpc_server_tls_free(struct hd_rpc_server_tls *server)
{
    if (!server)
        return;
    uv_mutex_destroy(&server->mutex);
    free_pems(&server->pems);
    free(server);
}

/* ---- a client's ---- */

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
    struct pem_files pems = {0};
    enum hd_status st = read_server_pems(tls, &pems);

    if (!st)
        st = try_pems(&pems, tls);
    free_pems(&pems);
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
