#include "daemon/isolation/cgroup.h"

#include <dirent.h>
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
} controllers[] = {{HD_CGROUP_MEMORY, "memory"},
                   {HD_CGROUP_PIDS, "pids"},
                   {HD_CGROUP_CPUSET, "cpuset"},
                   {HD_CGROUP_CPU, "cpu"}};
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

/* Returns the number behind `key` in the text of a cgroup file, lines "key number"; 0: no such line. */
static int64_t number_in(const char *text, const char *key)
{
    const size_t n = strlen(key);

    for (const char *line = text; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, n) == 0 && line[n] == ' ')
            return strtoll(line + n, NULL, 10);
    return 0;
}

static int64_t number_at(int dir_fd, const char *name, const char *key)
{
    char text[1024];

    return read_at(dir_fd, name, text, sizeof text) ? number_in(text, key) : 0;
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

enum hd_status hd_cgroup_open_beside(const char *name, struct hd_cgroup *ret_group)
{
    static const char ranks[] = "/ranks";
    char own[PATH_MAX];
    enum hd_status st = find_own(own);

    *ret_group = (struct hd_cgroup){.dir_fd = -1};
    if (!st && !hd_text_ends(own, ranks))
        st = hd_err(HD_UNSUPPORTED, "the ranks of this attempt are in no control group");
    if (st)
        return st;
    own[strlen(own) - strlen(ranks)] = '\0';
    return hd_cgroup_open(own, name, ret_group);
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

enum hd_status hd_cgroup_limit_cpu(struct hd_cgroup *group, double processors)
{
    enum { PERIOD_US = 100000 };
    char text[64];

    if (!(group->has & HD_CGROUP_CPU))
        return hd_err(HD_UNSUPPORTED, "the control group %s has no controller cpu", group->path);
    (void)snprintf(text, sizeof text, "%.0f %d", processors * PERIOD_US, PERIOD_US);
    return write_at(group->dir_fd, "cpu.max", text)
               ? HD_OK
               : hd_err(HD_DENIED, "cannot set cpu.max of the control group %s: %s", group->path,
                        strerror(errno));
}

/* ---- open files of a group ---- */

struct hd_cgroup_files hd_cgroup_open_files(const struct hd_cgroup *group)
{
    const int fd = group->dir_fd;

    return (struct hd_cgroup_files){.procs = openat(fd, "cgroup.procs", O_WRONLY | O_CLOEXEC),
                                    .kill = openat(fd, "cgroup.kill", O_WRONLY | O_CLOEXEC),
                                    .memory_events =
                                        openat(fd, "memory.events", O_RDONLY | O_CLOEXEC),
                                    .pids_events = openat(fd, "pids.events", O_RDONLY | O_CLOEXEC)};
}

bool hd_cgroup_enter(const struct hd_cgroup_files *files)
{
    return write(files->procs, "0", 1) == 1;
}

void hd_cgroup_kill_all(const struct hd_cgroup_files *files)
{
    if (files->kill >= 0)
        (void)!write(files->kill, "1", 1);
}

static int64_t count_in(int fd, const char *key)
{
    char text[1024];
    const ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    return number_in(text, key);
}

int64_t hd_cgroup_count_kills(const struct hd_cgroup_files *files)
{
    return count_in(files->memory_events, "oom_kill");
}

int64_t hd_cgroup_count_refused(const struct hd_cgroup_files *files)
{
    return count_in(files->pids_events, "max");
}

/* ---- the processes of a group ---- */

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

/* Calls `act` with the descriptor of the group's folder and the name of each subgroup. */
static void for_each_below(const struct hd_cgroup *group, void (*act)(int dir_fd, const char *name))
{
    const int fd = openat(group->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    while (folder && (entry = readdir(folder)))
        if (entry->d_name[0] != '.' && entry->d_type == DT_DIR)
            act(group->dir_fd, entry->d_name);
    if (folder)
        (void)closedir(folder);
    else if (fd >= 0)
        (void)close(fd);
}

static void remove_below(int dir_fd, const char *name)
{
    (void)unlinkat(dir_fd, name, AT_REMOVEDIR); /* the removal of the group tells why it fails */
}

/* Kills the processes that a group lists itself. */
static void kill_listed(int dir_fd, const char *name)
{
    char path[NAME_MAX + 32], text[4096];

    (void)snprintf(path, sizeof path, "%s/cgroup.procs", name);
    if (!read_at(dir_fd, path, text, sizeof text))
        return;
    for (const char *at = text; *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL)) {
        const pid_t pid = (pid_t)strtol(at, NULL, 10);

        if (pid > 1 && pid != getpid())
            (void)kill(pid, SIGKILL);
    }
}

void hd_cgroup_kill(const struct hd_cgroup *group)
{
    if (group->dir_fd < 0 || write_at(group->dir_fd, "cgroup.kill", "1"))
        return;
    /* Linux before 5.14 lacks cgroup.kill: processes are killed one by one; the caller repeats this
     * until the group is empty. */
    kill_listed(group->dir_fd, ".");
    for_each_below(group, kill_listed);
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
    for_each_below(group, remove_below);
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
