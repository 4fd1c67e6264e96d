/* job: one job, from the job file to the ranks, and its text form.
 *
 * The same struct serves twice. As a *spec* it is what a user asked for: the members of
 * struct hd_layout_sizes may still be `auto`, and the attempt's members are empty. As a *resolved
 * job* nothing is auto and the attempt is known; the controller makes it (spec/spec.h), daemons
 * pass its text on unread, ranks train by it, and every checkpoint contains it.
 *
 * Each key is declared once, in keys.def. The text form is a file of "path value" lines that libc
 * alone can read:
 *
 *     HEDDLE-JOB 3
 *     model.family llama
 *     model.layers 6
 *     data.train 1048576 /data/corpus/a.txt
 *     end
 *
 * Every key occurs exactly once; lists occur once per item, in order. In a mixture a line
 * "data.source WEIGHT" precedes each source's files. The first line has the version of the list of
 * keys. A text of an older version lacks the newer keys: they get the value with which that version
 * trained. A text of a newer version is refused with both numbers. Unknown, repeated or missing
 * keys are HD_INVALID.
 *
 * Used by: spec, plan, controller (make it), supervisor, worker, model, optim, train, hf (read it).
 * Uses: base.
 * Threads: immutable once filled.
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
    HD_JOB_VERSION = 3, /* of the list of keys; raised with each new key */
    HD_JOB_WORD_MAX = 64,
    HD_JOB_PATH_MAX = 4096,
    HD_JOB_FILE_BYTES_MAX = 4 << 20,
    HD_JOB_SOURCES_MAX = 64,
    HD_JOB_PROFILE_STEPS_MAX = 100 /* in one trace */
};

/* ---- the struct ---- */

#define HD_JOB_MEMBER_WORD(name) char name[HD_JOB_WORD_MAX];
#define HD_JOB_MEMBER_NAME(name) char name[HD_JOB_WORD_MAX];
#define HD_JOB_MEMBER_PATH(name) char name[HD_JOB_PATH_MAX];
#define HD_JOB_MEMBER_INT(name)  int64_t name;
#define HD_JOB_MEMBER_REAL(name) double name;
#define HD_JOB_MEMBER_BOOL(name) bool name;

/* What a plan decides: sizes of the axes, micro-batch, schedule, ZeRO stage, recompute policy,
 * precision, kind of device. As a wish, 0 is auto for numbers, -1 for zero and sequence, "auto" for
 * words; in a plan and in a resolved job nothing is auto. */
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
    int64_t source; /* of a mixture, from 0; else 0 */
};

/* The members of the layout are reached directly (job->tp) and as a whole (job->layout). */
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
    struct hd_job_file *train, *val; /* memory of the arena given to the reader */
    int64_t train_count, val_count;
    double *weights;      /* of the sources of a mixture; their sum need not be 1 */
    int64_t weight_count; /* 0: the training files are one text, in their order */
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
    HD_KEY_FORM /* has no member: spec reads it into those of other keys */
};

struct hd_key {
    const char *path; /* "train.lr.peak" */
    enum hd_key_kind kind;
    size_t offset;       /* of the member in struct hd_job */
    bool required;       /* a job file must have it */
    bool hidden;         /* not a key of the job file by this path */
    const char *derived; /* the default follows from other keys: how, for people */
    const char *shown;   /* how documentation shows the default; NULL: the value itself */
    double number;       /* default of INT, REAL, BOOL */
    const char *text;    /* default of WORD, NAME, PATH; NULL: "" */
    double min, max;     /* of INT and REAL, both inclusive */
    /* WORD: the possible ones, separated by blanks. INT and REAL: words for single values, as
     * "auto=-2 none=-1", which min and max do not bind. */
    const char *words;
    int since;               /* version of the text form that has it; 0: the first */
    double before;           /* its value in texts of older versions: of INT, REAL, BOOL */
    const char *before_text; /* of WORD, NAME, PATH; NULL: "" */
    const char *old;         /* its path in the text of version 1, where that differed */
    const char *help;        /* what it means, for people; Markdown */
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

/* Is its member one of struct hd_layout_sizes? */
bool hd_job_key_is_of_layout(const struct hd_key *key);

/* *to's member becomes *from's. */
void hd_job_copy_member(const struct hd_key *key, const struct hd_job *from, struct hd_job *to);

bool hd_job_members_equal(const struct hd_key *key, const struct hd_job *a, const struct hd_job *b);

/* All members at their keys' defaults, lists empty. Derived ones are 0 or "". */
void hd_job_set_defaults(struct hd_job *ret_job);
void hd_job_set_default(const struct hd_key *key, struct hd_job *job); /* of one key */

/* Sets a member from its text form. HD_INVALID says what is wrong with the value, without the path.
 */
enum hd_status hd_job_parse(const struct hd_key *key, const char *text, struct hd_job *job);
/* Appends a member's text form. HD_INVALID for a text that has none, such as one with a line
 * break. */
enum hd_status hd_job_format(const struct hd_key *key, const struct hd_job *job,
                             struct hd_text *ret_text);

/* Calls each(context, word, value) for the words of a key; WORD keys count them from 0. Ends at the
 * first call that returns true, and returns whether one did. */
bool hd_job_each_word(const struct hd_key *key,
                      bool (*each)(void *context, const char *word, double value), void *context);
/* The word for a value of INT or REAL, or the word's value; false: there is none. */
bool hd_job_word_of(const struct hd_key *key, double value, char ret_word[HD_JOB_WORD_MAX]);
bool hd_job_word_value(const struct hd_key *key, const char *word, double *ret_value);
/* Whether a number is one of the words or within min and max. */
bool hd_job_number_is_possible(const struct hd_key *key, double value);

/* ---- text ---- */

/* Appends the text form. HD_INVALID for a name or path that the form cannot hold. */
enum hd_status hd_job_write(const struct hd_job *job, struct hd_text *ret_text);

/* Reads the text form; lists and their paths are copied into `arena`. HD_INVALID names line and
 * key; HD_UNSUPPORTED: a newer build wrote it. */
enum hd_status hd_job_read(const char *text, size_t size_bytes, struct hd_arena *arena,
                           struct hd_job *ret_job);
enum hd_status hd_job_read_file(const char *path, struct hd_arena *arena, struct hd_job *ret_job);

/* The layout alone, as "path value" lines: what the controller stores of a plan. Keys that a text
 * of an older build lacks get their value from before; unknown ones are HD_INVALID. */
enum hd_status hd_layout_write(const struct hd_layout_sizes *sizes, struct hd_text *ret_text);
enum hd_status hd_layout_read(const char *text, struct hd_layout_sizes *ret_sizes);

/* Micro-batches of a rank in one step; 0 while the layout has auto in it. */
static inline int64_t hd_layout_micro_batches(const struct hd_layout_sizes *sizes,
                                              int64_t global_batch)
{
    const int64_t at_once = sizes->dp * sizes->micro_batch;

    return at_once > 0 ? global_batch / at_once : 0;
}
/* Ranks of a layout without auto. */
static inline int64_t hd_layout_world(const struct hd_layout_sizes *sizes)
{
    return sizes->pp * sizes->dp * sizes->cp * sizes->tp;
}

#endif
