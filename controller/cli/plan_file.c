#include "controller/cli/plan_file.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "controller/cli/submit.h"
#include "plan/identity.h"
#include "plan/report.h"

enum { PLAN_FILE_BYTES_MAX = 64 << 20, PLAN_VALUES_MAX = 4 << 20 };

/* ---- the file ---- */

struct plan_file {
    const char *path, *origin; /* origin: what messages call what it sets, "--plan FILE" */
    const char *job;           /* the text of the job that was planned */
    struct cli_list sets;      /* of its layout and its devices, as by --set */
    struct hd_arena *arena;
};

static enum hd_status add_set(struct plan_file *p, const char *key, const char *value)
{
    char *text = hd_arena_printf(p->arena, "%s=%s", key, value);

    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    p->sets.origins[p->sets.count] = p->origin;
    p->sets.items[p->sets.count++] = text; /* a few: the room is for any number of --set */
    return HD_OK;
}

/* A number, word or truth of the layout. */
static enum hd_status take_member(struct plan_file *p, const struct hd_json *layout,
                                  const char *name, const char *key)
{
    const struct hd_json *m = hd_json_member(layout, name);
    const char *value = !m                                                       ? NULL
                        : m->kind == HD_JSON_TRUE                                ? "true"
                        : m->kind == HD_JSON_FALSE                               ? "false"
                        : m->kind == HD_JSON_NUMBER || m->kind == HD_JSON_STRING ? m->text
                                                                                 : NULL;
    if (!value || strpbrk(value, "=\n{}[]"))
        return hd_err(HD_INVALID, "chosen.layout.%s is missing, or no value", name);
    return add_set(p, key, value);
}

/* [10, 10, 9] as parallel.stages. */
static enum hd_status take_stages(struct plan_file *p, const struct hd_json *layout)
{
    const struct hd_json *stages;
    struct hd_text text = {0};
    enum hd_status st = hd_json_need(layout, "stages", HD_JSON_ARRAY, &stages);

    if (st || stages->count < 2)
        return st;
    hd_text_add(&text, "[");
    for (const struct hd_json *n = stages->first; !st && n; n = n->next) {
        int64_t layers;

        st = hd_json_to_int64(n, 0, 1 << 20, &layers);
        hd_text_add(&text, "%s%lld", n == stages->first ? "" : ",", st ? 0LL : (long long)layers);
    }
    hd_text_add(&text, "]");
    if (!st)
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a plan")
                         : add_set(p, "parallel.stages", text.data);
    hd_text_free(&text);
    return st;
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
    int64_t pp = 1, zero = 0;
    enum hd_status st = hd_json_need(chosen, "layout", HD_JSON_OBJECT, &layout);

    if (!st)
        st = hd_json_need_int64(layout, "pp", 1, HD_PLAN_DEVICES_MAX, &pp);
    if (!st)
        st = hd_json_need_int64(layout, "zero", 0, 3, &zero);
    for (size_t i = 0; !st && i < sizeof members / sizeof members[0]; i++)
        st = take_member(p, layout, members[i][0], members[i][1]);
    for (size_t i = 0; !st && pp > 1 && i < 2; i++)
        st = take_member(p, layout, of_stages[i][0], of_stages[i][1]);
    if (!st && pp > 1)
        st = take_stages(p, layout);
    if (!st && zero > 0)
        st = take_member(p, layout, "zero_shard", "parallel.zero_shard");
    return st;
}

/* The machines: their number, and whether they are GPUs. */
static enum hd_status take_devices(struct plan_file *p, const struct hd_json *inputs)
{
    const char *device = NULL;
    int64_t devices = 1;
    char text[24];
    enum hd_status st = hd_json_need_int64(inputs, "devices", 1, HD_PLAN_DEVICES_MAX, &devices);

    if (!st)
        st = hd_json_need_string(inputs, "device", &device);
    if (st)
        return st;
    (void)snprintf(text, sizeof text, "%lld", (long long)devices);
    st = add_set(p, "resources.devices", text);
    return st ? st : add_set(p, "resources.device", strcmp(device, "cpu") == 0 ? "cpu" : "cuda");
}

static enum hd_status check_build(const struct hd_json *inputs)
{
    const char *build;
    char own[32];
    enum hd_status st = hd_json_need_string(inputs, "build", &build);

    if (st)
        return st;
    hd_report_build(own);
    if (strcmp(own, build) != 0)
        return hd_err(HD_INVALID,
                      "another build made it (%.40s, this is %s), which may plan other "
                      "memory; plan again",
                      build, own);
    return HD_OK;
}

static bool is_false(const struct hd_json *object, const char *name)
{
    const struct hd_json *m = hd_json_member(object, name);

    return m && m->kind == HD_JSON_FALSE;
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
    if (!st && is_false(chosen, "fits"))
        st = hd_err(HD_INVALID, "its layout does not fit the memory of the devices (fits is "
                                "false); plan again with fewer pins, or with more devices");
    if (!st && is_false(chosen, "runnable"))
        st = hd_err(HD_INVALID, "this build cannot run its layout (runnable is false); heddle "
                                "plan says why");
    if (!st)
        st = take_devices(p, inputs);
    return st ? st : take_layout(p, chosen);
}

static enum hd_status read_plan(struct plan_file *p)
{
    const struct hd_json_limits limits = {PLAN_VALUES_MAX, 16};
    const struct hd_json *root = NULL;
    struct hd_text text = {0};
    enum hd_status st =
        hd_file_read_stream(p->path, PLAN_FILE_BYTES_MAX, HD_FILE_PATIENCE_MS, &text);

    if (!st)
        st = hd_json_parse(p->arena, text.data ? text.data : "", text.len_bytes, &limits, &root);
    if (!st)
        st = take_plan(p, root);
    hd_text_free(&text);
    if (!st || st == HD_NO_MEMORY)
        return st;
    return st == HD_NOT_FOUND || st == HD_IO /* the message names the file */
               ? hd_err_prefix(HD_INVALID, "--plan")
               : hd_err_prefix(HD_INVALID, "%s", p->origin);
}

/* ---- what contradicts it ---- */

/* Does --set give this key, or a group that it is in, or that is in it? */
static bool gives(const char *override, const char *set)
{
    const size_t given = strcspn(override, "="), key = strcspn(set, "=");
    const size_t shorter = given < key ? given : key;

    return strncmp(override, set, shorter) == 0 &&
           (given == key || (given < key ? set[given] == '.' : override[key] == '.'));
}

static enum hd_status check_sets(const struct plan_file *p, const struct cli_list *overrides)
{
    for (size_t i = 0; i < overrides->count; i++)
        for (size_t k = 0; k < p->sets.count; k++) {
            const char *set = p->sets.items[k];
            const size_t key = strcspn(set, "=");

            if (gives(overrides->items[i], set) && strcmp(overrides->items[i], set) != 0)
                return hd_err(HD_INVALID,
                              "--set %.80s: the plan says %.*s = %.40s, and is run as it is; leave "
                              "the option out, or give it to heddle plan",
                              overrides->items[i], (int)key, set, set + key + 1);
        }
    return HD_OK;
}

/* The values of the job file that the plan has others for. */
static void note_others(const struct hd_job *before, const struct hd_job *job)
{
    struct hd_job nothing;
    struct hd_text notes = {0};
    bool written;

    hd_job_set_defaults(&nothing);
    written = before->devices_max != nothing.devices_max; /* or 1, which says as little */
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (!hd_job_key_is_of_layout(key) || hd_job_members_equal(key, before, &nothing) ||
            hd_job_members_equal(key, before, job))
            continue;
        hd_text_add(&notes, "%s%s ", notes.len_bytes ? ", " : "", key->path);
        (void)hd_job_format(key, job, &notes);
        hd_text_add(&notes, " (the job file says ");
        (void)hd_job_format(key, before, &notes);
        hd_text_add(&notes, ")");
    }
    if (written &&
        (job->devices_min < before->devices_min || job->devices_max > before->devices_max))
        hd_text_add(&notes, "%sresources.devices %lld (the job file says %lld)",
                    notes.len_bytes ? ", " : "", (long long)job->devices_min,
                    (long long)before->devices_max);
    if (notes.len_bytes && !notes.failed)
        cli_note("heddle: submit: the plan is run as it is: %s", notes.data);
    hd_text_free(&notes);
}

int plan_file_read_job(const char *path, const char *plan, const struct cli_list *overrides,
                       struct hd_arena *arena, struct hd_job **ret_job)
{
    struct plan_file *p = hd_arena_alloc(arena, sizeof *p);
    struct cli_list *all = hd_arena_alloc(arena, sizeof *all);
    const char *origin = hd_arena_printf(arena, "--plan %s", plan);
    struct hd_job *before = NULL;
    enum hd_status st;
    int code = p && all && origin ? cli_read_spec(path, overrides, arena, &before)
                                  : cli_fail(hd_err(HD_NO_MEMORY, "no memory for a plan"));

    if (code != CLI_CONTINUE)
        return code;
    *p = (struct plan_file){.path = plan, .origin = origin, .arena = arena};
    st = read_plan(p);
    if (!st)
        st = hd_plan_identity_compare(p->job, before);
    if (!st)
        st = check_sets(p, overrides);
    if (!st && overrides->count + p->sets.count > sizeof all->items / sizeof all->items[0])
        st = hd_err(HD_INVALID, "too many --set beside --plan; leave some out");
    if (st)
        return cli_fail(st);
    *all = *overrides;
    for (size_t i = 0; i < p->sets.count; i++) {
        all->origins[all->count] = p->sets.origins[i];
        all->items[all->count++] = p->sets.items[i];
    }
    code = cli_read_spec(path, all, arena, ret_job);
    if (code == CLI_CONTINUE)
        note_others(before, *ret_job);
    return code;
}
