/* epoch: which of several controllers of its cluster this node obeys.
 *
 *     STATE_DIR/epoch   lines "WORD VALUE": cluster, number, instance, progress, proof, place
 *
 * A copy of a controller's database makes a second controller of the same cluster. Each start of a
 * controller has a higher number, and a node obeys the highest number it has seen (fleet.proto,
 * Epoch). The file is written before a new epoch is obeyed; if that fails, the failure is logged
 * and the epoch is obeyed.
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
    /* number of the controller's start that was obeyed last; 0: no controller with an epoch was
     * obeyed yet */
    uint64_t number;
    uint64_t progress;
    char cluster[64], instance[40], place[AGENT_EPOCH_PLACE_MAX];
    uint8_t proof[AGENT_EPOCH_PROOF_BYTES];
    /* time of the last write of the file (monotonic ms); 0: not yet by this process */
    int64_t written_ms;
};

/* Reads the epoch that an earlier heddled stored in the state directory; number 0: no file. An
 * unreadable file is logged and counts as missing. */
void agent_epoch_read(const char *state_dir, struct agent_epoch *ret_epoch);
/* Compares a controller's epoch, `seen`, with the obeyed one, `known`. HD_CONFLICT: `seen` is an
 * older controller of the cluster, or another one with an equal number; the message names both.
 * Otherwise copies `seen` to `known`. *ret_changed: another controller, or another start of it, so
 * the file must be written. */
enum hd_status agent_epoch_compare(struct agent_epoch *known, const struct agent_epoch *seen,
                                   bool *ret_changed);
enum hd_status agent_epoch_write(const char *state_dir, struct agent_epoch *epoch);

#endif
