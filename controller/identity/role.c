#include <string.h>

#include "controller/identity/identity.h"

const char *hd_role_name(enum hd_role role)
{
    switch (role) {
#define X(code, word)    \
    case HD_ROLE_##code: \
        return word;
        HD_ROLE_LIST(X)
#undef X
    case HD_ROLE_COUNT:
        break;
    }
    return "unknown";
}

bool hd_role_of(const char *word, enum hd_role *ret_role)
{
    for (int role = 0; role < HD_ROLE_COUNT; role++) {
        if (role == HD_ROLE_INVITED || role == HD_ROLE_NODE ||
            strcmp(hd_role_name((enum hd_role)role), word) != 0)
            continue;
        *ret_role = (enum hd_role)role;
        return true;
    }
    return false;
}

bool hd_role_has(enum hd_role role, enum hd_role least)
{
    if (least == HD_ROLE_NONE || role == HD_ROLE_NONE)
        return false;
    if (least == HD_ROLE_NODE || least == HD_ROLE_INVITED)
        return role == least;
    return role >= least && role >= HD_ROLE_VIEWER;
}

bool hd_identity_is_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@";
    const size_t length = strlen(name);

    /* digits alone are a credential's id; "token" and "node" name tokens without a name */
    return length >= 1 && strspn(name, "0123456789") < length && length <= 64 &&
           strspn(name, allowed) == length && strcmp(name, "token") != 0 &&
           strcmp(name, "node") != 0;
}
