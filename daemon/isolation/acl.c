#include "daemon/isolation/acl.h"

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

/* The kernel's format of an access list (linux/posix_acl_xattr.h): a version, then entries sorted
 * by tag and id; all little endian. */
enum {
    VERSION = 2,
    OWNER = 0x01,
    USER = 0x02,
    GROUP = 0x04,
    NAMED_GROUP = 0x08,
    MASK = 0x10,
    OTHER = 0x20,
    ENTRIES_MAX = 1024,
};
enum { X = 1, RX = 5, RWX = 7 };

struct entry {
    uint16_t tag, rights;
    uint32_t id;
};

struct entry_list {
    uint32_t version;
    struct entry entries[ENTRIES_MAX];
};

static const char access_list[] = "system.posix_acl_access";
static const char default_list[] = "system.posix_acl_default";

static struct entry entry_of(unsigned tag, unsigned rights, uint32_t id)
{
    return (struct entry){htole16((uint16_t)tag), htole16((uint16_t)rights), htole32(id)};
}

static enum hd_status fail(const char *path)
{
    const int error = errno;

    if (error == EOPNOTSUPP)
        return hd_err(HD_UNSUPPORTED,
                      "the file system of %s has no access lists (POSIX ACLs), by which heddled "
                      "shares a job's folder with the job's user; put the jobs directory on one "
                      "that has, or take the rules for users out of the policy",
                      path);
    if (error == EPERM)
        return hd_err(HD_DENIED,
                      "%s belongs to another user than heddled's, so that its access list cannot "
                      "be changed; check who made it, and run: chown heddle %s",
                      path, path);
    return hd_err(HD_IO, "cannot change the access list of %s: %s", path, strerror(error));
}

static enum hd_status set_list(int fd, const char *path, const char *name,
                               const struct entry_list *list, size_t count)
{
    return fsetxattr(fd, name, list, sizeof list->version + count * sizeof list->entries[0], 0) < 0
               ? fail(path)
               : HD_OK;
}

/* Sets the access list `name` of a folder: rights for one named user besides the owner. */
static enum hd_status set_shared(int fd, const char *path, const char *name, uid_t user,
                                 unsigned group, unsigned other)
{
    struct entry_list list = {.version = htole32(VERSION)};
    size_t n = 0;

    list.entries[n++] = entry_of(OWNER, RWX, UINT32_MAX);
    list.entries[n++] = entry_of(USER, RWX, user);
    list.entries[n++] = entry_of(GROUP, group, UINT32_MAX);
    list.entries[n++] = entry_of(MASK, RWX, UINT32_MAX);
    list.entries[n++] = entry_of(OTHER, other, UINT32_MAX);
    return set_list(fd, path, name, &list, n);
}

enum hd_status hd_acl_grant(int dir_fd, const char *path, const struct hd_acl_share *share)
{
    const unsigned group = share->group_reads ? RX : 0;
    struct stat info;
    enum hd_status st;

    /* Each list is replaced as a whole: ranks of the attempt on another node may be inside already,
     * and must not lose their rights in between. */
    st = set_shared(dir_fd, path, default_list, share->daemon, group, RX);
    if (!st)
        st = set_shared(dir_fd, path, access_list, share->job, group, share->is_gate ? 0 : RX);
    if (!st && fstat(dir_fd, &info) < 0)
        st = fail(path);
    if (!st && share->sticky && !(info.st_mode & S_ISVTX) &&
        /* the group bits of the mode are the list's mask, so keep them */
        fchmod(dir_fd, (info.st_mode & 07777) | S_ISVTX) < 0)
        st = fail(path);
    return st;
}

/* Reads the access list of a folder; if it has none, makes one from the file mode. */
static size_t read_list(int fd, const struct stat *info, struct entry_list *ret_list)
{
    const ssize_t n = fgetxattr(fd, access_list, ret_list, sizeof *ret_list);

    if (n >= (ssize_t)sizeof ret_list->version)
        return ((size_t)n - sizeof ret_list->version) / sizeof ret_list->entries[0];
    *ret_list = (struct entry_list){.version = htole32(VERSION)};
    ret_list->entries[0] = entry_of(OWNER, info->st_mode >> 6 & 7, UINT32_MAX);
    ret_list->entries[1] = entry_of(GROUP, info->st_mode >> 3 & 7, UINT32_MAX);
    ret_list->entries[2] = entry_of(OTHER, info->st_mode & 7, UINT32_MAX);
    return 3;
}

/* Inserts the entry `new` into a list sorted by tag and id, or adds its rights to an existing
 * entry. Returns the new number of entries. */
static size_t merge(struct entry_list *list, size_t count, struct entry new)
{
    size_t at = 0;

    while (at < count &&
           (le16toh(list->entries[at].tag) < le16toh(new.tag) ||
            (list->entries[at].tag == new.tag &&le32toh(list->entries[at].id) < le32toh(new.id))))
        at++;
    if (at < count && list->entries[at].tag == new.tag && list->entries[at].id == new.id) {
        list->entries[at].rights |= new.rights;
        return count;
    }
    memmove(&list->entries[at + 1], &list->entries[at], (count - at) * sizeof list->entries[0]);
    list->entries[at] = new;
    return count + 1;
}

/* Returns the rights that the list's mask must keep: those of an existing mask, else those of the
 * group. */
static unsigned group_rights(const struct entry_list *list, size_t count)
{
    unsigned rights = 0;

    for (size_t i = 0; i < count; i++)
        if (le16toh(list->entries[i].tag) == MASK)
            return le16toh(list->entries[i].rights);
        else if (le16toh(list->entries[i].tag) == GROUP)
            rights = le16toh(list->entries[i].rights);
    return rights;
}

enum hd_status hd_acl_let_pass(int dir_fd, const char *path, uid_t uid)
{
    struct entry_list list;
    struct stat info;
    size_t count;

    if (fstat(dir_fd, &info) < 0)
        return hd_err(HD_IO, "cannot stat %s: %s", path, strerror(errno));
    if (info.st_mode & S_IXOTH || info.st_uid == uid)
        return HD_OK;
    count = read_list(dir_fd, &info, &list);
    if (count + 2 > ENTRIES_MAX)
        return hd_err(HD_LIMIT, "the access list of %s has %zu entries; run: chmod o+x %s", path,
                      count, path);
    for (size_t i = 0; i < count; i++)
        if (le16toh(list.entries[i].tag) == USER && le32toh(list.entries[i].id) == uid &&
            le16toh(list.entries[i].rights) & X && group_rights(&list, count) & X)
            return HD_OK;
    count = merge(&list, count, entry_of(MASK, group_rights(&list, count) | X, UINT32_MAX));
    count = merge(&list, count, entry_of(USER, X, uid));
    return set_list(dir_fd, path, access_list, &list, count);
}
