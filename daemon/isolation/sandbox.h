/* sandbox: restrictions that a rank puts on itself, for ever, before it reads a user's data.
 *
 *   hd_sandbox_begin -> hd_sandbox_allow for each path .. -> hd_sandbox_enter
 *
 * From hd_sandbox_begin on, the process and its later threads
 *   1. get no new privileges (set-user-ID programs, capabilities of files), and keep of root's
 *      capabilities only those to access files, lock memory, and raise priorities and limits;
 *   2. start no program and no process (but with HD_SANDBOX_PROGRAMS), trace nothing, access no other process's memory, send
 *      signals only to themselves, and make no call that only administrators need (seccomp);
 *   3. make no socket without HD_SANDBOX_NETWORK; with it IP and netlink sockets, and Unix datagram
 *      sockets; with HD_SANDBOX_GPU also Unix SOCK_SEQPACKET sockets, which CUDA makes.
 * From hd_sandbox_enter on, they also open only allowed files (Landlock). Open descriptors stay
 * usable.
 *
 * Mechanisms that the kernel lacks are left out and reported. In builds with AddressSanitizer,
 * clone, ptrace and signals are allowed for its leak checker.
 *
 * Used by: worker.   Uses: base, probe.h, libseccomp.
 * Threads: begin and enter before the process has a second thread: Landlock restricts the calling
 * one.
 */
#ifndef HD_DAEMON_ISOLATION_SANDBOX_H
#define HD_DAEMON_ISOLATION_SANDBOX_H

#include "base/status.h"
#include "base/text.h"

enum hd_sandbox_access {
    HD_SANDBOX_READ, /* allowed: read files, also to map them as code; read folders */
    /* allowed: read; also make, change and remove files and folders below the path */
    HD_SANDBOX_WRITE,
    HD_SANDBOX_RUN,    /* allowed: read; also start files as programs (HD_SANDBOX_PROGRAMS) */
    HD_SANDBOX_DEVICE, /* allowed on a device file: read, write, ioctl */
};

/* flags of hd_sandbox_begin; HD_SANDBOX_PROGRAMS: may start programs and processes, and signal them */
enum { HD_SANDBOX_NETWORK = 1, HD_SANDBOX_GPU = 2, HD_SANDBOX_PROGRAMS = 4 };

struct hd_sandbox;

/* Begins the sandbox of this process. HD_UNSUPPORTED, also in the functions below: a mechanism
 * failed although the kernel has it. */
enum hd_status hd_sandbox_begin(unsigned flags, struct hd_sandbox **ret_sandbox);
/* NULL: does nothing; restrictions of the process stay */
void hd_sandbox_free(struct hd_sandbox *sandbox);

/* Allows file access to a path from hd_sandbox_enter on; ignores a path that does not exist.
 * Symbolic links of `path` are followed. */
enum hd_status hd_sandbox_allow(struct hd_sandbox *sandbox, const char *path,
                                enum hd_sandbox_access access);
/* Allows file access to the file or folder of an O_PATH descriptor from hd_sandbox_enter on. */
enum hd_status hd_sandbox_allow_at(struct hd_sandbox *sandbox, int fd,
                                   enum hd_sandbox_access access);

/* Restricts this process's file access to the allowed paths. Appends active mechanisms to ret_has
 * and missing ones to the other text, as hd_locks_describe does. */
enum hd_status hd_sandbox_enter(struct hd_sandbox *sandbox, struct hd_text *ret_has,
                                struct hd_text *ret_lacks);

/* Refuses new connections in all threads; open ones stay. For a process that began with
 * HD_SANDBOX_NETWORK, once it is connected to its peers. Does nothing if the kernel lacks seccomp.
 */
enum hd_status hd_sandbox_close_network(void);

#endif
