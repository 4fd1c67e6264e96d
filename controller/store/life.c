/* life: decides whether a missing or empty database file may be created anew.
 *
 * SQLite treats an empty or missing file as a database without tables. After a disk lost the file,
 * or a copy failed, a start would silently create an empty cluster: no job, no account, no node. So
 * a state directory with traces of an earlier controller is refused.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "controller/store/store_internal.h"

enum { SIGN_BYTES = 512 };

/* Returns the size of a file in bytes; -1: there is none. */
static int64_t size_of(const char *dir, const char *name)
{
    char path[HD_CTL_PATH_BYTES_MAX];
    struct stat info;

    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path ||
        stat(path, &info) < 0)
        return -1;
    return info.st_size;
}

/* Finds the first name in a folder for which `is_sign` is true; returns whether there is one. */
static bool find_entry(const char *dir, bool (*is_sign)(const char *dir, const char *name),
                       char ret_name[256])
{
    DIR *folder = opendir(dir);
    const struct dirent *entry;
    bool found = false;

    while (folder && !found && (entry = readdir(folder)) != NULL) {
        found = is_sign(dir, entry->d_name);
        if (found)
            (void)snprintf(ret_name, 256, "%s", entry->d_name);
    }
    if (folder)
        (void)closedir(folder);
    return found;
}

static bool is_backup(const char *dir, const char *name)
{
    return hd_text_ends(name, ".db") && strcmp(name, "state.db") != 0 && size_of(dir, name) > 0;
}

static bool is_job(const char *dir, const char *name)
{
    (void)dir;
    return *name >= '1' && *name <= '9' && strspn(name, "0123456789") == strlen(name);
}

static bool find_sign(const char *dir, char ret_sign[SIGN_BYTES])
{
    char path[HD_CTL_PATH_BYTES_MAX], name[256];

    (void)snprintf(path, sizeof path, "%s/jobs", dir);
    if (size_of(dir, STORE_ASIDE_NAME) >= 0)
        (void)snprintf(ret_sign, SIGN_BYTES,
                       "the database that an interrupted heddle-controller restore moved, in the "
                       "folder " STORE_ASIDE_NAME);
    else if (size_of(dir, STORE_RESTORED_NAME) > 0)
        (void)snprintf(
            ret_sign, SIGN_BYTES,
            "the copy of an interrupted heddle-controller restore, " STORE_RESTORED_NAME);
    else if (size_of(dir, "state.db-wal") > 0)
        (void)snprintf(ret_sign, SIGN_BYTES, "the log of its last transactions, state.db-wal");
    else if (size_of(dir, "pki/ca.pem") > 0)
        (void)snprintf(ret_sign, SIGN_BYTES, "the cluster's certificate authority, pki/ca.pem");
    else if (find_entry(dir, is_backup, name))
        (void)snprintf(ret_sign, SIGN_BYTES, "a backup, %s", name);
    else if (find_entry(path, is_job, name))
        (void)snprintf(ret_sign, SIGN_BYTES, "the folder of a job, jobs/%s", name);
    else if (size_of(dir, "epoch") > 0) /* each start writes it, after a database was opened */
        (void)snprintf(ret_sign, SIGN_BYTES, "the number of a controller's start, the file epoch");
    else if (size_of(dir, "reserve") > 0) /* the reserve is created only after a database was
                                           * opened */
        (void)snprintf(ret_sign, SIGN_BYTES, "the disk reserve of a controller, the file reserve");
    else
        return false;
    return true;
}

/* Returns whether a controller, or init, has used `dir`. Backups and job folders in it are no sign
 * of that, because folders of backups and jobs directories contain them, too. */
bool store_is_state_dir(const char *dir)
{
    static const char *const names[] = {"state.db", "state.db-wal", "epoch",
                                        "reserve",  "pki/ca.pem",   STORE_ASIDE_NAME};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (size_of(dir, names[i]) >= 0)
            return true;
    return false;
}

static bool is_content(const char *dir, const char *name)
{
    (void)dir;
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "lost+found") != 0 &&
           /* an earlier try may have left the lock file, and the copy with its journal */
           strcmp(name, "lock") != 0 && !hd_text_starts(name, STORE_RESTORED_NAME);
}

bool store_is_empty(const char *dir)
{
    char name[256];

    return !find_entry(dir, is_content, name);
}

enum hd_status store_check_life(const char *dir)
{
    const int64_t size_bytes = size_of(dir, "state.db");
    char sign[SIGN_BYTES];

    if (size_bytes > 0 || !find_sign(dir, sign))
        return HD_OK;
    return hd_err(
        HD_CORRUPT,
        "%s/state.db is %s, but beside it is %s: the database of a controller that worked "
        "here is lost. Restore a backup (docs/operations.md, \"Backup\"). To begin anew "
        "instead, without jobs, accounts and nodes, move all that is in %s to another "
        "folder first",
        dir, size_bytes < 0 ? "missing" : "empty", sign, dir);
}
