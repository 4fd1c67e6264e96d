/* export_internal: declarations that export.c (a model folder), export_adapter.c (an adapter, alone
 * or added to its weights) and export_wrapped.c (the rest of a wrapped base) share. Threads: those of one export. */
#ifndef HD_HF_EXPORT_INTERNAL_H
#define HD_HF_EXPORT_INTERNAL_H

#include "hf/hf_internal.h"

enum {
    HD_EXPORT_PARTS_MAX = 4,
    HD_EXPORT_FURTHER_TENSORS = 6 /* tensors of a layer for further tokens beside its block */
};
#define HD_EXPORT_POSITIONS "embedding.positions"

struct hd_export_tensor { /* one tensor of the export, and its parts in the checkpoint */
    char name[HD_WEIGHTS_NAME_MAX];
    const struct hd_ckpt_entry *parts[HD_EXPORT_PARTS_MAX];
    int part_count, dim_count;
    /* index in dimension 0 of the checkpoint's entry, whose slice the tensor takes; -1: the whole
     * entry */
    int64_t expert;
    int64_t stacked; /* experts of the tensor, its dimension 0; 0: it has no such dimension */
    bool transposed, by_heads; /* flags of its rows in the table of names */
    bool one_row;              /* true: the vector is written as a matrix of one row */
    bool fp32;      /* true: written in fp32 in every export: a router's select bias, which 16 bits
                     would round by more than its differences */
    bool middle;    /* true: its shape has a dimension of 1 in the middle */
    int64_t groups; /* heads by which the rows of its parts take turns; 1: each part is whole */
    bool alternate; /* true: the parts alternate along the rows, of biases along the columns */
    /* true: the tensor is a prefix adapter: keys and values of all blocks, joined along columns; it
     * has no parts */
    bool prefix;
    /* form of a factor of all experts (adapter_stacks.c), of which the parts are joined along their
     * rows; turned: their matrices are transposed */
    enum hd_hf_stack stack;
    bool turned;
    /* true: a factor of a PiSSA adapter, beside that with which it began, so that their product is what
     * the run has added to the base as it is in its folder: [A; A0] or [B, -B0] */
    bool doubled;
    /* rows of learned positions of the base model that follow those of the parts; 0: none */
    int64_t rest;
    int64_t shape[2], elements;
    /* tensor of the base's folder that is copied byte for byte; NULL: the parts are exported */
    const struct hd_weight *copied;
    int file; /* index of the exported file that contains the tensor */
};

struct hd_exporter {
    const struct hd_hf_export *options;
    struct hd_arena arena;
    struct hd_job job;
    struct hd_ckpt *ckpt;
    /* rows of the base model's table of learned positions after those that the run has */
    struct hd_hf_positions positions;
    struct hd_weights *source; /* folder of a wrapped base; NULL: nothing is copied from it */
    bool extra_layers; /* true: layers after the last one are copied from the base's folder */
    struct hd_hf_prefixes prefixes; /* beginnings of the tensors' names */
    struct hd_export_tensor *tensors;
    size_t count;
    int file_count;
    int64_t total_bytes, done_bytes;
    /* buffers as large as the largest tensor: for one part as the checkpoint stores it; for the
     * whole tensor as exported */
    float *part, *whole;
    char *part_dir;
    struct hd_hf_hashes hashes;
};

static inline enum hd_status hd_export_no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory to export a model");
}

/* Returns the request for the files of the export besides the weights. */
struct hd_hf_carry hd_export_carry(struct hd_exporter *x);

/* Adds an entry of the checkpoint to a tensor of the export, as its next rows. */
void hd_export_add_part(struct hd_export_tensor *tensor, const struct hd_ckpt_entry *entry);

/* Sets x->prefixes, and, if the base is a wrapped model (wrapper.c) whose other tensors are copied,
 * opens x->source. prefix: of the base model's tensors; embedding: their name for it. HD_INVALID:
 * the folder of the base is not at hand, or is another; the message says what to do. */
enum hd_status hd_export_open_wrapped(struct hd_exporter *x, const char *prefix,
                                      const char *embedding);
/* Returns the number of tensors that are copied from x->source. */
size_t hd_export_count_copied(const struct hd_exporter *x);
/* Adds these tensors to the export. */
void hd_export_add_copied(struct hd_exporter *x);

/* Reads a piece of a tensor of the checkpoint, with options->ema of its moving average. */
enum hd_status hd_export_read(struct hd_exporter *x, const struct hd_ckpt_entry *want,
                              float *ret_values);
/* Returns the entry of a parameter in the checkpoint, else in its base model; NULL: neither has
 * it. */
const struct hd_ckpt_entry *hd_export_find(const struct hd_exporter *x, const char *name);
/* Returns the entry of a parameter in the list of the base model, options->base; NULL: it has none. */
const struct hd_ckpt_entry *hd_export_find_in_base(const struct hd_exporter *x, const char *name);

/* Returns the number of layers for further tokens that the export has from the run. */
int64_t hd_export_further(const struct hd_exporter *x);

/* Returns whether a tensor of a checkpoint is a factor of an adapter. */
bool hd_export_is_factor(const char *name);
/* Refuses adapters that neither a model of transformers nor PEFT can hold. HD_UNSUPPORTED: the
 * message says which export can take the adapter. */
enum hd_status hd_export_check_adapter(const struct hd_exporter *x);
/* Merges the adapter of a weight into its values w: adds the product of the adapter's factors; with
 * DoRA also scales the rows to the norms that the magnitudes give. Does nothing if the weight has
 * no adapter. */
enum hd_status hd_export_merge(struct hd_exporter *x, const struct hd_ckpt_entry *weight, float *w);

/* Lists the tensors of PEFT's adapter_model.safetensors. HD_INVALID: the run has no adapter, or
 * trained more than one. */
enum hd_status hd_export_list_adapter(struct hd_exporter *x, const struct hd_hf_row *rows,
                                      size_t row_count);
/* Fills x->whole with the tensor of a prefix adapter. Uses x->part as a buffer for the keys or
 * values of one block. */
enum hd_status hd_export_assemble_prefix(struct hd_exporter *x, const struct hd_export_tensor *t);
/* Fills x->whole with factors of all experts. */
enum hd_status hd_export_assemble_factors(struct hd_exporter *x, const struct hd_export_tensor *t);
/* Reads a factor of a PiSSA adapter and the one that it began with into ret_values, as
 * hd_export_tensor.doubled says. */
enum hd_status hd_export_read_doubled(struct hd_exporter *x, const struct hd_ckpt_entry *entry,
                                      float *ret_values);
/* Appends the adapter_config.json of the run's adapter to ret_text. */
enum hd_status hd_export_adapter_config(const struct hd_exporter *x, struct hd_text *ret_text);
/* Merges two texts of adapter_config.json: `before`, of the adapter from which the run started,
 * with the keys that differ in `now`, of the run's adapter. */
enum hd_status hd_export_merge_adapter(const struct hd_text *before, const struct hd_text *now,
                                       struct hd_text *ret_text);

#endif
