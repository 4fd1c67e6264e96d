/* family: the rules that pick layers, the rows of families.def, and docs/models.md, whose table is
 * generated from them:
 *
 *   family_test --write docs/models.md     writes the table anew
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "base/words.h"
#include "job/family.h"
#include "tests/program/test.h"

#define BEGIN "<!-- generated: family_test --write -->\n"
#define END   "<!-- end -->\n"

/* ---- rules that pick layers ---- */

static void a_rule_picks_its_layers(void **state)
{
    static const struct {
        const char *rule, *picked;
    } rows[] = {{"all", "11111"},     {"none", "00000"},    {"5:1", "11111011"},
                {"1:1", "10101"},     {"0:2:3", "0011100"}, {"0:4:1024", "00001111"},
                {"2:1:1", "11011101"}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_layers layers;

        assert_int_equal(hd_layers_parse(rows[i].rule, &layers), HD_OK);
        for (int64_t k = 0; rows[i].picked[k]; k++)
            if (hd_layers_has(&layers, k) != (rows[i].picked[k] == '1'))
                fail_msg("%s: layer %lld", rows[i].rule, (long long)k);
    }
}

static void texts_that_are_no_rule_are_refused(void **state)
{
    static const char *const texts[] = {"5",    ":1",  "5:",     "5:0:1", "0:0",
                                        "-1:2", "a:1", "1025:1", "5: 1",  "5:1 "};
    struct hd_layers layers;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!hd_layers_parse(texts[i], &layers))
            fail_msg("'%s' is taken", texts[i]);
}

/* Every list of 12 layers is written as a rule that picks it. */
static void a_list_of_layers_becomes_the_rule_that_picks_it(void **state)
{
    enum { COUNT = 12 };

    (void)state;
    for (int bits = 0; bits < 1 << COUNT; bits++) {
        bool picked[COUNT];
        char rule[HD_LAYERS_TEXT_MAX];
        struct hd_layers layers;

        for (int i = 0; i < COUNT; i++)
            picked[i] = bits >> i & 1;
        assert_int_equal(hd_layers_format(picked, COUNT, rule), HD_OK);
        assert_int_equal(hd_layers_parse(rule, &layers), HD_OK);
        for (int i = 0; i < COUNT; i++)
            if (hd_layers_has(&layers, i) != picked[i])
                fail_msg("%s does not pick the layers %x", rule, (unsigned)bits);
    }
}

/* ---- rows ---- */

static void each_row_says_what_is_needed(void **state)
{
    char list[HD_FAMILY_LIST_MAX];

    (void)state;
    hd_family_list(list);
    assert_true(hd_text_ends(list, hd_families[hd_family_count - 1].name)); /* none is cut off */
    for (size_t i = 0; i < hd_family_count; i++) {
        const struct hd_family *f = &hd_families[i];
        struct hd_layers layers;

        if (!f->stem || !f->models || f->absent.eps <= 0 || f->absent.theta <= 0)
            fail_msg("%s: no class, models, epsilon or theta", f->name);
        if (f->experts != (f->new_experts > 0 && f->new_experts_per_token > 0) ||
            f->experts != (f->absent.experts > 0))
            fail_msg("%s: experts without their number", f->name);
        assert_int_equal(hd_layers_parse(f->window_layers ? f->window_layers : "all", &layers),
                         HD_OK);
        assert_int_equal(hd_layers_parse(f->rope_layers ? f->rope_layers : "all", &layers), HD_OK);
        assert_ptr_equal(hd_family_named(f->name), f);
    }
    assert_string_equal(hd_family_nearest("gema2"), "gemma2");
}

/* ---- the document ---- */

static void add_block(const struct hd_family *f, struct hd_text *text)
{
    static const char *const norms[] = {"RMSNorm",
                                        "RMSNorm with 1 + w",
                                        "LayerNorm",
                                        "LayerNorm without bias",
                                        "LayerNorm with 1 + w",
                                        "LayerNorm without parameters"};
    static const char *const places[] = {"before", "after", "before and after"};
    static const char *const qk_norms[] = {"", " over all heads", " with weights for each head",
                                           " behind RoPE", " behind RoPE"};
    static const char *const gated[] = {"SwiGLU", "GEGLU", "GEGLU (erf)", "", "", "clamped SwiGLU"};
    static const char *const plain[] = {"SiLU", "GELU", "GELU (erf)", "ReLU squared", "ReLU", ""};

    hd_text_add(text, "%s %s; %s%s", norms[f->norm], places[f->place],
                (f->gated ? gated : plain)[f->activation], f->experts ? " experts" : "");
    if (f->shared_gated)
        hd_text_add(text, ", a gated shared one");
    if (f->router_sigmoid || f->select_bias)
        hd_text_add(text, ", chosen by%s%s%s", f->router_sigmoid ? " sigmoids" : "",
                    f->router_sigmoid && f->select_bias ? " and" : "",
                    f->select_bias ? " a bias that the load moves" : "");
    if (f->latent.kv_rank)
        hd_text_add(text, "; multi-head latent attention");
    if (f->delta.layers)
        hd_text_add(text, "; gated delta layers in layers %s", f->delta.layers);
    if (f->conv.layers)
        hd_text_add(text, "; short convolutions in layers %s", f->conv.layers);
    if (f->output_gate)
        hd_text_add(text, "; gated attention");
    if (f->gate_input)
        hd_text_add(text, ", gates on their inputs");
    if (f->qk_norm || f->qk_norm_form == HD_QK_NORM_LAYER)
        hd_text_add(text, "; %snorm of q and k%s", f->qk_norm ? "" : "perhaps ",
                    qk_norms[f->qk_norm_form]);
    if (f->parallel)
        hd_text_add(text, "; %sparallel branches with %s", f->sequential ? "perhaps " : "",
                    hd_words_have(f->reads, "num_ln_in_parallel_attn") ? "one or two norms"
                    : strcmp(f->parallel, "one_norm") == 0             ? "one norm"
                                                                       : "two norms");
    if (f->learned)
        hd_text_add(text, "; learned positions");
    if (f->alibi)
        hd_text_add(text, "; ALiBi");
    if (f->interleaved)
        hd_text_add(text, "; RoPE of adjacent channels");
    if (f->rope_fraction > 0)
        hd_text_add(text, "; RoPE of %g of a head", f->rope_fraction);
    if (f->rope_layers)
        hd_text_add(text, "; RoPE in layers %s", f->rope_layers);
    if (f->window_layers && strcmp(f->window_layers, "none") != 0)
        hd_text_add(text, "; %s in layers %s", f->window == HD_WINDOW_CHUNKS ? "chunks" : "windows",
                    f->window_layers);
    else if (f->window != HD_WINDOW_NEVER)
        hd_text_add(text, "; windows");
    if (f->sinks)
        hd_text_add(text, "; sinks");
    if (f->attention_cap > 0)
        hd_text_add(text, "; capped scores");
    if (f->scales_embedding)
        hd_text_add(text, "; scaled embedding");
    if (f->embedding_norm)
        hd_text_add(text, "; norm of the embedding");
    if (f->head_bias)
        hd_text_add(text, "; bias of the logits");
    if (hd_words_have(f->reads ? f->reads : "", "clip_qkv") ||
        hd_words_have(f->reads ? f->reads : "", "attn_config"))
        hd_text_add(text, "; perhaps bounded q, k and v");
    if (hd_words_have(f->reads ? f->reads : "", "residual_multiplier"))
        hd_text_add(text, "; factors");
}

static void add_table(struct hd_text *text)
{
    hd_text_add(text, "| family | models | block | reward models |\n|---|---|---|---|\n");
    for (size_t i = 0; i < hd_family_count; i++) {
        const struct hd_family *f = &hd_families[i];

        hd_text_add(text, "| `%s` | %s | ", f->name, f->models);
        add_block(f, text);
        hd_text_add(text, " | %s |\n", f->no_classifier ? "not exported" : "yes");
    }
}

static void the_table_of_models_is_that_of_the_rows(void **state)
{
    struct hd_text docs = {0}, table = {0};
    const char *root = getenv("HEDDLE_SOURCE_DIR"), *begin, *end;
    char path[512];

    (void)state;
    if (!root)
        skip();
    (void)snprintf(path, sizeof path, "%s/docs/models.md", root);
    assert_int_equal(hd_file_read(path, 1 << 20, &docs), HD_OK);
    begin = strstr(docs.data, BEGIN);
    end = strstr(docs.data, END);
    assert_true(begin && end && begin < end);
    begin += strlen(BEGIN);
    add_table(&table);
    if (strlen(table.data) != (size_t)(end - begin) ||
        strncmp(begin, table.data, (size_t)(end - begin)) != 0)
        fail_msg("docs/models.md differs from lib/job/families.def; run: "
                 "build/dev/tests/family_test --write docs/models.md");
    hd_text_free(&docs);
    hd_text_free(&table);
}

static int write_table(const char *path)
{
    struct hd_text docs = {0}, fresh = {0};
    const char *begin, *end;
    int code = 1;

    if (hd_file_read(path, 1 << 20, &docs) == HD_OK && (begin = strstr(docs.data, BEGIN)) &&
        (end = strstr(docs.data, END))) {
        hd_text_add_bytes(&fresh, docs.data, (size_t)(begin - docs.data) + strlen(BEGIN));
        add_table(&fresh);
        hd_text_add(&fresh, "%s", end);
        code = hd_file_write_atomic(path, fresh.data, fresh.len_bytes, 0644) != HD_OK;
    }
    hd_text_free(&docs);
    hd_text_free(&fresh);
    return code;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_table(argv[2]);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
