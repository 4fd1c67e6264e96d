/* spec_internal: what the files of lib/spec share.
 *
 *     yaml.c      bytes -> a tree of nodes with lines         (the only owner of yaml.h)
 *     schema.c    the keys of job/keys.def as groups of a job file
 *     read.c      tree -> struct hd_job
 *     forms.c     values with a form of their own: lists of files, devices, intervals
 *     override.c  --set in place of what the file says
 *     defaults.c  defaults that come out of other keys, and of absent keys
 *     check.c     the rules
 *     files.c     paths and globs
 *     from.c      what model directories say
 *     message.c   struct hd_job <-> JobSpec
 *     resolve.c   spec + layout + attempt -> the ranks' job
 *     json.c      struct hd_job -> JSON
 *     document.c  the keys as a table for people
 */
#ifndef HD_SPEC_SPEC_INTERNAL_H
#define HD_SPEC_SPEC_INTERNAL_H

#include <stdbool.h>

#include "spec/spec.h"

/* ---- groups of keys ---- */

enum { SPEC_KEYS_MAX = 256, SPEC_CHILDREN_MAX = 64 };

/* A job that is being read. */
struct spec_draft {
    struct hd_job *job;
    struct hd_arena *arena;    /* of the job's lists */
    bool given[SPEC_KEYS_MAX]; /* by index in hd_job_keys: the file, or model.from, says it */
};

/* Was the key of this path given? The path must exist. */
bool *spec_given(struct spec_draft *draft, const char *path);

/* The key of the job file by its path; NULL: none, or a group. */
const struct hd_key *spec_find_key(const char *path);
bool spec_is_group(const char *path);
/* The names directly below a group, in the order of the file format ("": below the root). */
struct spec_children {
    char texts[SPEC_CHILDREN_MAX][32];
    const char *names[SPEC_CHILDREN_MAX];
    size_t count;
};
void spec_list_children(const char *group, struct spec_children *ret_children);
/* Does a plain value in place of the group stand for this key in it? train.lr: 1e-3 is its peak. */
bool spec_is_short_for(const char *group, const char *name);

/* "PATH: 70 is not possible; give a whole number from 1 to 16" */
enum hd_status spec_err_range(const char *path, const struct hd_key *key, double value);
/* "PATH: is missing; give a whole number from 1 to 16" */
enum hd_status spec_err_missing(const char *path, const struct hd_key *key);
/* Bounds of the weight of a source of a mixture. */
#define SPEC_WEIGHT_MIN 1e-9
#define SPEC_WEIGHT_MAX 1e9

/* ---- text for messages ---- */

enum { SPEC_QUOTE_MAX = 72, SPEC_PATH_TEXT_MAX = 256 };

/* `text` between quotes, cut to a readable length, control characters shown as '?': what a file
 * says never drives the terminal that shows the message. */
const char *spec_quote(const char *text, char ret_quoted[SPEC_QUOTE_MAX]);

bool spec_has_control(const char *text); /* a control character: a line break, an escape ... */

/* "1, 2, 4 or 8": the divisors of n (n >= 1) that are at most `max`, the eight nearest to `wish`.
 */
void spec_list_divisors(int64_t n, int64_t max, int64_t wish, char ret_list[HD_TEXT_LIST_MAX]);

/* ---- the tree ---- */

enum yaml_kind { YAML_KIND_SCALAR, YAML_KIND_LIST, YAML_KIND_MAP };

struct yaml_node {
    enum yaml_kind kind;
    bool plain;         /* a scalar without quotes */
    int line;           /* where it begins; 0: from an override */
    const char *origin; /* the override, as typed; NULL: from the file */
    const char *key;    /* in a map */
    const char *text;   /* of a scalar, without NUL inside */
    struct yaml_node *first, *last, *next;
};

/* Parses one document. Stories begin with "NAME:LINE: " (with "NAME: " when `origin` is given). The
 * nodes live in `arena`. */
enum hd_status spec_yaml_parse(const char *name, const char *origin, const void *bytes,
                               size_t size_bytes, struct hd_arena *arena,
                               struct yaml_node **ret_root);

struct yaml_node *spec_yaml_find(const struct yaml_node *map, const char *key); /* or NULL */
struct yaml_node *spec_yaml_new(struct hd_arena *arena, enum yaml_kind kind, const char *key,
                                int line, const char *origin);
void spec_yaml_append(struct yaml_node *parent, struct yaml_node *child);
/* A map of what the plain value `node` stands for in the group, in the place of the value; without
 * children where it stands for nothing. NULL without memory. */
struct yaml_node *spec_yaml_expand(struct hd_arena *arena, const char *group,
                                   const struct yaml_node *node);

/* Puts the source's overrides into the tree of the file `name`; one that is wrong is its own place.
 */
enum hd_status spec_apply_overrides(const struct hd_spec_source *source, const char *name,
                                    struct hd_arena *arena, struct yaml_node *root);

/* Fills what was not given: the defaults of keys.def, then those that come out of other keys. */
void spec_fill_absent(struct spec_draft *draft);
/* Fills what is zero or empty and cannot be meant as such. Idempotent. */
void spec_fill_zero(struct hd_job *job);

/* ---- reading a value: the file's kinds, each with its own words of refusal ---- */

struct spec_reader {
    const char *name; /* of the file, for messages */
    const char *folder;
    struct hd_arena arena; /* of the tree */
    struct yaml_node *root;
    struct spec_draft draft;
    const struct yaml_node *here;  /* what is being read, */
    char path[SPEC_PATH_TEXT_MAX]; /* and its key */
};

size_t spec_path_push(struct spec_reader *r, const char *name); /* returns what pop wants */
void spec_path_pop(struct spec_reader *r, size_t len);
/* The text between min and max of `key`, or one of its words. */
enum hd_status spec_read_int(struct spec_reader *r, const struct hd_key *key,
                             const struct yaml_node *node, int64_t *ret_value);
enum hd_status spec_read_real(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node, double *ret_value);
enum hd_status spec_need_scalar(struct spec_reader *r, const struct yaml_node *node,
                                const char *what);
/* "X is not one of a, b, c; did you mean b?" */
enum hd_status spec_unknown_word(const char *path, const char *text, const char *const *names,
                                 size_t count);
/* A key of kind HD_KEY_FORM. */
enum hd_status spec_read_form(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node);

/* ---- rules ---- */

/* hd_spec_check of a job whose data files are as the job file names them: relative, or patterns. */
enum hd_status spec_check_draft(const struct hd_job *job);

/* ---- paths ---- */

/* Do the name's last letters say that it holds token ids, not text (.npy, .bin)? */
bool spec_is_token_file(const char *path);
bool spec_is_lines(const char *path); /* .jsonl: a document a line */
/* Does the job train on text, so that it needs a tokenizer? Also while it names no file at all. */
bool spec_has_text(const struct hd_job *job);

/* Expands what data.train and data.val say and makes every path absolute against `folder`. */
enum hd_status spec_find_files(struct spec_draft *draft, const char *folder);

#define SPEC_INIT_NONE "none" /* train.init_from: by the seed, though model.from is given */

/* Reads the directories of model.from and train.init_from into the members beside them. */
enum hd_status spec_read_from(struct spec_draft *draft, const char *folder);

#endif
