/* param_reader: fills the memory of a rank's parameters, before training and before inference. Weights
 * come from a checkpoint of any layout, from a model folder, or from the seed, and are encoded as the rank
 * keeps them; moments and averages come from a checkpoint. Only for lib/train.
 *
 * Threads: the rank's. */
#ifndef HD_TRAIN_PARAM_READER_H
#define HD_TRAIN_PARAM_READER_H

#include "train/save_internal.h"
#include "train/source.h"

struct hd_param_reader {
    const struct hd_staging *staging;
    const struct hd_registry *registry;
    /* directories that have the weights; NULL: all are initial ones, drawn by the seed */
    struct hd_source *source;
    struct hd_ckpt *ckpt; /* checkpoint that has moments and averages; NULL: none is read */
    uint64_t seed;
    float *values; /* HD_LOCAL_SHARD_CHUNK elements */
};

struct hd_param_reading {
    const struct hd_staging *staging;
    const struct hd_registry *registry;
    const struct hd_job *job;
    const struct hd_source_dirs *dirs; /* NULL: all weights are initial ones */
    struct hd_ckpt *ckpt;              /* as in struct hd_param_reader */
    /* Callback, called before anything is read. NULL: every model that fits is read. */
    enum hd_status (*check)(const struct hd_registry *registry, const struct hd_source *source);
    /* Callback, called for each parameter of which this rank has a shard. */
    enum hd_status (*read)(void *user, const struct hd_param_reader *reader, int param);
    void *user;
};
/* Opens the directories and reads the rank's parameters. */
enum hd_status hd_params_read(const struct hd_param_reading *reading);

/* Reads one kind of state (index in hd_saved_kinds) of a parameter into this rank's shard. A weight that
 * no directory has gets its initial values. */
enum hd_status hd_param_read(const struct hd_param_reader *reader, int param, int kind,
                             const struct hd_local_shard *shard);

#endif
