/* epoch: the controller that this node obeys, among several of its cluster.
 *
 *     STATE_DIR/epoch   lines with a word each: cluster, number, instance, progress, proof, place
 *
 * A copy of a controller's database makes a second controller of the same cluster. Each start has a
 * higher number, and a node obeys the highest that it has seen (fleet.proto, Epoch). The file is
 * written before a new epoch is obeyed; a failure to write it is logged, and the epoch is obeyed.
 *
 * Used by: identity, stream, tests.   Uses: base.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_EPOCH_H
#define HD_DAEMON_AGENT_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { AGENT_EPOCH_PLACE_MAX = 512, AGENT_EPOCH_PROOF_BYTES = 32 };

struct agent_epoch {
    uint64_t number; /* 0: no controller with an epoch was obeyed yet */
    uint64_t progress;
    char cluster[64], instance[40], place[AGENT_EPOCH_PLACE_MAX];
    uint8_t proof[AGENT_EPOCH_PROOF_BYTES];
    int64_t written_ms; /* when it was written (monotonic); 0: never by this process */
};

/* Reads the epoch that an earlier heddled has written; number 0 if there is no file. A file that
 * cannot be read is logged, and counts as none. */
void agent_epoch_read(const char *state_dir, struct agent_epoch *ret_epoch);
/* Compares a controller with the one that was obeyed. HD_CONFLICT: `seen` is an older controller
 * of the same cluster, or another one with the same number; the message names both. Else `known`
 * becomes `seen`. *ret_changed: it is another controller, or another start of it, and is to be
 * written. */
enum hd_status agent_epoch_compare(struct agent_epoch *known, const struct agent_epoch *seen,
                                   bool *ret_changed);
enum hd_status agent_epoch_write(const char *state_dir, struct agent_epoch *epoch);

#endif
