#include "plan/identity.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "job/data_stages.h"

/* Reduces the stages to what a plan depends on: the sizes of their windows and batches. */
static void keep_sizes(struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count = 0, kept = 0;

    if (hd_data_stages_read(job, stages, &count))
        count = 0;
    for (int64_t k = 0; k < count; k++)
        if (stages[k].context && (!kept || !hd_data_stages_alike(&stages[kept - 1], &stages[k]))) {
            stages[kept] = stages[k];
            stages[kept].has_lr = false;
            stages[kept].until = kept + 1;
            kept++;
        }
    (void)hd_data_stages_write(stages, kept > 1 ? kept : 0, job);
}

/* Keys, or beginnings of keys, that no plan depends on: where and when a job runs, what the files of its
 * validations and rewards are, and how often they are used. */
static const char *const not_of_plans[] = {"name",
                                           "queue",
                                           "priority",
                                           "after",
                                           "array.",
                                           "time_limit",
                                           "hang.",
                                           "restart.max",
                                           "checkpoint.copy_to",
                                           "checkpoint.best.set",
                                           "data.val.sets",
                                           "validate.ema",
                                           "validate.choices_",
                                           "validate.tasks.",
                                           "validate.samples.",
                                           "validate.stop.",
                                           "train.distill.identity",
                                           "train.rollout.stop",
                                           "train.rewards.list",
                                           "train.rewards.folder",
                                           "train.rewards.identity"};

/* Returns the job with all that its plan does not depend on, or decides, at its default. */
static struct hd_job identity_of(const struct hd_job *spec, struct hd_arena *arena)
{
    struct hd_job job = hd_job_copy(spec, arena);
    struct hd_job nothing;

    hd_job_set_defaults(&nothing);
    job.layout = nothing.layout;
    job.devices_min = job.devices_max = 1;
    job.train_count = job.val_count = 0; /* the data files may be elsewhere, or not exist yet */
    job.schedule_order = NULL;
    keep_sizes(&job);
    for (size_t i = 0; i < hd_job_key_count; i++)
        for (size_t k = 0; k < sizeof not_of_plans / sizeof not_of_plans[0]; k++)
            if (hd_text_starts(hd_job_keys[i].path, not_of_plans[k]))
                hd_job_set_default(&hd_job_keys[i], &job);
    job.name = "job";
    /* questions add memory to programs of validation; tasks add programs that decode, for as many
     * answers at a time as there are slots; prompts add programs: whatever files they are in */
    if (*spec->choices)
        job.choices = "questions";
    if (*spec->tasks)
        job.tasks = "tasks";
    job.tasks_slots = spec->tasks_slots;
    if (*spec->samples)
        job.samples = "samples";
    /* a teacher's file adds fields and a loss, whichever file it is; distill_model stays */
    if (*job.distill_teacher)
        job.distill_teacher = "teacher";
    return job;
}

enum hd_status hd_plan_identity(const struct hd_job *spec, struct hd_text *ret_text)
{
    struct hd_arena arena;
    struct hd_job job;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    job = identity_of(spec, &arena);
    st = hd_job_write(&job, ret_text);
    hd_arena_done(&arena);
    return st || !ret_text->failed ? st : hd_err(HD_NO_MEMORY, "no memory for a job");
}

/* Parts of a key that an identity has: its value; whether that is the default; none. */
enum identity_part { PART_VALUE, PART_IS_DEFAULT, PART_NONE };
static enum identity_part parts[HD_JOB_KEYS_MAX];

static void set_other(const struct hd_key *key, struct hd_job *job)
{
    if (key->kind == HD_KEY_WORD)
        hd_job_set_constant(key, 0, key->texts[*(unsigned *)hd_job_member(key, job) == 1 ? 2 : 1],
                            job);
    else
        hd_job_set_constant(key, key->kind == HD_KEY_BOOL ? key->number == 0 : key->number + 1, "?",
                            job);
}

/* Finds the parts: compares the identities of a job of defaults and of one that has none. */
static void find_parts(void)
{
    struct hd_job plain, others;

    hd_job_set_defaults(&plain);
    plain = identity_of(&plain, NULL);
    hd_job_set_defaults(&others);
    for (size_t i = 0; i < hd_job_key_count; i++)
        set_other(&hd_job_keys[i], &others);
    others = identity_of(&others, NULL);
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        const bool equal = hd_job_members_equal(key, &plain, &others);

        parts[i] = equal ? PART_NONE : PART_IS_DEFAULT;
        set_other(key, &plain);
        if (!equal && hd_job_members_equal(key, &plain, &others))
            parts[i] = PART_VALUE;
    }
}

/* Adds the sizes of the stages, to which the identity reduces them; find_parts sees no part of them. */
static void add_sizes(const struct hd_job *spec, struct hd_hash *hash)
{
    struct hd_arena arena;
    struct hd_job sizes;

    if (!*spec->data_stages)
        return;
    hd_arena_init(&arena, 0);
    sizes = hd_job_copy(spec, &arena);
    keep_sizes(&sizes);
    hd_hash_add(hash, sizes.data_stages, strlen(sizes.data_stages));
    hd_arena_done(&arena);
}

uint64_t hd_plan_hash(const struct hd_job *spec)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct hd_key_set given = {0};
    struct hd_hash hash;

    (void)pthread_once(&once, find_parts);
    hd_job_add_given(spec, &given);
    hd_hash_begin(&hash);
    for (const struct hd_key *key = NULL; (key = hd_key_set_next(&given, key));) {
        const size_t i = (size_t)(key - hd_job_keys);

        if (parts[i] == PART_NONE)
            continue;
        hd_hash_add(&hash, &i, sizeof i);
        if (parts[i] == PART_VALUE)
            hd_hash_add(&hash,
                        hd_job_key_is_text(key) ? hd_job_text(key, spec)
                                                : hd_job_const_member(key, spec),
                        hd_job_member_bytes(key, spec));
    }
    add_sizes(spec, &hash);
    return hd_hash_value(&hash);
}

/* Returns the line of a text that begins with the same word as `line`; NULL: none. */
static const char *same_key(const char *text, const char *line)
{
    const size_t key = strcspn(line, " \n") + 1;

    for (const char *at = text; at && *at; at = strchr(at, '\n'), at += at != NULL)
        if (strncmp(at, line, key) == 0)
            return at;
    return NULL;
}

/* Appends the name that a job file has for the key whose stored path these bytes are. */
static void add_name(struct hd_text *out, const char *stored, int size_bytes)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const char *path = hd_job_stored_path(&hd_job_keys[i]);

        if (strncmp(path, stored, (size_t)size_bytes) == 0 && !path[size_bytes]) {
            hd_text_add(out, "%s", hd_job_keys[i].path);
            return;
        }
    }
    hd_text_add(out, "%.*s", size_bytes, stored);
}

enum hd_status hd_plan_identity_compare(const char *planned, const struct hd_job *spec)
{
    enum { NAMED_MAX = 4 };
    struct hd_text now = {0}, changes = {0};
    int count = 0;
    enum hd_status st = hd_plan_identity(spec, &now);

    for (const char *line = now.data; !st && line && *line;
         line = strchr(line, '\n'), line += line != NULL) {
        const char *was = same_key(planned, line);
        const int key = (int)strcspn(line, " \n"), end = (int)strcspn(line, "\n");
        const int was_end = was ? (int)strcspn(was, "\n") : 0;

        if (was && was_end == end && strncmp(was, line, (size_t)end) == 0)
            continue;
        if (++count > NAMED_MAX)
            continue;
        hd_text_add(&changes, "%s", count > 1 ? "; " : "");
        add_name(&changes, line, key);
        hd_text_add(&changes, " is%.*s, was%.*s", end - key, line + key, was ? was_end - key : 8,
                    was ? was + key : " nothing");
    }
    if (!st && count)
        st = hd_err(HD_INVALID, "the job has changed since it was planned: %s%s; plan it again",
                    changes.failed ? "?" : changes.data, count > NAMED_MAX ? " ..." : "");
    hd_text_free(&now);
    hd_text_free(&changes);
    return st;
}
