/* spec_internal: declarations that the files of lib/spec share.
 *
 *     tree.c      trees of yaml/yaml.h as a job file has them
 *     cluster.c   cluster files -> struct hd_cluster
 *     schema.c    the keys of job/keys.def as groups of a job file
 *     read.c      tree -> struct hd_job
 *     forms.c     values of kind HD_KEY_FORM: lists of files, devices, intervals
 *     order.c     parallel.schedule: {file: PATH}
 *     override.c  --set: replaces values of the file
 *     defaults.c  defaults of absent keys, and of keys that depend on other keys
 *     check.c     the rules
 *     files.c     paths and patterns
 *     from.c      reads model.from and train.init_from
 *     conversations.c   data.format and data.template
 *     objective.c   train.objective: what a loss of pairs goes with
 *     message.c   struct hd_job <-> JobSpec
 *     resolve.c   spec + layout + attempt -> the ranks' job
 *     json.c      struct hd_job -> JSON
 *     document.c  the keys as a table
 *     foreign.c   what other programs call our keys
 */
#ifndef HD_SPEC_SPEC_INTERNAL_H
#define HD_SPEC_SPEC_INTERNAL_H

#include <stdbool.h>

#include "spec/spec.h"
#include "yaml/yaml.h"

/* ---- groups of keys ---- */

enum { SPEC_KEYS_MAX = 256, SPEC_CHILDREN_MAX = 64 };

/* A job while it is read. */
struct spec_draft {
    struct hd_job *job;
    struct hd_arena *arena;    /* of the job's lists */
    bool given[SPEC_KEYS_MAX]; /* by index in hd_job_keys: set by the file or by model.from */
};

/* The draft's `given` flag of this path, which must exist. */
bool *spec_given(struct spec_draft *draft, const char *path);

/* The key with this path that a job file can set; NULL: none, or a group. */
const struct hd_key *spec_find_key(const char *path);
bool spec_is_group(const char *path);
/* Also a key whose value may be a group instead of a word: {full: 2}. */
bool spec_takes_group(const char *path);
/* The names directly below a group, in the order of the file format ("": below the root). */
struct spec_children {
    char texts[SPEC_CHILDREN_MAX][32];
    const char *names[SPEC_CHILDREN_MAX];
    size_t count;
};
void spec_list_children(const char *group, struct spec_children *ret_children);
/* True if a plain value given for the group sets this key of it: `train.lr: 1e-3` sets its peak. */
bool spec_is_short_for(const char *group, const char *name);
/* `parallel: auto`: a group all of whose keys may be auto, and are. */
bool spec_is_auto_group(const char *group, const struct yaml_node *node);

/* The key that `name` is meant for, whatever its group: a name that another program has for it, or
 * the last part of one path alone. NULL: none. ret_note: a sentence to add, or NULL. */
const char *spec_find_foreign(const char *name, const char **ret_note);

/* "PATH: 70 is not possible; give a whole number from 1 to 16" */
enum hd_status spec_err_range(const char *path, const struct hd_key *key, double value);
/* "PATH: is missing; give a whole number from 1 to 16" */
/* For a text that is neither a number nor one of the words; `quoted` has its quotes. */
enum hd_status spec_err_number(const char *path, const struct hd_key *key, const char *quoted);
enum hd_status spec_err_missing(const char *path, const struct hd_key *key);
/* Limits of the weight of a mixture's source. */
#define SPEC_WEIGHT_MIN 1e-9
#define SPEC_WEIGHT_MAX 1e9

/* ---- text for messages ---- */

enum { SPEC_QUOTE_MAX = 72, SPEC_PATH_TEXT_MAX = 256, SPEC_ORIGIN_MAX = SPEC_QUOTE_MAX + 8 };

/* `text` in quotes, shortened, control characters replaced by '?', so that a message cannot send
 * control sequences to a terminal. */
const char *spec_quote(const char *text, char ret_quoted[SPEC_QUOTE_MAX]);

bool spec_has_control(const char *text); /* a control character: a line break, an escape ... */

/* "1, 2, 4 or 8": divisors of n (n >= 1) up to `max`, at most the eight nearest to `wanted`. */
void spec_list_divisors(int64_t n, int64_t max, int64_t wanted, char ret_list[HD_TEXT_LIST_MAX]);

/* ---- the tree ---- */

enum hd_status spec_cluster_parse(const char *name, const void *bytes, size_t size_bytes,
                                  struct hd_arena *arena, struct yaml_node **ret_root);
/* hd_yaml_parse of a job file, or of the value of an override (`origin`). */
enum hd_status spec_yaml_parse(const char *name, const char *origin, const void *bytes,
                               size_t size_bytes, struct hd_arena *arena,
                               struct yaml_node **ret_root);
/* The map for which the plain value `node` is the short form in this group; without children: the
 * group has no short form. NULL: no memory. */
struct yaml_node *spec_yaml_expand(struct hd_arena *arena, const char *group,
                                   const struct yaml_node *node);

/* What messages call the override number i, shortened like a quoted text. */
void spec_override_origin(const struct hd_spec_source *source, size_t i,
                          char ret_origin[SPEC_ORIGIN_MAX]);

/* Applies the source's overrides to the tree of the file `name`. Error messages begin with the
 * override instead of "NAME:LINE: ". */
enum hd_status spec_apply_overrides(const struct hd_spec_source *source, const char *name,
                                    struct hd_arena *arena, struct yaml_node *root);

/* Sets the keys that were not given: defaults of keys.def, then some that depend on other keys. */
void spec_fill_absent(struct spec_draft *draft);
/* Is this key of the learning rate (warmup, decay_steps, min) what a job file without it would get?
 */
bool spec_follows_steps(const struct hd_job *job, const char *path);
/* Sets the defaults of members for which zero or empty is no valid value. Idempotent. */
void spec_fill_zero(struct hd_job *job);

/* ---- reading a value ---- */

struct spec_reader {
    const char *name; /* of the file, for messages */
    const char *folder;
    const struct hd_spec_source *source;
    struct hd_arena arena; /* of the tree */
    struct yaml_node *root;
    struct spec_draft draft;
    const struct yaml_node *here;  /* the current node, for the line in error messages */
    char path[SPEC_PATH_TEXT_MAX]; /* its key */
};

/* Appends ".NAME" to the path; returns the old length, the argument of pop. */
size_t spec_path_push(struct spec_reader *r, const char *name);
void spec_path_pop(struct spec_reader *r, size_t len);
/* Reads a number from min to max of `key`, or one of its words. */
enum hd_status spec_read_int(struct spec_reader *r, const struct hd_key *key,
                             const struct yaml_node *node, int64_t *ret_value);
enum hd_status spec_read_real(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node, double *ret_value);
enum hd_status spec_need_scalar(struct spec_reader *r, const struct yaml_node *node,
                                const char *what);
/* "X is not one of a, b, c; did you mean b?" */
enum hd_status spec_unknown_word(const char *path, const char *text, const char *const *names,
                                 size_t count);
/* Reads the value of a key of kind HD_KEY_FORM. */
enum hd_status spec_read_form(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node);
/* parallel.recompute: {full: K}. */
enum hd_status spec_read_recompute(struct spec_reader *r, const struct yaml_node *node);
/* after: [12, 13]. */
enum hd_status spec_read_after(struct spec_reader *r, const struct yaml_node *node);
/* train.only: {last: 2}, or [norms, head]. */
enum hd_status spec_read_only(struct spec_reader *r, const struct yaml_node *node);
/* [q_proj, v_proj] becomes the text "q_proj,v_proj" in `member` of HD_JOB_PATH_MAX bytes. */
enum hd_status spec_read_words(struct spec_reader *r, const struct yaml_node *node, char *member);
/* parallel.schedule: {file: PATH}, or {order: [LINE, ...]}. */
enum hd_status spec_read_schedule(struct spec_reader *r, const struct yaml_node *node);
/* Sets pp, virtual_stages and order_micro_batches, where they are 0, from the job's order. */
void spec_fill_order(struct hd_job *job);

/* ---- rules ---- */

/* The job's order of pipeline stages: proved, and the numbers of the job are its own. */
enum hd_status spec_check_order(const struct hd_job *job);

/* The rules of train.objective (objective.c). */
enum hd_status spec_check_objective(const struct hd_job *job);

/* hd_spec_check of a job whose data files are as the job file names them: relative, or patterns. */
enum hd_status spec_check_draft(const struct hd_job *job);

/* ---- paths ---- */

bool spec_is_token_file(const char *path); /* by its suffix: .npy, .bin */
bool spec_is_lines(const char *path);      /* by its suffix: .jsonl, one document per line */

/* Whether a data file holds conversations, as job->data_format and its first line say; HD_INVALID
 * names the file. */
enum hd_status spec_look_at_form(const struct hd_job *job, const char *path,
                                 bool *ret_conversations);
/* The rules of a job whose files hold conversations, and its template. */
enum hd_status spec_check_conversations(struct spec_draft *draft, const char *folder);

/* Expands the patterns of data.train and data.val; makes paths absolute, relative to `folder`. */
enum hd_status spec_find_files(struct spec_draft *draft, const char *folder);
/* For files that are not here: makes their paths absolute and looks at none. */
enum hd_status spec_leave_files(struct spec_draft *draft, const char *folder);
/* HD_INVALID: a key of conversations has another value than its default, and the job has none. */
enum hd_status spec_refuse_unused(struct spec_draft *draft);
/* What the tokens of the job's texts depend on is compared with this at each start. */
enum hd_status spec_set_text_identity(struct spec_draft *draft);

/* A path relative to `folder`, made absolute in place. */
enum hd_status spec_make_absolute(char path[HD_JOB_PATH_MAX], const char *key, const char *folder);

#define SPEC_INIT_NONE "none" /* train.init_from: random weights even if model.from is given */

/* Sets members of the job from the directories of model.from and train.init_from. */
enum hd_status spec_read_from(struct spec_draft *draft, const char *folder);

#endif
