#include "job/job.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/words.h"
#include "job/family.h"

static const char magic[] = "HEDDLE-JOB ";

static bool is_one_line(const char *text)
{
    return !strpbrk(text, "\n\r");
}

static enum hd_status write_key(const struct hd_key *key, const struct hd_job *job,
                                struct hd_text *ret_text)
{
    enum hd_status st;

    hd_text_add(ret_text, "%s ", hd_job_stored_path(key));
    st = hd_job_format(key, job, ret_text);
    hd_text_add(ret_text, "\n");
    return st;
}

/* Appends the line before the first file of a source or validation set. */
static void write_head(const struct hd_job *job, bool is_train, int64_t source,
                       struct hd_text *ret_text)
{
    char name[HD_JOB_VAL_NAME_MAX];

    if (is_train && job->weight_count) {
        hd_text_add(ret_text, "data.source");
        for (int64_t s = 0; s < hd_job_weights_each(job); s++)
            hd_text_add(ret_text, " %.17g", hd_job_weight(job, s, source));
        hd_text_add(ret_text, "\n");
    }
    if (is_train || !*job->val_sets)
        return;
    hd_job_val_set_name(job, source, name);
    hd_text_add(ret_text, "data.val.set %s\n", name);
}

/* Appends data.train or data.val to the text form. */
static enum hd_status write_files(const struct hd_job *job, bool is_train, struct hd_text *ret_text)
{
    const char *key = is_train ? "data.train" : "data.val";
    const struct hd_job_file *files = is_train ? job->train : job->val;
    const int64_t count = is_train ? job->train_count : job->val_count;

    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || files[i].source != files[i - 1].source)
            write_head(job, is_train, files[i].source, ret_text);
        if (!is_one_line(files[i].path))
            return hd_err(HD_INVALID, "%s: a path may not contain a line break", key);
        if (files[i].fingerprint &&
            (!*files[i].fingerprint || strpbrk(files[i].fingerprint, "/ \n\r")))
            return hd_err(HD_INVALID, "%s: a fingerprint is one word without /", key);
        hd_text_add(ret_text, "%s %lld %s%s%s\n", key, (long long)files[i].size_bytes,
                    files[i].fingerprint ? files[i].fingerprint : "",
                    files[i].fingerprint ? " " : "", files[i].path);
    }
    return HD_OK;
}

static const char order_key[] = "parallel.schedule.order";

/* Appends a schedule from a file to the text form, one line per pipeline stage. */
static enum hd_status write_order(const char *order, struct hd_text *ret_text)
{
    while (*order) {
        const size_t len = strcspn(order, "\r\n");

        if (!len || order[len] != '\n')
            return hd_err(HD_INVALID, "parallel.schedule: the order has an empty line, or one "
                                      "without an end");
        hd_text_add(ret_text, "%s %.*s\n", order_key, (int)len, order);
        order += len + 1;
    }
    return HD_OK;
}

enum hd_status hd_job_write(const struct hd_job *job, struct hd_text *ret_text)
{
    enum hd_status st = HD_OK;

    hd_text_add(ret_text, "%s%d\n", magic, HD_JOB_VERSION);
    for (size_t i = 0; !st && i < hd_job_key_count; i++)
        if (hd_job_keys[i].kind != HD_KEY_FORM)
            st = write_key(&hd_job_keys[i], job, ret_text);
    if (!st)
        st = write_files(job, true, ret_text);
    if (!st)
        st = write_files(job, false, ret_text);
    if (!st && job->schedule_order)
        st = write_order(job->schedule_order, ret_text);
    hd_text_add(ret_text, "end\n");
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory to write the resolved job");
    return st;
}

/* A list of data files that grows by doubling. The arena frees nothing before its end, so outgrown
 * copies stay in it. */
struct job_file_list {
    struct hd_job_file *items;
    int64_t count, room;
};

static enum hd_status add_file(struct job_file_list *list, struct hd_arena *arena, int64_t source,
                               char *value)
{
    char *blank = strchr(value, ' '), *path = blank ? blank + 1 : NULL, *fingerprint = NULL;
    enum hd_status st;
    int64_t size;

    if (path && *path != '/') {
        fingerprint = path;
        path = strchr(path, ' ');
        if (path)
            *path++ = '\0';
    }
    if (!path || *path != '/')
        return hd_err(HD_INVALID, "expected a size and an absolute path");
    *blank = '\0';
    st = hd_text_to_int64(value, 0, INT64_MAX, &size);
    if (st)
        return st;
    if (list->count == list->room) {
        int64_t room = list->room ? 2 * list->room : 16;
        struct hd_job_file *items = hd_arena_array(arena, (size_t)room, sizeof *items);

        if (!items)
            return hd_err(HD_NO_MEMORY, "no memory for %lld files", (long long)room);
        if (list->count)
            memcpy(items, list->items, (size_t)list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = (struct hd_job_file){
        .path = hd_arena_strdup(arena, path),
        .size_bytes = size,
        .source = source,
        .fingerprint = fingerprint ? hd_arena_strdup(arena, fingerprint) : NULL};
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

struct job_reader {
    struct hd_arena *arena;
    struct hd_job *job;
    struct job_file_list train, val;
    /* [HD_JOB_SOURCES_MAX, weights of a source]; NULL before the first source */
    double *weights;
    int64_t weight_count;
    int64_t val_set; /* index of the validation set of the files that follow; -1: no set so far */
    /* text of the schedule from a file, and its end; NULL before its first line is read */
    char *order, *order_end;
    size_t size_bytes; /* bytes of the job's text form */
    int version;       /* version of the text form, from its first line */
    bool *seen;        /* [hd_job_key_count] whether a line of the key was read */
};

/* Adds a source of the mixture, to which the files that follow belong. HD_INVALID: the previous
 * source has no files, or a file came before the first source. */
static enum hd_status add_source(struct job_reader *r, char *value)
{
    const int64_t each = hd_job_weights_each(r->job);
    const int64_t last_source = r->train.count ? r->train.items[r->train.count - 1].source : -1;
    enum hd_status st = HD_OK;

    if (last_source != r->weight_count - 1)
        return hd_err(HD_INVALID, "a source without files, or files before the first source");
    if (!r->weights)
        r->weights =
            hd_arena_array(r->arena, (size_t)(HD_JOB_SOURCES_MAX * each), sizeof *r->weights);
    if (!r->weights)
        return hd_err(HD_NO_MEMORY, "no memory for the weights of a mixture");
    if (r->weight_count == HD_JOB_SOURCES_MAX)
        return hd_err(HD_LIMIT, "more than %d sources", HD_JOB_SOURCES_MAX);
    for (int64_t s = 0; !st && s < each; s++) {
        char *word = strsep(&value, " ");

        st = word ? hd_text_to_double(word, each > 1 ? 0 : 1e-9, 1e9,
                                      &r->weights[r->weight_count * each + s])
                  : hd_err(HD_INVALID, "a source has a weight for each of %lld stages",
                           (long long)each);
    }
    if (!st && value)
        st = hd_err(HD_INVALID, "a source has more weights than there are stages");
    r->weight_count++;
    return st;
}

/* Begins the next validation set. HD_INVALID: it is not the next that data.val.sets names, or the
 * one before has no files. */
static enum hd_status add_val_set(struct job_reader *r, const char *value)
{
    const int64_t last = r->val.count ? r->val.items[r->val.count - 1].source : -1;
    char name[HD_JOB_VAL_NAME_MAX];

    hd_job_val_set_name(r->job, ++r->val_set, name);
    if (!*name || strcmp(name, value) != 0 || last != r->val_set - 1)
        return hd_err(HD_INVALID, "'%s' is not the validation set that comes next", value);
    return HD_OK;
}

/* Returns the key of a line by the path that the text's version used; NULL: unknown. */
static const struct hd_key *find_key(const struct job_reader *r, const char *path)
{
    const struct hd_key *key = r->version == 1 ? NULL : hd_job_find_stored_key(path);

    for (size_t i = 0; r->version == 1 && !key && i < hd_job_key_count; i++) {
        const char *v1_path = hd_job_keys[i].v1_path;

        if (strcmp(v1_path ? v1_path : hd_job_stored_path(&hd_job_keys[i]), path) == 0)
            key = &hd_job_keys[i];
    }
    return key && key->kind != HD_KEY_FORM ? key : NULL;
}

static enum hd_status read_key(struct job_reader *r, const char *path, const char *value)
{
    const struct hd_key *key = find_key(r, path);
    enum hd_status st;

    if (!key)
        return hd_err(HD_INVALID, "unknown key '%s'", path);
    if (r->seen[key - hd_job_keys])
        return hd_err(HD_INVALID, "%s occurs twice", path);
    r->seen[key - hd_job_keys] = true;
    st = hd_job_parse(key, value, r->job);
    return st ? hd_err_prefix(st, "%s", path) : HD_OK;
}

static enum hd_status add_order_line(struct job_reader *r, const char *value)
{
    if (!r->order)
        r->order = r->order_end = hd_arena_alloc(r->arena, r->size_bytes + 1);
    if (!r->order)
        return hd_err(HD_NO_MEMORY, "no memory for an order of pipeline stages");
    /* the buffer is as large as the text, and the value is shorter than its line */
    r->order_end = stpcpy(r->order_end, value);
    r->order_end = stpcpy(r->order_end, "\n");
    return HD_OK;
}

static enum hd_status read_line(struct job_reader *r, char *line)
{
    char *value = strchr(line, ' ');

    if (!value)
        return hd_err(HD_INVALID, "'%s' has no value", line);
    *value++ = '\0';
    if (strcmp(line, "data.train") == 0)
        return add_file(&r->train, r->arena, r->weight_count ? r->weight_count - 1 : 0, value);
    if (strcmp(line, order_key) == 0)
        return add_order_line(r, value);
    if (strcmp(line, "data.source") == 0)
        return add_source(r, value);
    if (strcmp(line, "data.val") == 0)
        return add_file(&r->val, r->arena, r->val_set < 0 ? 0 : r->val_set, value);
    if (strcmp(line, "data.val.set") == 0)
        return add_val_set(r, value);
    return read_key(r, line, value);
}

/* Sets keys that the text lacks to their old defaults. HD_INVALID if a version older than the
 * text's already had the key. Keys of the text's own version may be missing: a version grows until
 * it is released, and some builds wrote it before a key was added. */
static enum hd_status fill_missing(struct job_reader *r)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (r->seen[i] || key->kind == HD_KEY_FORM)
            continue;
        if (key->since < r->version)
            return hd_err(HD_INVALID, "the resolved job lacks %s", hd_job_stored_path(key));
        hd_job_set_old_default(key, r->job);
    }
    return HD_OK;
}

/* Reads the first line, "HEDDLE-JOB 2". */
static enum hd_status read_version(struct job_reader *r, const char *line)
{
    int64_t version;

    if (strncmp(line, magic, sizeof magic - 1) != 0 ||
        hd_text_to_int64(line + sizeof magic - 1, 1, INT32_MAX, &version))
        return hd_err(HD_INVALID, "not a resolved job: expected '%s' and a version", magic);
    if (version > HD_JOB_VERSION)
        return hd_err(HD_UNSUPPORTED,
                      "a resolved job of version %lld, written by a newer build; this one reads "
                      "versions up to %d: use the newer build",
                      (long long)version, HD_JOB_VERSION);
    r->version = (int)version;
    return HD_OK;
}

enum hd_status hd_job_read(const char *text, size_t size_bytes, struct hd_arena *arena,
                           struct hd_job *ret_job)
{
    struct job_reader r = {.arena = arena,
                           .job = ret_job,
                           .size_bytes = size_bytes,
                           .val_set = -1,
                           .seen = hd_arena_array(arena, hd_job_key_count, sizeof *r.seen)};
    char *copy = hd_arena_alloc(arena, size_bytes + 1), *line, *next;
    bool ended = false;

    hd_job_init(ret_job, arena);
    if (!copy || !r.seen)
        return hd_err(HD_NO_MEMORY, "no memory for a resolved job of %zu bytes", size_bytes);
    memcpy(copy, text, size_bytes);
    if (!hd_text_is_utf8(copy, size_bytes))
        return hd_err(HD_INVALID, "the resolved job is not UTF-8 text");
    line = copy;
    for (int number = 1; *line; number++, line = next) {
        enum hd_status st = HD_OK;

        next = strchr(line, '\n');
        if (!next || ended)
            return hd_err(HD_INVALID, "line %d: the resolved job must end with 'end'", number);
        *next++ = '\0';
        if (number == 1)
            st = read_version(&r, line);
        else if (number > 1 && strcmp(line, "end") == 0)
            ended = true;
        else if (number > 1)
            st = read_line(&r, line);
        if (st)
            return hd_err_prefix(st, "line %d", number);
    }
    if (!ended)
        return hd_err(HD_INVALID, "the resolved job is cut short");
    if (fill_missing(&r))
        return HD_INVALID;
    ret_job->train = r.train.items;
    ret_job->train_count = r.train.count;
    ret_job->val = r.val.items;
    ret_job->val_count = r.val.count;
    ret_job->weights = r.weights;
    ret_job->weight_count = r.weight_count;
    ret_job->schedule_order = r.order;
    if (*ret_job->val_sets && ret_job->val_count &&
        ret_job->val[ret_job->val_count - 1].source + 1 != hd_job_val_set_count(ret_job))
        return hd_err(HD_INVALID, "a validation set of the resolved job has no files");
    if (r.weight_count &&
        (!r.train.count || r.train.items[r.train.count - 1].source != r.weight_count - 1))
        return hd_err(HD_INVALID, "the resolved job's last data.source has no files");
    return HD_OK;
}

enum hd_status hd_job_read_file(const char *path, struct hd_arena *arena, struct hd_job *ret_job)
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, HD_JOB_FILE_BYTES_MAX, &text);

    hd_job_init(ret_job, arena);
    if (!st)
        st = hd_job_read(text.data, text.len_bytes, arena, ret_job);
    if (st)
        st = hd_err_prefix(st, "%s", path);
    hd_text_free(&text);
    return st;
}

/* ---- the layout alone ---- */

enum hd_status hd_layout_write(const struct hd_layout_sizes *sizes, struct hd_text *ret_text)
{
    struct hd_job job; /* only the layout is written and read */
    enum hd_status st = HD_OK;

    job.layout = *sizes;
    for (size_t i = 0; !st && i < hd_job_key_count; i++)
        if (hd_job_key_is_of_layout(&hd_job_keys[i]))
            st = write_key(&hd_job_keys[i], &job, ret_text);
    return st;
}

enum hd_status hd_layout_read(const char *text, struct hd_layout_sizes *ret_sizes)
{
    struct hd_job job = {0};
    char line[2 * HD_JOB_WORD_MAX + 64];

    for (size_t i = 0; i < hd_job_key_count; i++)
        if (hd_job_key_is_of_layout(&hd_job_keys[i]))
            hd_job_set_old_default(&hd_job_keys[i], &job);
    while (*text) {
        const size_t len = strcspn(text, "\n");
        const struct hd_key *key;
        enum hd_status st;
        char *value;

        (void)snprintf(line, sizeof line, "%.*s", (int)len, text);
        value = strchr(line, ' ');
        if (value)
            *value++ = '\0';
        key = hd_job_find_stored_key(line);
        if (!value || !key || !hd_job_key_is_of_layout(key))
            return hd_err(HD_INVALID, "a layout has no key '%s'", line);
        st = hd_job_parse(key, value, &job);
        if (st)
            return hd_err_prefix(st, "%s", line);
        text += len + (text[len] == '\n');
    }
    *ret_sizes = job.layout;
    return HD_OK;
}

bool hd_job_is_reward(const struct hd_job *job)
{
    return job->objective == HD_JOB_OBJECTIVE_REWARD;
}

bool hd_job_is_unpaired(const struct hd_job *job)
{
    return job->objective == HD_JOB_OBJECTIVE_KTO;
}

bool hd_job_has_kl(const struct hd_job *job)
{
    return hd_job_is_unpaired(job) &&
           job->preference_loss != HD_JOB_PREFERENCE_LOSS_APO_ZERO_UNPAIRED;
}

bool hd_job_has_delta(const struct hd_job *job)
{
    /* a job that is made by hand may have no rule, which hd_layers_count reads like `all` */
    return job->delta_value_heads > 0 && *job->delta_layers &&
           hd_layers_count(job->delta_layers, job->layers) > 0;
}

bool hd_job_has_conv(const struct hd_job *job)
{
    return job->conv_width > 0 && *job->conv_layers &&
           hd_layers_count(job->conv_layers, job->layers) > 0;
}

bool hd_job_keeps_state(const struct hd_job *job)
{
    return hd_job_has_delta(job) || hd_job_has_conv(job);
}

bool hd_job_has_pairs(const struct hd_job *job)
{
    return job->objective && job->objective != HD_JOB_OBJECTIVE_NEXT_TOKEN &&
           !hd_job_has_policy(job);
}

bool hd_job_has_policy(const struct hd_job *job)
{
    return hd_job_has_policy_loss(job) || job->objective == HD_JOB_OBJECTIVE_GKD;
}

bool hd_job_has_policy_loss(const struct hd_job *job)
{
    return job->objective == HD_JOB_OBJECTIVE_GRPO;
}

bool hd_job_has_reference(const struct hd_job *job)
{
    return hd_job_has_policy(job) && job->policy_kl > HD_JOB_POLICY_KL_NONE; /* 0: not set */
}

int64_t hd_job_rollout_prompt_max(const struct hd_job *job)
{
    const int64_t answers = job->rollout_prompts * job->rollout_group;
    const int64_t windows = job->global_batch > 0 ? job->global_batch : 1;
    const int64_t each = (answers + windows - 1) / windows; /* answers that a window must take */

    return (each > 0 ? job->context / each : job->context) - job->rollout_max_tokens;
}

bool hd_job_key_is_of_adapter(const struct hd_key *key, enum hd_job_adapter type)
{
    return strncmp(key->path, "train.adapter.", 14) == 0 &&
           (!key->adapters || hd_words_have(key->adapters, hd_job_adapter_words[type]));
}

bool hd_job_key_is_fixed(const struct hd_key *key)
{
    static const char *const fixed[] = {"train.global_batch", "train.batch_schedule",
                                        "train.seed",         "train.init_identity",
                                        "train.objective",    "train.optimizer.name"};

    if (strcmp(key->path, "model.from") == 0 || strcmp(key->path, "model.router.bias_rate") == 0 ||
        strcmp(key->path, "model.mtp.loss_weight") == 0 ||
        strcmp(key->path, "data.stages.list") == 0)
        return false;
    if (hd_text_starts(key->path, "model.") || hd_text_starts(key->path, "data.") ||
        key->adapter_form)
        return true;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (strcmp(key->path, fixed[i]) == 0)
            return true;
    return false;
}

double hd_job_adapter_scale(const struct hd_job *job)
{
    const double rank = (double)job->adapter_rank;

    return rank > 0 ? job->adapter_alpha / (job->adapter_rslora ? sqrt(rank) : rank) : 0;
}

bool hd_job_has_ema(const struct hd_job *job)
{
    return job->ema_decay > 0 || job->ema_half_life > 0;
}

double hd_job_ema_rate(const struct hd_job *job)
{
    if (job->ema_decay > 0)
        return 1 - job->ema_decay;
    /* steps is 0 while a job file is read */
    return job->ema_half_life > 0
               ? -expm1(-M_LN2 / (job->ema_half_life * (job->steps > 0 ? (double)job->steps : 1)))
               : 0;
}

int64_t hd_job_prefix(const struct hd_job *job)
{
    return job->adapter == HD_JOB_ADAPTER_PREFIX ? job->adapter_tokens : 0;
}

int64_t hd_job_first_position(const struct hd_job *job)
{
    const struct hd_family *family = hd_family_named(job->family);

    return (family ? family->first_position : 0) + hd_job_prefix(job);
}

void hd_job_chat_folder(const struct hd_job *job, char ret_dir[HD_JOB_PATH_MAX])
{
    const char *slash = strrchr(job->tokenizer, '/');

    if (slash)
        (void)snprintf(ret_dir, HD_JOB_PATH_MAX, "%.*s", (int)(slash - job->tokenizer) + 1,
                       job->tokenizer);
    else
        (void)snprintf(ret_dir, HD_JOB_PATH_MAX, "%s", job->from_dir);
}

bool hd_job_vocab_is_given(const struct hd_job *job)
{
    return *job->from_dir || *job->init_from || *job->adapter_from;
}
