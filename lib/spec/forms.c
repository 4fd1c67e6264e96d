/* forms: reads the values of kind HD_KEY_FORM: data.train and data.val (lists of files, a mixture,
 * named sets), resources.devices (a number or bounds), train.profile.steps (an interval),
 * parallel.layers_per_stage (a list of numbers); and the map that parallel.recompute may be. */
#include <stdio.h>
#include <string.h>

#include "plan/choose.h"
#include "spec_internal.h"

/* Returns the kind of device that the job file asks for; the key may come after
 * resources.devices. */
static enum hd_job_device device_of(const struct spec_reader *r)
{
    const struct yaml_node *group = hd_yaml_find(r->root, "resources");
    const struct yaml_node *node = group ? hd_yaml_find(group, "device_type") : NULL;

    return node && node->kind == YAML_KIND_SCALAR
               ? hd_job_find_word(hd_job_device_words, node->text)
               : HD_JOB_DEVICE_AUTO;
}

/* Reads one number of devices: from 1 to the limit of the engine for the job's kind of device. */
static enum hd_status read_count(struct spec_reader *r, const struct yaml_node *node,
                                 int64_t *ret_count)
{
    static const struct hd_key any = {.kind = HD_KEY_INT, .min = -0x1p63, .max = 0x1p63};
    const bool is_word = node->kind == YAML_KIND_SCALAR && node->text && *node->text &&
                         !node->text[strspn(node->text, "abcdefghijklmnopqrstuvwxyz")];
    enum hd_status st =
        is_word && strcmp(node->text, "null") != 0
            ? hd_err(
                  HD_INVALID,
                  "%s: %.20s is no number of devices; write one, or {min: 1, max: 8} for as many "
                  "as are free",
                  r->path, node->text)
            : spec_read_int(r, &any, node, ret_count);

    return st ? st
              : hd_plan_check_devices(r->path, device_of(r), r->draft.job->only_planned,
                                      *ret_count);
}

/* Reads the key resources.devices: `devices: 4` or `devices: {min: 4, max: 16}`. */
static enum hd_status read_devices(struct spec_reader *r, const struct yaml_node *node)
{
    static const char *const names[] = {"min", "max"};
    int64_t bounds[2] = {0, 0};
    enum hd_status st = HD_OK;

    if (node->kind != YAML_KIND_MAP) {
        st = read_count(r, node, &bounds[0]);
        bounds[1] = bounds[0];
    }
    for (const struct yaml_node *c = node->first; node->kind == YAML_KIND_MAP && c && !st;
         c = c->next) {
        size_t len = spec_path_push(r, c->key);
        int which = strcmp(c->key, "max") == 0;

        r->here = c;
        if (!which && strcmp(c->key, "min") != 0)
            st = spec_unknown_word(r->path, c->key, names, 2);
        else
            st = read_count(r, c, &bounds[which]);
        spec_path_pop(r, len);
    }
    if (!st && (!bounds[0] || !bounds[1]))
        st = hd_err(HD_INVALID, "%s: needs both min and max; or give one whole number", r->path);
    r->draft.job->devices_min = bounds[0];
    r->draft.job->devices_max = bounds[1];
    *spec_given(&r->draft, "resources.devices.min") = true;
    *spec_given(&r->draft, "resources.devices.max") = true;
    return st;
}

/* Reads the key `steps` of train.profile: `steps: [10, 12]` or `steps: 10`. */
static enum hd_status read_steps(struct spec_reader *r, const struct yaml_node *node)
{
    static const struct hd_key step = {.kind = HD_KEY_INT, .min = 1, .max = 0x1p40};
    size_t count = 0, len = strlen(r->path);
    int64_t interval[2] = {0, 0};
    enum hd_status st = HD_OK;

    if (node->kind != YAML_KIND_LIST) {
        st = spec_read_int(r, &step, node, &interval[0]);
        interval[1] = interval[0];
    } else {
        for (const struct yaml_node *c = node->first; c; c = c->next)
            count++;
        if (count != 2)
            return hd_err(HD_INVALID, "%s: expected the first and the last step, such as [10, 12]",
                          r->path);
        count = 0;
        for (const struct yaml_node *c = node->first; c && !st; c = c->next, count++) {
            (void)snprintf(r->path + len, sizeof r->path - len, "[%zu]", count);
            r->here = c;
            st = spec_read_int(r, &step, c, &interval[count]);
            spec_path_pop(r, len);
        }
    }
    r->draft.job->profile_first = interval[0];
    r->draft.job->profile_last = interval[1];
    *spec_given(&r->draft, "train.profile.first") = true;
    *spec_given(&r->draft, "train.profile.last") = true;
    return st;
}

/* Reads a list such as `layers_per_stage: [7, 8, 8, 7]` of parallel.layers_per_stage. */
static enum hd_status read_stages(struct spec_reader *r, const struct yaml_node *node)
{
    static const struct hd_key layers = {.kind = HD_KEY_INT, .max = 1024};
    const size_t len = strlen(r->path);
    int64_t numbers[HD_PLAN_CHUNKS_MAX];
    int64_t count = 0;
    enum hd_status st = HD_OK;

    *spec_given(&r->draft, "parallel.stages.layers") = true;
    if (node->kind == YAML_KIND_SCALAR && strcmp(node->text, "auto") == 0)
        return HD_OK;
    if (node->kind != YAML_KIND_LIST || !node->first)
        return hd_err(HD_INVALID,
                      "%s: expected the layers of each chunk, such as [7, 8, 8, 7], or auto",
                      r->path);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next) {
        if (count == HD_PLAN_CHUNKS_MAX)
            return hd_err(HD_INVALID, "%s: more than %d numbers", r->path, HD_PLAN_CHUNKS_MAX);
        (void)snprintf(r->path + len, sizeof r->path - len, "[%lld]", (long long)count);
        r->here = c;
        st = spec_read_int(r, &layers, c, &numbers[count++]);
        spec_path_pop(r, len);
    }
    if (!st)
        st = hd_stages_write(numbers, count, r->draft.job->stages);
    return st == HD_LIMIT ? hd_err_prefix(st, "%s", r->path) : st;
}

enum hd_status spec_read_recompute(struct spec_reader *r, const struct yaml_node *node)
{
    static const struct hd_key units = {
        .kind = HD_KEY_INT, .min = 1, .max = HD_RECOMPUTE_UNITS_MAX};
    const struct yaml_node *child = node->first;
    const size_t len = strlen(r->path);
    enum hd_status st;
    int64_t number;

    if (!child || child->next || strcmp(child->key, "full") != 0)
        return hd_err(HD_INVALID, "%s: expected none, selective, full or {full: LAYERS}", r->path);
    (void)spec_path_push(r, child->key);
    r->here = child;
    st = spec_read_int(r, &units, child, &number);
    spec_path_pop(r, len);
    if (!st)
        (void)snprintf(r->draft.job->recompute, sizeof r->draft.job->recompute, "full:%lld",
                       (long long)number);
    return st;
}

enum hd_status spec_read_bad_rows(struct spec_reader *r, const struct yaml_node *node)
{
    static const struct hd_key counts = {.kind = HD_KEY_INT, .max = 1e11};
    const struct yaml_node *child = node->first;
    const size_t len = strlen(r->path);
    int64_t number;
    enum hd_status st;

    if (!child || child->next || strcmp(child->key, "skip") != 0)
        return hd_err(HD_INVALID, "%s: expected error, skip or {skip: COUNT}", r->path);
    (void)spec_path_push(r, child->key);
    r->here = child;
    st = spec_read_int(r, &counts, child, &number);
    spec_path_pop(r, len);
    if (!st)
        st = hd_job_print_text(r->draft.job, &r->draft.job->bad_rows, "skip:%lld",
                               (long long)number);
    return st;
}

enum hd_status spec_read_names(struct spec_reader *r, const struct yaml_node *node,
                               const char **member)
{
    const size_t len = strlen(r->path);
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    for (const struct yaml_node *c = node->first; !st && c; c = c->next) {
        (void)spec_path_push(r, c->key);
        r->here = c;
        st = spec_need_scalar(r, c, "a name");
        if (!st && (strpbrk(c->text, ",=") || !*c->text || strpbrk(c->key, ",=")))
            st =
                hd_err(HD_INVALID,
                       "%s: a name is empty or has a comma or '='; rename it in the data", r->path);
        spec_path_pop(r, len);
        if (!st)
            hd_text_add(&text, "%s%s=%s", c == node->first ? "" : ",", c->key, c->text);
    }
    if (!st && (text.failed || !text.data))
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for the job file")
                         : hd_err(HD_INVALID, "%s: is empty; remove the line", r->path);
    if (!st)
        st = hd_job_take_text(r->draft.job, member, &text);
    hd_text_free(&text);
    return st == HD_LIMIT ? hd_err(HD_INVALID, "%s: the names are too long", r->path) : st;
}

/* Reads the map {last: K} of train.trainable. */
static enum hd_status read_last(struct spec_reader *r, const struct yaml_node *node,
                                struct hd_text *text)
{
    static const struct hd_key blocks = {.kind = HD_KEY_INT, .min = 1, .max = 1024};
    const struct yaml_node *child = node->first;
    const size_t len = strlen(r->path);
    int64_t K = 0;
    enum hd_status st;

    if (!child || child->next || strcmp(child->key, "last") != 0)
        return hd_err(HD_INVALID,
                      "%s: expected all, {last: BLOCKS}, or a list of these words and patterns of "
                      "parameter names: embedding, norms, head, 'blocks.3.*'",
                      r->path);
    (void)spec_path_push(r, child->key);
    r->here = child;
    st = spec_read_int(r, &blocks, child, &K);
    spec_path_pop(r, len);
    hd_text_add(text, "last:%lld", (long long)K);
    return st;
}

static enum hd_status read_only_item(struct spec_reader *r, const struct yaml_node *node,
                                     struct hd_text *text)
{
    enum hd_status st;

    if (node->kind == YAML_KIND_MAP)
        return read_last(r, node, text);
    st = spec_need_scalar(r, node, "a word or a pattern of parameter names");
    if (!st && (!*node->text || strchr(node->text, ',')))
        st = hd_err(HD_INVALID, "%s: is empty or has a comma; give one pattern per item", r->path);
    if (!st)
        hd_text_add(text, "%s", node->text);
    return st;
}

/* Reads a list of items, or {last: K}, and stores it as text with commas in `member`. */
static enum hd_status read_items(struct spec_reader *r, const struct yaml_node *node,
                                 const char **member)
{
    const bool is_list = node->kind == YAML_KIND_LIST;
    const size_t len = strlen(r->path);
    enum hd_status st = is_list && !node->first
                            ? hd_err(HD_INVALID, "%s: is empty; name what is meant", r->path)
                            : HD_OK;
    struct hd_text text = {0};
    size_t count = 0;

    if (!is_list)
        st = read_last(r, node, &text);
    for (const struct yaml_node *c = is_list ? node->first : NULL; c && !st; c = c->next, count++) {
        (void)snprintf(r->path + len, sizeof r->path - len, "[%zu]", count);
        r->here = c;
        if (count)
            hd_text_add(&text, ",");
        st = read_only_item(r, c, &text);
        spec_path_pop(r, len);
    }
    if (!st)
        st = hd_job_take_text(r->draft.job, member, &text);
    hd_text_free(&text);
    return st == HD_LIMIT ? hd_err(HD_INVALID, "%s: longer than %d bytes; use patterns", r->path,
                                   HD_JOB_PATH_MAX - 1)
                          : st;
}

/* Reads train.trainable and stores it as text such as "last:2,norms". */
enum hd_status spec_read_only(struct spec_reader *r, const struct yaml_node *node)
{
    return read_items(r, node, &r->draft.job->only);
}

enum hd_status spec_read_words(struct spec_reader *r, const struct yaml_node *node,
                               const char **member)
{
    return read_items(r, node, member);
}

/* Reads `after` and stores it as text such as "12,base". */
enum hd_status spec_read_after(struct spec_reader *r, const struct yaml_node *node)
{
    static const struct hd_key number = {.kind = HD_KEY_INT, .min = 1, .max = 1e15};
    const size_t len = strlen(r->path);
    enum hd_status st = HD_OK;
    char quoted[SPEC_QUOTE_MAX];
    struct hd_text text = {0};
    size_t count = 0;
    bool is_name;
    int64_t job;

    for (const struct yaml_node *c = node->first; c && !st; c = c->next, count++) {
        (void)snprintf(r->path + len, sizeof r->path - len, "[%zu]", count);
        r->here = c;
        is_name = c->kind == YAML_KIND_SCALAR && *c->text && !strchr("0123456789+-.", *c->text);
        if (is_name && !hd_queue_name_is_possible(c->text)) /* the rule for a job's name, too */
            st = hd_err(HD_INVALID, "%s: %s is no number and no name of a job", r->path,
                        spec_quote(c->text, quoted));
        else if (!is_name)
            st = spec_read_int(r, &number, c, &job);
        spec_path_pop(r, len);
        if (!st && count == HD_JOB_AFTER_MAX)
            st = hd_err(HD_INVALID, "%s: more than %d jobs; name only the last ones", r->path,
                        HD_JOB_AFTER_MAX);
        for (const struct yaml_node *b = node->first; !st && b != c; b = b->next)
            if (strcmp(b->text, c->text) == 0)
                st = hd_err(HD_INVALID, "%s: names job %s twice; remove one", r->path, c->text);
        if (!st && is_name)
            hd_text_add(&text, "%s%s", count ? "," : "", c->text);
        else if (!st)
            hd_text_add(&text, "%s%lld", count ? "," : "", (long long)job);
    }
    if (!st && text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the job file");
    if (!st && (!count || text.len_bytes >= HD_JOB_WORD_MAX))
        st = hd_err(HD_INVALID, "%s: expected numbers or names of jobs, such as [12, 13]%s",
                    r->path, count ? "; these are too long together" : "");
    if (!st)
        st = hd_job_take_text(r->draft.job, &r->draft.job->after, &text);
    hd_text_free(&text);
    return st;
}

static enum hd_status add_file(struct spec_reader *r, const struct yaml_node *node, int64_t source,
                               struct spec_sources *list)
{
    enum hd_status st = spec_need_scalar(r, node, "a path");

    if (!st && !*node->text)
        st = hd_err(HD_INVALID, "%s: is empty; give a text or remove the line", r->path);
    if (st)
        return st;
    list->items =
        hd_arena_grow(r->draft.arena, list->items, list->count, &list->room, sizeof *list->items);
    if (!list->items)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    list->items[list->count++] =
        (struct hd_job_file){.path = hd_arena_strdup(r->draft.arena, node->text), .source = source};
    return hd_arena_failed(r->draft.arena) ? hd_err(HD_NO_MEMORY, "no memory for the job file")
                                           : HD_OK;
}

/* Reads `train: [a.txt, b/x.txt]` or `train: a.txt`. */
static enum hd_status read_files(struct spec_reader *r, const struct yaml_node *node,
                                 int64_t source, struct spec_sources *list)
{
    const size_t len = strlen(r->path);
    enum hd_status st = HD_OK;
    size_t count = 0;

    if (node->kind != YAML_KIND_LIST)
        return add_file(r, node, source, list);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next, count++) {
        if (count == HD_SPEC_FILES_MAX)
            return hd_err(HD_INVALID,
                          "%s: more than %d entries; use a pattern such as corpus/*.txt", r->path,
                          HD_SPEC_FILES_MAX);
        (void)snprintf(r->path + len, sizeof r->path - len, "[%zu]", count);
        r->here = c;
        st = add_file(r, c, source, list);
        spec_path_pop(r, len);
    }
    return st;
}

/* Reads one source of a mixture, {path: a.txt, weight: 0.7}; its path may be a list. */
static enum hd_status read_source(struct spec_reader *r, const struct yaml_node *node,
                                  struct spec_sources *list)
{
    static const struct hd_key key = {
        .kind = HD_KEY_REAL, .min = SPEC_WEIGHT_MIN, .max = SPEC_WEIGHT_MAX};
    static const char *const names[] = {"path", "weight"};
    const struct yaml_node *path = hd_yaml_find(node, "path");
    const struct yaml_node *weight = hd_yaml_find(node, "weight");
    const int before = list->count;
    enum hd_status st = HD_OK;
    size_t len;

    for (const struct yaml_node *c = node->first; c; c = c->next) {
        r->here = c;
        len = spec_path_push(r, c->key);
        if (c == weight)
            st = spec_read_real(r, &key, c, &list->weights[list->source_count]);
        else if (c == path)
            st = read_files(r, c, list->source_count, list);
        else if (strcmp(c->key, "path") == 0 || strcmp(c->key, "weight") == 0)
            st = hd_err(HD_INVALID, "%s: is given twice; remove one", r->path);
        else
            st = spec_unknown_word(r->path, c->key, names, 2);
        spec_path_pop(r, len);
        if (st)
            return st;
    }
    r->here = node;
    if (path && list->count == before)
        return hd_err(HD_INVALID, "%s.path: is an empty list; name a file, or remove the entry",
                      r->path);
    if (!path || !weight)
        return hd_err(HD_INVALID, "%s: needs path and weight, such as {path: a/*.txt, weight: 0.7}",
                      r->path);
    list->source_count++;
    return HD_OK;
}

enum hd_status spec_read_sources(struct spec_reader *r, const struct yaml_node *node,
                                 struct spec_sources *list)
{
    const bool mixed =
        node->kind == YAML_KIND_LIST && node->first && node->first->kind == YAML_KIND_MAP;
    const size_t len = strlen(r->path);
    enum hd_status st = HD_OK;

    if (!mixed)
        return read_files(r, node, 0, list);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next) {
        (void)snprintf(r->path + len, sizeof r->path - len, "[%lld]",
                       (long long)list->source_count);
        r->here = c;
        if (c->kind != YAML_KIND_MAP)
            st = hd_err(HD_INVALID,
                        "%s: has no weight; write {path: .., weight: ..} like the first entry",
                        r->path);
        else if (list->source_count == HD_JOB_SOURCES_MAX)
            st = hd_err(HD_INVALID, "%s: more than %d sources; join some", r->path,
                        HD_JOB_SOURCES_MAX);
        else
            st = read_source(r, c, list);
        spec_path_pop(r, len);
    }
    return st;
}

/* Reads data.train. */
static enum hd_status read_train(struct spec_reader *r, const struct yaml_node *node,
                                 struct spec_sources *list)
{
    struct hd_job *job = r->draft.job;
    enum hd_status st = spec_read_sources(r, node, list);

    if (st || !list->source_count)
        return st;
    job->weights = hd_arena_array(r->draft.arena, (size_t)list->source_count, sizeof *job->weights);
    if (!job->weights)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    memcpy(job->weights, list->weights, (size_t)list->source_count * sizeof *job->weights);
    job->weight_count = list->source_count;
    return HD_OK;
}

/* Appends the name of a validation set to the job's list. HD_INVALID: it is no possible name, or is
 * given twice. */
static enum hd_status add_set(struct spec_reader *r, const struct yaml_node *map,
                              const struct yaml_node *node, int64_t index)
{
    struct hd_job *job = r->draft.job;

    if (!hd_job_val_name_is_possible(node->key))
        return hd_err(HD_INVALID, "%s: is no name of a validation set; use " SPEC_SET_NAME_RULE,
                      r->path);
    if (hd_yaml_find(map, node->key) != node)
        return hd_err(HD_INVALID, "%s: is given twice; remove one", r->path);
    if (index == HD_JOB_VAL_SETS_MAX)
        return hd_err(HD_INVALID, "%s: more than %d validation sets; join some", r->path,
                      HD_JOB_VAL_SETS_MAX);
    return hd_job_print_text(job, &job->val_sets, "%s%s%s", job->val_sets,
                             *job->val_sets ? "," : "", node->key);
}

/* Reads `val: a.txt`, `[a.txt, b/x.txt]` or `{web: [a.txt], code: b.txt}`. */
static enum hd_status read_validation(struct spec_reader *r, const struct yaml_node *node,
                                      struct spec_sources *list)
{
    enum hd_status st = HD_OK;
    int64_t index = 0;

    if (node->kind != YAML_KIND_MAP)
        return read_files(r, node, 0, list);
    *spec_given(&r->draft, "data.val.sets") = true;
    for (const struct yaml_node *c = node->first; c && !st; c = c->next, index++) {
        const int before = list->count;
        const size_t len = spec_path_push(r, c->key);

        r->here = c;
        st = add_set(r, node, c, index);
        if (!st)
            st = read_files(r, c, index, list);
        if (!st && list->count == before)
            st =
                hd_err(HD_INVALID, "%s: is an empty list; name a file, or remove the set", r->path);
        spec_path_pop(r, len);
    }
    if (!st && !index)
        st = hd_err(HD_INVALID, "%s: has no set; write {NAME: [files]}, or remove the line",
                    r->path);
    return st;
}

enum hd_status spec_read_form(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node)
{
    const bool train = strcmp(key->path, "data.train") == 0;
    struct spec_sources list = {.count = 0};
    enum hd_status st;

    if (*spec_given(&r->draft, "data.train") && *spec_given(&r->draft, "data.stages"))
        return hd_err(HD_INVALID,
                      "%s: data.train and data.stages cannot be used together: each stage has a "
                      "`train` of its own; remove one of the two",
                      r->path);
    if (strcmp(key->path, "data.stages") == 0)
        return spec_read_data_stages(r, node);
    if (strcmp(key->path, "resources.devices") == 0)
        return read_devices(r, node);
    if (strcmp(key->path, "train.profile.steps") == 0)
        return read_steps(r, node);
    if (strcmp(key->path, "parallel.layers_per_stage") == 0)
        return read_stages(r, node);
    if (strcmp(key->path, "validate.choices") == 0)
        return spec_read_choices(r, HD_QUESTIONS_CHOICES, node);
    if (strcmp(key->path, "validate.tasks.files") == 0)
        return spec_read_choices(r, HD_QUESTIONS_TASKS, node);
    if (strcmp(key->path, "validate.tasks.check") == 0)
        return spec_read_rewards(r, node, "validate.tasks.checks", &r->draft.job->tasks_check);
    if (strcmp(key->path, "validate.samples.prompts") == 0)
        return spec_read_samples(r, node);
    if (strcmp(key->path, "train.rewards") == 0)
        return spec_read_rewards(r, node, "train.rewards.list", &r->draft.job->rewards);
    st = train ? read_train(r, node, &list) : read_validation(r, node, &list);
    *(train ? &r->draft.job->train : &r->draft.job->val) = list.items;
    *(train ? &r->draft.job->train_count : &r->draft.job->val_count) = list.count;
    return st;
}
