/* nccl_log: how NCCL connects the ranks, and its warnings, from its own log.
 *
 * NCCL chooses a transport for each connection by itself, and falls back to a slower one without an
 * error. It tells which only in its log, so a rank gives it a log in memory, reads that once all
 * connections are made, and reports a line.
 *
 * Used by: worker, tests.   Uses: base.   Threads: hd_comm_nccl_log_open sets variables of the
 * environment, so it must run before other threads read them. */
#ifndef HD_COMM_NCCL_LOG_H
#define HD_COMM_NCCL_LOG_H

#include "base/text.h"

/* Makes NCCL write its log into memory; must run before NCCL is loaded. Returns the memory's file
 * descriptor, which stays open as long as NCCL is in use; -1 if there is none, or if the user reads
 * NCCL's log (NCCL_DEBUG, NCCL_DEBUG_FILE). */
int hd_comm_nccl_log_open(void);

/* Adds to ret_transports the transports of all connections in the log with the number of channels of
 * each, such as "P2P/CUMEM 56, NET/IB/GDRDMA 16", and to ret_warnings NCCL's warnings. They stay empty
 * if the log has none, or cannot be read. */
void hd_comm_nccl_log_take(int fd, struct hd_text *ret_transports, struct hd_text *ret_warnings);

/* Does the same for a log in memory, which ends with a NUL. */
void hd_comm_nccl_log_read(const char *log, struct hd_text *ret_transports,
                           struct hd_text *ret_warnings);

#endif
