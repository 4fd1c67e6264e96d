#include "daemon/launcher/users.h"

#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum {
    PEOPLE_FIRST = 1000, /* first uid of people; lower ones are system users */
    /* up to DYNAMIC_LAST: uids that systemd gives to running services (DynamicUser=); among them
     * 65534, the uid of the system user called "nobody" */
    DYNAMIC_FIRST = 61184,
    DYNAMIC_LAST = 65535,
    GROUPS_MAX = 1024
};

/* Copies the next word of the list, at most HD_USER_BYTES_MAX bytes and an @; false: none is left.
 */
static bool next_word(const char **at, char ret_word[HD_USER_BYTES_MAX + 2])
{
    const size_t n = strcspn(*at, ",");

    if (!**at)
        return false;
    (void)snprintf(ret_word, HD_USER_BYTES_MAX + 2, "%.*s", (int)n, *at);
    *at += n + ((*at)[n] == ',');
    return true;
}

enum hd_status users_check_list(const char *list)
{
    char word[HD_USER_BYTES_MAX + 2];
    enum hd_status st = HD_OK;

    for (const char *at = list; !st && next_word(&at, word);) {
        st = hd_user_check(word[0] == '@' ? word + 1 : word);
        if (!st && hd_text_starts(word, "uid:"))
            st = hd_err(HD_INVALID, "%s: name the user", word);
    }
    return st ? hd_err_prefix(HD_INVALID, "--job-users: write names, @GROUP or all, with commas")
              : HD_OK;
}

static bool is_listed(const struct launch_users *users, const char *name)
{
    char word[HD_USER_BYTES_MAX + 2];

    for (const char *at = users->list; next_word(&at, word);)
        if (strcmp(word, name) == 0)
            return true;
    return false;
}

static bool is_in_group(const struct passwd *entry, const char *group)
{
    const struct group *found = getgrnam(group);
    const gid_t wanted = found ? found->gr_gid : (gid_t)-1;
    gid_t groups[GROUPS_MAX];
    int count = GROUPS_MAX;

    if (!found || getgrouplist(entry->pw_name, entry->pw_gid, groups, &count) < 0)
        return false;
    for (int i = 0; i < count; i++)
        if (groups[i] == wanted)
            return true;
    return false;
}

static bool is_in_listed_group(const struct launch_users *users, const struct passwd *entry)
{
    char word[HD_USER_BYTES_MAX + 2];

    for (const char *at = users->list; next_word(&at, word);)
        if (word[0] == '@' && is_in_group(entry, word + 1))
            return true;
    return false;
}

static enum hd_status check_user(const struct launch_users *users, const struct passwd *entry)
{
    const unsigned uid = (unsigned)entry->pw_uid;

    if (uid == 0 || entry->pw_gid == 0)
        return hd_err(HD_DENIED, "%.64s is root or of its group, as whom jobs never run",
                      entry->pw_name);
    if (entry->pw_uid == users->own)
        return hd_err(HD_DENIED,
                      "%.64s is heddled's own user; where that is meant, the policy says own",
                      entry->pw_name);
    if (strcmp(entry->pw_name, "all") != 0 && is_listed(users, entry->pw_name))
        return HD_OK;
    if (uid < PEOPLE_FIRST || (uid >= DYNAMIC_FIRST && uid <= DYNAMIC_LAST))
        return hd_err(HD_DENIED,
                      "%.64s (uid %u) is a system user; where that is meant, list it by name: "
                      "HEDDLE_LAUNCHER_ARGS=--job-users %.64s in /etc/heddle/launcher.env",
                      entry->pw_name, uid, entry->pw_name);
    if (is_listed(users, "all") || is_in_listed_group(users, entry))
        return HD_OK;
    return hd_err(HD_DENIED,
                  "this machine starts no jobs as %.64s (uid %u): --job-users of heddle-launcher "
                  "does not list it; write HEDDLE_LAUNCHER_ARGS=--job-users all, or names and "
                  "@GROUP, to /etc/heddle/launcher.env, and restart heddle-launcher and heddled",
                  entry->pw_name, uid);
}

enum hd_status users_find(const struct launch_users *users, const char *word,
                          struct launch_user *ret_user)
{
    const struct passwd *entry;
    enum hd_status st;
    uint32_t uid;

    entry = hd_user_is_uid(word, &uid) ? getpwuid((uid_t)uid) : getpwnam(word);
    if (!entry)
        return hd_err(HD_NOT_FOUND,
                      "this machine has no user %s; make it here, or in the directory "
                      "service of this machine, or name another one in the policy",
                      word);
    st = check_user(users, entry);
    if (!st)
        *ret_user = (struct launch_user){.uid = entry->pw_uid, .gid = entry->pw_gid};
    return st;
}
