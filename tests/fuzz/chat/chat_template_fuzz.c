/* Hostile chat templates. What is parsed renders within the limits or fails with a story that
 * begins with a line; marked spans lie in order inside the output. */
#include <stdlib.h>
#include <string.h>

#include "chat/template.h"
#include "tests/fuzz/driver.h"

static void render(const struct hd_template *t, const struct hd_template_limits *limits)
{
    static const struct hd_json user = {.kind = HD_JSON_STRING, .key = "role", .text = "user"};
    static const struct hd_json message = {.kind = HD_JSON_OBJECT, .count = 1, .first = &user};
    static const struct hd_json messages = {.kind = HD_JSON_ARRAY, .count = 1, .first = &message};
    static const struct hd_json word = {.kind = HD_JSON_STRING,
                                        .text = "\xC3\xA4 b\xF0\x9F\x99\x82"};
    static const struct hd_template_variable variables[] = {{"m", &messages}, {"w", &word}};
    const struct hd_template_input input = {.variables = variables, .count = 2, .has_clock = true};
    struct hd_template_output output = {0};
    size_t end = 0;
    enum hd_status st = hd_template_render(t, &input, limits, &output);

    require(st == HD_OK || hd_err_message()[0] != '\0');
    require(st != HD_INTERNAL);
    for (size_t i = 0; !st && i < output.span_count; i++) {
        require(output.spans[i].begin <= output.spans[i].end);
        require(output.spans[i].end <= output.text.len_bytes);
        end = output.spans[i].end;
    }
    require(st || end <= output.text.len_bytes);
    require(st || hd_text_is_utf8(output.text.data, output.text.len_bytes) ||
            memchr(output.text.data, 0, output.text.len_bytes));
    hd_template_output_free(&output);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    const struct hd_template_limits limits = {.source_bytes_max = 1 << 16,
                                              .memory_bytes_max = 1 << 20,
                                              .output_bytes_max = 1 << 16,
                                              .steps_max = 20000,
                                              .depth_max = 100};
    struct hd_template *t = NULL;
    enum hd_status st = hd_template_parse((const char *)bytes, size_bytes, &limits, &t);

    require(st != HD_INTERNAL);
    if (st)
        require(hd_err_message()[0] >= '0' && hd_err_message()[0] <= '9');
    else
        render(t, &limits);
    hd_template_free(t);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    static const char *const seeds[] = {
        "{% for x in m %}{{ loop.index ~ x.role | upper }}{% generation %}{{ x['role'][1:] }}"
        "{% endgeneration %}\n{% else %}-{%- endfor -%} {# c #} {{ w[::-1] | tojson(indent=2) }}",
        "{% set n = namespace(a=[], b={'k': 1.5}) %}{% set n.a = n.a + [w.split(' ')[-1]] %}"
        "{% macro f(a, b=2) %}{{ a if b > 1 and not a is none else 'z' }}{% endmacro %}{{ f(n.a) "
        "}}",
        "{% set t | trim %} {{ w.replace('b', '\\u00e9') }} {% endset %}{{ t.startswith(('a', w)) "
        "}}"
        "{% raw %}{{{% endraw %}{% if t in w or t == 'x' %}1{% elif 2 // 3 %}{% endif %}",
        "{{ m | selectattr('role', 'equalto', 'user') | map(attribute='role') | join(', ') }}"
        "{{ {'b': 1, 'a': 2} | dictsort }}{{ range(9)[2:7:2] | list | sort(reverse=true) }}"
        "{% call g() %}{% endcall %}{% with q = 1 %}{{ q }}{% endwith %}{{ w | indent(2, true) }}",
    };
    size_t n;

    if (index >= sizeof seeds / sizeof *seeds || strlen(seeds[index]) > max_bytes)
        return 0;
    n = strlen(seeds[index]);
    memcpy(ret_bytes, seeds[index], n);
    return n;
}
