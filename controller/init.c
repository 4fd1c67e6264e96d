/* The authority comes last: where it is, all is. An init that was interrupted is made again, with
 * another token. */
#include "controller/init.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/identity/authority.h"
#include "controller/identity/identity.h"
#include "controller/store/store.h"

#define ADMIN_MS (INT64_C(365) * 86400000)

struct names {
    struct hd_arena arena;
    const char *items[HD_AUTHORITY_HOSTS_MAX];
    size_t count;
    bool full;
};

static void add(struct names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0)
            return;
    names->full |= names->count == HD_AUTHORITY_HOSTS_MAX;
    if (*name && !names->full)
        names->items[names->count++] = hd_arena_strdup(&names->arena, name);
}

/* Addresses of this machine, but those that are for one link alone. */
static void add_addresses(struct names *names)
{
    struct ifaddrs *all = NULL;
    char text[INET6_ADDRSTRLEN];

    if (getifaddrs(&all) < 0)
        return; /* --host names them */
    for (const struct ifaddrs *each = all; each; each = each->ifa_next) {
        const struct sockaddr_in *v4 = (const void *)each->ifa_addr;
        const struct sockaddr_in6 *v6 = (const void *)each->ifa_addr;

        if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET &&
            inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text))
            add(names, text);
        if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET6 &&
            !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) &&
            inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text))
            add(names, text);
    }
    freeifaddrs(all);
}

/* Lists the names of a certificate; those that the operator gives come first, because a machine with
 * many addresses may have more than a certificate takes. */
static enum hd_status find_names(struct names *names, const char *hosts)
{
    const struct addrinfo hints = {.ai_flags = AI_CANONNAME, .ai_family = AF_UNSPEC};
    struct addrinfo *found = NULL;
    char host[256] = "", *copy = hosts ? hd_arena_strdup(&names->arena, hosts) : NULL, *rest = NULL;

    for (char *name = copy ? strtok_r(copy, ", ", &rest) : NULL; name;
         name = strtok_r(NULL, ", ", &rest))
        add(names, name);
    if (names->full)
        return hd_err(HD_LIMIT, "--host: more than %d names", HD_AUTHORITY_HOSTS_MAX);
    add(names, "localhost");
    if (gethostname(host, sizeof host - 1) == 0) {
        add(names, host);
        if (getaddrinfo(host, NULL, &hints, &found) == 0 && found->ai_canonname)
            add(names, found->ai_canonname);
        if (found)
            freeaddrinfo(found);
    }
    add_addresses(names);
    return hd_arena_failed(&names->arena) ? hd_err(HD_NO_MEMORY, "no memory for names") : HD_OK;
}

/* A token of the name admin, in the database and in STATE_DIR/admin.token. */
static enum hd_status make_admin(const char *state_dir, const char *path)
{
    const int64_t now_ms = hd_clock_wall_ms();
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_TOKEN,
                                        .name = "admin",
                                        .role = hd_role_name(HD_ROLE_ADMIN),
                                        .made_by = "init",
                                        .made_ms = now_ms,
                                        .expires_ms = now_ms + ADMIN_MS};
    struct hd_batch *batch = hd_batch_new();
    char secret[HD_PKI_HASH_TEXT_MAX + 1];
    enum hd_status st = batch ? hd_store_last_credential(state_dir, &made.id)
                              : hd_err(HD_NO_MEMORY, "no memory for a token");

    if (!st)
        st = hd_pki_make_secret(secret);
    if (st) {
        hd_batch_free(batch);
        return st;
    }
    made.id++;
    hd_pki_hash(secret, strlen(secret), made.hash);
    hd_batch_add_credential(batch, &made);
    st = hd_store_write(state_dir, batch);
    (void)strcat(secret, "\n"); /* there is room for it */
    if (!st)
        st = hd_file_write_atomic(path, secret, strlen(secret), 0600);
    explicit_bzero(secret, sizeof secret);
    return st;
}

static enum hd_status print(const char *state_dir, const char *token_path,
                            const struct names *names)
{
    struct hd_text text = {0};
    enum hd_status st;

    hd_text_add(&text, "%s/pki/ca.pem: the certificate authority; people need it: --tls-ca\n",
                state_dir);
    hd_text_add(&text, "%s/pki/server.pem: the controller's certificate, for", state_dir);
    for (size_t i = 0; i < names->count; i++)
        hd_text_add(&text, " %s", names->items[i]);
    hd_text_add(&text,
                "\n%s: the token of admin, valid for a year: --token-file\n"
                "\n"
                "start   heddle-controller --state-dir %s --listen 0.0.0.0:7433\n"
                "invite  heddle node invite NAME --controller HOST:7433 --token-file %s --tls-ca "
                "%s/pki/ca.pem\n"
                "join    heddled join LINE --state-dir DIR     on the node\n",
                token_path, state_dir, token_path, state_dir);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a line") : hd_file_print(text.data);
    hd_text_free(&text);
    return st;
}

enum hd_status controller_init(const char *state_dir, const char *hosts)
{
    char token_path[HD_CTL_PATH_BYTES_MAX];
    struct names names = {.count = 0};
    enum hd_status st = HD_OK;

    hd_arena_init(&names.arena, 0);
    if ((size_t)snprintf(token_path, sizeof token_path, "%s/admin.token", state_dir) >=
        sizeof token_path)
        st = hd_err(HD_INVALID, "the path %s is too long", state_dir);
    if (!st && hd_authority_exists(state_dir))
        st = hd_err(HD_EXISTS,
                    "%s has a certificate authority already; more tokens are made with heddle "
                    "token create",
                    state_dir);
    if (!st)
        st = find_names(&names, hosts);
    if (!st)
        st = hd_file_make_dirs(state_dir, 0700);
    if (!st)
        st = make_admin(state_dir, token_path);
    if (!st)
        st = hd_authority_init(state_dir, names.items, names.count, hd_clock_wall_ms());
    if (!st)
        st = print(state_dir, token_path, &names);
    hd_arena_done(&names.arena);
    return st;
}
