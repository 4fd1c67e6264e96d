/* config_experts: keys of experts and routers in a config.json, which the table of config_keys.c
 * names. */
#include <string.h>

#include "hf/config_internal.h"

enum hd_status hd_hf_read_balance(struct hd_hf_reading *r, const struct hd_json *value)
{
    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    r->has_balance = true;
    return hd_hf_to_real(value, value->key, 0, HD_HF_BALANCE_MAX, &r->job->balance);
}

enum hd_status hd_hf_read_jitter(struct hd_hf_reading *r, const struct hd_json *value)
{
    return value->kind == HD_JSON_NULL ? HD_OK : hd_hf_to_real(value, value->key, 0, 1, &r->jitter);
}

/* Reads how DeepSeek-V2 chooses: among all experts, or in groups. */
enum hd_status hd_hf_read_topk_method(struct hd_hf_reading *r, const struct hd_json *value)
{
    const char *word = value->kind == HD_JSON_STRING ? value->text : "";

    r->grouped = strcmp(word, "group_limited_greedy") == 0;
    return r->grouped || value->kind == HD_JSON_NULL || strcmp(word, "greedy") == 0
               ? HD_OK
               : hd_hf_unsupported(value->key, value, "use greedy or group_limited_greedy");
}

/* Reads a count that decides which layers have experts, the width of the shared expert, or how many
 * layers predict further tokens. */
enum hd_status hd_hf_read_expert_count(struct hd_hf_reading *r, const struct hd_json *value)
{
    const struct {
        const char *key;
        int64_t *count, low;
    } counts[] = {{"n_shared_experts", &r->shared_experts, 0},
                  {"moe_num_shared_experts", &r->shared_experts, 0},
                  {"first_k_dense_replace", &r->first_sparse, 0},
                  {"moe_layer_start_index", &r->first_sparse, 0},
                  {"moe_layer_end_index", &r->last_sparse, -1},
                  {"moe_layer_interval", &r->sparse_step, 1},
                  {"num_nextn_predict_layers", &r->extra_layers, 0},
                  {"mtp_num_hidden_layers", &r->extra_layers, 0}};
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(value->key, counts[i].key) == 0 && value->kind != HD_JSON_NULL)
            st = hd_json_to_int64(value, counts[i].low, 1024, counts[i].count);
    return st ? hd_err_prefix(st, "%s", value->key) : HD_OK;
}

enum hd_status hd_hf_read_expert_ffn(struct hd_hf_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 1, 1 << 22, &r->expert_ffn);
    return st ? hd_err_prefix(st, "%s", value->key) : HD_OK;
}
