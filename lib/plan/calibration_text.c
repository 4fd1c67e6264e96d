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

#include "base/file.h"
#include "base/json.h"
#include "plan/calibration.h"

enum { VALUES_MAX = 200000, DEPTH_MAX = 8, THREADS_MAX = 4096, DEVICES_MAX = 4096 };

/* Limits of accepted values: a launch takes from a picosecond to a day; sizes are FLOPs or
 * bytes. */
static const double seconds_least = 1e-12, seconds_most = 86400, size_most = 1e24, rate_most = 1e15,
                    wait_share_most = 100;

static const char *const kind_names[HD_COMM_KIND_COUNT] = {
#define X(code, name) [HD_COMM_##code] = name,
    HD_COMM_KIND_LIST(X)
#undef X
};

/* ---- writing ---- */

static void write_class(struct hd_json_writer *w, const struct hd_calibration_class *c)
{
    hd_json_add_line(w);
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "kernel", hd_kernel_get_info(c->kernel)->name);
    hd_json_add_string(w, "variant", c->variant);
    hd_json_begin(w, "samples", '[');
    for (int i = 0; i < c->count; i++) {
        hd_json_begin(w, NULL, '[');
        for (int k = 0; k < HD_CALIBRATION_SIZES; k++)
            hd_json_add_real(w, NULL, c->samples[i].size[k]);
        hd_json_add_real(w, NULL, c->samples[i].seconds);
        hd_json_end(w, ']');
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

static void add_curve(struct hd_json_writer *w, const struct hd_calibration_curve *c)
{
    hd_json_add_line(w);
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "kind", kind_names[c->kind]);
    hd_json_add_int64(w, "members", c->members);
    hd_json_begin(w, "points", '[');
    for (int i = 0; i < c->count; i++) {
        hd_json_begin(w, NULL, '[');
        hd_json_add_real(w, NULL, c->points[i].bytes);
        hd_json_add_real(w, NULL, c->points[i].seconds);
        hd_json_end(w, ']');
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

static void add_devices(struct hd_json_writer *w, const struct hd_calibration *cal)
{
    hd_json_add_line(w);
    hd_json_begin(w, "each", '[');
    for (int i = 0; i < cal->each_count; i++) {
        hd_json_begin(w, NULL, '[');
        hd_json_add_real(w, NULL, cal->each[i].single_flops);
        hd_json_add_real(w, NULL, cal->each[i].half_flops);
        hd_json_add_real(w, NULL, cal->each[i].memory_bytes_per_s);
        hd_json_end(w, ']');
    }
    hd_json_end(w, ']');
    hd_json_begin(w, "pairs", '[');
    for (int i = 0; i < cal->pair_count; i++) {
        hd_json_begin(w, NULL, '[');
        hd_json_add_int64(w, NULL, cal->pairs[i].a);
        hd_json_add_int64(w, NULL, cal->pairs[i].b);
        hd_json_add_real(w, NULL, cal->pairs[i].latency_s);
        hd_json_add_real(w, NULL, cal->pairs[i].bytes_per_s);
        hd_json_end(w, ']');
    }
    hd_json_end(w, ']');
}

void hd_calibration_write(const struct hd_calibration *cal, struct hd_text *ret_text)
{
    struct hd_json_writer w = {.out = ret_text};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "kind", "Calibration");
    hd_json_add_int64(&w, "version", HD_CALIBRATION_VERSION);
    hd_json_add_string(&w, "device", cal->device);
    hd_json_add_string(&w, "isa", cal->isa);
    hd_json_add_string(&w, "library", cal->library);
    hd_json_add_string(&w, "build", cal->build);
    hd_json_add_string(&w, "engine", cal->engine);
    hd_json_add_int64(&w, "made_unix_s", cal->made_unix_s);
    hd_json_add_int64(&w, "threads", cal->threads);
    hd_json_add_int64(&w, "devices", cal->devices);
    hd_json_add_real(&w, "launch_s", cal->launch_s);
    hd_json_add_real(&w, "step_s", cal->step_s);
    hd_json_add_real(&w, "wait_share", cal->wait_share);
    hd_json_add_real(&w, "wait_s", cal->wait_s);
    hd_json_add_real(&w, "checkpoint_bytes_per_s", cal->checkpoint_bytes_per_s);
    add_devices(&w, cal);
    hd_json_begin(&w, "kernels", '[');
    for (int i = 0; i < cal->class_count; i++)
        write_class(&w, &cal->classes[i]);
    hd_json_end(&w, ']');
    hd_json_begin(&w, "collectives", '[');
    for (int i = 0; i < cal->curve_count; i++)
        add_curve(&w, &cal->curves[i]);
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(ret_text, "\n");
}

/* ---- reading ---- */

static enum hd_status to_real(const struct hd_json *value, const char *what, double min, double max,
                              double *ret_value)
{
    if (value->kind != HD_JSON_NUMBER || hd_text_to_double(value->text, min, max, ret_value))
        return hd_err(HD_INVALID, "%s is no number from %g to %g", what, min, max);
    return HD_OK;
}

static enum hd_status need_real(const struct hd_json *object, const char *key, double min,
                                double max, double *ret_value)
{
    const struct hd_json *value;
    enum hd_status st = hd_json_need(object, key, HD_JSON_NUMBER, &value);

    return st ? st : to_real(value, key, min, max, ret_value);
}

static enum hd_status need_word(const struct hd_json *object, const char *key, size_t size_bytes,
                                char *ret_word)
{
    const char *text;
    enum hd_status st = hd_json_need_string(object, key, &text);

    if (!st && strlen(text) >= size_bytes)
        st = hd_err(HD_LIMIT, "%s has more than %zu bytes", key, size_bytes - 1);
    if (!st)
        memcpy(ret_word, text, strlen(text) + 1);
    return st;
}

/* Reads one measured launch: an array of exactly `count` numbers, the sizes and, as the last one,
 * the seconds. */
static enum hd_status read_numbers(const struct hd_json *row, const char *what, int count,
                                   double size_least, double *ret_numbers)
{
    const struct hd_json *n = row->first;
    enum hd_status st = HD_OK;

    if (row->kind != HD_JSON_ARRAY || row->count != (size_t)count)
        return hd_err(HD_INVALID, "%s: not a list of %d numbers", what, count);
    for (int i = 0; !st && i < count; i++, n = n->next)
        st = i < count - 1 ? to_real(n, what, size_least, size_most, &ret_numbers[i])
                           : to_real(n, what, seconds_least, seconds_most, &ret_numbers[i]);
    return st;
}

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
    const struct hd_json *samples;
    const char *name;
    enum hd_status st = hd_json_need_string(object, "kernel", &name);

    if (!st && !find_kernel(name, &key.kernel))
        return HD_OK;
    if (!st)
        st = need_word(object, "variant", sizeof key.variant, key.variant);
    if (!st)
        st = hd_json_need(object, "samples", HD_JSON_ARRAY, &samples);
    if (st)
        return st;
    for (const struct hd_json *row = samples->first; !st && row; row = row->next) {
        double numbers[HD_CALIBRATION_SIZES + 1];

        st = read_numbers(row, name, HD_CALIBRATION_SIZES + 1, 1, numbers);
        if (st)
            break;
        memcpy(key.size, numbers, sizeof key.size);
        st = hd_calibration_add(cal, arena, &key, numbers[HD_CALIBRATION_SIZES]);
    }
    return st;
}

static enum hd_status read_curve(const struct hd_json *object, struct hd_arena *arena,
                                 struct hd_calibration *cal)
{
    const struct hd_json *points;
    const char *name;
    int64_t members;
    int kind = 0;
    enum hd_status st = hd_json_need_string(object, "kind", &name);

    if (!st)
        st = hd_json_need_int64(object, "members", 1, DEVICES_MAX, &members);
    if (!st)
        st = hd_json_need(object, "points", HD_JSON_ARRAY, &points);
    if (st)
        return st;
    while (kind < HD_COMM_KIND_COUNT && strcmp(kind_names[kind], name) != 0)
        kind++;
    if (kind == HD_COMM_KIND_COUNT)
        return hd_err(HD_INVALID, "there is no collective '%.32s'", name);
    for (const struct hd_json *row = points->first; !st && row; row = row->next) {
        double numbers[2];

        st = read_numbers(row, name, 2, 0, numbers);
        if (!st)
            st = hd_calibration_add_collective(cal, arena, (enum hd_comm_kind)kind, members,
                                               numbers[0], numbers[1]);
    }
    return st;
}

/* Reads the rows of `each`: one per device, in the order of the devices' numbers. */
static enum hd_status read_each(const struct hd_json *rows, int64_t devices,
                                struct hd_calibration_device *each)
{
    const struct hd_json *row = rows->first;
    enum hd_status st = HD_OK;

    if (rows->count && (int64_t)rows->count != devices)
        return hd_err(HD_INVALID, "each: %zu rows for %lld devices", rows->count,
                      (long long)devices);
    for (size_t i = 0; !st && i < rows->count; i++, row = row->next) {
        if (row->kind != HD_JSON_ARRAY || row->count != 3)
            return hd_err(HD_INVALID, "each: not a list of 3 numbers");
        st = to_real(row->first, "each", 0, size_most, &each[i].single_flops);
        if (!st)
            st = to_real(row->first->next, "each", 0, size_most, &each[i].half_flops);
        if (!st)
            st = to_real(row->first->next->next, "each", 0, size_most, &each[i].memory_bytes_per_s);
    }
    return st;
}

/* Reads the rows of `pairs`. HD_INVALID: a device does not exist, or a pair occurs twice. */
static enum hd_status read_pairs(const struct hd_json *rows, int64_t devices,
                                 struct hd_calibration_pair *pairs)
{
    const struct hd_json *row = rows->first;
    double number[4], last = -1;
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < rows->count; i++, row = row->next) {
        const struct hd_json *n = row->first;

        if (row->kind != HD_JSON_ARRAY || row->count != 4)
            return hd_err(HD_INVALID, "pairs: not a list of 4 numbers");
        for (int k = 0; !st && k < 4; k++, n = n->next)
            st = to_real(n, "pairs",
                         k < 2    ? 0
                         : k == 2 ? seconds_least
                                  : 1,
                         k < 2    ? (double)(devices - 1)
                         : k == 2 ? seconds_most
                                  : rate_most,
                         &number[k]);
        if (st)
            return st;
        pairs[i] = (struct hd_calibration_pair){(int64_t)number[0], (int64_t)number[1], number[2],
                                                number[3]};
        if (pairs[i].a >= pairs[i].b || (double)(pairs[i].a * devices + pairs[i].b) <= last)
            return hd_err(HD_INVALID, "pairs: devices %lld and %lld are no pair, or out of order",
                          (long long)pairs[i].a, (long long)pairs[i].b);
        last = (double)(pairs[i].a * devices + pairs[i].b);
    }
    return st;
}

/* Reads `each` and `pairs`. Both may be absent: some probes measure only kernels. */
static enum hd_status read_devices(const struct hd_json *root, struct hd_arena *arena,
                                   struct hd_calibration *cal)
{
    const struct hd_json *each = NULL, *pairs = NULL;
    struct hd_calibration_device *device;
    struct hd_calibration_pair *pair;
    enum hd_status st = HD_OK;

    if (hd_json_member(root, "each"))
        st = hd_json_need(root, "each", HD_JSON_ARRAY, &each);
    if (!st && hd_json_member(root, "pairs"))
        st = hd_json_need(root, "pairs", HD_JSON_ARRAY, &pairs);
    if (st || !each || !pairs)
        return st;
    if (each->count > HD_CALIBRATION_DEVICES_MAX || pairs->count > HD_CALIBRATION_PAIRS_MAX)
        return hd_err(HD_LIMIT, "more than %d devices", (int)HD_CALIBRATION_DEVICES_MAX);
    device = hd_arena_array(arena, each->count + 1, sizeof *device);
    pair = hd_arena_array(arena, pairs->count + 1, sizeof *pair);
    if (!device || !pair)
        return hd_err(HD_NO_MEMORY, "no memory for a calibration");
    st = read_each(each, cal->devices, device);
    if (!st)
        st = read_pairs(pairs, cal->devices, pair);
    return st ? st
              : hd_calibration_set_devices(cal, arena, device, (int)each->count, pair,
                                           (int)pairs->count);
}

static enum hd_status read_head(const struct hd_json *root, struct hd_calibration *cal)
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
        st = need_word(root, "device", sizeof cal->device, cal->device);
    if (!st)
        st = need_word(root, "isa", sizeof cal->isa, cal->isa);
    if (!st)
        st = need_word(root, "library", sizeof cal->library, cal->library);
    if (!st)
        st = need_word(root, "build", sizeof cal->build, cal->build);
    if (!st)
        st = need_word(root, "engine", sizeof cal->engine, cal->engine);
    if (!st)
        st = hd_json_need_int64(root, "made_unix_s", 0, INT64_MAX, &cal->made_unix_s);
    if (!st)
        st = hd_json_need_int64(root, "threads", 1, THREADS_MAX, &cal->threads);
    if (!st)
        st = hd_json_need_int64(root, "devices", 1, DEVICES_MAX, &cal->devices);
    if (!st)
        st = need_real(root, "launch_s", 0, 1, &cal->launch_s);
    if (!st)
        st = need_real(root, "step_s", 0, seconds_most, &cal->step_s);
    if (!st && hd_json_member(root, "wait_share")) /* files of older builds lack this key */
        st = need_real(root, "wait_share", 0, wait_share_most, &cal->wait_share);
    if (!st && hd_json_member(root, "wait_s"))
        st = need_real(root, "wait_s", 0, seconds_most, &cal->wait_s);
    if (!st)
        st = need_real(root, "checkpoint_bytes_per_s", 0, rate_most, &cal->checkpoint_bytes_per_s);
    return st;
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
        st = read_head(root, ret_cal);
    if (!st)
        st = read_devices(root, arena, ret_cal);
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
