#include "base/user.h"

#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.@";
static const char digits[] = "0123456789";

bool hd_user_is_uid(const char *word, uint32_t *ret_uid)
{
    int64_t uid;

    /* one spelling for each: no sign, no zero before others */
    if (!hd_text_starts(word, "uid:") || strspn(word + 4, digits) != strlen(word + 4) ||
        (word[4] == '0' && word[5]) || hd_text_to_int64(word + 4, 0, UINT32_MAX - 1, &uid))
        return false;
    *ret_uid = (uint32_t)uid;
    return true;
}

enum hd_status hd_user_check(const char *word)
{
    const size_t n = strlen(word);
    uint32_t uid = 1;

    if (!hd_user_is_uid(word, &uid) && (!n || n > HD_USER_BYTES_MAX || strspn(word, letters) != n ||
                                        strchr("-.", word[0]) || strspn(word, digits) == n))
        return hd_err(HD_INVALID,
                      "\"%.80s\" is no name of a system user; write one such as ann, or uid:1001",
                      word);
    return uid == 0 || strcmp(word, "root") == 0
               ? hd_err(HD_DENIED, "jobs never run as root; name another system user")
               : HD_OK;
}

enum hd_status hd_user_check_folder(const char *dir, const char *command)
{
    const struct passwd *user;
    struct stat info;
    char name[HD_USER_BYTES_MAX];

    if (geteuid() != 0 || stat(dir, &info) < 0 || info.st_uid == 0)
        return HD_OK;
    user = getpwuid(info.st_uid);
    if (user)
        (void)snprintf(name, sizeof name, "%s", user->pw_name);
    else
        (void)snprintf(name, sizeof name, "%u", (unsigned)info.st_uid);
    return hd_err(HD_INVALID,
                  "%s belongs to user %s, who could not read what root makes in it; run it as that "
                  "user: runuser -u %s -- %s ...",
                  dir, name, name, command);
}
