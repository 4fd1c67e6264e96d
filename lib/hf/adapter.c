/* adapter: reads the form of an adapter from which a run starts, and names its factors in PEFT's
 * folder (LoraConfig, PrefixTuningConfig):
 *
 *     adapter_config.json          rank, alpha, rsLoRA; or the length of a prefix
 *     adapter_model.safetensors    base_model.model.MODULE.lora_A.weight [r, in], lora_B.weight
 *                                  [out, r]; with DoRA lora_magnitude_vector [out]; or
 *                                  prompt_embeddings [tokens, L, 2, G * D], the keys and values of
 *                                  each block, as two dimensions
 *
 * In a LoRA folder the targets are the modules of its tensors, since target_modules may be a
 * regular expression, and the parameters of target_parameters (adapter_stacks.c). A setting that would change what the adapter computes, and that a job cannot
 * have, is an error that names it.
 */
#include <stdio.h>
#include <string.h>

#include "base/folder.h"
#include "base/words.h"
#include "hf/hf_internal.h"

#define CONFIG_FILE  "adapter_config.json"
#define WEIGHTS_FILE "adapter_model.safetensors"
#define A_END        ".lora_A.weight"
#define B_END        ".lora_B.weight"
#define M_END        ".lora_magnitude_vector"

enum { VALUES_MAX = 1 << 14, DEPTH_MAX = 16, RANK_MAX = 1024, TOKENS_MAX = 4096 };

/* ---- adapter_config.json ---- */

/* Keys without an effect on what a trained adapter computes: its origin, how its factors were
 * initialised, how PEFT stores or moves it, how it was trained. The tensors tell the targets. */
static const char harmless[] =
    "auto_mapping base_model_name_or_path revision peft_version task_type inference_mode "
    "target_modules exclude_modules layers_pattern lora_dropout fan_in_fan_out "
    "loftq_config eva_config corda_config lora_ga_config megatron_core runtime_config "
    "qalora_group_size ensure_weight_tying";

/* Returns whether a JSON value turns any key off: null, false, or an empty list or object. */
static bool is_nothing(const struct hd_json *value)
{
    return value->kind == HD_JSON_NULL || value->kind == HD_JSON_FALSE ||
           ((value->kind == HD_JSON_ARRAY || value->kind == HD_JSON_OBJECT) && !value->count);
}

static enum hd_status must_be(const struct hd_json *value, const char *text)
{
    if (value->kind == HD_JSON_STRING && strcmp(value->text, text) == 0)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "must be \"%s\"", text);
}

/* Reads a switch; null is false. Another value would change the adapter's scale without a word. */
static enum hd_status read_switch(const struct hd_json *value, bool *ret_is_on)
{
    *ret_is_on = value->kind == HD_JSON_TRUE;
    return *ret_is_on || value->kind == HD_JSON_FALSE || value->kind == HD_JSON_NULL
               ? HD_OK
               : hd_err(HD_INVALID, "must be true or false");
}

/* Refuses values of init_lora_weights that subtract a part from the base's weights (PiSSA, OLoRA,
 * CorDA, LoftQ): such factors do not fit the base as it was published. */
static enum hd_status check_beginning(const struct hd_json *value)
{
    static const char harmless_words[] = "gaussian eva orthogonal";

    if (value->kind == HD_JSON_TRUE || is_nothing(value) ||
        (value->kind == HD_JSON_STRING && hd_words_have(harmless_words, value->text)))
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "the adapter began with a changed base; convert it with PEFT's "
                                  "path_initial_model_for_weight_conversion");
}

static bool is_listed(const char *list, const char *word, size_t length);

/* Adds a target of `length` bytes to the job's, unless it has it. */
static enum hd_status add_target(struct hd_job *job, const char *name, size_t length)
{
    const char *listed = job->adapter_targets;
    enum hd_status st = HD_OK;

    if (!is_listed(listed, name, length))
        st = hd_job_print_text(job, &job->adapter_targets, "%s%s%.*s", listed, *listed ? "," : "",
                               (int)length, name);
    return st == HD_LIMIT ? hd_err(HD_LIMIT, "its modules are more than a job can name") : st;
}

/* Adds the parameters of target_parameters, without their blocks' names, as targets. A word without a
 * point is the last part of a name. */
static enum hd_status take_parameters(const struct hd_json *value, struct hd_job *job)
{
    enum hd_status st = value->kind == HD_JSON_ARRAY ? HD_OK : hd_err(HD_INVALID, "is not a list");
    char name[HD_WEIGHTS_NAME_MAX];

    for (const struct hd_json *v = st ? NULL : value->first; !st && v; v = v->next) {
        const char *word = v->kind == HD_JSON_STRING ? v->text : "", *in_block = word;

        for (const char *p = strstr(word, "layers."); p; p = strstr(p, "layers.")) {
            p += strlen("layers.");
            p += strspn(p, "0123456789");
            in_block = *p == '.' ? p + 1 : in_block;
        }
        (void)snprintf(name, sizeof name, "%s%s", strchr(in_block, '.') ? "" : "experts.",
                       in_block);
        st = *in_block ? add_target(job, name, strlen(name))
                       : hd_err(HD_INVALID, "has a value that is no name");
    }
    return st;
}

static enum hd_status read_lora_key(const struct hd_json *value, struct hd_job *job)
{
    if (strcmp(value->key, "bias") == 0)
        return must_be(value, "none");
    if (strcmp(value->key, "r") == 0)
        return hd_json_to_int64(value, 1, RANK_MAX, &job->adapter_rank);
    if (strcmp(value->key, "lora_alpha") == 0)
        return value->kind == HD_JSON_NUMBER
                   ? hd_text_to_double(value->text, 1e-6, 1e6, &job->adapter_alpha)
                   : hd_err(HD_INVALID, "is not a number");
    if (strcmp(value->key, "use_rslora") == 0)
        return read_switch(value, &job->adapter_rslora);
    if (strcmp(value->key, "use_dora") == 0)
        return read_switch(value, &job->adapter_dora);
    if (strcmp(value->key, "init_lora_weights") == 0)
        return check_beginning(value);
    if (strcmp(value->key, "target_parameters") == 0 && !is_nothing(value))
        return take_parameters(value, job);
    if (hd_words_have(harmless, value->key) || is_nothing(value))
        return HD_OK;
    return hd_err(HD_UNSUPPORTED,
                  "an adapter with this setting cannot be trained here; merge it into its base "
                  "with PEFT's merge_and_unload, and begin with the result");
}

/* Reads a key of a prefix adapter's adapter_config.json. The tensor has the keys and values that
 * are computed with, also if PEFT trained the prefix through a network (prefix_projection); its
 * shape is compared with the model's. */
static enum hd_status read_prefix_key(const struct hd_json *value, struct hd_job *job)
{
    static const char of_prefix[] = "token_dim num_attention_heads num_layers encoder_hidden_size "
                                    "prefix_projection init_weights";
    int64_t one;

    if (strcmp(value->key, "num_virtual_tokens") == 0)
        return hd_json_to_int64(value, 1, TOKENS_MAX, &job->adapter_tokens);
    if (strcmp(value->key, "num_transformer_submodules") == 0 && !is_nothing(value))
        return hd_json_to_int64(value, 1, 1, &one);
    if (hd_words_have(harmless, value->key) || hd_words_have(of_prefix, value->key) ||
        is_nothing(value))
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "a prefix with this setting cannot be trained here");
}

/* PEFT's types of adapters, and Heddle's name for each. */
static const struct form {
    const char *theirs;
    enum hd_job_adapter ours;
    const char *needed[3];
    enum hd_status (*read_key)(const struct hd_json *value, struct hd_job *job);
} forms[] = {{"LORA", HD_JOB_ADAPTER_LORA, {"r", "lora_alpha"}, read_lora_key},
             {"PREFIX_TUNING", HD_JOB_ADAPTER_PREFIX, {"num_virtual_tokens"}, read_prefix_key}};

static enum hd_status find_form(const struct hd_json *root, const struct form **ret_form)
{
    const struct hd_json *type = hd_json_member(root, "peft_type");

    if (!type)
        return hd_err(HD_INVALID, "has no peft_type");
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (type->kind == HD_JSON_STRING && strcmp(type->text, forms[i].theirs) == 0) {
            *ret_form = &forms[i];
            return HD_OK;
        }
    return hd_err(HD_UNSUPPORTED, "peft_type: must be \"LORA\" or \"PREFIX_TUNING\"; merge an "
                                  "adapter of another type into its base with PEFT's "
                                  "merge_and_unload, and begin with the result");
}

static enum hd_status parse(const struct hd_json *root, struct hd_job *job)
{
    const struct form *form = NULL;
    enum hd_status st;

    if (root->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID, "is not an object");
    st = find_form(root, &form);
    for (int i = 0; !st && form->needed[i]; i++)
        if (!hd_json_member(root, form->needed[i]))
            st = hd_err(HD_INVALID, "has no %s", form->needed[i]);
    for (const struct hd_json *value = st ? NULL : root->first; !st && value; value = value->next)
        if (strcmp(value->key, "peft_type") != 0 && (st = form->read_key(value, job)))
            st = hd_err_prefix(st, "%.60s", value->key);
    if (st)
        return st;
    job->adapter = form->ours;
    job->adapter_init = HD_JOB_ADAPTER_INIT_ZERO;
    return HD_OK;
}

enum hd_status hd_hf_parse_adapter_config(const char *text, size_t text_bytes,
                                          struct hd_job *ret_job)
{
    const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, text, text_bytes, &limits, &root);
    ret_job->adapter_rslora = ret_job->adapter_dora = false;
    ret_job->adapter_targets = "";
    if (!st)
        st = parse(root, ret_job);
    hd_arena_done(&arena);
    return st;
}

/* ---- targets ---- */

bool hd_hf_find_module(const char *tensor, const char **ret_module, size_t *ret_length)
{
    const size_t all = strlen(tensor), end = strlen(A_END);

    if (all <= end || strcmp(tensor + all - end, A_END) != 0)
        return false;
    for (const char *p = strchr(tensor, '.'); p; p = strchr(p + 1, '.')) {
        const size_t digits = strspn(p + 1, "0123456789");

        if (!digits || p[1 + digits] != '.' || p + 2 + digits >= tensor + all - end)
            continue;
        *ret_module = p + 2 + digits;
        *ret_length = all - end - (size_t)(*ret_module - tensor);
        return true;
    }
    return false;
}

static bool is_listed(const char *list, const char *word, size_t length)
{
    for (const char *at = list; *at;) {
        const size_t n = strcspn(at, ",");

        if (n == length && strncmp(at, word, n) == 0)
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* Sets ret_name to the name that the job uses for a module; without the expert's number, since
 * every expert has an adapter. */
static size_t plain_name(const char *module, size_t length, char ret_name[HD_WEIGHTS_NAME_MAX])
{
    static const char experts[] = "experts.";
    const char *found = strstr(module, experts), *number = found ? found + strlen(experts) : NULL;
    const size_t digits = number ? strspn(number, "0123456789") : 0;

    if (!digits || number + digits >= module + length || number[digits] != '.')
        return (size_t)snprintf(ret_name, HD_WEIGHTS_NAME_MAX, "%.*s", (int)length, module);
    return (size_t)snprintf(ret_name, HD_WEIGHTS_NAME_MAX, "%.*s%.*s", (int)(number - module),
                            module, (int)(module + length - number - (ptrdiff_t)digits - 1),
                            number + digits + 1);
}

/* Adds the modules that have a factor A, each once, to the job's targets, which are the parameters of
 * target_parameters. */
static enum hd_status list_targets(const struct hd_weights *weights, struct hd_job *job)
{
    const bool parameters = *job->adapter_targets;
    char name[HD_WEIGHTS_NAME_MAX];
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < hd_weights_count(weights); i++) {
        const struct hd_weight *w = hd_weights_at(weights, i);
        const char *module;
        size_t length;
        bool stack;

        if (!hd_hf_find_module(w->name, &module, &length))
            continue;
        stack = hd_hf_is_stack(module, length);
        if (stack && !parameters)
            return hd_err(HD_INVALID,
                          "%s is a factor of a parameter, and " CONFIG_FILE
                          " has no target_parameters that would name it",
                          w->name);
        if (w->dim_count != 2 ||
            (stack ? w->shape[0] % job->adapter_rank != 0 : w->shape[0] != job->adapter_rank))
            return hd_err(HD_INVALID,
                          "%s has %lld rows, and r of " CONFIG_FILE
                          " is %lld: the two files are not of one adapter",
                          w->name, w->dim_count ? (long long)w->shape[0] : 0,
                          (long long)job->adapter_rank);
        if (!stack)
            st = add_target(job, name, plain_name(module, length, name));
    }
    if (st)
        return st;
    return *job->adapter_targets ? HD_OK : hd_err(HD_INVALID, "no tensor is named MODULE" A_END);
}

enum hd_status hd_hf_open_adapter(const char *dir, struct hd_weights **ret_weights)
{
    struct hd_text path = {0};
    enum hd_status st = hd_folder_path(&path, dir, WEIGHTS_FILE);

    if (!st)
        st = hd_weights_open_file(path.data, ret_weights);
    hd_text_free(&path);
    return st;
}

/* ---- the adapter of a directory ---- */

static enum hd_status read_folder(const char *dir, struct hd_job *ret_job, uint64_t *ret_identity)
{
    struct hd_weights *weights = NULL;
    struct hd_text text = {0};
    enum hd_status st = hd_folder_read(dir, CONFIG_FILE, HD_HF_CONFIG_BYTES_MAX, &text);

    if (!st) {
        st = hd_hf_parse_adapter_config(text.data, text.len_bytes, ret_job);
        if (st)
            st = hd_err_prefix(st, "%s/" CONFIG_FILE, dir);
    }
    if (!st)
        st = hd_hf_open_adapter(dir, &weights);
    if (!st && ret_job->adapter == HD_JOB_ADAPTER_LORA) {
        st = list_targets(weights, ret_job);
        if (st)
            st = hd_err_prefix(st, "%s/" WEIGHTS_FILE, dir);
    }
    if (!st && ret_identity)
        *ret_identity = hd_weights_identity(weights);
    hd_weights_close(weights);
    hd_text_free(&text);
    return st;
}

static enum hd_status copy_form(const struct hd_job *theirs, struct hd_job *ret_job)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < hd_job_key_count; i++)
        if (hd_job_keys[i].adapter_form)
            st = hd_job_copy_member(&hd_job_keys[i], theirs, ret_job);
    return st;
}

static enum hd_status read_checkpoint(const char *dir, struct hd_job *ret_job,
                                      uint64_t *ret_identity)
{
    struct hd_ckpt *ckpt = NULL;
    struct hd_arena arena;
    struct hd_job theirs;
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (st)
        return st;
    hd_arena_init(&arena, 0);
    st = hd_stored_job_of(ckpt, &arena, &theirs);
    if (!st && theirs.adapter == HD_JOB_ADAPTER_NONE)
        st = hd_err(HD_INVALID, "%s is a checkpoint of a run without an adapter", dir);
    if (!st && *theirs.adapter_also)
        st = hd_err(HD_INVALID,
                    "%s: beside its adapter %s trained, which would be lost; begin with the whole "
                    "checkpoint, by train.init_from",
                    dir, theirs.adapter_also);
    if (!st) {
        st = copy_form(&theirs, ret_job);
        if (ret_identity)
            *ret_identity = hd_ckpt_hash(ckpt);
    }
    hd_arena_done(&arena);
    hd_ckpt_close(ckpt);
    return st;
}

enum hd_status hd_adapter_read(const char *dir, struct hd_job *ret_job, uint64_t *ret_identity)
{
    if (hd_source_is_checkpoint(dir))
        return read_checkpoint(dir, ret_job, ret_identity);
    if (hd_folder_has(dir, CONFIG_FILE))
        return read_folder(dir, ret_job, ret_identity);
    return hd_err(HD_INVALID,
                  "%s has no adapter: it is neither a folder of PEFT, with " CONFIG_FILE
                  ", nor a checkpoint of Heddle (step-N)",
                  dir);
}

/* ---- names ---- */

static bool cut_end(char *name, const char *end)
{
    const size_t all = strlen(name), n = strlen(end);

    if (all <= n || strcmp(name + all - n, end) != 0)
        return false;
    name[all - n] = '\0';
    return true;
}

/* Makes the rows of the table of names for a weight's two factors and its magnitudes; false: the
 * weight is no matrix of a block. */
enum { ROWS_OF_ONE = 3 };

static bool make_rows(const struct hd_hf_row *row, struct hd_arena *arena,
                      struct hd_hf_row ret_rows[ROWS_OF_ONE])
{
    char ours[HD_CKPT_NAME_MAX], theirs[HD_CKPT_NAME_MAX];
    const bool shared = row->parts > 1 && row->place == 0;

    (void)snprintf(ours, sizeof ours, "%s", row->ours);
    (void)snprintf(theirs, sizeof theirs, "%s", row->theirs);
    if (!strchr(ours, '#') || !cut_end(ours, ".weight") || !cut_end(theirs, ".weight"))
        return false;
    ret_rows[1] = (struct hd_hf_row){.ours = hd_arena_printf(arena, "%s.lora_b", ours),
                                     .theirs = hd_arena_printf(arena, "%s" B_END, theirs),
                                     .place = row->place,
                                     .parts = row->parts,
                                     .by_heads = row->by_heads};
    ret_rows[2] = (struct hd_hf_row){.ours = hd_arena_printf(arena, "%s.lora_m", ours),
                                     .theirs = hd_arena_printf(arena, "%s" M_END, theirs),
                                     .place = row->place,
                                     .parts = row->parts,
                                     .by_heads = row->by_heads};
    if (shared) /* the parts of a matrix share one A (model/adapter.h) */
        *strrchr(ours, '.') = '\0';
    ret_rows[0] = (struct hd_hf_row){.ours = hd_arena_printf(arena, "%s%s.lora_a", ours,
                                                             !shared           ? ""
                                                             : row->parts == 3 ? ".qkv"
                                                                               : ".gate_up"),
                                     .theirs = hd_arena_printf(arena, "%s" A_END, theirs),
                                     .parts = 1};
    return true;
}

void hd_hf_prefix_rows(const struct hd_job *job, struct hd_hf_row ret_rows[2])
{
    for (int which = 0; which < 2; which++)
        ret_rows[which] = (struct hd_hf_row){.ours = which ? "blocks.#.attention.prefix_v"
                                                           : "blocks.#.attention.prefix_k",
                                             .theirs = HD_HF_PREFIX_NAME,
                                             .top = true,
                                             .columns = true,
                                             .place = which,
                                             .parts = 2 * (int)job->layers};
}

enum hd_status hd_hf_adapter_rows(const char *family, bool nested, struct hd_arena *arena,
                                  const struct hd_hf_row **ret_rows, size_t *ret_count,
                                  const char **ret_prefix)
{
    const struct hd_hf_stacks *stacks = hd_hf_stacks_of(family);
    const struct hd_hf_row *rows = NULL;
    struct hd_hf_row *made;
    const char *prefix = "";
    size_t row_count = 0, count = 0;
    enum hd_status st = hd_hf_rows(family, &rows, &row_count, &prefix);

    if (st)
        return st;
    made = hd_arena_array(arena, ROWS_OF_ONE * row_count + HD_HF_STACK_FACTORS, sizeof *made);
    if (made && stacks) {
        hd_hf_stack_rows(stacks, nested, arena, made);
        count = HD_HF_STACK_FACTORS;
    }
    /* all A, then all B, then all magnitudes, so that parts of one tensor stay adjacent */
    for (size_t i = 0; made && i < ROWS_OF_ONE * row_count; i++) {
        struct hd_hf_row of_one[ROWS_OF_ONE];

        if (make_rows(&rows[i % row_count], arena, of_one))
            made[count++] = of_one[i / row_count];
    }
    *ret_prefix = hd_arena_printf(arena, HD_HF_PEFT_PREFIX "%s", prefix);
    *ret_rows = made;
    *ret_count = count;
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory to find tensors") : HD_OK;
}
