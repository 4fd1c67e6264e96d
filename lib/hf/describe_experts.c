/* describe_experts: the keys of experts and routers in the config.json of a resolved job, and what a
 * class cannot express of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/config_internal.h"

const char *hd_hf_experts_key(const struct hd_family *f)
{
    static const char *const names[] = {"n_routed_experts", "moe_num_experts", "num_experts"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (hd_hf_reads(f, names[i]))
            return names[i];
    return "num_local_experts";
}

const char *hd_hf_shared_key(const struct hd_family *f)
{
    return hd_hf_reads(f, "n_shared_experts")         ? "n_shared_experts"
           : hd_hf_reads(f, "moe_num_shared_experts") ? "moe_num_shared_experts"
                                                      : NULL;
}

const char *hd_hf_first_key(const struct hd_family *f)
{
    return hd_hf_reads(f, "first_k_dense_replace")   ? "first_k_dense_replace"
           : hd_hf_reads(f, "moe_layer_start_index") ? "moe_layer_start_index"
                                                     : NULL;
}

bool hd_hf_find_experts(const struct hd_job *job, const struct hd_family *f, int64_t *ret_first,
                        int64_t *ret_step)
{
    const int64_t steps = hd_hf_reads(f, "moe_layer_interval") ? job->layers : 1;
    struct hd_layers rule = {0};
    int64_t first = 0;

    if (hd_layers_parse(job->experts_layers, &rule))
        return false;
    while (first < job->layers && !hd_layers_has(&rule, first))
        first++;
    for (int64_t step = 1; step <= steps; step++) {
        bool same = true;

        for (int64_t i = 0; same && i < job->layers; i++)
            same = hd_layers_has(&rule, i) == (i >= first && (i + 1) % step == 0);
        *ret_first = first;
        *ret_step = step;
        if (same)
            return true;
    }
    return false;
}

static bool is_scaled(const struct hd_job *job)
{
    return job->router_scale > 0 && job->router_scale != 1;
}

const char *hd_hf_lacks_of_router(const struct hd_job *job, const struct hd_family *f)
{
    const bool shared = hd_hf_shared_key(f) != NULL;
    const bool same_shared = hd_hf_reads(f, "intermediate_size_mlp");
    int64_t first, step;

    if (f->experts != (job->experts > 0))
        return "model.experts";
    if (!f->experts)
        return NULL;
    if (same_shared ? job->shared_ffn_hidden != job->ffn_hidden
        : shared
            ? job->shared_ffn_hidden % job->ffn_hidden != 0
            : (job->shared_ffn_hidden > 0) != hd_hf_reads(f, "shared_expert_intermediate_size") &&
                  !hd_hf_reads(f, "shared_intermediate_size"))
        return "model.shared_ffn_hidden";
    if (job->noisy)
        return "model.router.noisy: true";
    if (!hd_hf_reads(f, "mlp_only_layers") && !hd_hf_reads(f, "mlp_layer_types") &&
        !hd_hf_reads(f, "moe_layers") && strcmp(job->experts_layers, "all") != 0 &&
        !(hd_hf_first_key(f) && hd_hf_find_experts(job, f, &first, &step)))
        return "model.experts_layers";
    if (!f->router_groups && (job->router_groups > 1 || is_scaled(job)))
        return job->router_groups > 1 ? "model.router.groups" : "model.router.scale";
    if (hd_hf_reads(f, "norm_topk_prob") || job->renormalize == f->renormalize)
        return NULL;
    return job->renormalize ? "model.router.renormalize: true" : "model.router.renormalize: false";
}

/* Returns the router_aux_loss_coef for which hd_hf_balance gives this weight, in as few digits as
 * possible, so that a coefficient that was read is written back unchanged. */
static double coefficient_of(const struct hd_job *job)
{
    const int64_t layers = hd_layers_count(job->experts_layers, job->layers);
    const double exact = job->balance * (double)layers / (double)job->experts_per_token;
    const double near[] = {exact, nextafter(exact, 0), nextafter(exact, HUGE_VAL)};
    char text[40];

    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
        for (int digits = 1; digits <= 17; digits++) {
            double value;

            (void)snprintf(text, sizeof text, "%.*g", digits, near[i]);
            value = strtod(text, NULL);
            if (hd_hf_balance(value, job->experts_per_token, layers) == job->balance)
                return value;
        }
    return exact; /* no shorter number gives exactly this weight */
}

/* Adds the type of each layer's feed-forward part as mlp_layer_types. */
static void add_ffn_types(struct hd_json_writer *w, const struct hd_job *job)
{
    struct hd_layers rule = {0};

    (void)hd_layers_parse(job->experts_layers, &rule);
    hd_json_begin(w, "mlp_layer_types", '[');
    for (int64_t i = 0; i < job->layers; i++)
        hd_json_add_string(w, NULL, hd_layers_has(&rule, i) ? "sparse" : "dense");
    hd_json_end(w, ']');
}

/* Adds the layers without experts as mlp_only_layers. */
static void add_dense_layers(struct hd_json_writer *w, const struct hd_job *job)
{
    struct hd_layers rule = {0};

    (void)hd_layers_parse(job->experts_layers, &rule);
    hd_json_add_int64(w, "decoder_sparse_step", 1);
    hd_json_begin(w, "mlp_only_layers", '[');
    for (int64_t i = 0; i < job->layers; i++)
        if (!hd_layers_has(&rule, i))
            hd_json_add_int64(w, NULL, i);
    hd_json_end(w, ']');
}

/* Adds the keys of families whose first blocks have no experts, and of their routers. */
static void add_deep_experts(struct hd_json_writer *w, const struct hd_job *job,
                             const struct hd_family *f)
{
    int64_t first = 0, step = 1;

    if (hd_hf_shared_key(f))
        hd_json_add_int64(w, hd_hf_shared_key(f), job->shared_ffn_hidden / job->ffn_hidden);
    if (hd_hf_first_key(f) && hd_hf_find_experts(job, f, &first, &step))
        hd_json_add_int64(w, hd_hf_first_key(f), first);
    if (hd_hf_reads(f, "moe_layer_interval")) {
        hd_json_add_int64(w, "moe_layer_end_index", -1);
        hd_json_add_int64(w, "moe_layer_interval", step);
    }
    if (f->router_groups) {
        hd_json_add_int64(w, "n_group", job->router_groups > 1 ? job->router_groups : 1);
        hd_json_add_int64(w, "topk_group", job->router_groups > 1 ? job->router_groups_kept : 1);
        hd_hf_add_float(w, "routed_scaling_factor", is_scaled(job) ? job->router_scale : 1);
    }
    if (hd_hf_reads(f, "topk_method"))
        hd_json_add_string(w, "topk_method",
                           job->router_groups > 1 ? "group_limited_greedy" : "greedy");
}

void hd_hf_describe_further(struct hd_json_writer *w, const struct hd_job *job,
                            const struct hd_family *f)
{
    const int64_t count = job->mtp_layers <= hd_hf_further_max(f) ? job->mtp_layers : 0;

    if (hd_hf_further_key(f) && (count || !hd_hf_has_aside(f)))
        hd_json_add_int64(w, hd_hf_further_key(f), count);
}

void hd_hf_describe_experts(struct hd_json_writer *w, const struct hd_job *job,
                            const struct hd_family *f)
{
    hd_json_add_int64(w, hd_hf_experts_key(f), job->experts);
    hd_json_add_int64(w, hd_hf_reads(f, "moe_k") ? "moe_k" : "num_experts_per_tok",
                      job->experts_per_token);
    add_deep_experts(w, job, f);
    hd_hf_describe_further(w, job, f);
    if (hd_hf_reads(f, "router_aux_loss_coef"))
        hd_hf_add_float(w, "router_aux_loss_coef", coefficient_of(job));
    hd_json_add_bool(w, "output_router_logits", false);
    if (hd_hf_reads(f, "router_jitter_noise"))
        hd_hf_add_float(w, "router_jitter_noise", 0);
    hd_hf_write_keys(w, job, f, false,
                     "norm_topk_prob moe_intermediate_size shared_expert_intermediate_size");
    if (hd_hf_reads(f, "mlp_layer_types"))
        add_ffn_types(w, job);
    if (hd_hf_reads(f, "mlp_only_layers"))
        add_dense_layers(w, job);
}
