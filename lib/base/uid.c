#include "base/uid.h"

#include <pwd.h>
#include <stdio.h>
#include <string.h>

enum { ENTRY_BYTES = 16 * 1024 }; /* texts of one entry of the user database */

bool hd_uid_name(uint32_t uid, char ret_name[HD_UID_NAME_MAX])
{
    char texts[ENTRY_BYTES];
    struct passwd entry, *found = NULL;

    if (getpwuid_r((uid_t)uid, &entry, texts, sizeof texts, &found) == 0 && found &&
        strlen(found->pw_name) < HD_UID_NAME_MAX) {
        (void)strcpy(ret_name, found->pw_name);
        return true;
    }
    (void)snprintf(ret_name, HD_UID_NAME_MAX, "%u", (unsigned)uid);
    return false;
}
