/* spec: reads a job file into a spec, checks and completes it; resolves a spec for its ranks.
 *
 *     job.yaml --read--> struct hd_job --from, defaults, check, find files--> a complete spec
 *     spec --to_message--> JobSpec (proto/heddle/v1/job.proto) --from_message--> spec
 *     spec + layout + attempt --resolve--> the ranks' struct hd_job, without auto
 *
 * The keys are those of job/keys.def. A spec is complete: reading a file sets the default of each
 * absent key, so that a stored spec keeps its meaning when a default changes. A spec from a file
 * and a spec from the network are both checked by hd_spec_check, with the same error messages.
 *
 * Every failure of a rule is HD_INVALID (a mistake) or HD_UNSUPPORTED (not implemented yet), with
 * the message "KEY.PATH: what is wrong; what to do". The functions that read a file put
 * "FILE:LINE: " in front of it:
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

struct hd_json_writer;      /* base/json.h */
struct Heddle__V1__JobSpec; /* heddle/v1/job.pb-c.h */
struct Heddle__V1__Plan;
struct hd_plan_request; /* plan/choose.h */
struct hd_cluster;      /* plan/cluster.h */
struct hd_node_tree;    /* plan/node_tree.h */

enum {
    HD_SPEC_FILE_BYTES_MAX = 256 << 10,
    HD_SPEC_FILES_MAX = 65536,  /* files of one list, after patterns are expanded */
    HD_SPEC_OVERRIDES_MAX = 256 /* --set options */
};

#define HD_SPEC_STEPS_UNKNOWN (INT64_C(1) << 40)

/* A job file, not parsed yet. */
struct hd_spec_source {
    const char *name;   /* begins error messages: the path as the user typed it */
    const char *folder; /* absolute; paths in the file are relative to it */
    const void *bytes;
    size_t size_bytes;
    const char *const *overrides; /* "train.steps=100": KEY=YAML-VALUE, later ones win */
    size_t override_count;
    /* What messages call each override: "--pin tp=8". NULL, as the array or in it: "--set TEXT". */
    const char *const *override_origins;
    /* A last check of the complete spec by the caller; its message begins with "KEY.PATH: ", and
     * gets the line of that key. NULL: none. */
    enum hd_status (*check)(const struct hd_job *job);
    /* What was found wrong with the data of the job after it was read, such as "data.train:
     * a.jsonl:7:
     * ..": the failure, which gets the line of that key. NULL: nothing. */
    const char *problem;
    bool only_planned;   /* of struct hd_job */
    bool layout_follows; /* likewise */
    /* Not NULL: data files that cannot be opened are no error; the text gets the message. For plans
     * of other machines. */
    struct hd_text *missing_data;
    /* With train.epochs: the steps that they make; 0: not counted yet, and train.steps becomes
     * HD_SPEC_STEPS_UNKNOWN. */
    int64_t epoch_steps;
    bool is_stored; /* a job that the user has in no file: messages name no line, but the override
                     * that they are about, if there is one */
};

/* Reads and checks a job as `heddle submit` does: parses, applies overrides, reads model.from, sets
 * defaults, checks, makes paths absolute, expands patterns (in bytewise order, files only), and
 * records sizes. A file that a pattern of data.train finds is left out if it is in data.val. Token
 * files are opened as a rank will open them; they must be whole, and ids that are looked at (all of
 * a small file, some of others) in the vocabulary. Lists live in `arena`. */
enum hd_status hd_spec_read_yaml(const struct hd_spec_source *source, struct hd_arena *arena,
                                 struct hd_job *ret_job);

/* The same from a file; `path` "-" is standard input with the working directory as folder. Of
 * `options` all but the first four members are used. HD_NOT_FOUND or HD_IO: the job file itself
 * cannot be read; HD_INVALID: also that it is a folder. */
enum hd_status hd_spec_read_file(const char *path, const struct hd_spec_source *options,
                                 struct hd_arena *arena, struct hd_job *ret_job);

/* A complete spec from a client's message. Members for which zero or empty is no valid value
 * (kv_heads, ffn_hidden, vocab, rope_theta, tokenizer, order, decay, beta2, devices ...) get the
 * default of the job file; where zero is valid (weight_decay, clip, keep ...) it stays. HD_INVALID:
 * a key or enum number that this build does not know. Lists are copied into `arena`. The caller
 * must then call hd_spec_check. */
enum hd_status hd_spec_from_message(const struct Heddle__V1__JobSpec *message,
                                    struct hd_arena *arena, struct hd_job *ret_job);

/* The message of a spec. Keys for which job.proto has a field are in that field, the others are
 * pairs of path and value. The message and its members live in `arena` or in `job`: do not free it.
 * NULL: out of memory. */
struct Heddle__V1__JobSpec *hd_spec_to_message(const struct hd_job *job, struct hd_arena *arena);

/* Sets the layout in the message of a plan; new members live in `arena`. False: out of memory. */
bool hd_spec_plan_to_message(const struct hd_layout_sizes *layout, struct hd_arena *arena,
                             struct Heddle__V1__Plan *message);
/* The layout of a plan. HD_INVALID: a key or a value that this build does not know. */
enum hd_status hd_spec_plan_from_message(const struct Heddle__V1__Plan *message,
                                         struct hd_layout_sizes *ret_layout);

/* Checks all rules that need no file system: required keys, ranges, divisibility, supported
 * features. The spec must be complete. Reports the first violation, in the order of the checks. */
enum hd_status hd_spec_check(const struct hd_job *job);

/* The steps of `epochs` times `windows` sequences: at least 1. */
int64_t hd_spec_epoch_steps(double epochs, int64_t windows, int64_t global_batch);

/* Whether a data file's lines are conversations, or its tokens are (found by opening it). Files
 * that cannot be read are not. */
bool hd_spec_has_conversations(const struct hd_job *job);

/* True if a file is text, which needs a tokenizer; also if data.train is empty. */
bool hd_spec_has_text(const struct hd_job *job);

/* The sizes that the spec requests, for plan/choose.h. */
void hd_spec_plan_request(const struct hd_job *job, struct hd_plan_request *ret_request);

/* The largest number of devices within resources.devices, and within hd_plan_ranks_max if the job
 * is to run, for which a layout exists; 0: none. */
int32_t hd_spec_most_devices(const struct hd_job *job);

/* The values of the keys attempt.*; strings are copied. */
struct hd_spec_attempt {
    int64_t job_id, number;
    const char *dir;                /* absolute; checkpoints/ is below it */
    const char *base_checkpoint;    /* directory to start from; NULL: from initial weights */
    const char *base_manifest_hash; /* hexadecimal; NULL with base_checkpoint NULL */
};

/* The job for the ranks of one attempt. Checks `spec`; the lists are borrowed from it. HD_INVALID:
 * also if the layout is not possible for the spec, which is a mistake of the planner. */
enum hd_status hd_spec_resolve(const struct hd_job *spec, const struct hd_layout_sizes *layout,
                               const struct hd_spec_attempt *attempt, struct hd_job *ret_job);

/* Reads a cluster file (docs/planning.md), at most HD_CLUSTER_FILE_BYTES_MAX bytes: its groups of
 * nodes, in the file's order. ret_clusters: [HD_CLUSTER_GROUPS_MAX] (plan/cluster.h). ret_tree: the
 * switches by names of nodes (plan/node_tree.h); NULL: not wanted. Links and names live in `arena`.
 * HD_INVALID: "FILE:LINE: key: what is wrong; what to do". */
enum hd_status hd_spec_read_cluster(const char *path, struct hd_arena *arena,
                                    struct hd_cluster *ret_clusters, int *ret_count,
                                    struct hd_node_tree *ret_tree);
enum hd_status hd_spec_parse_cluster(const char *name, const void *bytes, size_t size_bytes,
                                     struct hd_arena *arena, struct hd_cluster *ret_clusters,
                                     int *ret_count, struct hd_node_tree *ret_tree);

/* Adds the spec as a JSON object with the keys of the job file, without train.epochs: it has the
 * steps that they made. hd_spec_read_yaml can read it, since JSON is YAML. */
void hd_spec_add_json(const struct hd_job *job, const char *key, struct hd_json_writer *writer);

/* The same without the keys of the learning rate that follow from the others (warmup, decay_steps,
 * min): where the file is read with other train.steps or peak, they follow again. */
void hd_spec_add_file_json(const struct hd_job *job, const char *key,
                           struct hd_json_writer *writer);

/* Adds the keys of a layout as members of the open object, named by the last part of their path. */
void hd_spec_add_plan_json(const struct hd_layout_sizes *layout, struct hd_json_writer *writer);

/* Appends a key's default, for users: "required", "auto: 1", "0.1"; "-": none. */
void hd_spec_document_default(const struct hd_key *key, struct hd_text *ret_text);

/* Appends the keys of a job file as rows of a Markdown table, "| `path` | default | meaning |".
 * Only keys whose path begins with `prefix`; "": all. */
void hd_spec_document(const char *prefix, struct hd_text *ret_text);

#endif
