/* combine: one LoRA adapter in PEFT's form from several, which computes the weighted sum of theirs.
 *
 * The product of adapter i is s_i B_i A_i, with s_i = alpha / r, or alpha / sqrt(r) with rsLoRA. The
 * sum over i of w_i s_i B_i A_i is B A with
 *
 *     A = [w_1 s_1 A_1; w_2 s_2 A_2; ..]   rows behind each other, [sum of r_i, in]
 *     B = [B_1, B_2, ..]                   columns behind each other, [out, sum of r_i]
 *
 * and a scaling of 1: exact but for the rounding of w_i s_i A_i to fp32. (PEFT's add_weighted_adapter
 * with combination_type "cat".) A module that an adapter lacks gets zeros there, so that all modules
 * have one rank. A mean of the factors, PEFT's "linear", is another function: (A_1 + A_2)(B_1 + B_2)
 * has cross terms.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/order.h"
#include "hf/hf.h"

#define A_NAME "lora_A.weight"
#define B_NAME "lora_B.weight"

struct adapter {
    struct hd_job job; /* its form */
    struct hd_weights *weights;
    struct hd_text config; /* adapter_config.json */
    double factor;         /* weight x scaling */
    int64_t first;         /* ranks of the adapters before it */
};

struct combination {
    const struct hd_adapter_combination *asked;
    struct adapter *adapters;
    struct hd_arena arena;
    int64_t rank; /* sum of all ranks */
    /* [module_count], names of all modules up to the dot before A_NAME */
    const char **modules;
    size_t module_count;
};

/* ---- reading ---- */

static bool has_end(const char *text, const char *end)
{
    const size_t length = strlen(text), n = strlen(end);

    return length > n && strcmp(text + length - n, end) == 0;
}

/* Adds the module of a factor's name, unless it is listed. */
static enum hd_status add_module(struct combination *c, const char *name)
{
    const size_t length = strlen(name) - strlen(A_NAME);
    char *module;

    for (size_t i = 0; i < c->module_count; i++)
        if (strlen(c->modules[i]) == length && strncmp(c->modules[i], name, length) == 0)
            return HD_OK;
    module = hd_arena_alloc(&c->arena, length + 1);
    if (!module)
        return hd_err(HD_NO_MEMORY, "no memory to combine adapters");
    memcpy(module, name, length);
    c->modules[c->module_count++] = module;
    return HD_OK;
}

/* Checks that the folder has pairs of factors of linear modules and nothing else. */
static enum hd_status check_tensors(struct combination *c, const struct adapter *a)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < hd_weights_count(a->weights); i++) {
        const struct hd_weight *w = hd_weights_at(a->weights, i);
        const bool is_a = has_end(w->name, A_NAME), is_b = has_end(w->name, B_NAME);

        if (!is_a && !is_b)
            return hd_err(
                HD_UNSUPPORTED,
                "tensor %s is no factor of a linear module; only such adapters are combined",
                w->name);
        if (w->dtype != HD_F32 && w->dtype != HD_BF16 && w->dtype != HD_F16)
            return hd_err(HD_UNSUPPORTED, "tensor %s: dtype %s; give F32, BF16 or F16", w->name,
                          w->form);
        if (w->dim_count != 2 || w->shape[is_a ? 0 : 1] != a->job.adapter_rank)
            return hd_err(HD_UNSUPPORTED, "tensor %s is not of rank %lld", w->name,
                          (long long)a->job.adapter_rank);
        st = add_module(c, w->name); /* also of B alone, which find_width then refuses */
    }
    return st;
}

static enum hd_status open_adapter(struct combination *c, size_t index)
{
    const char *dir = c->asked->dirs[index];
    struct adapter *a = &c->adapters[index];
    enum hd_status st;

    hd_job_set_defaults(&a->job);
    a->job.arena = &c->arena;
    st = hd_adapter_read(dir, &a->job, NULL);
    if (!st && a->job.adapter != HD_JOB_ADAPTER_LORA)
        st = hd_err(HD_UNSUPPORTED, "%s: is a %s, no LoRA", dir,
                    hd_job_adapter_words[a->job.adapter]);
    if (!st && a->job.adapter_dora)
        st = hd_err(HD_UNSUPPORTED,
                    "%s: has magnitudes (DoRA), which do not add up; merge it into "
                    "its base with heddle checkpoint export",
                    dir);
    if (!st)
        st = hd_hf_open_adapter(dir, &a->weights);
    if (!st)
        st = hd_folder_read(dir, "adapter_config.json", HD_HF_CONFIG_BYTES_MAX, &a->config);
    a->factor = c->asked->weights[index] * hd_job_adapter_scale(&a->job);
    a->first = c->rank;
    c->rank += a->job.adapter_rank;
    if (!st) {
        const char **modules = hd_arena_array(
            &c->arena, c->module_count + hd_weights_count(a->weights), sizeof *modules);

        if (!modules)
            return hd_err(HD_NO_MEMORY, "no memory to combine adapters");
        if (c->module_count)
            memcpy(modules, c->modules, c->module_count * sizeof *modules);
        c->modules = modules;
        st = check_tensors(c, a);
        st = st ? hd_err_prefix(st, "%s", dir) : HD_OK;
    }
    return st;
}

/* Refuses a combination that Heddle could not read itself. */
static enum hd_status check_rank(const struct combination *c)
{
    const double most = hd_job_find_key("train.adapter.rank")->max;

    return (double)c->rank <= most
               ? HD_OK
               : hd_err(HD_INVALID,
                        "the ranks of the adapters add up to %lld, and an adapter has at most %g; "
                        "combine fewer",
                        (long long)c->rank, most);
}

/* ---- the factors ---- */

static double value_at(const struct hd_weight *w, int64_t index)
{
    float single;
    uint16_t half;

    if (w->dtype == HD_F32) {
        memcpy(&single, (const char *)w->data + index * (int64_t)sizeof single, sizeof single);
        return (double)single;
    }
    memcpy(&half, (const char *)w->data + index * (int64_t)sizeof half, sizeof half);
    return (double)hd_half_to_f32(w->dtype, half);
}

/* Finds a factor of a module in an adapter; NULL: the adapter lacks the module. */
static const struct hd_weight *factor_of(const struct adapter *a, const char *module, bool is_a)
{
    char name[HD_WEIGHTS_NAME_MAX];

    (void)snprintf(name, sizeof name, "%s%s", module, is_a ? A_NAME : B_NAME);
    return hd_weights_find(a->weights, name);
}

/* Finds the width of a module: `in` or `out`, which must be equal in all adapters that have it. */
static enum hd_status find_width(const struct combination *c, const char *module, bool is_a,
                                 int64_t *ret_width)
{
    int64_t width = 0;

    for (size_t i = 0; i < c->asked->count; i++) {
        const struct hd_weight *w = factor_of(&c->adapters[i], module, is_a);
        const int64_t own = w ? w->shape[is_a ? 1 : 0] : width;

        if (!w && factor_of(&c->adapters[i], module, !is_a))
            return hd_err(HD_CORRUPT, "%s: has one of the two factors of %s", c->asked->dirs[i],
                          module);
        if (w && width && own != width)
            return hd_err(
                HD_INVALID,
                "%s: %s has a width of %lld, and %lld in an adapter before it: they are of "
                "different models",
                c->asked->dirs[i], module, (long long)own, (long long)width);
        width = own;
    }
    *ret_width = width;
    return HD_OK;
}

/* Writes one factor of a module, [rank, width] of A or [width, rank] of B. */
static void write_factor(const struct combination *c, const char *module, bool is_a, int64_t width,
                         float *ret_values)
{
    memset(ret_values, 0, (size_t)(c->rank * width) * sizeof *ret_values);
    for (size_t i = 0; i < c->asked->count; i++) {
        const struct adapter *a = &c->adapters[i];
        const struct hd_weight *w = factor_of(a, module, is_a);
        const int64_t rank = a->job.adapter_rank;

        for (int64_t k = 0; w && k < rank * width; k++) {
            const int64_t row = is_a ? k / width : k / rank, column = is_a ? k % width : k % rank;
            float *to = is_a ? ret_values + (a->first + row) * width + column
                             : ret_values + row * c->rank + a->first + column;

            *to = (float)(is_a ? a->factor * value_at(w, k) : value_at(w, k));
        }
    }
}

/* ---- the folder ---- */

/* Writes the header of the file, padded to 8 bytes, and sets *ret_bytes to the bytes of all factors. */
static enum hd_status describe_factors(const struct combination *c, struct hd_text *ret_head,
                                       int64_t *ret_bytes)
{
    struct hd_safetensors_head head;
    char name[HD_WEIGHTS_NAME_MAX];
    enum hd_status st = HD_OK;

    hd_safetensors_begin(&head, ret_head);
    for (size_t i = 0; i < 2 * c->module_count; i++) {
        const bool is_a = i % 2 == 0;
        int64_t width;

        st = find_width(c, c->modules[i / 2], is_a, &width);
        if (st)
            return st;
        (void)snprintf(name, sizeof name, "%s%s", c->modules[i / 2], is_a ? A_NAME : B_NAME);
        hd_safetensors_add(&head, name, "F32",
                           (int64_t[]){is_a ? c->rank : width, is_a ? width : c->rank}, 2,
                           c->rank * width * (int64_t)sizeof(float));
    }
    *ret_bytes = head.data_bytes;
    return hd_safetensors_end(&head);
}

static enum hd_status write_combined_factors(const struct combination *c, const char *path)
{
    struct hd_text head = {0};
    int64_t bytes, width;
    char *file = NULL, *at;
    enum hd_status st = describe_factors(c, &head, &bytes);

    if (!st)
        file = malloc(head.len_bytes + (size_t)bytes);
    if (!st && !file)
        st = hd_err(HD_NO_MEMORY, "no memory for %lld bytes of factors", (long long)bytes);
    if (!st) {
        memcpy(file, head.data, head.len_bytes);
        at = file + head.len_bytes; /* a multiple of 8 */
        for (size_t i = 0; !st && i < 2 * c->module_count; i++) {
            st = find_width(c, c->modules[i / 2], i % 2 == 0, &width);
            if (!st)
                write_factor(c, c->modules[i / 2], i % 2 == 0, width, (float *)(void *)at);
            at += c->rank * width * (int64_t)sizeof(float);
        }
    }
    if (!st)
        st = hd_file_write_atomic(path, file, head.len_bytes + (size_t)bytes, 0644);
    hd_text_free(&head);
    free(file);
    return st;
}

/* Returns the last part of a module's name, which ends with a dot; *ret_length: its length. */
static const char *last_part(const char *module, size_t *ret_length)
{
    const size_t length = strlen(module) - 1;
    size_t begin = length;

    while (begin > 0 && module[begin - 1] != '.')
        begin--;
    *ret_length = length - begin;
    return module + begin;
}

/* Writes target_modules: each last part of a module's name once, as PEFT matches names by their
 * end. */
static void add_targets(const struct combination *c, struct hd_json_writer *w)
{
    hd_json_begin(w, "target_modules", '[');
    for (size_t i = 0; i < c->module_count; i++) {
        size_t length, other_length;
        const char *last = last_part(c->modules[i], &length);
        char name[HD_WEIGHTS_NAME_MAX];
        bool listed = false;

        for (size_t k = 0; k < i && !listed; k++) {
            const char *other = last_part(c->modules[k], &other_length);

            listed = other_length == length && strncmp(other, last, length) == 0;
        }
        (void)snprintf(name, sizeof name, "%.*s", (int)length, last);
        if (!listed)
            hd_json_add_string(w, NULL, name);
    }
    hd_json_end(w, ']');
}

/* Writes adapter_config.json: the first adapter's file with the new form. */
static enum hd_status write_combined_config(const struct combination *c, const char *path)
{
    static const char *const changed[] = {
        "r", "lora_alpha", "use_rslora", "target_modules", "lora_dropout", "inference_mode"};
    const struct hd_json_limits limits = {.values_max = 1 << 16, .depth_max = 16};
    const struct hd_text *first = &c->adapters[0].config;
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, first->data, first->len_bytes, &limits, &root);
    hd_json_begin(&w, NULL, '{');
    for (const struct hd_json *v = st ? NULL : root->first; v; v = v->next) {
        bool keeps = true;

        for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++)
            keeps = keeps && strcmp(v->key, changed[i]) != 0;
        if (keeps)
            hd_json_add_value(&w, v->key, v);
    }
    hd_json_add_int64(&w, "r", c->rank);
    hd_json_add_int64(&w, "lora_alpha", c->rank); /* a scaling of 1 */
    hd_json_add_bool(&w, "use_rslora", false);
    hd_json_add_int64(&w, "lora_dropout", 0);
    hd_json_add_bool(&w, "inference_mode", true);
    add_targets(c, &w);
    hd_json_end(&w, '}');
    hd_text_add(&text, "\n");
    if (!st)
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for adapter_config.json")
                         : hd_file_write_atomic(path, text.data, text.len_bytes, 0644);
    hd_text_free(&text);
    hd_arena_done(&arena);
    return st;
}

/* Makes the folder. The config is written last: a folder without it is no adapter. */
static enum hd_status write_folder(const struct combination *c)
{
    const char *dir = c->asked->out_dir;
    struct hd_text factors = {0}, config = {0};
    enum hd_status st;

    if (mkdir(dir, 0755) < 0)
        return errno == EEXIST
                   ? hd_err(HD_EXISTS, "%s: exists; give a folder that does not exist yet", dir)
                   : hd_err(hd_file_write_status(errno), "cannot make %s: %s", dir,
                            strerror(errno));
    st = hd_folder_path(&factors, dir, "adapter_model.safetensors");
    if (!st)
        st = hd_folder_path(&config, dir, "adapter_config.json");
    if (!st)
        st = write_combined_factors(c, factors.data);
    if (!st)
        st = write_combined_config(c, config.data);
    if (st)
        (void)hd_file_remove_tree(dir); /* best effort: st is the news */
    hd_text_free(&factors);
    hd_text_free(&config);
    return st;
}

enum hd_status hd_adapter_combine(const struct hd_adapter_combination *asked, int64_t *ret_rank)
{
    struct combination c = {.asked = asked};
    enum hd_status st = HD_OK;

    hd_arena_init(&c.arena, 0);
    c.adapters = hd_arena_array(&c.arena, asked->count, sizeof *c.adapters);
    if (!c.adapters)
        st = hd_err(HD_NO_MEMORY, "no memory to combine adapters");
    for (size_t i = 0; !st && i < asked->count; i++)
        st = isfinite(asked->weights[i])
                 ? open_adapter(&c, i)
                 : hd_err(HD_INVALID, "%s: a weight that is no number", asked->dirs[i]);
    if (!st)
        st = check_rank(&c);
    if (!st) {
        qsort(c.modules, c.module_count, sizeof *c.modules, hd_order_texts);
        st = write_folder(&c);
    }
    if (!st && ret_rank)
        *ret_rank = c.rank;
    for (size_t i = 0; c.adapters && i < asked->count; i++) {
        hd_weights_close(c.adapters[i].weights);
        hd_text_free(&c.adapters[i].config);
    }
    hd_arena_done(&c.arena);
    return st;
}
