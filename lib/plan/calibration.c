#include "plan/calibration.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job/job.h"

void hd_calibration_build(char ret_build[HD_CALIBRATION_WORD_MAX])
{
    (void)snprintf(ret_build, HD_CALIBRATION_WORD_MAX, "%d-%016llx", (int)HD_JOB_VERSION,
                   (unsigned long long)hd_kernel_list_hash());
}

/* ---- keys ---- */

static double at_least_one(double x)
{
    return x >= 1 ? x : 1;
}

static void gemm_key(const struct hd_gemm_args *a, struct hd_calibration_key *k)
{
    static const char *const names[] = {[HD_EPILOGUE_NONE] = "",
                                        [HD_EPILOGUE_GELU] = ".gelu",
                                        [HD_EPILOGUE_GELU_BACKWARD] = ".dgelu",
                                        [HD_EPILOGUE_GLU] = ".glu",
                                        [HD_EPILOGUE_GLU_BACKWARD] = ".dglu"};

    (void)snprintf(k->variant, sizeof k->variant, "%s.%c%c%s", hd_dtype_name(a->ab_dtype),
                   a->trans_a ? 't' : 'n', a->trans_b ? 't' : 'n', names[a->epilogue]);
    k->size[0] = at_least_one((double)a->M);
    k->size[1] = at_least_one((double)a->N);
    k->size[2] = at_least_one((double)a->K);
    k->work = 2 * k->size[0] * k->size[1] * k->size[2];
}

static void attention_key(enum hd_dtype dtype, int64_t head_width, struct hd_calibration_key *k)
{
    (void)snprintf(k->variant, sizeof k->variant, "%s", hd_dtype_name(dtype));
    k->size[2] = at_least_one((double)head_width);
    k->work = k->size[0];
}

void hd_calibration_key_of(enum hd_kernel kernel, const void *args, const struct hd_costs *costs,
                           struct hd_calibration_key *k)
{
    const double bytes = (double)(costs->read_bytes + costs->write_bytes);

    memset(k, 0, sizeof *k);
    k->kernel = kernel;
    k->size[0] = at_least_one(costs->flops);
    k->size[1] = at_least_one(bytes);
    k->size[2] = 1;
    k->work = k->size[1];
    switch (kernel) {
    case HD_K_gemm:
        gemm_key(args, k);
        break;
    case HD_K_fp8_gemm: {
        const struct hd_fp8_gemm_args *a = args;

        k->size[0] = at_least_one((double)a->M);
        k->size[1] = at_least_one((double)a->N);
        k->size[2] = at_least_one((double)a->K);
        k->work = at_least_one(costs->flops);
        break;
    }
    case HD_K_attention_forward:
        attention_key(((const struct hd_attention_forward_args *)args)->dtype,
                      ((const struct hd_attention_forward_args *)args)->D, k);
        break;
    case HD_K_attention_backward:
        attention_key(((const struct hd_attention_backward_args *)args)->dtype,
                      ((const struct hd_attention_backward_args *)args)->D, k);
        break;
    case HD_K_grouped_gemm: {
        const struct hd_grouped_gemm_args *a = args;

        (void)snprintf(k->variant, sizeof k->variant, "%s.%c", hd_dtype_name(a->ab_dtype),
                       a->trans_b ? 't' : 'n');
        k->work = k->size[0];
        break;
    }
    case HD_K_grouped_gemm_weight:
        (void)snprintf(k->variant, sizeof k->variant, "%s",
                       hd_dtype_name(((const struct hd_grouped_gemm_weight_args *)args)->ab_dtype));
        k->work = k->size[0];
        break;
    default:
        break;
    }
}

static bool is_product_of_sizes(enum hd_kernel kernel)
{
    return kernel == HD_K_gemm || kernel == HD_K_fp8_gemm;
}

/* Returns the work of a measured launch in the kernel's unit of work: FLOPs or bytes. */
static double work_of(enum hd_kernel kernel, const double size[HD_CALIBRATION_SIZES])
{
    switch (kernel) {
    case HD_K_gemm:
    case HD_K_fp8_gemm:
        return 2 * size[0] * size[1] * size[2];
    case HD_K_attention_forward:
    case HD_K_attention_backward:
    case HD_K_grouped_gemm:
    case HD_K_grouped_gemm_weight:
        return size[0];
    default:
        return size[1];
    }
}

/* ---- adding ---- */

static struct hd_calibration_class *find_class(const struct hd_calibration *cal,
                                               enum hd_kernel kernel, const char *variant)
{
    for (int i = 0; i < cal->class_count; i++)
        if (cal->classes[i].kernel == kernel && strcmp(cal->classes[i].variant, variant) == 0)
            return &cal->classes[i];
    return NULL;
}

static enum hd_status no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a calibration");
}

static enum hd_status append_class(struct hd_calibration *cal, struct hd_arena *arena,
                                   const struct hd_calibration_key *key,
                                   struct hd_calibration_class **ret_class)
{
    struct hd_calibration_class *grown, *c;

    if (cal->class_count == HD_CALIBRATION_CLASSES_MAX)
        return hd_err(HD_LIMIT, "a calibration has at most %d kinds of kernels",
                      (int)HD_CALIBRATION_CLASSES_MAX);
    grown =
        hd_arena_grow(arena, cal->classes, cal->class_count, &cal->class_capacity, sizeof *grown);
    if (!grown)
        return no_memory();
    cal->classes = grown;
    c = &cal->classes[cal->class_count++];
    *c = (struct hd_calibration_class){.kernel = key->kernel};
    memcpy(c->variant, key->variant, sizeof c->variant);
    *ret_class = c;
    return HD_OK;
}

enum hd_status hd_calibration_add(struct hd_calibration *cal, struct hd_arena *arena,
                                  const struct hd_calibration_key *key, double seconds)
{
    struct hd_calibration_class *c = find_class(cal, key->kernel, key->variant);
    struct hd_calibration_sample *grown;
    enum hd_status st = c ? HD_OK : append_class(cal, arena, key, &c);

    if (st)
        return st;
    for (int i = 0; i < c->count; i++)
        if (memcmp(c->samples[i].size, key->size, sizeof key->size) == 0) {
            c->samples[i].seconds = (c->samples[i].seconds + seconds) / 2;
            return HD_OK;
        }
    if (c->count == HD_CALIBRATION_SAMPLES_MAX)
        return hd_err(HD_LIMIT, "a calibration has at most %d sizes of %s",
                      (int)HD_CALIBRATION_SAMPLES_MAX, hd_kernel_get_info(key->kernel)->name);
    grown = hd_arena_grow(arena, c->samples, c->count, &c->capacity, sizeof *grown);
    if (!grown)
        return no_memory();
    c->samples = grown;
    c->samples[c->count].seconds = seconds;
    memcpy(c->samples[c->count++].size, key->size, sizeof key->size);
    return HD_OK;
}

static struct hd_calibration_curve *find_curve(const struct hd_calibration *cal,
                                               enum hd_comm_kind kind, int64_t members)
{
    for (int i = 0; i < cal->curve_count; i++)
        if (cal->curves[i].kind == kind && cal->curves[i].members == members)
            return &cal->curves[i];
    return NULL;
}

enum hd_status hd_calibration_add_collective(struct hd_calibration *cal, struct hd_arena *arena,
                                             enum hd_comm_kind kind, int64_t members, double bytes,
                                             double seconds)
{
    struct hd_calibration_curve *c = find_curve(cal, kind, members);
    struct hd_calibration_point *grown;

    if (!c) {
        struct hd_calibration_curve *curves;

        if (cal->curve_count == HD_CALIBRATION_CURVES_MAX)
            return hd_err(HD_LIMIT, "a calibration has at most %d curves of collectives",
                          (int)HD_CALIBRATION_CURVES_MAX);
        curves = hd_arena_grow(arena, cal->curves, cal->curve_count, &cal->curve_capacity,
                               sizeof *curves);
        if (!curves)
            return no_memory();
        cal->curves = curves;
        c = &cal->curves[cal->curve_count++];
        *c = (struct hd_calibration_curve){.kind = kind, .members = members};
    }
    if (c->count == HD_CALIBRATION_POINTS_MAX)
        return hd_err(HD_LIMIT, "a calibration has at most %d sizes of %s",
                      (int)HD_CALIBRATION_POINTS_MAX, hd_comm_kind_name(kind));
    if (c->count && bytes <= c->points[c->count - 1].bytes)
        return hd_err(HD_INVALID, "the sizes of %s among %lld are not ascending",
                      hd_comm_kind_name(kind), (long long)members);
    grown = hd_arena_grow(arena, c->points, c->count, &c->capacity, sizeof *grown);
    if (!grown)
        return no_memory();
    c->points = grown;
    c->points[c->count++] = (struct hd_calibration_point){bytes, seconds};
    return HD_OK;
}

/* ---- reading times ---- */

/* nearest samples that a mean takes, for kernels with three sizes (2^3 corners of a box); half as
 * many for two sizes */
enum { NEAR_MAX = 8 };

/* Weights of a doubling of FLOPs per byte, and of a doubling of the head width, relative to a
 * doubling of the bytes. A change of FLOPs per byte tells types and options apart, so it weighs
 * four. */
static const double intensity_weight = 4, head_weight = 2;

/* Maps a launch to coordinates for the distance between launches: for products the logarithms of M,
 * N, K; for other kernels those of the bytes, FLOPs per byte and head width. */
static void sample_coordinates(enum hd_kernel kernel, const double size[HD_CALIBRATION_SIZES],
                               double ret_at[HD_CALIBRATION_SIZES])
{
    if (is_product_of_sizes(kernel)) {
        for (int i = 0; i < HD_CALIBRATION_SIZES; i++)
            ret_at[i] = log2(size[i]);
        return;
    }
    ret_at[0] = log2(size[1]);
    ret_at[1] = intensity_weight * log2(size[0] / size[1]);
    ret_at[2] = head_weight * log2(size[2]);
}

struct near_sample {
    /* squared distance from the launch that is looked up to the sample; the sample's seconds per
     * unit of work */
    double square, rate;
};

/* Inserts a sample into `near`, sorted by distance, and drops the farthest if there are more than
 * `most`. Returns the new number of samples. */
static int keep_near(struct near_sample near[NEAR_MAX], int count, int most, double square,
                     double rate)
{
    int at = count;

    while (at > 0 && near[at - 1].square > square)
        at--;
    if (at == most)
        return count;
    memmove(&near[at + 1], &near[at],
            sizeof near[0] * (size_t)((count < most ? count : most - 1) - at));
    near[at] = (struct near_sample){square, rate};
    return count < most ? count + 1 : most;
}

static double interpolate(const struct hd_calibration_class *c,
                          const struct hd_calibration_key *key)
{
    const int most = is_product_of_sizes(key->kernel) ? NEAR_MAX : NEAR_MAX / 2;
    double at[HD_CALIBRATION_SIZES], sum = 0, weights = 0;
    struct near_sample near[NEAR_MAX] = {{0}};
    int count = 0;

    sample_coordinates(key->kernel, key->size, at);
    for (int i = 0; i < c->count; i++) {
        const struct hd_calibration_sample *s = &c->samples[i];
        double there[HD_CALIBRATION_SIZES], square = 0;

        sample_coordinates(key->kernel, s->size, there);
        for (int k = 0; k < HD_CALIBRATION_SIZES; k++)
            square += (at[k] - there[k]) * (at[k] - there[k]);
        count = keep_near(near, count, most, square, s->seconds / work_of(key->kernel, s->size));
    }
    if (near[0].square < 1e-12)
        return key->work * near[0].rate;
    for (int i = 0; i < count; i++) {
        sum += log(near[i].rate) / near[i].square;
        weights += 1 / near[i].square;
    }
    return key->work * exp(sum / weights);
}

/* Sets ret_plain to a variant without its fused operations: "f32.nt.gelu" -> "f32.nt". */
static void plain_variant(const char *variant, char ret_plain[HD_CALIBRATION_VARIANT_MAX])
{
    const char *dot = strchr(variant, '.');
    const int length = dot ? (int)(dot - variant) + 3 : (int)strlen(variant);

    (void)snprintf(ret_plain, HD_CALIBRATION_VARIANT_MAX, "%.*s", length, variant);
}

enum hd_status hd_calibration_set_devices(struct hd_calibration *cal, struct hd_arena *arena,
                                          const struct hd_calibration_device *each, int each_count,
                                          const struct hd_calibration_pair *pairs, int pair_count)
{
    cal->each = hd_arena_array(arena, (size_t)each_count + 1, sizeof *each);
    cal->pairs = hd_arena_array(arena, (size_t)pair_count + 1, sizeof *pairs);
    if (!cal->each || !cal->pairs)
        return hd_err(HD_NO_MEMORY, "no memory for a calibration");
    if (each_count)
        memcpy(cal->each, each, (size_t)each_count * sizeof *each);
    if (pair_count)
        memcpy(cal->pairs, pairs, (size_t)pair_count * sizeof *pairs);
    cal->each_count = each_count;
    cal->pair_count = pair_count;
    return HD_OK;
}

void hd_calibration_set_waits(struct hd_calibration *cal, const struct hd_calibration_waits *waits,
                              int count)
{
    double mean_share = 0, mean_each = 0, both = 0, square = 0;

    for (int i = 0; i < count; i++) {
        mean_share += waits[i].share / count;
        mean_each += waits[i].each / count;
    }
    for (int i = 0; i < count; i++) {
        both += (waits[i].each - mean_each) * (waits[i].share - mean_share);
        square += (waits[i].each - mean_each) * (waits[i].each - mean_each);
    }
    if (!count)
        return;
    cal->wait_s = square > 0 && both > 0 ? both / square : 0;
    cal->wait_share = mean_share - cal->wait_s * mean_each;
    if (cal->wait_share >= 0)
        return;
    /* the fitted wait at 0 collectives is negative: fit a line through the origin instead */
    cal->wait_share = both = square = 0;
    for (int i = 0; i < count; i++) {
        both += waits[i].each * waits[i].share;
        square += waits[i].each * waits[i].each;
    }
    cal->wait_s = both / square;
}

bool hd_calibration_seconds(const struct hd_calibration *cal, const struct hd_calibration_key *key,
                            double *ret_seconds)
{
    const struct hd_calibration_class *c = find_class(cal, key->kernel, key->variant);
    char plain[HD_CALIBRATION_VARIANT_MAX];

    if (!c && key->kernel == HD_K_gemm) {
        plain_variant(key->variant, plain);
        c = find_class(cal, key->kernel, plain);
    }
    if (!c || !c->count)
        return false;
    *ret_seconds = interpolate(c, key);
    return true;
}

static double most_rate(const struct hd_calibration *cal, enum hd_kernel kernel)
{
    double most = 0;

    for (int i = 0; i < cal->class_count; i++)
        for (int k = 0; cal->classes[i].kernel == kernel && k < cal->classes[i].count; k++) {
            const struct hd_calibration_sample *s = &cal->classes[i].samples[k];

            most = fmax(most, work_of(kernel, s->size) / s->seconds);
        }
    return most;
}

double hd_calibration_most_flops(const struct hd_calibration *cal)
{
    static const enum hd_kernel products[] = {HD_K_gemm, HD_K_fp8_gemm, HD_K_grouped_gemm,
                                              HD_K_grouped_gemm_weight};
    double most =
        2 * fmax(most_rate(cal, HD_K_attention_forward), most_rate(cal, HD_K_attention_backward));

    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        most = fmax(most, most_rate(cal, products[i]));
    return most;
}

static const struct hd_calibration_curve *nearest_curve(const struct hd_calibration *cal,
                                                        enum hd_comm_kind kind, int64_t members)
{
    const struct hd_calibration_curve *near = NULL;
    double least = 0;

    for (int i = 0; i < cal->curve_count; i++) {
        const struct hd_calibration_curve *c = &cal->curves[i];
        const double far = fabs(log((double)c->members / (double)members));

        if (c->kind == kind && c->count && (!near || far < least)) {
            near = c;
            least = far;
        }
    }
    return near;
}

bool hd_calibration_collective(const struct hd_calibration *cal, enum hd_comm_kind kind,
                               int64_t members, double bytes, double *ret_seconds,
                               int64_t *ret_members)
{
    const struct hd_calibration_curve *c = nearest_curve(cal, kind, members);
    int right = 1;

    if (!c)
        return false;
    *ret_members = c->members;
    *ret_seconds = c->points[0].seconds;
    if (c->count == 1 || bytes <= c->points[0].bytes)
        return true;
    while (right < c->count - 1 && c->points[right].bytes < bytes)
        right++;
    {
        const struct hd_calibration_point *a = &c->points[right - 1], *b = &c->points[right];
        const double slope = (b->seconds - a->seconds) / (b->bytes - a->bytes);

        *ret_seconds = a->seconds + slope * (bytes - a->bytes);
        if (bytes > b->bytes && slope <= 0) /* measurement noise: more bytes never take less time */
            *ret_seconds = b->seconds;
    }
    return true;
}

/* Refuses a calibration that another build measured, or that has no kernel of this build. */
static enum hd_status check_measured(const struct hd_calibration *cal)
{
    char build[HD_CALIBRATION_WORD_MAX];

    hd_calibration_build(build);
    if (strcmp(cal->build, build) != 0)
        return hd_err(HD_CONFLICT,
                      "it was measured by another build of Heddle (%s, this is %s), whose "
                      "kernels may take other times; probe again",
                      cal->build, build);
    for (int i = 0; i < cal->class_count; i++)
        if (cal->classes[i].count)
            return HD_OK;
    return hd_err(HD_CONFLICT, "it has no kernel that this build has; probe again");
}

enum hd_status hd_calibration_check_gpu(const struct hd_calibration *cal,
                                        const struct hd_gpu_kind *kind)
{
    const struct hd_gpu_kind *measured = hd_gpu_kind_of_name(cal->device);
    const enum hd_status st = check_measured(cal);

    /* kinds of GPU with equal names differ only in memory size */
    if (!st && (!measured || strcmp(measured->name, kind->name) != 0))
        return hd_err(HD_CONFLICT, "it was measured on %s, these devices are of the kind %s",
                      cal->device, kind->word);
    return st;
}

enum hd_status hd_calibration_check(const struct hd_calibration *cal,
                                    const struct hd_traits *traits, int64_t threads)
{
    const bool cuda = hd_traits_is_cuda(traits);
    const enum hd_status st = check_measured(cal);

    if (st)
        return st;
    if ((strcmp(cal->device, "cpu") != 0) != cuda)
        return hd_err(HD_CONFLICT, "it was measured on %s, these devices are %s; probe them",
                      cal->device, cuda ? "GPUs" : "of the CPU");
    if (!cuda && *cal->engine && strcmp(cal->engine, "shm") != 0)
        return hd_err(
            HD_CONFLICT,
            "its collectives are of the engine %s, those of CPU devices of shm; probe again",
            cal->engine);
    if (strcmp(cal->isa, traits->isa) != 0)
        return hd_err(HD_CONFLICT,
                      "it was measured with the instruction set %s, these devices have %s; probe "
                      "these devices",
                      cal->isa, traits->isa);
    if (*traits->library && strcmp(cal->library, traits->library) != 0)
        return hd_err(HD_CONFLICT,
                      "it was measured with the products of %s, these devices use those of %s; "
                      "probe again",
                      cal->library, traits->library);
    if (!cuda && cal->threads != threads)
        return hd_err(HD_CONFLICT,
                      "it was measured with %lld thread%s a device, these have %lld; probe with "
                      "--devices cpu:N:%lld",
                      (long long)cal->threads, cal->threads == 1 ? "" : "s", (long long)threads,
                      (long long)threads);
    return HD_OK;
}
