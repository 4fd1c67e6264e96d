/* reply_test: answers with tool calls, whole and as a stream, without a model. */
#include <string.h>

#include "serve/serve.h"
#include "tests/program/test.h"

/* Only log-probabilities and the list of models ask these. */
struct hd_language *serve_work_language(struct serve_work *work)
{
    return NULL;
}

const struct hd_decoder *serve_work_decoder(const struct serve_work *work)
{
    return NULL;
}

#define CALL "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1.50}}</tool_call>"

static const struct hd_json name = {.kind = HD_JSON_STRING, .key = "name", .text = "f"};
static const struct hd_json tool = {.kind = HD_JSON_OBJECT, .count = 1, .first = &name};
static struct hd_json tools = {.kind = HD_JSON_ARRAY, .count = 1, .first = &tool};

struct answering {
    struct serve serve;
    struct serve_call call;
    struct serve_choice choice;
    struct hd_text out;
};

static void begin(struct answering *a)
{
    *a = (struct answering){
        .serve = {.options = {.name = "m"}},
        .call = {.ask = {.kind = HD_ASK_CHAT}, .id = "chatcmpl-7", .choice_count = 1}};
    a->call.serve = &a->serve;
    a->call.choices = &a->choice;
    a->call.tools = &tools;
    a->choice.call = &a->call;
}

static void end(struct answering *a)
{
    hd_text_free(&a->choice.text);
    hd_text_free(&a->out);
}

static void needs(const struct answering *a, const char *part)
{
    if (!strstr(a->out.data, part))
        fail_msg("%s\nlacks %s", a->out.data, part);
}

static void a_call_is_a_member_of_the_message(void **state)
{
    struct answering a;

    begin(&a);
    hd_text_add(&a.choice.text, "Hm. " CALL CALL);
    a.choice.ended = true;
    serve_write_answer(&a.call, &a.out);
    needs(&a, "\"content\":\"Hm.\",\"tool_calls\":[{\"id\":\"call_7_0_0\",\"type\":\"function\","
              "\"function\":{"
              "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1.50}\"}},{\"id\":\"call_7_0_1\"");
    needs(&a, "\"finish_reason\":\"tool_calls\"");
    hd_text_clear(&a.out);
    a.call.ask.one_call = true;
    a.choice.end = SERVE_LENGTH; /* an answer that was cut off has what is whole of it */
    serve_write_answer(&a.call, &a.out);
    needs(&a, "\"finish_reason\":\"length\"");
    assert_null(strstr(a.out.data, "call_7_0_1"));
    hd_text_clear(&a.out);
    hd_text_clear(&a.choice.text);
    hd_text_add(&a.choice.text, CALL);
    serve_write_answer(&a.call, &a.out);
    needs(&a, "\"content\":null,\"tool_calls\"");
    end(&a);
}

/* Goal: the parts of a stream give the message of the whole answer. Method: byte by byte. */
static void a_stream_has_the_text_then_the_calls(void **state)
{
    static const char text[] = "Hm <b>. " CALL;
    struct hd_text content = {0};
    struct answering a;

    begin(&a);
    for (const char *p = text; *p; p++) {
        const char *delta;

        hd_text_add_bytes(&a.choice.text, p, 1);
        a.choice.ended = !p[1];
        if (!a.choice.ended && !serve_unsent(&a.choice))
            continue;
        hd_text_clear(&a.out);
        serve_write_chunk(&a.choice, &a.out);
        delta = strstr(a.out.data, "\"content\":\"");
        if (delta)
            hd_text_add(&content, "%.*s", (int)strcspn(delta + 11, "\""), delta + 11);
        assert_true(!strstr(a.out.data, "tool_call>"));
    }
    assert_string_equal(content.data, "Hm <b>.");
    needs(&a,
          "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_7_0_0\",\"type\":\"function\"");
    needs(&a, "\"finish_reason\":\"tool_calls\"");
    hd_text_free(&content);
    end(&a);
}

static void a_text_without_a_call_is_sent_whole(void **state)
{
    struct answering a;

    begin(&a);
    hd_text_add(&a.choice.text, "<tool_call>{\"name\": \"g\"}");
    assert_int_equal(serve_unsent(&a.choice), 0);
    a.choice.ended = true;
    serve_write_chunk(&a.choice, &a.out);
    needs(&a, "\"content\":\"<tool_call>{\\\"name\\\": \\\"g\\\"}\"");
    needs(&a, "\"finish_reason\":\"stop\"");
    end(&a);
}

RUN_CASES()
