/* process: checks what a program needs from the system before it does anything else.
 *
 * A library that cannot start a thread or open a file aborts, waits for ever or writes past a table
 * (gRPC, OpenMP, libuv); a program whose standard streams were closed gets its first socket as
 * stdout, and prints into it. Here such surroundings become one message that names the limit.
 *
 * Used by: the mains of all programs.   Uses: status.   Threads: before a second one starts.
 */
#ifndef HD_BASE_PROCESS_H
#define HD_BASE_PROCESS_H

#include <stdbool.h>

#include "base/status.h"

/* Least resources with which a program works, including those that its libraries use. */
struct hd_process_needs {
    int files;   /* open descriptors */
    int threads; /* besides the first */
};

/* Returns the needs of a program that uses gRPC and itself needs these numbers; gRPC starts
 * threads by the number of cores. */
struct hd_process_needs hd_process_needs_of_grpc(int files, int threads);

/* Opens /dev/null in place of each standard stream that is closed; raises the soft limits of open
 * files and of the stack as far as needed; starts and ends `threads` threads; makes stacks of later
 * threads at least 2 MiB. HD_LIMIT: a limit is too low; the message names it, and how to raise it.
 * HD_IO: /dev/null cannot be opened. */
enum hd_status hd_process_prepare(const struct hd_process_needs *needs);

/* Calls hd_process_prepare. Prints a failure to stderr as "PROGRAM: MESSAGE" and returns false. */
bool hd_process_prepare_or_tell(const char *program, const struct hd_process_needs *needs);

#endif
