/* rope: reads the rotary positions of a config.json, which has up to three places for them and two
 * names for one key. The order of precedence is that of transformers 5 (PreTrainedConfig and
 * RotaryEmbeddingConfigMixin), whatever the order in the file:
 *
 *   the group    rope_scaling if it has members, else rope_parameters; the other is ignored
 *   the type     rope_type of the group, else type of the group, else default
 *   theta        rope_theta of the group, else rope_theta beside it, else that of the class
 *   the share    partial_rotary_factor of the group, else that beside it, else that of the class; a
 *                class that does not read it rotates all channels
 *   the original context   for llama3, yarn, longrope: original_max_position_embeddings beside the
 *                group, else that of the class, else in the group, else max_position_embeddings
 *
 * In families with ntk_alpha the type dynamic with a positive alpha means default angles of theta
 * times alpha to the power D / (D - 2), D channels of a head.
 *
 * In families with `dynamic` that type is read without alpha, too: its angles are plain ones up to
 * max_position_embeddings.
 *
 * In families whose layers with a window have other angles (rope_local_theta), rope_parameters may be
 * one object per kind of layer, full_attention and sliding_attention.
 *
 * A key of another type is not used, as in transformers. A key that the type needs and the group
 * lacks is an error, as in transformers. A key that is ignored but has another value becomes a
 * note.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/words.h"
#include "hf/config_internal.h"

#define ORIGINAL     "original_max_position_embeddings"
#define QUERY_FACTOR "llama_4_scaling_beta" /* key of Ministral 3 */

enum { ORIGINAL_MAX = 1 << 24, YARN_CONTEXT = 4096, LLAMA3_CONTEXT = 8192 };

struct rope_reading {
    /* root: the config.json; group: rope_scaling or rope_parameters, of layers without a window;
     * NULL: neither */
    const struct hd_json *root, *group;
    const struct hd_json *local; /* group of layers with a window; NULL: none of their own */
    const struct hd_family *family;
    struct hd_job *job;
    struct hd_text *notes;
};

/* The keys of each rope_type; those in `needs` must be in the group. */
static const struct rope_kind {
    const char *name;
    enum hd_job_rope_scaling ours;
    const char *needs, *may;
} rope_kinds[] = {
    {"default", HD_JOB_ROPE_SCALING_NONE, "", ""},
    {"linear", HD_JOB_ROPE_SCALING_LINEAR, "factor", ""},
    {"llama3", HD_JOB_ROPE_SCALING_LLAMA3, "factor low_freq_factor high_freq_factor", ORIGINAL},
    {"yarn", HD_JOB_ROPE_SCALING_YARN, "factor",
     "beta_fast beta_slow attention_factor mscale mscale_all_dim truncate " QUERY_FACTOR
     " " ORIGINAL},
    {"longrope", HD_JOB_ROPE_SCALING_LONGROPE, "short_factor long_factor",
     "factor attention_factor " ORIGINAL},
};
enum { ROPE_KINDS = sizeof rope_kinds / sizeof rope_kinds[0], LONGROPE = ROPE_KINDS - 1 };

/* The sections give channels to axes of images; in text all axes have the same position. */
static const char of_every_kind[] =
    "rope_type type rope_theta partial_rotary_factor mrope_section mrope_interleaved";

/* Returns a member of a JSON object; NULL: absent or null. */
static const struct hd_json *rope_member(const struct hd_json *object, const char *key)
{
    const struct hd_json *found = object ? hd_json_member(object, key) : NULL;

    return found && found->kind != HD_JSON_NULL ? found : NULL;
}

static enum hd_status find_group(struct rope_reading *r)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};

    for (int i = 0; i < 2; i++) {
        const struct hd_json *value = rope_member(r->root, names[i]);

        if (!value)
            continue;
        if (value->kind != HD_JSON_OBJECT)
            return hd_hf_unsupported(names[i], value, "it must be an object or null");
        if (!r->group && value->first)
            r->group = value;
        else if (value->first && !hd_hf_same_value(r->group, value))
            hd_hf_note(r->notes, "config.json has both %s and %s; %s counts, as in transformers",
                       names[0], names[1], names[0]);
    }
    return HD_OK;
}

/* Returns the value of a key that may be in the group or beside it; the one in the group has
 * precedence. */
static const struct hd_json *inner_first(struct rope_reading *r, const char *key)
{
    const struct hd_json *inner = rope_member(r->group, key), *outer = rope_member(r->root, key);
    char a[HD_HF_QUOTE_MAX], b[HD_HF_QUOTE_MAX];

    if (inner && outer && !hd_hf_same_value(inner, outer))
        hd_hf_note(r->notes,
                   "config.json says %s: %s in %s and %s beside it; %s counts, as in "
                   "transformers",
                   key, hd_hf_quote(inner, a), r->group->key, hd_hf_quote(outer, b), a);
    return inner ? inner : outer;
}

/* Splits a group that has one object per kind of layer. */
static enum hd_status split_group(struct rope_reading *r)
{
    const struct hd_json *full = rope_member(r->group, "full_attention");
    const struct hd_json *local = rope_member(r->group, "sliding_attention");

    if (!full && !local && r->family->local_theta > 0 && r->group &&
        strcmp(r->group->key, "rope_parameters") == 0)
        return hd_hf_unsupported(r->group->key, r->group,
                                 "transformers does not use it in this form; write one object each "
                                 "for full_attention and sliding_attention");
    if (!full && !local)
        return HD_OK;
    if (r->family->local_theta == 0 || !full || !local || full->kind != HD_JSON_OBJECT ||
        local->kind != HD_JSON_OBJECT || r->group->count != 2)
        return hd_hf_unsupported(r->group->key, r->group,
                                 "one object with rope_type and rope_theta is");
    r->group = full;
    r->local = local;
    return HD_OK;
}

/* Reads the angles of layers with a window, which are not scaled. */
static enum hd_status read_local(struct rope_reading *r)
{
    const struct hd_json *type = rope_member(r->local, "rope_type");
    const struct hd_json *theta = rope_member(r->local, "rope_theta");

    if (type && (type->kind != HD_JSON_STRING || strcmp(type->text, "default") != 0))
        return hd_hf_unsupported("sliding_attention.rope_type", type, "use default");
    for (const struct hd_json *v = r->local ? r->local->first : NULL; v; v = v->next)
        if (!hd_words_have("rope_type type rope_theta", v->key) && v->kind != HD_JSON_NULL)
            return hd_hf_unsupported(v->key, v, "layers with a window have plain angles here");
    return theta ? hd_hf_to_real(theta, "rope_theta", 1, 1e12, &r->job->rope_local_theta) : HD_OK;
}

static enum hd_status unknown_kind(const struct hd_family *family, const char *key,
                                   const struct hd_json *value)
{
    const char *name = value->kind == HD_JSON_STRING ? value->text : "";

    if (strcmp(name, "dynamic") == 0)
        return hd_hf_unsupported(
            key, value,
            "its angles depend on the length of the sequence at run time; up to "
            "max_position_embeddings it changes nothing: remove it to train there");
    return hd_hf_unsupported(key, value,
                             family->longrope ? "transformers' class has default and longrope"
                                              : "use default, linear, llama3, yarn or longrope");
}

/* Returns the row of a rope_type as the class of the family reads it; NULL: it has none. */
static const struct rope_kind *kind_named(const struct hd_family *family, const char *name)
{
    if (family->longrope) {
        if (hd_words_have("longrope su yarn", name))
            return &rope_kinds[LONGROPE];
        return strcmp(name, "default") == 0 ? &rope_kinds[0] : NULL;
    }
    for (int i = 0; i < ROPE_KINDS; i++)
        if (strcmp(name, rope_kinds[i].name) == 0)
            return &rope_kinds[i];
    return NULL;
}

/* Returns the value of alpha that makes the angles of the type dynamic plain ones; NULL: none does. */
static const struct hd_json *find_alpha(const struct rope_reading *r)
{
    const struct hd_json *newer = rope_member(r->group, "rope_type");
    const struct hd_json *type = newer ? newer : rope_member(r->group, "type");
    const struct hd_json *alpha = r->family->ntk_alpha ? rope_member(r->group, "alpha") : NULL;

    return alpha && type && type->kind == HD_JSON_STRING && strcmp(type->text, "dynamic") == 0
               ? alpha
               : NULL;
}

/* Returns whether the value of rope_type is dynamic, and read as plain angles. */
static bool is_plain_dynamic(const struct rope_reading *r, const struct hd_json *type)
{
    return r->family->dynamic && type && type->kind == HD_JSON_STRING &&
           strcmp(type->text, "dynamic") == 0;
}

static enum hd_status find_kind(struct rope_reading *r, const struct rope_kind **ret_kind)
{
    const struct hd_json *newer = r->group ? hd_json_member(r->group, "rope_type") : NULL;
    const struct hd_json *older = r->group ? hd_json_member(r->group, "type") : NULL;
    const struct hd_json *value = newer ? newer : older;
    char key[HD_HF_QUOTE_MAX], a[HD_HF_QUOTE_MAX], b[HD_HF_QUOTE_MAX];

    *ret_kind = &rope_kinds[0];
    if (!value)
        return HD_OK;
    (void)snprintf(key, sizeof key, "%s.%s", r->group->key, value->key);
    if (!newer && r->family->local_theta > 0)
        return hd_hf_unsupported(key, value,
                                 "transformers 5 does not use this name in this class; write "
                                 "rope_type");
    if (newer && older && !hd_hf_same_value(newer, older))
        hd_hf_note(r->notes,
                   "config.json says rope_type: %s and type: %s in %s; rope_type counts, "
                   "as in transformers",
                   hd_hf_quote(newer, a), hd_hf_quote(older, b), r->group->key);
    if (find_alpha(r))
        return HD_OK;
    if (is_plain_dynamic(r, value)) {
        hd_hf_note(r->notes,
                   "config.json has %s: dynamic; angles are plain ones, which is the same up to "
                   "max_position_embeddings = %lld",
                   key, (long long)r->job->context);
        return HD_OK;
    }
    *ret_kind = value->kind == HD_JSON_STRING ? kind_named(r->family, value->text) : NULL;
    return *ret_kind ? HD_OK : unknown_kind(r->family, key, value);
}

/* Checks that every key of the group belongs to some type; keys of other types than this one are
 * not used. */
static enum hd_status check_keys(struct rope_reading *r, const struct rope_kind *kind)
{
    char key[2 * HD_HF_QUOTE_MAX], quoted[HD_HF_QUOTE_MAX];

    for (const struct hd_json *v = r->group ? r->group->first : NULL; v; v = v->next) {
        const struct hd_json name = {.kind = HD_JSON_STRING, .text = v->key};
        bool known = hd_words_have(of_every_kind, v->key);

        /* a copy beside the group of the class that reads it */
        if (hd_hf_reads(r->family, QUERY_FACTOR) && strcmp(v->key, "max_position_embeddings") == 0)
            continue;
        if (!hd_hf_reads(r->family, QUERY_FACTOR) && strcmp(v->key, QUERY_FACTOR) == 0 &&
            v->kind != HD_JSON_NULL)
            return hd_hf_unsupported(QUERY_FACTOR, v, "this class does not read it");

        known |= r->family->ntk_alpha && strcmp(v->key, "alpha") == 0;
        for (int i = 0; i < ROPE_KINDS && !known; i++)
            known = hd_words_have(rope_kinds[i].needs, v->key) ||
                    hd_words_have(rope_kinds[i].may, v->key);
        if (!known && v->kind != HD_JSON_NULL) {
            (void)snprintf(key, sizeof key, "%s.%s", r->group->key, hd_hf_quote(&name, quoted));
            return hd_hf_unsupported(key, v, "it is not known to this build");
        }
        if (strcmp(v->key, "factor") == 0 &&
            (is_plain_dynamic(r, rope_member(r->group, "rope_type")) ||
             is_plain_dynamic(r, rope_member(r->group, "type"))))
            continue; /* of the angles beyond max_position_embeddings */
        if (known && v->kind != HD_JSON_NULL && v != find_alpha(r) &&
            !hd_words_have(of_every_kind, v->key) && !hd_words_have(kind->needs, v->key) &&
            !hd_words_have(kind->may, v->key))
            hd_hf_note(r->notes, "%s.%s of config.json is not used: its type is %s", r->group->key,
                       v->key, kind->name);
    }
    return HD_OK;
}

/* Reads a number of the group, if the rope_type uses its key. */
static enum hd_status read_rope_number(struct rope_reading *r, const struct rope_kind *kind,
                                       const char *name, double min, double *ret_value)
{
    const struct hd_json *value = rope_member(r->group, name);
    char key[HD_HF_QUOTE_MAX];

    if (!hd_words_have(kind->needs, name) && !hd_words_have(kind->may, name))
        return HD_OK;
    (void)snprintf(key, sizeof key, "%s.%s", r->group->key, name);
    return value ? hd_hf_to_real(value, key, min, 1e6, ret_value) : HD_OK;
}

static enum hd_status check_needed(struct rope_reading *r, const struct rope_kind *kind)
{
    static const char *const names[] = {"factor", "low_freq_factor", "high_freq_factor",
                                        "short_factor", "long_factor"};
    const bool yarn = strcmp(kind->name, "yarn") == 0;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        /* yarn derives factor from null; the key itself must exist */
        const struct hd_json *value = r->group ? hd_json_member(r->group, names[i]) : NULL;

        if (hd_words_have(kind->needs, names[i]) &&
            (!value || (value->kind == HD_JSON_NULL && !yarn)))
            return hd_err(HD_INVALID, "%s.%s is missing, which the type %s needs", r->group->key,
                          names[i], kind->name);
    }
    return HD_OK;
}

static enum hd_status read_original(struct rope_reading *r, const struct rope_kind *kind)
{
    const struct hd_json *inner = rope_member(r->group, ORIGINAL);
    const struct hd_json *outer = rope_member(r->root, ORIGINAL);
    const int64_t absent = r->family->absent.original_context;
    const struct hd_json *value = outer || absent ? outer : inner;
    enum hd_status st = HD_OK;

    if (!hd_words_have(kind->may, ORIGINAL))
        return HD_OK;
    r->job->rope_original_context = absent ? absent : r->job->context;
    if (inner && !value)
        hd_hf_note(r->notes,
                   "config.json has " ORIGINAL " in %s alone; transformers' class takes %lld, "
                   "because it has none beside it",
                   r->group->key, (long long)absent);
    if (inner && outer && !hd_hf_same_value(inner, outer))
        hd_hf_note(r->notes,
                   "config.json has two values of " ORIGINAL
                   "; the one beside %s counts, as in transformers",
                   r->group->key);
    if (value)
        st = hd_json_to_int64(value, 1, ORIGINAL_MAX, &r->job->rope_original_context);
    return st ? hd_err_prefix(st, ORIGINAL) : HD_OK;
}

static double scale_of(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Computes yarn's attention_factor and factor from other keys if their values are null. */
static enum hd_status finish_yarn(struct rope_reading *r, const struct rope_kind *kind)
{
    const struct hd_json *truncate = rope_member(r->group, "truncate");
    struct hd_job *job = r->job;
    double mscale = 0, all = 0;
    char key[HD_HF_QUOTE_MAX];
    enum hd_status st;

    if (strcmp(kind->name, "yarn") != 0)
        return HD_OK;
    if (truncate && truncate->kind != HD_JSON_TRUE && truncate->kind != HD_JSON_FALSE) {
        (void)snprintf(key, sizeof key, "%s.truncate", r->group->key);
        return hd_hf_unsupported(key, truncate, "it must be true or false");
    }
    job->rope_untruncated = truncate && truncate->kind == HD_JSON_FALSE;
    if (!rope_member(r->group, "factor") && job->rope_original_context)
        job->rope_factor = (double)job->context / (double)job->rope_original_context;
    st = read_rope_number(r, kind, "mscale", 0, &mscale);
    if (!st)
        st = read_rope_number(r, kind, "mscale_all_dim", 0, &all);
    if (r->family->latent.kv_rank)
        job->rope_mscale_all_dim = all;
    if (!st && job->rope_attention_factor == 0 && mscale > 0 && all > 0)
        job->rope_attention_factor =
            scale_of(job->rope_factor, mscale) / scale_of(job->rope_factor, all);
    return st;
}

/* Reads a list of LongRoPE; its length and values are checked with the job (pair_factors.h). */
static enum hd_status read_factors(struct rope_reading *r, const char *name, const char **member)
{
    const struct hd_json *list = rope_member(r->group, name);
    char key[HD_HF_QUOTE_MAX];
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    (void)snprintf(key, sizeof key, "%s.%s", r->group->key, name);
    if (list->kind != HD_JSON_ARRAY)
        return hd_hf_unsupported(key, list, "it must be a list of numbers");
    for (const struct hd_json *v = list->first; !st && v; v = v->next) {
        if (v->kind != HD_JSON_NUMBER)
            st = hd_hf_unsupported(key, v, "it must be a list of numbers");
        else
            hd_text_add(&text, "%s%s", v == list->first ? "" : " ", v->text);
    }
    if (!st)
        st = hd_job_take_text(r->job, member, &text);
    hd_text_free(&text);
    return st == HD_LIMIT
               ? hd_err(HD_LIMIT, "%s: is longer than %d bytes", key, HD_JOB_PATH_MAX - 1)
               : st;
}

/* Reads the lists of LongRoPE, and computes factor if it is absent. */
static enum hd_status finish_longrope(struct rope_reading *r, const struct rope_kind *kind)
{
    struct hd_job *job = r->job;
    enum hd_status st;

    if (kind != &rope_kinds[LONGROPE])
        return HD_OK;
    if (!rope_member(r->group, "factor"))
        job->rope_factor = fmax(1, (double)job->context / (double)job->rope_original_context);
    st = read_factors(r, "short_factor", &job->rope_short_factor);
    return st ? st : read_factors(r, "long_factor", &job->rope_long_factor);
}

/* Sets the scaling of a class that scales the angles if no key says how: that of GPT-OSS, or of
 * CWM. */
static void scale_by_class(struct rope_reading *r)
{
    struct hd_job *job = r->job;

    if (r->group || (r->family->absent.yarn == 0 && r->family->absent.llama3 == 0))
        return;
    if (r->family->absent.llama3 > 0) {
        job->rope_scaling = HD_JOB_ROPE_SCALING_LLAMA3;
        job->rope_factor = r->family->absent.llama3;
        job->rope_original_context = LLAMA3_CONTEXT;
        return;
    }
    job->rope_scaling = HD_JOB_ROPE_SCALING_YARN;
    job->rope_factor = r->family->absent.yarn;
    job->rope_original_context = YARN_CONTEXT;
    job->rope_untruncated = true;
}

static enum hd_status read_scaling(struct rope_reading *r, const struct rope_kind *kind)
{
    struct hd_job *job = r->job;
    const struct {
        const char *name;
        double min, *member;
    } reals[] = {{"factor", 1, &job->rope_factor},
                 {"low_freq_factor", 1e-6, &job->rope_low_freq_factor},
                 {"high_freq_factor", 1e-6, &job->rope_high_freq_factor},
                 {"beta_fast", 1e-6, &job->rope_beta_fast},
                 {"beta_slow", 1e-6, &job->rope_beta_slow},
                 {"attention_factor", 1e-6, &job->rope_attention_factor}};
    enum hd_status st = check_needed(r, kind);

    for (size_t i = 0; !st && i < sizeof reals / sizeof reals[0]; i++)
        st = read_rope_number(r, kind, reals[i].name, reals[i].min, reals[i].member);
    if (!st)
        st = read_original(r, kind);
    if (!st)
        st = finish_yarn(r, kind);
    return st ? st : finish_longrope(r, kind);
}

/* Returns the value of a key of rotary positions; `older`, a name that some classes have for it
 * beside the group, counts where the group has none. */
static const struct hd_json *find_shared(struct rope_reading *r, const char *key, const char *older)
{
    const struct hd_json *inner = rope_member(r->group, key);

    if (!hd_hf_reads(r->family, older))
        return inner_first(r, key);
    return inner ? inner : rope_member(r->root, older);
}

/* Reads the factor of queries, which the class of Ministral 3 needs. */
static enum hd_status read_query_factor(struct rope_reading *r, const struct rope_kind *kind)
{
    const struct hd_json *beta = rope_member(r->group, QUERY_FACTOR);

    if (!hd_hf_reads(r->family, QUERY_FACTOR))
        return HD_OK;
    if (strcmp(kind->name, "yarn") != 0 || !beta)
        return hd_err(HD_UNSUPPORTED, "rope_parameters: a %s model needs the type yarn with %s",
                      r->family->name, QUERY_FACTOR);
    return hd_hf_to_real(beta, QUERY_FACTOR, 0, 1e3, &r->job->query_factor);
}

static enum hd_status read_shared(struct rope_reading *r)
{
    const struct hd_json *theta = find_shared(r, "rope_theta", "rotary_emb_base");
    const struct hd_json *share = find_shared(r, "partial_rotary_factor", "rotary_pct");
    const bool partial = hd_hf_reads(r->family, "partial_rotary_factor");
    const struct hd_json *rotated = rope_member(r->root, "rotary_dim");
    double part = partial && r->family->rope_fraction > 0 ? r->family->rope_fraction : 1;
    enum hd_status st = HD_OK;

    r->job->rope_theta = r->family->absent.theta;
    if (theta)
        st = hd_hf_to_real(theta, "rope_theta", 1, 1e12, &r->job->rope_theta);
    if (!st && share)
        st = hd_hf_to_real(share, "partial_rotary_factor", partial ? 0.01 : 0, 1, &part);
    else if (!st && rotated && hd_hf_reads(r->family, "rotary_dim")) {
        st = hd_hf_to_real(rotated, "rotary_dim", 2, (double)r->job->head_width, &part);
        part /= (double)r->job->head_width;
    }
    r->job->rope_fraction = part;
    return st || partial || part == 1
               ? st
               : hd_hf_unsupported("partial_rotary_factor", share,
                                   "transformers' classes of these types rotate all "
                                   "channels of a head, whatever it says, or fail; "
                                   "write 1");
}

/* Multiplies theta by what alpha says. */
static enum hd_status stretch_theta(struct rope_reading *r)
{
    const struct hd_json *value = find_alpha(r);
    const double D = (double)r->job->head_width;
    double alpha = 1;
    enum hd_status st = value ? hd_hf_to_real(value, "alpha", 1, 1e9, &alpha) : HD_OK;

    if (!st && value)
        r->job->rope_theta *= pow(alpha, D / (D - 2));
    return st;
}

enum hd_status hd_hf_read_rope(struct hd_hf_reading *reading)
{
    struct hd_job *job = reading->job;
    struct rope_reading r = {
        .root = reading->root, .family = reading->family, .job = job, .notes = reading->notes};
    const struct rope_kind *kind = NULL;
    enum hd_status st = find_group(&r);

    if (!st)
        st = split_group(&r);
    if (!st)
        st = find_kind(&r, &kind);
    if (!st)
        st = check_keys(&r, kind);
    if (!st)
        st = read_shared(&r);
    if (!st)
        st = stretch_theta(&r);
    if (!st)
        st = read_local(&r);
    if (st)
        return st;
    job->rope_scaling = kind->ours;
    st = read_scaling(&r, kind);
    if (!st)
        st = read_query_factor(&r, kind);
    if (!st)
        scale_by_class(&r);
    if (!st && job->rope_theta <= 1 && strcmp(kind->name, "yarn") == 0)
        st = hd_err(HD_INVALID, "rope_theta: %g is not more than 1, which yarn needs",
                    job->rope_theta);
    return st;
}
