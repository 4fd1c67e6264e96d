/* job: the settings of one job as a struct, and their text form.
 *
 * The struct has two uses. As a *spec* it holds what a user requested: members of
 * struct hd_layout_sizes may still be `auto`, and the attempt's members are empty. As a *resolved
 * job* no member is auto and the attempt's members are set. The controller makes the resolved job
 * (spec/spec.h), daemons forward its text without parsing it, ranks train with it, and every
 * checkpoint contains it.
 *
 * Each key is declared once, in keys.def. The text form is a list of "path value" lines, which the
 * ranks parse without a YAML or protobuf library:
 *
 *     HEDDLE-JOB 4
 *     model.family llama
 *     model.layers 6
 *     data.train 1048576 /data/corpus/a.txt
 *     end
 *
 * Every key occurs exactly once; a list has one line per item, in order. A file's fingerprint,
 * where there is one, is between its size and its path (since version 11). In a mixture a line
 * "data.source WEIGHT" precedes the files of each source. The first line has the version of the
 * list of keys. A text of an older version lacks the newer keys: each gets the value that the older
 * build used in effect (hd_key.old_default), as does a key of the text's own version, which grew
 * until it was released. An order of pipeline stages (parallel.schedule: {file: F}) is
 * "parallel.schedule.order" with a line of the order, once per stage. A text of a newer version is
 * HD_UNSUPPORTED, and the message names both versions. Unknown, repeated or missing keys are
 * HD_INVALID.
 *
 * Memory: file lists and weights belong to the reader's arena.
 * Used by: spec, plan, controller (make it), supervisor, worker, model, optim, train, hf (read it).
 * Uses: base.   Threads: any; a job that is filled is only read.
 */
#ifndef HD_JOB_JOB_H
#define HD_JOB_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum {
    HD_JOB_VERSION = 12,                /* of the text form; raised when it has more to say */
    HD_JOB_WORD_MAX = 64,               /* bytes, NUL included; also of HD_KEY_NAME */
    HD_JOB_PATH_MAX = 4096,             /* bytes, NUL included */
    HD_JOB_FILE_BYTES_MAX = 4 << 20,    /* of the text form in a file */
    HD_JOB_ORDER_BYTES_MAX = 128 << 10, /* of an order of pipeline stages */
    HD_JOB_SOURCES_MAX = 64,            /* of a mixture */
    HD_JOB_PROFILE_STEPS_MAX = 100      /* in one trace */
};

/* parallel.schedule, where the job has an order of its own. A job file cannot write this word. */
#define HD_SCHEDULE_FILE "file"

/* The last words of a run that train.guard.action: stop has ended. */
#define HD_JOB_GUARD_STOPS "train.guard says stop"

/* ---- the struct ---- */

#define HD_JOB_MEMBER_WORD(name) char name[HD_JOB_WORD_MAX];
#define HD_JOB_MEMBER_NAME(name) char name[HD_JOB_WORD_MAX];
#define HD_JOB_MEMBER_PATH(name) char name[HD_JOB_PATH_MAX];
#define HD_JOB_MEMBER_INT(name)  int64_t name;
#define HD_JOB_MEMBER_REAL(name) double name;
#define HD_JOB_MEMBER_BOOL(name) bool name;

/* What a plan decides: sizes of the axes, micro-batch, schedule, ZeRO stage, recompute policy,
 * precision, kind of device. In a spec, auto is 0 for numbers, -1 for zero and sequence, and "auto"
 * for words. In a plan and in a resolved job nothing is auto. */
#define F(path, ...)
#define K(kind, member, path, ...)
#define L(kind, member, path, ...) HD_JOB_MEMBER_##kind(member)
struct hd_layout_sizes {
#include "job/keys.def"
};
#undef L
#undef K

struct hd_job_file {
    const char *path; /* absolute */
    int64_t size_bytes;
    int64_t source;          /* index of the source in a mixture; else 0 */
    const char *fingerprint; /* data/fingerprint.h, without blank and '/'; NULL: not recorded */
};

/* A member of the layout has two names: job->tp and job->layout.tp. */
struct hd_job {
#define L(kind, member, path, ...)
#define K(kind, member, path, ...) HD_JOB_MEMBER_##kind(member)
#include "job/keys.def"
#undef L
#undef K
    union {
        struct hd_layout_sizes layout;
        struct {
#define L(kind, member, path, ...) HD_JOB_MEMBER_##kind(member)
#define K(kind, member, path, ...)
#include "job/keys.def"
#undef L
#undef K
        };
    };
    struct hd_job_file *train, *val; /* [train_count], [val_count] */
    int64_t train_count, val_count;
    double *weights;      /* [weight_count], of a mixture's sources; their sum need not be 1 */
    int64_t weight_count; /* 0: no mixture; the training files are one text, in their order */
    const char *schedule_order; /* schedule = HD_SCHEDULE_FILE: the order, as hd_schedule_write of
                                   pipeline.h writes it; else NULL */
    bool layout_follows; /* of a job file whose layout and devices a plan will replace: they are not
                          * checked (plan_file.c) */
    bool only_planned; /* for `heddle plan`: the job will not run, so that it may have more devices
                          than an engine connects */
};
#undef F

/* ---- the table of keys ---- */

enum hd_key_kind {
    HD_KEY_WORD,
    HD_KEY_NAME,
    HD_KEY_PATH,
    HD_KEY_INT,
    HD_KEY_REAL,
    HD_KEY_BOOL,
    HD_KEY_FORM /* has no member: lib/spec parses it into members of other keys */
};

struct hd_key {
    const char *path; /* "train.lr.peak" */
    enum hd_key_kind kind;
    size_t offset;       /* of the member in struct hd_job */
    bool required;       /* a job file must have it */
    bool hidden;         /* a job file cannot set it by this path */
    const char *derived; /* the default depends on other keys: a text for users that says how */
    const char *shown;   /* how documentation shows the default; NULL: the value itself */
    double number;       /* default of INT, REAL, BOOL */
    const char *text;    /* default of WORD, NAME, PATH; NULL: "" */
    double min, max;     /* of INT and REAL, both inclusive */
    /* WORD: the allowed words, separated by blanks. INT and REAL: words for single values, such as
     * "auto=-2 none=-1", which may lie outside min and max. */
    const char *words;
    int since;                    /* first version of the text form that has the key; 0: all have */
    double old_default;           /* value for a text older than `since`: of INT, REAL, BOOL */
    const char *old_default_text; /* the same of WORD, NAME, PATH; NULL: "" */
    const char *v1_path;          /* its path in a text of version 1; NULL: the same */
    const char *adapters; /* of train.adapter: the types that have the key; NULL: all have it */
    bool adapter_form;    /* decides what an adapter computes: one that is read has its own */
    const char *help;     /* the meaning, for users; Markdown */
};
extern const struct hd_key hd_job_keys[];
extern const size_t hd_job_key_count;

const struct hd_key *hd_job_find_key(const char *path); /* NULL: unknown */
static inline void *hd_job_member(const struct hd_key *key, struct hd_job *job)
{
    return (char *)job + key->offset;
}
static inline const void *hd_job_const_member(const struct hd_key *key, const struct hd_job *job)
{
    return (const char *)job + key->offset;
}

/* What train.adapter multiplies the product of its factors by. */
double hd_job_adapter_scale(const struct hd_job *job);
/* The position of a sequence's first token: those before it are of a prefix (train.adapter). */
int64_t hd_job_first_position(const struct hd_job *job);
/* Whether train.objective is a loss of pairs of answers. */
bool hd_job_has_pairs(const struct hd_job *job);
/* Whether it is that of a reward model, whose head is one vector. */
bool hd_job_is_reward(const struct hd_job *job);

/* Whether the key is train.adapter's, and an adapter of this type has it. */
bool hd_job_key_is_of_adapter(const struct hd_key *key, const char *type);

/* Whether a job that is resumed must keep the value: the weights, and which sample comes at which
 * step, follow from it. train.init_from is none of them: its folder may have moved, and its
 * identity says that it is the same. */
bool hd_job_key_is_fixed(const struct hd_key *key);
/* The refusal; %s: the key's path. */
#define HD_JOB_KEY_FIXED                                                                        \
    "%s: cannot change when a job is resumed; submit a new job, with train.init_from to start " \
    "from this one's weights"

bool hd_job_key_is_of_layout(const struct hd_key *key); /* member of struct hd_layout_sizes */

/* Copies the key's member; does nothing for HD_KEY_FORM. */
void hd_job_copy_member(const struct hd_key *key, const struct hd_job *from, struct hd_job *to);

bool hd_job_members_equal(const struct hd_key *key, const struct hd_job *a, const struct hd_job *b);

/* Sets every member to its key's default and makes the lists empty. A member whose default is
 * derived becomes 0 or "". */
void hd_job_set_defaults(struct hd_job *ret_job);
void hd_job_set_default(const struct hd_key *key, struct hd_job *job); /* of one key */

/* Sets a member from its text form. HD_INVALID: the message says what is wrong with the value; it
 * does not contain the key's path. */
enum hd_status hd_job_parse(const struct hd_key *key, const char *text, struct hd_job *job);
/* Appends a member's text form. HD_INVALID: the member cannot be written, for example because it
 * contains a line break. */
enum hd_status hd_job_format(const struct hd_key *key, const struct hd_job *job,
                             struct hd_text *ret_text);

/* Calls each(context, word, value) for the words of a key; the value of a WORD key's word is its
 * index from 0. Stops at the first call that returns true; returns whether one did. */
bool hd_job_each_word(const struct hd_key *key,
                      bool (*each)(void *context, const char *word, double value), void *context);
/* Finds the word for a value of INT or REAL, or the value of a word. False: not found. */
bool hd_job_word_of(const struct hd_key *key, double value, char ret_word[HD_JOB_WORD_MAX]);
bool hd_job_word_value(const struct hd_key *key, const char *word, double *ret_value);
/* True if a number is the value of one of the words or lies within min and max. */
bool hd_job_number_is_possible(const struct hd_key *key, double value);

/* ---- text ---- */

/* Appends the text form. HD_INVALID: a name has a blank, or a path a line break. */
enum hd_status hd_job_write(const struct hd_job *job, struct hd_text *ret_text);

/* Reads the text form; lists and their paths are copied into `arena`. HD_INVALID: the message names
 * line and key. HD_UNSUPPORTED: a newer build wrote the text. */
enum hd_status hd_job_read(const char *text, size_t size_bytes, struct hd_arena *arena,
                           struct hd_job *ret_job);
enum hd_status hd_job_read_file(const char *path, struct hd_arena *arena, struct hd_job *ret_job);

/* The layout alone, as "path value" lines without a version: the controller stores a plan so. A key
 * that the text lacks gets its old default (hd_key.old_default). Unknown keys are HD_INVALID. */
enum hd_status hd_layout_write(const struct hd_layout_sizes *sizes, struct hd_text *ret_text);
enum hd_status hd_layout_read(const char *text, struct hd_layout_sizes *ret_sizes);

/* Micro-batches of a rank in one step; 0 if dp or micro_batch is auto. */
static inline int64_t hd_layout_micro_batches(const struct hd_layout_sizes *sizes,
                                              int64_t global_batch)
{
    const int64_t sequences = sizes->dp * sizes->micro_batch; /* of one micro-batch, all replicas */

    return sequences > 0 ? global_batch / sequences : 0;
}
/* parallel.stages as text, "7,8*2,7", not "auto": the numbers of layers; ret_count may exceed
 * `room`, then only the first are stored. HD_INVALID: no such text. The same with its rules: a
 * number for each chunk, at most `room` of them, that add up to the model's layers; HD_INVALID
 * names the key. And the text of numbers; HD_LIMIT: it is too long for a NAME. */
enum hd_status hd_stages_read(const char *text, int64_t *ret_layers, int64_t room,
                              int64_t *ret_count);
enum hd_status hd_stages_read_chunks(const char *text, int64_t chunks, int64_t layers,
                                     int64_t *ret_layers);
enum hd_status hd_stages_write(const int64_t *layers, int64_t count,
                               char ret_text[HD_JOB_WORD_MAX]);

/* `after` as text: "none", or numbers of jobs with commas, "12,13". HD_INVALID: it is neither. */
enum { HD_JOB_AFTER_MAX = 8 };
enum hd_status hd_after_read(const char *text, uint64_t ret_jobs[HD_JOB_AFTER_MAX], int *ret_count);

/* `time_limit` as text: "none", or a duration (hd_clock_read_span) of a second to ten years.
 * HD_INVALID: it is neither. ret_limit_ms: 0: none. */
enum hd_status hd_time_limit_read(const char *text, int64_t *ret_limit_ms);

/* A key of `hang` as text: "auto", or a duration of a second to ten years. HD_INVALID: it is
 * neither. ret_limit_ms: 0: auto. */
enum hd_status hd_hang_limit_read(const char *text, int64_t *ret_limit_ms);

/* `queue`: the name of a queue. */
#define HD_QUEUE_NAME_RULE \
    "use 1 to 63 letters, digits, '.', '_' or '-', not beginning with '.' or '-'"
bool hd_queue_name_is_possible(const char *name);

/* parallel.recompute as text: none, selective, full or full:K. False: it is none of these.
 * ret_units: K of full, 1 without a number; 0 for the others. */
enum { HD_RECOMPUTE_UNITS_MAX = 1024 };
bool hd_recompute_read(const char *text, int64_t *ret_units);

/* The folder whose tokenizer_config.json names the special tokens: that of the tokenizer.json, else
 * model.from's; "": there is none. */
void hd_job_chat_folder(const struct hd_job *job, char ret_dir[HD_JOB_PATH_MAX]);
/* Returns whether the number of tokens is that of a model that exists, so that model.vocab cannot
 * grow. */
bool hd_job_vocab_is_given(const struct hd_job *job);

/* The number of ranks. The sizes may not be auto. */
static inline int64_t hd_layout_world(const struct hd_layout_sizes *sizes)
{
    return sizes->pp * sizes->dp * sizes->cp * sizes->tp;
}

#endif
