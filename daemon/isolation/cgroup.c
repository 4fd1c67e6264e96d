#include "daemon/isolation/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.h"

enum { CGROUP2_MAGIC = 0x63677270, SMALL_FILE_MAX = 64 << 10 };

static const struct {
    unsigned bit;
    const char *name;
} controllers[] = {
    {HD_CGROUP_MEMORY, "memory"}, {HD_CGROUP_PIDS, "pids"}, {HD_CGROUP_CPUSET, "cpuset"}};
enum { CONTROLLERS = sizeof controllers / sizeof controllers[0] };

/* ---- files of a group ---- */

static bool write_at(int dir_fd, const char *name, const char *text)
{
    const int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);
    const size_t n = strlen(text);
    bool done;

    if (fd < 0)
        return false;
    done = write(fd, text, n) == (ssize_t)n;
    (void)close(fd);
    return done;
}

static bool read_at(int dir_fd, const char *name, char *ret_text, size_t size)
{
    const int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    size_t count = 0;
    ssize_t n = -1;

    while (fd >= 0 && count < size - 1 && (n = read(fd, ret_text + count, size - 1 - count)) > 0)
        count += (size_t)n;
    if (fd >= 0)
        (void)close(fd);
    ret_text[count] = '\0';
    return fd >= 0 && n >= 0;
}

static bool has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = text; (at = strstr(at, word)); at += n)
        /* strchr also matches the final NUL */
        if ((at == text || at[-1] == ' ') && strchr(" \n", at[n]))
            return true;
    return false;
}

/* Returns the number behind `key` in a cgroup file of lines "key number"; 0: no such line. */
static int64_t number_at(int dir_fd, const char *name, const char *key)
{
    const size_t n = strlen(key);
    char text[1024];

    if (!read_at(dir_fd, name, text, sizeof text))
        return 0;
    for (const char *line = text; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, n) == 0 && line[n] == ' ')
            return strtoll(line + n, NULL, 10);
    return 0;
}

static unsigned controllers_in(const char *text)
{
    unsigned has = 0;

    for (int i = 0; i < CONTROLLERS; i++)
        if (has_word(text, controllers[i].name))
            has |= controllers[i].bit;
    return has;
}

/* ---- opening ---- */

static enum hd_status open_parent(const char *parent, int *ret_fd)
{
    *ret_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *ret_fd < 0 ? hd_err(HD_NOT_FOUND, "cannot open the control group %s: %s", parent,
                                strerror(errno))
                       : HD_OK;
}

enum hd_status hd_cgroup_check(const char *parent, unsigned *ret_has)
{
    struct statfs info;
    char text[256];
    int fd;
    enum hd_status st = open_parent(parent, &fd);

    *ret_has = 0;
    if (st)
        return st;
    if (fstatfs(fd, &info) < 0 || info.f_type != CGROUP2_MAGIC)
        st = hd_err(HD_UNSUPPORTED, "%s is no control group of version 2", parent);
    else if (faccessat(fd, ".", W_OK, AT_EACCESS) < 0 ||
             faccessat(fd, "cgroup.procs", W_OK, AT_EACCESS) < 0)
        st = hd_err(HD_DENIED, "the control group %s is not delegated to uid %u: %s", parent,
                    (unsigned)geteuid(), strerror(errno));
    /* the root group has no cgroup.type, and may contain processes */
    else if (faccessat(fd, "cgroup.type", F_OK, 0) == 0 &&
             read_at(fd, "cgroup.procs", text, sizeof text) && *text)
        st = hd_err(HD_CONFLICT,
                    "processes are in the control group %s itself, so it cannot delegate "
                    "controllers; name one without processes",
                    parent);
    else if (read_at(fd, "cgroup.controllers", text, sizeof text))
        *ret_has = controllers_in(text);
    (void)close(fd);
    return st;
}

/* Enables the controllers of a group for its subgroups, one by one, so that an unavailable one does
 * not prevent the others. Returns the enabled ones (bits). */
static unsigned share_out(int parent_fd)
{
    char text[256], word[32];
    unsigned has, shared;

    if (!read_at(parent_fd, "cgroup.controllers", text, sizeof text))
        return 0;
    has = controllers_in(text);
    shared =
        read_at(parent_fd, "cgroup.subtree_control", text, sizeof text) ? controllers_in(text) : 0;
    for (int i = 0; i < CONTROLLERS; i++) {
        (void)snprintf(word, sizeof word, "+%s", controllers[i].name);
        if ((has & ~shared & controllers[i].bit) &&
            write_at(parent_fd, "cgroup.subtree_control", word))
            shared |= controllers[i].bit;
    }
    return shared;
}

enum hd_status hd_cgroup_open(const char *parent, const char *name, struct hd_cgroup *ret_group)
{
    struct hd_cgroup group = {.dir_fd = -1};
    int parent_fd;
    enum hd_status st = open_parent(parent, &parent_fd);

    *ret_group = group;
    if (st)
        return st;
    group.has = share_out(parent_fd);
    if (snprintf(group.path, sizeof group.path, "%s/%s", parent, name) >= (int)sizeof group.path)
        st = hd_err(HD_INVALID, "the path of the control group %s is too long", parent);
    else if (mkdirat(parent_fd, name, 0755) < 0 && errno != EEXIST)
        st = hd_err(HD_DENIED, "cannot make the control group %s: %s", group.path, strerror(errno));
    if (!st)
        group.dir_fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (!st && group.dir_fd < 0)
        st = hd_err(HD_IO, "cannot open the control group %s: %s", group.path, strerror(errno));
    (void)close(parent_fd);
    if (!st)
        *ret_group = group;
    return st;
}

/* Finds where cgroup v2 is mounted: the fifth field of its line in mountinfo. */
static bool find_mount(char ret_path[PATH_MAX])
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    while (file && !found && getline(&line, &size, file) > 0) {
        const char *type = strstr(line, " - ");

        found = type && strncmp(type, " - cgroup2 ", strlen(" - cgroup2 ")) == 0 &&
                sscanf(line, "%*s %*s %*s %*s %4095s", ret_path) == 1;
    }
    free(line);
    if (file)
        (void)fclose(file);
    return found;
}

/* Finds the cgroup of this process by the line "0::/PATH" of /proc/self/cgroup. */
static enum hd_status find_own(char ret_path[PATH_MAX])
{
    struct hd_text text = {0};
    char mount[PATH_MAX];
    const char *at;
    enum hd_status st = hd_file_read("/proc/self/cgroup", SMALL_FILE_MAX, &text);

    at = st ? NULL : hd_text_starts(text.data, "0::/") ? text.data : strstr(text.data, "\n0::/");
    if (!st && (!at || !find_mount(mount)))
        st = hd_err(HD_UNSUPPORTED, "this process is in no control group of version 2");
    if (!st) {
        at = strstr(at, "0::") + strlen("0::");
        if (snprintf(ret_path, PATH_MAX, "%s%.*s", mount, (int)strcspn(at, "\n"), at) >= PATH_MAX)
            st = hd_err(HD_UNSUPPORTED, "the path of this process's control group is too long");
    }
    hd_text_free(&text);
    return st;
}

enum hd_status hd_cgroup_open_in_unit(const char *name, struct hd_cgroup *ret_group)
{
    struct hd_cgroup supervisor;
    char own[PATH_MAX];
    enum hd_status st = find_own(own);

    *ret_group = (struct hd_cgroup){.dir_fd = -1};
    if (!st)
        st = hd_cgroup_open(own, "supervisor", &supervisor);
    if (st)
        return st;
    if (!hd_cgroup_join(&supervisor))
        st = hd_err(HD_DENIED, "cannot enter the control group %s: %s", supervisor.path,
                    strerror(errno));
    hd_cgroup_close(&supervisor);
    return st ? st : hd_cgroup_open(own, name, ret_group);
}

/* ---- a group ---- */

static bool set_number(const struct hd_cgroup *group, const char *name, int64_t number)
{
    char text[32] = "max";

    if (number > 0)
        (void)snprintf(text, sizeof text, "%" PRId64, number);
    return write_at(group->dir_fd, name, text);
}

enum hd_status hd_cgroup_limit(struct hd_cgroup *group, int64_t bytes, int64_t processes,
                               const char *cpus)
{
    const char *failed = NULL;

    if (group->has & HD_CGROUP_MEMORY) {
        (void)write_at(group->dir_fd, "memory.swap.max", "0"); /* fails in a kernel without swap */
        if (!set_number(group, "memory.max", bytes))
            failed = "memory.max";
        group->limit_bytes = bytes;
    }
    if (!failed && group->has & HD_CGROUP_PIDS && !set_number(group, "pids.max", processes))
        failed = "pids.max";
    if (!failed && group->has & HD_CGROUP_CPUSET && cpus &&
        !write_at(group->dir_fd, "cpuset.cpus", cpus))
        failed = "cpuset.cpus";
    return failed ? hd_err(HD_DENIED, "cannot set %s of the control group %s: %s", failed,
                           group->path, strerror(errno))
                  : HD_OK;
}

bool hd_cgroup_join(const struct hd_cgroup *group)
{
    return write_at(group->dir_fd, "cgroup.procs", "0");
}

int64_t hd_cgroup_oom_kills(const struct hd_cgroup *group)
{
    return group->dir_fd < 0 ? 0 : number_at(group->dir_fd, "memory.events", "oom_kill");
}

bool hd_cgroup_is_empty(const struct hd_cgroup *group)
{
    return group->dir_fd < 0 || number_at(group->dir_fd, "cgroup.events", "populated") == 0;
}

void hd_cgroup_kill(const struct hd_cgroup *group)
{
    char text[4096];

    if (group->dir_fd < 0 || write_at(group->dir_fd, "cgroup.kill", "1"))
        return;
    /* Linux before 5.14 lacks cgroup.kill: processes are killed one by one; the caller repeats this
     * until the group is empty. */
    if (!read_at(group->dir_fd, "cgroup.procs", text, sizeof text))
        return;
    for (const char *at = text; *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL)) {
        const pid_t pid = (pid_t)strtol(at, NULL, 10);

        if (pid > 1 && pid != getpid())
            (void)kill(pid, SIGKILL);
    }
}

void hd_cgroup_close(struct hd_cgroup *group)
{
    if (group->dir_fd >= 0)
        (void)close(group->dir_fd);
    group->dir_fd = -1;
}

enum hd_status hd_cgroup_remove(struct hd_cgroup *group)
{
    if (group->dir_fd < 0)
        return HD_OK;
    if (rmdir(group->path) < 0 && errno != ENOENT)
        return hd_err(HD_CONFLICT, "cannot remove the control group %s: %s", group->path,
                      strerror(errno));
    hd_cgroup_close(group);
    return HD_OK;
}

enum hd_status hd_cgroup_clear(const char *path)
{
    struct hd_cgroup group = {.dir_fd =
                                  open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)};
    struct statfs info;
    enum hd_status st = HD_OK;

    if (group.dir_fd < 0)
        return HD_OK;
    (void)snprintf(group.path, sizeof group.path, "%s", path);
    if (fstatfs(group.dir_fd, &info) == 0 && info.f_type == CGROUP2_MAGIC) {
        hd_cgroup_kill(&group);
        st = hd_cgroup_is_empty(&group)
                 ? hd_cgroup_remove(&group)
                 : hd_err(HD_TIMEOUT, "processes of %s are being killed", path);
    }
    hd_cgroup_close(&group);
    return st == HD_CONFLICT ? hd_err(HD_TIMEOUT, "%s is not empty yet", path) : st;
}
