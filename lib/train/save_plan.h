/* save_plan: assigns each entry of a checkpoint to the rank that writes it.
 *
 * Several ranks hold the same shard of a tensor: the ranks of its pipeline stage with the same
 * index in tp and, for experts, in ep. With ZeRO each of these ranks has moments and master weights
 * of one piece of the shard. One of the ranks that hold a piece writes it: the one with the fewest
 * bytes so far, in registry order, so that all write about as much. Buffers are equal on all ranks:
 * rank 0 writes them. Frozen parameters may be omitted (omits_frozen of the registry): the model
 * folder that the job began with has them.
 *
 * Used by: rank_program, train.   Uses: program.   Threads: any.
 */
#ifndef HD_TRAIN_SAVE_PLAN_H
#define HD_TRAIN_SAVE_PLAN_H

#include "base/arena.h"
#include "program/registry.h"

/* Kinds of state that a checkpoint has for a parameter, each as an entry of its own: its weight, at most
 * two moments, and the moving average of the weight. */
enum { HD_SAVED_WEIGHT, HD_SAVED_MOMENT1, HD_SAVED_MOMENT2, HD_SAVED_EMA, HD_SAVED_KINDS };
extern const enum hd_state_kind hd_saved_kinds[HD_SAVED_KINDS];
/* Returns whether a trainable parameter has this kind, an index in hd_saved_kinds: the weight, the
 * moments of its rule, and the average if the registry has one. */
bool hd_saved_kind_is_of(const struct hd_registry *registry, const struct hd_param *param,
                         int kind);

/* Returns the range of elements, begin .. end - 1 without padding, that rank `rank` has of one kind
 * of state of its shard of a parameter. */
struct hd_range hd_save_plan_piece(const struct hd_registry *registry, const struct hd_param *param,
                                   int kind, int rank);

/* Calls `put` for each entry of a checkpoint, with the rank that writes it (owner) and the range of
 * the shard that the entry covers. Each distinct range of a parameter's state gets one owner among
 * the ranks that have it. kind: index in hd_saved_kinds. Every rank computes the same assignment on
 * its own. HD_NO_MEMORY: `arena` is full. */
typedef void hd_put_entry_fn(void *context, int owner, int param, int kind, struct hd_range piece);
enum hd_status hd_save_plan_assign(const struct hd_registry *registry, struct hd_arena *arena,
                                   hd_put_entry_fn *put, void *context);

/* Returns the bytes of all buffers (registry.h) in a checkpoint, which rank 0 writes. */
int64_t hd_save_plan_buffers_bytes(const struct hd_registry *registry);

/* Computes the bytes of the checkpoint entries that each rank writes: ret_bytes[world], in `arena`.
 * HD_NO_MEMORY: `arena` is full. */
enum hd_status hd_save_plan_bytes(const struct hd_registry *registry, struct hd_arena *arena,
                                  int64_t **ret_bytes);

#endif
