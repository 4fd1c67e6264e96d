/* sandbox: the locks that a rank closes behind itself before it reads a user's data.
 *
 *     hd_sandbox_begin -> hd_sandbox_allow for each path .. -> hd_sandbox_enter
 *
 * From hd_sandbox_begin on the process and its later threads, for ever:
 *   - get no new privileges (set-user-ID programs, capabilities of files), and keep of root's
 *     capabilities those to read files and to lock memory;
 *   - start no program and no process, trace nothing, reach no other process's memory, send signals
 *     to themselves alone, and make no call that only administrators need (seccomp);
 *   - without HD_SANDBOX_NETWORK make no socket; with it sockets of IP, of netlink, and of Unix
 *     for datagrams; with HD_SANDBOX_GPU, too, Unix sockets of whole packets, which CUDA makes.
 * From hd_sandbox_enter on they also open what was allowed, and no other file (Landlock). What is
 * open already stays usable.
 *
 * What the kernel lacks is left out and told. In builds with AddressSanitizer its leak checker
 * needs a process and ptrace, which are then not refused.
 *
 * Used by: worker.   Uses: base, probe.h, libseccomp.
 * Threads: begin and enter before the process has a second thread: Landlock binds the calling one.
 */
#ifndef HD_DAEMON_ISOLATION_SANDBOX_H
#define HD_DAEMON_ISOLATION_SANDBOX_H

#include "base/status.h"
#include "base/text.h"

enum hd_sandbox_access {
    HD_SANDBOX_READ,   /* files, also to map them as code; folders */
    HD_SANDBOX_WRITE,  /* also make, change and remove files and folders below */
    HD_SANDBOX_DEVICE, /* read, write, control (ioctl) */
};

enum { HD_SANDBOX_NETWORK = 1, HD_SANDBOX_GPU = 2 }; /* flags of hd_sandbox_begin */

struct hd_sandbox;

/* HD_UNSUPPORTED, here and below: a lock that the kernel has could not be closed. */
enum hd_status hd_sandbox_begin(unsigned flags, struct hd_sandbox **ret_sandbox);
void hd_sandbox_free(struct hd_sandbox *sandbox); /* NULL is fine; what was entered stays */

/* A path that does not exist is passed over. Links of `path` itself are followed. */
enum hd_status hd_sandbox_allow(struct hd_sandbox *sandbox, const char *path,
                                enum hd_sandbox_access access);
/* The same for what `fd` (O_PATH) is open at. */
enum hd_status hd_sandbox_allow_at(struct hd_sandbox *sandbox, int fd,
                                   enum hd_sandbox_access access);

/* Appends the locks that are in force and what is missing, as hd_locks_describe does. */
enum hd_status hd_sandbox_enter(struct hd_sandbox *sandbox, struct hd_text *ret_has,
                                struct hd_text *ret_lacks);

/* A process that began with HD_SANDBOX_NETWORK, and has met its peers, makes no further connection:
 * those that are open go on. For all its threads. Without seccomp it does nothing. */
enum hd_status hd_sandbox_close_network(void);

#endif
