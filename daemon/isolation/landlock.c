/* landlock: Landlock by system calls. The kernel's constants are repeated here; they never change.
 * So a build on an old system uses the features of a newer kernel. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/isolation/sandbox_internal.h"

enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, RULE_PATH_BENEATH = 1 };

struct ruleset_attr {
    uint64_t handled_fs;
    uint64_t handled_net; /* TCP rights that the ruleset restricts; since version 4 */
    uint64_t scoped;      /* scopes that the ruleset restricts; since version 6 */
};

struct path_attr {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

enum {
    FS_EXECUTE = 1 << 0,
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_ALL_1 = (1 << 13) - 1, /* all file rights of Landlock version 1 */
    FS_REFER = 1 << 13,       /* since version 2: right to rename between folders */
    FS_TRUNCATE = 1 << 14,    /* since version 3: right to truncate */
    FS_IOCTL_DEV = 1 << 15,   /* since version 5: right of ioctl on devices */
    FS_OF_FILES = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV,
    NET_TCP = 3,      /* since version 4: rights of TCP bind and connect */
    SCOPE_SIGNAL = 2, /* since version 6: no signal may be sent to a process outside the sandbox */
};

static uint64_t known(int version)
{
    return FS_ALL_1 | (version >= 2 ? FS_REFER : 0) | (version >= 3 ? FS_TRUNCATE : 0) |
           (version >= 5 ? FS_IOCTL_DEV : 0);
}

enum hd_status landlock_new(int version, bool network, int *ret_ruleset)
{
    const struct ruleset_attr attr = {.handled_fs = known(version),
                                      .handled_net = version >= 4 && !network ? NET_TCP : 0,
                                      .scoped = version >= 6 ? SCOPE_SIGNAL : 0};
    const size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;

    *ret_ruleset = (int)syscall(CREATE_RULESET, &attr, size, 0);
    return *ret_ruleset < 0
               ? hd_err(HD_UNSUPPORTED, "Landlock makes no set of rules: %s", strerror(errno))
               : HD_OK;
}

enum hd_status landlock_allow(int ruleset, int version, int fd, enum hd_sandbox_access access)
{
    static const uint64_t rights[] = {
        [HD_SANDBOX_READ] = FS_READ_FILE | FS_READ_DIR,
        [HD_SANDBOX_WRITE] = FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_TRUNCATE |
                             FS_MAKE_REG | FS_MAKE_DIR | FS_REMOVE_FILE | FS_REMOVE_DIR | FS_REFER,
        [HD_SANDBOX_RUN] = FS_READ_FILE | FS_READ_DIR | FS_EXECUTE,
        [HD_SANDBOX_DEVICE] =
            FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV,
    };
    struct path_attr attr = {.allowed = rights[access] & known(version), .parent_fd = fd};
    struct stat info;

    if (fstat(fd, &info) == 0 && !S_ISDIR(info.st_mode))
        attr.allowed &= FS_OF_FILES;
    return syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, &attr, 0) < 0
               ? hd_err(HD_UNSUPPORTED, "Landlock takes no rule: %s", strerror(errno))
               : HD_OK;
}

enum hd_status landlock_enter(int ruleset)
{
    return syscall(RESTRICT_SELF, ruleset, 0) < 0
               ? hd_err(HD_UNSUPPORTED, "cannot be locked in by Landlock: %s", strerror(errno))
               : HD_OK;
}
