#include "controller/cli/plan_command.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "controller/cli/submit.h"
#include "plan/calibration.h"
#include "plan/identity.h"
#include "plan/plan.h"
#include "spec/spec.h"

enum { PLAN_FILE_BYTES_MAX = 64 << 20, PLAN_VALUES_MAX = 4 << 20 };

/* ---- the file ---- */

struct plan_file {
    const char *job;      /* text of the job file that was planned */
    struct hd_job layout; /* job with only the plan's values: layout and devices */
    struct hd_arena *arena;
};

/* Sets a key of the plan's layout from the text of a value. */
static enum hd_status set_key(struct plan_file *p, const char *path, const char *text)
{
    const enum hd_status st = hd_job_parse(hd_job_find_key(path), text, &p->layout);

    return st ? hd_err_prefix(st, "%s", path) : HD_OK;
}

/* Takes a number, word or boolean from the JSON of the plan's layout. */
static enum hd_status take_member(struct plan_file *p, const struct hd_json *layout,
                                  const char *name, const char *key)
{
    const struct hd_json *m = hd_json_member(layout, name);
    const char *value = !m                                                       ? NULL
                        : m->kind == HD_JSON_TRUE                                ? "true"
                        : m->kind == HD_JSON_FALSE                               ? "false"
                        : m->kind == HD_JSON_NUMBER || m->kind == HD_JSON_STRING ? m->text
                                                                                 : NULL;

    return value ? set_key(p, key, value)
                 : hd_err(HD_INVALID, "chosen.layout.%s is missing, or no value", name);
}

/* Takes the number of layers of each pipeline chunk from the plan: [10, 10, 9]. */
static enum hd_status take_stages(struct plan_file *p, const struct hd_json *layout)
{
    const int64_t chunks = p->layout.pp * p->layout.virtual_stages;
    int64_t layers[HD_PLAN_CHUNKS_MAX];
    const struct hd_json *stages;
    int64_t count = 0;
    enum hd_status st = hd_json_need(layout, "stages", HD_JSON_ARRAY, &stages);

    if (!st && (int64_t)stages->count != chunks)
        st = hd_err(HD_INVALID,
                    "chosen.layout.stages has %zu numbers, and %lld stages x %lld virtual_stages "
                    "are %lld",
                    stages->count, (long long)p->layout.pp, (long long)p->layout.virtual_stages,
                    (long long)chunks);
    for (const struct hd_json *n = st ? NULL : stages->first; !st && n; n = n->next)
        if (count == HD_PLAN_CHUNKS_MAX)
            st = hd_err(HD_INVALID, "chosen.layout.stages has too many numbers");
        else
            st = hd_json_to_int64(n, 0, 1 << 20, &layers[count++]);
    return st ? st : hd_stages_write(layers, count, p->layout.stages);
}

/* Checks zero_shard: without ZeRO it must be 1, as `heddle plan` writes it. */
static enum hd_status check_shared(const struct plan_file *p, const struct hd_json *layout)
{
    const struct hd_json *m = hd_json_member(layout, "zero_shard");

    if (p->layout.zero > 0 || !m || (m->kind == HD_JSON_NUMBER && strcmp(m->text, "1") == 0))
        return HD_OK;
    return hd_err(HD_INVALID,
                  "chosen.layout.zero_shard is not 1, and zero is 0: nothing is shared");
}

static enum hd_status take_layout(struct plan_file *p, const struct hd_json *chosen)
{
    static const char *const members[][2] = {
        {"tp", "parallel.tp"},
        {"pp", "parallel.pp"},
        {"dp", "parallel.dp"},
        {"cp", "parallel.cp"},
        {"ep", "parallel.ep"},
        {"micro_batch", "parallel.micro_batch"},
        {"recompute", "parallel.recompute"},
        {"zero", "parallel.zero"},
        {"offload", "parallel.offload"},
        {"sequence", "parallel.sequence"},
        {"cp_exchange", "parallel.cp_exchange"},
        {"expert_rows", "parallel.expert_rows"},
        {"precision", "train.precision"},
    };
    static const char *const of_stages[][2] = {{"schedule", "parallel.schedule"},
                                               {"virtual_stages", "parallel.virtual_stages"}};
    const struct hd_json *layout = NULL;
    enum hd_status st = hd_json_need(chosen, "layout", HD_JSON_OBJECT, &layout);

    for (size_t i = 0; !st && i < sizeof members / sizeof members[0]; i++)
        st = take_member(p, layout, members[i][0], members[i][1]);
    for (size_t i = 0; !st && p->layout.pp > 1 && i < 2; i++)
        st = take_member(p, layout, of_stages[i][0], of_stages[i][1]);
    if (!st && p->layout.pp > 1)
        st = take_stages(p, layout);
    if (!st && p->layout.zero > 0)
        st = take_member(p, layout, "zero_shard", "parallel.zero_shard");
    return st ? st : check_shared(p, layout);
}

/* Takes the threads per rank from the plan, if its user gave a number. */
static enum hd_status take_threads(struct plan_file *p, const struct hd_json *inputs)
{
    const struct hd_json *m = hd_json_member(inputs, "threads");

    if (!m || m->kind == HD_JSON_NULL)
        return HD_OK;
    return hd_json_to_int64(m, 1, INT32_MAX, &p->layout.threads)
               ? hd_err_prefix(HD_INVALID, "inputs.threads")
               : HD_OK;
}

/* Takes the number of devices and their kind, cpu or cuda, from the plan. */
static enum hd_status take_devices(struct plan_file *p, const struct hd_json *inputs)
{
    const char *device = NULL;
    int64_t devices = 1;
    enum hd_status st = hd_json_need_int64(inputs, "devices", 1, HD_PLAN_DEVICES_MAX, &devices);
    bool cpu;

    if (!st)
        st = hd_json_need_string(inputs, "device", &device);
    if (st)
        return st;
    cpu = strcmp(device, "cpu") == 0;
    if (!cpu && strcmp(device, "cuda") != 0 && strcmp(device, "own") != 0 &&
        !hd_gpu_kind_find(device))
        return hd_err(HD_INVALID, "inputs.device: '%.40s' is no kind of device that is known",
                      device);
    p->layout.devices_min = p->layout.devices_max = devices;
    st = take_threads(p, inputs);
    return st ? st : set_key(p, "resources.device_type", cpu ? "cpu" : "cuda");
}

static enum hd_status check_build(const struct hd_json *inputs)
{
    const char *build;
    char own[HD_CALIBRATION_WORD_MAX];
    enum hd_status st = hd_json_need_string(inputs, "build", &build);

    if (st)
        return st;
    hd_calibration_build(own);
    if (strcmp(own, build) != 0)
        return hd_err(HD_INVALID,
                      "another build made it (%.40s, this is %s), which may plan other "
                      "memory; plan again",
                      build, own);
    return HD_OK;
}

static bool is_true(const struct hd_json *object, const char *name)
{
    const struct hd_json *m = hd_json_member(object, name);

    return m && m->kind == HD_JSON_TRUE;
}

static enum hd_status take_plan(struct plan_file *p, const struct hd_json *root)
{
    const struct hd_json *inputs = NULL, *chosen = NULL;
    const char *kind, *version;
    enum hd_status st = hd_json_need_string(root, "kind", &kind);

    if (!st && strcmp(kind, "Plan") != 0)
        st = hd_err(HD_INVALID, "it is a '%.40s', not a Plan", kind);
    if (!st)
        st = hd_json_need_string(root, "api_version", &version);
    if (!st && strcmp(version, "heddle/v1") != 0)
        st = hd_err(HD_INVALID, "its api_version is '%.40s', and this build reads heddle/v1",
                    version);
    if (!st)
        st = hd_json_need(root, "inputs", HD_JSON_OBJECT, &inputs);
    if (!st)
        st = check_build(inputs);
    if (!st)
        st = hd_json_need_string(inputs, "job_text", &p->job);
    if (!st && hd_json_need(root, "chosen", HD_JSON_OBJECT, &chosen))
        st = hd_err(HD_INVALID, "nothing was chosen in it; plan again");
    if (!st && !is_true(chosen, "fits"))
        st = hd_err(HD_INVALID, "its layout does not fit the memory of the devices (fits is not "
                                "true); plan again with fewer pins, or with more devices");
    if (!st && !is_true(chosen, "runnable"))
        st = hd_err(HD_INVALID, "its layout cannot be run (runnable is not true); heddle plan says "
                                "why");
    if (!st)
        st = take_devices(p, inputs);
    return st ? st : take_layout(p, chosen);
}

static enum hd_status read_plan(const char *path, struct plan_file *p)
{
    const struct hd_json_limits limits = {PLAN_VALUES_MAX, 16};
    const struct hd_json *root = NULL;
    struct hd_text text = {0};
    enum hd_status st = hd_file_read_stream(path, PLAN_FILE_BYTES_MAX, HD_FILE_PATIENCE_MS, &text);

    if (!st)
        st = hd_json_parse(p->arena, text.data ? text.data : "", text.len_bytes, &limits, &root);
    if (!st)
        st = root->kind == HD_JSON_OBJECT ? take_plan(p, root)
                                          : hd_err(HD_INVALID, "it is no object, so not a Plan");
    hd_text_free(&text);
    if (!st || st == HD_NO_MEMORY)
        return st;
    return st == HD_NOT_FOUND || st == HD_IO /* the error message names the file */
               ? hd_err_prefix(HD_INVALID, "--plan")
               : hd_err_prefix(HD_INVALID, "--plan %s", path);
}

/* ---- what contradicts it ---- */

/* Returns whether --set gives this key, a group that contains it, or a key below it. */
static bool gives(const struct cli_list *overrides, const char *path, const char **ret_item)
{
    for (size_t i = 0; i < overrides->count; i++) {
        const char *item = overrides->items[i];
        const size_t given = strcspn(item, "="), key = strlen(path);
        const size_t shorter = given < key ? given : key;

        *ret_item = item;
        if (strncmp(item, path, shorter) == 0 &&
            (given == key || (given < key ? path[given] == '.' : item[key] == '.')))
            return true;
    }
    return false;
}

/* Refuses, or notes, a value of the job that differs from the plan's. */
static enum hd_status differs(const struct cli_list *overrides, const char *path, const char *was,
                              const char *is, struct hd_text *notes)
{
    const char *item;

    if (gives(overrides, path, &item))
        return hd_err(HD_INVALID,
                      "--set %.80s: the plan says %s = %s, and is run as it is; leave the option "
                      "out, or give it to heddle plan",
                      item, path, is);
    /* the precision is the job's decision, not the layout's */
    if (strcmp(path, "train.precision") == 0)
        return hd_err(HD_INVALID,
                      "the job has changed since it was planned: train.precision is %s, was %s; "
                      "plan it again",
                      was, is);
    hd_text_add(notes, "%s%s %s (the job file says %s)", notes->len_bytes ? ", " : "", path, is,
                was);
    return HD_OK;
}

static enum hd_status compare_key(const struct hd_key *key, const struct cli_list *overrides,
                                  const struct hd_job *before, const struct hd_job *job,
                                  struct hd_text *notes)
{
    struct hd_text was = {0}, is = {0};
    enum hd_status st = hd_job_format(key, before, &was);

    if (!st)
        st = hd_job_format(key, job, &is);
    if (!st)
        st = was.failed || is.failed ? hd_err(HD_NO_MEMORY, "no memory for a plan")
                                     : differs(overrides, key->path, was.data ? was.data : "",
                                               is.data ? is.data : "", notes);
    hd_text_free(&was);
    hd_text_free(&is);
    return st;
}

/* Compares the job's values with the plan's. */
static enum hd_status compare(const struct cli_list *overrides, const struct hd_job *before,
                              const struct hd_job *job, struct hd_text *notes)
{
    const int64_t min = before->devices_min, max = before->devices_max, is = job->devices_min;
    const char *item;
    char was[48], now[24];
    struct hd_job nothing;
    enum hd_status st = HD_OK;

    hd_job_set_defaults(&nothing);
    for (size_t i = 0; !st && i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (hd_job_key_is_of_layout(key) && !hd_job_members_equal(key, before, &nothing) &&
            !hd_job_members_equal(key, before, job))
            st = compare_key(key, overrides, before, job, notes);
    }
    if (st || (min == is && max == is) ||
        /* devices_max in a job file that equals the default counts as not given */
        (max == nothing.devices_max && !gives(overrides, "resources.devices", &item)))
        return st;
    (void)snprintf(was, sizeof was, min == max ? "%lld" : "%lld to %lld", (long long)min,
                   (long long)max);
    (void)snprintf(now, sizeof now, "%lld", (long long)is);
    return differs(overrides, "resources.devices", was, now, notes);
}

/* Copies `before` into `job` and applies the plan's layout. A pipeline schedule read from a file
 * stays the job's. */
static void lay_out(const struct plan_file *p, const struct hd_job *before, struct hd_job *job)
{
    *job = *before;
    job->layout_follows = false;
    job->layout = p->layout.layout;
    if (!job->threads)
        job->threads = before->threads;
    job->order_micro_batches = before->order_micro_batches;
    job->devices_min = p->layout.devices_min;
    job->devices_max = p->layout.devices_max;
}

int plan_file_read_job(const char *path, const char *plan, const struct cli_list *overrides,
                       struct hd_arena *arena, struct hd_job **ret_job)
{
    struct plan_file *p = hd_arena_alloc(arena, sizeof *p);
    struct hd_job *job = hd_arena_alloc(arena, sizeof *job), *before = NULL;
    struct hd_text notes = {0};
    enum hd_status st;
    int code = p && job ? cli_read_spec_to_lay_out(path, overrides, arena, &before)
                        : cli_fail(hd_err(HD_NO_MEMORY, "no memory for a plan"));

    if (code != CLI_CONTINUE)
        return code;
    p->arena = arena;
    hd_job_set_defaults(&p->layout);
    st = read_plan(plan, p);
    if (!st)
        st = hd_plan_identity_compare(p->job, before);
    if (!st) {
        lay_out(p, before, job);
        st = compare(overrides, before, job, &notes);
    }
    if (!st && (hd_spec_check(job) || hd_plan_check_weights(job)))
        st = hd_err_prefix(HD_INVALID, "--plan %s", plan);
    if (!st && notes.len_bytes && !notes.failed)
        cli_note("heddle: submit: the plan is run as it is: %s", notes.data);
    hd_text_free(&notes);
    *ret_job = job;
    return st ? cli_fail(st) : CLI_CONTINUE;
}
