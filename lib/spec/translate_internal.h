/* translate_internal: declarations that the files of the translation of other tools' files share.
 *
 *     translate.c         recognises the tool, goes through its settings, writes the job file
 *     translate_base.c    keys and lines that are made, values of settings
 *     translate_rows.c    what each setting is here: one table
 *     translate_values.c  settings whose value needs code
 *     translate_data.c    data sets
 *     translate_sets.c    data sets of LLaMA-Factory's dataset_info.json
 *     translate_args.c    arguments of Megatron-LM -> a tree of settings
 */
#ifndef HD_SPEC_TRANSLATE_INTERNAL_H
#define HD_SPEC_TRANSLATE_INTERNAL_H

#include "spec_internal.h"

enum { TRANSLATE_NAME_MAX = 49 }; /* bytes of a name that is made of a text, with the NUL */

/* Tools, as bits of a row. */
enum spec_tool {
    TOOL_AXOLOTL = 1,
    TOOL_TRL = 2,
    TOOL_TUNE = 4,     /* torchtune */
    TOOL_FACTORY = 8,  /* LLaMA-Factory */
    TOOL_TRAINER = 16, /* TrainingArguments of transformers */
    TOOL_MEGATRON = 32,
    TOOLS = 6,
    TOOLS_HF = TOOL_TRL | TOOL_FACTORY | TOOL_TRAINER, /* these have TrainingArguments' names */
    TOOLS_SFT = TOOLS_HF | TOOL_AXOLOTL,
    TOOLS_ALL = 63
};

/* Ways in which a setting becomes one of a job. */
enum spec_how {
    HOW_COPY,  /* the value as it is */
    HOW_BOOL,  /* true or false */
    HOW_NOT,   /* the opposite of a truth value */
    HOW_WORDS, /* by a list "theirs=ours ..." */
    HOW_TRUE,  /* `arg` if it is true */
    HOW_DROP,  /* no key is needed */
    HOW_LACK,  /* Heddle has nothing like it; false, 0, none and an empty value say nothing */
    HOW_CALL   /* by code: translate_values.c */
};

/* Settings that code reads. */
enum spec_call {
    CALL_NONE,
    CALL_MODEL,        /* a model's name or folder */
    CALL_MICRO,        /* sequences per device and forward pass */
    CALL_ACCUM,        /* micro-batches per step */
    CALL_DEVICES,      /* devices of a node */
    CALL_NODES,        /* nodes */
    CALL_RATIO,        /* warm-up as a share of the run */
    CALL_MIN_RATIO,    /* lowest learning rate as a share of the peak */
    CALL_PER_EPOCH,    /* validations or checkpoints by epochs */
    CALL_STRATEGY,     /* no, steps or epoch */
    CALL_QUANT,        /* load_in_4bit and the like */
    CALL_ADAPTER,      /* lora, qlora, full .. */
    CALL_OPTIMIZER,    /* its name */
    CALL_BETAS,        /* [beta1, beta2] */
    CALL_OBJECTIVE,    /* dpo, orpo, sft .. */
    CALL_PREFERENCE,   /* kind of the loss on pairs */
    CALL_BETA,         /* TRL: beta of DPO, ORPO, GRPO */
    CALL_TEACHER,      /* TRL: the teacher of GKD */
    CALL_GRPO,         /* TRL: what only GRPO has */
    CALL_REWARD_MODEL, /* TRL: a reward model */
    CALL_PRECISION,    /* bf16, fp16, fp8 as flags */
    CALL_ZERO,         /* deepspeed, fsdp */
    CALL_VAL_SIZE,     /* share or number of records for validation */
    CALL_NAME,         /* name of a run */
    CALL_OUTPUT,       /* output folder, whose last part names the job */
    CALL_TARGETS,      /* names of modules */
    CALL_ALSO,         /* further modules that train */
    CALL_TEMPLATE,     /* name of a chat template */
    CALL_DATA,         /* data.train */
    CALL_VAL_DATA,     /* data.val */
    CALL_SPLIT,        /* name of a split */
    CALL_COMPONENT,    /* torchtune: class or function */
    CALL_STEPS,        /* -1: no limit */
    CALL_TEXT_COLUMN,  /* column of a text */
    CALL_LAST_LAYERS,  /* number of last blocks that train */
    CALL_BLEND,        /* Megatron-LM: data-path */
    CALL_WEIGHTS_SPLIT /* Megatron-LM: split 969,30,1 */
};

struct spec_row {
    unsigned tools;    /* bits of enum spec_tool */
    const char *names; /* of the tool, separated by blanks; dots between groups */
    const char *path;  /* our key; NULL: none */
    enum spec_how how;
    const char *arg; /* words, or the value for true */
    const char *note;
    enum spec_call call;
};
extern const struct spec_row spec_rows[];
extern const size_t spec_row_count;

/* Finds the row of a setting; NULL: none. */
const struct spec_row *spec_find_row(unsigned tools, const char *name);

enum { TRANSLATE_LINES_MAX = 400, TRANSLATE_KEYS_MAX = 96, TRANSLATE_SETS_MAX = 32 };

struct translated_file {
    enum spec_tool tool;
    const char *name;   /* name of their file */
    const char *folder; /* of their file */
    const struct yaml_node *root;
    struct hd_arena *arena;
    /* lines of the table: their key, our key or a word, a note */
    struct translated {
        const char *theirs, *ours, *note;
    } lines[TRANSLATE_LINES_MAX];
    size_t line_count;
    /* keys of the job file, in no order */
    struct translated_key {
        const char *path, *text,
            *note; /* text: YAML; note: a comment in the job file; NULL: none */
    } keys[TRANSLATE_KEYS_MAX];
    size_t key_count;
    /* notes of settings that Heddle does not have; comments at the end of the job file */
    const char *lacks[TRANSLATE_LINES_MAX];
    size_t lack_count;
    /* data sets */
    const char *train[TRANSLATE_SETS_MAX], *val[TRANSLATE_SETS_MAX];
    double weights[TRANSLATE_SETS_MAX]; /* of train; 0: none */
    size_t train_count, val_count;
    struct translated_sets { /* dataset_info.json of LLaMA-Factory */
        bool searched;
        const struct hd_json *root; /* NULL: not found, or not readable */
        const char *path, *folder;
        const char *problem; /* why it cannot be read; NULL: it can, or was not found */
    } sets;
    const char *template_file; /* NULL, "alpaca.jinja" or "chatml.jinja" */
    bool all_alpaca, some_data;
    double micro, accum, devices, nodes; /* 0: not given */
    double warmup_ratio, min_ratio;      /* < 0: not given */
    bool has_adapter, is_frozen, has_beta;
    size_t unknown; /* settings without a row */
};

/* Adds a line to the table. */
void translate_tell(struct translated_file *t, const char *theirs, const char *ours,
                    const char *note);
/* Sets a key of the job to a YAML text. */
void translate_put(struct translated_file *t, const char *path, const char *text, const char *note);
/* Returns the text of a key; NULL: not set. */
const char *translate_get(const struct translated_file *t, const char *path);
/* Removes a key. */
void translate_drop(struct translated_file *t, const char *path);
/* Removes a key for which the job has no use, and says why in the lines of the table that name it. Does
 * nothing if the key is not set. */
void translate_leave(struct translated_file *t, const char *path, const char *why);
/* Adds a comment about what Heddle does not have. */
void translate_lack(struct translated_file *t, const char *theirs, const char *note);
/* Returns the text of a scalar, with ${..} of torchtune replaced; "" for anything else. */
const char *translate_text(struct translated_file *t, const struct yaml_node *node);
bool translate_is_null(struct translated_file *t, const struct yaml_node *node);
bool translate_is_true(struct translated_file *t, const struct yaml_node *node);
bool translate_is_false(struct translated_file *t, const struct yaml_node *node);
/* Returns the number that a scalar is; `otherwise` if it is none. */
double translate_number(struct translated_file *t, const struct yaml_node *node, double otherwise);
/* Sets ret_name to the letters of a text that a job's name may have; "" if there are none. */
void translate_clean_name(const char *text, char ret_name[TRANSLATE_NAME_MAX]);
/* Returns the text as YAML: in quotes where it needs them. */
const char *translate_quote(struct translated_file *t, const char *text);

/* Handle a setting of kind HOW_CALL. theirs: its dotted name. */
void translate_value(struct translated_file *t, const struct spec_row *row, const char *theirs,
                     const struct yaml_node *node);
void translate_data(struct translated_file *t, const struct spec_row *row, const char *theirs,
                    const struct yaml_node *node);
/* Adds sets of LLaMA-Factory, by their names, which have commas between them. */
void translate_sets(struct translated_file *t, const char *theirs, bool is_val, const char *names);
/* Adds a set, by its name here. */
void translate_add_set(struct translated_file *t, bool is_val, const char *name);
/* Notes what the form of a set means for the chat template. */
void translate_note_form(struct translated_file *t, const char *type);
bool translate_names_a_file(const char *text);
/* Returns how data.train names a data set that they call by this path. */
const char *translate_our_data(struct translated_file *t, const char *path);
/* Sets data.train, data.val and what the chat template is, when all settings have been read. */
void translate_finish_data(struct translated_file *t);
/* Returns the text of a template file; NULL: no such file. */
const char *translate_template(const char *file);

/* Returns whether a text has arguments of Megatron-LM. */
bool spec_has_arguments(const char *bytes, size_t size_bytes);
/* Sets *ret_root to a map of the arguments: a scalar each, or a list of several values. */
enum hd_status translate_read_arguments(const char *bytes, size_t size_bytes,
                                        struct hd_arena *arena, struct yaml_node **ret_root);

#endif
