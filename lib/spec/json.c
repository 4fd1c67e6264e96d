/* json: writes struct hd_job as JSON with the keys of the job file. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "job/choice_sets.h"
#include "job/data_stages.h"
#include "job/sample_prompts.h"
#include "plan/choose.h"
#include "spec_internal.h"

static void add_files(struct hd_json_writer *w, const char *name, const struct hd_job_file *files,
                      int64_t count)
{
    hd_json_begin(w, name, '[');
    for (int64_t i = 0; i < count; i++)
        hd_json_add_string(w, NULL, files[i].path);
    hd_json_end(w, ']');
}

static void add_validation(struct hd_json_writer *w, const char *name, const struct hd_job *job)
{
    char set[HD_JOB_VAL_NAME_MAX];
    int64_t file = 0;

    if (!*job->val_sets) {
        add_files(w, name, job->val, job->val_count);
        return;
    }
    hd_json_begin(w, name, '{');
    for (int64_t k = 0; k < hd_job_val_set_count(job); k++) {
        const int64_t first = file;

        while (file < job->val_count && job->val[file].source == k)
            file++;
        hd_job_val_set_name(job, k, set);
        add_files(w, set, job->val + first, file - first);
    }
    hd_json_end(w, '}');
}

static void add_choices(struct hd_json_writer *w, const char *name, enum hd_question_kind kind,
                        const struct hd_job *job)
{
    struct hd_choice_set set;

    if (!hd_choice_set_count(job, kind))
        return;
    hd_json_begin(w, name, '{');
    for (int64_t k = 0; k < hd_choice_set_count(job, kind); k++)
        if (!hd_choice_set_read(job, kind, k, &set))
            hd_json_add_string(w, set.name, set.path);
    hd_json_end(w, '}');
}

/* Adds the rewards as a job file has them. */
static void add_rewards(struct hd_json_writer *w, const char *name, const char *rewards,
                        const char *model_dir)
{
    static const struct hd_json_limits limits = {.values_max = 4096, .depth_max = 4};
    const struct hd_json *root;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    if (*rewards && !hd_json_parse(&arena, rewards, strlen(rewards), &limits, &root)) {
        hd_json_begin(w, name, '[');
        for (const struct hd_json *r = root->first; r; r = r->next) {
            hd_json_begin(w, NULL, '{');
            for (const struct hd_json *m = r->first; m; m = m->next)
                if (strcmp(m->key, "model") == 0)
                    hd_json_add_string(w, m->key, model_dir);
                else
                    hd_json_add_value(w, m->key, m);
            hd_json_end(w, '}');
        }
        hd_json_end(w, ']');
    }
    hd_arena_done(&arena);
}

static void add_samples(struct hd_json_writer *w, const char *name, const struct hd_job *job)
{
    struct hd_sample_file file;
    struct hd_text text = {0};

    if (!*job->samples)
        return;
    if (hd_job_samples_in_file(job)) {
        if (!hd_job_read_sample_file(job, &file))
            hd_json_add_string(w, name, file.path);
        return;
    }
    hd_json_begin(w, name, '[');
    for (int64_t i = 0; hd_job_sample_prompt(job, i, &text); i++) {
        hd_json_add_string(w, NULL, text.data ? text.data : "");
        hd_text_clear(&text);
    }
    hd_json_end(w, ']');
    hd_text_free(&text);
}

/* Returns whether checkpoint.best names a number other than that of `true`. */
static bool is_named_best(const struct hd_job *job)
{
    struct hd_val_metric usual;
    const struct hd_val_metric best = hd_job_best_metric(job);

    (void)hd_job_find_metric(job, "-", &usual);
    return job->checkpoint_best && (best.kind != usual.kind || best.set != usual.set);
}

/* Adds the sources of a stage, or of the job without stages (stage 0): those with a weight in it. */
static void add_sources(struct hd_json_writer *w, const char *name, const struct hd_job *job,
                        int64_t stage)
{
    int64_t file = 0;

    if (!job->weight_count) {
        add_files(w, name, job->train, job->train_count);
        return;
    }
    hd_json_begin(w, name, '[');
    for (int64_t k = 0; k < job->weight_count; k++) {
        const int64_t first = file;

        while (file < job->train_count && job->train[file].source <= k)
            file++;
        if (!(hd_job_weight(job, stage, k) > 0))
            continue;
        hd_json_begin(w, NULL, '{');
        add_files(w, "path", job->train + first, file - first);
        hd_json_add_real(w, "weight", hd_job_weight(job, stage, k));
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void add_rate(struct hd_json_writer *w, const struct hd_data_stage *stage)
{
    hd_json_begin(w, "lr", '{');
    hd_json_add_real(w, "peak", stage->lr_peak);
    hd_json_add_int64(w, "warmup", stage->lr_warmup_steps);
    hd_json_add_string(w, "decay", hd_job_lr_decay_words[stage->lr_decay]);
    if (stage->lr_decay_steps)
        hd_json_add_int64(w, "decay_steps", stage->lr_decay_steps);
    if (stage->lr_decay_shape && stage->lr_decay_shape != HD_JOB_LR_DECAY_SHAPE_LINEAR)
        hd_json_add_string(w, "decay_shape", hd_job_lr_decay_shape_words[stage->lr_decay_shape]);
    hd_json_add_real(w, "min", stage->lr_min);
    hd_json_end(w, '}');
}

static void add_data_stages(struct hd_json_writer *w, const char *name, const struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count;

    if (hd_data_stages_read(job, stages, &count) || !count)
        return; /* the key is absent: nothing to write */
    hd_json_begin(w, name, '[');
    for (int64_t k = 0; k < count; k++) {
        hd_json_begin(w, NULL, '{');
        if (stages[k].until)
            hd_json_add_int64(w, "until", stages[k].until);
        add_sources(w, "train", job, k);
        if (stages[k].has_lr)
            add_rate(w, &stages[k]);
        if (stages[k].context) {
            hd_json_add_int64(w, "context", stages[k].context);
            hd_json_add_int64(w, "global_batch", stages[k].global_batch);
            hd_json_add_real(w, "rope_theta", stages[k].rope_theta);
        }
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void add_devices(struct hd_json_writer *w, const char *name, const struct hd_job *job)
{
    if (job->devices_min == job->devices_max) {
        hd_json_add_int64(w, name, job->devices_min);
        return;
    }
    hd_json_begin(w, name, '{');
    hd_json_add_int64(w, "min", job->devices_min);
    hd_json_add_int64(w, "max", job->devices_max);
    hd_json_end(w, '}');
}

static void add_steps(struct hd_json_writer *w, const char *name, const struct hd_job *job)
{
    if (!job->profile_first && !job->profile_last)
        return; /* the key is absent: nothing to write */
    hd_json_begin(w, name, '[');
    hd_json_add_int64(w, NULL, job->profile_first);
    hd_json_add_int64(w, NULL, job->profile_last);
    hd_json_end(w, ']');
}

static void add_stages(struct hd_json_writer *w, const char *name, const struct hd_job *job)
{
    int64_t layers[HD_PLAN_CHUNKS_MAX], count;

    if (strcmp(job->stages, "auto") == 0 ||
        hd_stages_read(job->stages, layers, HD_PLAN_CHUNKS_MAX, &count))
        return; /* the key is absent: nothing to write */
    hd_json_begin(w, name, '[');
    for (int64_t i = 0; i < count && i < HD_PLAN_CHUNKS_MAX; i++)
        hd_json_add_int64(w, NULL, layers[i]);
    hd_json_end(w, ']');
}

/* Adds a schedule from a file as the list of its lines. The path is left out: the job contains the
 * schedule, and the file may have changed. */
static void add_order(struct hd_json_writer *w, const char *name, const char *order)
{
    hd_json_begin(w, name, '{');
    hd_json_begin(w, "order", '[');
    while (*order) {
        const size_t len = strcspn(order, "\n");
        struct hd_text line = {0};

        hd_text_add_bytes(&line, order, len);
        hd_json_add_string(w, NULL, line.data ? line.data : "");
        hd_text_free(&line);
        order += len + (order[len] == '\n');
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

/* Adds a key of kind HD_KEY_FORM to the JSON. Groups such as train.lr are written key by key, not
 * in their short form. */
static void add_form(struct hd_json_writer *w, const struct hd_key *key, const char *name,
                     const struct hd_job *job)
{
    if (strcmp(key->path, "data.stages") == 0)
        add_data_stages(w, name, job);
    else if (strcmp(key->path, "validate.choices") == 0)
        add_choices(w, name, HD_QUESTIONS_CHOICES, job);
    else if (strcmp(key->path, "validate.tasks.files") == 0)
        add_choices(w, name, HD_QUESTIONS_TASKS, job);
    else if (strcmp(key->path, "validate.tasks.check") == 0)
        add_rewards(w, name, job->tasks_check, "");
    else if (strcmp(key->path, "validate.samples.prompts") == 0)
        add_samples(w, name, job);
    else if (strcmp(key->path, "train.rewards") == 0)
        add_rewards(w, name, job->rewards, job->reward_dir);
    else if (strcmp(key->path, "data.train") == 0 && !hd_job_stage_count(job))
        add_sources(w, name, job, 0);
    else if (strcmp(key->path, "data.val") == 0)
        add_validation(w, name, job);
    else if (strcmp(key->path, "resources.devices") == 0)
        add_devices(w, name, job);
    else if (strcmp(key->path, "train.profile.steps") == 0)
        add_steps(w, name, job);
    else if (strcmp(key->path, "parallel.layers_per_stage") == 0)
        add_stages(w, name, job);
}

static void add_number(struct hd_json_writer *w, const struct hd_key *key, const char *name,
                       const void *member)
{
    const double value =
        key->kind == HD_KEY_INT ? (double)*(const int64_t *)member : *(const double *)member;
    char word[HD_JOB_WORD_MAX];

    if (!hd_job_word_of(key, value, word)) {
        if (key->kind == HD_KEY_INT)
            hd_json_add_int64(w, name, *(const int64_t *)member);
        else
            hd_json_add_real(w, name, value);
    } else if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0) {
        hd_json_add_bool(w, name, *word == 't');
    } else {
        hd_json_add_string(w, name, word);
    }
}

static void add_value(struct hd_json_writer *w, const struct hd_key *key, const char *name,
                      const struct hd_job *job)
{
    const void *member = hd_job_const_member(key, job);
    const char *text = "";

    switch (key->kind) {
    case HD_KEY_WORD:
    case HD_KEY_NAME:
    case HD_KEY_PATH:
        text = hd_job_text(key, job);
        if (job->schedule_order && strcmp(key->path, "parallel.schedule") == 0)
            add_order(w, name, job->schedule_order);
        /* the key is given: an empty text means that it is absent */
        else if (*text)
            hd_json_add_string(w, name, hd_job_word_in_file(key, text));
        break;
    case HD_KEY_INT:
    case HD_KEY_REAL:
        add_number(w, key, name, member);
        break;
    case HD_KEY_BOOL:
        if (strcmp(key->path, "checkpoint.best") == 0 && is_named_best(job)) {
            hd_json_add_string(w, name, job->checkpoint_best_set);
            break;
        }
        hd_json_add_bool(w, name, *(const bool *)member);
        break;
    case HD_KEY_FORM:
        add_form(w, key, name, job);
        break;
    }
}

/* Closes and opens JSON objects until `open` is the group that contains `path`; returns the key's
 * name within that group. */
static const char *enter_group(struct hd_json_writer *w, const char *path,
                               char open[SPEC_PATH_TEXT_MAX])
{
    const char *last = strrchr(path, '.');
    const size_t want = last ? (size_t)(last - path) : 0;
    size_t len;

    while (len = strlen(open),
           len > want || strncmp(open, path, len) != 0 || (len && path[len] != '.')) {
        char *dot = strrchr(open, '.');

        *(dot ? dot : open) = '\0';
        hd_json_end(w, '}');
    }
    while (len < want) {
        const char *from = path + len + (len > 0);
        char name[64];

        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(from, "."), from);
        hd_json_begin(w, name, '{');
        len = (size_t)(from - path) + strlen(name);
        (void)snprintf(open, SPEC_PATH_TEXT_MAX, "%.*s", (int)len, path);
    }
    return last ? last + 1 : path;
}

static void add_keys(const struct hd_job *job, const char *key, bool as_file,
                     struct hd_json_writer *writer)
{
    char open[SPEC_PATH_TEXT_MAX] = "";

    hd_json_begin(writer, key, '{');
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *k = &hd_job_keys[i];

        if (!k->hidden && !spec_is_group(k->path) && strcmp(k->path, "train.epochs") != 0 &&
            !(as_file && spec_follows_steps(job, k->path)))
            add_value(writer, k, enter_group(writer, k->path, open), job);
    }
    (void)enter_group(writer, "", open);
    hd_json_end(writer, '}');
}

void hd_spec_add_json(const struct hd_job *job, const char *key, struct hd_json_writer *writer)
{
    add_keys(job, key, false, writer);
}

void hd_spec_add_file_json(const struct hd_job *job, const char *key, struct hd_json_writer *writer)
{
    add_keys(job, key, true, writer);
}

void hd_spec_add_plan_json(const struct hd_layout_sizes *layout, struct hd_json_writer *writer)
{
    const struct hd_job job = HD_JOB(.layout = *layout);

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *k = &hd_job_keys[i];

        if (hd_job_key_is_of_layout(k))
            add_value(writer, k, strrchr(hd_job_stored_path(k), '.') + 1, &job);
    }
}
