#include "controller/identity/authority.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { PATH_BYTES = 4096, CLOCK_SLACK_MS = 60 * 1000 };

#define DAY_MS INT64_C(86400000)

static enum hd_status path_of(const char *state_dir, const char *name, char ret_path[PATH_BYTES])
{
    return (size_t)snprintf(ret_path, PATH_BYTES, "%s/pki/%s", state_dir, name) < PATH_BYTES
               ? HD_OK
               : hd_err(HD_INVALID, "the path %s is too long", state_dir);
}

static enum hd_status write_file(const char *path, const struct hd_text *text, mode_t mode)
{
    return text->failed ? hd_err(HD_NO_MEMORY, "no memory for %s", path)
                        : hd_file_write_atomic(path, text->data, text->len_bytes, mode);
}

static enum hd_status read_file(const char *state_dir, const char *name, struct hd_text *ret_text)
{
    char path[PATH_BYTES];
    enum hd_status st = path_of(state_dir, name, path);

    if (!st)
        st = hd_file_read(path, HD_PKI_PEM_BYTES_MAX, ret_text);
    if (!st && (!ret_text->data || strlen(ret_text->data) != ret_text->len_bytes))
        st = hd_err(HD_INVALID, "%s is empty or damaged", path);
    return st;
}

static void forget_authority(struct hd_text *text)
{
    if (text->data)
        explicit_bzero(text->data, text->size_bytes);
    hd_text_free(text);
}

/* ---- the controller's certificate -------------------------------------------------------------*/

struct hosts {
    struct hd_text text; /* text of the file, split into lines, to which `items` point */
    const char *items[HD_AUTHORITY_HOSTS_MAX + 1];
    size_t count;
};

static enum hd_status read_hosts(const char *state_dir, struct hosts *ret)
{
    char *rest = NULL;
    enum hd_status st = read_file(state_dir, "hosts", &ret->text);

    ret->items[ret->count++] = HD_AUTHORITY_SERVER_NAME;
    if (st)
        return st;
    for (char *line = strtok_r(ret->text.data, "\r\n \t", &rest);
         line && ret->count <= HD_AUTHORITY_HOSTS_MAX; line = strtok_r(NULL, "\r\n \t", &rest))
        ret->items[ret->count++] = line;
    return HD_OK;
}

/* Creates server.pem, the controller's certificate and key. It contains the authority's
 * certificate, so that joining nodes see it in the chain. */
static enum hd_status make_server(const struct hd_authority *authority, const struct hosts *hosts,
                                  int64_t now_ms)
{
    const struct hd_pki_terms terms = {.name = HD_AUTHORITY_SERVER_NAME,
                                       .use = HD_PKI_SERVER,
                                       .from_ms = now_ms,
                                       .to_ms = now_ms + HD_PKI_CERTIFICATE_DAYS * DAY_MS,
                                       .hosts = hosts->items,
                                       .host_count = hosts->count};
    struct hd_text request = {0}, key = {0}, all = {0};
    enum hd_status st = hd_pki_make_request(terms.name, &request, &key);

    if (!st)
        st = hd_pki_sign(authority->pki, request.data, &terms, &all);
    if (!st) {
        hd_text_add(&all, "%s%s", authority->cert.data, key.data);
        st = write_file(authority->server_path, &all, 0600);
    }
    hd_text_free(&request);
    forget_authority(&key);
    forget_authority(&all);
    return st;
}

/* Reads server.pem; sets from_ms (when it becomes valid) and renew_ms (when two thirds of its life
 * are over). */
static enum hd_status check_server(struct hd_authority *authority)
{
    struct hd_pki_certificate cert;
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(authority->server_path, 4 * HD_PKI_PEM_BYTES_MAX, &text);

    if (!st)
        st = hd_pki_inspect(text.data ? text.data : "", &cert);
    if (!st)
        authority->from_ms = cert.from_ms;
    if (!st)
        authority->renew_ms = cert.from_ms + (cert.to_ms - cert.from_ms) / 3 * 2;
    forget_authority(&text);
    return st ? hd_err_prefix(st, "%s", authority->server_path) : HD_OK;
}

static enum hd_status renew(struct hd_authority *authority, int64_t now_ms)
{
    char state_dir[PATH_BYTES];
    struct hosts hosts = {.count = 0};
    enum hd_status st;

    (void)snprintf(state_dir, sizeof state_dir, "%s", authority->server_path);
    state_dir[strlen(state_dir) - strlen("/pki/server.pem")] = '\0';
    st = read_hosts(state_dir, &hosts);
    if (!st)
        st = make_server(authority, &hosts, now_ms);
    hd_text_free(&hosts.text);
    return st ? st : check_server(authority);
}

enum hd_status hd_authority_renew(struct hd_authority *authority, int64_t now_ms, bool *ret_renewed)
{
    enum hd_status st;

    *ret_renewed = false;
    /* the certificate was made while the clock was ahead: clients would refuse it as not yet
     * valid */
    if (now_ms < authority->renew_ms && now_ms >= authority->from_ms - CLOCK_SLACK_MS)
        return HD_OK;
    st = renew(authority, now_ms);
    *ret_renewed = !st;
    return st;
}

/* ---- making and opening -----------------------------------------------------------------------*/

bool hd_authority_exists(const char *state_dir)
{
    char path[PATH_BYTES];

    return path_of(state_dir, "ca.key", path) == HD_OK && hd_file_exists(path);
}

static enum hd_status check_host(const char *host)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:";
    const size_t length = strlen(host);

    return length && length <= 253 && strspn(host, allowed) == length
               ? HD_OK
               : hd_err(HD_INVALID, "\"%s\" is no host name and no numeric address", host);
}

static enum hd_status write_hosts(const char *state_dir, const char *const *hosts, size_t count)
{
    char path[PATH_BYTES];
    struct hd_text text = {0};
    enum hd_status st = path_of(state_dir, "hosts", path);

    if (!st && count > HD_AUTHORITY_HOSTS_MAX)
        st = hd_err(HD_LIMIT, "more than %d names for the controller", HD_AUTHORITY_HOSTS_MAX);
    for (size_t i = 0; !st && i < count; i++) {
        st = check_host(hosts[i]);
        hd_text_add(&text, "%s\n", hosts[i]);
    }
    if (!st)
        st = write_file(path, &text, 0644);
    hd_text_free(&text);
    return st;
}

/* Writes the authority's certificate, then its key: the existence of the key marks the authority as
 * complete. */
static enum hd_status write_authority(const char *state_dir, int64_t now_ms)
{
    char cert_path[PATH_BYTES], key_path[PATH_BYTES];
    struct hd_text cert = {0}, key = {0};
    enum hd_status st = hd_pki_make_authority("heddle-authority", now_ms, &cert, &key);

    if (!st)
        st = path_of(state_dir, "ca.pem", cert_path);
    if (!st)
        st = path_of(state_dir, "ca.key", key_path);
    if (!st)
        st = write_file(cert_path, &cert, 0644);
    if (!st)
        st = write_file(key_path, &key, 0600);
    hd_text_free(&cert);
    forget_authority(&key);
    return st;
}

enum hd_status hd_authority_init(const char *state_dir, const char *const *hosts, size_t count,
                                 int64_t now_ms)
{
    char path[PATH_BYTES];
    struct hd_authority *authority = NULL;
    enum hd_status st = path_of(state_dir, "", path);

    if (!st && hd_authority_exists(state_dir))
        st = hd_err(HD_EXISTS, "%s has a certificate authority already", path);
    if (!st)
        st = hd_file_make_dirs(path, 0700);
    if (!st)
        st = write_hosts(state_dir, hosts, count);
    if (!st)
        st = write_authority(state_dir, now_ms);
    if (!st)
        st = hd_authority_open(state_dir, now_ms, &authority); /* also creates server.pem */
    hd_authority_free(authority);
    return st;
}

static enum hd_status read_authority(const char *state_dir, struct hd_authority *authority)
{
    struct hd_pki_certificate cert;
    struct hd_text key = {0};
    enum hd_status st = read_file(state_dir, "ca.pem", &authority->cert);

    if (!st)
        st = read_file(state_dir, "ca.key", &key);
    if (!st)
        st = hd_pki_authority_open(authority->cert.data, key.data, &authority->pki);
    if (!st)
        st = hd_pki_inspect(authority->cert.data, &cert);
    if (!st)
        memcpy(authority->hash, cert.hash, sizeof authority->hash);
    forget_authority(&key);
    return st ? hd_err_prefix(st, "%s/pki", state_dir) : HD_OK;
}

enum hd_status hd_authority_open(const char *state_dir, int64_t now_ms,
                                 struct hd_authority **ret_authority)
{
    struct hd_authority *made = calloc(1, sizeof *made);
    bool renewed;
    enum hd_status st = made ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for an authority");

    if (!st)
        st = path_of(state_dir, "server.pem", made->server_path);
    if (!st)
        st = path_of(state_dir, "ca.pem", made->ca_path);
    if (!st)
        st = read_authority(state_dir, made);
    if (!st && hd_file_exists(made->server_path))
        st = check_server(made);
    if (!st)
        st = hd_authority_renew(made, now_ms, &renewed);
    if (st)
        hd_authority_free(made);
    else
        *ret_authority = made;
    return st;
}

void hd_authority_free(struct hd_authority *authority)
{
    if (!authority)
        return;
    hd_pki_authority_free(authority->pki);
    hd_text_free(&authority->cert);
    free(authority);
}

enum hd_status hd_authority_sign(const struct hd_authority *authority, const char *request,
                                 const char *name, int64_t from_ms, int64_t to_ms,
                                 struct hd_text *ret_cert, unsigned char *ret_hash)
{
    const struct hd_pki_terms terms = {
        .name = name, .use = HD_PKI_CLIENT, .from_ms = from_ms, .to_ms = to_ms};
    struct hd_pki_certificate cert;
    enum hd_status st = hd_pki_sign(authority->pki, request, &terms, ret_cert);

    if (!st)
        st = hd_pki_inspect(ret_cert->data, &cert);
    if (!st)
        memcpy(ret_hash, cert.hash, sizeof cert.hash);
    return st;
}
