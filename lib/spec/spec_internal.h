/* spec_internal: declarations that the files of lib/spec share.
 *
 *     tree.c            trees of yaml/yaml.h with the limits of a job file
 *     cluster.c         cluster files -> struct hd_cluster
 *     schema.c          the keys of job/keys.def as groups of a job file
 *     read.c            tree -> struct hd_job
 *     values.c          numbers and words
 *     forms.c           values of kind HD_KEY_FORM: lists of files, devices, intervals
 *     order.c           parallel.schedule: {file: PATH}
 *     renamed.c         keys under their old names
 *     override.c        --set: replaces values of the file
 *     edit.c            the same in the text of the file
 *     defaults.c        defaults of absent keys, and of keys that depend on other keys
 *     vocab.c           model.vocab by the tokenizer
 *     check.c           the rules, of a model's keys in check_model.c
 *     files.c           paths and patterns
 *     names.c           names of the hub, hf://
 *     from.c            reads model.from and train.init_from
 *     continued.c       reads train.continue_from
 *     conversations.c   data.format and data.template
 *     objective.c       settings that train.objective refuses
 *     message.c         struct hd_job <-> JobSpec
 *     resolve.c         spec + layout + attempt -> the ranks' job
 *     json.c            struct hd_job -> JSON
 *     document.c        the keys as a table
 *     json_schema.c     the keys as a JSON Schema
 *     foreign.c         names of other programs for our keys
 *     translate*.c      files of other tools as job files (translate_internal.h)
 */
#ifndef HD_SPEC_SPEC_INTERNAL_H
#define HD_SPEC_SPEC_INTERNAL_H

#include <string.h>

#include <stdbool.h>

#include "job/choice_sets.h"
#include "job/rewards.h"
#include "records/kind.h"
#include "spec/spec.h"
#include "yaml/yaml.h"

/* ---- groups of keys ---- */

enum { SPEC_CHILDREN_MAX = 64 };

/* A job while its file is read: not all keys are set yet. */
struct hd_json;
struct spec_reader;

struct spec_draft {
    struct hd_job *job;
    struct hd_arena *arena; /* memory of the job's lists */
    /* by index in hd_job_keys: true: the job file or model.from has set the key */
    bool given[HD_JOB_KEYS_MAX];
    struct hd_text *missing_data; /* hd_spec_source.missing_data */
};

/* Returns a pointer to the draft's `given` flag of the key with this path, which must exist. */
bool *spec_given(struct spec_draft *draft, const char *path);

/* Returns the key with this path that a job file can set; NULL: no such key, or the path is a group
 * of keys. */
const struct hd_key *spec_find_key(const char *path);
bool spec_is_group(const char *path);
/* The names directly below a group, in the order of the job file's keys ("": below the root). */
struct spec_children {
    char texts[SPEC_CHILDREN_MAX][32];
    const char *names[SPEC_CHILDREN_MAX];
    size_t count;
};
void spec_list_children(const char *group, struct spec_children *ret_children);
/* Returns whether a plain value in place of the group sets this key of the group, as `train.lr:
 * 1e-3` sets train.lr.peak. */
/* Returns whether the node may be the short form of this group: a plain value, or a list of
 * prompts. */
bool spec_is_short_group(const char *group, const struct yaml_node *node);
bool spec_is_short_for(const char *group, const char *name);
/* Returns whether the node is `parallel: auto`, which sets all keys of the group to auto. */
bool spec_is_auto_group(const char *group, const struct yaml_node *node);

/* Returns the path of the key that a user means by the unknown `name`, whatever its group: a name
 * that another program uses for that key, or the last part of exactly one path. NULL: no such key.
 * *ret_note: a sentence to add to the error message; NULL: none. */
const char *spec_find_foreign(const char *name, const char **ret_note);
/* Returns the path that an unknown name means in this group ("": outside of groups): one that it means
 * there alone, else as spec_find_foreign. */
const char *spec_find_meant(const char *group, const char *name, const char **ret_note);
/* Returns the word of a key that another tool's word for its value means; NULL: none. */
const char *spec_find_value(const char *path, const char *word);
/* Returns what takes the place of a setting that other programs have and a job file does not need,
 * such as output_dir; NULL: none is known. */
const char *spec_find_instead(const char *name);

/* Refuse the file of another tool, with a table of all its settings as further mistakes: the tree of a
 * YAML file; arguments or a script of Megatron-LM, before it is parsed. */
enum hd_status spec_refuse_foreign(struct spec_reader *r);
enum hd_status spec_refuse_arguments(struct spec_reader *r);
/* Returns the key, or the words, that take the place of a setting of some tool (translate_rows.c), by
 * its name without groups; NULL: no tool has it. *ret_is_key: the text is our key. */
const char *spec_find_translated(const char *name, bool *ret_is_key, const char **ret_note);

/* Refuses a key with the job's train.objective, for the reason `why`. Returns HD_INVALID. */
enum hd_status spec_refuse_with(const struct hd_job *job, const char *key, const char *why);
/* Makes the error "PATH: 70 is not possible; give a whole number from 1 to 16". */
enum hd_status spec_err_range(const char *path, const struct hd_key *key, double value);
/* Makes the error "PATH: is missing; give a whole number from 1 to 16". */
/* Makes the error for a value that is neither a number nor one of the key's words. quoted: the
 * value in quotes. */
enum hd_status spec_err_number(const char *path, const struct hd_key *key, const char *quoted);
enum hd_status spec_err_missing(const char *path, const struct hd_key *key);
/* Limits of a source's weight in a mixture. */
#define SPEC_WEIGHT_MIN 1e-9
#define SPEC_WEIGHT_MAX 1e9

/* ---- text for messages ---- */

enum { SPEC_QUOTE_MAX = 72, SPEC_PATH_TEXT_MAX = 256, SPEC_ORIGIN_MAX = SPEC_QUOTE_MAX + 8 };

/* Writes `text` in quotes to ret_quoted, shortened, with control characters replaced by '?', so
 * that a message cannot send control sequences to a terminal. */
const char *spec_quote(const char *text, char ret_quoted[SPEC_QUOTE_MAX]);

/* returns whether `text` has a control character: a line break, an escape ... */
bool spec_has_control(const char *text);

/* Writes "1, 2, 4 or 8": divisors of n (n >= 1) up to `max`, at most the eight nearest to
 * `wanted`. */
void spec_list_divisors(int64_t n, int64_t max, int64_t wanted, char ret_list[HD_TEXT_LIST_MAX]);

/* ---- the tree ---- */

enum hd_status spec_cluster_parse(const char *name, const void *bytes, size_t size_bytes,
                                  struct hd_arena *arena, struct yaml_node **ret_root);
/* Parses a job file, or the value of an override (`origin`), with hd_yaml_parse. */
enum hd_status spec_yaml_parse(const char *name, const char *origin, const void *bytes,
                               size_t size_bytes, struct hd_arena *arena,
                               struct yaml_node **ret_root);
/* Returns the map that the plain value `node` of this group abbreviates, such as {peak: 1e-3} for
 * train.lr; it has no children if the group has no short form. NULL: no memory. */
struct yaml_node *spec_yaml_expand(struct hd_arena *arena, const char *group,
                                   const struct yaml_node *node);

/* Writes the name of override number i of the source for messages, such as "--set TEXT", shortened
 * like a quoted text. */
void spec_override_origin(const struct hd_spec_source *source, size_t i,
                          char ret_origin[SPEC_ORIGIN_MAX]);

/* Applies the overrides (--set) of the source to the tree of the job file `name`. Error messages
 * begin with the override instead of "NAME:LINE: ". */
enum hd_status spec_apply_overrides(const struct hd_spec_source *source, const char *name,
                                    struct hd_arena *arena, struct yaml_node *root);

/* Gives the nodes of the reader's tree that have an old name of a key the new one. HD_INVALID: the
 * file has both; r->here is the node. */
enum hd_status spec_rename_keys(struct spec_reader *r);
/* Replaces overrides of old names by copies in `arena` with the new ones; messages keep what the
 * user wrote. */
enum hd_status spec_rename_overrides(struct hd_spec_source *source, struct hd_arena *arena);

/* Sets the keys that neither the job file nor model.from gives: to defaults of keys.def, then to
 * defaults that depend on other keys. */
void spec_fill_absent(struct spec_draft *draft);

/* Sets an absent model.vocab to the number of ids of data.tokenizer, a path, rounded up, and adds a
 * line to `notes` (NULL: not needed). HD_INVALID: a given one is less than that number. Does
 * nothing if the job starts from a model, whose number of rows holds. */
enum hd_status spec_fill_vocab(struct spec_draft *draft, struct hd_text *notes);
/* Returns whether this key of the learning rate (warmup, decay_steps, min) has the value that a job
 * file without it would get. */
bool spec_follows_steps(const struct hd_job *job, const char *path);
/* Sets members that are zero or empty, where that is no valid value, to their defaults.
 * Idempotent. */
void spec_fill_zero(struct hd_job *job);

/* ---- several mistakes ---- */

/* Mistakes that reading has passed. */
struct spec_mistakes {
    struct spec_mistake {
        char *text;            /* message; in the arena */
        int line;              /* line of the file; 0: not looked up yet */
        enum hd_status status; /* HD_INVALID or HD_UNSUPPORTED */
    } items[HD_SPEC_MISTAKES_MAX];
    size_t count, more; /* mistakes kept; mistakes beyond them */
    struct hd_arena *arena;
};

/* Keeps the last error message, if `status` is that of a mistake in the file, and returns HD_OK, so
 * that reading goes on; returns any other status as it is. mistakes NULL: returns `status`. */
enum hd_status spec_pass(struct spec_mistakes *mistakes, enum hd_status status);

/* ---- reading a value ---- */

struct spec_reader {
    const char *name; /* name of the job file, for error messages */
    const char *folder;
    const struct hd_spec_source *source;
    struct hd_arena arena; /* memory of the YAML tree */
    struct yaml_node *root;
    struct spec_draft draft;
    const struct yaml_node *here;  /* current node of the tree; error messages have its line */
    char path[SPEC_PATH_TEXT_MAX]; /* dotted path of the current key */
    struct spec_mistakes mistakes; /* passed so far; only if hd_spec_source.mistakes is set */
};

/* Appends ".NAME" to the reader's path; returns the old length of the path, which spec_path_pop
 * restores. */
size_t spec_path_push(struct spec_reader *r, const char *name);
void spec_path_pop(struct spec_reader *r, size_t len);
/* Reads a number between the key's min and max, or one of the key's words. */
enum hd_status spec_read_int(struct spec_reader *r, const struct hd_key *key,
                             const struct yaml_node *node, int64_t *ret_value);
enum hd_status spec_read_real(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node, double *ret_value);
enum hd_status spec_need_scalar(struct spec_reader *r, const struct yaml_node *node,
                                const char *what);
/* Returns the kind of a node for messages: "a list". */
const char *spec_kind_text(const struct yaml_node *node);
/* Returns whether a node is an empty value, ~ or null. */
bool spec_is_null(const struct yaml_node *node);
enum hd_status spec_need_number(struct spec_reader *r, const struct yaml_node *node,
                                const char *what);
/* Sets *ret_word to the value of the word of a WORD key; refuses what is none of its words. */
enum hd_status spec_read_word(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node, unsigned *ret_word);
/* Makes the error message for a wrong value of a key that allows only words. */
enum hd_status spec_refuse_word(struct spec_reader *r, const struct hd_key *key,
                                const struct yaml_node *node);
/* Makes the error "PATH: X is not one of a, b, c; did you mean b?" for a word that the key does not
 * have. */
enum hd_status spec_unknown_word(const char *path, const char *text, const char *const *names,
                                 size_t count);
/* Reads the value of a key of kind HD_KEY_FORM. */
enum hd_status spec_read_form(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node);
/* Reads the map {full: K} of parallel.recompute. */
enum hd_status spec_read_recompute(struct spec_reader *r, const struct yaml_node *node);
/* Reads the map {NAME: COLUMN, ...} of data.columns, or {NAME: ROLE, ...} of data.roles, into a
 * text of HD_JOB_PATH_MAX bytes: NAME=COLUMN, separated by commas. */
enum hd_status spec_read_names(struct spec_reader *r, const struct yaml_node *node,
                               const char **member);
/* Reads the map {skip: COUNT} of data.bad_rows. */
enum hd_status spec_read_bad_rows(struct spec_reader *r, const struct yaml_node *node);
/* Reads the key `after`: [12, 13]. */
enum hd_status spec_read_after(struct spec_reader *r, const struct yaml_node *node);
/* Reads the key train.trainable: {last: 2}, or [norms, head]. */
enum hd_status spec_read_only(struct spec_reader *r, const struct yaml_node *node);
/* Reads a list of words such as [q_proj, v_proj] and stores "q_proj,v_proj" in `member`, which has
 * HD_JOB_PATH_MAX bytes. */
enum hd_status spec_read_words(struct spec_reader *r, const struct yaml_node *node,
                               const char **member);
/* Reads the map of parallel.schedule: {file: PATH}, or {order: [LINE, ...]}. */
enum hd_status spec_read_schedule(struct spec_reader *r, const struct yaml_node *node);
/* Sets pp, virtual_stages and order_micro_batches, if they are 0, from the job's schedule from a
 * file. */
void spec_fill_order(struct hd_job *job);

/* ---- rules ---- */

/* Proves that the job's schedule from a file can be executed, and checks that pp, virtual_stages
 * and order_micro_batches are those of the schedule. */
enum hd_status spec_check_order(const struct hd_job *job);

/* Checks the rules of train.objective (objective.c). */
enum hd_status spec_check_objective(const struct hd_job *job);

/* Checks that the job's family is one (check_model.c). */
enum hd_status spec_check_family(const struct hd_job *job);
/* Checks the other keys of the model, whose values are each possible by themselves. */
enum hd_status spec_check_model(const struct hd_job *job);

/* Checks the rules of a job as hd_spec_check does, but allows data files as the job file names
 * them: relative paths, or patterns. */
enum hd_status spec_check_draft(const struct hd_job *job, struct spec_mistakes *mistakes);
/* Checks each value that the job file gives by the limits of its key alone. */
enum hd_status spec_check_given(const struct spec_draft *draft, struct spec_mistakes *mistakes);

/* Files of a list while it is read, and the weights of the sources of a mixture. */
struct spec_sources {
    struct hd_job_file *items;
    int count, room;
    int64_t source_count; /* 0: no mixture */
    double weights[HD_JOB_SOURCES_MAX];
};

/* Reads `train: a.txt`, `[a.txt, b/x.txt]` or `[{path: a.txt, weight: 0.7}, ...]` into *list, which
 * is empty. */
enum hd_status spec_read_sources(struct spec_reader *r, const struct yaml_node *node,
                                 struct spec_sources *list);
/* Reads validate.choices or validate.tasks.files (choices.c). */
enum hd_status spec_read_choices(struct spec_reader *r, enum hd_question_kind kind,
                                 const struct yaml_node *node);
/* Makes the paths of validate.choices and validate.tasks absolute; look: also looks the files up. */
enum hd_status spec_find_choices(struct spec_draft *draft, const char *folder, bool look);
/* Reads validate.samples.prompts (samples.c). */
enum hd_status spec_read_samples(struct spec_reader *r, const struct yaml_node *node);
/* Makes the path of the prompts' file absolute; look: also looks the file up. */
enum hd_status spec_find_samples(struct spec_draft *draft, const char *folder, bool look);
enum hd_status spec_check_samples(const struct hd_job *job);

/* Reads train.rewards or validate.tasks.check (rewards.c), which the key `stored` keeps. */
enum hd_status spec_read_rewards(struct spec_reader *r, const struct yaml_node *node,
                                 const char *stored, const char **member);
/* Stores the JSON of rewards in the job (reward_files.c). path: the key, for messages. */
enum hd_status spec_keep_rewards(const char *path, const struct hd_text *text, struct hd_job *job,
                                 const char **member);
/* Makes the paths of the files of reward programs absolute; look: checks that programs exist. */
enum hd_status spec_find_rewards(struct spec_draft *draft, const char *folder, bool look);
/* Refuses overlong rewards that begin before an answer does. key: of the list; limit: the key that gives
 * max_tokens, the most tokens of an answer (policy.c). */
enum hd_status spec_check_overlong(const char *key, const struct hd_rewards *rewards,
                                   const char *limit, int64_t max_tokens);
/* Rules of train.objective: grpo (policy.c). */
enum hd_status spec_check_policy(const struct hd_job *job);
/* Checks validate.choices and validate.tasks, and the numbers that checkpoint.best and validate.stop name. */
enum hd_status spec_check_choices(const struct hd_job *job);
/* Reads data.stages (data_stages.c). */
enum hd_status spec_read_data_stages(struct spec_reader *r, const struct yaml_node *node);
/* Makes sources that turn out to be the same files, after patterns are expanded, one source. */
void spec_join_data_stages(struct hd_job *job);
/* Sets train.global_batch to the largest batch of train.batch_schedule, unless it is given. A schedule that
 * cannot be read is told by spec_check_batch (batch_rules.c). */
void spec_fill_batch(struct hd_job *job);
/* Checks train.batch_schedule against the rest of the job. */
enum hd_status spec_check_batch(const struct hd_job *job);
/* Sets the end of the last stage to that of the run, and the sizes that follow from it. */
enum hd_status spec_fill_data_stages(struct hd_job *job);
/* Checks the stages and their weights against the rest of the job. */
enum hd_status spec_check_data_stages(const struct hd_job *job);

/* The rule for names of validation sets, for messages. */
#define SPEC_SET_NAME_RULE                                                                    \
    "1 to 31 letters, digits, '_' or '-', beginning with a letter or digit, and not true or " \
    "false"

/* ---- paths ---- */

/* Writes the key of entry `index` of data.train or data.val of a job file, whose patterns are not
 * expanded yet: "data.train[2]"; in a mixture with its source; "data.val.web[0]". */
enum { SPEC_LIST_KEY_MAX = 96 };
void spec_list_key(const struct hd_job *job, bool is_train, int64_t index,
                   char ret_key[SPEC_LIST_KEY_MAX]);
/* Writes the key of all files of a source or validation set: "data.train[1]", "data.val.web". */
void spec_source_key(const struct hd_job *job, bool is_train, int64_t source,
                     char ret_key[SPEC_LIST_KEY_MAX]);

/* Sets whether a data file of this kind holds conversations, by job->data_format and the file's
 * first line. HD_INVALID: the message names the file. */
enum hd_status spec_look_at_form(const struct hd_job *job, const char *path, enum hd_data_kind kind,
                                 bool *ret_conversations);
/* Checks the rules of a job whose data files hold conversations, and finds its chat template. */
enum hd_status spec_check_conversations(struct spec_draft *draft, const char *folder);

/* Expands the patterns of data.train and data.val; makes paths absolute, relative to `folder`. */
enum hd_status spec_find_files(struct spec_draft *draft, const char *folder);
/* Appends a line for each file of data.val that has the bytes of a file of data.train, as far as their
 * fingerprints tell. */
void spec_note_copies(const struct hd_job *job, struct hd_text *notes);
/* Appends a line for each number far from what is usual, for each setting that changes nothing, and
 * if train.distill.teacher names neither a model nor a teacher's file that is there. */
enum hd_status spec_note(struct spec_draft *draft, struct hd_text *notes);
/* Makes the paths of data files absolute without opening the files, which are on another
 * machine. */
enum hd_status spec_leave_files(struct spec_draft *draft, const char *folder);
/* Checks that a job without conversations gives no key that only conversations use; else
 * HD_INVALID. */
enum hd_status spec_refuse_unused(struct spec_draft *draft);
/* Sets data.text_identity: the hash of all files and settings that decide the tokens of the job's
 * texts. Each attempt compares it when it starts. */
enum hd_status spec_set_text_identity(struct spec_draft *draft);

/* Makes a path relative to `folder` absolute in place. */
enum hd_status spec_make_absolute(struct hd_job *job, const char **path, const char *key,
                                  const char *folder);

/* A file of a job other than its data, as a key names it. */
struct spec_file {
    const char *key;
    const char *relative; /* what to add to a message that the file is missing */
    const char *kind;     /* what to give, for a path that is no regular file */
    const char *content;  /* what to write into an empty file */
    char *path;           /* [HD_JOB_PATH_MAX] */
    int64_t *size_bytes;
    char *fingerprint; /* [HD_FINGERPRINT_TEXT_MAX] */
};
/* Makes the file's path absolute, and with `look` sets its size and fingerprint. HD_INVALID: it is
 * no regular file that can be read, or is empty. */
enum hd_status spec_find_file(const struct spec_file *file, const char *folder, bool look);

/* Replaces the hf:// names of models and data by the paths that source->locate finds for them. */
enum hd_status spec_locate_names(struct spec_reader *r);
/* Returns what to add to the message about a path that does not exist: how a name ORG/NAME or a URL
 * of the hub is written with hf://, file:// as a path, and that other URLs are not downloaded; "" for
 * any other text. */
const char *spec_explain_name(const char *text, bool is_data, char ret_text[SPEC_PATH_TEXT_MAX]);

/* Sets train.continue_from, an absolute path, to the newest checkpoint of the folder that it names,
 * and train.init_from to the same. */
enum hd_status spec_take_continued(struct hd_job *job);
/* Checks a complete job against the checkpoint that it goes on from. */
enum hd_status spec_check_continued(const struct hd_job *job);

/* Returns whether a decay (a word of train.lr.decay) takes a number of steps. */
static inline bool spec_rate_has_decay_steps(enum hd_job_lr_decay decay)
{
    return decay != HD_JOB_LR_DECAY_CONSTANT && decay != HD_JOB_LR_DECAY_INVERSE_SQRT;
}
/* Returns the reason why another one does not. */
static inline const char *spec_rate_without_end(enum hd_job_lr_decay decay)
{
    return decay == HD_JOB_LR_DECAY_CONSTANT ? "a constant rate has no decay"
                                             : "the decay of inverse_sqrt has no end";
}

#define SPEC_INIT_NONE "none" /* train.init_from: random weights even if model.from is given */

/* Sets members of the job from the directories of model.from and train.init_from. */
enum hd_status spec_read_from(struct spec_draft *draft, const char *folder);

#endif
