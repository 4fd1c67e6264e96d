/* invitation: the line by which a node joins. Its parts cannot contain a '/'. */
#include <string.h>

#include "pki/pki.h"

#define FIRST "heddle-invite"
enum { PARTS = 6 };

bool hd_pki_is_node_name(const char *name)
{
    const size_t length = strlen(name);

    return length >= 1 && length < HD_PKI_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == length && name[0] != '-' &&
           name[0] != '.';
}

bool hd_pki_is_node_pattern(const char *name)
{
    const size_t length = strlen(name);
    char beginning[HD_PKI_NAME_MAX];

    if (length < 1 || length >= HD_PKI_NAME_MAX || name[length - 1] != '*')
        return false;
    memcpy(beginning, name, length - 1);
    beginning[length - 1] = '\0';
    return length == 1 || hd_pki_is_node_name(beginning);
}

bool hd_pki_is_invited(const char *invited, const char *node)
{
    if (!hd_pki_is_node_name(node))
        return false;
    if (hd_pki_is_node_pattern(invited))
        return strncmp(invited, node, strlen(invited) - 1) == 0;
    return strcmp(invited, node) == 0;
}

void hd_pki_invitation_write(const struct hd_pki_invitation *invitation, struct hd_text *ret_line)
{
    char hash[HD_PKI_HASH_TEXT_MAX];

    hd_pki_format_hash(invitation->ca_hash, hash);
    hd_text_add(ret_line, FIRST "/1/%s/%s/%s/%s", invitation->node, invitation->address, hash,
                invitation->secret);
}

/* Checks for HOST:PORT, with a port from 1 to 65535; [ADDRESS]:PORT for IPv6. */
static bool is_address(const char *text)
{
    const char *colon = strrchr(text, ':');
    int64_t port;

    return colon && colon != text && hd_text_to_int64(colon + 1, 1, 65535, &port) == HD_OK &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]%") ==
               strlen(text);
}

enum hd_status hd_pki_invitation_read(const char *line, struct hd_pki_invitation *ret_invitation)
{
    struct hd_pki_invitation made = {.node = ""};
    char copy[1024], *parts[PARTS], *rest = copy;
    const size_t length = strcspn(line, "\r\n");
    unsigned char secret[HD_PKI_HASH_BYTES];
    enum hd_status st = HD_OK;
    size_t count = 0;

    if (length >= sizeof copy || line[length + strspn(line + length, "\r\n")])
        return hd_err(HD_INVALID, "this is not one line of heddle node invite");
    memcpy(copy, line, length);
    copy[length] = '\0';
    while (rest && count < PARTS) {
        parts[count++] = rest;
        rest = strchr(rest, '/');
        if (rest)
            *rest++ = '\0';
    }
    if (count < PARTS || rest || strcmp(parts[0], FIRST) != 0)
        st = hd_err(HD_INVALID,
                    "this is not a whole line of heddle node invite: it has the form " FIRST
                    "/1/NAME/HOST:PORT/HASH/SECRET");
    else if (strcmp(parts[1], "1") != 0)
        st = hd_err(HD_UNSUPPORTED, "the invitation was made by a newer Heddle; upgrade this one");
    else if (!hd_pki_is_node_name(parts[2]) && !hd_pki_is_node_pattern(parts[2]))
        st = hd_err(HD_INVALID, "the invitation is for no possible name of a node");
    else if (strlen(parts[3]) >= sizeof made.address || !is_address(parts[3]))
        st = hd_err(HD_INVALID, "the invitation has no address HOST:PORT");
    else if (!hd_pki_parse_hash(parts[4], made.ca_hash) || !hd_pki_parse_hash(parts[5], secret))
        st = hd_err(HD_INVALID, "the invitation is damaged: its hash or its secret is not 64 "
                                "hexadecimal digits; was it copied whole?");
    if (!st) {
        memcpy(made.node, parts[2], strlen(parts[2]) + 1);
        memcpy(made.address, parts[3], strlen(parts[3]) + 1);
        memcpy(made.secret, parts[5], sizeof made.secret);
        *ret_invitation = made;
    }
    explicit_bzero(copy, sizeof copy);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(&made, sizeof made);
    return st;
}
