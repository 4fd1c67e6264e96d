#include "daemon/isolation/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/isolation/probe.h"
#include "daemon/isolation/sandbox_internal.h"

struct allowed {
    int fd; /* O_PATH descriptor of an allowed path */
    enum hd_sandbox_access access;
};

struct hd_sandbox {
    struct hd_locks locks; /* mechanisms that the kernel has; seccomp: whether it is active */
    bool network;
    struct allowed *allowed; /* paths allowed so far, [count] */
    size_t count, size;
};

/* Drops root's capabilities except those that a rank may need: to access files, to lock memory for
 * devices, and to raise priorities and limits. Dropped are, for example, those to read other
 * processes. */
static enum hd_status give_up_capabilities(void)
{
    const uint64_t keep = UINT64_C(1) << CAP_DAC_OVERRIDE | UINT64_C(1) << CAP_DAC_READ_SEARCH |
                          UINT64_C(1) << CAP_IPC_LOCK | UINT64_C(1) << CAP_SYS_NICE |
                          UINT64_C(1) << CAP_SYS_RESOURCE;
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &head, data) < 0)
        return hd_err(HD_UNSUPPORTED, "cannot read capabilities: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        data[i].permitted &= (uint32_t)(keep >> 32 * i);
        data[i].effective &= data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall(SYS_capset, &head, data) < 0
               ? hd_err(HD_UNSUPPORTED, "cannot give up capabilities: %s", strerror(errno))
               : HD_OK;
}

enum hd_status hd_sandbox_begin(unsigned flags, struct hd_sandbox **ret_sandbox)
{
    struct hd_sandbox *sandbox = calloc(1, sizeof *sandbox);
    enum hd_status st = HD_OK;

    if (!sandbox)
        return hd_err(HD_NO_MEMORY, "no memory for a sandbox");
    sandbox->locks = hd_locks_find();
    sandbox->network = flags & HD_SANDBOX_NETWORK;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        st = hd_err(HD_UNSUPPORTED, "cannot give up new privileges: %s", strerror(errno));
    if (!st)
        st = give_up_capabilities();
    if (!st && sandbox->locks.seccomp) {
        st = seccomp_enter(flags);
        sandbox->locks.seccomp = !st;
        if (st == HD_NOT_FOUND)
            st = HD_OK;
    }
    if (st)
        hd_sandbox_free(sandbox);
    else
        *ret_sandbox = sandbox;
    return st;
}

void hd_sandbox_free(struct hd_sandbox *sandbox)
{
    if (!sandbox)
        return;
    for (size_t i = 0; i < sandbox->count; i++)
        (void)close(sandbox->allowed[i].fd);
    free(sandbox->allowed);
    free(sandbox);
}

enum hd_status hd_sandbox_close_network(void)
{
    const enum hd_status st = hd_locks_find().seccomp ? seccomp_close_network() : HD_OK;

    return st == HD_NOT_FOUND ? HD_OK : st;
}

static enum hd_status keep(struct hd_sandbox *sandbox, int fd, enum hd_sandbox_access access)
{
    if (sandbox->count == sandbox->size) {
        const size_t size = sandbox->size ? 2 * sandbox->size : 64;
        struct allowed *more = realloc(sandbox->allowed, size * sizeof *more);

        if (!more) {
            (void)close(fd);
            return hd_err(HD_NO_MEMORY, "no memory for the rules of a sandbox");
        }
        sandbox->allowed = more;
        sandbox->size = size;
    }
    sandbox->allowed[sandbox->count++] = (struct allowed){fd, access};
    return HD_OK;
}

enum hd_status hd_sandbox_allow(struct hd_sandbox *sandbox, const char *path,
                                enum hd_sandbox_access access)
{
    const int fd = sandbox->locks.landlock ? open(path, O_PATH | O_CLOEXEC) : -1;

    /* a path that does not exist needs no rule */
    return fd < 0 ? HD_OK : keep(sandbox, fd, access);
}

enum hd_status hd_sandbox_allow_at(struct hd_sandbox *sandbox, int fd,
                                   enum hd_sandbox_access access)
{
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

    if (copy < 0)
        return hd_err(HD_IO, "cannot keep a descriptor for the sandbox: %s", strerror(errno));
    return keep(sandbox, copy, access);
}

static enum hd_status enter_landlock(const struct hd_sandbox *sandbox)
{
    const int version = sandbox->locks.landlock;
    int ruleset;
    enum hd_status st = landlock_new(version, sandbox->network, &ruleset);

    if (st)
        return st;
    for (size_t i = 0; !st && i < sandbox->count; i++)
        st = landlock_allow(ruleset, version, sandbox->allowed[i].fd, sandbox->allowed[i].access);
    if (!st)
        st = landlock_enter(ruleset);
    (void)close(ruleset);
    return st;
}

enum hd_status hd_sandbox_enter(struct hd_sandbox *sandbox, struct hd_text *ret_has,
                                struct hd_text *ret_lacks)
{
    const enum hd_status st = sandbox->locks.landlock ? enter_landlock(sandbox) : HD_OK;

    if (!st)
        hd_locks_describe(sandbox->locks, ret_has, ret_lacks);
    return st;
}
