/* job: the settings of one job as a struct, and their text form.
 *
 * The struct has two uses. As a *spec* it holds what a user requested: members of struct
 * hd_layout_sizes may still be `auto`, and the attempt's members are empty. As a *resolved job* no
 * member is auto and the attempt's members are set. The controller makes the resolved job
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
 * 1. The first line has the version of the list of keys.
 * 2. Every key occurs exactly once; unknown, repeated or missing keys are HD_INVALID.
 * 3. A list has one line per item, in order.
 * 4. A file's line has its size, its fingerprint if recorded (since version 11), and its path.
 * 5. In a mixture a line "data.source WEIGHT" precedes the files of each source; with stages of the
 *    data it has a weight for each stage, 0 where the stage lacks the source.
 * 6. A key newer than the text gets the value that older builds used (hd_key.old_default).
 * 7. A key of the text's own version may be missing, too: a version grows until its release.
 * 8. A text of a newer version is HD_UNSUPPORTED, and the message names both versions.
 * 9. A schedule from a file ({file: F}) is one line "parallel.schedule.order" per pipeline stage.
 * 10. With named validation sets a line "data.val.set NAME" precedes the files of each.
 *
 * Memory: texts, file lists and weights belong to the arena of the job, and are never changed there:
 * a setter stores a new text. So a job is copied by assignment, and the copy is valid as long as the
 * arena; hd_job_copy gives the copy an arena of its own for the texts that are set later. A text is
 * never NULL: hd_job_init, the readers and HD_JOB make those that are not given "".
 * Used by: spec, plan, controller (make it), supervisor, worker, model, optim, train, hf (read it).
 * Uses: base.   Threads: any; a filled job is only read.
 */
#ifndef HD_JOB_JOB_H
#define HD_JOB_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum {
    HD_JOB_VERSION = 19,                /* version of the text form; raised when keys are added */
    HD_JOB_KEYS_MAX = 512,              /* most keys */
    HD_JOB_WORD_MAX = 64,               /* bytes of a value of kind WORD or NAME, NUL included */
    HD_JOB_PATH_MAX = 4096,             /* bytes of a value of kind PATH, NUL included */
    HD_JOB_FILE_BYTES_MAX = 4 << 20,    /* bytes of a file with the text form of a job */
    HD_JOB_ORDER_BYTES_MAX = 128 << 10, /* bytes of the text of a schedule from a file */
    HD_JOB_SOURCES_MAX = 64,            /* most sources of a mixture */
    HD_JOB_STAGES_MAX = 16,             /* most stages of the data */
    HD_JOB_VAL_SETS_MAX = 16,           /* most validation sets */
    HD_JOB_VAL_NAME_MAX = 32,           /* bytes of the name of a validation set, NUL included */
    HD_JOB_VAL_REPORT_MAX = 48, /* bytes of the name of a reported number, such as NAME/acc */
    HD_JOB_VAL_REPORTS_MAX = 6 * HD_JOB_VAL_SETS_MAX, /* most numbers of a validation */
    HD_JOB_FILE_TEXT_MAX = 32 << 10, /* most bytes of a job file whose text is kept with the job */
    HD_JOB_PROFILE_STEPS_MAX = 100   /* most steps that train.profile traces */
};

/* Value of parallel.schedule if the job has a schedule from a file. A job file cannot write this
 * word. */
#define HD_SCHEDULE_FILE "file"

/* End of the error message of a run that train.guard.action: stop has ended. */
#define HD_JOB_GUARD_STOPS "train.guard says stop"

/* ---- the words ---- */

/* A key of kind WORD has an enum whose values are its words: data.order has enum hd_job_order with
 * HD_JOB_ORDER_SHUFFLED. 0: not set. The text of a value is hd_job_order_words[value], "" for 0. */
#define HD_JOB_WORD_INDEX(name, text) HD_JOB_INDEX_##name,
#define HD_JOB_WORD_VALUE(name, text) HD_JOB_##name = HD_JOB_INDEX_##name + 1,
#define HD_JOB_ENUM_WORD(member)                                    \
    enum { HD_JOB_WORDS_##member(HD_JOB_WORD_INDEX) };              \
    enum hd_job_##member{HD_JOB_WORDS_##member(HD_JOB_WORD_VALUE)}; \
    extern const char *const hd_job_##member##_words[];
#define HD_JOB_ENUM_NAME(member)
#define HD_JOB_ENUM_PATH(member)
#define HD_JOB_ENUM_INT(member)
#define HD_JOB_ENUM_REAL(member)
#define HD_JOB_ENUM_BOOL(member)
#define F(path, ...)
#define K(kind, member, path, ...) HD_JOB_ENUM_##kind(member)
#define L(kind, member, path, ...) HD_JOB_ENUM_##kind(member)
#include "job/keys.def"
#undef L
#undef K
#undef F

/* ---- the struct ---- */

#define HD_JOB_MEMBER_WORD(name) enum hd_job_##name name;
#define HD_JOB_MEMBER_NAME(name) const char *name;
#define HD_JOB_MEMBER_PATH(name) const char *name;
#define HD_JOB_MEMBER_INT(name)  int64_t name;
#define HD_JOB_MEMBER_REAL(name) double name;
#define HD_JOB_MEMBER_BOOL(name) bool name;

/* A layout has no arena, since plans are kept and copied by value: its names are arrays. */
#define HD_LAYOUT_MEMBER_WORD(name) HD_JOB_MEMBER_WORD(name)
#define HD_LAYOUT_MEMBER_NAME(name) char name[HD_JOB_WORD_MAX];
#define HD_LAYOUT_MEMBER_INT(name)  HD_JOB_MEMBER_INT(name)
#define HD_LAYOUT_MEMBER_REAL(name) HD_JOB_MEMBER_REAL(name)
#define HD_LAYOUT_MEMBER_BOOL(name) HD_JOB_MEMBER_BOOL(name)

/* The sizes that a plan decides: axes, micro-batch, schedule, ZeRO stage, recompute policy,
 * precision, kind of device. In a spec, auto is 0 for numbers, -1 for zero and sequence, and the
 * word auto for words. In a plan and in a resolved job nothing is auto. */
#define F(path, ...)
#define K(kind, member, path, ...)
#define L(kind, member, path, ...) HD_LAYOUT_MEMBER_##kind(member)
struct hd_layout_sizes {
#include "job/keys.def"
};
#undef L
#undef K

struct hd_job_file {
    const char *path; /* absolute path of the data file */
    int64_t size_bytes;
    /* index of the mixture's source to which a training file belongs, or of the set of a validation
     * file; 0 without a mixture, or without named sets */
    int64_t source;
    /* fingerprint of the file (data/fingerprint.h), without blank and '/'; NULL: not recorded */
    const char *fingerprint;
};

/* The settings of a job. A member of the layout has two names: job->tp and job->layout.tp. */
struct hd_job {
#define L(kind, member, path, ...)
#define K(kind, member, path, ...) HD_JOB_MEMBER_##kind(member)
#include "job/keys.def"
#undef L
#undef K
    union {
        struct hd_layout_sizes layout;
        struct {
#define L(kind, member, path, ...) HD_LAYOUT_MEMBER_##kind(member)
#define K(kind, member, path, ...)
#include "job/keys.def"
#undef L
#undef K
        };
    };
    struct hd_arena
        *arena; /* owner of the texts that are set; NULL: none can be set but literals */
    struct hd_job_file *train,
        *val; /* [train_count] training files, [val_count] validation files */
    int64_t train_count, val_count;
    /* [weight_count] weights of a mixture's sources; the sum need not be 1. With stages of the data
     * [weight_count, stages]: weights of a source in each stage, 0: the stage lacks it */
    double *weights;
    /* number of sources; 0: no mixture, the training files are one text, in their order */
    int64_t weight_count;
    /* schedule from a file, as hd_schedule_write of pipeline.h writes it; set if schedule is
     * HD_SCHEDULE_FILE, else NULL */
    const char *schedule_order;
    /* text of the job file as it was given, and behind it the values of --set as comments, for
     * people to read; NULL: not known, or larger than HD_JOB_FILE_TEXT_MAX */
    const char *file_text;
    /* true: a plan will replace the layout and devices of this job file, so they are not checked
     * (plan_file.c) */
    bool layout_follows;
    /* true: the job will not run (`heddle plan`), so it may have more devices than a communication
     * engine connects */
    bool only_planned;
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
    HD_KEY_FORM /* no member: lib/spec parses the value into members of other keys */
};

struct hd_key {
    const char *path; /* dotted path of the key in a job file, such as "train.lr.peak" */
    enum hd_key_kind kind;
    size_t offset; /* offset of the member in struct hd_job */
    bool required; /* a job file must give the key */
    bool hidden;   /* a job file cannot set it by this path */
    /* text for users: how the default depends on other keys; NULL: it does not */
    const char *derived;
    const char *shown; /* text for users in place of the default; NULL: the default itself */
    double number;     /* default of INT, REAL, BOOL */
    const char *text;  /* default of WORD, NAME, PATH; NULL: "" */
    double min, max;   /* limits of INT and REAL, both inclusive */
    /* WORD: the allowed words, separated by blanks, of which texts[v] is the one of the enum's value
     * v; texts[0] is "", and the last one is NULL. INT and REAL: words for single values, such as
     * "auto=-2 none=-1", which may lie outside min and max. */
    const char *words;
    const char *const *texts;
    int since;          /* first version of the text form that has the key; 0: all versions */
    double old_default; /* value for a text older than `since`, of INT, REAL, BOOL */
    /* value for a text older than `since`, of WORD, NAME, PATH; NULL: "" */
    const char *old_default_text;
    /* WORD: the word that a job file writes as `none`, which reads better there; NULL: no such word
     * */
    const char *none_word;
    /* path before the key was renamed; stored texts and messages have it, and job files may have
     * it; NULL: never renamed */
    const char *old_path;
    const char *v1_path; /* the key's path in a text of version 1; NULL: the stored path */
    /* types of train.adapter that have the key, separated by blanks; NULL: all types */
    const char *adapters;
    /* true: the key describes the form of an adapter; a job that starts from a stored adapter takes
     * the value of that adapter */
    bool adapter_form;
    const char *help; /* meaning of the key, text for users in Markdown */
};
extern const struct hd_key hd_job_keys[];
extern const size_t hd_job_key_count;

/* Indices of the keys in hd_job_keys, and HD_KEY(member), the key of a member of struct hd_job. */
#define HD_KEY_FORM_INDEX(line)        HD_KEY_FORM_INDEX_OF(line)
#define HD_KEY_FORM_INDEX_OF(line)     HD_KEY_INDEX_OF_FORM_##line
#define F(path, ...)                   HD_KEY_FORM_INDEX(__LINE__),
#define K(key_kind, member, path, ...) HD_KEY_INDEX_##member,
#define L(key_kind, member, path, ...) HD_KEY_INDEX_##member,
enum hd_key_index {
#include "job/keys.def"
};
#undef L
#undef K
#undef F
#define HD_KEY(member) (&hd_job_keys[HD_KEY_INDEX_##member])

const struct hd_key *hd_job_find_key(const char *path); /* returns NULL for an unknown path */
/* Returns the key's path in stored texts and messages, which a renaming does not change. */
static inline const char *hd_job_stored_path(const struct hd_key *key)
{
    return key->old_path ? key->old_path : key->path;
}
/* Returns the key behind `last` whose path begins with `group`, such as "train.lr."; last NULL: the
 * first. The keys of a group stand together in keys.def. NULL: none is left. */
const struct hd_key *hd_job_next_key(const char *group, const struct hd_key *last);
/* Returns the key with this stored path; NULL: unknown. */
const struct hd_key *hd_job_find_stored_key(const char *path);
/* Returns the word of a WORD key as a job file writes it (hd_key.none_word). */
static inline const char *hd_job_word_in_file(const struct hd_key *key, const char *word)
{
    return key->none_word && strcmp(key->none_word, word) == 0 ? "none" : word;
}
/* Returns whether the key's value is a text, which hd_job_text returns. */
static inline bool hd_job_key_is_text(const struct hd_key *key)
{
    return key->kind == HD_KEY_WORD || key->kind == HD_KEY_NAME || key->kind == HD_KEY_PATH;
}
static inline void *hd_job_member(const struct hd_key *key, struct hd_job *job)
{
    return (char *)job + key->offset;
}
static inline const void *hd_job_const_member(const struct hd_key *key, const struct hd_job *job)
{
    return (const char *)job + key->offset;
}

/* Returns the number by which the product of an adapter's two factors is multiplied (alpha / rank,
 * or with rsLoRA alpha / sqrt(rank)). */
double hd_job_adapter_scale(const struct hd_job *job);
/* Returns whether the job keeps a moving average of its weights (train.ema). */
bool hd_job_has_ema(const struct hd_job *job);
/* Returns the part of the way to the new weights that their average goes in an update, 1 - decay; 0
 * without train.ema. */
double hd_job_ema_rate(const struct hd_job *job);
/* Returns the number of positions that a prefix (train.adapter) takes before the first token; 0
 * without a prefix. */
int64_t hd_job_prefix(const struct hd_job *job);
/* Returns the position of a sequence's first token: the family's, behind a prefix. */
int64_t hd_job_first_position(const struct hd_job *job);
/* Returns whether train.objective is a loss on pairs of answers. */
bool hd_job_has_pairs(const struct hd_job *job);
/* Returns whether the job trains on completions that the model samples (grpo, gkd). */
bool hd_job_has_policy(const struct hd_job *job);
/* Returns whether the loss on them is a policy gradient by their rewards (grpo); with gkd it is the
 * divergence from a teacher. */
bool hd_job_has_policy_loss(const struct hd_job *job);
/* Returns whether answers that the model samples are compared with the weights with which the run began
 * (train.policy.kl). */
bool hd_job_has_reference(const struct hd_job *job);
/* Returns whether train.objective is a loss on rated answers, which need not be pairs (kto). */
bool hd_job_is_unpaired(const struct hd_job *job);
/* Returns whether the loss has a KL term, which is computed before each step from mismatched prompts
 * and answers (train/mismatched.c). */
bool hd_job_has_kl(const struct hd_job *job);
/* Returns whether the job learns from a teacher (train.distill.teacher): its file or its model. */
static inline bool hd_job_has_teacher(const struct hd_job *job)
{
    return *job->distill_teacher != '\0';
}
/* Returns whether the teacher is a model on the ranks of the job (frozen_model.h). */
static inline bool hd_job_has_teacher_model(const struct hd_job *job)
{
    return *job->distill_model != '\0';
}
/* Returns whether a model on the ranks of the job rates its answers (train.rewards: {model: ..}). */
static inline bool hd_job_has_reward_model(const struct hd_job *job)
{
    return *job->reward_model != '\0';
}
/* Returns whether the ranks have a model that does not train beside the one that does: a teacher's or a
 * reward model (frozen_model.h). */
static inline bool hd_job_has_frozen_model(const struct hd_job *job)
{
    return hd_job_has_teacher_model(job) || hd_job_has_reward_model(job);
}
/* Returns the number of token ids that a job of distillation compares (train.distill.vocab). */
static inline int64_t hd_job_distill_vocab(const struct hd_job *job)
{
    return job->distill_vocab && job->distill_vocab < job->vocab ? job->distill_vocab : job->vocab;
}
/* Returns the most tokens of a prompt of such a job, so that its answers always fit the windows of a
 * step: as many answers as a window must take, each of max_tokens. Below 1: they do not fit. */
int64_t hd_job_rollout_prompt_max(const struct hd_job *job);
/* Returns whether train.objective is that of a reward model, whose head is one vector. */
bool hd_job_is_reward(const struct hd_job *job);

/* Returns the number of stages of the data; 0: the job has data.train instead of stages. */
int64_t hd_job_stage_count(const struct hd_job *job);
/* Returns the number of weights of a source: the number of stages, or 1 without stages. */
int64_t hd_job_weights_each(const struct hd_job *job);
/* Returns the weight of a source in a stage (0 without stages); 0: the stage lacks it. */
double hd_job_weight(const struct hd_job *job, int64_t stage, int64_t source);

/* Returns the number of validation sets that data.val names; 1 for a plain list of files, or none.
 * */
int64_t hd_job_val_set_count(const struct hd_job *job);
/* Writes the name of validation set `index`; "" for the one of a plain list. */
void hd_job_val_set_name(const struct hd_job *job, int64_t index,
                         char ret_name[HD_JOB_VAL_NAME_MAX]);
/* Returns the index of the validation set with this name; -1: none has it. */
int64_t hd_job_val_set_find(const struct hd_job *job, const char *name);
/* Returns the index of the validation set whose loss decides which checkpoint is the best; 0 also if
 * another number decides, or the job names one that it does not have. */
int64_t hd_job_val_set_best(const struct hd_job *job);
/* Returns whether a validation set may have this name: letters, digits, '_' and '-', beginning with
 * a letter or digit, at most 31, and neither `true` nor `false`. */
bool hd_job_val_name_is_possible(const char *name);

/* A number that a validation yields: the loss of a set of data.val, that of the moving average of
 * the weights on it (validate.ema), the mean of the losses of all sets, or a score of a file of
 * validate.choices (ACC) or of validate.tasks (PASS). */
enum hd_val_metric_kind {
    HD_VAL_LOSS,
    HD_VAL_EMA,
    HD_VAL_MEAN,
    HD_VAL_ACC,
    HD_VAL_ACC_NORM,
    HD_VAL_PASS,  /* NAME/pass@1 */
    HD_VAL_PASS_K /* NAME/pass@K, K = validate.tasks.k above 1 */
};
struct hd_val_metric {
    enum hd_val_metric_kind kind;
    int64_t set; /* index of the validation set or of the file of questions; with MEAN 0 */
};
/* names of the loss of a data.val without sets, and of the mean of all losses */
#define HD_VAL_LOSS_NAME "loss"
#define HD_VAL_MEAN_NAME "mean"
/* Finds a number by its name: a set, NAME/ema, mean, NAME/acc, NAME/acc_norm or NAME/pass@K; NAME alone
 * is NAME/acc or NAME/pass@1. "" or "-": the loss of the first set, or of a job without validation data
 * the first file's acc or, if it has only tasks, pass@1. False: the job has none of this name. */
bool hd_job_find_metric(const struct hd_job *job, const char *name,
                        struct hd_val_metric *ret_metric);
void hd_job_metric_name(const struct hd_job *job, struct hd_val_metric metric,
                        char ret_name[HD_JOB_WORD_MAX]);
/* Appends the names of all numbers of the job's validations, with commas. */
void hd_job_list_metrics(const struct hd_job *job, struct hd_text *ret_text);
/* Returns whether the number is better if it is higher. */
bool hd_job_metric_rises(struct hd_val_metric metric);
/* Returns whether both jobs compute a score of the same questions and, of tasks, in the same way. */
bool hd_job_same_questions(const struct hd_job *a, const struct hd_job *b,
                           struct hd_val_metric metric);
/* Return the numbers that decide which checkpoint is the best, and about early stopping. */
struct hd_val_metric hd_job_best_metric(const struct hd_job *job);
struct hd_val_metric hd_job_stop_metric(const struct hd_job *job);
/* Returns whether a report of a validation may have this name: a set's, or NAME/ema, NAME/acc,
 * NAME/acc_norm, NAME/pass@K. */
bool hd_job_val_report_is_possible(const char *name);
/* Returns whether such a report has a score of questions, not the loss of a set. */
bool hd_job_val_report_is_score(const char *name);

/* Returns whether some layer of the job's model is a gated delta layer. */
bool hd_job_has_delta(const struct hd_job *job);
/* Returns whether some layer of the job's model is a short convolution. */
bool hd_job_has_conv(const struct hd_job *job);
/* Returns whether, in decoding, some layer keeps a state of all that a sequence has read, in place of
 * keys and values of each token. */
bool hd_job_keeps_state(const struct hd_job *job);

/* Returns whether the key belongs to train.adapter and adapters of this type have it. */
bool hd_job_key_is_of_adapter(const struct hd_key *key, enum hd_job_adapter type);

/* Returns whether a resumed job must keep the value, because weights and the order of samples
 * depend on it. train.init_from is not fixed: its folder may have moved, and train.init_identity
 * tells that it has the same weights. Nor is model.router.bias_rate, which often ends at 0, nor
 * model.mtp.loss_weight, which often falls, nor the list of data.stages, whose learning rates may
 * change (controller/services/resume.c). */
bool hd_job_key_is_fixed(const struct hd_key *key);
/* The error message for a changed fixed key; %s: its path. */
#define HD_JOB_KEY_FIXED                                                                        \
    "%s: cannot change when a job is resumed; submit a new job, with train.init_from to start " \
    "from this one's weights"

/* Returns whether the key is a member of struct hd_layout_sizes. */
bool hd_job_key_is_of_layout(const struct hd_key *key);

/* Copies the key's member from one job to another; does nothing for HD_KEY_FORM. A text is copied
 * into the arena of `to`, unless the jobs share an arena; HD_NO_MEMORY: it is "". */
enum hd_status hd_job_copy_member(const struct hd_key *key, const struct hd_job *from,
                                  struct hd_job *to);

bool hd_job_members_equal(const struct hd_key *key, const struct hd_job *a, const struct hd_job *b);
/* Returns the bytes of the key's value: of a text without its NUL; of HD_KEY_FORM: 0. */
size_t hd_job_member_bytes(const struct hd_key *key, const struct hd_job *job);
/* Returns whether the member is what hd_job_set_default sets, bit for bit; of HD_KEY_FORM: true. */
bool hd_job_is_default(const struct hd_key *key, const struct hd_job *job);

/* A set of keys, by their indices in hd_job_keys. */
struct hd_key_set {
    uint64_t words[HD_JOB_KEYS_MAX / 64];
};
static inline void hd_key_set_add(struct hd_key_set *set, const struct hd_key *key)
{
    set->words[(key - hd_job_keys) / 64] |= UINT64_C(1) << (key - hd_job_keys) % 64;
}
/* Returns the first key of the set behind `last`, in the order of keys.def; last NULL: the first.
 * NULL: none is left. */
const struct hd_key *hd_key_set_next(const struct hd_key_set *set, const struct hd_key *last);
size_t hd_key_set_count(const struct hd_key_set *set);
/* Adds to the set all keys that do not have their default in the job. */
void hd_job_add_given(const struct hd_job *job, struct hd_key_set *set);

/* Makes a job of zeros and empty texts. arena: NULL: texts of the job are literals. */
void hd_job_init(struct hd_job *ret_job, struct hd_arena *arena);
/* Returns the job with its NULL texts made "". HD_JOB(.layers = 2, .family = "llama") is a job that
 * is written down. */
struct hd_job hd_job_fill(struct hd_job job);
#define HD_JOB(...) hd_job_fill((struct hd_job){__VA_ARGS__})
/* Returns a copy whose texts are set in another arena; it shares the texts that the job has. */
static inline struct hd_job hd_job_copy(const struct hd_job *job, struct hd_arena *arena)
{
    struct hd_job copy = *job;

    copy.arena = arena;
    return copy;
}

/* Set a text of the job, such as &job->only, to a copy in the job's arena. hd_job_take_text also frees
 * the text that it gets. HD_NO_MEMORY: the member is "". HD_LIMIT, without a message: the text has
 * HD_JOB_PATH_MAX bytes or more, and the member is unchanged. */
enum hd_status hd_job_set_text(struct hd_job *job, const char **member, const char *text);
enum hd_status hd_job_print_text(struct hd_job *job, const char **member, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum hd_status hd_job_take_text(struct hd_job *job, const char **member, struct hd_text *text);

/* Sets every member to its key's default, empties the lists and sets no arena. A member whose default
 * is derived becomes 0 or "". */
void hd_job_set_defaults(struct hd_job *ret_job);
/* sets the key's member of the job to the key's default */
void hd_job_set_default(const struct hd_key *key, struct hd_job *job);
/* sets it to what builds before the key used; this never changes, whatever becomes of the default */
void hd_job_set_old_default(const struct hd_key *key, struct hd_job *job);
/* sets it to a number or, if it is a text, to one that lives as long as the job; NULL: "" */
void hd_job_set_constant(const struct hd_key *key, double number, const char *text,
                         struct hd_job *job);

/* Sets the key's member of a job from its text form. HD_INVALID: the message says what is wrong
 * with the value; it does not contain the key's path. */
enum hd_status hd_job_parse(const struct hd_key *key, const char *text, struct hd_job *job);
/* Sets a member of kind WORD, NAME or PATH to a text that is possible for the key: to a copy of it in
 * the job's arena, unless it is the key's default. HD_NO_MEMORY: it is "". */
enum hd_status hd_job_store_text(const struct hd_key *key, const char *text, struct hd_job *job);
/* Returns the text of a member of kind WORD, NAME or PATH; "": not set. */
const char *hd_job_text(const struct hd_key *key, const struct hd_job *job);
/* Returns the value of an enum that has this word, of the enum's texts such as hd_job_order_words;
 * 0: none has it. */
unsigned hd_job_find_word(const char *const *texts, const char *word);
/* Appends the text form of the key's member; of one that is not set, because the job was not made
 * by lib/spec, the value of older builds (old_default). HD_INVALID: the value cannot be written,
 * for example because it contains a line break. */
enum hd_status hd_job_format(const struct hd_key *key, const struct hd_job *job,
                             struct hd_text *ret_text);

/* Calls each(context, word, value) for each word that the key allows; for a WORD key the value is
 * the one of its enum. Stops at the first call that returns true; returns whether one did. */
bool hd_job_each_word(const struct hd_key *key,
                      bool (*each)(void *context, const char *word, double value), void *context);
/* Find the word that a key of kind INT or REAL has for a value, and the value that a word of the
 * key has. False: the key has none. */
bool hd_job_word_of(const struct hd_key *key, double value, char ret_word[HD_JOB_WORD_MAX]);
bool hd_job_word_value(const struct hd_key *key, const char *word, double *ret_value);
/* Returns whether the key allows a number: it is the value of one of the key's words, or lies
 * within min and max. */
bool hd_job_number_is_possible(const struct hd_key *key, double value);

/* ---- text ---- */

/* Appends the text form of a job. HD_INVALID: a name has a blank, or a path a line break. */
enum hd_status hd_job_write(const struct hd_job *job, struct hd_text *ret_text);

/* Sets *ret_job from the text form; copies lists and their paths into `arena`. HD_INVALID: the
 * message names line and key. HD_UNSUPPORTED: a newer build wrote the text. */
enum hd_status hd_job_read(const char *text, size_t size_bytes, struct hd_arena *arena,
                           struct hd_job *ret_job);
enum hd_status hd_job_read_file(const char *path, struct hd_arena *arena, struct hd_job *ret_job);

/* Write and read the layout alone, as "path value" lines without a version, in which form the
 * controller stores a plan. A key that the text lacks gets its old default (hd_key.old_default).
 * HD_INVALID: an unknown key. */
enum hd_status hd_layout_write(const struct hd_layout_sizes *sizes, struct hd_text *ret_text);
enum hd_status hd_layout_read(const char *text, struct hd_layout_sizes *ret_sizes);

/* Returns the number of micro-batches of a rank in one step; 0 if dp or micro_batch is auto. */
static inline int64_t hd_layout_micro_batches(const struct hd_layout_sizes *sizes,
                                              int64_t global_batch)
{
    /* sequences of one micro-batch, over all replicas */
    const int64_t sequences = sizes->dp * sizes->micro_batch;

    return sequences > 0 ? global_batch / sequences : 0;
}
/* Convert parallel.layers_per_stage as text ("7,8*2,7", not "auto") to and from numbers of layers.
 * hd_stages_read: sets ret_count, which may exceed `room`; stores at most `room` numbers.
 * HD_INVALID: the text is no list of numbers of layers. hd_stages_read_chunks: also checks that
 * there is one number per chunk and that they add up to `layers`. HD_INVALID: the message names the
 * key. hd_stages_write: HD_LIMIT: the text is too long for a NAME. */
enum hd_status hd_stages_read(const char *text, int64_t *ret_layers, int64_t room,
                              int64_t *ret_count);
enum hd_status hd_stages_read_chunks(const char *text, int64_t chunks, int64_t layers,
                                     int64_t *ret_layers);
enum hd_status hd_stages_write(const int64_t *layers, int64_t count,
                               char ret_text[HD_JOB_WORD_MAX]);

/* Reads the text of `after`: "none", or numbers of jobs with commas, "12,13". HD_INVALID:
 * neither. */
enum { HD_JOB_AFTER_MAX = 8 };
enum hd_status hd_after_read(const char *text, uint64_t ret_jobs[HD_JOB_AFTER_MAX], int *ret_count);
/* Returns whether the text is "none", or numbers or names of jobs with commas: "12,base". Clients
 * replace names by numbers before they submit a job. */
bool hd_after_is_possible(const char *text);

/* Reads the text of `time_limit`: "none", or a duration (hd_clock_read_span) of one second to ten
 * years. HD_INVALID: neither. ret_limit_ms 0: none. */
enum hd_status hd_time_limit_read(const char *text, int64_t *ret_limit_ms);

/* Reads the text of a key of `hang`: "auto", or a duration of one second to ten years. HD_INVALID:
 * neither. ret_limit_ms 0: auto. */
enum hd_status hd_hang_limit_read(const char *text, int64_t *ret_limit_ms);

/* The rule for names of queues, for messages. */
#define HD_QUEUE_NAME_RULE \
    "use 1 to 63 letters, digits, '.', '_' or '-', not beginning with '.' or '-'"
bool hd_queue_name_is_possible(const char *name);

/* Reads parallel.recompute: none, selective, full or full:K. False: none of these. ret_units: K of
 * full, 1 without a number; 0 for none and selective. */
enum { HD_RECOMPUTE_UNITS_MAX = 1024 };
bool hd_recompute_read(const char *text, int64_t *ret_units);

/* Sets ret_dir to the folder whose tokenizer_config.json names the special tokens: the folder of
 * the job's tokenizer.json, else model.from; "": neither is given. */
void hd_job_chat_folder(const struct hd_job *job, char ret_dir[HD_JOB_PATH_MAX]);
/* Returns whether model.vocab is that of a model from which the job starts, so that it cannot
 * grow. */
bool hd_job_vocab_is_given(const struct hd_job *job);

/* Returns the number of ranks of a layout, whose sizes may not be auto. */
static inline int64_t hd_layout_world(const struct hd_layout_sizes *sizes)
{
    return sizes->pp * sizes->dp * sizes->cp * sizes->tp;
}

#endif
