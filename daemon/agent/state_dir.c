#include "daemon/agent/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

#define TRIAL_FILE ".trial" /* a file left behind by a heddled that ended is removed, too */

static enum hd_status try_to_write(const char *dir)
{
    char path[PATH_MAX + 16];
    enum hd_status st = HD_OK;
    int fd;

    (void)snprintf(path, sizeof path, "%s/" TRIAL_FILE, dir);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return hd_err(HD_STORAGE, "%s",
                      errno == ENOENT || errno == ENOTDIR ? "it is not there" : strerror(errno));
    if (write(fd, "x", 1) != 1)
        st = hd_err(HD_STORAGE, "%s", strerror(errno));
    if (close(fd) < 0 && !st)
        st = hd_err(HD_STORAGE, "%s", strerror(errno));
    (void)unlink(path);
    return st;
}

/* Returns whether the state directory is still the one that this heddled opened: its lock file is
 * the locked one. A replacement has another lock file, or none. */
static bool is_ours(const struct agent_identity *id)
{
    char path[PATH_MAX + 8];
    struct stat held, found;

    (void)snprintf(path, sizeof path, "%s/lock", id->state_dir);
    return fstat(id->lock_fd, &held) == 0 && stat(path, &found) == 0 &&
           held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

/* Starts to use a state directory that replaced the old one; records that it contains are not this
 * heddled's. */
static enum hd_status take_over(struct agent_identity *id, struct locals *locals)
{
    enum hd_status st = agent_identity_take(id);

    if (st)
        return st;
    for (struct agent_attempt *l = locals->first; l; l = l->next)
        l->recorded = false;
    hd_log(HD_LOG_INFO, "the state directory %s was replaced; what this heddled knows goes into it",
           id->state_dir);
    return HD_OK;
}

static enum hd_status record_all(const struct agent_identity *id, struct locals *locals)
{
    enum hd_status st = HD_OK;
    char attempts[PATH_MAX + 16];

    (void)snprintf(attempts, sizeof attempts, "%s/attempts", id->state_dir);
    for (struct agent_attempt *l = locals->first; l && !st; l = l->next) {
        if (!l->recorded)
            st = hd_file_make_dirs(attempts, 0700);
        if (!l->recorded && !st)
            st = local_record(l);
    }
    return st;
}

void state_dir_check(struct agent_identity *identity, struct locals *locals,
                     char reason[STATE_DIR_REASON_MAX])
{
    enum hd_status st = try_to_write(identity->state_dir);

    *reason = '\0';
    if (!st && !is_ours(identity))
        st = take_over(identity, locals);
    if (!st)
        st = record_all(identity, locals);
    if (st)
        (void)snprintf(
            reason, STATE_DIR_REASON_MAX,
            "takes no new jobs: its state directory %.200s cannot be used: %.180s; put it "
            "back, or mend its disk (what runs here goes on)",
            identity->state_dir, hd_err_message());
}
