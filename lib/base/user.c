#include "base/user.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "base/uid.h"

enum { OVERFLOW_UID = 65534, PROC_BYTES_MAX = 64 * 1024 };

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.@";
static const char digits[] = "0123456789";

bool hd_user_is_uid(const char *word, uint32_t *ret_uid)
{
    int64_t uid;

    /* one spelling per number: no sign, no leading zeros */
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
    struct stat info;
    char name[HD_UID_NAME_MAX];

    if (geteuid() != 0 || stat(dir, &info) < 0 || info.st_uid == 0)
        return HD_OK;
    (void)hd_uid_name(info.st_uid, name);
    return hd_err(HD_INVALID,
                  "%s belongs to user %s, who could not read what root makes in it; run it as that "
                  "user: runuser -u %s -- %s ...",
                  dir, name, name, command);
}

/* ---- owners of files --------------------------------------------------------------------------
 */

bool hd_user_map_is_whole(const char *map)
{
    unsigned long first, outside, count;

    return sscanf(map, "%lu %lu %lu", &first, &outside, &count) == 3 && first == 0 &&
           count >= UINT32_MAX;
}

/* Returns whether `uid` may be the overflow uid, which the kernel reports for every owner outside
 * this process's user namespace. Assumes that
 * there is such a namespace if the process cannot read its map. */
static bool may_be_unmapped(uid_t uid)
{
    struct hd_text text = {0};
    int64_t overflow = OVERFLOW_UID;
    bool whole;

    if (hd_file_read("/proc/sys/kernel/overflowuid", PROC_BYTES_MAX, &text) == HD_OK && text.data) {
        text.data[strcspn(text.data, "\n")] = '\0';
        (void)hd_text_to_int64(text.data, 0, UINT32_MAX, &overflow);
    }
    hd_text_free(&text);
    if ((int64_t)uid != overflow)
        return false;
    text = (struct hd_text){0};
    whole = hd_file_read("/proc/self/uid_map", PROC_BYTES_MAX, &text) == HD_OK && text.data &&
            hd_user_map_is_whole(text.data);
    hd_text_free(&text);
    return !whole;
}

/* info: of the open file. */
static enum hd_status check_owner(const char *path, const struct stat *info, const char *dir)
{
    const uid_t self = geteuid();
    struct stat folder;
    char name[HD_UID_NAME_MAX], wanted[HD_UID_NAME_MAX];

    if (!S_ISREG(info->st_mode) || info->st_uid == 0 || info->st_uid == self || (self == 0 && !dir))
        return HD_OK;
    if ((self == 0 && stat(dir, &folder) == 0 && folder.st_uid == info->st_uid) ||
        may_be_unmapped(info->st_uid))
        return HD_OK;
    (void)hd_uid_name(info->st_uid, name);
    (void)hd_uid_name(self, wanted);
    return hd_err(HD_DENIED,
                  "%s belongs to user %s, who could change it; if its content is what you want, "
                  "run: chown %s %s",
                  path, name, wanted, path);
}

enum hd_status hd_user_read_file(const char *path, size_t max_bytes, int patience_ms,
                                 const char *dir, mode_t *ret_mode, struct hd_text *ret_text)
{
    struct stat info;
    enum hd_status st = hd_file_read_open(path, max_bytes, patience_ms, ret_text, &info);

    if (st)
        return st;
    *ret_mode = info.st_mode;
    return check_owner(path, &info, dir);
}
