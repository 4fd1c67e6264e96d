#include "daemon/isolation/probe.h"

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LANDLOCK_CREATE = 444, /* number of the system call, which is equal on all architectures */
    LANDLOCK_VERSION = 1,  /* flag: the call returns the version of the ABI */
    SECCOMP_ASK = 2,       /* operation: query whether an action is supported */
};

#ifdef HEDDLE_HAVE_SECCOMP
#define LACKS "CONFIG_SECCOMP_FILTER"
#else
#define LACKS "this build is without libseccomp"
#endif

struct hd_locks hd_locks_find(void)
{
    const long version = syscall(LANDLOCK_CREATE, NULL, 0, LANDLOCK_VERSION);

#ifdef HEDDLE_HAVE_SECCOMP
    const uint32_t fail_call = 0x00050000; /* SECCOMP_RET_ERRNO */
    const bool seccomp = syscall(SYS_seccomp, SECCOMP_ASK, 0, &fail_call) == 0;
#else
    const bool seccomp = false;
#endif

    return (struct hd_locks){.seccomp = seccomp, .landlock = version > 0 ? (int)version : 0};
}

void hd_locks_describe(struct hd_locks locks, struct hd_text *ret_has, struct hd_text *ret_lacks)
{
    if (locks.seccomp)
        hd_text_add(ret_has, "seccomp");
    else
        hd_text_add(ret_lacks,
                    "seccomp is missing (%s): ranks can start "
                    "programs and connect anywhere",
                    LACKS);
    if (locks.landlock)
        hd_text_add(ret_has, "%slandlock %d", ret_has->len_bytes ? ", " : "", locks.landlock);
    else
        hd_text_add(
            ret_lacks,
            "%sLandlock is missing (Linux 5.13, CONFIG_SECURITY_LANDLOCK, lsm=landlock,..): "
            "ranks can open all files of their user",
            ret_lacks->len_bytes ? "; " : "");
}
