/* jsonl: parses a line of a .jsonl file. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum hd_status hd_jsonl_check(const char *path)
{
    FILE *file = fopen(path, "re");
    enum hd_status st = HD_OK;
    const char *text = NULL;
    bool found = false;
    struct hd_arena arena;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;

    if (!file)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s: %s", path,
                      strerror(errno));
    hd_arena_init(&arena, 0);
    for (int64_t number = 1; !found && (n = getline(&line, &room, file)) > 0; number++) {
        const size_t bytes = (size_t)n - (line[n - 1] == '\n');

        found = !hd_jsonl_is_blank(line, bytes);
        st = found ? hd_jsonl_text(&arena, line, bytes, "text", &text) : HD_OK;
        if (st)
            st = hd_err_prefix(st, "%s:%" PRId64, path, number);
    }
    if (!st && ferror(file))
        st = hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
    hd_arena_done(&arena);
    (void)fclose(file);
    free(line);
    return st;
}
