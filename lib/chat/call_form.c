/* call_form: finds the form in which a chat template writes tool calls, by rendering one. */
#include <string.h>

#include "chat/calls.h"
#include "chat/render.h"

#define PROBE "heddle_probe"

/* Renders a question about a tool; with_call: and a call as the answer. */
static enum hd_status render_probe(const struct hd_chat *chat, bool with_call,
                                   struct hd_template_output *output)
{
    static const char question[] = "[{\"role\":\"user\",\"content\":\"x\"}]";
    static const char answer[] =
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"\","
        "\"tool_calls\":[{\"id\":\"call00000\",\"type\":\"function\",\"function\":{\"name\":"
        "\"" PROBE "\",\"arguments\":{\"k\":\"v\"}}}]}]";
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"" PROBE "\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\","
        "\"description\":\"k\"}},\"required\":[\"k\"]}}}]";
    static const struct hd_json_limits limits = {.values_max = 100, .depth_max = 16};
    const struct hd_template_input input = hd_chat_input(chat);
    const char *messages = with_call ? answer : question;
    const struct hd_json *list = NULL;
    struct hd_conversation c = {.prompt = ""};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse(&arena, messages, strlen(messages), &limits, &list);
    if (!st)
        st = hd_conversation_of_messages(&arena, list, &c);
    if (!st)
        st = hd_json_parse(&arena, tools, sizeof tools - 1, &limits, &c.tools);
    if (!st)
        st =
            hd_chat_render_prompt(hd_chat_template_for(chat, true), &c, !with_call, &input, output);
    hd_arena_done(&arena);
    return st;
}

static const char *text_of_output(const struct hd_template_output *output)
{
    return output->text.data ? output->text.data : "";
}

/* Finds the form of the call of PROBE in a rendered text. */
static enum hd_status find_call_form(const char *text, size_t text_bytes, enum hd_call_form *ret)
{
    const size_t n = sizeof HD_CALL_TAG - 1;
    const char *call = NULL, *tag, *end, *list;

    for (const char *p = text; (p = strstr(p, PROBE)); p += sizeof PROBE - 1)
        call = p; /* the last one is that of the answer; others describe the tool */
    if (!call)
        return hd_err(HD_UNSUPPORTED, "the chat template writes no tool calls");
    for (tag = call; tag > text && !hd_text_starts(tag, HD_CALL_TAG);)
        tag--;
    for (list = call; list > text && !hd_text_starts(list, HD_CALL_MARK);)
        list--;
    end = text + text_bytes;
    if (hd_text_starts(tag, HD_CALL_TAG) && tag[n + strspn(tag + n, " \t\r\n")] == '{' &&
        strstr(call, HD_CALL_TAG_END) && strstr(call, HD_CALL_TAG_END) < end)
        *ret = HD_CALLS_TAGGED;
    else if (hd_text_starts(list, HD_CALL_MARK))
        *ret = HD_CALLS_LISTED;
    else if (strstr(call, "\"parameters\"") && call - text > 9 &&
             strncmp(call - 10, "{\"name\": \"", 10) == 0)
        *ret = HD_CALLS_BARE;
    else
        return hd_err(HD_UNSUPPORTED,
                      "the chat template writes tool calls in a form that is not read; read are "
                      "<tool_call> with JSON (Hermes, Qwen), [TOOL_CALLS] (Mistral) and JSON with "
                      "name and parameters (Llama 3)");
    return HD_OK;
}

enum hd_status hd_chat_calls_form(const struct hd_chat *chat, enum hd_call_form *ret_form)
{
    struct hd_template_output output = {0};
    enum hd_status st;

    if (!hd_chat_template_for(chat, true))
        return hd_err(HD_UNSUPPORTED, "the model has no chat template");
    st = render_probe(chat, false, &output);
    if (st)
        st = hd_err_prefix(HD_UNSUPPORTED, "with tools");
    else if (!strstr(text_of_output(&output), PROBE))
        st = hd_err(HD_UNSUPPORTED, "the chat template of this model takes no tools");
    if (!st) {
        st = render_probe(chat, true, &output);
        st = st ? hd_err_prefix(HD_UNSUPPORTED, "a tool call")
                : find_call_form(text_of_output(&output), output.text.len_bytes, ret_form);
    }
    hd_template_output_free(&output);
    return st;
}
