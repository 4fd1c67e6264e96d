/* spec_internal: what the files of lib/spec share.
 *
 *     yaml.c      bytes -> a tree of nodes with lines         (the only owner of yaml.h)
 *     schema.c    the table of keys: one row per key of a job file
 *     read.c      tree + table -> JobSpec
 *     override.c  --set in place of what the file says
 *     defaults.c  defaults that come out of other keys, and of absent keys
 *     check.c     the rules
 *     files.c     paths and globs
 *     from.c      what model directories say
 *     resolve.c   JobSpec + Plan -> struct hd_job
 *     json.c      JobSpec -> JSON
 */
#ifndef HD_SPEC_SPEC_INTERNAL_H
#define HD_SPEC_SPEC_INTERNAL_H

#include <stdbool.h>

#include "heddle/v1/job.pb-c.h"
#include "spec/spec.h"

/* ---- the table of keys ---- */

enum spec_kind {
    SPEC_TEXT,      /* char *: any text */
    SPEC_PATH,      /* char *: a path */
    SPEC_CHOICE,    /* char *: auto is "", else as written */
    SPEC_INT,       /* int64_t */
    SPEC_INT32,     /* int32_t */
    SPEC_AUTO,      /* int32_t: auto is 0 */
    SPEC_ZERO,      /* ParallelSpec.zero: auto is not set */
    SPEC_SEED,      /* uint64_t, up to INT64_MAX */
    SPEC_REAL,      /* double */
    SPEC_AUTO_REAL, /* double: auto is 0 */
    SPEC_BOOL,      /* protobuf_c_boolean */
    SPEC_WORD,      /* an enum, by words */
    SPEC_SWITCH,    /* the enum Switch: auto, true or false */
    SPEC_FILES,     /* DataFile ** with its count in front of it (protobuf-c's n_ member) */
    SPEC_SOURCES,   /* the same for data.train, whose entries may be {path, weight}; min, max: of
                       weights */
    SPEC_DEVICES,   /* devices_min and devices_max, by a number or {min, max} */
    SPEC_STEPS,     /* two int64_t side by side: [first, last], or one number for both */
    SPEC_SECTION    /* a message of its own */
};

struct spec_word {
    const char *name;
    int value;
};

struct spec_section;

struct spec_key {
    const char *name;
    enum spec_kind kind;
    size_t offset;                /* of the member in its message */
    double min, max;              /* of numbers, both inclusive */
    const struct spec_word *word; /* SPEC_WORD: closed by a NULL name */
    const struct spec_section *section;
};

struct spec_section {
    const char *path; /* "train.lr"; "" for the whole file */
    const ProtobufCMessageDescriptor *message;
    const struct spec_key *keys; /* in the order of the file format */
    size_t key_count;
    const char *short_key; /* the key that a plain value in place of the section stands for; or
                              SPEC_SHORT_FOR_ALL: for each of them */
};
#define SPEC_SHORT_FOR_ALL "*"

extern const struct spec_section spec_root;

const struct spec_key *spec_find_key(const struct spec_section *section, const char *name);
const char *spec_word_name(const struct spec_key *key, int value); /* NULL: not known */
bool spec_number_in_range(const struct spec_key *key, double value);
/* The member of a SPEC_SECTION key in the message that holds it. */
ProtobufCMessage **spec_member_message(ProtobufCMessage *holder, const struct spec_key *key);
ProtobufCMessage *spec_new_message(const ProtobufCMessageDescriptor *message); /* malloc; or NULL */
/* A JobSpec with all its sections, their members zero. NULL without memory. */
Heddle__V1__JobSpec *spec_new_complete(void);
/* Makes the sections that `message` lacks; false without memory. */
bool spec_make_sections(ProtobufCMessage *message, const struct spec_section *section);
/* Replaces a string member; false without memory. */
bool spec_set_text(char **member, const char *text);

/* "PATH: 70 is outside 1 to 16; ..." for a number of any kind. */
enum hd_status spec_err_range(const char *path, const struct spec_key *key, double value);
/* "PATH: is missing; give a whole number from 1 to 16" */
enum hd_status spec_err_missing(const char *path, const struct spec_key *key);

/* ---- text for messages ---- */

enum { SPEC_QUOTE_MAX = 72, SPEC_PATH_TEXT_MAX = 256 };

/* `text` between quotes, cut to a readable length, control characters shown as '?': what a file
 * says never drives the terminal that shows the message. */
const char *spec_quote(const char *text, char ret_quoted[SPEC_QUOTE_MAX]);

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
/* A map of what the plain value `node` stands for in a section with a short key, in the place of
 * the value; NULL without memory. */
struct yaml_node *spec_yaml_expand(struct hd_arena *arena, const struct spec_section *section,
                                   const struct yaml_node *node);

/* Puts the source's overrides into the tree of the file `name`; one that is wrong is its own place.
 */
enum hd_status spec_apply_overrides(const struct hd_spec_source *source, const char *name,
                                    struct hd_arena *arena, struct yaml_node *root);

/* The defaults of keys for which zero has a meaning, so that hd_spec_fill_defaults cannot tell that
 * they are absent: by the tree. docs/job-file.md states them. */
void spec_fill_absent(const struct yaml_node *root, Heddle__V1__JobSpec *spec);
/* Does the file have the section, or the key in it (NULL: the section)? */
bool spec_has(const struct yaml_node *root, const char *section, const char *key);

/* ---- paths ---- */

/* Do the name's last letters say that it holds token ids, not text (.npy, .bin)? */
bool spec_is_token_file(const char *path);
bool spec_is_lines(const char *path); /* .jsonl: a document a line */
/* Does the job train on text, so that it needs a tokenizer? Also while it names no file at all. */
bool spec_has_text(const Heddle__V1__DataSpec *data);

/* Expands what data.train and data.val say and makes every path absolute against `folder`. */
enum hd_status spec_find_files(Heddle__V1__JobSpec *spec, const char *folder);

#define SPEC_INIT_NONE "none" /* train.init_from: by the seed, though model.from is given */

/* Reads the directories of model.from and train.init_from into the members beside them.
 * written: the job file as it stands. */
enum hd_status spec_read_from(Heddle__V1__JobSpec *spec, const char *folder,
                              const struct yaml_node *written);

#endif
