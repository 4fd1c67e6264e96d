#include "controller/cli/local_controller.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

/* Lock file in the private folder; its name marks folders made by this program. */
#define LOCK_NAME "heddle-local.lock"

enum {
    START_MS = 30000,  /* time within which the controller must answer, ms */
    TEMP_DIR_MAX = 40, /* longest $TMPDIR used, bytes; a longer one is ignored */
    POLL_US = 10000,
};

/* Removes private folders of killed commands, recognized by a free lock. */
static void remove_abandoned_dirs(const char *base)
{
    DIR *dir = opendir(base);
    const struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char path[LOCAL_DIR_MAX], lock[LOCAL_DIR_MAX + 32];
        struct stat info;
        int fd;

        if (!hd_text_starts(entry->d_name, "heddle-") || strlen(entry->d_name) != 13)
            continue;
        (void)snprintf(path, sizeof path, "%.*s/%.13s", TEMP_DIR_MAX, base, entry->d_name);
        (void)snprintf(lock, sizeof lock, "%s/" LOCK_NAME, path);
        if (lstat(path, &info) < 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
            !hd_file_exists(lock) || hd_file_lock(lock, &fd))
            continue;
        (void)hd_file_remove_tree(path); /* best effort: the next run retries */
        (void)close(fd);
    }
    if (dir)
        (void)closedir(dir);
}

/* Another command that removes abandoned folders may lock the new folder first and remove it; then
 * another folder is made. */
enum hd_status local_controller_make_dir(struct local_controller *c)
{
    const char *base = getenv("TMPDIR");
    char lock[LOCAL_DIR_MAX + 32];
    enum hd_status st;
    int fd;

    if (!base || base[0] != '/' || strlen(base) > TEMP_DIR_MAX)
        base = "/tmp";
    remove_abandoned_dirs(base);
    do {
        (void)snprintf(c->dir, sizeof c->dir, "%.*s/heddle-XXXXXX", TEMP_DIR_MAX, base);
        if (!mkdtemp(c->dir)) {
            st = hd_err(HD_IO, "cannot make a folder in %s: %s", base, strerror(errno));
            c->dir[0] = '\0';
            return st;
        }
        (void)snprintf(lock, sizeof lock, "%s/" LOCK_NAME, c->dir);
        st = hd_file_lock(lock, &fd);
    } while (st == HD_CONFLICT);
    (void)snprintf(c->address, sizeof c->address, "unix:%s/c.sock", c->dir);
    return st;
}

enum hd_status local_controller_start(struct local_controller *c,
                                      const struct local_controller_options *options)
{
    const char *argv[] = {"heddle-controller",
                          "--ephemeral",
                          "--end-jobs",
                          "--state-dir",
                          options->state_dir,
                          "--listen",
                          c->address,
                          "--jobs-dir",
                          options->jobs_dir,
                          "--state-reserve",
                          "0",
                          options->http ? "--http" : NULL,
                          options->http,
                          NULL};

    (void)snprintf(c->log, sizeof c->log, "%s", options->log);
    return process_start(argv, c->log, &c->process);
}

static bool answers(const char *socket_path)
{
    const int fd = process_reach(socket_path);

    if (fd >= 0)
        (void)close(fd);
    return fd >= 0;
}

enum hd_status local_controller_await(struct local_controller *c,
                                      const volatile sig_atomic_t *interrupted)
{
    const int64_t end_ms = hd_clock_now_ms() + START_MS;

    while (!answers(c->address + strlen("unix:"))) {
        if (process_has_ended(&c->process))
            return process_explain(&c->process);
        if (*interrupted)
            return hd_err(HD_ABORTED, "interrupted");
        if (hd_clock_now_ms() > end_ms)
            return hd_err(HD_TIMEOUT, "heddle-controller did not answer within %d s; see %s",
                          START_MS / 1000, c->log);
        (void)usleep(POLL_US);
    }
    return HD_OK;
}
