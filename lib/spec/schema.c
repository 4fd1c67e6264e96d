/* The table of keys: what a job file may say, where it goes in the JobSpec, and the numbers that
 * are possible at all. Rules between keys are in check.c, defaults in read.c and defaults.c; the
 * bounds are those of the resolved job (link/job.h), which would refuse anything else later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec_internal.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const double steps_max = 1099511627776.0; /* 2^40 */

static const struct spec_word device_words[] = {
    {"auto", HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_UNSPECIFIED},
    {"cpu", HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CPU},
    {"cuda", HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA},
    {NULL, 0},
};
static const struct spec_word precision_words[] = {
    {"auto", HEDDLE__V1__PRECISION__PRECISION_UNSPECIFIED},
    {"fp32", HEDDLE__V1__PRECISION__PRECISION_FP32},
    {"bf16", HEDDLE__V1__PRECISION__PRECISION_BF16},
    {"fp16", HEDDLE__V1__PRECISION__PRECISION_FP16},
    {"fp8", HEDDLE__V1__PRECISION__PRECISION_FP8},
    {NULL, 0},
};
static const struct spec_word decay_words[] = {
    {"cosine", HEDDLE__V1__DECAY_KIND__DECAY_KIND_COSINE},
    {"linear", HEDDLE__V1__DECAY_KIND__DECAY_KIND_LINEAR},
    {"wsd", HEDDLE__V1__DECAY_KIND__DECAY_KIND_WSD},
    {"constant", HEDDLE__V1__DECAY_KIND__DECAY_KIND_CONSTANT},
    {NULL, 0},
};
static const struct spec_word order_words[] = {
    {"shuffled", HEDDLE__V1__DATA_ORDER__DATA_ORDER_SHUFFLED},
    {"sequential", HEDDLE__V1__DATA_ORDER__DATA_ORDER_SEQUENTIAL},
    {NULL, 0},
};
static const struct spec_word rope_words[] = {
    {"none", HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_NONE},
    {"linear", HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_LINEAR},
    {"llama3", HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_LLAMA3},
    {"yarn", HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_YARN},
    {NULL, 0},
};
static const struct spec_word position_words[] = {
    {"rope", HEDDLE__V1__POSITIONS__POSITIONS_ROPE},
    {"learned", HEDDLE__V1__POSITIONS__POSITIONS_LEARNED},
    {"alibi", HEDDLE__V1__POSITIONS__POSITIONS_ALIBI},
    {NULL, 0},
};
static const struct spec_word switch_words[] = {
    {"auto", HEDDLE__V1__SWITCH__SWITCH_UNSPECIFIED},
    {"true", HEDDLE__V1__SWITCH__SWITCH_ON},
    {"false", HEDDLE__V1__SWITCH__SWITCH_OFF},
    {NULL, 0},
};
static const struct spec_word exchange_words[] = {
    {"auto", HEDDLE__V1__CP_EXCHANGE__CP_EXCHANGE_UNSPECIFIED},
    {"ring", HEDDLE__V1__CP_EXCHANGE__CP_EXCHANGE_RING},
    {"all_gather", HEDDLE__V1__CP_EXCHANGE__CP_EXCHANGE_ALL_GATHER},
    {NULL, 0},
};
static const struct spec_word document_words[] = {
    {"bounded", HEDDLE__V1__DOCUMENT_ENDS__DOCUMENT_ENDS_BOUNDED},
    {"joined", HEDDLE__V1__DOCUMENT_ENDS__DOCUMENT_ENDS_JOINED},
    {NULL, 0},
};

#define M(type, member) offsetof(Heddle__V1__##type, member)

static const struct spec_key rope_scaling_keys[] = {
    {"type", SPEC_WORD, M(RopeScaling, type), 0, 0, rope_words, NULL},
    {"factor", SPEC_REAL, M(RopeScaling, factor), 1, 1e6, NULL, NULL},
    {"original_context", SPEC_INT, M(RopeScaling, original_context), 0, 1 << 24, NULL, NULL},
    {"low_freq_factor", SPEC_REAL, M(RopeScaling, low_freq_factor), 0, 1e6, NULL, NULL},
    {"high_freq_factor", SPEC_REAL, M(RopeScaling, high_freq_factor), 0, 1e6, NULL, NULL},
    {"beta_fast", SPEC_REAL, M(RopeScaling, beta_fast), 0, 1e6, NULL, NULL},
    {"beta_slow", SPEC_REAL, M(RopeScaling, beta_slow), 0, 1e6, NULL, NULL},
    {"attention_factor", SPEC_REAL, M(RopeScaling, attention_factor), 0, 1e6, NULL, NULL},
};
static const struct spec_section rope_scaling_section = {
    "model.rope_scaling", &heddle__v1__rope_scaling__descriptor, rope_scaling_keys,
    COUNT(rope_scaling_keys), NULL};

static const struct spec_key router_keys[] = {
    {"renormalize", SPEC_BOOL, M(RouterSpec, renormalize), 0, 1, NULL, NULL},
    {"noisy", SPEC_BOOL, M(RouterSpec, noisy), 0, 1, NULL, NULL},
    {"balance", SPEC_REAL, M(RouterSpec, balance), 0, 1e3, NULL, NULL},
    {"z", SPEC_REAL, M(RouterSpec, z), 0, 1e3, NULL, NULL},
    {"capacity", SPEC_REAL, M(RouterSpec, capacity), 0, 1e6, NULL, NULL},
};
static const struct spec_section router_section = {
    "model.router", &heddle__v1__router_spec__descriptor, router_keys, COUNT(router_keys), NULL};

static const struct spec_key model_keys[] = {
    {"family", SPEC_TEXT, M(ModelSpec, family), 0, 0, NULL, NULL},
    {"from", SPEC_PATH, M(ModelSpec, from_dir), 0, 0, NULL, NULL},
    {"layers", SPEC_INT, M(ModelSpec, layers), 1, 1024, NULL, NULL},
    {"hidden", SPEC_INT, M(ModelSpec, hidden), 1, 1 << 20, NULL, NULL},
    {"heads", SPEC_INT, M(ModelSpec, heads), 1, 4096, NULL, NULL},
    {"kv_heads", SPEC_INT, M(ModelSpec, kv_heads), 1, 4096, NULL, NULL},
    {"ffn_hidden", SPEC_INT, M(ModelSpec, ffn_hidden), 1, 1 << 22, NULL, NULL},
    {"vocab", SPEC_INT, M(ModelSpec, vocab), 2, 1 << 22, NULL, NULL},
    {"context", SPEC_INT, M(ModelSpec, context), 1, 1 << 24, NULL, NULL},
    {"positions", SPEC_WORD, M(ModelSpec, positions), 0, 0, position_words, NULL},
    {"rope_theta", SPEC_REAL, M(ModelSpec, rope_theta), 1, 1e12, NULL, NULL},
    {"norm_eps", SPEC_REAL, M(ModelSpec, norm_eps), 1e-12, 1, NULL, NULL},
    {"tie_embeddings", SPEC_BOOL, M(ModelSpec, tie_embeddings), 0, 1, NULL, NULL},
    {"head_width", SPEC_INT, M(ModelSpec, head_width), 1, 4096, NULL, NULL},
    {"qkv_bias", SPEC_BOOL, M(ModelSpec, qkv_bias), 0, 1, NULL, NULL},
    {"out_bias", SPEC_BOOL, M(ModelSpec, out_bias), 0, 1, NULL, NULL},
    {"mlp_bias", SPEC_BOOL, M(ModelSpec, mlp_bias), 0, 1, NULL, NULL},
    {"qk_norm", SPEC_BOOL, M(ModelSpec, qk_norm), 0, 1, NULL, NULL},
    {"window", SPEC_INT, M(ModelSpec, window), 0, 1 << 24, NULL, NULL},
    {"window_from", SPEC_INT, M(ModelSpec, window_from), 0, 1024, NULL, NULL},
    {"rope_scaling", SPEC_SECTION, M(ModelSpec, rope_scaling), 0, 0, NULL, &rope_scaling_section},
    {"experts", SPEC_INT, M(ModelSpec, experts), 0, 4096, NULL, NULL},
    {"experts_per_token", SPEC_INT, M(ModelSpec, experts_per_token), 0, 64, NULL, NULL},
    {"shared_ffn_hidden", SPEC_INT, M(ModelSpec, shared_ffn_hidden), 0, 1 << 22, NULL, NULL},
    {"router", SPEC_SECTION, M(ModelSpec, router), 0, 0, NULL, &router_section},
};
static const struct spec_section model_section = {"model", &heddle__v1__model_spec__descriptor,
                                                  model_keys, COUNT(model_keys), NULL};

static const struct spec_key data_keys[] = {
    {"train", SPEC_SOURCES, M(DataSpec, n_train), 1e-9, 1e9, NULL, NULL},
    {"val", SPEC_FILES, M(DataSpec, n_val), 0, 0, NULL, NULL},
    {"split", SPEC_REAL, M(DataSpec, val_split), 0, 0.9, NULL, NULL},
    {"tokenizer", SPEC_TEXT, M(DataSpec, tokenizer), 0, 0, NULL, NULL},
    {"order", SPEC_WORD, M(DataSpec, order), 0, 0, order_words, NULL},
    {"documents", SPEC_WORD, M(DataSpec, documents), 0, 0, document_words, NULL},
    {"end_of_text", SPEC_CHOICE, M(DataSpec, end_of_text), 0, 0, NULL, NULL},
};
static const struct spec_section data_section = {"data", &heddle__v1__data_spec__descriptor,
                                                 data_keys, COUNT(data_keys), NULL};
_Static_assert(M(DataSpec, train) == M(DataSpec, n_train) + sizeof(size_t) &&
                   M(DataSpec, val) == M(DataSpec, n_val) + sizeof(size_t),
               "SPEC_FILES finds a list behind its count");

static const struct spec_key lr_keys[] = {
    {"peak", SPEC_REAL, M(LearningRate, peak), 1e-12, 1e3, NULL, NULL},
    {"warmup", SPEC_INT, M(LearningRate, warmup_steps), 0, steps_max, NULL, NULL},
    {"decay", SPEC_WORD, M(LearningRate, decay), 0, 0, decay_words, NULL},
    {"decay_steps", SPEC_INT, M(LearningRate, decay_steps), 0, steps_max, NULL, NULL},
    {"min", SPEC_REAL, M(LearningRate, min), 0, 1e3, NULL, NULL},
};
static const struct spec_section lr_section = {"train.lr", &heddle__v1__learning_rate__descriptor,
                                               lr_keys, COUNT(lr_keys), "peak"};

static const struct spec_key profile_keys[] = {
    {"steps", SPEC_STEPS, M(ProfileSpec, first_step), 1, steps_max, NULL, NULL},
};
static const struct spec_section profile_section = {"train.profile",
                                                    &heddle__v1__profile_spec__descriptor,
                                                    profile_keys, COUNT(profile_keys), NULL};
_Static_assert(M(ProfileSpec, last_step) == M(ProfileSpec, first_step) + sizeof(int64_t),
               "SPEC_STEPS finds the last step behind the first");

static const struct spec_key dropout_keys[] = {
    {"embedding", SPEC_REAL, M(DropoutSpec, embedding), 0, 0.99, NULL, NULL},
    {"attention", SPEC_REAL, M(DropoutSpec, attention), 0, 0.99, NULL, NULL},
    {"residual", SPEC_REAL, M(DropoutSpec, residual), 0, 0.99, NULL, NULL},
};
static const struct spec_section dropout_section = {
    "train.dropout", &heddle__v1__dropout_spec__descriptor, dropout_keys, COUNT(dropout_keys),
    SPEC_SHORT_FOR_ALL};

static const struct spec_key train_keys[] = {
    {"steps", SPEC_INT, M(TrainSpec, steps), 1, steps_max, NULL, NULL},
    {"global_batch", SPEC_INT, M(TrainSpec, global_batch), 1, 1 << 24, NULL, NULL},
    {"lr", SPEC_SECTION, M(TrainSpec, lr), 0, 0, NULL, &lr_section},
    {"precision", SPEC_WORD, M(TrainSpec, precision), 0, 0, precision_words, NULL},
    {"seed", SPEC_SEED, M(TrainSpec, seed), 0, 0x1p63, NULL, NULL},
    {"tf32", SPEC_BOOL, M(TrainSpec, tf32), 0, 1, NULL, NULL},
    {"deterministic", SPEC_BOOL, M(TrainSpec, deterministic), 0, 1, NULL, NULL},
    {"native_reduction", SPEC_BOOL, M(TrainSpec, native_reduction), 0, 1, NULL, NULL},
    {"weight_decay", SPEC_REAL, M(TrainSpec, weight_decay), 0, 1e3, NULL, NULL},
    {"beta1", SPEC_REAL, M(TrainSpec, beta1), 0, 0.999999, NULL, NULL},
    {"beta2", SPEC_REAL, M(TrainSpec, beta2), 0, 0.999999, NULL, NULL},
    {"eps", SPEC_REAL, M(TrainSpec, eps), 1e-30, 1, NULL, NULL},
    {"clip", SPEC_REAL, M(TrainSpec, clip), 0, 1e9, NULL, NULL},
    {"dropout", SPEC_SECTION, M(TrainSpec, dropout), 0, 0, NULL, &dropout_section},
    {"init_from", SPEC_PATH, M(TrainSpec, init_from), 0, 0, NULL, NULL},
    {"profile", SPEC_SECTION, M(TrainSpec, profile), 0, 0, NULL, &profile_section},
};
static const struct spec_section train_section = {"train", &heddle__v1__train_spec__descriptor,
                                                  train_keys, COUNT(train_keys), NULL};

static const struct spec_key validate_keys[] = {
    {"every", SPEC_INT, M(ValidateSpec, every), 0, steps_max, NULL, NULL},
    {"batches", SPEC_INT, M(ValidateSpec, batches), 0, 1 << 20, NULL, NULL},
};
static const struct spec_section validate_section = {
    "validate", &heddle__v1__validate_spec__descriptor, validate_keys, COUNT(validate_keys), NULL};

static const struct spec_key parallel_keys[] = {
    {"tp", SPEC_AUTO, M(ParallelSpec, tp), 1, 65536, NULL, NULL},
    {"pp", SPEC_AUTO, M(ParallelSpec, pp), 1, 65536, NULL, NULL},
    {"dp", SPEC_AUTO, M(ParallelSpec, dp), 1, 65536, NULL, NULL},
    {"cp", SPEC_AUTO, M(ParallelSpec, cp), 1, 65536, NULL, NULL},
    {"ep", SPEC_AUTO, M(ParallelSpec, ep), 1, 65536, NULL, NULL},
    {"zero", SPEC_ZERO, M(ParallelSpec, zero), 0, 3, NULL, NULL},
    {"schedule", SPEC_CHOICE, M(ParallelSpec, schedule), 0, 0, NULL, NULL},
    {"micro_batch", SPEC_AUTO, M(ParallelSpec, micro_batch), 1, 1 << 20, NULL, NULL},
    {"recompute", SPEC_CHOICE, M(ParallelSpec, recompute), 0, 0, NULL, NULL},
    {"sequence", SPEC_SWITCH, M(ParallelSpec, sequence), 0, 0, switch_words, NULL},
    {"cp_exchange", SPEC_WORD, M(ParallelSpec, cp_exchange), 0, 0, exchange_words, NULL},
    {"expert_rows", SPEC_AUTO_REAL, M(ParallelSpec, expert_rows), 1, 1e6, NULL, NULL},
};
static const struct spec_section parallel_section = {
    "parallel", &heddle__v1__parallel_spec__descriptor, parallel_keys, COUNT(parallel_keys), NULL};

static const struct spec_key resources_keys[] = {
    {"device", SPEC_WORD, M(ResourceSpec, device), 0, 0, device_words, NULL},
    {"devices", SPEC_DEVICES, 0, 1, 65536, NULL, NULL},
};
static const struct spec_section resources_section = {"resources",
                                                      &heddle__v1__resource_spec__descriptor,
                                                      resources_keys, COUNT(resources_keys), NULL};

static const struct spec_key checkpoint_keys[] = {
    {"every", SPEC_INT, M(CheckpointSpec, every), 0, steps_max, NULL, NULL},
    {"keep", SPEC_INT32, M(CheckpointSpec, keep), 0, 1 << 20, NULL, NULL},
    {"dir", SPEC_PATH, M(CheckpointSpec, dir), 0, 0, NULL, NULL},
};
static const struct spec_section checkpoint_section = {
    "checkpoint", &heddle__v1__checkpoint_spec__descriptor, checkpoint_keys, COUNT(checkpoint_keys),
    NULL};

static const struct spec_key restart_keys[] = {
    {"max", SPEC_INT32, M(RestartSpec, max), 0, 1 << 20, NULL, NULL},
};
static const struct spec_section restart_section = {
    "restart", &heddle__v1__restart_spec__descriptor, restart_keys, COUNT(restart_keys), NULL};

static const struct spec_key root_keys[] = {
    {"name", SPEC_TEXT, M(JobSpec, name), 0, 0, NULL, NULL},
    {"model", SPEC_SECTION, M(JobSpec, model), 0, 0, NULL, &model_section},
    {"data", SPEC_SECTION, M(JobSpec, data), 0, 0, NULL, &data_section},
    {"train", SPEC_SECTION, M(JobSpec, train), 0, 0, NULL, &train_section},
    {"validate", SPEC_SECTION, M(JobSpec, validate), 0, 0, NULL, &validate_section},
    {"parallel", SPEC_SECTION, M(JobSpec, parallel), 0, 0, NULL, &parallel_section},
    {"resources", SPEC_SECTION, M(JobSpec, resources), 0, 0, NULL, &resources_section},
    {"checkpoint", SPEC_SECTION, M(JobSpec, checkpoint), 0, 0, NULL, &checkpoint_section},
    {"restart", SPEC_SECTION, M(JobSpec, restart), 0, 0, NULL, &restart_section},
};
const struct spec_section spec_root = {"", &heddle__v1__job_spec__descriptor, root_keys,
                                       COUNT(root_keys), NULL};

const struct spec_key *spec_find_key(const struct spec_section *section, const char *name)
{
    for (size_t i = 0; i < section->key_count; i++)
        if (strcmp(section->keys[i].name, name) == 0)
            return &section->keys[i];
    return NULL;
}

const char *spec_word_name(const struct spec_key *key, int value)
{
    for (const struct spec_word *w = key->word; w->name; w++)
        if (w->value == value)
            return w->name;
    return NULL;
}

bool spec_number_in_range(const struct spec_key *key, double value)
{
    return value >= key->min && value <= key->max; /* false for not-a-number */
}

ProtobufCMessage **spec_member_message(ProtobufCMessage *holder, const struct spec_key *key)
{
    return (ProtobufCMessage **)((char *)holder + key->offset);
}

ProtobufCMessage *spec_new_message(const ProtobufCMessageDescriptor *message)
{
    ProtobufCMessage *made = malloc(message->sizeof_message);

    if (made)
        message->message_init(made);
    return made;
}

bool spec_make_sections(ProtobufCMessage *message, const struct spec_section *section)
{
    for (size_t i = 0; i < section->key_count; i++) {
        const struct spec_key *key = &section->keys[i];
        ProtobufCMessage **member;

        if (key->kind != SPEC_SECTION)
            continue;
        member = spec_member_message(message, key);
        if (!*member)
            *member = spec_new_message(key->section->message);
        if (!*member || !spec_make_sections(*member, key->section))
            return false;
    }
    return true;
}

Heddle__V1__JobSpec *spec_new_complete(void)
{
    ProtobufCMessage *spec = spec_new_message(spec_root.message);

    if (spec && !spec_make_sections(spec, &spec_root)) {
        protobuf_c_message_free_unpacked(spec, NULL);
        return NULL;
    }
    return (Heddle__V1__JobSpec *)spec;
}

void hd_spec_free(struct Heddle__V1__JobSpec *spec)
{
    if (spec)
        heddle__v1__job_spec__free_unpacked(spec, NULL);
}

bool spec_set_text(char **member, const char *text)
{
    char *copy = strdup(text);

    if (!copy)
        return false;
    if (*member != protobuf_c_empty_string)
        free(*member);
    *member = copy;
    return true;
}

/* "a whole number from 1 to 16" */
static const char *range_text(const struct spec_key *key, char ret_text[96])
{
    const bool real =
        key->kind == SPEC_REAL || key->kind == SPEC_AUTO_REAL || key->kind == SPEC_SOURCES;
    const bool automatic =
        key->kind == SPEC_AUTO || key->kind == SPEC_AUTO_REAL || key->kind == SPEC_ZERO;
    const char *what = real ? "a number" : "a whole number", *also = automatic ? "auto or " : "";

    if (key->kind == SPEC_SEED)
        (void)snprintf(ret_text, 96, "a whole number from 0 to 9223372036854775807");
    else
        (void)snprintf(ret_text, 96, "%s%s from %.13g to %.13g", also, what, key->min, key->max);
    return ret_text;
}

enum hd_status spec_err_range(const char *path, const struct spec_key *key, double value)
{
    char range[96];

    return hd_err(HD_INVALID, "%s: %.13g is not possible; give %s", path, value,
                  range_text(key, range));
}

enum hd_status spec_err_missing(const char *path, const struct spec_key *key)
{
    char range[96];

    return hd_err(HD_INVALID, "%s: is missing; give %s", path, range_text(key, range));
}

const char *spec_quote(const char *text, char ret_quoted[SPEC_QUOTE_MAX])
{
    size_t len = strlen(text), max = SPEC_QUOTE_MAX - 6; /* quotes, three dots, NUL */
    size_t n = len <= max ? len : max;
    char *out = ret_quoted;

    while (n < len && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--; /* cut between characters */
    *out++ = '\'';
    for (size_t i = 0; i < n; i++)
        *out++ = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    if (n < len) {
        memcpy(out, "...", 3);
        out += 3;
    }
    *out++ = '\'';
    *out = '\0';
    return ret_quoted;
}

static bool is_divisor(const void *about, int64_t number)
{
    return *(const int64_t *)about % number == 0;
}

void spec_list_divisors(int64_t n, int64_t max, int64_t wish, char ret_list[HD_TEXT_LIST_MAX])
{
    hd_text_list_near(is_divisor, &n, max < n ? max : n, wish, ret_list);
}
