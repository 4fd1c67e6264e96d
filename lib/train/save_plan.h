/* owners: which rank writes which part of a checkpoint.
 *
 * Several ranks hold the same share of a tensor: those of its pipeline stage with the same index in
 * tp and, for experts, in ep. With ZeRO each of them has moments and master weights of one shard.
 * One of them writes it: the one with the fewest bytes so far, in registry order, so that all have
 * about the same. Buffers are equal on all ranks: rank 0 writes them. What does not train may be
 * left out (omits_frozen of the registry): the model folder that the job began with has it.
 *
 * Used by: layout, train.   Uses: program.   Threads: any.
 */
#ifndef HD_TRAIN_SAVE_PLAN_H
#define HD_TRAIN_SAVE_PLAN_H

#include "base/arena.h"
#include "program/registry.h"

/* The kinds of state that are saved, each an entry of its own. */
enum { HD_SAVED_KINDS = 3 };
extern const enum hd_state_kind hd_saved_kinds[HD_SAVED_KINDS];

/* What rank `rank` has of a kind of state of its share of a parameter: elements begin .. end - 1,
 * without padding. */
struct hd_range hd_save_plan_piece(const struct hd_registry *registry, const struct hd_param *param,
                                   int kind, int rank);

/* Calls put for each entry of a checkpoint with the rank that writes it and what it is of the
 * share: for each piece of a parameter's state that differs, one owner among the ranks that have
 * it. kind: index in hd_saved_kinds. Every rank computes the same assignment by itself.
 * HD_NO_MEMORY. */
typedef void hd_put_entry_fn(void *context, int owner, int param, int kind, struct hd_range piece);
enum hd_status hd_save_plan_assign(const struct hd_registry *registry, struct hd_arena *arena,
                                   hd_put_entry_fn *put, void *context);

/* Of the buffers, which rank 0 writes. */
int64_t hd_save_plan_buffers_bytes(const struct hd_registry *registry);

/* ret_bytes[world], in `arena`: of all entries that each rank writes. HD_NO_MEMORY. */
enum hd_status hd_save_plan_bytes(const struct hd_registry *registry, struct hd_arena *arena,
                                  int64_t **ret_bytes);

#endif
