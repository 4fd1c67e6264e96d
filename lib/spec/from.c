/* model.from and train.init_from: what lies in a directory becomes explicit members of the JobSpec,
 * so that a stored spec says everything, and so that a directory that changes later is noticed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/hf.h"
#include "spec_internal.h"

/* A folder named in a job file starts at the file's own. */
static enum hd_status make_absolute(char **path, const char *key, const char *folder)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    hd_file_join(&text, folder, *path);
    if (text.failed || !spec_set_text(path, text.data))
        st = hd_err(HD_NO_MEMORY, "no memory for the job file");
    else if (text.len_bytes >= HD_JOB_PATH_MAX)
        st = hd_err(HD_INVALID, "%s: longer than %d bytes; use a shorter path", key,
                    HD_JOB_PATH_MAX - 1);
    hd_text_free(&text);
    return st;
}

/* What the job file is at fault for is its mistake, whatever the disk calls it. */
static enum hd_status at_key(const char *key, enum hd_status st)
{
    if (st == HD_NOT_FOUND || st == HD_CORRUPT || st == HD_LIMIT)
        st = HD_INVALID;
    return hd_err_prefix(st, "%s", key);
}

static enum hd_status differs(const char *key, const char *given, const char *theirs,
                              const char *dir)
{
    return hd_err(HD_INVALID, "model.%s: %s is not the %s of %s/config.json; remove the line", key,
                  given, theirs, dir);
}

/* `given` (0: not) and what config.json says must agree; it gets the latter. */
static enum hd_status take_int(const char *key, int64_t *given, int64_t theirs, const char *dir)
{
    char a[24], b[24];

    if (*given && *given != theirs) {
        (void)snprintf(a, sizeof a, "%" PRId64, *given);
        (void)snprintf(b, sizeof b, "%" PRId64, theirs);
        return differs(key, a, b, dir);
    }
    *given = theirs;
    return HD_OK;
}

static enum hd_status take_real(const char *key, double *given, double theirs, const char *dir)
{
    char a[32], b[32];

    if (*given != 0 && *given != theirs) {
        (void)snprintf(a, sizeof a, "%.9g", *given);
        (void)snprintf(b, sizeof b, "%.9g", theirs);
        return differs(key, a, b, dir);
    }
    *given = theirs;
    return HD_OK;
}

/* Training may look at less text at once than the model could. */
static enum hd_status take_context(int64_t *given, int64_t theirs, const char *dir)
{
    if (*given > theirs)
        return hd_err(HD_INVALID,
                      "model.context: %" PRId64 " is more than the %" PRId64
                      " of %s/config.json; give at most that",
                      *given, theirs, dir);
    if (!*given)
        *given = theirs;
    return HD_OK;
}

static enum hd_status take_numbers(Heddle__V1__ModelSpec *m, const struct hd_job *job)
{
    const struct {
        const char *key;
        int64_t *given, theirs;
    } numbers[] = {{"layers", &m->layers, job->layers},
                   {"hidden", &m->hidden, job->hidden},
                   {"heads", &m->heads, job->heads},
                   {"kv_heads", &m->kv_heads, job->kv_heads},
                   {"head_width", &m->head_width, job->head_width},
                   {"ffn_hidden", &m->ffn_hidden, job->ffn_hidden},
                   {"vocab", &m->vocab, job->vocab},
                   {"window", &m->window, job->window},
                   {"window_from", &m->window_from, job->window_from},
                   {"experts", &m->experts, job->experts},
                   {"experts_per_token", &m->experts_per_token, job->experts_per_token},
                   {"shared_ffn_hidden", &m->shared_ffn_hidden, job->shared_ffn_hidden}};
    enum hd_status st = take_context(&m->context, job->context, m->from_dir);

    for (size_t i = 0; !st && i < sizeof numbers / sizeof numbers[0]; i++)
        st = take_int(numbers[i].key, numbers[i].given, numbers[i].theirs, m->from_dir);
    if (!st)
        st = take_real("rope_theta", &m->rope_theta, job->rope_theta, m->from_dir);
    if (!st)
        st = take_real("norm_eps", &m->norm_eps, job->norm_eps, m->from_dir);
    return st;
}

static enum hd_status take_rope_scaling(Heddle__V1__RopeScaling *s, const struct hd_job *job,
                                        const char *dir)
{
    const struct {
        const char *key;
        double *given, theirs;
    } numbers[] = {
        {"rope_scaling.factor", &s->factor, job->rope_factor},
        {"rope_scaling.low_freq_factor", &s->low_freq_factor, job->rope_low_freq_factor},
        {"rope_scaling.high_freq_factor", &s->high_freq_factor, job->rope_high_freq_factor},
        {"rope_scaling.beta_fast", &s->beta_fast, job->rope_beta_fast},
        {"rope_scaling.beta_slow", &s->beta_slow, job->rope_beta_slow},
        {"rope_scaling.attention_factor", &s->attention_factor, job->rope_attention_factor}};
    const struct spec_section *model = spec_find_key(&spec_root, "model")->section;
    const struct spec_key *type =
        spec_find_key(spec_find_key(model, "rope_scaling")->section, "type");
    const struct spec_word *word = type->word;
    enum hd_status st;

    while (word->name && strcmp(word->name, job->rope_scaling) != 0)
        word++;
    if (s->type && (int)s->type != word->value)
        return differs("rope_scaling.type", spec_word_name(type, (int)s->type), job->rope_scaling,
                       dir);
    s->type = (Heddle__V1__RopeScalingKind)word->value;
    st = take_int("rope_scaling.original_context", &s->original_context, job->rope_original_context,
                  dir);
    for (size_t i = 0; !st && i < sizeof numbers / sizeof numbers[0]; i++)
        st = take_real(numbers[i].key, numbers[i].given, numbers[i].theirs, dir);
    return st;
}

static enum hd_status take_switches(Heddle__V1__ModelSpec *m, const struct hd_job *job,
                                    const struct yaml_node *written)
{
    static const char *const words[] = {"false", "true"};
    const struct {
        const char *key;
        protobuf_c_boolean *given;
        bool theirs;
    } switches[] = {{"tie_embeddings", &m->tie_embeddings, job->tie_embeddings},
                    {"qkv_bias", &m->qkv_bias, job->qkv_bias},
                    {"out_bias", &m->out_bias, job->out_bias},
                    {"mlp_bias", &m->mlp_bias, job->mlp_bias},
                    {"qk_norm", &m->qk_norm, job->qk_norm}};

    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (spec_yaml_find(written, switches[i].key) && !*switches[i].given == switches[i].theirs)
            return differs(switches[i].key, words[!!*switches[i].given], words[switches[i].theirs],
                           m->from_dir);
        *switches[i].given = switches[i].theirs;
    }
    return HD_OK;
}

/* How tokens choose is the model's; what the losses weigh, and what an expert may refuse, is how it
 * is trained: there config.json says what a job file that is silent means. */
static enum hd_status take_router(Heddle__V1__RouterSpec *router, const struct hd_job *job,
                                  const struct yaml_node *written, const char *dir)
{
    static const char *const words[] = {"false", "true"};
    const struct yaml_node *node = spec_yaml_find(written, "router");

    if (node && spec_yaml_find(node, "renormalize") && !router->renormalize == job->renormalize)
        return differs("router.renormalize", words[!!router->renormalize], words[job->renormalize],
                       dir);
    if (router->noisy)
        return differs("router.noisy", "true", "false", dir);
    router->renormalize = job->renormalize;
    if (!node || !spec_yaml_find(node, "balance"))
        router->balance = job->balance;
    return HD_OK;
}

/* Weights of a model that turns, or has a table, are of no use to one that does neither. */
static enum hd_status take_positions(Heddle__V1__ModelSpec *m, const struct hd_job *job)
{
    const struct spec_key *key =
        spec_find_key(spec_find_key(&spec_root, "model")->section, "positions");
    const struct spec_word *word = key->word;

    while (word->name && strcmp(word->name, job->positions) != 0)
        word++;
    if (m->positions && (int)m->positions != word->value)
        return differs("positions", spec_word_name(key, (int)m->positions), job->positions,
                       m->from_dir);
    m->positions = (Heddle__V1__Positions)word->value;
    return HD_OK;
}

/* How it is trained, as the router's losses: what the job file does not say, config.json does. */
static void take_dropout(Heddle__V1__DropoutSpec *d, const struct hd_job *job,
                         const struct yaml_node *train)
{
    const struct yaml_node *node = train ? spec_yaml_find(train, "dropout") : NULL;
    const bool all = node && node->kind == YAML_KIND_SCALAR;

    if (!all && !(node && spec_yaml_find(node, "embedding")))
        d->embedding = job->dropout_embedding;
    if (!all && !(node && spec_yaml_find(node, "attention")))
        d->attention = job->dropout_attention;
    if (!all && !(node && spec_yaml_find(node, "residual")))
        d->residual = job->dropout_residual;
}

static enum hd_status take_model(Heddle__V1__JobSpec *spec, const struct yaml_node *root)
{
    Heddle__V1__ModelSpec *m = spec->model;
    const struct yaml_node *written = spec_yaml_find(root, "model");
    struct hd_job job = {0};
    enum hd_status st = hd_hf_read_config(m->from_dir, &job, NULL);

    if (st)
        return at_key("model.from", st);
    if (*m->family && strcmp(m->family, job.family) != 0)
        return differs("family", m->family, job.family, m->from_dir);
    if (!spec_set_text(&m->family, job.family))
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    st = take_switches(m, &job, written);
    if (!st)
        st = take_numbers(m, &job);
    if (!st)
        st = take_router(m->router, &job, written, m->from_dir);
    if (!st)
        st = take_positions(m, &job);
    take_dropout(spec->train->dropout, &job, spec_yaml_find(root, "train"));
    return st ? st : take_rope_scaling(m->rope_scaling, &job, m->from_dir);
}

/* A tokenizer.json by its path; a model's own where the job has text and names none. */
static enum hd_status find_tokenizer(Heddle__V1__JobSpec *spec, const char *folder)
{
    Heddle__V1__DataSpec *d = spec->data;
    struct hd_text path = {0};
    enum hd_status st = HD_OK;

    if (!*d->tokenizer && *spec->model->from_dir && spec_has_text(d)) {
        hd_file_join(&path, spec->model->from_dir, "tokenizer.json");
        if (path.failed || (hd_file_exists(path.data) && !spec_set_text(&d->tokenizer, path.data)))
            st = hd_err(HD_NO_MEMORY, "no memory for the job file");
        hd_text_free(&path);
    }
    if (st || !*d->tokenizer || strcmp(d->tokenizer, "bytes") == 0 ||
        strcmp(d->tokenizer, "none") == 0)
        return st;
    st = make_absolute(&d->tokenizer, "data.tokenizer", folder);
    if (!st && !hd_file_exists(d->tokenizer))
        st = hd_err(HD_INVALID,
                    "data.tokenizer: there is no %s; write bytes, none, or the path of a "
                    "tokenizer.json",
                    d->tokenizer);
    return st;
}

enum hd_status spec_read_from(Heddle__V1__JobSpec *spec, const char *folder,
                              const struct yaml_node *written)
{
    Heddle__V1__ModelSpec *m = spec->model;
    Heddle__V1__TrainSpec *t = spec->train;
    char identity[HD_HASH_TEXT_MAX];
    uint64_t hash = 0;
    enum hd_status st = HD_OK;

    if (*m->from_dir) {
        st = make_absolute(&m->from_dir, "model.from", folder);
        if (!st)
            st = take_model(spec, written);
        if (!st && !*t->init_from && !spec_set_text(&t->init_from, m->from_dir))
            st = hd_err(HD_NO_MEMORY, "no memory for the job file");
    }
    if (!st)
        st = find_tokenizer(spec, folder);
    if (st || !*t->init_from || strcmp(t->init_from, SPEC_INIT_NONE) == 0)
        return st;
    st = make_absolute(&t->init_from, "train.init_from", folder);
    if (st)
        return st;
    st = hd_source_identity(t->init_from, &hash);
    if (st)
        return at_key("train.init_from", st);
    hd_hash_format(hash, identity);
    return spec_set_text(&t->init_identity, identity)
               ? HD_OK
               : hd_err(HD_NO_MEMORY, "no memory for the job file");
}
