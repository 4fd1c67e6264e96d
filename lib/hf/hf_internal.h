/* hf_internal: declarations shared by the files of this folder.
 *
 *     weights         safetensors files of any origin
 *     adapter         adapter folders in PEFT's form
 *     adapter_stacks  their factors of experts that are one parameter
 *     name_tables     tables of names
 *     names           finds our parameters in their tensors
 *     quantized       quantized matrices among them
 *     fp8_blocks      matrices among them of fp8 codes, whose blocks have scales
 *     quantization    quantization_config of config.json
 *     config          config.json -> a resolved job, with
 *     config_keys     its keys, a rule for each
 *     config_words    its values in messages and notes
 *     config_granite  its keys of Granite 4
 *     config_experts  its keys of experts
 *     config_falcon   its keys of Falcon, read and written
 *     config_llama4   its keys of Llama 4, read and written
 *     config_layers   its rules that pick layers
 *     rope            its keys of rotary positions
 *     tied            a head that differs from the embedding
 *     wrapper         folders of models of text and images
 *     padding         padding token of a reward model's folder
 *     harmless        keys of config.json without an effect
 *     further         names of layers that predict further tokens
 *     describe        a resolved job -> config.json, with
 *     describe_experts  its keys of experts
 *     merge           config.json of an export: the base's file with the run's changes
 *     carry           the other files of a base and of a tokenizer, with
 *     byte_tokenizer  those of a model of bytes
 *     positions       rows of learned positions that a shorter context leaves out
 *     export          a checkpoint -> a model directory
 *     export_wrapped  the rest of a folder with a text model
 *     hashes          heddle-hashes.json
 */
#ifndef HD_HF_INTERNAL_H
#define HD_HF_INTERNAL_H

#include <math.h>

#include "base/dtype.h"
#include "base/json.h"
#include "checkpoint/format.h"
#include "hf/hf.h"
#include "job/family.h"

/* One row of a table of names: our parameter and their tensor. '#' is the layer number. '*' in
 * theirs is the number of an expert or of a head: each one of our [E, ..] then has a tensor. */
struct hd_hf_row {
    const char *ours, *theirs;
    /* true: the tensor's name has no prefix, since it is outside transformers' base model */
    bool top;
    bool transposed; /* true: their tensor is [in, out]; also allowed for vectors */
    bool one_row;    /* true: our vector is their matrix of one row */
    /* true: their tensor joins all blocks along its columns, two parts (keys, values) per block */
    bool columns;
    bool middle; /* true: their tensor has a dimension of 1 in the middle: a convolution */
    /* the parts of their tensor are not one after another: it has the rows of all parts for each
     * head in turn */
    enum hd_hf_groups { HD_HF_WHOLE, HD_HF_BY_HEAD, HD_HF_BY_KEY_HEAD } groups;
    /* true: the rows of the parts alternate: row r of part p is their row r parts + p; of biases
     * [E, F], whose parts are joined along columns, the columns */
    bool alternate;
    int place; /* index of our parameter among the parts of their tensor, along its rows */
    int parts; /* number of our parameters in their tensor; 1: it has only this one */
    /* true: their tensor joins q, k and v by key/value heads: rows [G][H/G of q, k, v][D] */
    bool by_heads;
    /* model.parallel_residual of models in which the tensor has this name; NULL: any */
    const char *branches;
    /* form of a factor of all experts, [E, n, m], as a matrix (adapter_stacks.c) */
    enum hd_hf_stack {
        HD_HF_NO_STACK,
        HD_HF_STACK_ROWS,   /* [E n, m]: the experts' rows one expert after another */
        HD_HF_STACK_COLUMNS /* [n, m E]: column j of expert e is j E + e */
    } stack;
};

/* The names of a family's tensors: the prefix of a model with a head, the rows in the form that an
 * export has, and the rows of another form. */
struct hd_hf_names {
    const char *prefix;
    const struct hd_hf_row *rows;
    size_t count;
    /* [stacked_count] rows of another form, with experts in stacks or codes; NULL: no such form */
    const struct hd_hf_row *stacked;
    size_t stacked_count;
    const char *stacked_sign; /* name of a tensor that exists only in that form */
};
const struct hd_hf_names *hd_hf_names_of(const struct hd_family *family);
/* Returns the table with this index; NULL: there are not so many. */
const struct hd_hf_names *hd_hf_names_at(size_t index);

/* Returns whether a name, without a prefix, is that of a constant that older versions of
 * transformers saved. */
bool hd_hf_is_constant(const char *name);

/* Returns whether `name` is the pattern with a number for '#'; sets *ret_layer to the number, or
 * 0. */
bool hd_hf_name_matches(const char *pattern, const char *name, int64_t *ret_layer);

/* Sets *ret_rows to a model family's table of names, in the form that an export has; rows of the
 * same tensor are adjacent. HD_UNSUPPORTED: the family has no table. */
enum hd_status hd_hf_rows(const char *family, const struct hd_hf_row **ret_rows, size_t *ret_count,
                          const char **ret_prefix);

/* Makes the table of names of adapters' factors from the table of a model family; results live in
 * the arena. nested: as in hd_hf_stack_rows. */
enum hd_status hd_hf_adapter_rows(const char *family, bool nested, struct hd_arena *arena,
                                  const struct hd_hf_row **ret_rows, size_t *ret_count,
                                  const char **ret_prefix);

/* How PEFT holds the adapters of a family's experts whose matrices are one parameter (a ParamWrapper
 * of target_parameters). */
struct hd_hf_stacks {
    const char *experts; /* the module of the parameters gate_up_proj and down_proj, in a block */
    bool turned;    /* PEFT takes our [.., out, in] for [in, out]: its A is our B, transposed, and
                            its B our A */
    bool alternate; /* rows of gate and up alternate */
};
/* Returns NULL if the family's experts are modules, each with factors of its own, or if it has no
 * experts. */
const struct hd_hf_stacks *hd_hf_stacks_of(const char *family);

/* Sets ret_rows to the rows of the table of names for the factors of stacks: A of gate and up, their
 * Bs, A and B of down. nested: the adapter has factors of both parameters. */
enum { HD_HF_STACK_FACTORS = 5 };
void hd_hf_stack_rows(const struct hd_hf_stacks *stacks, bool nested, struct hd_arena *arena,
                      struct hd_hf_row ret_rows[HD_HF_STACK_FACTORS]);

/* Returns whether a module of PEFT's tensor names is that of a stack. */
bool hd_hf_is_stack(const char *module, size_t length);

/* Sets ret_shape to the shape of a stack's tensor for factors [experts, n, m]; turned: their matrices
 * are the transposes. */
void hd_hf_stack_shape(enum hd_hf_stack stack, bool turned, const int64_t ours[3],
                       int64_t ret_shape[2]);

/* Returns the index of element (i, j) of an expert's matrix in a stack's tensor with this shape, and
 * that of the same element of the next column, as the distance to it. */
struct hd_hf_stack_place {
    int64_t first, step;
};
struct hd_hf_stack_place hd_hf_find_in_stack(enum hd_hf_stack stack, bool turned, int64_t experts,
                                             const int64_t shape[2], int64_t expert, int64_t i,
                                             int64_t j);

/* Finds MODULE in a tensor name "base_model.model.PREFIX.LAYER.MODULE.lora_A.weight"; false:
 * another form. */
bool hd_hf_find_module(const char *tensor, const char **ret_module, size_t *ret_length);

/* Checks that a model directory contains only files of an export. HD_EXISTS: the message names
 * another file. A directory without heddle-hashes.json may have only config.json and weights. */
enum hd_status hd_hf_check_own(const char *dir);

/* Returns the number of heads by which the rows of the parts of a row's tensor take turns; 1: each
 * part is whole. */
int64_t hd_hf_groups_of(const struct hd_job *job, const struct hd_hf_row *row);

/* Name of a prefix adapter's one tensor in PEFT's folder. hd_hf_prefix_rows makes the rows of the
 * table of names for it. */
#define HD_HF_PREFIX_NAME "prompt_embeddings"
void hd_hf_prefix_rows(const struct hd_job *job, struct hd_hf_row ret_rows[2]);

/* Returns the row of a tensor that joins q, k and v by key/value heads (by_heads), which has row `row`
 * of its part q (place 0), k (1) or v (2). */
static inline int64_t hd_hf_row_by_heads(const struct hd_job *job, int place, int64_t row)
{
    const int64_t D = job->head_width, each = job->heads / job->kv_heads, head = row / D;
    const int64_t group = place ? head : head / each;

    return (group * (each + 2) + (place ? each + place - 1 : head % each)) * D + row % D;
}

/* Returns the rows of one of our parameters in a tensor that joins several; `rows` if they follow
 * from no key of the job. */
int64_t hd_hf_part_rows(const struct hd_job *job, const char *name, int64_t rows);

#define HD_HF_HEAD_NAME  "lm_head.weight"
#define HD_HF_HEAD_BIAS  "lm_head.bias"
#define HD_HF_NEOX_HEAD  "embed_out.weight" /* name of lm_head.weight in files of gpt_neox */
#define HD_HF_SCORE_NAME "score.weight"     /* a reward model's tensor in place of lm_head */

/* ---- models of text and images whose text model is one of ours (wrapper.c) ---- */

struct hd_hf_wrapper {
    const char *type;    /* model_type of its config.json */
    const char *head;    /* its class with a language model head */
    const char *texts;   /* model types of its text_config, the first of which is the default */
    const char *ignores; /* its keys that have no effect on the text model */
    bool tied;           /* tie_word_embeddings of the class, which a file may leave out */
    const char
        *modules; /* beginning of the names of its text model's modules, as PEFT names them */
};

/* Returns the wrapper that a config.json names; NULL: none. */
const struct hd_hf_wrapper *hd_hf_find_wrapper(const struct hd_json *root);

/* Beginnings of the names of a folder's tensors. */
struct hd_hf_prefixes {
    const char *base, *top; /* prefixes of tensors inside, outside transformers' base model */
    bool wrapped;           /* true: the folder also has tensors of a vision tower */
};

/* Finds the form of names in which a folder has the embedding. prefix: that of the base model in a
 * plain folder, which is also taken if no form fits. */
struct hd_hf_prefixes hd_hf_find_prefixes(const struct hd_weights *weights, const char *prefix,
                                          const char *embedding);
/* Returns whether a tensor is one of the text model. */
bool hd_hf_is_of_text(const struct hd_hf_prefixes *prefixes, const char *name);
/* Returns whether a tensor of a plain folder is of a layer after the last one of the job's model, by
 * which further tokens are predicted. The family's class and training do not use these layers. A
 * layer without a tensor eh_proj is not one of these: config.json then states too few layers. */
bool hd_hf_is_extra(const struct hd_weights *weights, const struct hd_job *job, const char *prefix,
                    const char *name);

/* ---- layers for further tokens that train (further.c) ---- */

/* Returns the most of them for which files of the family have names; 0: none. */
int64_t hd_hf_further_max(const struct hd_family *family);
/* Returns the key of config.json with their number; NULL: the family's class has none. */
const char *hd_hf_further_key(const struct hd_family *family);
/* Returns whether a parameter of ours is of such a layer. */
bool hd_hf_is_further(const char *ours);
/* hd_hf_has_aside: returns whether the family's files have them beside the model's tensors, as mtp.*;
 * hd_hf_is_aside: whether a tensor of theirs is one of these. */
bool hd_hf_has_aside(const struct hd_family *family);
bool hd_hf_is_aside(const char *theirs);
/* Adds their number to config.json. Files with the form aside may lack the key, and have none if there
 * are no such layers. */
void hd_hf_describe_further(struct hd_json_writer *w, const struct hd_job *job,
                            const struct hd_family *f);
/* hd_hf_further_rows: returns the rows of the tensors that such a layer has beside its block.
 * hd_hf_further_copies: returns the rows of its copies of the embedding and of the head; `ours` is
 * the original. '#' in theirs is the layer. */
const struct hd_hf_row *hd_hf_further_rows(const struct hd_family *family, size_t *ret_count);
const struct hd_hf_row *hd_hf_further_copies(const struct hd_family *family, size_t *ret_count);
/* Sets ret_name to their name of a tensor in a row, for a layer from hd_hf_find_row, or one from
 * job->layers on. */
void hd_hf_format_theirs(const struct hd_hf_row *row, const struct hd_job *job,
                         const struct hd_hf_prefixes *prefixes, int64_t layer, int64_t expert,
                         char ret_name[HD_WEIGHTS_NAME_MAX]);
/* Returns the row of a parameter of ours in the table of names, or of those above, and sets
 * *ret_layer to the number of its layer in their names; NULL: files of the family have no such
 * tensor. */
const struct hd_hf_row *hd_hf_find_row(const struct hd_hf_row *rows, size_t count,
                                       const struct hd_job *job, const char *ours,
                                       int64_t *ret_layer);
/* Sets ret_name to our name in a row for one of their layers. */
void hd_hf_format_ours(const struct hd_hf_row *row, const struct hd_job *job, int64_t layer,
                       char ret_name[HD_CKPT_NAME_MAX]);
/* Returns whether a tensor is the output head; in a folder with these prefixes, or in any. */
bool hd_hf_is_head(const struct hd_hf_prefixes *prefixes, const char *name);
bool hd_hf_is_any_head(const char *name);

/* Beginnings of names: of every tensor of PEFT's folders; of the text model's modules in
 * transformers' classes of wrapped models. */
#define HD_HF_PEFT_PREFIX     "base_model.model."
#define HD_HF_WRAPPED_MODULES "model.language_model."
/* Returns the beginning of the names of an adapter's factors. prefix: that for a plain model. */
const char *hd_hf_find_adapter_prefix(const struct hd_weights *weights, const char *prefix,
                                      struct hd_arena *arena);

/* Names of the keys of experts in a family's class: their number; the number of shared experts, and
 * the first layer with experts; NULL: the class has no such key. */
const char *hd_hf_experts_key(const struct hd_family *family);
const char *hd_hf_shared_key(const struct hd_family *family);
const char *hd_hf_first_key(const struct hd_family *family);

/* Adds a number with a decimal point (0.0, not 0), which newer versions of transformers require. */
void hd_hf_add_float(struct hd_json_writer *w, const char *key, double value);
/* Returns the name of a setting of experts or router that config.json of this family cannot express;
 * NULL: it can express all. Settings that affect only training (other losses, capacity) are not part
 * of the model. */
const char *hd_hf_lacks_of_router(const struct hd_job *job, const struct hd_family *f);
/* Adds the keys of experts that the family's class reads. */
void hd_hf_describe_experts(struct hd_json_writer *w, const struct hd_job *job,
                            const struct hd_family *f);

/* Returns whether a Falcon model may have the job's number of key/value heads. */
bool hd_hf_has_falcon_heads(const struct hd_job *job);
/* Add the keys that only the classes of Falcon, and of Llama 4, have. */
void hd_hf_describe_attn_config(struct hd_json_writer *w, const struct hd_job *job);
void hd_hf_describe_falcon(struct hd_json_writer *writer, const struct hd_job *job);
void hd_hf_describe_llama4(struct hd_json_writer *writer, const struct hd_job *job);

/* Sets *ret_first and *ret_step so that layer i has experts iff i >= first and step divides i + 1;
 * false: no numbers that the family's class reads give the job's layers. */
bool hd_hf_find_experts(const struct hd_job *job, const struct hd_family *family,
                        int64_t *ret_first, int64_t *ret_step);

/* Returns whether a model folder may lack a tensor that its index lists: an output head, which may
 * be tied, or a constant that only older versions saved. */
bool hd_hf_may_be_absent(const char *name);

/* Converts `count` elements of a tensor, those with indices at, at + stride, .., to fp32. */
void hd_hf_convert(const struct hd_weight *weight, int64_t at, int64_t stride, int64_t count,
                   float *ret_values);

/* Sets ret_name to a pattern of a table of names with '#' replaced by the layer number and '*' by
 * the expert number. */
void hd_hf_format_name(const char *pattern, int64_t layer, int64_t expert,
                       char ret_name[HD_CKPT_NAME_MAX]);
/* Returns whether the tensors of the job's model have the names of this row. */
bool hd_hf_is_row_of(const struct hd_hf_row *row, const struct hd_job *job);
/* Returns the largest number of tensors that one of our parameters has in this row. */
int64_t hd_hf_tensors_of(const struct hd_hf_row *row, const struct hd_job *job);
/* Returns whether in this row each expert, or each head of a norm, has its own tensor. */
bool hd_hf_per_expert(const struct hd_hf_row *row);

/* Parses model.safetensors.index.json: its map {tensor: file}, and the distinct files, which are
 * plain file names. Results live in the arena. */
enum hd_status hd_hf_parse_index(struct hd_arena *arena, const char *text, size_t text_bytes,
                                 const struct hd_json **ret_map, const char ***ret_names,
                                 size_t *ret_count);

/* A whole quantized matrix of a model folder, [rows, columns]. */
struct hd_hf_quantized {
    enum hd_quant quant;
    bool fp8_blocks; /* true: codes and scales are those of fp8_blocks.c, and quant is NONE */
    bool mxfp4;      /* true: codes of mxfp4, which are only decoded; `quant` is NONE */
    int64_t rows, columns;
    struct hd_quant_whole whole;
};

/* Rows and columns of the blocks of codes in fp8 that share a scale. */
enum { HD_HF_FP8_BLOCK = 128 };
/* Returns whether the tensor consists of codes in fp8. */
bool hd_hf_is_fp8(const struct hd_weight *weight);
/* Do for matrices of codes in fp8 what hd_hf_find_quantized and hd_hf_decode do for others. */
enum hd_status hd_hf_find_fp8(const struct hd_weights *weights, const struct hd_weight *weight,
                              int64_t rows, int64_t columns, bool *used,
                              struct hd_hf_quantized *ret_quantized);
void hd_hf_decode_fp8(const struct hd_hf_quantized *quantized, int64_t row, int64_t column,
                      int64_t count, float *ret_values);

/* Sets *ret_quantized to the codes and scales of the quantized matrix `weight`, and marks their
 * tensors as used. HD_INVALID, HD_UNSUPPORTED: the message names file and tensor. */
enum hd_status hd_hf_find_quantized(const struct hd_weights *weights,
                                    const struct hd_weight *weight, int64_t rows, int64_t columns,
                                    bool *used, struct hd_hf_quantized *ret_quantized);
/* Sets *ret_quantized to a stack of experts' matrices in mxfp4 (Open Compute Project 2023, "Microscaling
 * Formats"): `blocks` NAME_blocks [E, rows, columns / 32, 16], two codes of E2M1 in a byte, the first
 * in the lower half, and NAME_scales [E, rows, columns / 32], exponents of two plus 127. The result
 * has the rows of all experts. */
enum hd_status hd_hf_find_mxfp4(const struct hd_weights *weights, const struct hd_weight *blocks,
                                const int64_t shape[3], bool *used,
                                struct hd_hf_quantized *ret_quantized);
/* Dequantizes `count` values of one row of a matrix, from `column` on. */
void hd_hf_decode(const struct hd_hf_quantized *quantized, int64_t row, int64_t column,
                  int64_t count, float *ret_values);
/* Sets *ret_whole to rows of a quantized matrix, from first_row on, as a matrix of its own; false:
 * the first row begins inside a quantization block. */
bool hd_hf_slice_quantized(const struct hd_hf_quantized *quantized, int64_t first_row,
                           struct hd_quant_whole *ret_whole);

/* Reads quantization_config of a config.json, which is not null, and sets the job's model.quantization.
 * HD_UNSUPPORTED: the message names the key. */
enum hd_status hd_hf_read_quantization(const struct hd_json *config, struct hd_job *job);

/* Names of transformers' classes of a family: with a language model head; without a head, whose
 * tensor names have no prefix; of reward models ("": none). */
struct hd_hf_classes {
    char head[64], base[64], classifier[64];
};
void hd_hf_class_names(const struct hd_family *family, struct hd_hf_classes *ret_classes);

/* Returns whether layer `layer` of the job has its window or its chunks. */
bool hd_hf_has_window(const struct hd_job *job, int64_t layer);

/* Returns whether the row of the family lists a key of config.json in `reads`. */
bool hd_hf_reads(const struct hd_family *family, const char *key);
/* Returns whether config.json of the class has the keys of GPT-2 (n_embd, n_positions ..). */
bool hd_hf_has_gpt2_keys(const struct hd_family *family);
/* Returns the first of the names, of which the last is NULL, that the class reads; the one before NULL
 * if it reads none. */
const char *hd_hf_own_key(const struct hd_family *family, const char *const names[]);

/* Returns whether this key of config.json has no effect on training in models of this family. */
bool hd_hf_is_harmless(const char *name, const struct hd_family *family);

/* Returns the model.router.balance that equals transformers' router_aux_loss_coef. Both losses are
 * E sum_e f_e P_e, with f_e the share of the tokens that choose expert e, and P_e its mean
 * probability. Theirs counts each of a token's choices in full, so it is experts_per_token at
 * balance, ours is 1; and theirs is one loss over the tokens of all layers, ours the sum of one
 * loss per layer. */
static inline double hd_hf_balance(double coefficient, int64_t experts_per_token, int64_t layers)
{
    return coefficient * (double)experts_per_token / (double)layers;
}

/* Returns sqrt(hidden), by which Gemma multiplies embeddings; bf16: as transformers rounds it to the
 * weights' dtype. */
static inline double hd_hf_embedding_scale(int64_t hidden, bool bf16)
{
    const float scale = sqrtf((float)hidden);

    return bf16 ? (double)hd_bf16_to_f32(hd_f32_to_bf16(scale)) : sqrt((double)hidden);
}

/* Content of a config.json. An id of -1: none. */
struct hd_hf_description {
    const struct hd_job *job;
    enum hd_dtype dtype;
    /* rows of the exported table of learned positions; 0: as many as the context */
    int64_t positions;
    bool text_only;    /* true: the text model of a wrapped base, as a model of its own */
    bool extra_layers; /* true: the export has the base's layers after the last one */
    int64_t further;   /* layers after the last one that the run trained */
    /* token ids; set for a model without a base folder, pad also for every reward model */
    int64_t bos, eos, pad;
};

/* Sets *ret_type to the family whose config.json and names of tensors an export of the job has: the
 * job's own, if it can express the model, else the first that can. HD_UNSUPPORTED: none can. */
enum hd_status hd_hf_type_of(const struct hd_job *job, const struct hd_family **ret_type);

/* Appends the config.json of the model as it is now to ret_text. HD_UNSUPPORTED: the message names
 * what config.json cannot express. */
enum hd_status hd_hf_describe(const struct hd_hf_description *now, struct hd_text *ret_text);

/* Writes the description into the base's config.json: keys that the run did not change keep the
 * base's text. */
enum hd_status hd_hf_merge(const struct hd_hf_description *now, const char *base, size_t base_bytes,
                           struct hd_text *ret_text);

/* folder of named templates besides the default one */
#define HD_HF_TEMPLATES_DIR "additional_chat_templates"

/* A request to hd_hf_carry_files: the job whose files are exported with its model, and the function
 * that takes them. */
struct hd_hf_carry {
    const struct hd_job *job;
    /* checkpoint that may have copies of the files; NULL: take them from the job's folders */
    const char *checkpoint_dir;
    /* folder in which model.from lies now; NULL: the one that the job names */
    const char *base_dir;
    bool adapter;   /* true: leave out the base's files, since an adapter is used beside its base */
    bool text_only; /* true: leave out the files of a wrapped base's processor of images */
    /* tokens that a tokenizer_config.json names, which is written if the tokenizer has none; NULL:
     * none is written */
    const struct hd_hf_ends *ends;
    /* Receives one file. name: "FILE", or "FOLDER/FILE". The text is valid during the call. */
    enum hd_status (*put)(void *context, const char *name, const struct hd_text *text);
    void *context;
};

/* Calls `put` for each existing file that an export takes besides the weights, including the base's
 * unchanged config.json. Stops at the first failure of `put`, or of reading a file. */
enum hd_status hd_hf_carry_files(const struct hd_hf_carry *options);

/* Reads one of the files of hd_hf_carry_files; ret_text stays empty if the file does not exist. */
enum hd_status hd_hf_read_carried(const struct hd_hf_carry *options, const char *name,
                                  struct hd_text *ret_text);

/* Rows of a base's table of learned positions after those that a job with a shorter context has.
 * The run does not train them; an export appends them again. */
#define HD_HF_POSITIONS_FILE "positions.safetensors"

struct hd_hf_positions {
    struct hd_weights *weights;
    const struct hd_weight *table;
    /* index of the first row in the base's table, and size of the rows; rows 0: none */
    int64_t first, rows, columns;
};

/* Finds the base's rows of learned positions in the folder from which a run started; a folder that
 * no longer exists has none. */
enum hd_status hd_hf_find_positions(const struct hd_job *job, const char *dir,
                                    struct hd_hf_positions *ret_positions);
enum hd_status hd_hf_open_positions(const char *path, struct hd_hf_positions *ret_positions);
enum hd_status hd_hf_write_positions(const struct hd_hf_positions *positions, const char *path);
void hd_hf_read_positions(const struct hd_hf_positions *positions, float *ret_values);
void hd_hf_close_positions(struct hd_hf_positions *positions);

/* Finds the base's rows of learned positions in the folders in which hd_hf_carry_files finds
 * files. */
enum hd_status hd_hf_carry_positions(const struct hd_hf_carry *options,
                                     struct hd_hf_positions *ret_positions);

/* Write tokenizer.json and tokenizer_config.json for a model of bytes. A failed allocation sets
 * ret_text->failed. */
void hd_hf_write_byte_tokenizer(struct hd_text *ret_text);
void hd_hf_write_byte_tokenizer_config(struct hd_text *ret_text);

/* Returns the id of a token of a base's config.json that can pad answers, because it ends none:
 * pad_token_id, else bos_token_id. -1: neither can. */
int64_t hd_hf_pad_token(const char *config, size_t config_bytes);

/* Adds the run's end token to eos_token_id of a config.json or generation_config.json if it is
 * missing, and its begin token as bos_token_id if the file has none. Text with both stays
 * unchanged. */
enum hd_status hd_hf_put_ends(const struct hd_hf_ends *ends, struct hd_text *text);
/* Appends a tokenizer_config.json that names the run's special tokens. has_pieces: the tokenizer is
 * a SentencePiece model. */
void hd_hf_write_names(const struct hd_hf_ends *ends, bool has_pieces, struct hd_text *ret_text);

/* Returns whether the JSON value of a key is the number `id`, or a list that contains it; false if
 * v is NULL. */
bool hd_hf_has_id(const struct hd_json *v, int64_t id);

/* ---- heddle-hashes.json ---- */

#define HD_HF_HASHES_FILE "heddle-hashes.json"

/* heddle-hashes.json while it is written. The struct must not be copied (`writer` points to
 * `text`); the owner frees `text`. */
struct hd_hf_hashes {
    struct hd_text text;
    struct hd_json_writer writer;
};

void hd_hf_hashes_begin(struct hd_hf_hashes *ret_hashes);
/* Adds a file to heddle-hashes.json, with its complete block hashes. */
void hd_hf_hashes_add(struct hd_hf_hashes *hashes, const char *file,
                      const struct hd_ckpt_blocks *blocks);
enum hd_status hd_hf_hashes_end(struct hd_hf_hashes *hashes);

struct hd_hf_listed { /* a listed file: its regions and the hashes of their blocks, in order */
    const char *file; /* name of the file in the directory, without a path */
    struct hd_ckpt_region *regions;
    size_t count;
    uint64_t *hashes;
    size_t hash_count;
    int64_t size_bytes;
};

/* Parses heddle-hashes.json; results live in the arena. HD_UNSUPPORTED: another version. */
enum hd_status hd_hf_parse_hashes(struct hd_arena *arena, const char *text, size_t text_bytes,
                                  struct hd_hf_listed **ret_files, size_t *ret_count);

#endif
