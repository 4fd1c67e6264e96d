/* execute: runs instruction streams (lib/pipeline): a step, a round of validation, or a call of
 * decoding. Only for lib/train.
 *
 * Each RUN instruction is bound to its slots of saved activations once, when the trainer opens. A
 * transfer between two stages proceeds while programs run; the next program or transfer that uses
 * the same slot waits until the transfer is complete.
 */
#ifndef HD_TRAIN_EXECUTE_H
#define HD_TRAIN_EXECUTE_H

#include "train/trainer.h"

/* An instruction stream with, per instruction, the bound program (RUN, BEGIN, UPDATE) or the
 * transfer (SEND, RECEIVE). */
struct hd_bound_instructions {
    const struct hd_step_plan *plan;
    bool decodes; /* true: programs of `program` in place of those of training and validation */
    enum hd_decode_program program;
    struct hd_bound **bound;
    struct hd_transfer_args *transfers;
    /* program P, which gathers the updated weights, run after UPDATE; NULL: nothing is offloaded */
    struct hd_bound *publish;
};

/* Binds every program of the instruction stream and opens the group (two ranks) of each of its
 * transfers between stages. like: a bound stream of the same programs, whose bound programs are
 * shared where they use the same slots; NULL: none. */
enum hd_status hd_execute_bind(struct hd_trainer *trainer, const struct hd_step_plan *plan,
                               const struct hd_bound_instructions *like,
                               struct hd_bound_instructions *ret_list);

/* Binds the instruction stream of a call of a program of decoding, likewise. */
enum hd_status hd_execute_bind_decode(struct hd_trainer *trainer, enum hd_decode_program program,
                                      struct hd_bound_instructions *ret_list);

/* Opens and connects the channel of each of the instruction stream's transfers, in an order that is
 * equal on all ranks; the first operation of a channel must be a collective. */
enum hd_status hd_execute_connect(struct hd_trainer *trainer, const struct hd_step_plan *plan,
                                  struct hd_comm_stream *stream);

/* Runs the instruction stream. `feed` writes the batch fields of a chunk for a micro-batch.
 * Instructions of micro-batches from `micro_batches` on are skipped, on all stages. `after`, if not
 * NULL, is called after each program of a chunk; on a device its launches may not have run yet. */
typedef enum hd_status hd_execute_feed(struct hd_trainer *trainer, const struct hd_chunk *chunk,
                                       const struct hd_bases *bases, int64_t micro_batch,
                                       void *context);
enum hd_status hd_execute(struct hd_trainer *trainer, const struct hd_bound_instructions *list,
                          int64_t micro_batches, hd_execute_feed *feed, hd_execute_feed *after,
                          void *context);

#endif
