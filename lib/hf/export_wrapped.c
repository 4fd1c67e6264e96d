/* export_wrapped: the tensors of a base's folder beside those that a run has. An export copies them
 * byte for byte from the folder; a checkpoint has none of them.
 *
 * Those beside the text model of a wrapped base (wrapper.c), such as the ones of its vision tower:
 * the whole export has their form of names, and the folder must still be there. Those of layers that
 * predict further tokens, unless the run trained such layers (further.c): without the folder the
 * export has none, and a note and its config.json say so. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "hf/export_internal.h"

enum { VALUES_MAX = 1 << 16, DEPTH_MAX = 16 };

/* Facts about the base's config.json. */
struct base_facts {
    const struct hd_hf_wrapper *wrapper; /* NULL: not wrapped */
    bool quantized;                      /* its weights are codes */
    bool extra_layers;                   /* a key says that the base has layers that predict further
                                            tokens than the next one */
};

static bool says_extra_layers(const struct hd_json *root)
{
    static const char *const keys[] = {"num_nextn_predict_layers", "num_mtp_layers",
                                       "mtp_num_hidden_layers"};
    int64_t count = 0;

    for (size_t i = 0; !count && i < sizeof keys / sizeof keys[0]; i++) {
        const struct hd_json *v = hd_json_member(root, keys[i]);

        if (v && hd_json_to_int64(v, 0, INT64_MAX, &count))
            count = 0;
    }
    return count > 0;
}

static enum hd_status read_base(const struct hd_hf_carry *carry, struct base_facts *ret_facts)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    const struct hd_json *root = NULL, *codes;
    struct hd_text text = {0};
    struct hd_arena arena;
    enum hd_status st = hd_hf_read_carried(carry, "config.json", &text);

    *ret_facts = (struct base_facts){NULL, false, false};
    hd_arena_init(&arena, 0);
    if (!st && text.len_bytes)
        st = hd_json_parse_repeated(&arena, text.data, text.len_bytes, &limits, &root);
    if (!st && root && root->kind == HD_JSON_OBJECT) {
        codes = hd_json_member(root, "quantization_config");
        ret_facts->wrapper = hd_hf_find_wrapper(root);
        ret_facts->quantized = codes && codes->kind != HD_JSON_NULL;
        ret_facts->extra_layers = says_extra_layers(root);
    }
    hd_arena_done(&arena);
    hd_text_free(&text);
    return st ? hd_err_prefix(st, "config.json of the base") : HD_OK;
}

bool hd_hf_is_wrapped(const char *checkpoint_dir)
{
    const struct hd_job none = HD_JOB(.arena = NULL);
    const struct hd_hf_carry carry = {.job = &none, .checkpoint_dir = checkpoint_dir};
    struct base_facts facts;

    return !read_base(&carry, &facts) && facts.wrapper;
}

/* Returns the folder with the weights of the base; "": none is known. */
static const char *source_dir(const struct hd_exporter *x)
{
    if (x->options->base_dir)
        return x->options->base_dir;
    return *x->job.init_from && !hd_source_is_checkpoint(x->job.init_from) ? x->job.init_from
                                                                           : x->job.from_dir;
}

static enum hd_status check_source(const struct hd_exporter *x, const char *dir)
{
    const bool known = *x->job.init_identity && !hd_source_is_checkpoint(x->job.init_from);
    char is[HD_HASH_TEXT_MAX];

    hd_hash_format(hd_weights_identity(x->source), is);
    if (known && strcmp(is, x->job.init_identity) != 0)
        return hd_err(HD_INVALID,
                      "%s is not the model that %s was trained on: its identity is %s, was %s; "
                      "give the folder with which the job began (--base DIR), or export the text "
                      "model alone (--text-only)",
                      dir, x->options->checkpoint_dir, is, x->job.init_identity);
    return x->prefixes.wrapped
               ? HD_OK
               : hd_err(HD_INVALID,
                        "%s has no tensors beside those of the text model; export the text model "
                        "alone, with --text-only",
                        dir);
}

static enum hd_status open_source(struct hd_exporter *x, const struct hd_hf_wrapper *wrapper,
                                  const char *prefix, const char *embedding)
{
    const char *dir = source_dir(x);
    enum hd_status st = *dir ? hd_weights_open(dir, &x->source) : HD_NOT_FOUND;

    if (st == HD_NOT_FOUND)
        return hd_err(HD_INVALID,
                      "%s has only the text model of its base, a %s; the vision tower is in the "
                      "folder of the base%s%s, which is not there: say where it is now (--base "
                      "DIR), or export the text model alone (--text-only)",
                      x->options->checkpoint_dir, wrapper->type, *dir ? ", " : "", dir);
    if (st)
        return st;
    x->prefixes = hd_hf_find_prefixes(x->source, prefix, embedding);
    return check_source(x, dir);
}

static bool has_extra(const struct hd_exporter *x)
{
    bool has = false;

    for (size_t i = 0; x->source && !has && i < hd_weights_count(x->source); i++)
        has =
            hd_hf_is_extra(x->source, &x->job, x->prefixes.base, hd_weights_at(x->source, i)->name);
    return has;
}

/* Returns why the layers that predict further tokens cannot be copied from the folder of a plain
 * base, which it opens; NULL: they can. */
static const char *open_extra(struct hd_exporter *x, const struct base_facts *facts)
{
    const char *dir = source_dir(x);
    char is[HD_HASH_TEXT_MAX];

    if (!*dir || hd_weights_open(dir, &x->source)) {
        x->source = NULL;
        return "the folder of the base is not there; say where it is now (--base DIR)";
    }
    hd_hash_format(hd_weights_identity(x->source), is);
    if (*x->job.init_identity && strcmp(is, x->job.init_identity) != 0)
        return "the folder of the base has other weights than those with which the job began; give "
               "the folder that has these (--base DIR)";
    if (facts->quantized)
        return "they are quantized, which an export cannot leave beside plain weights";
    return hd_job_is_reward(&x->job) ? "a reward model predicts no tokens" : NULL;
}

/* Finds whether the layers that predict further tokens are copied; adds a note if the base has some
 * and the export has none. */
static void find_extra(struct hd_exporter *x, const struct base_facts *facts)
{
    const char *why = open_extra(x, facts);
    const bool has = has_extra(x);

    x->extra_layers = has && !why;
    if (why && (has || facts->extra_layers) && x->options->notes)
        hd_text_add(x->options->notes,
                    "the export leaves out the base's layers that predict further tokens: %s", why);
}

int64_t hd_export_further(const struct hd_exporter *x)
{
    const int64_t most = hd_hf_further_max(hd_family_named(x->job.family));

    return x->job.mtp_layers <= most ? x->job.mtp_layers : 0;
}

enum hd_status hd_export_open_wrapped(struct hd_exporter *x, const char *prefix,
                                      const char *embedding)
{
    const struct hd_hf_carry carry = hd_export_carry(x);
    struct base_facts facts;
    enum hd_status st = read_base(&carry, &facts);

    x->prefixes = (struct hd_hf_prefixes){prefix, "", false};
    if (!st && !facts.wrapper && !x->options->adapter && !hd_export_further(x) &&
        hd_family_named(x->job.family)->extra_layers)
        find_extra(x, &facts);
    if (st || !facts.wrapper || x->options->text_only)
        return st;
    if (x->options->adapter) {
        x->prefixes = (struct hd_hf_prefixes){facts.wrapper->modules, "", true};
        return HD_OK;
    }
    if (facts.quantized || hd_job_is_reward(&x->job))
        return hd_err(HD_UNSUPPORTED, "%s: %s; export the text model alone, with --text-only",
                      x->options->checkpoint_dir,
                      facts.quantized
                          ? "the vision tower of the base is quantized, which an export "
                            "cannot leave beside plain weights"
                          : "transformers has no reward model with a vision tower");
    return open_source(x, facts.wrapper, prefix, embedding);
}

static bool is_copied(const struct hd_exporter *x, const struct hd_weight *w)
{
    if (hd_export_further(x) && hd_hf_is_aside(w->name))
        return false; /* the run has these layers */
    return x->extra_layers ? hd_hf_is_extra(x->source, &x->job, x->prefixes.base, w->name)
                           : !hd_hf_is_of_text(&x->prefixes, w->name);
}

size_t hd_export_count_copied(const struct hd_exporter *x)
{
    size_t count = 0;

    for (size_t i = 0; x->source && i < hd_weights_count(x->source); i++)
        count += is_copied(x, hd_weights_at(x->source, i));
    return count;
}

void hd_export_add_copied(struct hd_exporter *x)
{
    for (size_t i = 0; x->source && i < hd_weights_count(x->source); i++) {
        const struct hd_weight *w = hd_weights_at(x->source, i);

        if (!is_copied(x, w))
            continue;
        x->tensors[x->count] = (struct hd_export_tensor){.copied = w, .expert = -1};
        (void)snprintf(x->tensors[x->count++].name, HD_WEIGHTS_NAME_MAX, "%s", w->name);
    }
}
