/* jsonl: parses a line of a .jsonl file. */
#include "base/json.h"
#include "data/data_internal.h"

bool hd_jsonl_is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

enum hd_status hd_jsonl_text(struct hd_arena *arena, const char *line, size_t bytes,
                             const char *key, const char **ret_text)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 64};
    const struct hd_json *root = NULL;
    enum hd_status st;

    if (bytes > HD_JSONL_LINE_BYTES_MAX)
        return hd_err(HD_LIMIT, "a line of more than %d bytes", HD_JSONL_LINE_BYTES_MAX);
    st = hd_json_parse(arena, line, bytes, &limits, &root);
    return st ? st : hd_json_need_string(root, key, ret_text);
}
