/* calibration_text: the file form of calibrations, one JSON object:
 *
 *   {"kind":"Calibration","version":1,"device":"cpu","isa":..,"library":..,"build":..,"engine":..,
 *    "made_unix_s":N,"threads":N,"devices":N,"launch_s":S,"step_s":S,"wait_share":X,"wait_s":S,
 *    "checkpoint_bytes_per_s":R,
 *    "each":[[SINGLE_FLOPS,HALF_FLOPS,MEMORY_BYTES_PER_S],..],
 *    "pairs":[[A,B,LATENCY_S,BYTES_PER_S],..],
 *    "kernels":[{"kernel":"gemm","variant":"f32.nt","samples":[[M,N,K,S],..]},..],
 *    "collectives":[{"kind":"all_reduce","members":N,"points":[[BYTES,S],..]},..]}
 */
#include <string.h>

#include "base/fields.h"
#include "base/file.h"
#include "plan/calibration.h"

enum { VALUES_MAX = 200000, DEPTH_MAX = 8, THREADS_MAX = 4096, DEVICES_MAX = 4096 };

/* Limits of accepted values: a launch takes from a picosecond to a day; sizes are FLOPs or
 * bytes. */
#define SECONDS      .least = 1e-12, .most = 86400
#define SIZE(least_) .least = (least_), .most = 1e24
#define RATE(least_) .least = (least_), .most = 1e15

/* ---- the members ---- */

static const struct hd_json_field device_fields[] = {
    HD_JSON_FIELD("single_flops", REAL, struct hd_calibration_device, single_flops, SIZE(0)),
    HD_JSON_FIELD("half_flops", REAL, struct hd_calibration_device, half_flops, SIZE(0)),
    HD_JSON_FIELD("memory", REAL, struct hd_calibration_device, memory_bytes_per_s, SIZE(0)),
};
static const struct hd_json_field pair_fields[] = {
    HD_JSON_FIELD("a", INT, struct hd_calibration_pair, a, .max = DEVICES_MAX),
    HD_JSON_FIELD("b", INT, struct hd_calibration_pair, b, .max = DEVICES_MAX),
    HD_JSON_FIELD("latency_s", REAL, struct hd_calibration_pair, latency_s, SECONDS),
    HD_JSON_FIELD("bytes_per_s", REAL, struct hd_calibration_pair, bytes_per_s, RATE(1)),
};
static const struct hd_json_field sample_fields[] = {
    HD_JSON_FIELD("size", REAL, struct hd_calibration_sample, size[0], SIZE(1)),
    HD_JSON_FIELD("size", REAL, struct hd_calibration_sample, size[1], SIZE(1)),
    HD_JSON_FIELD("size", REAL, struct hd_calibration_sample, size[2], SIZE(1)),
    HD_JSON_FIELD("seconds", REAL, struct hd_calibration_sample, seconds, SECONDS),
};
static const struct hd_json_field point_fields[] = {
    HD_JSON_FIELD("bytes", REAL, struct hd_calibration_point, bytes, SIZE(0)),
    HD_JSON_FIELD("seconds", REAL, struct hd_calibration_point, seconds, SECONDS),
};

/* A value of `kernels`, and one of `collectives`. */
struct listed {
    const char *name;
    char variant[HD_CALIBRATION_VARIANT_MAX];
    int64_t members;
    struct hd_calibration_sample *samples;
    struct hd_calibration_point *points;
    int count;
};
static const struct hd_json_field class_fields[] = {
    HD_JSON_FIELD("kernel", TEXT, struct listed, name),
    HD_JSON_FIELD("variant", WORD, struct listed, variant),
    HD_JSON_FIELD_LIST("samples", struct listed, samples, count, struct hd_calibration_sample,
                       sample_fields, VALUES_MAX, .positional = true, .allocated = true),
};
static const struct hd_json_field curve_fields[] = {
    HD_JSON_FIELD("kind", TEXT, struct listed, name),
    HD_JSON_FIELD("members", INT, struct listed, members, .min = 1, .max = DEVICES_MAX),
    HD_JSON_FIELD_LIST("points", struct listed, points, count, struct hd_calibration_point,
                       point_fields, VALUES_MAX, .positional = true, .allocated = true),
};

/* Members since the first version; files of older builds lack wait_share and wait_s, and probes that
 * measure only kernels write no `each` and `pairs`. */
#define WORD(member)      HD_JSON_FIELD(#member, WORD, struct hd_calibration, member)
#define REAL(member, ...) HD_JSON_FIELD(#member, REAL, struct hd_calibration, member, __VA_ARGS__)
static const struct hd_json_field head_fields[] = {
    WORD(device),
    WORD(isa),
    WORD(library),
    WORD(build),
    WORD(engine),
    HD_JSON_FIELD("made_unix_s", INT, struct hd_calibration, made_unix_s, .max = INT64_MAX),
    HD_JSON_FIELD("threads", INT, struct hd_calibration, threads, .min = 1, .max = THREADS_MAX),
    HD_JSON_FIELD("devices", INT, struct hd_calibration, devices, .min = 1, .max = DEVICES_MAX),
    REAL(launch_s, .least = 0, .most = 1),
    REAL(step_s, .least = 0, .most = 86400),
    REAL(wait_share, .least = 0, .most = 100, .optional = true),
    REAL(wait_s, .least = 0, .most = 86400, .optional = true),
    REAL(checkpoint_bytes_per_s, RATE(0)),
    HD_JSON_FIELD_LIST("each", struct hd_calibration, each, each_count,
                       struct hd_calibration_device, device_fields, HD_CALIBRATION_DEVICES_MAX,
                       .positional = true, .allocated = true, .optional = true),
    HD_JSON_FIELD_LIST("pairs", struct hd_calibration, pairs, pair_count,
                       struct hd_calibration_pair, pair_fields, HD_CALIBRATION_PAIRS_MAX,
                       .positional = true, .allocated = true, .optional = true),
};

/* ---- writing ---- */

static void write_listed(struct hd_json_writer *w, const struct hd_json_field *fields, int count,
                         const struct listed *listed)
{
    hd_json_add_line(w);
    hd_json_begin(w, NULL, '{');
    hd_fields_write(w, fields, count, listed);
    hd_json_end(w, '}');
}

void hd_calibration_write(const struct hd_calibration *cal, struct hd_text *ret_text)
{
    struct hd_json_writer w = {.out = ret_text};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "kind", "Calibration");
    hd_json_add_int64(&w, "version", HD_CALIBRATION_VERSION);
    hd_fields_write(&w, head_fields, HD_JSON_FIELD_COUNT(head_fields), cal);
    hd_json_begin(&w, "kernels", '[');
    for (int i = 0; i < cal->class_count; i++) {
        const struct hd_calibration_class *c = &cal->classes[i];
        struct listed listed = {
            .name = hd_kernel_get_info(c->kernel)->name, .samples = c->samples, .count = c->count};

        memcpy(listed.variant, c->variant, sizeof listed.variant);
        write_listed(&w, class_fields, HD_JSON_FIELD_COUNT(class_fields), &listed);
    }
    hd_json_end(&w, ']');
    hd_json_begin(&w, "collectives", '[');
    for (int i = 0; i < cal->curve_count; i++)
        write_listed(&w, curve_fields, HD_JSON_FIELD_COUNT(curve_fields),
                     &(struct listed){.name = hd_comm_kind_name(cal->curves[i].kind),
                                      .members = cal->curves[i].members,
                                      .points = cal->curves[i].points,
                                      .count = cal->curves[i].count});
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(ret_text, "\n");
}

/* ---- reading ---- */

/* Finds a kernel by name; false: this build has none. */
static bool find_kernel(const char *name, enum hd_kernel *ret_kernel)
{
    for (int k = 0; k < HD_KERNEL_COUNT; k++)
        if (strcmp(hd_kernel_get_info((enum hd_kernel)k)->name, name) == 0) {
            *ret_kernel = (enum hd_kernel)k;
            return true;
        }
    return false;
}

static enum hd_status read_class(const struct hd_json *object, struct hd_arena *arena,
                                 struct hd_calibration *cal)
{
    struct hd_calibration_key key = {0};
    struct listed c = {.name = "kernels"};
    enum hd_status st =
        hd_fields_read(object, class_fields, HD_JSON_FIELD_COUNT(class_fields), arena, &c);

    if (st)
        return hd_err_prefix(st, "%s", c.name);
    if (!find_kernel(c.name, &key.kernel))
        return HD_OK;
    memcpy(key.variant, c.variant, sizeof key.variant);
    for (int i = 0; !st && i < c.count; i++) {
        memcpy(key.size, c.samples[i].size, sizeof key.size);
        st = hd_calibration_add(cal, arena, &key, c.samples[i].seconds);
    }
    return st;
}

static enum hd_status read_curve(const struct hd_json *object, struct hd_arena *arena,
                                 struct hd_calibration *cal)
{
    struct listed c = {.name = "collectives"};
    int kind = 0;
    enum hd_status st =
        hd_fields_read(object, curve_fields, HD_JSON_FIELD_COUNT(curve_fields), arena, &c);

    if (st)
        return hd_err_prefix(st, "%s", c.name);
    while (kind < HD_COMM_KIND_COUNT && strcmp(hd_comm_kind_name(kind), c.name) != 0)
        kind++;
    if (kind == HD_COMM_KIND_COUNT)
        return hd_err(HD_INVALID, "there is no collective '%.32s'", c.name);
    for (int i = 0; !st && i < c.count; i++)
        st = hd_calibration_add_collective(cal, arena, (enum hd_comm_kind)kind, c.members,
                                           c.points[i].bytes, c.points[i].seconds);
    return st;
}

/* Checks that `each` has all devices, and that `pairs` are pairs of them, in order. */
static enum hd_status check_devices(const struct hd_calibration *cal)
{
    int64_t last = -1;

    if (cal->each_count && cal->each_count != cal->devices)
        return hd_err(HD_INVALID, "each: %d rows for %lld devices", cal->each_count,
                      (long long)cal->devices);
    for (int i = 0; i < cal->pair_count; i++) {
        const struct hd_calibration_pair *p = &cal->pairs[i];
        const int64_t now = p->a * cal->devices + p->b;

        if (p->a >= p->b || p->b >= cal->devices || now <= last)
            return hd_err(HD_INVALID, "pairs: devices %lld and %lld are no pair, or out of order",
                          (long long)p->a, (long long)p->b);
        last = now;
    }
    return HD_OK;
}

static enum hd_status read_head(const struct hd_json *root, struct hd_arena *arena,
                                struct hd_calibration *cal)
{
    int64_t version;
    const char *kind;
    enum hd_status st = hd_json_need_string(root, "kind", &kind);

    if (!st && strcmp(kind, "Calibration") != 0)
        st = hd_err(HD_INVALID, "it is a '%.40s', not a Calibration", kind);
    if (!st)
        st = hd_json_need_int64(root, "version", 1, INT32_MAX, &version);
    if (!st && version != HD_CALIBRATION_VERSION)
        st = hd_err(HD_UNSUPPORTED, "it has version %lld, this build reads version %d; probe again",
                    (long long)version, (int)HD_CALIBRATION_VERSION);
    if (!st)
        st = hd_fields_read(root, head_fields, HD_JSON_FIELD_COUNT(head_fields), arena, cal);
    return st ? st : check_devices(cal);
}

enum hd_status hd_calibration_read(const char *text, size_t text_bytes, struct hd_arena *arena,
                                   struct hd_calibration *ret_cal)
{
    const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    const struct hd_json *root, *kernels, *collectives;
    enum hd_status st;

    *ret_cal = (struct hd_calibration){0};
    if (text_bytes > HD_CALIBRATION_BYTES_MAX)
        return hd_err(HD_LIMIT, "a calibration has at most %d bytes",
                      (int)HD_CALIBRATION_BYTES_MAX);
    st = hd_json_parse(arena, text, text_bytes, &limits, &root);
    if (!st)
        st = read_head(root, arena, ret_cal);
    if (!st)
        st = hd_json_need(root, "kernels", HD_JSON_ARRAY, &kernels);
    if (!st)
        st = hd_json_need(root, "collectives", HD_JSON_ARRAY, &collectives);
    if (st)
        return st;
    for (const struct hd_json *c = kernels->first; !st && c; c = c->next)
        st = read_class(c, arena, ret_cal);
    for (const struct hd_json *c = collectives->first; !st && c; c = c->next)
        st = read_curve(c, arena, ret_cal);
    return st;
}

enum hd_status hd_calibration_read_file(const char *path, struct hd_arena *arena,
                                        struct hd_calibration *ret_cal)
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, HD_CALIBRATION_BYTES_MAX, &text);

    if (!st)
        st = hd_calibration_read(text.data ? text.data : "", text.len_bytes, arena, ret_cal);
    hd_text_free(&text);
    return st ? hd_err_prefix(st, "calibration %s", path) : HD_OK;
}
