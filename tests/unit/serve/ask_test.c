/* serve: what a body asks for, and the error of each that asks for nothing that is there. */
#include <string.h>

#include "serve/ask.h"
#include "tests/program/test.h"

#define TOOL "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

static struct hd_arena arena;
static struct hd_ask ask;

static int set_up(void **state)
{
    hd_arena_init(&arena, 0);
    return 0;
}

static int tear_down(void **state)
{
    hd_arena_done(&arena);
    return 0;
}

static void take(enum hd_ask_kind kind, const char *body)
{
    const char *param;

    if (hd_ask_read(&arena, kind, body, strlen(body), &ask, &param))
        fail_msg("%s: %s", body, hd_err_message());
    assert_null(param);
}

static void prompts_have_four_forms(void **state)
{
    take(HD_ASK_COMPLETION, "{\"prompt\": \"one\"}");
    assert_int_equal(ask.prompt_count, 1);
    assert_string_equal(hd_ask_prompt(&ask, 0)->text, "one");
    take(HD_ASK_COMPLETION, "{\"prompt\": [\"one\", \"two\"]}");
    assert_int_equal(ask.prompt_count, 2);
    assert_string_equal(hd_ask_prompt(&ask, 1)->text, "two");
    take(HD_ASK_COMPLETION, "{\"prompt\": [7, 8, 9]}");
    assert_int_equal(ask.prompt_count, 1);
    assert_int_equal(hd_ask_prompt(&ask, 0)->count, 3);
    take(HD_ASK_COMPLETION, "{\"prompt\": [[7], [8, 9]]}");
    assert_int_equal(ask.prompt_count, 2);
    assert_int_equal(hd_ask_prompt(&ask, 1)->count, 2);
    assert_string_equal(hd_ask_prompt(&ask, 1)->first->text, "8");
}

static void settings_are_those_of_the_api(void **state)
{
    take(HD_ASK_COMPLETION, "{\"prompt\": \"a\"}");
    assert_int_equal(ask.max_tokens, 16);
    assert_int_equal(ask.n, 1);
    assert_true(ask.sampling.temperature == 1 && ask.sampling.top_p == 1);
    assert_false(ask.reports_odds || ask.echo || ask.stream || ask.has_seed);
    take(HD_ASK_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}");
    assert_int_equal(ask.max_tokens, -1); /* as many as there is room for */
    take(HD_ASK_COMPLETION,
         "{\"model\": \"m\", \"prompt\": \"a\", \"n\": 3, \"max_tokens\": 5, \"temperature\": 0.5, "
         "\"top_p\": 0.9, \"top_k\": -1, \"seed\": -7, \"stop\": [\"x\", \"yz\"], \"echo\": true, "
         "\"stream\": true, \"stream_options\": {\"include_usage\": true}, \"logprobs\": 2, "
         "\"presence_penalty\": 0, \"frequency_penalty\": 0.0, \"logit_bias\": {}, \"best_of\": 1, "
         "\"suffix\": null, \"user\": \"u\"}");
    assert_string_equal(ask.model, "m");
    assert_int_equal(ask.n, 3);
    assert_int_equal(ask.max_tokens, 5);
    assert_true(ask.sampling.temperature == 0.5 && ask.sampling.top_p == 0.9);
    assert_int_equal(ask.sampling.top_k, 0);
    assert_true(ask.has_seed && ask.sampling.seed == (uint64_t)-7);
    assert_int_equal(ask.stop_count, 2);
    assert_string_equal(ask.stops[1], "yz");
    assert_true(ask.echo && ask.stream && ask.include_usage && ask.reports_odds);
    assert_int_equal(ask.top, 2);
    take(HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"logprobs\": 0, \"echo\": true, "
                            "\"max_tokens\": 0}");
    assert_true(ask.reports_odds && ask.top == 0);
    take(HD_ASK_CHAT,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"logprobs\": true, "
         "\"top_logprobs\": 3, \"max_completion_tokens\": 9, \"tools\": []}");
    assert_true(ask.reports_odds && ask.top == 3 && ask.max_tokens == 9);
}

/* Each is refused, names its key, and says what would do. */
static void what_is_not_understood_is_refused_by_its_key(void **state)
{
    static const struct {
        enum hd_ask_kind kind;
        const char *body, *param, *message;
    } all[] = {
        {HD_ASK_COMPLETION, "", NULL, "the body is not JSON"},
        {HD_ASK_COMPLETION, "[]", NULL, "must be a JSON object"},
        {HD_ASK_COMPLETION, "{}", "prompt", "prompt is missing"},
        {HD_ASK_COMPLETION, "{\"prompt\": null}", "prompt", "prompt is missing"},
        {HD_ASK_COMPLETION, "{\"prompt\": 3}", "prompt", "must be a text, a list"},
        {HD_ASK_COMPLETION, "{\"prompt\": []}", "prompt", "must be a text, a list"},
        {HD_ASK_COMPLETION, "{\"prompt\": [\"a\", 1]}", "prompt", "must be a text, a list"},
        {HD_ASK_COMPLETION, "{\"prompt\": [1, \"a\"]}", "prompt", "\"a\" is no token id"},
        {HD_ASK_COMPLETION, "{\"prompt\": [1, -1]}", "prompt", "\"-1\" is no token id"},
        {HD_ASK_COMPLETION, "{\"prompt\": [1, 0.5]}", "prompt", "\"0.5\" is no token id"},
        {HD_ASK_COMPLETION, "{\"prompt\": [[1], []]}", "prompt", "a list of token ids is empty"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"n\": 0}", "n", "from 1 to 128"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": 1.5}", "max_tokens",
         "whole number"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": 0}", "max_tokens", "without echo"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"temperature\": \"hot\"}", "temperature",
         "must be a number from 0 to 100"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"top_p\": 1.1}", "top_p", "from 0 to 1"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"stop\": [\"\"]}", "stop", "none of them empty"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"stream\": 1}", "stream", "true or false"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"logprobs\": 21}", "logprobs", "from 0 to 20"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"logprobs\": true}", "logprobs", "from 0 to 20"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"best_of\": 2}", "best_of", "is not supported"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"logit_bias\": {\"1\": 2}}", "logit_bias",
         "is not supported"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"presence_penalty\": 0.1}", "presence_penalty",
         "is not supported"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"suffix\": \"b\"}", "suffix", "is not supported"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"temprature\": 1}", "temprature",
         "\"temprature\" is not a supported setting"},
        {HD_ASK_COMPLETION, "{\"prompt\": \"a\", \"messages\": []}", "messages",
         "is not a supported setting"},
        {HD_ASK_CHAT, "{\"prompt\": \"a\"}", "prompt", "is not a supported setting"},
        {HD_ASK_CHAT, "{\"messages\": []}", "messages", "at least one"},
        {HD_ASK_CHAT, "{\"messages\": [{\"content\": \"a\"}]}", "messages",
         "message 0: it needs a role"},
        {HD_ASK_CHAT, "{\"messages\": [{\"role\": \"user\"}]}", "messages",
         "message 0: it needs content"},
        {HD_ASK_CHAT, "{\"messages\": [{\"role\": \"alien\", \"content\": \"a\"}]}", "messages",
         "the role \"alien\" is none of"},
        {HD_ASK_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": 1}]}", "messages",
         "message 0: content must be a text"},
        {HD_ASK_CHAT,
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
         "messages", "only \"text\" is supported"},
        {HD_ASK_CHAT,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"top_logprobs\": 1}",
         "top_logprobs", "needs logprobs"},
        {HD_ASK_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{}]}",
         "tools", "tool 0: its type is not \"function\""},
        {HD_ASK_CHAT, "{\"tools\": [{\"type\": \"function\", \"function\": {}}]}", "tools",
         "tool 0: it has no function with a name"},
        {HD_ASK_CHAT, "{\"tool_choice\": \"any\"}", "tool_choice",
         "only \"auto\", \"none\", \"required\""},
        {HD_ASK_CHAT,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tool_choice\": "
         "\"required\"}",
         "tool_choice", "a call is asked for, and the request has no tools"},
        {HD_ASK_CHAT,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": " TOOL
         ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"g\"}}}",
         "tool_choice", "no tool of the request is called \"g\""},
        {HD_ASK_CHAT,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"response_format\": "
         "{\"type\": \"json_object\"}}",
         "response_format", "only {\"type\": \"text\"}"},
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *param;

        assert_true(hd_ask_read(&arena, all[i].kind, all[i].body, strlen(all[i].body), &ask,
                                &param) != HD_OK);
        if (!strstr(hd_err_message(), all[i].message))
            fail_msg("%s: %s", all[i].body, hd_err_message());
        if (all[i].param)
            assert_string_equal(param, all[i].param);
        else
            assert_null(param);
    }
}

static void the_choices_of_a_request_are_bounded(void **state)
{
    char body[4000] = "{\"n\": 128, \"prompt\": [";
    const char *param;

    for (int i = 0; i < 9; i++) /* 9 * 128 = 1152 > 1024 */
        (void)strcat(body, i ? ",\"a\"" : "\"a\"");
    (void)strcat(body, "]}");
    assert_int_equal(hd_ask_read(&arena, HD_ASK_COMPLETION, body, strlen(body), &ask, &param),
                     HD_INVALID); /* 503 would have it asked again */
    assert_non_null(strstr(hd_err_message(), "1152, and at most 1024"));
}

static void messages_reach_the_template_as_they_are_and_parts_as_one_text(void **state)
{
    struct hd_text json = {0};

    take(HD_ASK_CHAT, "{\"messages\": [{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                      "\"text\":\"a\\n\"},{\"type\":\"text\",\"text\":\"b\"}],\"x\":[1.50,null,"
                      "{\"y\":false}]}]}");
    assert_int_equal(hd_ask_write_messages(&arena, &ask, &json), HD_OK);
    assert_string_equal(json.data, "[{\"role\":\"user\",\"content\":\"a\\nb\",\"x\":[1.50,null,"
                                   "{\"y\":false}]}]");
    hd_text_free(&json);
}

#define CALL_MESSAGE(arguments)                                                            \
    "\"messages\": "                                                                       \
    "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\"," \
    "\"arguments\":" arguments "}}]}]"
static void tools_and_calls_reach_the_template(void **state)
{
    struct hd_text json = {0};

    take(HD_ASK_CHAT, "{" CALL_MESSAGE("\"{\\\"a\\\": 1}\"") ", \"tools\": " TOOL
                                                             ", \"parallel_tool_calls\": false}");
    assert_true(ask.tools && ask.one_call);
    assert_int_equal(hd_ask_write_messages(&arena, &ask, &json), HD_OK);
    assert_string_equal(
        json.data,
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{"
        "\"name\":\"f\",\"arguments\":{\"a\":1}}}]}],\"tools\":" TOOL "}");
    take(HD_ASK_CHAT,
         "{" CALL_MESSAGE("\"x\"") ", \"tools\": " TOOL ", \"tool_choice\": \"none\"}");
    assert_null(ask.tools);
    assert_int_equal(hd_ask_write_messages(&arena, &ask, &json), HD_INVALID);
    assert_string_equal(hd_err_message(),
                        "message 0: the arguments of a tool call are no JSON object");
    hd_text_free(&json);
}

RUN_CASES_BETWEEN(set_up, tear_down)
