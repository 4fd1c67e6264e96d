/* data_stages: reads and checks data.stages: [{until: 1000, train: .., lr: ..}, {train: ..}].
 *
 * Sources that list the same files, as they are written, in several stages are one source of the
 * job, with a weight for each stage (0: the stage lacks it), so that a stage goes on in it where an
 * earlier one left it. */
#include <stdio.h>
#include <string.h>

#include "job/data_stages.h"
#include "spec_internal.h"

/* Stages while they are read. */
struct stage_list {
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count;
    struct spec_sources all; /* files of all stages, each source once; its weights are unused */
    double weights[HD_JOB_SOURCES_MAX][HD_JOB_STAGES_MAX];
};

static enum hd_status no_memory_for_stages(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for the stages of the job file");
}

/* ---- one source of all stages ---- */

/* Returns the number of files from index `first` on that belong to the same source. */
static int run_of(const struct spec_sources *list, int first)
{
    int end = first;

    while (end < list->count && list->items[end].source == list->items[first].source)
        end++;
    return end - first;
}

/* Returns the source of `all` that lists the same files; -1: none. */
static int64_t find_same(const struct spec_sources *all, const struct spec_sources *stage,
                         int first)
{
    const int count = run_of(stage, first);

    for (int at = 0, n; at < all->count; at += n) {
        int same = 0;

        n = run_of(all, at);
        while (n == count && same < n &&
               strcmp(all->items[at + same].path, stage->items[first + same].path) == 0)
            same++;
        if (n == count && same == n)
            return all->items[at].source;
    }
    return -1;
}

/* Appends the files of one source of a stage as a new source. */
static enum hd_status add_source(struct spec_reader *r, struct spec_sources *all,
                                 const struct spec_sources *stage, int first)
{
    const int count = run_of(stage, first);

    if (all->source_count == HD_JOB_SOURCES_MAX)
        return hd_err(HD_INVALID, "%s: more than %d different sources in all stages; join some",
                      r->path, HD_JOB_SOURCES_MAX);
    for (int i = 0; i < count; i++) {
        all->items =
            hd_arena_grow(r->draft.arena, all->items, all->count, &all->room, sizeof *all->items);
        if (!all->items)
            return no_memory_for_stages();
        all->items[all->count] = stage->items[first + i];
        all->items[all->count++].source = all->source_count;
    }
    all->source_count++;
    return HD_OK;
}

/* Adds the sources of a stage, and their weights in it. */
static enum hd_status join_sources(struct spec_reader *r, struct stage_list *list,
                                   const struct spec_sources *stage)
{
    enum hd_status st = HD_OK;

    for (int first = 0; !st && first < stage->count; first += run_of(stage, first)) {
        int64_t source = find_same(&list->all, stage, first);
        const double weight = stage->source_count ? stage->weights[stage->items[first].source] : 1;

        if (source < 0) {
            source = list->all.source_count;
            st = add_source(r, &list->all, stage, first);
        }
        if (!st && list->weights[source][list->count] > 0)
            st = hd_err(HD_INVALID,
                        "%s: names the files of a source twice (%s); join them, with the "
                        "sum of their weights",
                        r->path, stage->items[first].path);
        if (!st)
            list->weights[source][list->count] = weight;
    }
    return st;
}

/* ---- the learning rate ---- */

static enum hd_status read_decay(struct spec_reader *r, const struct yaml_node *node,
                                 struct hd_data_stage *stage)
{
    static const char *const words[] = {"cosine", "linear", "wsd", "constant"};
    enum hd_status st = spec_need_scalar(r, node, "a word");
    double unused;

    if (st)
        return st;
    if (!hd_job_word_value(hd_job_find_key("train.lr.decay"), node->text, &unused))
        return spec_unknown_word(r->path, node->text, words, sizeof words / sizeof words[0]);
    (void)snprintf(stage->lr_decay, sizeof stage->lr_decay, "%s", node->text);
    return HD_OK;
}

static enum hd_status read_rate_key(struct spec_reader *r, const struct yaml_node *node,
                                    struct hd_data_stage *stage)
{
    static const char *const names[] = {"peak", "warmup", "decay", "decay_steps", "min"};
    const struct hd_key *peak = hd_job_find_key("train.lr.peak"),
                        *steps = hd_job_find_key("train.lr.warmup"),
                        *min = hd_job_find_key("train.lr.min");

    if (strcmp(node->key, "peak") == 0)
        return spec_read_real(r, peak, node, &stage->lr_peak);
    if (strcmp(node->key, "warmup") == 0)
        return spec_read_int(r, steps, node, &stage->lr_warmup_steps);
    if (strcmp(node->key, "decay") == 0)
        return read_decay(r, node, stage);
    if (strcmp(node->key, "decay_steps") == 0)
        return spec_read_int(r, steps, node, &stage->lr_decay_steps);
    if (strcmp(node->key, "min") == 0)
        return spec_read_real(r, min, node, &stage->lr_min);
    return spec_unknown_word(r->path, node->key, names, sizeof names / sizeof names[0]);
}

static enum hd_status refuse_twice(const struct spec_reader *r)
{
    return hd_err(HD_INVALID, "%s: is given twice; remove one", r->path);
}

/* Reads `lr: 3e-4` or `lr: {peak: 3e-4, decay: linear, min: 0}`. */
static enum hd_status read_rate(struct spec_reader *r, const struct yaml_node *node,
                                struct hd_data_stage *stage)
{
    enum hd_status st = HD_OK;

    stage->has_lr = true;
    (void)strcpy(stage->lr_decay, "cosine");
    if (node->kind == YAML_KIND_SCALAR)
        st = spec_read_real(r, hd_job_find_key("train.lr.peak"), node, &stage->lr_peak);
    else if (node->kind != YAML_KIND_MAP)
        st =
            hd_err(HD_INVALID, "%s: expected a number, the peak, or the keys of train.lr", r->path);
    for (const struct yaml_node *c = node->kind == YAML_KIND_MAP ? node->first : NULL; c && !st;
         c = c->next) {
        const size_t len = spec_path_push(r, c->key);

        r->here = c;
        st = hd_yaml_find(node, c->key) == c ? read_rate_key(r, c, stage) : refuse_twice(r);
        spec_path_pop(r, len);
    }
    if (!st && !(stage->lr_peak > 0))
        st = hd_err(HD_INVALID, "%s: needs peak, such as {peak: 3e-4, decay: linear, min: 0}",
                    r->path);
    if (node->kind != YAML_KIND_MAP || !hd_yaml_find(node, "min"))
        stage->lr_min = stage->lr_peak / 10;
    return st;
}

/* ---- a stage ---- */

static enum hd_status read_stage_key(struct spec_reader *r, const struct yaml_node *node,
                                     struct hd_data_stage *stage, struct spec_sources *sources)
{
    static const char *const names[] = {"until", "train", "lr"};
    static const struct hd_key step = {.kind = HD_KEY_INT, .min = 1, .max = 0x1p40};

    if (strcmp(node->key, "until") == 0)
        return spec_read_int(r, &step, node, &stage->until);
    if (strcmp(node->key, "train") == 0)
        return spec_read_sources(r, node, sources);
    if (strcmp(node->key, "lr") == 0)
        return read_rate(r, node, stage);
    return spec_unknown_word(r->path, node->key, names, sizeof names / sizeof names[0]);
}

static enum hd_status read_stage(struct spec_reader *r, const struct yaml_node *node,
                                 struct stage_list *list)
{
    struct hd_data_stage *stage = &list->stages[list->count];
    struct spec_sources sources = {.count = 0};
    enum hd_status st = HD_OK;

    if (node->kind != YAML_KIND_MAP)
        return hd_err(HD_INVALID, "%s: expected a stage, such as {until: 1000, train: [a/*.txt]}",
                      r->path);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next) {
        const size_t len = spec_path_push(r, c->key);

        r->here = c;
        st = hd_yaml_find(node, c->key) == c ? read_stage_key(r, c, stage, &sources)
                                             : refuse_twice(r);
        spec_path_pop(r, len);
    }
    if (st)
        return st;
    r->here = node;
    if (!sources.count)
        return hd_err(HD_INVALID, "%s: has no files; give train: [..], as in data.train", r->path);
    if (node->next && !stage->until)
        return hd_err(HD_INVALID,
                      "%s: needs until, the last step of the stage; only the last stage "
                      "has none",
                      r->path);
    return join_sources(r, list, &sources);
}

/* Puts the sources and weights into the job. */
static enum hd_status take_stages(struct spec_reader *r, const struct stage_list *list)
{
    struct hd_job *job = r->draft.job;
    const int64_t sources = list->all.source_count, stages = list->count;

    job->weights = hd_arena_array(r->draft.arena, (size_t)(sources * stages), sizeof *job->weights);
    if (!job->weights)
        return no_memory_for_stages();
    for (int64_t k = 0; k < sources; k++)
        memcpy(job->weights + k * stages, list->weights[k], (size_t)stages * sizeof *job->weights);
    job->weight_count = sources;
    job->train = list->all.items;
    job->train_count = list->all.count;
    *spec_given(&r->draft, "data.stages.list") = true;
    return hd_data_stages_write(list->stages, stages, job);
}

enum hd_status spec_read_data_stages(struct spec_reader *r, const struct yaml_node *node)
{
    struct stage_list *list = hd_arena_array(&r->arena, 1, sizeof *list);
    const size_t len = strlen(r->path);
    enum hd_status st = HD_OK;

    if (!list)
        return no_memory_for_stages();
    if (node->kind != YAML_KIND_LIST || !node->first)
        return hd_err(HD_INVALID,
                      "%s: expected a list of stages, such as [{until: 1000, train: [a/*.txt]}, "
                      "{train: [b/*.txt]}]",
                      r->path);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next, list->count++) {
        if (list->count == HD_JOB_STAGES_MAX)
            return hd_err(HD_INVALID, "%s: more than %d stages; join some", r->path,
                          HD_JOB_STAGES_MAX);
        (void)snprintf(r->path + len, sizeof r->path - len, "[%lld]", (long long)list->count);
        r->here = c;
        st = read_stage(r, c, list);
        spec_path_pop(r, len);
    }
    return st ? st : take_stages(r, list);
}

/* Adds the weights of source `from` to those of `to`, and removes it; its files are [first, first +
 * count) of the job's. */
static void merge_source(struct hd_job *job, int64_t to, int64_t from, int64_t first, int64_t count)
{
    const int64_t each = hd_job_weights_each(job);

    for (int64_t s = 0; s < each; s++)
        job->weights[to * each + s] += job->weights[from * each + s];
    memmove(job->weights + from * each, job->weights + (from + 1) * each,
            (size_t)((job->weight_count - from - 1) * each) * sizeof *job->weights);
    memmove(job->train + first, job->train + first + count,
            (size_t)(job->train_count - first - count) * sizeof *job->train);
    job->train_count -= count;
    job->weight_count--;
    for (int64_t i = first; i < job->train_count; i++)
        job->train[i].source--;
}

/* Returns the first of the job's training files from `first` on that is of another source. */
static int64_t end_of_source(const struct hd_job *job, int64_t first)
{
    int64_t end = first;

    while (end < job->train_count && job->train[end].source == job->train[first].source)
        end++;
    return end;
}

static bool same_list(const struct hd_job *job, int64_t a, int64_t b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (strcmp(job->train[a + i].path, job->train[b + i].path) != 0)
            return false;
    return true;
}

void spec_join_data_stages(struct hd_job *job)
{
    int64_t end;

    for (int64_t b = 0; hd_job_stage_count(job) && b < job->train_count; b = end) {
        end = end_of_source(job, b);
        for (int64_t a = 0, a_end; a < b; a = a_end) {
            a_end = end_of_source(job, a);
            if (a_end - a != end - b || !same_list(job, a, b, end - b))
                continue;
            merge_source(job, job->train[a].source, job->train[b].source, b, end - b);
            end = b; /* the next source is at `b` now */
            break;
        }
    }
}

enum hd_status spec_fill_data_stages(struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count;
    enum hd_status st = hd_data_stages_read(job, stages, &count);

    if (st || !count || stages[count - 1].until != job->steps)
        return st;
    stages[count - 1].until = 0;
    return hd_data_stages_write(stages, count, job);
}

/* ---- rules ---- */

static enum hd_status check_rate(const struct hd_data_stage *s, int64_t index, int64_t steps)
{
    const int64_t left = steps - s->lr_warmup_steps;

    if (!s->has_lr)
        return HD_OK;
    if (s->lr_min > s->lr_peak)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].lr.min: %.6g is above the peak of %.6g; lower "
                      "it",
                      (long long)index, s->lr_min, s->lr_peak);
    if (left < 0)
        return hd_err(
            HD_INVALID,
            "data.stages[%lld].lr.warmup: %lld steps are more than the %lld of the stage; "
            "lower it",
            (long long)index, (long long)s->lr_warmup_steps, (long long)steps);
    if (strcmp(s->lr_decay, "constant") == 0 && s->lr_decay_steps)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].lr.decay_steps: a constant rate has no decay; remove it",
                      (long long)index);
    if (s->lr_decay_steps > left)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].lr.decay_steps: %lld steps do not fit after the warm-up; "
                      "at most %lld are left of the stage",
                      (long long)index, (long long)s->lr_decay_steps, (long long)left);
    return HD_OK;
}

static enum hd_status check_end(const struct hd_job *job, const struct hd_data_stage *stages,
                                int64_t count, int64_t k)
{
    const long long until = (long long)stages[k].until, begin = hd_data_stage_begin(stages, k);

    if (k + 1 < count && until <= begin)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].until: %lld is not above %lld, the end of the "
                      "stage before",
                      (long long)k, until, begin);
    if (k + 1 < count && until >= job->steps)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].until: %lld leaves no step of train.steps = %lld for the "
                      "stages behind it; lower it, or remove these",
                      (long long)k, until, (long long)job->steps);
    if (k + 1 == count && until)
        return hd_err(
            HD_INVALID,
            "data.stages[%lld].until: %lld is not train.steps = %lld, with which the last "
            "stage ends; remove it, or make them equal",
            (long long)k, until, (long long)job->steps);
    return HD_OK;
}

/* Checks that each stage has a source, and each source a stage. */
static enum hd_status check_weights(const struct hd_job *job, int64_t stages)
{
    bool used[HD_JOB_SOURCES_MAX] = {false}, has[HD_JOB_STAGES_MAX] = {false};

    for (int64_t k = 0; k < job->weight_count && k < HD_JOB_SOURCES_MAX; k++)
        for (int64_t s = 0; s < stages; s++)
            if (hd_job_weight(job, s, k) > 0)
                used[k] = has[s] = true;
    for (int64_t s = 0; s < stages; s++)
        if (!has[s])
            return hd_err(HD_INVALID, "data.stages[%lld]: has no source", (long long)s);
    for (int64_t k = 0; k < job->weight_count; k++)
        if (!used[k])
            return hd_err(HD_INVALID, "data.stages: no stage has source %lld", (long long)k);
    return HD_OK;
}

enum hd_status spec_check_data_stages(const struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count;
    enum hd_status st = hd_data_stages_read(job, stages, &count);

    if (st || !count)
        return st;
    if (!job->weight_count)
        return hd_err(HD_INVALID, "data.stages: has no sources");
    if (job->epochs > 0)
        return hd_err(HD_INVALID,
                      "train.epochs: stages of the data end at steps; give train.steps");
    for (int64_t k = 0; !st && k < count; k++) {
        st = check_end(job, stages, count, k);
        if (!st)
            st = check_rate(&stages[k], k,
                            hd_data_stage_end(stages, k, job->steps) -
                                hd_data_stage_begin(stages, k));
    }
    return st ? st : check_weights(job, count);
}
