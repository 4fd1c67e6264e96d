/* spec: a job file becomes a job, checked and completed; with a plan it becomes a resolved job.
 *
 *     job.yaml --read--> struct hd_job --from, defaults, check, find files--> a complete spec
 *     spec --to_message--> JobSpec (proto/heddle/v1/job.proto) --from_message--> spec
 *     spec + layout + attempt --resolve--> the ranks' struct hd_job, nothing left to choose
 *
 * The keys are those of job/keys.def. A spec is complete: reading a file fills in the default of
 * each absent key, so that a stored spec keeps its meaning when a default changes. Reading a file
 * and taking a message from the network meet in hd_spec_check, so both give the same verdict in
 * the same words.
 *
 * Every failure is HD_INVALID (a mistake) or HD_UNSUPPORTED (a sensible wish for what is not built
 * yet) with the story "KEY.PATH: what is wrong; what to do". The functions that read a file put
 * "FILE:LINE: " in front of it:
 *
 *     job.yaml:14: parallel.tp: 3 does not divide model.heads = 8; use 1, 2, 4 or 8
 *
 * Limits on a job file: 256 KiB, nesting of 16, one document, UTF-8 without NUL; anchors, aliases,
 * tags, unknown and repeated keys are mistakes.
 *
 * Used by: the heddle command, controller.   Uses: base, job, hf, plan, the generated messages.
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
struct hd_plan_wish; /* plan/choose.h */

enum {
    HD_SPEC_FILE_BYTES_MAX = 256 << 10,
    HD_SPEC_DEPTH_MAX = 16,
    HD_SPEC_FILES_MAX = 65536,  /* files of one list, after the globs */
    HD_SPEC_OVERRIDES_MAX = 256 /* --set options */
};

/* A job file as it came, before anything is understood. */
struct hd_spec_source {
    const char *name;   /* stands in front of messages: the path as the user typed it */
    const char *folder; /* absolute; relative paths in the file start here */
    const void *bytes;
    size_t size_bytes;
    const char *const *overrides; /* "train.steps=100": KEY=YAML-VALUE, later ones win */
    size_t override_count;
};

/* Does everything that `heddle submit` does before it talks to the controller: reads, overrides,
 * fills defaults, checks, makes paths absolute, expands globs (in bytewise order, files only), and
 * records sizes. A file that a glob of data.train finds and that data.val has is left out of
 * data.train. Lists live in `arena`. */
enum hd_status hd_spec_read_yaml(const struct hd_spec_source *source, struct hd_arena *arena,
                                 struct hd_job *ret_job);

/* The same from a file; `path` "-" is standard input with the working directory as folder.
 * HD_NOT_FOUND or HD_IO when the job file itself cannot be read. */
enum hd_status hd_spec_read_file(const char *path, const char *const *overrides,
                                 size_t override_count, struct hd_arena *arena,
                                 struct hd_job *ret_job);

/* A complete spec from the message of any client. What is zero or empty in it and cannot be meant
 * as such (kv_heads, ffn_hidden, vocab, rope_theta, tokenizer, order, decay, beta2, devices ...)
 * gets the default of the job file; where zero means something (weight_decay, clip, keep ...) it
 * stays. HD_INVALID for a key or a number of an enum that this build does not know. Lists are
 * copied into `arena`. hd_spec_check is to follow. */
enum hd_status hd_spec_from_message(const struct Heddle__V1__JobSpec *message,
                                    struct hd_arena *arena, struct hd_job *ret_job);

/* The message of a spec: keys that job.proto has as fields in these, the others as pairs of path
 * and value. It lives in `arena`, together with all it points to: never free it by itself. NULL:
 * out of memory. */
struct Heddle__V1__JobSpec *hd_spec_to_message(const struct hd_job *job, struct hd_arena *arena);

/* The layout of a plan in its message, whose ranks are not touched; what is added lives in `arena`.
 * False: out of memory. */
bool hd_spec_plan_to_message(const struct hd_layout_sizes *layout, struct hd_arena *arena,
                             struct Heddle__V1__Plan *message);
/* HD_INVALID: a key or a value that this build does not know. */
enum hd_status hd_spec_plan_from_message(const struct Heddle__V1__Plan *message,
                                         struct hd_layout_sizes *ret_layout);

/* All rules that need no file system: required keys, ranges, divisibility, what is built. Expects a
 * complete spec. The first violation in the order of the file format is reported. */
enum hd_status hd_spec_check(const struct hd_job *job);

/* What the spec says about its layout, for plan/choose.h. */
void hd_spec_wish(const struct hd_job *job, struct hd_plan_wish *ret_wish);

/* The largest number within resources.devices, and of hd_plan_ranks_max, on which there is a
 * layout; 0: none. */
int32_t hd_spec_most_devices(const struct hd_job *job);

/* What an attempt adds to a spec and its layout. */
struct hd_spec_attempt {
    int64_t job_id, number;
    const char *dir;                /* absolute: checkpoints/ goes below it */
    const char *base_checkpoint;    /* directory to start from; NULL: from the seed */
    const char *base_manifest_hash; /* hexadecimal; NULL with base_checkpoint NULL */
};

/* The job for the ranks of one attempt. `spec` is checked; the lists are the spec's, not copies.
 * HD_INVALID when the layout does not fit the spec (its sizes do not go together or with the
 * model): a mistake of the planner, named all the same. */
enum hd_status hd_spec_resolve(const struct hd_job *spec, const struct hd_layout_sizes *layout,
                               const struct hd_spec_attempt *attempt, struct hd_job *ret_job);

/* Adds the spec as a JSON object with the keys of the job file. A job file may be JSON, which is
 * YAML: what is written here reads back with hd_spec_read_yaml. */
void hd_spec_add_json(const struct hd_job *job, const char *key, struct hd_json_writer *writer);

/* Adds the keys of a layout as members of the open object, by the last part of their paths. */
void hd_spec_add_plan_json(const struct hd_layout_sizes *layout, struct hd_json_writer *writer);

/* What a job file without the key gets, for people: "required", "auto: 1", "0.1". */
void hd_spec_document_default(const struct hd_key *key, struct hd_text *ret_text);

/* The keys of a job file as rows of a Markdown table, "| `path` | default | meaning |"; `prefix`:
 * only those whose path begins with it; "": all. */
void hd_spec_document(const char *prefix, struct hd_text *ret_text);

/* The nearest of `count` words to `word` by edit distance, or NULL when none is near enough to be
 * what was meant. For unknown keys, commands and flags. */
const char *hd_spec_nearest(const char *word, const char *const *words, size_t count);

#endif
