/* record: a door in front of a controller that writes down each message of each call.
 *
 * Used by: tests/recorded.   Uses: conversation, rpc.   Threads: that of its caller, until SIGTERM.
 */
#ifndef HD_TESTS_RECORDED_RECORD_H
#define HD_TESTS_RECORDED_RECORD_H

#include "plain.h"

/* Listens at `listen`, hands all calls of the protocol on to `controller`, and adds what is said to
 * the file `out` (conversation.h). Returns the program's exit status. */
int record(const struct protocol *protocol, const char *listen, const char *controller,
           const char *out);

#endif
