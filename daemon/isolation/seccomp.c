/* seccomp: the filter of system calls, by libseccomp. It refuses calls that a rank never needs and
 * allows the others: GPU drivers and network libraries make calls that no list of allowed calls
 * could foresee. */
#include "daemon/isolation/sandbox_internal.h"

#ifndef HEDDLE_HAVE_SECCOMP

enum hd_status seccomp_enter(unsigned flags)
{
    (void)flags;
    return hd_err(HD_NOT_FOUND, "this build is without libseccomp");
}

enum hd_status seccomp_close_network(void)
{
    return hd_err(HD_NOT_FOUND, "this build is without libseccomp");
}

#else

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#if defined __SANITIZE_ADDRESS__
/* AddressSanitizer's leak checker traces this process from another one */
enum { LEAKS_ARE_CHECKED = 1 };
#else
enum { LEAKS_ARE_CHECKED = 0 };
#endif

/* same numbers on all architectures; libseccomp 2.5 lacks the names */
enum { FCHMODAT2 = 452, SETXATTRAT = 463, REMOVEXATTRAT = 466 };

/* system calls that fail with EPERM, unless the process may start programs */
static const int starting[] = {SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(fork),
                               SCMP_SYS(vfork)};

/* system calls that fail with EPERM */
static const int refused[] = {
    /* access other processes */
    SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(pidfd_getfd),
    SCMP_SYS(pidfd_send_signal), SCMP_SYS(kcmp), SCMP_SYS(process_madvise), SCMP_SYS(tkill),
    SCMP_SYS(setpriority), SCMP_SYS(ioprio_set), SCMP_SYS(migrate_pages),
    /* use memory and queues that all processes of a user share */
    SCMP_SYS(shmget), SCMP_SYS(shmat), SCMP_SYS(semget), SCMP_SYS(msgget), SCMP_SYS(mq_open),
    /* bypass the filter, or Landlock, which does not check changes of file modes */
    SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register),
    SCMP_SYS(open_by_handle_at), SCMP_SYS(userfaultfd), SCMP_SYS(chmod), SCMP_SYS(fchmodat),
    SCMP_SYS(chown), SCMP_SYS(lchown), SCMP_SYS(fchownat), SCMP_SYS(setxattr), SCMP_SYS(lsetxattr),
    SCMP_SYS(removexattr), SCMP_SYS(lremovexattr), FCHMODAT2, SETXATTRAT, REMOVEXATTRAT,
    /* administer the machine */
    SCMP_SYS(acct), SCMP_SYS(add_key), SCMP_SYS(bpf), SCMP_SYS(chroot), SCMP_SYS(delete_module),
    SCMP_SYS(fanotify_init), SCMP_SYS(finit_module), SCMP_SYS(fsconfig), SCMP_SYS(fsmount),
    SCMP_SYS(fsopen), SCMP_SYS(fspick), SCMP_SYS(init_module), SCMP_SYS(ioperm), SCMP_SYS(iopl),
    SCMP_SYS(kexec_file_load), SCMP_SYS(kexec_load), SCMP_SYS(keyctl), SCMP_SYS(lookup_dcookie),
    SCMP_SYS(mount), SCMP_SYS(mount_setattr), SCMP_SYS(move_mount), SCMP_SYS(open_tree),
    SCMP_SYS(perf_event_open), SCMP_SYS(pivot_root), SCMP_SYS(quotactl), SCMP_SYS(reboot),
    SCMP_SYS(request_key), SCMP_SYS(setdomainname), SCMP_SYS(sethostname), SCMP_SYS(setns),
    SCMP_SYS(settimeofday), SCMP_SYS(swapoff), SCMP_SYS(swapon), SCMP_SYS(umount2),
    SCMP_SYS(unshare), SCMP_SYS(vhangup)};

static int refuse(scmp_filter_ctx filter, int call)
{
    return seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 0);
}

/* Allows new threads but refuses new processes. glibc tries clone3 first and falls back to clone;
 * the flags of clone3 are in memory, which a filter cannot read. */
static int refuse_processes(scmp_filter_ctx filter)
{
    int failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);

    if (!failed && !LEAKS_ARE_CHECKED)
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                  SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
    if (!failed && !LEAKS_ARE_CHECKED)
        failed = refuse(filter, SCMP_SYS(ptrace));
    return failed;
}

/* Refuses signals to other processes; allows those to this process, which abort() and profilers
 * need. */
static int refuse_signals(scmp_filter_ctx filter)
{
    static const int calls[] = {SCMP_SYS(kill), SCMP_SYS(tgkill), SCMP_SYS(rt_sigqueueinfo),
                                SCMP_SYS(rt_tgsigqueueinfo)};
    int failed = 0;

    for (size_t i = 0; !failed && i < sizeof calls / sizeof calls[0]; i++)
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), calls[i], 1,
                                  SCMP_A0(SCMP_CMP_NE, (scmp_datum_t)getpid(), 0));
    return failed;
}

/* Refuses to make sockets of this family and type. */
static int refuse_type(scmp_filter_ctx filter, int family, int type)
{
    enum { TYPE = 0xf }; /* the other bits are flags */

    return seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 2,
                            SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)family, 0),
                            SCMP_A1(SCMP_CMP_MASKED_EQ, TYPE, (scmp_datum_t)type));
}

/* Refuses new sockets, except for the network; open ones, such as the link to the supervisor, stay.
 * The address of a connect is in memory, which a filter cannot read: the unit limits addresses
 * (data_networks). netlink: needed for lists of addresses and for RDMA. Unix sockets: only
 * datagrams, with which NCCL passes GPU memory; supervisors, heddle-launcher and the controller
 * listen on streams, and would take this process for their own user. Exception: CUDA makes a
 * SOCK_SEQPACKET socket at its start, to pass descriptors of its memory, and fails without (driver
 * 580). */
static int refuse_sockets(scmp_filter_ctx filter, unsigned flags)
{
    static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};
    static const int types[][2] = {{AF_INET, SOCK_RAW},
                                   {AF_INET6, SOCK_RAW},
                                   {AF_UNIX, SOCK_STREAM},
                                   {AF_UNIX, SOCK_SEQPACKET}};
    const size_t count = sizeof types / sizeof types[0] - (flags & HD_SANDBOX_GPU ? 1 : 0);
    int failed = 0;

    if (!(flags & HD_SANDBOX_NETWORK))
        return refuse(filter, SCMP_SYS(socket));
    for (int f = 0; !failed && f < 64; f++) { /* families are numbers below 50 */
        bool used = false;

        for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
            used |= families[i] == f;
        if (!used)
            failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
                                      SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)f, 0));
    }
    for (size_t i = 0; !failed && i < count; i++)
        failed = refuse_type(filter, types[i][0], types[i][1]);
    return failed;
}

static int fill(scmp_filter_ctx filter, unsigned flags)
{
    const bool programs = flags & HD_SANDBOX_PROGRAMS;
    int failed = 0;

    for (size_t i = 0; !failed && i < sizeof refused / sizeof refused[0]; i++)
        failed = refuse(filter, refused[i]);
    for (size_t i = 0; !failed && !programs && i < sizeof starting / sizeof starting[0]; i++)
        failed = refuse(filter, starting[i]);
    if (!failed)
        failed = programs ? refuse(filter, SCMP_SYS(ptrace)) : refuse_processes(filter);
    if (!failed && !LEAKS_ARE_CHECKED && !programs)
        failed = refuse_signals(filter);
    if (!failed)
        failed = refuse_sockets(filter, flags);
    if (!failed) /* limits of other processes; the C library passes 0 for this one */
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 1,
                                  SCMP_A0(SCMP_CMP_NE, 0, 0));
    if (!failed) /* typing into a terminal */
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                                  SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, TIOCSTI));
    return failed;
}

/* Loads a filter. Calls of another architecture (32 bits), which the lists do not cover, fail. SSB:
 * kernels before 5.16 slow a filtered process down as a protection against attacks from inside it,
 * unless it opts out. TSYNC: the filter applies to all threads. */
static enum hd_status load(int (*fill_it)(scmp_filter_ctx filter, unsigned flags), unsigned flags)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    int failed;

    if (!filter)
        return hd_err(HD_NO_MEMORY, "no memory for a filter of system calls");
    failed = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    if (!failed)
        (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
    if (!failed)
        failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (!failed)
        failed = fill_it(filter, flags);
    if (!failed)
        failed = seccomp_load(filter);
    seccomp_release(filter);
    return failed ? hd_err(HD_UNSUPPORTED, "cannot load a filter of system calls: %s",
                           strerror(-failed))
                  : HD_OK;
}

enum hd_status seccomp_enter(unsigned flags)
{
    return load(fill, flags);
}

static int fill_closed(scmp_filter_ctx filter, unsigned flags)
{
    const int failed = refuse_sockets(filter, flags);

    return failed ? failed : refuse(filter, SCMP_SYS(connect));
}

enum hd_status seccomp_close_network(void)
{
    return load(fill_closed, 0);
}

#endif
