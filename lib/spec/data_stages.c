/* data_stages: reads data.stages: [{until: 1000, train: .., lr: ..}, {train: .., context: 32768}].
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
            return hd_err(HD_NO_MEMORY, "no memory for the stages of the job file");
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

static enum hd_status read_schedule_key(struct spec_reader *r, const struct yaml_node *node,
                                        struct hd_data_stage *stage)
{
    static const char *const names[] = {"peak",        "warmup",      "decay",
                                        "decay_shape", "decay_steps", "min"};
    const struct hd_key *peak = hd_job_find_key("train.lr.peak"),
                        *steps = hd_job_find_key("train.lr.warmup"),
                        *min = hd_job_find_key("train.lr.min");

    if (strcmp(node->key, "peak") == 0)
        return spec_read_real(r, peak, node, &stage->lr_peak);
    if (strcmp(node->key, "warmup") == 0)
        return spec_read_int(r, steps, node, &stage->lr_warmup_steps);
    if (strcmp(node->key, "decay") == 0)
        return spec_read_word(r, hd_job_find_key("train.lr.decay"), node, &stage->lr_decay);
    if (strcmp(node->key, "decay_shape") == 0)
        return spec_read_word(r, hd_job_find_key("train.lr.decay_shape"), node,
                              &stage->lr_decay_shape);
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
static enum hd_status read_schedule(struct spec_reader *r, const struct yaml_node *node,
                                    struct hd_data_stage *stage)
{
    enum hd_status st = HD_OK;

    stage->has_lr = true;
    stage->lr_decay = HD_JOB_LR_DECAY_COSINE;
    if (node->kind == YAML_KIND_SCALAR)
        st = spec_read_real(r, hd_job_find_key("train.lr.peak"), node, &stage->lr_peak);
    else if (node->kind != YAML_KIND_MAP)
        st =
            hd_err(HD_INVALID, "%s: expected a number, the peak, or the keys of train.lr", r->path);
    for (const struct yaml_node *c = node->kind == YAML_KIND_MAP ? node->first : NULL; c && !st;
         c = c->next) {
        const size_t len = spec_path_push(r, c->key);

        r->here = c;
        st = hd_yaml_find(node, c->key) == c ? read_schedule_key(r, c, stage) : refuse_twice(r);
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
    static const char *const names[] = {"until",   "train",        "lr",
                                        "context", "global_batch", "rope_theta"};
    static const struct hd_key step = {.kind = HD_KEY_INT, .min = 1, .max = 0x1p40};

    if (strcmp(node->key, "until") == 0)
        return spec_read_int(r, &step, node, &stage->until);
    if (strcmp(node->key, "train") == 0)
        return spec_read_sources(r, node, sources);
    if (strcmp(node->key, "lr") == 0)
        return read_schedule(r, node, stage);
    if (strcmp(node->key, "context") == 0)
        return spec_read_int(r, hd_job_find_key("model.context"), node, &stage->context);
    if (strcmp(node->key, "global_batch") == 0)
        return spec_read_int(r, hd_job_find_key("train.global_batch"), node, &stage->global_batch);
    if (strcmp(node->key, "rope_theta") == 0)
        return spec_read_real(r, hd_job_find_key("model.rope_theta"), node, &stage->rope_theta);
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
        return hd_err(HD_NO_MEMORY, "no memory for the stages of the job file");
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
        return hd_err(HD_NO_MEMORY, "no memory for the stages of the job file");
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
