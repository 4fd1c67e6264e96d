/* save_internal: functions that save.c and load.c share. Only for those two files. */
#ifndef HD_TRAIN_SAVE_INTERNAL_H
#define HD_TRAIN_SAVE_INTERNAL_H

#include "checkpoint/checkpoint.h"
#include "train/save_plan.h"
#include "train/trainer.h"

enum { SAVE_SUMS_TEXT = 64 };

struct save_names {
    char text[HD_CKPT_NAME_MAX];
};

/* Describes this rank's shard of a tensor, without padding. kind: index in hd_saved_kinds. */
struct hd_ckpt_entry save_entry_of(const struct hd_param *p, int kind, struct save_names *ret_name);
void save_name_buffer(const struct hd_buffer *b, struct save_names *ret_name);
float *save_buffer_at(const struct hd_trainer *t, const struct hd_buffer *b);

/* A rank's message to the others: a failure with its text, or the description of its shard. */
struct save_outcome {
    enum hd_status status;
    int has_shard;
    struct hd_ckpt_shard shard;
    uint64_t manifest_hash;
    char message[HD_EXCHANGE_SLOT_BYTES - sizeof(struct hd_ckpt_shard) - 4 * sizeof(int) -
                 sizeof(uint64_t)];
};
_Static_assert(sizeof(struct save_outcome) <= HD_EXCHANGE_SLOT_BYTES, "an outcome fits its slot");

struct save_outcome save_outcome_of(enum hd_status st);

/* Exchanges the ranks' outcomes of writing their shards. If a rank failed, every rank returns the
 * failure of the lowest failed rank. */
enum hd_status save_agree(struct hd_trainer *t, const struct save_outcome *mine,
                          struct save_outcome *ret_all);

/* names of the counters of early stopping (val_numbers.c) */
#define SAVE_STOP_BEST      "stop_best"
#define SAVE_STOP_BEST_STEP "stop_best_step"
#define SAVE_STOP_WAITS     "stop_waits"

/* Writes the name of the checkpoint counter that stores index `index` of the guard's history. The
 * functions below name facts of the manifest on which the bits of results depend. */
void save_name_guard(int index, char ret_text[16]);
void save_number_text(int64_t value, char ret_text[24]);
const char *save_precision_fact(const struct hd_trainer *t);
const char *save_sums_fact(const struct hd_trainer *t, char ret_text[SAVE_SUMS_TEXT]);

#endif
