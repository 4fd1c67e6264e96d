/* padding: the token with which transformers pads a batch of answers. A reward model reads the last
 * token that is not padding, so a padding token that also ends answers would shift this by one. */
#include "base/json.h"
#include "hf/hf_internal.h"

enum { VALUES_MAX = 1 << 16, DEPTH_MAX = 16 };

static int64_t pad_of(const struct hd_json *root)
{
    static const char *const keys[] = {"pad_token_id", "bos_token_id"};
    const struct hd_json *ends = hd_json_member(root, "eos_token_id");
    int64_t id;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const struct hd_json *value = hd_json_member(root, keys[i]);

        if (value && !hd_json_to_int64(value, 0, INT32_MAX, &id) && !hd_hf_has_id(ends, id))
            return id;
    }
    return -1;
}

int64_t hd_hf_pad_token(const char *config, size_t config_bytes)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    int64_t pad = -1;

    hd_arena_init(&arena, 0);
    if (!hd_json_parse_repeated(&arena, config, config_bytes, &limits, &root) &&
        root->kind == HD_JSON_OBJECT)
        pad = pad_of(root);
    hd_arena_done(&arena);
    return pad;
}
