/* Hostile request targets. What is accepted is unambiguous: a path of plain segments, and
 * parameters with a name each, all UTF-8 without control characters, inside the target's own
 * memory; what is refused has a message. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "http/target.h"
#include "tests/fuzz/driver.h"

static void look_at_text(const struct hd_http_target *t, const char *text)
{
    require(text >= t->text && text < t->text + sizeof t->text);
    require(memchr(text, '\0', (size_t)(t->text + sizeof t->text - text)) != NULL);
    require(hd_text_is_utf8(text, strlen(text)));
    for (const char *p = text; *p; p++)
        require((unsigned char)*p >= ' ' && *p != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    char *raw = malloc(size_bytes + 1);
    struct hd_http_target *t = malloc(sizeof *t);

    require(raw && t);
    memcpy(raw, bytes, size_bytes);
    raw[size_bytes] = '\0';
    if (hd_http_target_parse(raw, t)) {
        require(*hd_err_message() != '\0');
    } else {
        look_at_text(t, t->text);
        require(t->text[0] == '/' && !strstr(t->text, "//") && !strstr(t->text, "/../"));
        require(strlen(t->text) == t->path_bytes);
        require(t->param_count <= HD_HTTP_PARAMS_MAX);
        for (size_t i = 0; i < t->param_count; i++) {
            look_at_text(t, t->params[i].name);
            look_at_text(t, t->params[i].value);
            require(*t->params[i].name &&
                    hd_http_target_param(t, t->params[i].name) == t->params[i].value);
        }
    }
    free(t);
    free(raw);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *bytes, size_t size_bytes)
{
    static const char *const seeds[] = {
        "/", "/api/v1/jobs?state=running&limit=20", "/api/v1/jobs/7/curve?after=12&buckets=500",
        "/a%20b/%C3%A9?x=%25&y=", "/metrics?%6Eame=v&b&c&d&e&f&g&h&i&j&k&l&m&n&o&p"};
    const size_t count = sizeof seeds / sizeof seeds[0];

    if (index >= count || strlen(seeds[index]) > size_bytes)
        return 0;
    memcpy(bytes, seeds[index], strlen(seeds[index]));
    return strlen(seeds[index]);
}
