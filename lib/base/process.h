/* process: checks at startup that the system gives a program what it needs; finds what is installed with
 * it.
 *
 * A library that cannot start a thread or open a file aborts, waits for ever or writes past a table
 * (gRPC, OpenMP, libuv); a program whose standard streams are closed gets its first socket as
 * stdout, and prints into it. hd_process_prepare reports such a problem at startup, in one message
 * that names the limit.
 *
 * Used by: the programs.   Uses: status.   Threads: hd_process_prepare comes before a second one.
 */
#ifndef HD_BASE_PROCESS_H
#define HD_BASE_PROCESS_H

#include <limits.h>
#include <stdbool.h>

#include "base/status.h"

/* The minimum resources of a program, including those of its libraries. */
struct hd_process_needs {
    int files;   /* open file descriptors */
    int threads; /* threads in addition to the first */
};

/* Returns the needs of a program that uses gRPC and itself needs `files` and `threads`; gRPC starts
 * threads per core. */
struct hd_process_needs hd_process_needs_of_grpc(int files, int threads);

/* Opens /dev/null for each closed standard stream; raises the soft limits of open files and of the
 * stack as needed; starts and ends `threads` threads; makes the stacks of threads that start later
 * at least 2 MiB. HD_LIMIT: a limit is too low; the message names it, and how to raise it. HD_IO:
 * /dev/null cannot be opened. */
enum hd_status hd_process_prepare(const struct hd_process_needs *needs);

/* Calls hd_process_prepare. Prints a failure to stderr as "PROGRAM: MESSAGE" and returns false. */
bool hd_process_prepare_or_tell(const char *program, const struct hd_process_needs *needs);

/* Sets ret_path to the path of `name` in the folder of this program's own file, which may not exist. HD_IO:
 * /proc cannot be read. */
enum hd_status hd_process_find_beside(const char *name, char ret_path[PATH_MAX]);

#endif
