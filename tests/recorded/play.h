/* play: a recorded conversation, once more, with one of its two sides built today.
 *
 * Used by: tests/recorded.   Uses: conversation, rpc.   Threads: that of its caller.
 */
#ifndef HD_TESTS_RECORDED_PLAY_H
#define HD_TESTS_RECORDED_PLAY_H

#include "plain.h"

/* Each returns an exit status: 0 if all was as recorded; it says what was not. */

int play_print(const struct protocol *protocol, const char *file);

/* Nodes and commands say to the controller what was recorded, in that order, each line when the
 * controller has said what it had said before it. `root`: below it are the folders that were below
 * the recorded root. Each answer must have the recorded fields with their values, but for what no
 * two runs have in common (heard_mask); what a stream says must be that and no more. */
int play_clients(const struct protocol *protocol, const char *file, const char *controller,
                 const char *root);

/* Listens as the controller until SIGTERM: a call whose request was recorded gets the recorded
 * answer, and a node the recorded stream. */
int play_controller(const struct protocol *protocol, const char *file, const char *listen,
                    const char *root);

#endif
