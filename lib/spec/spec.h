/* spec: reads a job file into a spec, checks and completes it; resolves a spec for its ranks.
 *
 *     job.yaml --read--> struct hd_job --from, defaults, check, find files--> a complete spec
 *     spec --to_message--> JobSpec (proto/heddle/v1/job.proto) --from_message--> spec
 *     spec + layout + attempt --resolve--> the ranks' struct hd_job, without auto
 *
 * The keys are those of job/keys.def. A spec is complete: reading a file sets the default of each
 * absent key, so that a stored spec keeps its meaning when a default changes. Specs from a file and
 * from the network are both checked by hd_spec_check, with the same error messages.
 *
 * Every broken rule is HD_INVALID (a mistake) or HD_UNSUPPORTED (not implemented yet), with the
 * message "KEY.PATH: what is wrong; what to do". Functions that read a file put "FILE:LINE: " in
 * front of it:
 *
 *     job.yaml:14: parallel.tp: 3 does not divide model.heads = 8; use 1, 2, 4 or 8
 *
 * Limits of a job file: 256 KiB, nesting depth 16, one document, UTF-8 without NUL. Anchors,
 * aliases, tags, unknown keys and repeated keys are HD_INVALID.
 *
 * Used by: the heddle command, controller.   Uses: base, job, data, hf, plan, pipeline, the
 * generated messages.
 * Threads: any; no state is shared.
 */
#ifndef HD_SPEC_SPEC_H
#define HD_SPEC_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "job/job.h"

struct hd_json_writer;      /* declared in base/json.h */
struct Heddle__V1__JobSpec; /* declared in heddle/v1/job.pb-c.h */
struct Heddle__V1__Plan;
struct hd_cluster;   /* declared in plan/cluster.h */
struct hd_node_tree; /* declared in plan/node_tree.h */

enum {
    HD_SPEC_FILE_BYTES_MAX = 256 << 10,
    /* files of one list (data.train or data.val) after patterns are expanded */
    HD_SPEC_FILES_MAX = 65536,
    HD_SPEC_OVERRIDES_MAX = 256, /* --set options */
    HD_SPEC_MISTAKES_MAX = 20    /* most mistakes that one reading reports */
};

#define HD_SPEC_STEPS_UNKNOWN (INT64_C(1) << 40)

/* A job file that is not parsed yet, and the options of reading it. */
struct hd_spec_source {
    const char *name; /* name for error messages: the path as the user typed it */
    /* absolute path of the file's folder; paths in the file are relative to it */
    const char *folder;
    const void *bytes;
    size_t size_bytes;
    const char *const *overrides; /* "train.steps=100": KEY=YAML-VALUE, later ones win */
    size_t override_count;
    /* Names of the overrides for messages: "--pin tp=8". NULL, as the array or in it: "--set
     * TEXT". */
    const char *const *override_origins;
    /* Called last, with the complete spec; a failure is that of reading. Its message must begin
     * with "KEY.PATH: "; "FILE:LINE: " of that key is put in front. NULL: no such check. */
    enum hd_status (*check)(const struct hd_job *job);
    /* Error that the caller found in the job's data, such as "data.train: a.jsonl:7: ..": reading
     * fails with this message, with "FILE:LINE: " of that key in front. NULL: no error. */
    const char *problem;
    bool only_planned;   /* value of struct hd_job.only_planned: the job will not run */
    bool layout_follows; /* value of struct hd_job.layout_follows: a plan will replace the layout */
    /* If not NULL (a plan for another machine), data files that cannot be opened, names of data that
     * `locate` does not find, and a tokenizer that does not exist beside a model.vocab are no error,
     * and the message about one of them is appended to this text. */
    struct hd_text *missing_data;
    /* true: only keys and their values are checked, each by itself; ret_job is not complete */
    bool only_keys;
    /* If not NULL, reading goes on behind a mistake where that makes sense: the error is the first
     * one in the file, and one line is appended here for each further one, in the order of lines,
     * at most HD_SPEC_MISTAKES_MAX - 1, then one that says how many more there are. Keys and their
     * values are all checked; rules between keys only if every value is possible; files only if all
     * rules hold. NULL: the first mistake ends reading. */
    struct hd_text *mistakes;
    /* If not NULL, one line is appended for each key that the file has under its old name. */
    struct hd_text *old_names;
    /* If not NULL, one line is appended for each value that was chosen by looking into a file, such
     * as model.vocab by the tokenizer, for each file of data.val that is a copy of one of
     * data.train, and for a teacher that is not there. */
    struct hd_text *notes;
    /* Steps that the job's train.epochs make; 0: not counted yet, then train.steps becomes
     * HD_SPEC_STEPS_UNKNOWN. Not used without train.epochs. */
    int64_t epoch_steps;
    /* Sets ret_path to the path that an hf:// or s3:// name of model.from, train.init_from,
     * train.adapter.from or data means: a folder; for data (is_data) files or patterns, a line
     * each. NULL: such names are refused. */
    enum hd_status (*locate)(void *user, const char *name, bool is_data, struct hd_text *ret_path);
    void *locate_user;
    /* true: the job is a stored one, of which the user has no file, so messages name the override
     * with the mistake, if any, but no line */
    bool is_stored;
};

/* Reads and checks a job as `heddle submit` does: parses, applies overrides, reads model.from, sets
 * defaults, checks, makes paths absolute, expands patterns (in bytewise order, files only), and
 * records the sizes of files. A file that a pattern of data.train finds is left out if it is in
 * data.val. Token files are opened as a rank will open them: they must be complete, and the checked
 * ids (all of a small file, a sample of others) must be in the vocabulary. The job's lists live in
 * `arena`. */
enum hd_status hd_spec_read_yaml(const struct hd_spec_source *source, struct hd_arena *arena,
                                 struct hd_job *ret_job);

/* Reads a job file as hd_spec_read_yaml does. `path` "-" is standard input, with the working
 * directory as folder. Of `options` the members for name, folder and text are not used.
 * HD_NOT_FOUND or HD_IO: the file cannot be read; HD_INVALID: also if it is a folder. */
enum hd_status hd_spec_read_file(const char *path, const struct hd_spec_source *options,
                                 struct hd_arena *arena, struct hd_job *ret_job);

/* Appends the text of a job file with its overrides written into it (edit.c); all else stays as it
 * is, comments too. Of `source` name, bytes and overrides are used. HD_INVALID: a key or value is
 * wrong, or the file is written in a way that cannot be changed; the message names the override. */
enum hd_status hd_spec_write_overrides(const struct hd_spec_source *source,
                                       struct hd_text *ret_text);

/* Converts a client's message to a complete spec. Members for which zero or empty is no valid value
 * (kv_heads, ffn_hidden, vocab, rope_theta, tokenizer, order, decay, beta2, devices ...) get the
 * default of the job file; where zero is valid (weight_decay, clip, keep ...) it stays. HD_INVALID:
 * a key or enum number that this build does not know. Copies lists into `arena`. The caller must
 * then call hd_spec_check. */
enum hd_status hd_spec_from_message(const struct Heddle__V1__JobSpec *message,
                                    struct hd_arena *arena, struct hd_job *ret_job);

/* Converts a spec to a message. Keys that have a field in job.proto are in that field, the others
 * are pairs of path and value. The message and its members live in `arena` or in `job`: do not free
 * it. NULL: out of memory. */
struct Heddle__V1__JobSpec *hd_spec_to_message(const struct hd_job *job, struct hd_arena *arena);

/* Sets the members of a plan's message from a layout; new members live in `arena`. False: out of
 * memory. */
bool hd_spec_plan_to_message(const struct hd_layout_sizes *layout, struct hd_arena *arena,
                             struct Heddle__V1__Plan *message);
/* Sets *ret_layout from a plan's message. HD_INVALID: a key or a value that this build does not
 * know. */
enum hd_status hd_spec_plan_from_message(const struct Heddle__V1__Plan *message,
                                         struct hd_layout_sizes *ret_layout);

/* Checks the rules of a job that need no file system: required keys, ranges, divisibility,
 * supported features. The spec must be complete. Reports the first violation, in the order of the
 * checks. */
enum hd_status hd_spec_check(const struct hd_job *job);

/* Checks that the job's message, of which the names of its data files are most, is not larger than a
 * controller takes. HD_LIMIT: it is; the message says how to make one file of many. */
enum { HD_SPEC_MESSAGE_BYTES_MAX = 256 << 10 };
enum hd_status hd_spec_check_bytes(const struct hd_job *job, size_t message_bytes);
/* Does the same for a job that is not packed yet; `arena` gets the message. */
enum hd_status hd_spec_check_size(const struct hd_job *job, struct hd_arena *arena);

/* Returns the steps of the job's epochs, passes over `windows` sequences; at least 1. */
int64_t hd_spec_epoch_steps(const struct hd_job *job, int64_t windows);

/* Returns whether some data file holds conversations, as lines or as tokens; opens the files to
 * find out. A file that cannot be read counts as none. */
bool hd_spec_has_conversations(const struct hd_job *job);

/* Returns the tokens of a source of the training data, whose files must be here; -1: unknown,
 * because its text is not tokenized yet, or a file cannot be opened. */
int64_t hd_spec_source_tokens(const struct hd_job *job, int64_t source);
/* Returns whether some data file of the job is text, which needs a tokenizer; also true if
 * data.train is empty. */
bool hd_spec_has_text(const struct hd_job *job);

/* Returns the largest number of devices for which a layout exists, within resources.devices and, if
 * the job is to run, hd_plan_ranks_max; 0: none. */
int32_t hd_spec_most_devices(const struct hd_job *job);

/* The values of the keys attempt.*, for hd_spec_resolve. */
struct hd_spec_attempt {
    int64_t job_id, number;
    const char *dir; /* absolute path of the job's directory; checkpoints/ is below it */
    /* directory of the checkpoint to start from; NULL: start from initial weights */
    const char *base_checkpoint;
    /* hash of the manifest of base_checkpoint, hexadecimal; NULL if base_checkpoint is NULL */
    const char *base_manifest_hash;
};

/* Sets *ret_job to the job, without auto, that the ranks of one attempt run. Checks `spec`; borrows
 * its lists and texts, and the attempt's texts. HD_INVALID: also if the layout is not possible for the spec, which is an error of the
 * planner. */
enum hd_status hd_spec_resolve(const struct hd_job *spec, const struct hd_layout_sizes *layout,
                               const struct hd_spec_attempt *attempt, struct hd_job *ret_job);

/* Reads a cluster file (docs/planning.md) of at most HD_CLUSTER_FILE_BYTES_MAX bytes: its groups of
 * nodes, in the file's order. ret_clusters: [HD_CLUSTER_GROUPS_MAX] (plan/cluster.h). ret_tree: the
 * network switches by names of nodes (plan/node_tree.h); NULL: not needed. Links and names live in
 * `arena`. HD_INVALID: "FILE:LINE: key: what is wrong; what to do". */
enum hd_status hd_spec_read_cluster(const char *path, struct hd_arena *arena,
                                    struct hd_cluster *ret_clusters, int *ret_count,
                                    struct hd_node_tree *ret_tree);
enum hd_status hd_spec_parse_cluster(const char *name, const void *bytes, size_t size_bytes,
                                     struct hd_arena *arena, struct hd_cluster *ret_clusters,
                                     int *ret_count, struct hd_node_tree *ret_tree);

/* Another tool's file as a job file (translate.c). The texts belong to the caller, who frees them. */
struct hd_spec_translation {
    const char *tool;          /* "axolotl" */
    struct hd_text job;        /* the job file */
    struct hd_text table;      /* "their key, ours, note" for each setting, aligned */
    const char *template_file; /* chat template that belongs beside the job file; NULL: none */
    const char *template_text;
    size_t settings, unknown; /* settings in the table; those of them that are not known */
};

/* Translates a file of axolotl, TRL, torchtune, LLaMA-Factory, TrainingArguments or Megatron-LM.
 * name: for messages and as name of the job. HD_NOT_FOUND: it is of none of these. HD_INVALID: it is
 * no YAML. */
enum hd_status hd_spec_translate(const char *name, const char *folder, const void *bytes,
                                 size_t size_bytes, struct hd_arena *arena,
                                 struct hd_spec_translation *ret);

/* Appends the keys of a job file as a JSON Schema of draft 7 (json_schema.c), with a line break. */
void hd_spec_add_schema(struct hd_text *out);

/* Returns the key that had this path, or had it as a group, before it was renamed; NULL: none. */
const struct hd_key *hd_spec_find_renamed(const char *path);

/* Appends what a job file has for a name, or a path, that another program uses for one of its
 * settings: "did you mean train.lr?". Returns false, and appends nothing, if the name is not known. */
bool hd_spec_suggest(const char *name, struct hd_text *out);

/* Adds the spec as a JSON object with the keys of the job file, without train.epochs: train.steps
 * has their steps. hd_spec_read_yaml can read it, since JSON is YAML. */
void hd_spec_add_json(const struct hd_job *job, const char *key, struct hd_json_writer *writer);

/* Adds the spec as hd_spec_add_json does, but without warmup, decay_steps and min of the learning
 * rate if they have their derived values: a reader with other train.steps or another peak then
 * derives them again. */
void hd_spec_add_file_json(const struct hd_job *job, const char *key,
                           struct hd_json_writer *writer);

/* Adds the keys of a layout as members of the open object, named by the last part of their path. */
void hd_spec_add_plan_json(const struct hd_layout_sizes *layout, struct hd_json_writer *writer);

/* Appends the default of a key of the job file as text for users: "required", "auto: 1", "0.1";
 * "-": none. */
void hd_spec_document_default(const struct hd_key *key, struct hd_text *ret_text);

/* Appends the keys of a job file as rows of a Markdown table, "| `path` | default | meaning |":
 * those whose path begins with `prefix`; "": all. */
void hd_spec_document(const char *prefix, struct hd_text *ret_text);

#endif
