/* One adapter from several: its product is the weighted sum of theirs, in double, module by module. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/random.h"
#include "hf/hf.h"
#include "tests/job_text.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { IN = 6, OUT = 5, RANK_MAX = 3 };

/* The modules of the adapters; the second adapter lacks the last. */
static const char *const modules[] = {
    "base_model.model.model.layers.0.self_attn.q_proj.",
    "base_model.model.model.layers.1.self_attn.q_proj.",
    "base_model.model.model.layers.0.mlp.up_proj.",
};

struct adapter {
    int rank, modules;
    double alpha, scaling;
    bool rslora;
    bool alone; /* true: the last module has B and no A */
    float a[3][RANK_MAX * IN], b[3][OUT * RANK_MAX];
};

static char folder[TEMPORARY_BYTES];

static void add_tensor(struct hd_text *header, struct hd_text *data, const char *module,
                       const char *factor, int rows, int columns, const float *values)
{
    const size_t bytes = (size_t)(rows * columns) * sizeof *values;

    hd_text_add(
        header,
        "%s\"%s%s.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%zu,%zu]}",
        data->len_bytes ? "," : "", module, factor, rows, columns, data->len_bytes,
        data->len_bytes + bytes);
    hd_text_add_bytes(data, (const char *)values, bytes);
}

static void write_file(const char *dir, const char *name, const char *bytes, size_t size_bytes)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(hd_file_write_atomic(path, bytes, size_bytes, 0644), HD_OK);
}

/* Writes an adapter with random factors as PEFT does. */
static void write_adapter(struct adapter *a, uint64_t seed, const char *more, char ret_dir[256])
{
    struct hd_text header = {0}, data = {0}, file = {0}, config = {0};
    uint64_t header_bytes;

    (void)snprintf(ret_dir, 256, "%s/adapter-%d", folder, (int)seed);
    assert_int_equal(mkdir(ret_dir, 0755), 0);
    hd_text_add(&header, "{");
    if (a->alone)
        add_tensor(&header, &data, modules[2], "lora_B", OUT, a->rank, a->b[2]);
    for (int m = 0; m < a->modules; m++) {
        for (int i = 0; i < a->rank * IN; i++)
            a->a[m][i] = hd_random_normal(seed, (uint64_t)(1000 * m + i));
        for (int i = 0; i < OUT * a->rank; i++)
            a->b[m][i] = hd_random_normal(seed + 50, (uint64_t)(1000 * m + i));
        add_tensor(&header, &data, modules[m], "lora_A", a->rank, IN, a->a[m]);
        add_tensor(&header, &data, modules[m], "lora_B", OUT, a->rank, a->b[m]);
    }
    hd_text_add(&header, "}");
    while (header.len_bytes % 8)
        hd_text_add(&header, " ");
    header_bytes = header.len_bytes;
    hd_text_add_bytes(&file, (const char *)&header_bytes, sizeof header_bytes);
    hd_text_add_bytes(&file, header.data, header.len_bytes);
    hd_text_add_bytes(&file, data.data, data.len_bytes);
    write_file(ret_dir, "adapter_model.safetensors", file.data, file.len_bytes);
    hd_text_add(&config,
                "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"r\":%d,\"lora_alpha\":%g,"
                "\"use_rslora\":%s,\"bias\":\"none\",\"base_model_name_or_path\":\"base\"%s}",
                a->rank, a->alpha, a->rslora ? "true" : "false", more);
    write_file(ret_dir, "adapter_config.json", config.data, config.len_bytes);
    hd_text_free(&header);
    hd_text_free(&data);
    hd_text_free(&file);
    hd_text_free(&config);
}

static double product(const float *a, const float *b, int rank, int row, int column)
{
    double sum = 0;

    for (int k = 0; k < rank; k++)
        sum += (double)b[row * rank + k] * (double)a[k * IN + column];
    return sum;
}

static void set_up_folder(void)
{
    temporary_dir(folder, "combine");
}

/* Scalings 4 / 2 = 2 and, with rsLoRA, 3 / sqrt(3). */
static void a_combination_computes_the_weighted_sum(void **state)
{
    struct adapter one = {.rank = 2, .modules = 3, .alpha = 4, .scaling = 2},
                   two = {.rank = 3, .modules = 2, .alpha = 3, .scaling = sqrt(3), .rslora = true};
    const double weights[] = {0.75, -0.5};
    char dirs[2][256], out[256];
    struct hd_weights *w = NULL;
    struct hd_job job;
    int64_t rank = 0;

    set_up_folder();
    write_adapter(&one, 1, "", dirs[0]);
    write_adapter(&two, 2, "", dirs[1]);
    (void)snprintf(out, sizeof out, "%s/out", folder);
    if (hd_adapter_combine(
            &(struct hd_adapter_combination){.dirs = (const char *const[]){dirs[0], dirs[1]},
                                             .weights = weights,
                                             .count = 2,
                                             .out_dir = out},
            &rank))
        fail_msg("%s", hd_err_message());
    assert_int_equal(rank, 5);
    hd_job_init(&job, job_arena());
    assert_int_equal(hd_adapter_read(out, &job, NULL), HD_OK);
    assert_int_equal(job.adapter_rank, 5);
    assert_true(hd_job_adapter_scale(&job) == 1);
    assert_int_equal(hd_hf_open_adapter(out, &w), HD_OK);
    assert_int_equal(hd_weights_count(w), 6);
    for (int m = 0; m < 3; m++) {
        float a[5 * IN], b[OUT * 5];
        char name[128];

        (void)snprintf(name, sizeof name, "%slora_A.weight", modules[m]);
        memcpy(a, hd_weights_find(w, name)->data, sizeof a);
        (void)snprintf(name, sizeof name, "%slora_B.weight", modules[m]);
        memcpy(b, hd_weights_find(w, name)->data, sizeof b);
        for (int row = 0; row < OUT; row++)
            for (int column = 0; column < IN; column++) {
                double expected =
                    weights[0] * one.scaling * product(one.a[m], one.b[m], 2, row, column);

                if (m < two.modules)
                    expected +=
                        weights[1] * two.scaling * product(two.a[m], two.b[m], 3, row, column);
                assert_true(fabs(product(a, b, 5, row, column) - expected) < 1e-5);
            }
    }
    hd_weights_close(w);
    assert_int_equal(
        hd_adapter_combine(&(struct hd_adapter_combination){.dirs = (const char *const[]){dirs[0]},
                                                            .weights = weights,
                                                            .count = 1,
                                                            .out_dir = out},
                           NULL),
        HD_EXISTS);
    (void)hd_file_remove_tree(folder);
}

static void what_does_not_add_up_is_refused(void **state)
{
    struct adapter a = {.rank = 2, .modules = 1, .alpha = 4}, b = a;
    char dirs[2][256], out[256];
    const double weights[] = {1, NAN};

    set_up_folder();
    write_adapter(&a, 1, "", dirs[0]);
    write_adapter(&b, 2, ",\"use_dora\":true", dirs[1]);
    (void)snprintf(out, sizeof out, "%s/out", folder);
    for (size_t count = 1; count <= 2; count++) {
        const struct hd_adapter_combination asked = {
            .dirs = (const char *const[]){count == 1 ? dirs[1] : dirs[0], dirs[0]},
            .weights = weights,
            .count = count,
            .out_dir = out};

        assert_int_equal(hd_adapter_combine(&asked, NULL),
                         count == 1 ? HD_UNSUPPORTED : HD_INVALID);
        assert_tells(hd_err_message(), count == 1 ? "adapter-2" : "adapter-1",
                     count == 1 ? "DoRA" : "no number");
        assert_true(!hd_file_exists(out)); /* nothing is left behind */
    }
    (void)hd_file_remove_tree(folder);
}

static void a_factor_alone_is_refused(void **state)
{
    struct adapter a = {.rank = 2, .modules = 1, .alpha = 4, .alone = true};
    const double weight = 1;
    char dir[256], out[256];

    set_up_folder();
    write_adapter(&a, 1, "", dir);
    (void)snprintf(out, sizeof out, "%s/out", folder);
    assert_int_equal(
        hd_adapter_combine(
            &(struct hd_adapter_combination){
                .dirs = (const char *const[]){dir}, .weights = &weight, .count = 1, .out_dir = out},
            NULL),
        HD_CORRUPT);
    assert_tells(hd_err_message(), "one of the two factors", "mlp.up_proj");
    (void)hd_file_remove_tree(folder);
}

RUN_CASES()
