/* order: reads parallel.schedule: {file: PATH}, a schedule of pipeline stages.
 *
 * The text of the file becomes part of the job, so ranks run exactly what was checked, even if the
 * file changes (docs/decisions/pipeline-schedules.md). The schedule is proved to be executable
 * twice: when the file is read, with messages that name its lines; and with the other rules of a
 * job, since a job may come from the network. */
#include <string.h>

#include "base/file.h"
#include "pipeline/pipeline.h"
#include "spec_internal.h"

/* Parses a schedule and proves that it can be executed; appends its text without comments and extra
 * blanks. */
static enum hd_status parse(const char *text, struct hd_pipeline *ret_pipeline,
                            int32_t *ret_micro_batches, struct hd_text *ret_text)
{
    struct hd_step_plan *plans;
    struct hd_schedule order;
    struct hd_arena arena;
    enum hd_status st = hd_schedule_measure(text, ret_pipeline, ret_micro_batches);

    hd_arena_init(&arena, 0);
    if (!st)
        st = hd_schedule_read(text, ret_pipeline, *ret_micro_batches, &arena, &order);
    if (!st)
        st = hd_schedule_check(&order, &arena, &plans);
    if (!st)
        hd_schedule_write(&order, ret_text);
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for an order of pipeline stages");
    if (!st && ret_text->len_bytes > HD_JOB_ORDER_BYTES_MAX)
        st = hd_err(HD_INVALID,
                    "the order has %zu bytes; at most %d are possible: use fewer, larger "
                    "micro-batches",
                    ret_text->len_bytes, (int)HD_JOB_ORDER_BYTES_MAX);
    hd_arena_done(&arena);
    return st;
}

/* ---- from a job file ---- */

/* Stores the schedule in the job. name: the schedule's file, as the user wrote it; NULL: its lines
 * are in the job file. */
static enum hd_status take(struct spec_reader *r, const char *name, const char *bytes)
{
    struct hd_job *job = r->draft.job;
    struct hd_pipeline pipeline;
    struct hd_text text = {0};
    int32_t micro_batches;
    enum hd_status st = parse(bytes, &pipeline, &micro_batches, &text);

    if (st && name)
        st = hd_err_prefix(st, "%s: %s", r->path, name);
    else if (st)
        st = hd_err_prefix(st, "%s", r->path);
    if (!st) {
        job->schedule_order = hd_arena_strdup(r->draft.arena, text.data);
        job->order_micro_batches = micro_batches;
        (void)strcpy(job->schedule, HD_SCHEDULE_FILE);
        *spec_given(&r->draft, "parallel.schedule.order_micro_batches") = true;
        st = job->schedule_order
                 ? HD_OK
                 : hd_err(HD_NO_MEMORY, "no memory for an order of pipeline stages");
    }
    hd_text_free(&text);
    return st;
}

/* Reads the map {file: PATH} of parallel.schedule. */
static enum hd_status read_file(struct spec_reader *r, const struct yaml_node *node)
{
    enum { WITH_COMMENTS_BYTES_MAX = 8 * HD_JOB_ORDER_BYTES_MAX };
    struct hd_text path = {0}, text = {0};
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st = spec_need_scalar(r, node, "a path");

    if (st)
        return st;
    (void)spec_quote(node->text, quoted);
    if (!*node->text || spec_has_control(node->text))
        return hd_err(HD_INVALID, "%s: %s is no path; give that of a file with an order", r->path,
                      quoted);
    hd_file_join(&path, r->folder, node->text);
    st = path.failed ? hd_err(HD_NO_MEMORY, "no memory for an order of pipeline stages")
                     : hd_file_read(path.data, WITH_COMMENTS_BYTES_MAX, &text);
    if (st && st != HD_NO_MEMORY)
        st = hd_err_prefix(HD_INVALID,
                           "%s: %s cannot be read (its path is relative to the job file's folder)",
                           r->path, quoted);
    if (!st && (memchr(text.data, '\0', text.len_bytes) || !text.len_bytes))
        st = hd_err(HD_INVALID, "%s: %s is no text of an order: it is empty or has a byte 0",
                    r->path, quoted);
    if (!st)
        st = take(r, node->text, text.data);
    hd_text_free(&path);
    hd_text_free(&text);
    return st;
}

/* Reads the map {order: [LINE, ...]} of parallel.schedule, the form in which `heddle` shows a
 * job. */
static enum hd_status read_lines(struct spec_reader *r, const struct yaml_node *node)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (node->kind != YAML_KIND_LIST)
        return hd_err(HD_INVALID, "%s: expected the lines of an order, such as [\"0: F0.0 B0.0\"]",
                      r->path);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next) {
        st = spec_need_scalar(r, c, "a line of an order");
        if (!st)
            hd_text_add(&text, "%s\n", c->text);
    }
    if (!st)
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for an order of pipeline stages")
                         : take(r, NULL, text.data ? text.data : "");
    hd_text_free(&text);
    return st;
}

enum hd_status spec_read_schedule(struct spec_reader *r, const struct yaml_node *node)
{
    const struct yaml_node *child = node->first;
    const size_t len = strlen(r->path);
    enum hd_status st;

    if (!child || child->next ||
        (strcmp(child->key, "file") != 0 && strcmp(child->key, "order") != 0))
        return hd_err(HD_INVALID, "%s: expected the name of a schedule, or {file: PATH}", r->path);
    (void)spec_path_push(r, child->key);
    r->here = child;
    st = strcmp(child->key, "file") == 0 ? read_file(r, child) : read_lines(r, child);
    spec_path_pop(r, len);
    return st;
}

/* ---- the rules ---- */

void spec_fill_order(struct hd_job *job)
{
    struct hd_pipeline pipeline;
    int32_t micro_batches;

    if (!job->schedule_order ||
        hd_schedule_measure(job->schedule_order, &pipeline, &micro_batches) != HD_OK)
        return;
    if (!job->pp)
        job->pp = pipeline.stages;
    if (!job->virtual_stages)
        job->virtual_stages = pipeline.chunks / pipeline.stages;
    if (!job->order_micro_batches)
        job->order_micro_batches = micro_batches;
}

static enum hd_status check_numbers(const struct hd_job *job, const struct hd_pipeline *p,
                                    int32_t micro_batches)
{
    const int each = (int)(p->chunks / p->stages);

    if (p->stages == 1)
        return hd_err(HD_INVALID, "parallel.schedule: the order has one stage; a pipeline has 2 or "
                                  "more: write auto");
    if (job->pp != p->stages)
        return hd_err(HD_INVALID,
                      "parallel.pp: %lld is not the number of stages of the order that "
                      "parallel.schedule names, %d; write %d or auto, or give another order",
                      (long long)job->pp, (int)p->stages, (int)p->stages);
    if (job->virtual_stages != each)
        return hd_err(HD_INVALID,
                      "parallel.virtual_stages: %lld is not the number of chunks per stage of the "
                      "order that parallel.schedule names, %d; write %d or auto, or give another "
                      "order",
                      (long long)job->virtual_stages, each, each);
    if (job->order_micro_batches != micro_batches)
        return hd_err(HD_INVALID, "parallel.schedule.order_micro_batches: %lld; the order has %d",
                      (long long)job->order_micro_batches, (int)micro_batches);
    return HD_OK;
}

enum hd_status spec_check_order(const struct hd_job *job)
{
    const bool named = strcmp(job->schedule, HD_SCHEDULE_FILE) == 0;
    struct hd_text text = {0};
    struct hd_pipeline pipeline;
    int32_t micro_batches;
    enum hd_status st;

    if (!named && !job->schedule_order && !job->order_micro_batches)
        return HD_OK;
    if (!named || !job->schedule_order)
        return hd_err(HD_INVALID,
                      "parallel.schedule: %s; write {file: PATH}, or the name of a schedule",
                      named ? "file without a path" : "an order beside the name of a schedule");
    st = parse(job->schedule_order, &pipeline, &micro_batches, &text);
    if (st)
        st = hd_err_prefix(st, "parallel.schedule: the order");
    else if (strcmp(text.data, job->schedule_order) != 0)
        st = hd_err(HD_INVALID, "parallel.schedule: the order is not as heddle-worker schedule "
                                "--text writes it, without comments; send that text");
    else
        st = check_numbers(job, &pipeline, micro_batches);
    hd_text_free(&text);
    return st;
}
