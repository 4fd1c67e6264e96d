/* spec: what a user wrote in a job file, checked and completed, and what the ranks get out of it.
 *
 *     job.yaml --read--> JobSpec --fill_defaults--> --check--> --find_files--> SubmitJob
 *     JobSpec + Plan + attempt --resolve--> struct hd_job (link/job.h), nothing left to choose
 *
 * The JobSpec message (proto/heddle/v1/job.proto) is the one form of a job between programs; its
 * member names are the keys of the job file. It is complete: reading a file fills in the default of
 * each key that is not there, so that a stored spec means the same for ever. Reading a file and
 * taking a message from the network meet in hd_spec_check, so both give the same verdict in the
 * same words.
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
 * Used by: the heddle command, controller.   Uses: base, link, the generated messages.
 * Threads: any; no state is shared.
 */
#ifndef HD_SPEC_SPEC_H
#define HD_SPEC_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "link/job.h"

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
 * data.train. The result belongs to
 * the caller (hd_spec_free). */
enum hd_status hd_spec_read_yaml(const struct hd_spec_source *source,
                                 struct Heddle__V1__JobSpec **ret_spec);

/* The same from a file; `path` "-" is standard input with the working directory as folder.
 * HD_NOT_FOUND or HD_IO when the job file itself cannot be read. */
enum hd_status hd_spec_read_file(const char *path, const char *const *overrides,
                                 size_t override_count, struct Heddle__V1__JobSpec **ret_spec);

void hd_spec_free(struct Heddle__V1__JobSpec *spec); /* NULL is fine */

/* Completes a message that another client made: what is zero or empty and cannot be meant as such
 * (kv_heads, ffn_hidden, vocab, rope_theta, norm_eps, tokenizer, order, decay, beta2, eps, devices)
 * gets the default of the job file; absent sections are made. Where zero means something
 * (weight_decay, clip, keep ...) it stays. Idempotent. Only HD_NO_MEMORY can fail: defaults come
 * out of wrong values too, hd_spec_check follows. */
enum hd_status hd_spec_fill_defaults(struct Heddle__V1__JobSpec *spec);

/* All rules that need no file system: required keys, ranges, divisibility, what is built. Expects a
 * filled spec, however it came. The first violation in the order of the file format is reported. */
enum hd_status hd_spec_check(const struct Heddle__V1__JobSpec *spec);

/* What an attempt adds to a spec. */
struct hd_spec_attempt {
    int64_t job_id, number;
    int64_t threads;                /* per rank */
    const char *dir;                /* absolute: checkpoints/ goes below it */
    const char *base_checkpoint;    /* directory to start from; NULL: from the seed */
    const char *base_manifest_hash; /* hex; NULL with base_checkpoint NULL */
};

/* What the spec says about its layout, for plan/choose.h. The spec is filled. */
void hd_spec_wish(const struct Heddle__V1__JobSpec *spec, struct hd_plan_wish *ret_wish);

/* The largest number within resources.devices, and of HD_JOB_RANKS_MAX, on which there is a layout;
 * 0: none. The spec is filled. */
int32_t hd_spec_most_devices(const struct Heddle__V1__JobSpec *spec);

/* The job for the ranks of one attempt. `spec` is filled and checked; file lists and paths are
 * copied into `arena`. HD_INVALID when the plan does not fit the spec (its product is not the
 * number of devices, its sizes do not go together or with the model): a mistake of the planner,
 * named all the same.
 */
enum hd_status hd_spec_resolve(const struct Heddle__V1__JobSpec *spec,
                               const struct Heddle__V1__Plan *plan,
                               const struct hd_spec_attempt *attempt, struct hd_arena *arena,
                               struct hd_job *ret_job);

/* Adds the spec as a JSON object with the keys of the job file. A job file may be JSON, which is
 * YAML: what is written here reads back with hd_spec_read_yaml. */
void hd_spec_add_json(const struct Heddle__V1__JobSpec *spec, const char *key,
                      struct hd_json_writer *writer);

/* The nearest of `count` words to `word` by edit distance, or NULL when none is near enough to be
 * what was meant. For unknown keys, commands and flags. */
const char *hd_spec_nearest(const char *word, const char *const *words, size_t count);

#endif
