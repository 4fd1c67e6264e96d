/* chat_calls_test: tool calls in what a model writes, in turns of data sets, and the form in which a
 * chat template writes them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "chat/calls.h"
#include "chat/conversation.h"
#include "chat/render.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";

/* Writes a JSON value as the tests compare it. */
static void write_json(const struct hd_json *v, struct hd_text *out)
{
    const bool is_list = v->kind == HD_JSON_ARRAY;

    if (v->kind == HD_JSON_STRING)
        hd_text_add(out, "'%s'", v->text);
    else if (v->kind == HD_JSON_NUMBER)
        hd_text_add(out, "%s", v->text);
    if (v->kind != HD_JSON_OBJECT && !is_list)
        return;
    hd_text_add(out, is_list ? "[" : "{");
    for (const struct hd_json *c = v->first; c; c = c->next) {
        hd_text_add(out, "%s%s", c->key ? c->key : "", c->key ? ":" : "");
        write_json(c, out);
        hd_text_add(out, c->next ? "," : "");
    }
    hd_text_add(out, is_list ? "]" : "}");
}

/* Checks content and calls of a text: "CONTENT|NAME{..}NAME{..}". */
static void finds(enum hd_call_form form, const char *text, const char *wanted)
{
    static const struct hd_json_limits limits = {1000, 10};
    const struct hd_json *list = NULL;
    struct hd_chat_calls calls;
    struct hd_text got = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, tools, sizeof tools - 1, &limits, &list), HD_OK);
    assert_int_equal(hd_chat_calls_find(&arena, form, text, list, &calls), HD_OK);
    hd_text_add(&got, "%s|", calls.content);
    for (size_t i = 0; i < calls.count; i++) {
        hd_text_add(&got, "%s", calls.calls[i].name);
        write_json(calls.calls[i].arguments, &got);
    }
    assert_string_equal(got.data, wanted);
    hd_text_free(&got);
    hd_arena_done(&arena);
}

#define CALL "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"

/* Goal: an answer that was begun as a call is a call when the model has written its end. */
static void a_call_that_was_begun_is_found(void **state)
{
    static const struct {
        enum hd_call_form form;
        const char *name, *rest;
    } all[] = {{HD_CALLS_TAGGED, NULL, "f\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
               {HD_CALLS_TAGGED, "f", "{\"a\": 1}}\n</tool_call>"},
               {HD_CALLS_LISTED, NULL, "f\", \"arguments\": {\"a\": 1}}]"},
               {HD_CALLS_LISTED, "f", " {\"a\": 1}}]"},
               {HD_CALLS_BARE, NULL, "f\", \"parameters\": {\"a\": 1}}"},
               {HD_CALLS_BARE, "f", " {\"a\": 1}}"}};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct hd_text text = {0};
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        hd_text_add(&text, "%s%s", hd_chat_calls_begin(&arena, all[i].form, all[i].name),
                    all[i].rest);
        finds(all[i].form, text.data, "|f{a:1}");
        hd_text_free(&text);
        hd_arena_done(&arena);
    }
}

static void calls_are_found_in_each_form(void **state)
{
    finds(HD_CALLS_TAGGED, "Hm.\n<tool_call>\n" CALL "\n</tool_call>\n<tool_call>" CALL,
          "Hm.|f{a:1}f{a:1}");
    finds(HD_CALLS_TAGGED,
          "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}</tool_call>",
          "|f{a:'</tool_call>'}");
    finds(HD_CALLS_LISTED, "[TOOL_CALLS] [" CALL ", " CALL "]", "|f{a:1}f{a:1}");
    finds(HD_CALLS_LISTED, "So [TOOL_CALLS]f[CALL_ID]x1[ARGS]{\"a\": [2]}[TOOL_CALLS]f[ARGS]{}",
          "So|f{a:[2]}f{}");
    finds(HD_CALLS_BARE, " {\"name\": \"f\", \"parameters\": {\"a\": 1}}", "|f{a:1}");
    finds(HD_CALLS_BARE, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\"}",
          "|f{}f{}");
    /* arguments as a text with JSON, as OpenAI writes them */
    finds(HD_CALLS_BARE, "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}", "|f{a:1}");
}

static void a_text_that_is_no_call_stays_text(void **state)
{
    static const char *const tagged[] = {
        "",
        " no ",
        "<tool_call>",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call>{\"name\": \"g\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>",
        "<tool_call>" CALL " x",
        "<tool_call>[]</tool_call>"};
    static const char *const bare[] = {"{\"a\": 1}", "{\"name\": \"g\", \"parameters\": {}}",
                                       "{",          "x " CALL,
                                       CALL " x",    "[" CALL "]"};
    static const char *const listed[] = {"[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS][{}]",
                                         "[TOOL_CALLS]f[ARGS]{", "[TOOL_CALLS]f[ARGS]"};
    char wanted[128];

    for (size_t i = 0; i < sizeof tagged / sizeof *tagged; i++) {
        (void)snprintf(wanted, sizeof wanted, "%s|", tagged[i]);
        finds(HD_CALLS_TAGGED, tagged[i], wanted);
    }
    for (size_t i = 0; i < sizeof bare / sizeof *bare; i++) {
        (void)snprintf(wanted, sizeof wanted, "%s|", bare[i]);
        finds(HD_CALLS_BARE, bare[i], wanted);
    }
    for (size_t i = 0; i < sizeof listed / sizeof *listed; i++) {
        (void)snprintf(wanted, sizeof wanted, "%s|", listed[i]);
        finds(HD_CALLS_LISTED, listed[i], wanted);
    }
}

/* Goal: a stream sends nothing that turns out to be a call. Method: every beginning of a text; what
 * is safe never shrinks, and never reaches into the call. */
static void a_stream_holds_calls_back(void **state)
{
    static const struct {
        enum hd_call_form form;
        const char *text;
        size_t safe; /* bytes in front of the call */
    } cases[] = {{HD_CALLS_TAGGED, "Hm <b> \n<tool_call>{", 6},
                 {HD_CALLS_LISTED, "a [b] [TOOL_CALLS]f", 5},
                 {HD_CALLS_BARE, "\n{\"name\"", 0},
                 {HD_CALLS_BARE, "<|python_tag|>{", 0}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t last = 0;

        for (size_t n = 0; n <= strlen(cases[i].text); n++) {
            const size_t safe = hd_chat_calls_safe(cases[i].form, cases[i].text, n);

            assert_in_range(safe, last, n < cases[i].safe ? n : cases[i].safe);
            last = safe;
        }
        assert_int_equal(last, cases[i].safe);
    }
    assert_int_equal(hd_chat_calls_safe(HD_CALLS_BARE, "a {", 3), 3);
}

/* ---- templates ---- */

#define MESSAGES "{% for m in messages %}<{{ m.role }}>"
#define ASK      "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
#define TOOLS    "{% if tools %}{{ tools | tojson }}{% endif %}"

/* Opens a template and finds its form; returns NULL, or the message of the refusal. */
static const char *form_of(const char *template, enum hd_call_form *ret_form)
{
    struct hd_chat *chat = NULL;
    char folder[TEMPORARY_BYTES], path[128];
    enum hd_status st;

    temporary_dir(folder, "calls");
    (void)snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    assert_int_equal(hd_file_write_atomic(path, template, strlen(template), 0600), HD_OK);
    assert_int_equal(hd_chat_open(path, NULL, &chat), HD_OK);
    st = hd_chat_calls_form(chat, ret_form);
    hd_chat_close(chat);
    (void)unlink(path);
    (void)rmdir(folder);
    assert_true(!st || st == HD_UNSUPPORTED);
    return st ? hd_err_message() : NULL;
}

static void the_form_is_that_of_the_template(void **state)
{
    enum hd_call_form form = HD_CALLS_BARE;

    assert_null(
        form_of(TOOLS MESSAGES
                "{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n{\"name\": "
                "\"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}"
                "\n</tool_call>{% endfor %}" ASK,
                &form));
    assert_int_equal(form, HD_CALLS_TAGGED);
    assert_null(form_of(TOOLS MESSAGES
                        "{% if m.tool_calls %}[TOOL_CALLS][{{ m.tool_calls[0].function | tojson }}]"
                        "{% else %}{{ m.content }}{% endif %}" ASK,
                        &form));
    assert_int_equal(form, HD_CALLS_LISTED);
    assert_null(form_of(TOOLS MESSAGES
                        "{% if m.tool_calls %}{\"name\": \"{{ m.tool_calls[0].function.name }}\", "
                        "\"parameters\": {{ m.tool_calls[0].function.arguments | tojson }}}"
                        "{% else %}{{ m.content }}{% endif %}" ASK,
                        &form));
    assert_int_equal(form, HD_CALLS_BARE);
    assert_non_null(strstr(form_of(MESSAGES "{{ m.content }}" ASK, &form), "takes no tools"));
    assert_non_null(strstr(form_of(TOOLS MESSAGES "{{ m.content }}" ASK, &form), "writes none"));
    assert_non_null(
        strstr(form_of(TOOLS MESSAGES "{{ m.tool_calls }}" ASK, &form), "a form that is not read"));
}

/* ---- data sets ---- */

/* Checks messages and tools of a line in the form sharegpt. */
static void reads_as(const char *line, const char *roles, const char *wanted)
{
    struct hd_conversation c;
    struct hd_text got = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    if (hd_conversation_read(&arena, line, strlen(line), HD_CHAT_SHAREGPT, roles, &c))
        fail_msg("%s: %s", line, hd_err_message());
    for (const struct hd_json *m = c.messages.first; m; m = m->next)
        write_json(m, &got);
    if (c.tools)
        write_json(c.tools, &got);
    assert_string_equal(got.data, wanted);
    hd_text_free(&got);
    hd_arena_done(&arena);
}

#define TURN(from, value) "{\"from\": \"" from "\", \"value\": \"" value "\"}"
#define CALL_IN_TEXT      "{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}"
#define CALLED(id)        "{id:'" id "',type:'function',function:{name:'f',arguments:{a:1}}}"

static void turns_of_function_call_and_observation_are_calls_and_results(void **state)
{
    /* as LLaMA-Factory has them: two calls at a time, two results, and a tool without a type */
    reads_as(
        "{\"conversations\": [" TURN("human", "q") ", " TURN(
            "function_call",
            "[" CALL_IN_TEXT ", " CALL_IN_TEXT
            "]") ", " TURN("observation",
                           "r") ", " TURN("observation",
                                          "s") ", " TURN("gpt",
                                                         "b") "], \"tools\": \"[{\\\"name\\\": "
                                                              "\\\"f\\\"}]\"}",
        NULL,
        "{role:'user',content:'q'}{role:'assistant',content:'',tool_calls:[" CALLED(
            "call00000") "," CALLED("call00001") "]}{role:'tool',content:'r',tool_call_id:'"
                                                 "call00000'}{role:'tool',content:'s',tool_call_id:"
                                                 "'call00001'}"
                                                 "{role:'assistant',content:'b'}[{type:'function',"
                                                 "function:{name:'f'}}]");
    /* thoughts in front of a call are its content */
    reads_as("{\"conversations\": [" TURN("function_call", "<think>t</think>\\n" CALL_IN_TEXT) "]}",
             NULL,
             "{role:'assistant',content:'<think>t</think>',tool_calls:[" CALLED("call00000") "]}");
    /* as Hermes has them, in tags, if the record has tools */
    reads_as(
        "{\"conversations\": [" TURN(
            "gpt",
            "Hm <tool_call>\\n" CALL_IN_TEXT
            "\\n</tool_call>") ", " TURN("tool",
                                         "<tool_response>\\nr\\n</"
                                         "tool_response>\\n<tool_response>s</"
                                         "tool_response>") ", " TURN("gpt", "b") "], \"tools\": "
                                                                                 "[]}",
        NULL,
        "{role:'assistant',content:'Hm',tool_calls:[" CALLED(
            "call00000") "]}{role:'tool',content:'r',tool_call_id:'call00000'}{role:'tool',content:"
                         "'s'}{role:'assistant',content:'b'}[]");
}

static void what_is_no_call_stays_an_answer(void **state)
{
    reads_as("{\"conversations\": [" TURN("gpt", "<tool_call>" CALL_IN_TEXT "</tool_call>") "]}",
             NULL,
             "{role:'assistant',content:'<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
             "1}}</tool_call>'}");
    reads_as("{\"conversations\": [" TURN("function_call", "f(1)") "]}", NULL,
             "{role:'assistant',content:'f(1)'}");
    reads_as("{\"conversations\": [" TURN("function_call", "{\\\"name\\\": \\\"f\\\"}") "]}",
             "function_call=assistant", "{role:'assistant',content:'{\"name\": \"f\"}'}");
}

/* Goal: a call is never left out of what is learned. */
static void a_template_that_writes_no_calls_is_refused(void **state)
{
    static const char line[] =
        "{\"conversations\": [" TURN("human", "q") ", " TURN("function_call", CALL_IN_TEXT) "]}";
    static const char source[] = MESSAGES "{{ m.content }}" ASK;
    const struct hd_template_input input = {.count = 0};
    struct hd_template_output output = {0};
    struct hd_template *t = NULL;
    struct hd_conversation c;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_template_parse(source, sizeof source - 1, NULL, &t), HD_OK);
    assert_int_equal(
        hd_conversation_read(&arena, line, sizeof line - 1, HD_CHAT_SHAREGPT, NULL, &c), HD_OK);
    assert_int_equal(hd_chat_render(t, &c, HD_CHAT_ANSWERS, &input, &output), HD_INVALID);
    assert_non_null(
        strstr(hd_err_message(), "message 2 has tool calls, and the chat template writes none"));
    hd_template_output_free(&output);
    hd_template_free(t);
    hd_arena_done(&arena);
}

RUN_CASES()
