/* config_experts: keys of experts and routers in a config.json, which the table of config_keys.c
 * names. */
#include <string.h>

#include "hf/config_internal.h"

/* Reads how DeepSeek-V2 chooses: among all experts, or in groups. */
enum hd_status hd_hf_read_topk_method(struct hd_hf_reading *r, const struct hd_json *value)
{
    const char *word = value->kind == HD_JSON_STRING ? value->text : "";

    r->grouped = strcmp(word, "group_limited_greedy") == 0;
    return r->grouped || value->kind == HD_JSON_NULL || strcmp(word, "greedy") == 0
               ? HD_OK
               : hd_hf_unsupported(value->key, value, "use greedy or group_limited_greedy");
}
