#include "rpc/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "rpc/rpc.h"

static bool host_is_loopback(const char *host)
{
    struct in6_addr v6;
    struct in_addr v4;

    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static enum hd_status parse_unix(const char *path, struct hd_rpc_address *ret)
{
    size_t len_bytes = strlen(path);

    if (!len_bytes)
        return hd_err(HD_INVALID, "the address unix: has no path; write unix:/run/heddle/x.sock");
    if (len_bytes > HD_RPC_UNIX_PATH_MAX)
        return hd_err(HD_INVALID,
                      "the socket path %s has %zu bytes, a Unix socket can have %d; choose a "
                      "shorter directory",
                      path, len_bytes, HD_RPC_UNIX_PATH_MAX);
    ret->is_unix = ret->is_loopback = true;
    memcpy(ret->path, path, len_bytes + 1);
    return HD_OK;
}

enum hd_status hd_rpc_parse_address(const char *text, struct hd_rpc_address *ret_address)
{
    const char *colon = strrchr(text, ':'), *host = text;
    struct hd_rpc_address address = {0};
    size_t host_bytes;
    enum hd_status st;
    int64_t port;

    if (hd_text_starts(text, "unix:")) {
        st = parse_unix(text + strlen("unix:"), &address);
        if (!st)
            *ret_address = address;
        return st;
    }
    if (strstr(text, "://"))
        return hd_err(HD_INVALID, "the address %s is a URL; write it as HOST:PORT", text);
    if (!colon || colon == text)
        return hd_err(HD_INVALID, "the address %s is neither unix:PATH nor HOST:PORT", text);
    host_bytes = (size_t)(colon - text);
    if (text[0] == '[' && text[host_bytes - 1] == ']') {
        host++;
        host_bytes -= 2;
    } else if (memchr(text, ':', host_bytes)) {
        return hd_err(HD_INVALID, "the address %s is ambiguous; write IPv6 as [HOST]:PORT", text);
    }
    if (!host_bytes || host_bytes > HD_RPC_HOST_MAX)
        return hd_err(HD_INVALID,
                      "the host in the address %.64s has %zu bytes; 1 to %d are allowed", text,
                      host_bytes, HD_RPC_HOST_MAX);
    for (size_t i = 0; i < host_bytes; i++)
        if (!isalnum((unsigned char)host[i]) && !strchr(".-_:%", host[i]))
            return hd_err(HD_INVALID, "the address %s has an invalid character in its host", text);
    if (hd_text_to_int64(colon + 1, 0, 65535, &port))
        return hd_err(HD_INVALID, "the address %s needs a port from 0 to 65535 after the colon",
                      text);
    memcpy(address.host, host, host_bytes);
    address.port = (int)port;
    address.is_loopback = host_is_loopback(address.host);
    *ret_address = address;
    return HD_OK;
}

void hd_rpc_format_host_port(const struct hd_rpc_address *address,
                             char ret_text[HD_RPC_ADDRESS_MAX + 1])
{
    (void)snprintf(ret_text, HD_RPC_ADDRESS_MAX + 1,
                   strchr(address->host, ':') ? "[%s]:%d" : "%s:%d", address->host, address->port);
}

void hd_rpc_format_target(const struct hd_rpc_address *address, char ret_target[HD_RPC_TARGET_MAX])
{
    char *out = ret_target;

    if (!address->is_unix) {
        hd_rpc_format_host_port(address, ret_target);
        return;
    }
    out += sprintf(out, "unix:");
    for (const unsigned char *p = (const unsigned char *)address->path; *p; p++) {
        if (isalnum(*p) || strchr("/._-~", *p))
            *out++ = (char)*p;
        else
            out += sprintf(out, "%%%02X", *p);
    }
    *out = '\0';
}

enum hd_status hd_rpc_resolve(const struct hd_rpc_address *address,
                              struct sockaddr_storage *ret_peer, socklen_t *ret_peer_bytes)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct sockaddr_un *un = (struct sockaddr_un *)ret_peer;
    const char *host = address->host;
    struct addrinfo *found;
    char port[8];
    int code;

    memset(ret_peer, 0, sizeof *ret_peer);
    if (address->is_unix) {
        un->sun_family = AF_UNIX;
        /* fits: both have HD_RPC_UNIX_PATH_MAX bytes and a NUL */
        strcpy(un->sun_path, address->path);
        *ret_peer_bytes = sizeof *un;
        return HD_OK;
    }
    if (strcmp(host, "0.0.0.0") == 0)
        host = "127.0.0.1";
    else if (strcmp(host, "::") == 0)
        host = "::1";
    (void)snprintf(port, sizeof port, "%d", address->port);
    code = getaddrinfo(host, port, &hints, &found);
    if (code)
        return hd_err(HD_UNAVAILABLE, "cannot find the host %s: %s", host, gai_strerror(code));
    memcpy(ret_peer, found->ai_addr, found->ai_addrlen);
    *ret_peer_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return HD_OK;
}

enum hd_status hd_rpc_check_address(const char *address)
{
    struct hd_rpc_address parsed;

    return hd_rpc_parse_address(address, &parsed);
}

bool hd_rpc_address_is_unix(const char *address)
{
    return hd_text_starts(address, "unix:");
}

bool hd_rpc_address_is_loopback(const char *address)
{
    struct hd_rpc_address parsed;

    return hd_rpc_parse_address(address, &parsed) == HD_OK && parsed.is_loopback;
}
