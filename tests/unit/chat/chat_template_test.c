/* The rules of Jinja2 with the settings of transformers, each by a template small enough to work
 * out by hand; tests/interop/templates compares whole templates with jinja2. */
#include <string.h>

#include "chat/template.h"
#include "tests/program/test.h"

static const char VARIABLES[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \" Hi \"},"
    " {\"role\": \"assistant\", \"content\": \"Ja\"}, {\"role\": \"user\", \"content\": \"?\"}],"
    " \"tool\": {\"b\": [1, 2.5, null], \"a\": \"<\xC3\xBC>&\\\"\\n\"}, \"w\": "
    "\"\xE6\x9D\xB1x\xF0\x9F\x99\x82z\","
    " \"empty\": [], \"bos_token\": \"<s>\"}";

static enum hd_status render(const char *source, const struct hd_template_limits *limits,
                             struct hd_template_output *output)
{
    const struct hd_json_limits json_limits = {.values_max = 1000, .depth_max = 20};
    struct hd_template_variable variables[8];
    struct hd_template_input input = {.variables = variables, .has_clock = true, .now_s = 86400};
    struct hd_template *t = NULL;
    struct hd_arena arena;
    const struct hd_json *root;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, VARIABLES, strlen(VARIABLES), &json_limits, &root),
                     HD_OK);
    for (const struct hd_json *m = root->first; m; m = m->next)
        variables[input.count++] = (struct hd_template_variable){m->key, m};
    st = hd_template_parse(source, strlen(source), limits, &t);
    if (!st)
        st = hd_template_render(t, &input, limits, output);
    hd_template_free(t);
    hd_arena_done(&arena);
    return st;
}

static void gives(const char *source, const char *text)
{
    struct hd_template_output output = {0};

    if (render(source, NULL, &output))
        fail_msg("%s: %s", source, hd_err_message());
    assert_string_equal(output.text.data, text);
    hd_template_output_free(&output);
}

static void fails(const char *source, enum hd_status st, const char *message)
{
    struct hd_template_output output = {0};

    assert_int_equal(render(source, NULL, &output), st);
    if (!strstr(hd_err_message(), message))
        fail_msg("%s: '%s' is not in '%s'", source, message, hd_err_message());
    hd_template_output_free(&output);
}

static void tags_take_the_white_space_that_jinja_takes(void **state)
{
    gives("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"); /* trim and lstrip */
    gives("a\n  {{ 1 }}\nb", "a\n  1\nb");                         /* not around a value */
    gives("a \n {%- if true -%} \n b {%+ endif +%}\nc", "ab \nc");
    gives("a {# x #}\nb{#- y -#} \n c", "a bc");
    gives("{% raw %}{{ x }}{% endraw %}", "{{ x }}");
    gives("a\r\nb\n\n", "a\nb\n"); /* one line break at the end goes */
}

static void loops_know_their_place(void **state)
{
    gives("{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.length }}"
          "{% if loop.first %}F{% elif loop.last %}L{% endif %}{{ loop.previtem.role if "
          "loop.previtem is defined }};{% endfor %}",
          "103F;213user;323Lassistant;");
    gives("{% for m in messages if m.role == 'user' %}{{ loop.length }}{% endfor %}", "22");
    gives("{% for m in empty %}x{% else %}none{% endfor %}", "none");
    gives("{% for k, v in tool.items() %}{{ k }}{{ v is string }}{% endfor %}", "bFalseaTrue");
    gives("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}"
          "{% endif %}{{ i }}{% endfor %}",
          "023");
}

static void what_a_loop_sets_ends_with_it(void **state)
{
    gives("{% set x = 1 %}{% for m in messages %}{{ x }}{% set x = 2 %}{% endfor %}{{ x }}",
          "1111");
    gives("{% set n = namespace(x=1) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}"
          "{{ n.x }}",
          "4");
    gives("{% if true %}{% set x = 3 %}{% endif %}{{ x }}", "3");
}

static void strings_are_of_code_points(void **state)
{
    gives("{{ w | length }} {{ w[1:] }} {{ w[::-1] }} {{ w[2] }} {{ w[:-1] }}",
          "4 x\xF0\x9F\x99\x82z z\xF0\x9F\x99\x82x\xE6\x9D\xB1 \xF0\x9F\x99\x82 "
          "\xE6\x9D\xB1x\xF0\x9F\x99\x82");
}

static void tojson_writes_what_transformers_writes(void **state)
{
    gives("{{ tool | tojson }}", "{\"b\": [1, 2.5, null], \"a\": \"<\xC3\xBC>&\\\"\\n\"}");
    gives("{{ {'a': [1, {}]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ]\n}");
    gives("{{ tool.b | tojson(separators=(',', ':')) }}", "[1,2.5,null]");
}

static void macros_blocks_and_calls(void **state)
{
    gives("{% macro m(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) ~ m(2, b=3) }}",
          "[1x][23]");
    gives("{% set t %} a {% endset %}{{ t | trim }}", "a");
    gives("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{% endcall %}", "<in>");
}

/* Expected: jinja2 3.1.6, worked out by its rules: a macro gets `varargs`, `kwargs` and `caller` if
 * its body, also in what it encloses, reads the name before setting it. */
static void a_macro_knows_its_arguments_as_in_jinja(void **state)
{
    static const struct {
        const char *source, *text;
    } cases[] = {
        {"{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 'x', b=3) }}"
         "{{ m(a=4) }}",
         "1(2, 'x'){'b': 3}4(){}"},
        {"{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }}", "1{'a': 2}"},
        {"{% macro m(a, b=2) %}{{ a }}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ "
         "m.catch_varargs "
         "}}{{ m.catch_kwargs }}{{ m.caller }}{{ m.explicit_caller }}{{ m.x is defined }}",
         "m('a', 'b')FalseFalseFalseFalseFalse"},
        {"{% macro m() %}{{ varargs | length }}{{ caller(1, 2) }}{% endmacro %}{% call(u) m(7) %}"
         "{{ u }}{{ varargs }}{% endcall %}",
         "11(2,)"},
        {"{% macro m() %}{% call n() %}{{ varargs }}{% endcall %}{% endmacro %}{% macro n() %}{{ "
         "caller(5) }}{% endmacro %}{{ m.catch_varargs }}{{ m(1) }}",
         "True(5,)"},
        {"{% macro m() %}{% set varargs = 1 %}{{ varargs }}{% endmacro %}{{ m.catch_varargs }}{{ "
         "m() "
         "}}",
         "False1"},
        {"{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m.catch_kwargs }}{{ m(kwargs=2) }}",
         "False2"},
        {"{% macro m(caller=3) %}{{ caller }}{% endmacro %}{{ m.explicit_caller }}{{ m() }}",
         "True3"},
        {"{% macro m() %}{{ caller is defined }}{{ caller.name if caller }}{% endmacro %}{{ m() }}"
         "{% call m() %}{% endcall %}",
         "FalseTrueNone"},
        {"{% macro m() %}{{ kwargs.keys() | list }}{% endmacro %}{% call m(a=1) %}x{% endcall %}",
         "['a', 'caller']"},
        {"{{ varargs is defined }}{{ kwargs is defined }}{{ caller is defined }}",
         "FalseFalseFalse"},
        {"{% macro m(a, b=varargs) %}{{ b }}{{ varargs }}{% endmacro %}{{ m(1) }}", "()()"},
        {"{% macro m(f) %}{{ f.name }}{{ f.arguments[0] }}{% endmacro %}{{ m(m) }}", "mf"},
        {"{% macro m() %}{% macro n(varargs) %}{{ varargs }}{% endmacro %}{{ n(3) }}{{ varargs }}"
         "{% endmacro %}{{ m.catch_varargs }}{{ m() }}",
         "False3"},
        {"{% macro m() %}{% for varargs in [1] %}{{ varargs }}{% endfor %}{% endmacro %}{{ "
         "m.catch_varargs }}{{ m() }}",
         "False1"},
        {"{% set self = 2 %}{{ self }}", "2"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        gives(cases[i].source, cases[i].text);
    fails("{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", HD_INVALID, "at most 1 arguments");
    fails("{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", HD_INVALID,
          "'a', or has a value for it");
    fails("{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", HD_INVALID, "no parameter 'b'");
    fails("{% macro m(a) %}{{ a }}{% endmacro %}{% call m(1) %}{% endcall %}", HD_INVALID,
          "has no caller()");
    fails("{% macro m(caller) %}{{ caller }}{% endmacro %}", HD_INVALID, "needs a default");
    fails("{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", HD_INVALID,
          "'caller' is not defined");
    /* Jinja2 refuses these as Python does, also where they are never run */
    fails("{{ dict(a=1, a=2) }}", HD_INVALID, "'a' is given twice");
    fails("{% if false %}{{ x|join(d=1, d=2) }}{% endif %}", HD_INVALID, "'d' is given twice");
    fails("{% macro m(a, a=1) %}{% endmacro %}", HD_INVALID, "'a' is given twice");
    fails("{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(b, b) m() %}{% endcall %}",
          HD_INVALID, "'b' is given twice");
    fails("{% macro m() %}{{ caller() }}{% endmacro %}{% call m(caller=1) %}{% endcall %}",
          HD_INVALID, "'caller' is given twice");
    fails("{{ self is defined }}", HD_UNSUPPORTED, "'self', the blocks");
    fails("{{ range.start }}", HD_UNSUPPORTED, "'start' of the function range");
    fails("{% macro m() %}{{ m(*varargs) }}{% endmacro %}", HD_UNSUPPORTED, "by * and **");
}

static void values_are_written_as_python_writes_them(void **state)
{
    gives("{{ [1, 'a', none, 1e16, 0.1, true, {'k': (1,)}] }}",
          "[1, 'a', None, 1e+16, 0.1, True, {'k': (1,)}]");
    gives("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 'a,b,c'.split(',', 1) }}",
          "-4 2 3.5 ['a', 'b,c']");
    gives("{{ tool | dictsort | map('first') | join('-') }} {{ messages | selectattr('role', "
          "'equalto', 'user') | list | length }}",
          "a-b 2");
    gives("{{ x is defined }}{{ x }}{{ x | default('d') }}{{ strftime_now('%d %b %Y') }}",
          "Falsed02 Jan 1970");
}

/* "<s>" and "A" are 4 bytes; U+6771 has 3 bytes and x one; the second answer follows "B". */
static void generation_marks_bytes_of_the_output(void **state)
{
    struct hd_template_output output = {0};

    assert_int_equal(render("{{ bos_token }}A{% generation %}{{ w[:2] }}{% endgeneration %}B"
                            "{% generation %}yes{% endgeneration %}",
                            NULL, &output),
                     HD_OK);
    assert_int_equal(output.span_count, 2);
    assert_int_equal(output.spans[0].begin, 4);
    assert_int_equal(output.spans[0].end, 8);
    assert_int_equal(output.spans[1].begin, 9);
    assert_int_equal(output.spans[1].end, 12);
    hd_template_output_free(&output);
}

static void errors_name_line_and_column(void **state)
{
    fails("a\n {{ x.y }}", HD_INVALID, "2:6: 'x' is not defined");
    fails("{% if %}", HD_INVALID, "1:7: a value is expected here");
    fails("a\ncaf\xE9 b", HD_INVALID, "2:1: byte 5 (0xE9) of the chat template is not UTF-8; if");
    fails("{% for x in y %}", HD_INVALID, "the template ends");
    fails("{{ raise_exception('no ' ~ 1) }}", HD_INVALID, "refuses this: no 1");
    fails("{% include 'x' %}", HD_UNSUPPORTED, "1:4: {% include %} is not supported");
    fails("{{ w | xmlattr }}", HD_UNSUPPORTED, "1:8: not supported: the filter 'xmlattr'");
    fails("{{ messages.append(1) }}", HD_UNSUPPORTED, "'append' of a list");
    fails("{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}", HD_UNSUPPORTED,
          "inside a macro");
}

static void a_hostile_template_ends(void **state)
{
    const struct hd_template_limits limits = {
        .memory_bytes_max = 1 << 20, .output_bytes_max = 1000, .steps_max = 10000, .depth_max = 50};
    static const char *const sources[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(2000) %}x{% endfor %}",
        "{{ 'x' * 99999999 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}",
        "{{ ((((((((((((((((((((((((((((((((((((((((((((((((((((1"
        "))))))))))))))))))))))))))))))))))))))))))))))))))))) }}",
    };

    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct hd_template_output output = {0};

        assert_int_equal(render(sources[i], &limits, &output), HD_LIMIT);
        hd_template_output_free(&output);
    }
}

/* In Python a generator is true, empty or not, is gone through once and has no length; a view of a
 * mapping and a range are no lists. */
static void what_is_no_list_is_not_taken_for_one(void **state)
{
    gives("{{ 1 if messages|selectattr('role', 'equalto', 'tool') else 0 }}", "1");
    gives("{{ 1 if messages|selectattr('role', 'equalto', 'tool')|list else 0 }}", "0");
    gives("{{ 1 if {}.items() or range(0) else 0 }}{{ range(2) == [0, 1] }}", "0False");
    gives("{{ ([1, 2]|reverse)[0] is defined }}{{ ([1, 2]|reverse|list)[0] }}", "False2");
    gives("{{ {'b': 1, 'a': 2}.keys()|join }}{{ {'a': 1}.items()|length }}{{ range(3)[1] }}",
          "ba11");
    gives("{{ 'user' in messages|map(attribute='role') }}{{ range(2) is sequence }}"
          "{{ {}.keys() is sequence }}",
          "TrueTrueFalse");
    fails("{{ messages|map(attribute='role')|length }}", HD_INVALID, "lazy list (write |list)");
    fails("{{ messages|map(attribute='role') }}", HD_UNSUPPORTED, "lazy list (write |list)");
    fails("{{ {'a': 1}.keys() }}", HD_UNSUPPORTED, "view of a mapping (write |list)");
    fails("{{ range(2)|tojson }}", HD_INVALID, "range");
    fails("{{ [1] + range(2) }}", HD_INVALID, "range");
    fails("{% set m = messages|map('length') %}{{ m|first }}{{ m|first }}", HD_UNSUPPORTED,
          "going twice through");
}

/* Jinja2 compares strings without their case; an item's own case is what comes out. */
static void the_least_and_the_most_are_found_as_jinja2_finds_them(void **state)
{
    gives("{{ ['a', 'B']|min }}{{ ['a', 'B', 'C']|max }}{{ ['a', 'B']|min(true) }}", "aCB");
    gives("{{ [{'n': 'b'}, {'n': 'A'}]|min(attribute='n') }}", "{'n': 'A'}");
    gives("{{ [{'v': 2}, {'v': 3}]|sum(attribute='v', start=10) }}{{ []|max is defined }}",
          "15False");
}

static void text_that_python_reads_as_another_number_is_refused(void **state)
{
    gives("{{ ' 12 '|int }} {{ 'x'|int(7) }} {{ '1e3'|int }} {{ 'a_b'|int }}", "12 7 1000 0");
    fails("{{ '1_0'|int }}", HD_UNSUPPORTED, "underscores");
    fails("{{ '\xd9\xa1'|int }}", HD_UNSUPPORTED, "ASCII");
    fails("{{ '-inf'|float }}", HD_UNSUPPORTED, "inf");
    fails("{{ '99999999999999999999'|int }}", HD_UNSUPPORTED, "64 bits");
    fails("{{ nothing|int }}", HD_INVALID, "'nothing' is not defined");
    fails("{{ 'a\\r\\nb'|indent }}", HD_UNSUPPORTED, "ends of lines");
}

RUN_CASES()
