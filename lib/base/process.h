/* process: what a program needs from the system, checked before it does anything else.
 *
 * A library that cannot start a thread or open a file aborts, waits for ever or writes past a table
 * (gRPC, OpenMP, libuv); a program whose standard streams were closed gets its first socket as
 * stdout, and prints into it. Here such surroundings become one message that names the limit.
 *
 * Used by: the mains of all programs.   Uses: status.   Threads: call it while there is one.
 */
#ifndef HD_BASE_PROCESS_H
#define HD_BASE_PROCESS_H

#include <stdbool.h>

#include "base/status.h"

/* The smallest numbers with which a program works at all, for its own use and that of its
 * libraries.
 */
struct hd_process_needs {
    int files;   /* open descriptors */
    int threads; /* beside the first */
};

/* Needs of a program that uses gRPC, which starts threads by the number of cores. */
struct hd_process_needs hd_process_needs_of_grpc(int files, int threads);

/* Opens /dev/null in place of each standard stream that is closed; raises the soft limits of open
 * files and of the stack as far as needed; starts and ends `threads` threads; makes stacks of later
 * threads at least 2 MiB. HD_LIMIT: a limit is too low; the message names it, and how to raise it.
 * HD_IO: /dev/null cannot be opened. */
enum hd_status hd_process_prepare(const struct hd_process_needs *needs);

/* The same; a failure is printed to stderr as "PROGRAM: MESSAGE" and returned as false. */
bool hd_process_prepare_or_tell(const char *program, const struct hd_process_needs *needs);

#endif
